"""The facts of a fine-tuning run for the model card, and its scores in the Hub's format."""

import math
import os
from typing import Any

import torch
import transformers

from .arguments import FinetuningArguments

# Our names of scores -> the Hub's metric and its displayed name.
_METRICS = {
    "accuracy": ("accuracy", "Accuracy"),
    "f1": ("f1", "F1 of whole entities"),
    "precision": ("precision", "Precision of whole entities"),
    "recall": ("recall", "Recall of whole entities"),
    "f1_macro": ("f1", "F1, macro average"),
    "f1_micro": ("f1", "F1, micro average"),
    "pearson": ("pearsonr", "Pearson correlation"),
    "spearman": ("spearmanr", "Spearman correlation"),
    "mse": ("mse", "Mean squared error"),
}


def card_facts(arguments: FinetuningArguments, results: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The facts about a run for the model card, from the `results` and `settings` that the run wrote."""
    hyperparameters = {
        key: settings[key]
        for key in ("learning_rate", "num_train_epochs", "per_device_train_batch_size", "max_seq_length")
    }
    if results.get("epoch", math.inf) < settings["num_train_epochs"] - 0.005:  # --max_steps, or early stopping
        hyperparameters["epochs_trained"] = round(results["epoch"], 2)
    base = arguments.model_name_or_path
    is_folder = os.path.isdir(base)
    return {
        **({} if is_folder else {"base_model": base}),
        "started_from": os.path.basename(os.path.abspath(base)) if is_folder else base,
        "corpus": _data(arguments, results),
        "example": True,
        **({"datasets": [arguments.dataset_name]} if _is_on_hub(arguments.dataset_name) else {}),
        "hyperparameters": {**hyperparameters, "seed": settings["arguments"]["seed"]},
        "metrics": {key: value for key, value in results.items() if key.startswith(("eval_", "test_"))},
        "eval_results": _eval_results(arguments, results),
        "seconds": results.get("train_runtime"),
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
    }


def _data(arguments: FinetuningArguments, results: dict[str, Any]) -> dict[str, str]:
    """The source and the number of examples of each split; of a file only the name."""
    training = _file_name(arguments.train_file)
    origins = {
        "train": training,
        "eval": _file_name(arguments.validation_file) or f"held out from {training}",
        "test": _file_name(arguments.test_file),
    }
    if arguments.dataset_name is not None:
        origins = dict.fromkeys(origins, _shown_dataset(arguments.dataset_name))
    return {
        split: f"{origin}, {results[f'{split}_samples']:,} examples"
        for split, origin in origins.items()
        if f"{split}_samples" in results
    }


def _file_name(path: str | None) -> str:
    return os.path.basename(os.path.normpath(path)) if path else ""


def _is_on_hub(dataset_name: str | None) -> bool:
    return dataset_name is not None and not os.path.exists(dataset_name)


def _shown_dataset(dataset_name: str) -> str:
    return dataset_name if _is_on_hub(dataset_name) else _file_name(dataset_name)


def _eval_results(arguments: FinetuningArguments, results: dict[str, Any]) -> list[dict[str, Any]]:
    """The scores as fields of the Hub's `EvalResult`; of a local file only the name is given."""
    found = []
    for prefix, split, path in (
        ("eval", "validation", arguments.validation_file or arguments.train_file),
        ("test", "test", arguments.test_file),
    ):
        dataset = _dataset_fields(arguments, path)
        for score, (metric, title) in _METRICS.items():
            if f"{prefix}_{score}" in results:
                value = float(f"{results[f'{prefix}_{score}']:.6g}")  # not fixed decimals: errors may be tiny
                found.append(
                    {**dataset, "dataset_split": split, "metric_type": metric, "metric_name": title}
                    | {"metric_value": value}
                )
    return found


def _dataset_fields(arguments: FinetuningArguments, path: str | None) -> dict[str, Any]:
    """The fields of `EvalResult` about the data: a dataset's name, or a local file's name and kind."""
    if arguments.dataset_name is None:
        suffix = os.path.splitext(path or "")[1].lstrip(".").lower()
        return {"dataset_type": suffix or "text", "dataset_name": os.path.basename(path or "")}
    name = _shown_dataset(arguments.dataset_name)
    fields = {"dataset_type": name, "dataset_name": name}
    if arguments.dataset_config_name is not None:
        fields["dataset_config"] = arguments.dataset_config_name
    return fields
