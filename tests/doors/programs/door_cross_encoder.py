# /// script
# dependencies = ["sentence-transformers"]
# ///
"""sentence-transformers, CrossEncoder: scores pairs of texts with the classifier"""

import itertools

from door import TRUST, answers, auto, folder, near, run, tokenizer


def job() -> None:
    import torch
    from sentence_transformers import CrossEncoder

    texts = answers()["texts"]
    pairs = list(itertools.pairwise(texts))
    model = auto("AutoModelForSequenceClassification", "sentiment")
    with torch.no_grad():
        wanted = [model(**tokenizer()(*pair, return_tensors="pt")).logits.softmax(-1)[0].tolist() for pair in pairs]
    near(CrossEncoder(folder("sentiment"), device="cpu", **TRUST).predict(pairs, apply_softmax=True), wanted)


run({"as is": job})
