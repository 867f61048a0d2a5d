"""Run as a program by the tests: a few steps of Trainer that push to the Hub on the way.

python trainer_pushes.py MODEL_DIR OUTPUT_DIR
"""

import sys

from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

import clozebert  # noqa: F401
from clozebert.hub import LoadablePushes


def main(source, output_dir):
    tokenizer = AutoTokenizer.from_pretrained(source)
    rows = [{**tokenizer(text), "labels": index % 3} for index, text in enumerate(["the river", "the stone"] * 4)]
    arguments = TrainingArguments(
        output_dir,
        push_to_hub=True,
        hub_model_id="org/trainer",
        hub_private_repo=True,
        hub_strategy="every_save",
        hub_always_push=True,
        max_steps=4,
        save_strategy="steps",
        save_steps=2,
        per_device_train_batch_size=2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        AutoModelForSequenceClassification.from_pretrained(source),
        arguments,
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=[LoadablePushes()],
    )
    trainer.train()
    trainer.push_to_hub()


if __name__ == "__main__":
    main(*sys.argv[1:])
