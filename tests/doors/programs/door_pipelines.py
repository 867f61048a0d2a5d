# /// script
# dependencies = ["transformers"]
# ///
"""transformers, pipelines: fills a blank, judges five texts in one batch, tags words, gives features"""

from door import TRUST, answers, folder, near, run


def job() -> None:
    from transformers import pipeline

    wanted = answers()
    best = pipeline("fill-mask", folder("mlm"), **TRUST)(wanted["blank"])[0]
    assert best["token_str"] == wanted["word"], best
    near(best["score"], wanted["score"])
    judge = pipeline("text-classification", folder("sentiment"), top_k=None, **TRUST)
    for scores, row in zip(judge(wanted["texts"], batch_size=5), wanted["probabilities"], strict=True):
        by_name = {item["label"]: item["score"] for item in scores}
        near([by_name[label] for label in wanted["labels"]["sentiment"]], row)
    tagger = pipeline("token-classification", folder("entities"), aggregation_strategy="simple", **TRUST)
    spans = [(span["word"], span["entity_group"]) for span in tagger(wanted["texts"][-1])]
    assert spans == [("ada lovelace", "PER"), ("paris", "LOC"), ("cairo", "LOC")], spans
    features = pipeline("feature-extraction", folder("mlm"), **TRUST)(wanted["texts"][0])
    near(features[0], wanted["tokens"][0])


run({"as is": job})
