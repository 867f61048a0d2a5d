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
    text = wanted["texts"][0]
    encoder = SentenceTransformer(folder("mlm"), device="cpu", **TRUST)
    found = KeyBERT(encoder).extract_keywords(text, keyphrase_ngram_range=(1, 1), top_n=4, stop_words=None)
    row = np.array(wanted["cls"][0])
    assert {word for word, _ in found} == set(text.split()) - {"a"}, found
    for word, score in found:
        other = encoder.encode(word).astype(float)
        cosine = row @ other / np.linalg.norm(row) / np.linalg.norm(other)
        assert abs(score - cosine) < 1e-3, (word, score, cosine)
    near(encoder.encode(text), row)


run({"as is": job})
