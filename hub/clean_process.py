"""The program that `verification` runs in a separate process: loads a folder without clozebert, and reports.

    python clean_process.py FOLDER REPORT.json '["AutoModel", …]'

In this process clozebert cannot be imported and no connection can be opened.
"""

import importlib.abc
import importlib.util
import json
import math
import os
import runpy
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_SENTENCE = "The history of the place is long"
# Suffix of a class name -> the pipeline that runs it.
_PIPELINES = {
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForImageClassification": "image-classification",
}
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


class _NoPackage(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname.split(".")[0] == "clozebert":
            raise ModuleNotFoundError(f"{fullname} cannot be imported here", name=fullname)


def _no_connection(*args: Any, **kwargs: Any) -> Any:
    raise ConnectionError("the folder is loaded offline, and something tried to open a connection")


def isolate() -> None:
    """Block imports of our package and all network connections from here on."""
    sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(os.path.abspath(__file__))]
    sys.meta_path.insert(0, _NoPackage())
    socket.socket.connect = _no_connection  # type: ignore[method-assign]


def check_folder(folder: str, auto_names: list[str]) -> dict[str, Any]:
    """Load `folder` with every Auto class and pipeline that fits it.

    Returns:
        problems: what is wrong, in words. auto_classes: those that open it. new_heads: for each of them, the tensors
        that the checkpoint does not claim to have and a user would have to train. pipelines: those that ran.
    """
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    report: dict[str, Any] = {"problems": [], "auto_classes": [], "new_heads": {}, "pipelines": [], "unfit": []}
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    except Exception as error:
        report["problems"].append(f"AutoConfig cannot read it: {_say(error)}")
        return report
    tokenizer = _load_tokenizer(folder, config, report)
    for name in _auto_classes(config, auto_names):
        _check_auto_class(folder, name, config, report)
    own = (config.architectures or [""])[0]
    # Some of transformers' heads do not take the fixed input, or have another encoder than the saved model: Longformer
    # answers questions about pairs only. That is no fault of a folder that opens as it was saved.
    unfit = report.pop("unfit")
    if getattr(config, "auto_map", None) or own not in report.get("classes", []):
        report["problems"] += unfit
    if own not in report.pop("classes", [own]):
        report["problems"].append(f"no Auto class opens it as {own}, which config.json names")
    if not report["problems"]:
        for task in _fitting_pipelines(folder, own, tokenizer):
            _check_pipeline(folder, task, tokenizer, report)
    return report


def _auto_classes(config: Any, auto_names: list[str]) -> list[str]:
    """The Auto classes that have an entry in the folder's own map or, without one, in transformers' maps."""
    import transformers

    in_folder = getattr(config, "auto_map", None)
    if in_folder:
        is_image = getattr(config, "image_size", None) is not None
        return [name for name in in_folder if name.startswith("AutoModel") and _takes(name, is_image=is_image)]
    names = [name for name in auto_names if type(config) in getattr(transformers, name)._model_mapping]
    # transformers' question-answering heads work only with two labels.
    return [name for name in names if name != "AutoModelForQuestionAnswering" or config.num_labels == 2]


def _takes(auto_class: str, *, is_image: bool) -> bool:
    """Whether a model of our architecture has this class, given whether it reads images or text."""
    return auto_class == "AutoModel" or (auto_class == "AutoModelForImageClassification") == is_image


def _check_auto_class(folder: str, name: str, config: Any, report: dict[str, Any]) -> None:
    import torch
    import transformers

    try:
        model, found = getattr(transformers, name).from_pretrained(
            folder, trust_remote_code=True, dtype=torch.float32, use_safetensors=True, ignore_mismatched_sizes=True,
            output_loading_info=True,
        )  # fmt: skip
        new = fingerprint.make_fingerprint(model)
    except Exception as error:
        report["unfit"].append(f"{name} cannot load it: {_say(error)}")
        return
    class_name = type(model).__name__
    # A head of another class may have a tensor of the same name but another shape, which counts as a new head, too.
    missing = sorted({*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])})
    is_own = class_name == (config.architectures or [""])[0]
    problems = []
    if is_own:
        problems += [f"{key} is missing or of another shape, and was drawn at random" for key in missing]
        problems += [f"{key} has no place in its class" for key in sorted(found["unexpected_keys"])]
    stored = fingerprint.read_fingerprint(folder)
    problems += fingerprint.find_differences(stored, new, outputs=None if is_own else ["last_hidden_state"])
    report["problems" if is_own else "unfit"] += [f"{name} ({class_name}): {problem}" for problem in problems]
    if problems and not is_own:
        return
    report["auto_classes"].append(name)
    report.setdefault("classes", []).append(class_name)
    if missing and not is_own:
        report["new_heads"][name] = missing


def _load_tokenizer(folder: str, config: Any, report: dict[str, Any]) -> Any:
    import transformers

    if not any((Path(folder) / name).is_file() for name in _TOKENIZER_FILES):
        if getattr(config, "image_size", None) is None:
            report["problems"].append("it has no tokenizer: neither tokenizer.json nor tokenizer_config.json")
        return None
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    except Exception as error:
        report["problems"].append(f"AutoTokenizer cannot load it: {_say(error)}")
        return None
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= config.vocab_size:
        report["problems"].append(f"the tokenizer has the id {largest}, and the model vocab_size={config.vocab_size}")
    return tokenizer


def _fitting_pipelines(folder: str, own: str, tokenizer: Any) -> list[str]:
    task = next((task for ending, task in _PIPELINES.items() if own.endswith(ending)), None)
    if tokenizer is None:
        has_processor = (Path(folder) / "preprocessor_config.json").is_file()
        has_images = importlib.util.find_spec("PIL") is not None
        return [task] if task == "image-classification" and has_processor and has_images else []
    if task == "fill-mask" and tokenizer.mask_token is None:
        task = None
    return ["feature-extraction", *([task] if task else [])]


def _check_pipeline(folder: str, task: str, tokenizer: Any, report: dict[str, Any]) -> None:
    import transformers

    given: Any = _SENTENCE
    if task == "fill-mask":
        given = f"{_SENTENCE} {tokenizer.mask_token}"
    elif task == "image-classification":
        from PIL import Image

        given = Image.new("RGB", (32, 32), (40, 90, 160))
    try:
        run: Any = transformers.pipeline  # Any: the function has an overload for each task
        answer = run(task, model=folder, trust_remote_code=True)(given)
        numbers = _numbers(answer)
        if not all(math.isfinite(number) for number in numbers):
            raise ValueError("its answer is not finite")
    except Exception as error:
        report["problems"].append(f"the pipeline {task} fails: {_say(error)}")
        return
    report["pipelines"].append(task)


def _numbers(answer: Any) -> list[float]:
    if isinstance(answer, dict):
        return [number for value in answer.values() for number in _numbers(value)]
    if isinstance(answer, (list, tuple)):
        return [number for value in answer for number in _numbers(value)]
    return [] if isinstance(answer, (str, bool)) or answer is None else [float(answer)]


def _say(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


if __name__ == "__main__":
    isolate()
    # Loaded from this file's folder, since the package cannot be imported.
    fingerprint = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("fingerprint.py"))))
    found = check_folder(sys.argv[1], json.loads(sys.argv[3]))
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")
