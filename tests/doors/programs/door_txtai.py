# /// script
# dependencies = ["txtai"]
# ///
"""txtai: indexes texts with mean pooling, searches them"""

from door import FORM, answers, folder, near, run


def job() -> None:
    from txtai import Embeddings

    wanted = answers()
    vectors = {"trust_remote_code": True} if FORM == "bundle" else {}
    embeddings = Embeddings(path=folder("mlm"), method="meanpooling", content=True, vectors=vectors, gpu=False)
    embeddings.index(wanted["texts"])
    assert embeddings.search(wanted["texts"][2], 1)[0]["text"] == wanted["texts"][2]
    import numpy as np

    rows = np.array(wanted["mean"])
    near(embeddings.batchtransform(wanted["texts"]), rows / np.linalg.norm(rows, axis=1, keepdims=True), 1e-4)


run({"as is": job})
