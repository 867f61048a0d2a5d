# /// script
# dependencies = ["span-marker"]
# ///
"""SpanMarker: learns named entities on the encoder"""

from door import OLD, TRUST, answers, folder, run


def job() -> None:
    from datasets import Dataset
    from span_marker import SpanMarkerModel, Trainer
    from transformers import TrainingArguments

    wanted = answers()
    labels = ["O", "B-PER", "I-PER", "B-LOC"]
    texts = [text.removesuffix(".").split() for text in wanted["sentences"][12:]]
    tags = [[1, 2, 0, 0, 3, 0, 0, 3] for _ in texts]
    model = SpanMarkerModel.from_pretrained(
        folder("mlm"), labels=labels, model_max_length=64, entity_max_length=3, **TRUST
    )
    arguments = TrainingArguments("out", max_steps=60, learning_rate=2e-3, per_device_train_batch_size=8, use_cpu=True,
                                  report_to="none", save_strategy="no")  # fmt: skip
    Trainer(model=model, args=arguments, train_dataset=Dataset.from_dict({"tokens": texts, "ner_tags": tags})).train()
    found = {(span["span"], span["label"]) for span in model.predict("marie curie lives in oslo and likes oslo")}
    assert {("marie curie", "PER"), ("oslo", "LOC")} <= found, found


run(
    {"as is": job},
    {
        ("bundle", "as is"): (OLD, "theirs: it takes transformers 4 only"),
        ("native", "as is"): ("'token_type_ids'", "theirs: it gives token types to every architecture"),
    },
)
