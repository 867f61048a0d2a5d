# /// script
# dependencies = ["trl", "transformers"]
# ///
"""TRL, RewardTrainer: learns to prefer good reviews"""

from door import answers, auto, run, tokenizer


def job() -> None:
    import torch
    from datasets import Dataset
    from trl import RewardConfig, RewardTrainer

    wanted = answers()
    good = [text for text, label in wanted["reviews"] if label]
    bad = [text for text, label in wanted["reviews"] if not label]
    data = Dataset.from_dict({"chosen": good, "rejected": bad})
    model = auto("AutoModelForSequenceClassification", "sentiment", num_labels=1, ignore_mismatched_sizes=True)
    tokens = tokenizer()
    tokens.eos_token = tokens.sep_token
    arguments = RewardConfig("out", max_steps=20, learning_rate=1e-3, per_device_train_batch_size=8, report_to="none",
                             save_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=False)  # fmt: skip
    RewardTrainer(model=model, args=arguments, train_dataset=data, processing_class=tokens).train()
    model.eval()
    with torch.no_grad():
        score = [model(**tokens(text, return_tensors="pt")).logits.item() for text in wanted["texts"][:2]]
    assert score[0] > score[1], score


run({"as is": job})
