# /// script
# dependencies = ["onnxruntime", "transformers"]
# ///
"""ONNX Runtime: runs the published onnx/model.onnx and its int8 form"""

from door import answers, folder, near, run, tokenizer


def job() -> None:
    import numpy as np
    import onnxruntime

    wanted = answers()
    batch = tokenizer("sentiment")(wanted["texts"], padding=True, return_tensors="np")
    for name, tolerance in (("model.onnx", 1e-5), ("model_quantized.onnx", 0.1)):
        session = onnxruntime.InferenceSession(f"{folder('sentiment')}/onnx/{name}", providers=["CPUExecutionProvider"])
        logits = session.run(["logits"], {key: value.astype(np.int64) for key, value in batch.items()})[0]
        e = np.exp(logits.astype(float))
        values = e / e.sum(-1, keepdims=True)
        if tolerance < 1e-3:
            near(values, wanted["probabilities"], tolerance)
        else:
            assert np.abs(values - np.array(wanted["probabilities"])).max() < tolerance


run({"as is": job})
