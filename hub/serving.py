"""Exports for serving: ONNX, int8 ONNX, and a sentence-transformers folder.

Each ONNX export is checked at once, in onnxruntime against PyTorch at three shapes; int8 is compared with float on
texts that the user gives. The tests compare sentence embeddings with our own pooling.
"""

import contextlib
import copy
import importlib
import importlib.util
import io
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ..utils.errors import MissingPackageError, UserError
from ..utils.input_length import NO_LIMIT, longest_input
from .fingerprint import separate_pairs

# transformers.js loads the second by default.
ONNX_NAME, INT8_NAME = "onnx/model.onnx", "onnx/model_quantized.onnx"
# Measured: at most 4e-6 for every head with random weights, with outputs of about 1.
ONNX_TOLERANCE = 1e-4
_POOLINGS = ("cls", "mean", "max")
_ONE_FILE = 1_800_000_000  # a protobuf file is limited to 2 GB
_CHOICES = 3


@dataclass(frozen=True)
class Int8Report:
    """The size and the quality of int8 compared with float.

    Attributes:
        float_bytes, int8_bytes: sizes of the two files.
        agreement: share of predictions that are the same, or with several labels, of the yes or no for each; None for
            a regression. mean_shift: how much probability moves from one class to others: half the sum of the
            |differences|. With several labels, the mean |difference| of the probabilities; in a regression, of the
            values.
        float_accuracy, int8_accuracy: accuracy on the labels, if they were given.
    """

    float_bytes: int
    int8_bytes: int
    agreement: float | None
    mean_shift: float
    float_accuracy: float | None = None
    int8_accuracy: float | None = None

    def __str__(self) -> str:
        text = f"{self.int8_bytes / self.float_bytes:.0%} of the size, "
        if self.agreement is None:
            return f"{text}values shifted by {self.mean_shift:.2g} on average"
        text += f"{self.agreement:.2%} of predictions as in float32, "
        text += f"probabilities shifted by {self.mean_shift:.2g} on average"
        if self.float_accuracy is not None:
            text += f", accuracy {self.int8_accuracy:.4f} instead of {self.float_accuracy:.4f}"
        return text


# ONNX


def export_onnx(model: Any, directory: str | os.PathLike) -> float:
    """Write `onnx/model.onnx` into a folder, for any batch size and length, with transformers' own exporter.

    Args:
        model: a model of ours or of a native architecture, with any head.

    Returns:
        the largest difference between onnxruntime and PyTorch over three shapes and all outputs.

    Raises:
        MissingPackageError: transformers is too old to export, or onnx, onnxscript or onnxruntime is missing.
        UserError: onnxruntime's outputs differ by more than 1e-4.
    """
    exporter, options = find_exporter()
    path = Path(directory) / ONNX_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    model = copy.deepcopy(model).to("cpu", torch.float32).eval()  # the caller's own stays as it is
    with _quiet():
        program = exporter.export(model, _inputs(model, 2, 9), options).program
    import onnx_ir

    for node in program.graph.all_nodes():
        # Deletes the source location of each operation: it holds paths of this machine and differs from run to run.
        for item in (node, *node.outputs):
            item.metadata_props.clear()
    is_large = sum(p.numel() * 4 for p in model.parameters()) > _ONE_FILE
    onnx_ir.save(program, str(path), external_data=f"{path.name}.data" if is_large else None)
    # Not by `max`, which passes over a NaN that is not the first.
    worst = float(np.max([_difference(model, path, rows, length) for rows, length in ((1, 3), (3, 17), (5, 64))]))
    if not worst <= ONNX_TOLERANCE:
        path.unlink()
        raise UserError(f"the ONNX form of this model is off by {worst:.3g} in onnxruntime: it was not kept")
    return worst


def find_exporter() -> tuple[Any, Any]:
    """transformers' exporter to ONNX, and its options.

    Raises:
        MissingPackageError: see `export_onnx`.
    """
    import transformers

    # The oldest release tested: 5.12 has no exporters, and they changed after their first release.
    if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < (5, 23):
        raise MissingPackageError(
            f"ONNX is written by transformers' own exporter, and transformers {transformers.__version__} is too old "
            f"for it: pip install 'transformers>=5.23'"
        )
    with _quiet():
        from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

        missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
        if missing:
            raise MissingPackageError(f"ONNX needs {', '.join(missing)}: pip install {' '.join(missing)}")
        return OnnxExporter(), OnnxConfig(dynamic=True)


