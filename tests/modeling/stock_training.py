"""What people's programs do with a model under transformers' own Trainer; nothing here knows of clozebert.

The tests import this file, and run it as a program where clozebert cannot be imported:

    python stock_training.py FOLDER '[["masked lm", "plain"], …]'

trains the model in FOLDER/"masked lm" as remote code and leaves its report beside it.
"""

import gc
import importlib.abc
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.trainer_pt_utils import LabelSmoother

# Dimensions never coincide, so that a wrong axis cannot go unnoticed.
VOCABULARY, LABELS, CHOICES, SIDE, CHANNELS = 47, 5, 3, 21, 2
PAD, UNKNOWN, CLS, SEP, MASK = range(5)
FIRST_WORD = 5
BATCH, TRAINED, EVALUATED = 8, 24, 11  # three steps an epoch; the last batch of an evaluation is not full

# Each is compared with the native model, which gets the part that does not change what is computed.
PLAIN: dict[str, Any] = {}
CHECKPOINTED = {"gradient_checkpointing": True}
ACCUMULATED = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": BATCH // 2}
GROUPED = {"train_sampling_strategy": "group_by_length"}
SMOOTHED = {"label_smoothing_factor": 0.1}
# Older Trainers do not divide the smoothed loss of accumulated batches, of whatever model.
_SMOOTHS_ACCUMULATED = "num_items_in_batch" in inspect.signature(LabelSmoother.__call__).parameters
_BOTH = {**GROUPED, **(SMOOTHED if _SMOOTHS_ACCUMULATED else {})}
# name -> (what ours is trained with, what the native model is trained with)
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": (PLAIN, PLAIN),
    "checkpointed": (CHECKPOINTED, PLAIN),
    "accumulated": (ACCUMULATED, PLAIN),
    "grouped": (GROUPED, GROUPED),
    "smoothed": (SMOOTHED, SMOOTHED),
    "all": ({**CHECKPOINTED, **ACCUMULATED, **_BOTH}, _BOTH),
}


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Words w5 … w46 by their numbers."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    special = {"[PAD]": PAD, "[UNK]": UNKNOWN, "[CLS]": CLS, "[SEP]": SEP, "[MASK]": MASK}
    words = {f"w{i}": i for i in range(FIRST_WORD, VOCABULARY)}
    backend = Tokenizer(models.WordLevel({**special, **words}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=29,
        model_input_names=["input_ids", "attention_mask"],
    )


# ------------------------------------------------------------------------------------------------------------ the data


def words(draw: np.random.Generator, length: int) -> list[int]:
    return [CLS, *draw.integers(FIRST_WORD, VOCABULARY, length - 2).tolist(), SEP]


def text(draw: np.random.Generator) -> dict[str, Any]:
    ids = words(draw, int(draw.integers(4, 13)))
    return {"input_ids": ids, "attention_mask": [1] * len(ids)}


def with_token_labels(draw: np.random.Generator, classes: int, share: float) -> dict[str, Any]:
    row = text(draw)
    chosen = draw.random(len(row["input_ids"])) < share
    labels = np.where(chosen, draw.integers(0, classes, len(chosen)), -100)
    labels[1] = draw.integers(0, classes)
    return {**row, "labels": labels.tolist()}


def with_span(draw: np.random.Generator) -> dict[str, Any]:
    row = text(draw)
    start, end = sorted(draw.integers(1, len(row["input_ids"]), 2).tolist())
    return {**row, "start_positions": start, "end_positions": end}


def with_choices(draw: np.random.Generator) -> dict[str, Any]:
    rows = [text(draw) for _ in range(CHOICES)]
    return {**{name: [row[name] for row in rows] for name in rows[0]}, "label": int(draw.integers(CHOICES))}


def image(draw: np.random.Generator) -> dict[str, Any]:
    pixels = torch.as_tensor(draw.normal(size=(CHANNELS, SIDE, SIDE)), dtype=torch.float32)
    return {"pixel_values": pixels, "labels": int(draw.integers(LABELS))}


# ---------------------------------------------------------------------------------------------------------- the metrics


def accuracy(scored: transformers.EvalPrediction) -> float:
    counted = scored.label_ids != -100
    return float((scored.predictions.argmax(-1) == scored.label_ids)[counted].mean())


def spans_found(scored: transformers.EvalPrediction) -> float:
    pairs = zip(scored.predictions, scored.label_ids, strict=True)
    return float(np.mean([(logits.argmax(-1) == places).mean() for logits, places in pairs]))


def labels_found(scored: transformers.EvalPrediction) -> float:
    return float(((scored.predictions > 0) == (scored.label_ids > 0.5)).mean())


def squared_error(scored: transformers.EvalPrediction) -> float:
    return float(((np.squeeze(scored.predictions) - scored.label_ids) ** 2).mean())


@dataclass(frozen=True)
class Task:
    """A head, its data, and what its users measure."""

    auto_class: str
    row: Callable[[np.random.Generator], dict[str, Any]]
    collator: Callable[[Any], Any]
    score: Callable[[transformers.EvalPrediction], float]
    config: dict[str, Any] = field(default_factory=lambda: {"num_labels": LABELS})
    smoothing: bool = True  # Trainer smooths labels that are classes
    padding_counts: bool = False  # transformers' own head looks for answers among padding, too

    def settings_of_native(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Where padding counts there, the native model gets its rows one at a time: there is no padding then."""
        one_by_one = {
            "per_device_train_batch_size": 1, "gradient_accumulation_steps": BATCH, "per_device_eval_batch_size": 1,
        }  # fmt: skip
        return {**settings, **one_by_one} if self.padding_counts else settings

    def rows(self, number: int, seed: int) -> list[dict[str, Any]]:
        draw = np.random.default_rng(seed)
        return [self.row(draw) for _ in range(number)]


_SEQUENCE = "AutoModelForSequenceClassification"
TASKS = {
    "masked lm": Task(
        "AutoModelForMaskedLM", lambda draw: with_token_labels(draw, VOCABULARY, 0.3),
        transformers.DataCollatorForTokenClassification, accuracy,
    ),
    "token classification": Task(
        "AutoModelForTokenClassification", lambda draw: with_token_labels(draw, LABELS, 0.7),
        transformers.DataCollatorForTokenClassification, accuracy,
    ),
    "single label": Task(
        _SEQUENCE, lambda draw: {**text(draw), "label": int(draw.integers(LABELS))},
        transformers.DataCollatorWithPadding, accuracy,
    ),
    "several labels": Task(
        _SEQUENCE, lambda draw: {**text(draw), "label": (draw.random(LABELS) < 0.4).astype(float).tolist()},
        transformers.DataCollatorWithPadding, labels_found, smoothing=False,
    ),
    "regression": Task(
        _SEQUENCE, lambda draw: {**text(draw), "label": float(draw.normal())},
        transformers.DataCollatorWithPadding, squared_error, {"num_labels": 1}, smoothing=False,
    ),
    "question answering": Task(
        "AutoModelForQuestionAnswering", with_span, transformers.DataCollatorWithPadding, spans_found, {},
        padding_counts=True,
    ),
    "multiple choice": Task(
        "AutoModelForMultipleChoice", with_choices, transformers.DataCollatorForMultipleChoice, accuracy, {},
    ),
    "image classification": Task(
        "AutoModelForImageClassification", image, lambda _: transformers.default_data_collator, accuracy,
    ),
}  # fmt: skip


# ------------------------------------------------------------------------------------------------- the native models

_SIZES = {
    "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 37,
    "initializer_range": 0.2,
}  # fmt: skip
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": 29, "pad_token_id": PAD}
STEMS = {
    "bert": ("Bert", {**_SIZES, **_TEXT, **_NO_DROPOUT}),
    "modernbert": ("ModernBert", {
        **_SIZES, **_TEXT, "local_attention": 4, "bos_token_id": None, "eos_token_id": None, "cls_token_id": None,
        "sep_token_id": SEP,
    }),
    "vit": ("ViT", {**_SIZES, **_NO_DROPOUT, "image_size": SIDE, "patch_size": 7, "num_channels": CHANNELS}),
}  # fmt: skip
CASES = [
    ("vit" if "image" in name else model_type, name)
    for model_type in ("bert", "modernbert")
    for name in TASKS
    if (model_type, name) != ("modernbert", "image classification")
]


def make_native(model_type: str, name: str) -> Any:
    """transformers' own model for a task, with the same random weights each time."""
    stem, config = STEMS[model_type]
    torch.manual_seed(0)
    config = getattr(transformers, f"{stem}Config")(**config, **TASKS[name].config)
    return getattr(transformers, f"{stem}{TASKS[name].auto_class.removeprefix('AutoModel')}")(config)


# --------------------------------------------------------------------------------------------------------- the training


class Metrics:
    """The task's score, and how many evaluations there were: by the latter, the first is the best."""

    def __init__(self, task: Task):
        self.task, self.evaluations = task, 0

    def __call__(self, scored: transformers.EvalPrediction) -> dict[str, float]:
        self.evaluations += 1
        return {"score": self.task.score(scored), "evaluations": self.evaluations}


def make_trainer(model: Any, name: str, directory: Path, **settings: Any) -> transformers.Trainer:
    """A Trainer for two epochs that evaluates after each and loads the better one, the first, at the end."""
    task = TASKS[name]
    if "label_smoothing_factor" in settings and not task.smoothing:
        settings["label_smoothing_factor"] = 0.0
    if name == "image classification":
        settings.pop("train_sampling_strategy", None)  # images have no lengths
    arguments = transformers.TrainingArguments(
        **{
            "output_dir": str(directory), "num_train_epochs": 2, "per_device_train_batch_size": BATCH,
            "per_device_eval_batch_size": 4, "learning_rate": 1e-2, "optim": "sgd", "eval_strategy": "epoch",
            "save_strategy": "epoch", "logging_strategy": "epoch", "load_best_model_at_end": True,
            "metric_for_best_model": "evaluations", "greater_is_better": False, "seed": 3, "use_cpu": True,
            "report_to": [], "disable_tqdm": True, **settings,
        }
    )  # fmt: skip
    processing = None if name == "image classification" else tokenizer()
    return transformers.Trainer(
        model, arguments, train_dataset=task.rows(TRAINED, 0), eval_dataset=task.rows(EVALUATED, 1),
        data_collator=task.collator(processing), compute_metrics=Metrics(task), processing_class=processing,
    )  # fmt: skip


_OF_THE_CLOCK = ("runtime", "per_second", "flos")


def train(model: Any, name: str, directory: Path, **settings: Any) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Train, evaluate and predict: all numbers that Trainer gives of it but for times, and the predictions."""
    trainer = make_trainer(model, name, directory, **settings)
    trainer.train()
    if model.config.model_type == "vit":
        # Trainer does not read the best of them: its tensors are saved under other names (transformers issue 48805).
        best = type(model).from_pretrained(trainer.state.best_model_checkpoint)
        trainer.model.load_state_dict(best.state_dict())
    again = evaluate_in_order(trainer)
    predicted = trainer.predict(TASKS[name].rows(EVALUATED, 2))
    logs = [*trainer.state.log_history, predicted.metrics]
    report = {
        "logs": [{key: value for key, value in log.items() if not key.endswith(_OF_THE_CLOCK)} for log in logs],
        "keys": [sorted(log) for log in logs],
        "best": Path(trainer.state.best_model_checkpoint).name,
        "evaluated_again": again,
        "in_order": settings.get("train_sampling_strategy") is None,
        "problem_type": trainer.model.config.problem_type,
        "label_names": trainer.label_names,
    }
    arrays = predicted.predictions if isinstance(predicted.predictions, tuple) else (predicted.predictions,)
    labels = predicted.label_ids if isinstance(predicted.label_ids, tuple) else (predicted.label_ids,)
    return report, [*(without_padding(scores, name) for scores in arrays), *labels]


def evaluate_in_order(trainer: transformers.Trainer) -> float:
    """The loss, with rows in their order from now on; grouped by length, an evaluation may have other batches."""
    trainer.args.train_sampling_strategy = "random"  # that of training; evaluation is in order then
    return trainer.evaluate()["eval_loss"]


def without_padding(scores: np.ndarray, name: str) -> np.ndarray:
    """Where there is a score for each token, those of padding, which mean nothing, left out."""
    rows = TASKS[name].rows(EVALUATED, 2)
    if name not in ("masked lm", "token classification", "question answering"):
        return scores
    lengths = [len(row["input_ids"]) for row in rows]
    assert scores.shape[:2] == (len(rows), max(lengths))
    return np.concatenate([row[:length] for row, length in zip(scores, lengths, strict=True)])


# ------------------------------------------------------------------------------- as a program, without the package


class NotInstalled(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.split(".")[0] == "clozebert":
            raise ModuleNotFoundError("clozebert is not installed here")


def main(root: Path, cases: list[list[str]]) -> None:
    sys.meta_path.insert(0, NotInstalled())
    transformers.utils.logging.set_verbosity_error()
    gc.freeze()  # Trainer collects garbage in each run, and what is imported is none
    for name, setting in cases:
        load = getattr(transformers, TASKS[name].auto_class).from_pretrained
        model, run = load(root / name, trust_remote_code=True), root / f"{name}-{setting}"
        report, arrays = train(model, name, run, **SETTINGS[setting][0])
        # What Trainer saved opens again, and says the same.
        best = load(run / report["best"], trust_remote_code=True)
        saved = evaluate_in_order(make_trainer(best, name, run, **SETTINGS[setting][0]))
        report.update(module=type(model).__module__, saved=saved)
        (run / "report.json").write_text(json.dumps(report))
        np.savez(run / "arrays.npz", *arrays)
    assert "clozebert" not in sys.modules


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
