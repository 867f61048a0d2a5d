# /// script
# dependencies = ["shap", "transformers"]
# ///
"""SHAP: explains a text-classification pipeline; the values add up to its score"""

from door import TRUST, answers, folder, near, run


def job() -> None:
    import shap
    from transformers import pipeline

    wanted = answers()
    judge = pipeline("text-classification", folder("sentiment"), top_k=None, **TRUST)
    values = shap.Explainer(judge, silent=True)(wanted["texts"][:1])
    names = list(values.output_names)
    column = names.index("positive")
    total = values.values[0][:, column].sum() + values.base_values[0][column]
    near(total, wanted["probabilities"][0][1])
    pieces = [str(piece).strip() for piece in values.data[0]]
    word = values.values[0][:, column].argmax()
    assert any(piece and piece in "wonderful" for piece in pieces[word : word + 1]), pieces


run({"as is": job})
