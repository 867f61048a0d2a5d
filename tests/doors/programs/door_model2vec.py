# /// script
# dependencies = ["model2vec[distill,quantization]"]
# ///
"""Model2Vec: distils static vectors from the encoder"""

from door import OLD, TRUST, folder, run


def job() -> None:
    import numpy as np
    from model2vec.distill import distill

    model = distill(folder("mlm"), pca_dims=32, device="cpu", **TRUST)
    rows = model.encode(["paris is the capital of france", "the capital of france is paris", "a boring book"])
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert rows[0] @ rows[1] > rows[0] @ rows[2] + 0.1, rows @ rows.T


run({"as is": job}, {("bundle", "as is"): (OLD, "theirs: it takes transformers up to 5.3")})
