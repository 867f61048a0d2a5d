# /// script
# dependencies = ["bert-score"]
# ///
"""BERTScore: the same precision, recall and F1 as its formula on the vectors"""

from door import after_import, answers, folder, near, run


def job() -> None:
    import numpy as np
    from bert_score import score

    wanted = answers()
    first, second = wanted["texts"][:2], wanted["texts"][2:4]
    found = score(first, second, model_type=folder("mlm"), num_layers=4, device="cpu")

    def rows(place: int) -> np.ndarray:
        values = np.array(wanted["tokens"][place])
        return values / np.linalg.norm(values, axis=-1, keepdims=True)

    for pair in (0, 1):
        # [CLS] and [SEP] have no weight there, but may be the nearest.
        cosines = rows(pair) @ rows(pair + 2).T
        near(found[0][pair], cosines.max(1)[1:-1].mean(), 1e-4)
        near(found[1][pair], cosines.max(0)[1:-1].mean(), 1e-4)


UNTRUSTED = ("contains custom code", "theirs: it hands no trust_remote_code on")
run({"as is": job, "after `import clozebert`": after_import(job)}, {("bundle", "as is"): UNTRUSTED})
