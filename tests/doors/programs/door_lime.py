# /// script
# dependencies = ["lime", "transformers"]
# ///
"""LIME: finds the word that decides"""

from door import TRUST, answers, folder, near, run


def job() -> None:
    import numpy as np
    from lime.lime_text import LimeTextExplainer
    from transformers import pipeline

    wanted = answers()
    judge = pipeline("text-classification", folder("sentiment"), top_k=None, **TRUST)
    names = wanted["labels"]["sentiment"]

    def probabilities(texts: list[str]) -> np.ndarray:
        found = [{item["label"]: item["score"] for item in row} for row in judge(list(texts), batch_size=32)]
        return np.array([[row[name] for name in names] for row in found])

    near(probabilities(wanted["texts"]), wanted["probabilities"])
    explained = LimeTextExplainer(class_names=names, random_state=0).explain_instance(
        wanted["texts"][0], probabilities, num_samples=200
    )
    # Among the first two: in "wonderful film" both words get about the same weight.
    assert "wonderful" in [word for word, _ in explained.as_list()[:2]], explained.as_list()


run({"as is": job})
