# /// script
# dependencies = ["transformers==5.3.0"]
# ///
"""transformers 5.3.0: opens Auto classes and a pipeline"""

from door import OLD, TRUST, answers, folder, near, run, tokenizer


def job() -> None:
    import torch
    from transformers import AutoModel, AutoModelForSequenceClassification, pipeline

    wanted = answers()
    model = AutoModelForSequenceClassification.from_pretrained(folder("sentiment"), **TRUST).eval()
    batch = tokenizer()(wanted["texts"], padding=True, return_tensors="pt")
    with torch.no_grad():
        near(model(**batch).logits.softmax(-1), wanted["probabilities"])
        hidden = AutoModel.from_pretrained(folder("mlm"), **TRUST).eval()(**batch).last_hidden_state
    near(hidden[-1], wanted["tokens"][-1])
    assert pipeline("fill-mask", folder("mlm"), **TRUST)(wanted["blank"])[0]["token_str"] == wanted["word"]


run({"as is": job}, {("bundle", "as is"): (OLD, "ours: the range that the shipped code names")})
