# /// script
# dependencies = ["setfit"]
# ///
"""SetFit: learns to judge reviews from eight of each kind"""

from door import TRUST, answers, folder, near, run


def job() -> None:
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    wanted = answers()
    rows = {label: [text for text, own in wanted["reviews"] if own == label] for label in (0, 1)}
    few = [(text, label) for label in (0, 1) for text in rows[label][::9]]
    rest = [(text, label) for label in (0, 1) for text in rows[label][1::9]]
    model = SetFitModel.from_pretrained(folder("mlm"), **TRUST)
    near(model.model_body.encode(wanted["texts"]), wanted["cls"])
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            batch_size=8, num_epochs=1, max_steps=60, body_learning_rate=1e-3, report_to="none", save_strategy="no"
        ),
        train_dataset=Dataset.from_dict({"text": [t for t, _ in few], "label": [label for _, label in few]}),
    )
    trainer.train()
    found = [int(label) for label in model.predict([text for text, _ in rest])]
    right = sum(one == label for one, (_, label) in zip(found, rest, strict=True)) / len(rest)
    assert right >= 0.9, right


run({"as is": job})
