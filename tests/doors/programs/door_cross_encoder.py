# /// script
# dependencies = ["sentence-transformers"]
# ///
"""sentence-transformers, CrossEncoder: scores texts with the classifier"""

from door import TRUST, answers, folder, near, run


def job() -> None:
    from sentence_transformers import CrossEncoder

    wanted = answers()
    model = CrossEncoder(folder("sentiment"), device="cpu", **TRUST)
    scores = model.predict(wanted["texts"], apply_softmax=True)
    near(scores, wanted["probabilities"])


run({"as is": job})
