# /// script
# dependencies = ["optimum-intel[openvino]"]
# ///
"""Optimum Intel: OVModelForSequenceClassification exports the model and runs it"""

from door import TRUST, answers, folder, near, run, tokenizer


def job() -> None:
    import torch
    from optimum.intel import OVModelForSequenceClassification

    wanted = answers()
    model = OVModelForSequenceClassification.from_pretrained(
        folder("sentiment"), export=True, ov_config={"INFERENCE_PRECISION_HINT": "f32"}, **TRUST
    )
    batch = tokenizer("sentiment")(wanted["texts"], padding=True, return_tensors="pt")
    with torch.no_grad():
        near(torch.as_tensor(model(**batch).logits).softmax(-1), wanted["probabilities"])


run({"as is": job})
