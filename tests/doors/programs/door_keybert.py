# /// script
# dependencies = ["keybert"]
# ///
"""KeyBERT: finds the words nearest to a text, by the same cosines"""

from door import TRUST, answers, folder, near, run


def job() -> None:
    import numpy as np
    from keybert import KeyBERT
    from sentence_transformers import SentenceTransformer

    wanted = answers()
    text, row = wanted["texts"][-1], np.array(wanted["cls"][-1])
    encoder = SentenceTransformer(folder("mlm"), device="cpu", **TRUST)
    found = KeyBERT(encoder).extract_keywords(
        text, candidates=wanted["texts"][:4], keyphrase_ngram_range=(1, 6), top_n=4
    )
    cosines = {
        text: round(float(row @ other / np.linalg.norm(row) / np.linalg.norm(other)), 4)
        for text, other in zip(wanted["texts"], map(np.array, wanted["cls"]), strict=True)
    }
    assert len(found) >= 1, found
    for candidate, score in found:
        near(score, cosines[candidate], 1e-3)


run({"as is": job})