def _need(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingPackageError(f"this needs {name}: pip install {name}") from None


def _inputs(model: Any, rows: int, length: int) -> dict[str, torch.Tensor]:
    """Inputs of a shape, with the last row padded; lengths beyond the model's limit are cut."""
    config = model.config
    generator = torch.Generator().manual_seed(rows * 1000 + length)
    if size := getattr(config, "image_size", None):
        height, width = (size, size) if isinstance(size, int) else size
        return {"pixel_values": torch.randn(rows, config.num_channels, height, width, generator=generator)}
    pad = config.pad_token_id or 0
    length = min(length, longest_input(model, SimpleNamespace(model_max_length=NO_LIMIT)))
    ids_BT = torch.randint(0, config.vocab_size, (rows, length), generator=generator)
    ids_BT = torch.where(ids_BT == pad, (pad + 1) % config.vocab_size, ids_BT)
    separate_pairs(config, ids_BT)
    mask_BT = torch.ones_like(ids_BT)
    if rows > 1:
        mask_BT[-1, length // 2 :], ids_BT[-1, length // 2 :] = 0, pad
    inputs = {"input_ids": ids_BT, "attention_mask": mask_BT}
    if getattr(config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = (torch.arange(length) >= length // 2).long().expand(rows, length).clone()
    if type(model).__name__.endswith("ForMultipleChoice"):
        inputs = {key: x.unsqueeze(1).repeat(1, _CHOICES, 1) for key, x in inputs.items()}
    return inputs


def _difference(model: Any, path: Path, rows: int, length: int) -> float:
    inputs = _inputs(model, rows, length)
    with torch.no_grad():
        expected = model(**inputs)
    found = run_onnx(open_onnx(path), {key: value.numpy() for key, value in inputs.items()})
    differences = []
    for name, value in found.items():
        here = expected[name].numpy()
        if name == "last_hidden_state" and "attention_mask" in inputs:
            is_token = inputs["attention_mask"].bool().numpy()
            here, value = here[is_token], value[is_token]
        differences.append(float(np.abs(here - value).max()))
    return float(np.max(differences))


def open_onnx(path: str | os.PathLike) -> Any:
    """An onnxruntime session on the CPU."""
    return _need("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])


def run_onnx(session: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a session; returns output name -> values. Inputs that the graph does not have are left out."""
    taken = {item.name for item in session.get_inputs()}
    values = session.run(None, {key: value for key, value in inputs.items() if key in taken})
    return {item.name: value for item, value in zip(session.get_outputs(), values, strict=True)}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's progress and its notes on operators of other libraries."""
    disabled = logging.root.manager.disable
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(disabled)


# int8


def quantize_int8(directory: str | os.PathLike) -> Path:
    """Write `onnx/model_quantized.onnx` from `onnx/model.onnx`, for CPUs.

    Weights of linear layers (one scale for each output channel) and embeddings become int8. Activations are quantised
    at run time (dynamic quantisation).

    Raises:
        UserError: there is no ONNX form yet.
    """
    source, target = Path(directory) / ONNX_NAME, Path(directory) / INT8_NAME
    if not source.is_file():
        raise UserError(f"{source} is not there: export_onnx writes it first")
    onnx = _need("onnx")
    _need("onnxruntime")
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as temporary, _quiet():
        # The recorded shapes of weights are wrong after the quantiser transposes them, and it then fails.
        program = onnx.load(str(source))
        weights = {weight.name for weight in program.graph.initializer}
        noted = [item for item in program.graph.value_info if item.name not in weights]
        del program.graph.value_info[:]
        program.graph.value_info.extend(noted)
        written = Path(temporary) / "model.onnx"
        is_large = source.with_name(f"{source.name}.data").is_file()
        onnx.save(program, str(written), save_as_external_data=is_large)
        quantize_dynamic(
            str(written), str(target), weight_type=QuantType.QInt8, per_channel=True,
            op_types_to_quantize=["MatMul", "Gather"], use_external_data_format=is_large,
        )  # fmt: skip
    return target


def compare_int8(
    directory: str | os.PathLike,
    texts: Sequence[str],
    tokenizer: Any,
    labels: Sequence[int] | None = None,
    *,
    problem_type: str | None = None,
    pairs: bool = False,
) -> Int8Report:
    """Compare int8 with float on some texts: the prediction for each text, or for each token if the head is per token.

    Args:
        directory: holds both ONNX forms. labels: the correct class of each text, for heads that give one.
        problem_type: of the model's configuration; None: a regression if there is one output, else one label.
        pairs: each text is two, with a tab between them.

    Raises:
        UserError: a form is missing, the model gives no logits, there are no texts, or not one class for each text.
    """
    if isinstance(texts, str) or not texts:
        raise UserError(f"texts={texts!r} must be a list of texts that are like those the model will see")
    paths = [Path(directory) / name for name in (ONNX_NAME, INT8_NAME)]
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path} is not there: export_onnx and quantize_int8 write the two forms")
    sessions = [open_onnx(path) for path in paths]
    decided: list[list[np.ndarray]] = [[], []]
    shifts = []
    # One at a time: the logits of a masked-LM head are as wide as the vocabulary.
    for text in texts:
        columns = [[column] for column in (text.split("\t", 1) if pairs else [text])]
        batch = tokenizer(*columns, truncation=True, return_tensors="np")
        answers = [_answers(_logits(session, batch), problem_type) for session in sessions]
        differences = np.abs(answers[0][1] - answers[1][1])
        is_one_of_many = answers[0][0] is not None and problem_type != "multi_label_classification"
        shifts.append(differences.sum(-1) / 2 if is_one_of_many else differences.mean(-1))
        for rows, (decisions, _) in zip(decided, answers, strict=True):
            rows += [] if decisions is None else [decisions]
    before, after = (np.concatenate(rows) if rows else None for rows in decided)
    if labels is not None:
        _check_labels(labels, texts=len(texts), predictions=before)
    return Int8Report(
        float_bytes=_bytes_of(paths[0]),
        int8_bytes=_bytes_of(paths[1]),
        agreement=None if before is None else float(np.mean(before == after)),
        mean_shift=float(np.concatenate(shifts).mean()),
        float_accuracy=_accuracy(before, labels),
        int8_accuracy=_accuracy(after, labels),
    )


def _answers(logits_NC: np.ndarray, problem_type: str | None) -> tuple[np.ndarray | None, np.ndarray]:
    """What a model decides, None for a regression; and its probabilities, or its values."""
    if problem_type == "multi_label_classification":
        return logits_NC > 0, torch.from_numpy(logits_NC).sigmoid().numpy()
    if problem_type == "regression" or logits_NC.shape[-1] == 1:
        return None, logits_NC
    return logits_NC.argmax(-1), torch.from_numpy(logits_NC).softmax(-1).numpy()


def _check_labels(labels: Sequence[int], *, texts: int, predictions: np.ndarray | None) -> None:
    if len(labels) != texts:
        raise UserError(f"labels has {len(labels)} entries for {texts} texts")
    for label in labels:
        if not isinstance(label, (int, np.integer)):
            raise UserError(f"labels holds {label!r}: give the numbers of the classes in the model's id2label")
    if predictions is None or predictions.ndim > 1:
        raise UserError("labels are classes, and this head does not give one class for a text")
    if len(labels) != len(predictions):
        raise UserError("labels are one for each text, and this head predicts for each token")


def _bytes_of(path: Path) -> int:
    """The size of an ONNX file, including the separate file of its weights if there is one."""
    return sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*"))


def _logits(session: Any, batch: Any) -> np.ndarray:
    """The logits of a batch, [texts, classes]; for a head over tokens, [non-padding tokens, classes]."""
    inputs = {key: x.astype(np.int64) for key, x in batch.items()}
    # As in PyTorch. The graph needs them, and a tokenizer may give none.
    inputs.setdefault("token_type_ids", np.zeros_like(inputs["input_ids"]))
    outputs = run_onnx(session, inputs)
    if "logits" not in outputs:
        raise UserError("int8 is compared by predictions, and this model has no logits")
    logits = outputs["logits"]
    return logits[batch["attention_mask"].astype(bool)] if logits.ndim == 3 else logits


def _accuracy(predicted: np.ndarray | None, labels: Sequence[int] | None) -> float | None:
    return None if labels is None or predicted is None else float((predicted == np.asarray(labels)).mean())


# sentence-transformers


def check_pooling(pooling: str) -> None:
    """Raise if sentence-transformers does not have this pooling."""
    if pooling not in _POOLINGS:
        raise UserError(
            f"classifier_pooling={pooling!r} has no counterpart in sentence-transformers, which has "
            f"{', '.join(_POOLINGS)}"
        )


def write_sentence_transformers(directory: str | os.PathLike, *, pooling: str, hidden_size: int, length: int) -> None:
    """Make the folder of a saved model also a sentence-transformers folder, which pools as our classifiers do.

    Args:
        directory: holds the model and its tokenizer. pooling: `cls`, `mean` or `max`.
        length: the maximum length in tokens; longer texts are truncated.

    Raises:
        UserError: sentence-transformers does not have this pooling.
    """
    check_pooling(pooling)
    folder = Path(directory)
    prefix = "sentence_transformers.models"
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{prefix}.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{prefix}.Pooling"},
    ]
    modes = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
    # The keys that all releases read, old and new.
    pooled = {
        "word_embedding_dimension": hidden_size,
        **{f"pooling_mode_{name}": kind == pooling for kind, name in modes.items()},
    }
    (folder / "1_Pooling").mkdir(exist_ok=True)
    for name, value in (
        ("modules.json", modules),
        ("sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False}),
        ("1_Pooling/config.json", pooled),
    ):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8", newline="\n")
