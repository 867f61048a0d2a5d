# /// script
# dependencies = ["transformers-interpret", "transformers"]
# ///
"""transformers-interpret: explains a classification by its words"""

from door import answers, auto, near, run, tokenizer


def job() -> None:
    from transformers_interpret import SequenceClassificationExplainer

    wanted = answers()
    explain = SequenceClassificationExplainer(auto("AutoModelForSequenceClassification", "sentiment"), tokenizer())
    scores = explain(wanted["texts"][1])
    assert explain.predicted_class_name == "negative", explain.predicted_class_name
    near(explain.pred_probs.item(), max(wanted["probabilities"][1]))
    best = max(scores, key=lambda item: item[1])[0]
    assert best.strip("#") in "boring", scores


run({"as is": job})
