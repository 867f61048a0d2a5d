# /// script
# dependencies = ["optimum-onnx[onnxruntime]"]
# ///
"""Optimum ONNX: opens the published ONNX form by ORTModelForSequenceClassification"""

from door import OLD, TRUST, answers, folder, near, run, tokenizer


def job() -> None:
    import torch
    from optimum.onnxruntime import ORTModelForSequenceClassification

    wanted = answers()
    options = {"subfolder": "onnx", "file_name": "model.onnx", **TRUST}
    model = ORTModelForSequenceClassification.from_pretrained(folder("sentiment"), **options)
    batch = tokenizer("sentiment")(wanted["texts"], padding=True, return_tensors="pt")
    with torch.no_grad():
        near(model(**batch).logits.softmax(-1), wanted["probabilities"])


run({"as is": job}, {("bundle", "as is"): (OLD, "theirs: it takes transformers below 4.58 only")})
