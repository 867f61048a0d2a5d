# /// script
# dependencies = ["gliner", "accelerate"]
# ///
"""GLiNER: learns spans on the encoder and finds them again"""

from door import after_import, answers, folder, run


def job() -> None:
    from gliner import GLiNER, GLiNERConfig

    wanted = answers()
    config = GLiNERConfig(model_name=folder("mlm"), hidden_size=64, max_width=3, max_len=64, fine_tune=True)
    model = GLiNER.from_config(config, backbone_from_pretrained=True)
    rows = []
    for text in wanted["sentences"][12:]:
        words = text.removesuffix(".").split()
        spans = [[0, 1, "person"]] + [[place, place, "city"] for place in (4, 7)]
        rows.append({"tokenized_text": words, "ner": spans})
    model.train_model(
        rows, rows[:4], output_dir="out", max_steps=60, learning_rate=2e-3, others_lr=2e-3, bf16=False, use_cpu=True,
        per_device_train_batch_size=12, report_to="none", save_strategy="no",
    )  # fmt: skip
    model.eval()
    found = model.predict_entities("marie curie lives in oslo and likes oslo", ["person", "city"], threshold=0.4)
    spans = {span["text"] for span in found}
    assert {"marie curie", "oslo"} <= spans, found


UNTRUSTED = ("contains custom code", "theirs: it hands no trust_remote_code on")
run({"as is": job, "after `import clozebert`": after_import(job)}, {("bundle", "as is"): UNTRUSTED})
