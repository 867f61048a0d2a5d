# /// script
# dependencies = ["openvino", "transformers"]
# ///
"""OpenVINO: convert_model of the PyTorch model (float32), and reads the published ONNX form"""

from door import answers, auto, folder, near, run, tokenizer


def job() -> None:
    import numpy as np
    import openvino

    wanted = answers()
    model = auto("AutoModelForSequenceClassification", "sentiment")
    tokens = tokenizer("sentiment")
    example = dict(tokens(["a longer text to trace with", "a text"], padding=True, return_tensors="pt"))
    traced = openvino.convert_model(model, example_input=example)
    read = openvino.Core().read_model(f"{folder('sentiment')}/onnx/model.onnx")
    batch = dict(tokens(wanted["texts"], padding=True, return_tensors="np"))
    for graph in (traced, read):
        compiled = openvino.compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        names = [name for value in compiled.inputs for name in value.get_names() if name in batch]
        logits = compiled({name: batch[name].astype(np.int64) for name in names})[0].astype(float)
        e = np.exp(logits)
        near(e / e.sum(-1, keepdims=True), wanted["probabilities"])


run({"as is": job}, {("native", "as is"): ("off by nan", "theirs: a padded token that sees nothing gives NaN")})
