# /// script
# dependencies = ["adapters"]
# ///
"""Adapters: adds a bottleneck adapter and trains it"""

from door import OLD, TRUST, answers, folder, near, run, tokenizer


def job() -> None:
    import adapters
    import torch
    from transformers import AutoModelForSequenceClassification

    wanted = answers()
    model = AutoModelForSequenceClassification.from_pretrained(folder("sentiment"), **TRUST).eval()
    batch = tokenizer()(wanted["texts"], padding=True, return_tensors="pt")
    near(model(**batch).logits.softmax(-1).detach(), wanted["probabilities"])
    adapters.init(model)
    model.add_adapter("own", config="seq_bn")
    model.train_adapter("own")
    labels = torch.tensor([1, 0, 1, 0, 0])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(**batch, labels=labels).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses


run({"as is": job}, {("bundle", "as is"): (OLD, "theirs: it takes transformers 4 only")})
