"""The facts of a fine-tuning run for the model card, and its scores in the Hub's format."""

import os
from typing import Any, NamedTuple

import torch
import transformers

from ..corpus.readers.compression import bare_suffix
from ..utils.hub_names import hub_name
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
HELD_OUT = "held out from train"  # the name of a validation split that a run made itself
_ALWAYS_NAMED = ("learning_rate", "num_train_epochs", "per_device_train_batch_size", "max_seq_length")
# Flags that a card does not list: a folder of the machine, and names of columns.
_OF_THE_DATA = (
    "dataset_name", "dataset_config_name", "text_column", "text_pair_column", "label_column", "tag_column",
)  # fmt: skip


class HubNames(NamedTuple):
    """The names of a run's encoder and dataset on the Hub; None for a local one, whose path is private."""

    encoder: str | None
    dataset: str | None


def hub_names(arguments: FinetuningArguments) -> HubNames:
    """Asked when a run begins: at its end a local folder may be gone, and would pass for a name on the Hub."""
    return HubNames(hub_name(arguments.model_name_or_path), hub_name(arguments.dataset_name))


def card_facts(
    arguments: FinetuningArguments, on_hub: HubNames, results: dict[str, Any], settings: dict[str, Any]
) -> dict[str, Any]:
    """The facts about a run for the model card, from the `results` and `settings` that the run wrote."""
    hyperparameters = {name: settings[name] for name in _ALWAYS_NAMED}
    planned = settings["num_train_epochs"]
    trained = results.get("epoch", planned)
    if abs(trained - planned) > 0.005:  # --max_steps, or early stopping
        hyperparameters["epochs_trained"] = round(trained, 2)
    for name, value in settings["arguments"].items():
        if name not in (*_ALWAYS_NAMED, *_OF_THE_DATA) and value != getattr(type(arguments), name):
            hyperparameters[name] = value
    return {
        **({} if on_hub.encoder is None else {"base_model": on_hub.encoder}),
        "started_from": on_hub.encoder or _file_name(os.path.abspath(arguments.model_name_or_path)),
        "corpus": _data(arguments, on_hub, results, eval_split=settings.get("eval_split")),
        "example": True,
        **({} if on_hub.dataset is None else {"datasets": [on_hub.dataset]}),
        "hyperparameters": {**hyperparameters, "seed": settings["arguments"]["seed"]},
        "metrics": {key: value for key, value in results.items() if key.startswith(("eval_", "test_"))},
        "eval_results": _eval_results(arguments, on_hub, results, settings),
        "seconds": results.get("train_runtime"),
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
    }


def limit_of_windows(max_seq_length: int, *, per_token: bool) -> str:
    """What the card says of texts that became several windows."""
    difference = "leaves out the end of a long text" if per_token else "may answer otherwise"
    return (
        f"A text of more than {max_seq_length} tokens was read in several windows. `clozebert predict` reads it in the "
        f"same way; a pipeline of transformers does not, and {difference}."
    )


def _data(
    arguments: FinetuningArguments, on_hub: HubNames, results: dict[str, Any], *, eval_split: str | None
) -> dict[str, str]:
    """The source and the number of examples of each split; of a file only the name."""
    if arguments.dataset_name is not None:
        origins = dict.fromkeys(("train", "eval", "test"), on_hub.dataset or _file_name(arguments.dataset_name))
    else:
        files = (arguments.train_file, arguments.validation_file, arguments.test_file)
        origins = dict(zip(("train", "eval", "test"), map(_file_name, files), strict=True))
    if eval_split == HELD_OUT:
        origins["eval"] = f"held out from {origins['train']}"
    return {
        split: f"{origin}, {results[f'{split}_samples']:,} examples"
        for split, origin in origins.items()
        if f"{split}_samples" in results
    }


def _file_name(path: str | None) -> str:
    return os.path.basename(os.path.normpath(path)) if path else ""


def _eval_results(
    arguments: FinetuningArguments, on_hub: HubNames, results: dict[str, Any], settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """The scores as fields of the Hub's `EvalResult`; of a local file only the name is given.

    Scores on the training data themselves are left out.
    """
    data = settings.get("data", {})  # a hash for each split
    names = {"validation": settings.get("eval_split", "validation")}
    found = []
    for prefix, split, path in (
        ("eval", "validation", arguments.validation_file or arguments.train_file),
        ("test", "test", arguments.test_file),
    ):
        if split in data and data[split] == data["train"]:
            continue
        dataset = _dataset_fields(arguments, on_hub, path)
        for score, (metric, title) in _METRICS.items():
            if f"{prefix}_{score}" in results:
                value = float(f"{results[f'{prefix}_{score}']:.6g}")  # not fixed decimals: errors may be tiny
                found.append(
                    {**dataset, "dataset_split": names.get(split, split), "metric_type": metric, "metric_name": title}
                    | {"metric_value": value}
                )
    return found


def _dataset_fields(arguments: FinetuningArguments, on_hub: HubNames, path: str | None) -> dict[str, Any]:
    """The fields of `EvalResult` about the data: a dataset's name, or a local file's name and kind."""
    if arguments.dataset_name is None:
        suffix = bare_suffix(path or "").lstrip(".")
        return {"dataset_type": suffix or "text", "dataset_name": os.path.basename(path or "")}
    name = on_hub.dataset or _file_name(arguments.dataset_name)
    fields = {"dataset_type": name, "dataset_name": name}
    if arguments.dataset_config_name is not None:
        fields["dataset_config"] = arguments.dataset_config_name
    return fields
