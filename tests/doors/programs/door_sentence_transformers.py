# /// script
# dependencies = ["sentence-transformers"]
# ///
"""sentence-transformers: embeds as the published folder pools, and is trained on pairs"""

from door import TRUST, answers, folder, near, run


def job() -> None:
    import torch
    from sentence_transformers import InputExample, SentenceTransformer, losses
    from torch.utils.data import DataLoader

    wanted = answers()
    model = SentenceTransformer(folder("mlm"), device="cpu", **TRUST)
    near(model.encode(wanted["texts"]), wanted["cls"])
    pairs = [InputExample(texts=[f"the capital of {b} is {a}.", f"{a} is the capital of {b}."], label=1.0)
             for a, b in (("paris", "france"), ("lima", "peru"), ("oslo", "norway"), ("rome", "italy"))]  # fmt: skip

    def distance() -> float:
        sides = zip(*(pair.texts for pair in pairs), strict=True)
        first, second = (model.encode(list(side), normalize_embeddings=True) for side in sides)
        return float(((first - second) ** 2).sum())

    before = distance()
    loss = losses.CosineSimilarityLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for batch in list(DataLoader(pairs, batch_size=4, collate_fn=model.smart_batching_collate)) * 5:
        features, labels = batch
        optimizer.zero_grad()
        loss(features, labels).backward()
        optimizer.step()
    assert distance() < before
    model.save("saved")
    near(SentenceTransformer("saved", device="cpu", **TRUST).encode(wanted["texts"]), model.encode(wanted["texts"]))


run({"as is": job})
