"""Fine-tuning on transformers' Trainer: one run from checked arguments to a folder that pipelines load.

Trainer does the training, the accumulation, the processes and the checkpoints. The loss, the optimizer's groups and the
evaluation are ours: the loss of a batch is a sum over its targets divided by the number of targets of the whole global
batch, so no split into micro-batches changes the gradient; and scores are those of whole documents, put together from
their windows.
"""

import hashlib
import json
import math
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from transformers import EarlyStoppingCallback, ProgressCallback, Trainer, TrainerCallback, TrainingArguments

from .finetuning_arguments import (
    FinetuningArguments,
    SequenceArguments,
    TokenArguments,
    comparable,
    default_batch_size,
    default_epochs,
    default_learning_rate,
    prepare_output_dir,
)
from .finetuning_metrics import check_metric_libraries
from .finetuning_models import (
    LONGEST_BY_DEFAULT,
    add_lora,
    be_quiet,
    check_tokenizer_fits,
    freeze_layers,
    known_label_names,
    load_classifier,
    load_config,
    load_tokenizer,
    longest_input,
    parameter_groups,
    restore_dropout,
    scale_output,
)
from .finetuning_reports import mean_and_deviation, write_json, write_sequence_reports, write_token_reports
from .finetuning_sequence import (
    REGRESSION,
    SequenceExample,
    SequenceTask,
    find_columns,
    find_problem_type,
    make_sequence_task,
)
from .finetuning_sequence import read_examples as read_sequence_examples
from .finetuning_tables import read_hub_dataset, read_table
from .finetuning_tags import TaggedSentence, detect_scheme, to_iob2
from .finetuning_tokens import TokenTask, make_token_task, read_tagged_file, sentences_of_table
from .finetuning_windows import Collator, PackedCollator, PaddedCollator, Window, WindowMaker
from .machine import choose_precision

SELECTION = "selection"
SETTINGS_FILE = "finetuning_settings.json"
PACKED_MODEL_TYPES = ("clozebert",)  # models whose forward takes documents one after the other as one row

Task = SequenceTask | TokenTask
Splits = dict[str, list[Any]]  # "train", "validation" and, where given, "test"


# Prediction ----------------------------------------------------------------------------------------------------------


def make_collator(model: Any, tokenizer: Any, *, per_token: bool, packing: bool) -> Collator:
    """A padding-free collator for models that read packed batches, a padding one for all others."""
    if packing and model.config.model_type in PACKED_MODEL_TYPES:
        return PackedCollator(per_token)
    pad = tokenizer.pad_token_id
    if pad is None:
        raise ValueError("the tokenizer has no padding token; add one (tokenizer.pad_token = …) and save it again")
    return PaddedCollator(pad, per_token)


def predict_logits(
    model: Any, windows: Sequence[Window], collator: Collator, *, batch_size: int, autocast: Any = None
) -> list[np.ndarray]:
    """Logits of each window ([L], or [T, L] for tagging), in order. Windows of like length share a batch."""
    order = sorted(range(len(windows)), key=lambda index: -len(windows[index].input_ids))
    logits: list[np.ndarray] = [np.empty(0)] * len(windows)
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        batch = [windows[index] for index in indices]
        inputs = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in collator(batch).items()
            if name != "labels"
        }
        with torch.no_grad():
            if autocast is None:
                output = model(**inputs)
            else:
                with autocast():
                    output = model(**inputs)
        for index, rows in zip(indices, collator.split(output["logits"].float().cpu(), batch), strict=True):
            logits[index] = rows.numpy().astype(np.float64)
    model.train(was_training)
    return logits


# The trainer ---------------------------------------------------------------------------------------------------------


class FinetuningTrainer(Trainer):
    """Trainer with our evaluation (documents put together from windows) and optimizer groups.

    Args:
        task: what is learned.
        best_metric: the score that chooses the best evaluation, and whether more of it is better.
        evaluation: (examples, their windows) to evaluate on.
        collator: makes the batches, for training and evaluation.
        groups: the optimizer's parameter groups.
    """

    def __init__(
        self,
        *,
        task: Task,
        best_metric: tuple[str, bool],
        evaluation: tuple[list[Any], list[Window]],
        collator: Collator,
        groups: list[dict[str, Any]],
        **kwargs: Any,
    ) -> None:
        super().__init__(data_collator=collator, eval_dataset=evaluation[1], compute_loss_func=task.loss, **kwargs)
        self.task = task
        self.best_metric = best_metric
        self.evaluation = evaluation
        self.collator = collator
        self.groups = groups
        self.autocast: Any = self.compute_loss_context_manager

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """AdamW over the groups that were given."""
        if self.optimizer is None:
            fused = self.args.device.type == "cuda"
            self.optimizer = torch.optim.AdamW(self.groups, lr=self.args.learning_rate, fused=fused)
        return self.optimizer

    def leave_mixed_precision(self) -> None:
        """From now on predict as the saved model will, in float32. Accelerate had put autocast around `forward`."""
        self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        self.autocast = None

    def document_logits(self, examples: Sequence[Any], windows: Sequence[Window]) -> Any:
        """Logits of whole documents, from those of their windows. Every process computes all of them."""
        logits = predict_logits(
            self.model,
            windows,
            self.collator,
            batch_size=self.args.eval_batch_size,
            autocast=self.autocast,
        )
        return self.task.assemble(examples, windows, logits)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Scores of the evaluation examples."""
        began = time.perf_counter()
        examples, windows = self.evaluation
        scores = self.task.metrics(self.document_logits(examples, windows), examples)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in scores.items()}
        metrics[f"{metric_key_prefix}_{SELECTION}"] = selection(scores, self.best_metric)
        metrics[f"{metric_key_prefix}_runtime"] = round(time.perf_counter() - began, 3)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


def selection(scores: dict[str, float], best_metric: tuple[str, bool]) -> float:
    """The number by which the best evaluation is chosen: the score, and where that is equal, the lower loss."""
    name, greater_is_better = best_metric
    return (scores[name] if greater_is_better else -scores[name]) - 1e-6 * scores["loss"]


class EvaluationLines(TrainerCallback):
    """Prints one line for each evaluation: where training is, its loss, and the scores that matter."""

    def __init__(self, best_metric: str) -> None:
        self.best_metric = best_metric

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or metrics is None:
            return
        losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
        score = metrics[f"eval_{self.best_metric}"]
        parts = [f"epoch {state.epoch or 0:.4g}", f"step {state.global_step}/{state.max_steps}"]
        parts += [f"training loss {losses[-1]:.4f}"] if losses else []
        parts += [f"validation loss {metrics['eval_loss']:.4f}", f"{self.best_metric} {score:.4f}"]
        print("  ".join(parts), flush=True)


class QuietProgress(ProgressCallback):
    """Trainer's progress bar without the dictionaries it prints between."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        return None


# One run -------------------------------------------------------------------------------------------------------------


def finetune(
    arguments: SequenceArguments | TokenArguments,
    *,
    write_card: Callable[[str, dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Fine-tune, evaluate and save, once or once for each seed; the results are also in DIR/all_results.json.

    Args:
        arguments: checked flags; their class says which kind of task it is.
        write_card: called with the folder and what is known about the model, to write its README.md.
    """
    check_metric_libraries()
    be_quiet()
    prepare_output_dir(arguments)
    kind = "token" if isinstance(arguments, TokenArguments) else "sequence"
    config = load_config(arguments.model_name_or_path, trust_remote_code=arguments.trust_remote_code)
    tokenizer = load_tokenizer(arguments.model_name_or_path, trust_remote_code=arguments.trust_remote_code)
    known = known_label_names(config, kind=kind)
    task: Task
    if isinstance(arguments, TokenArguments):
        splits, task, facts = read_token_data(arguments, known)
    else:
        splits, task, facts = read_sequence_data(arguments, known)
    if arguments.seeds is None:
        return run_once(arguments, arguments.output_dir, arguments.seed, splits, task, tokenizer, facts, write_card)
    results = []
    for seed in arguments.seeds:
        folder = os.path.join(arguments.output_dir, f"seed-{seed}")
        os.makedirs(folder, exist_ok=True)
        print(f"seed {seed}:", flush=True)
        results.append(run_once(arguments, folder, seed, splits, task, tokenizer, facts, write_card))
    combined = {**mean_and_deviation(results), "seeds": list(arguments.seeds)}
    if int(os.environ.get("RANK", 0)) == 0:
        write_json(os.path.join(arguments.output_dir, "all_results.json"), combined)
    return combined


def read_sequence_data(
    arguments: SequenceArguments, known: list[str] | None
) -> tuple[Splits, SequenceTask, dict[str, Any]]:
    """Checked examples of every split, the task they define, and the facts that prediction needs later."""
    if arguments.dataset_name is not None:
        tables = _named_splits(read_hub_dataset(arguments.dataset_name, arguments.dataset_config_name))
    else:
        assert arguments.train_file is not None
        tables = {"train": read_table(arguments.train_file)}
        for split, path in (("validation", arguments.validation_file), ("test", arguments.test_file)):
            if path is not None:
                tables[split] = read_table(path, has_header=tables["train"].has_header)
    columns = find_columns(
        tables["train"],
        text_column=arguments.text_column,
        text_pair_column=arguments.text_pair_column,
        label_column=arguments.label_column,
    )
    assert columns.label is not None
    problem_type = arguments.problem_type or find_problem_type(tables["train"].columns[columns.label])
    splits = {
        split: read_sequence_examples(table, columns, problem_type=problem_type) for split, table in tables.items()
    }
    _hold_out_validation(splits, arguments.seed)
    task = make_sequence_task(
        splits["train"],
        problem_type=problem_type,
        value_name=columns.label,
        known_names=known,
        balanced=arguments.class_weights == "balanced",
    )
    for examples in splits.values():
        task.check(examples)
    facts = {
        "text_column": columns.text,
        "text_pair_column": columns.pair,
        "label_column": columns.label,
        "problem_type": problem_type,
    }
    return splits, task, facts


def read_token_data(arguments: TokenArguments, known: list[str] | None) -> tuple[Splits, TokenTask, dict[str, Any]]:
    """Checked sentences of every split with tags in IOB2 (or plain), the task they define, and facts for later."""
    if arguments.dataset_name is not None:
        tables = _named_splits(read_hub_dataset(arguments.dataset_name, arguments.dataset_config_name))
        splits: Splits = {
            split: sentences_of_table(table, tag_column=arguments.tag_column) for split, table in tables.items()
        }
    else:
        paths = {"train": arguments.train_file, "validation": arguments.validation_file, "test": arguments.test_file}
        splits = {
            split: read_tagged_file(path, tag_column=arguments.tag_column) for split, path in paths.items() if path
        }
    scheme = arguments.tag_scheme
    if scheme == "auto":
        scheme = detect_scheme(sentence for split in splits.values() for sentence in split)
    splits = {split: [to_iob2(sentence, scheme) for sentence in sentences] for split, sentences in splits.items()}
    _hold_out_validation(splits, arguments.seed)
    task = make_token_task(
        splits["train"], scheme=scheme, known_names=known, balanced=arguments.class_weights == "balanced"
    )
    for examples in splits.values():
        task.check(examples)
    return splits, task, {"tag_scheme": scheme, "label_subwords": arguments.label_subwords}


def _named_splits(tables: dict[str, Any]) -> dict[str, Any]:
    """train, validation and test of a dataset, whatever it calls its validation split."""
    if "train" not in tables:
        raise ValueError(f"--dataset_name: it has no split 'train', only {', '.join(tables)}")
    named = {"train": tables["train"]}
    for split, names in (("validation", ("validation", "dev", "valid", "validation_matched")), ("test", ("test",))):
        found = next((name for name in names if name in tables), None)
        if found is not None:
            named[split] = tables[found]
    return named


def _hold_out_validation(splits: Splits, seed: int) -> None:
    """Without validation data, move a tenth of the training data there, but never the last example of a label."""
    if "validation" in splits:
        return
    examples = splits["train"]
    if len(examples) < 2:
        raise ValueError("one training example, and no --validation_file to evaluate on; give more data")
    order = list(range(len(examples)))
    random.Random(seed).shuffle(order)
    left = Counter(name for example in examples for name in _labels_in(example))
    held_out: set[int] = set()
    for index in order:
        names = _labels_in(examples[index])
        if len(held_out) < max(1, len(examples) // 10) and all(left[name] > 1 for name in names):
            held_out.add(index)
            left.subtract(names)
    if not held_out:
        raise ValueError("no example can be held out without losing its label; give --validation_file")
    splits["train"] = [example for index, example in enumerate(examples) if index not in held_out]
    splits["validation"] = [example for index, example in enumerate(examples) if index in held_out]


def _labels_in(example: SequenceExample | TaggedSentence) -> set[str]:
    """The labels that an example teaches: its classes or its tags; none for numbers."""
    if isinstance(example, TaggedSentence):
        return {tag for tag in example.tags or [] if tag is not None}
    label = example.label
    return set(label) if isinstance(label, frozenset) else {label} if isinstance(label, str) else set()


def run_once(
    arguments: SequenceArguments | TokenArguments,
    folder: str,
    seed: int,
    splits: Splits,
    task: Task,
    tokenizer: Any,
    facts: dict[str, Any],
    write_card: Callable[[str, dict[str, Any]], None] | None,
) -> dict[str, Any]:
    """Train with one seed, score the best evaluation's model on every split, and save everything into `folder`."""
    transformers.set_seed(seed)
    model = load_classifier(
        arguments.model_name_or_path,
        kind=task.kind,
        label_names=task.label_names,
        problem_type=task.problem_type,
        dropout=arguments.dropout,
        trust_remote_code=arguments.trust_remote_code,
    )
    check_tokenizer_fits(model, tokenizer)
    maker = _window_maker(arguments, model, tokenizer)
    windows = {split: task.windows(examples, maker) for split, examples in splits.items()}
    training = _training_arguments(arguments, model, len(windows["train"]), folder, seed)
    collator = make_collator(
        model,
        tokenizer,
        per_token=task.kind == "token",
        packing=arguments.packing == "auto" and training.n_gpu <= 1,
    )
    settings = _settings(arguments, task, training, maker, facts, seed, windows)
    checkpoint = _checkpoint(arguments, folder, settings)
    _say_plan(task, splits, windows, training, isinstance(collator, PackedCollator), checkpoint)
    trainer = _make_trainer(arguments, task, model, tokenizer, splits, windows, training, collator)
    if trainer.is_world_process_zero():
        write_json(os.path.join(folder, SETTINGS_FILE), settings)
    train_output = trainer.train(resume_from_checkpoint=checkpoint)
    trainer.leave_mixed_precision()
    results = {"train_runtime": train_output.metrics["train_runtime"], "train_loss": train_output.metrics["train_loss"]}
    results |= {"train_samples": len(splits["train"]), "train_windows": len(windows["train"])}
    results["epoch"] = float(trainer.state.epoch or 0)
    results = {key: value for key, value in results.items() if not _is_nan(value)}
    for split, name in (("validation", "eval"), ("test", "test")):
        if split in splits:
            logits = trainer.document_logits(splits[split], windows[split])
            scores = task.metrics(logits, splits[split])
            results |= {f"{name}_{key}": value for key, value in scores.items()}
            results[f"{name}_samples"] = len(splits[split])
            if trainer.is_world_process_zero():
                _write_reports(folder, name, task, splits[split], logits)
    if trainer.is_world_process_zero():
        _save(trainer.model, tokenizer, folder)
        _write_results(folder, results)
        if write_card is not None:
            write_card(folder, _card_facts(arguments, task, results, settings))
    return results


def _window_maker(arguments: FinetuningArguments, model: Any, tokenizer: Any) -> WindowMaker:
    limit = longest_input(model, tokenizer)
    length = arguments.max_seq_length or min(limit, LONGEST_BY_DEFAULT)
    if length > limit:
        raise ValueError(f"--max_seq_length {length}: the model reads at most {limit} tokens")
    subwords = arguments.label_subwords if isinstance(arguments, TokenArguments) else "all"
    return WindowMaker(tokenizer, max_seq_length=length, overlap=arguments.window_overlap, subwords=subwords)


def _best_metric(arguments: FinetuningArguments, task: Task) -> tuple[str, bool]:
    """The score that chooses the best evaluation, and whether more of it is better."""
    if arguments.metric_for_best_model is None:
        return task.best_metric
    name = arguments.metric_for_best_model.removeprefix("eval_")
    return name, name not in ("loss", "mse")


def _training_arguments(
    arguments: FinetuningArguments, model: Any, num_windows: int, folder: str, seed: int
) -> TrainingArguments:
    """Trainer's arguments, with what was not given chosen by the size of data and model."""
    device = torch.device(
        "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    )
    precision = choose_precision(arguments.mixed_precision, device)
    batch_size = arguments.per_device_train_batch_size or default_batch_size(num_windows)
    epochs = arguments.num_train_epochs or float(default_epochs(num_windows))
    strategy = "epoch" if arguments.eval_steps is None else "steps"
    training = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=arguments.per_device_eval_batch_size,
        gradient_accumulation_steps=arguments.gradient_accumulation_steps,
        num_train_epochs=epochs,
        max_steps=arguments.max_steps,
        learning_rate=arguments.learning_rate or default_learning_rate(model.config.hidden_size),
        lr_scheduler_type=arguments.lr_scheduler_type,
        weight_decay=arguments.weight_decay,
        eval_strategy=strategy,
        save_strategy=strategy,
        logging_strategy=strategy,
        eval_steps=arguments.eval_steps,
        save_steps=arguments.eval_steps or 500,
        logging_steps=arguments.eval_steps or 500,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model=SELECTION,
        greater_is_better=True,
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        use_cpu=device.type == "cpu",
        seed=seed,
        remove_unused_columns=False,
        report_to=arguments.report_to,
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    per_step = batch_size * arguments.gradient_accumulation_steps * training.world_size * max(1, training.n_gpu)
    steps = arguments.max_steps if arguments.max_steps > 0 else math.ceil(epochs * math.ceil(num_windows / per_step))
    share = arguments.warmup_steps
    training.warmup_steps = int(share) if share >= 1 else round(share * steps)
    return training


def _settings(
    arguments: FinetuningArguments,
    task: Task,
    training: TrainingArguments,
    maker: WindowMaker,
    facts: dict[str, Any],
    seed: int,
    windows: dict[str, list[Window]],
) -> dict[str, Any]:
    """What prediction needs to treat new text as training did, and what a continued run must agree with."""
    return {
        "task": task.kind,
        **facts,
        "max_seq_length": maker.max_seq_length,
        "window_overlap": maker.overlap,
        "label_names": task.label_names,
        "learning_rate": training.learning_rate,
        "num_train_epochs": training.num_train_epochs,
        "per_device_train_batch_size": training.per_device_train_batch_size,
        "data": {split: fingerprint(of_split) for split, of_split in windows.items()},
        "arguments": {**comparable(arguments), "seed": seed},
    }


def fingerprint(windows: Sequence[Window]) -> str:
    """A short hash of what the model is given, by which a continued run knows that the data is the same."""
    digest = hashlib.sha256()
    for window in windows:
        digest.update(repr((window.input_ids, window.token_type_ids, window.example, window.target)).encode())
    return digest.hexdigest()[:16]


def _checkpoint(arguments: FinetuningArguments, folder: str, settings: dict[str, Any]) -> str | None:
    """The checkpoint to go on from: the one named, or the newest whole one; None to begin."""
    wanted = arguments.resume_from_checkpoint
    if wanted is None:
        return None
    checkpoint = newest_checkpoint(folder) if wanted == "latest" else wanted
    if checkpoint is None:
        return None
    if not _is_whole(checkpoint):
        raise ValueError(f"--resume_from_checkpoint {checkpoint}: no trainer_state.json in it, so it is not complete")
    path = os.path.join(folder, SETTINGS_FILE)
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            before = json.load(file)
        _refuse_other_settings(folder, before, json.loads(json.dumps(settings)))
    return checkpoint


def _refuse_other_settings(folder: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    pairs = [(key, before.get("arguments", {}).get(key, value), value) for key, value in now["arguments"].items()]
    pairs += [(key, before.get(key, value), value) for key, value in now.items() if key != "arguments"]
    for key, earlier, value in pairs:
        if earlier != value:
            raise ValueError(
                f"--resume_from_checkpoint: the run in {folder} had {key}={earlier!r}, now it is {value!r}; "
                "give the same flags and data, or --overwrite_output_dir"
            )


def newest_checkpoint(folder: str) -> str | None:
    """The whole checkpoint with the most steps; one that was being written when the run died is passed over."""
    names = [name for name in os.listdir(folder) if re.fullmatch(r"checkpoint-\d+", name)]
    paths = [os.path.join(folder, name) for name in sorted(names, key=lambda name: int(name.split("-")[1]))]
    whole = [path for path in paths if _is_whole(path)]
    return whole[-1] if whole else None


def _is_whole(checkpoint: str) -> bool:
    """Trainer writes trainer_state.json last."""
    try:
        with open(os.path.join(checkpoint, "trainer_state.json"), encoding="utf-8") as file:
            return "global_step" in json.load(file)
    except (OSError, json.JSONDecodeError):
        return False


def _make_trainer(
    arguments: FinetuningArguments,
    task: Task,
    model: Any,
    tokenizer: Any,
    splits: Splits,
    windows: dict[str, list[Window]],
    training: TrainingArguments,
    collator: Collator,
) -> FinetuningTrainer:
    scaled_head, scale = None, 1.0
    if isinstance(task, SequenceTask) and task.problem_type == REGRESSION:
        scaled_head, scale = scale_output(model, mean=task.target_mean, scale=task.target_scale), task.target_scale
    freeze_layers(model, arguments.freeze_layers)
    if arguments.lora_rank is not None:
        model = add_lora(model, rank=arguments.lora_rank)
        scaled_head = None  # peft trains a copy of the head
    groups = parameter_groups(
        model,
        learning_rate=training.learning_rate,
        weight_decay=training.weight_decay,
        layer_decay=arguments.layer_decay,
        scaled_head=scaled_head,
        scale=scale,
    )
    best_metric = _best_metric(arguments, task)
    scores = task.metrics(_blank_logits(task, splits["validation"]), splits["validation"])
    if best_metric[0] not in scores:
        raise ValueError(f"--metric_for_best_model {best_metric[0]}: there is {', '.join(scores)}")
    trainer = FinetuningTrainer(
        task=task,
        best_metric=best_metric,
        evaluation=(splits["validation"], windows["validation"]),
        collator=collator,
        groups=groups,
        model=model,
        args=training,
        train_dataset=windows["train"],
        processing_class=tokenizer,
    )
    trainer.pop_callback(transformers.PrinterCallback)
    trainer.add_callback(EvaluationLines(best_metric[0]))
    if sys.stderr.isatty():
        trainer.add_callback(QuietProgress())
    if arguments.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(arguments.early_stopping_patience))
    return trainer


def _blank_logits(task: Task, examples: Sequence[Any]) -> Any:
    """Logits of zero: scoring them shows before training that the scores can be computed, and their names."""
    if isinstance(task, TokenTask):
        return [np.zeros((len(sentence.words), len(task.label_names))) for sentence in examples]
    return np.zeros((len(examples), len(task.label_names)))


def _say_plan(
    task: Task,
    splits: Splits,
    windows: dict[str, list[Window]],
    training: TrainingArguments,
    packed: bool,
    checkpoint: str | None,
) -> None:
    if training.process_index != 0:
        return
    sizes = ", ".join(
        f"{len(splits[split])} {split}" + (f" ({len(w)} windows)" if len(w) != len(splits[split]) else "")
        for split, w in windows.items()
    )
    print(f"{task.problem_type}, {len(task.label_names)} labels; examples: {sizes}")
    print(
        f"{training.num_train_epochs:g} epochs of batches of {training.per_device_train_batch_size}"
        f"{'' if training.gradient_accumulation_steps == 1 else f' x {training.gradient_accumulation_steps}'}, "
        f"learning rate {training.learning_rate:g}, seed {training.seed}, {'packed' if packed else 'padded'} batches"
        + (", bf16" if training.bf16 else ", fp16" if training.fp16 else "")
        + ("" if checkpoint is None else f"; going on from {checkpoint}"),
        flush=True,
    )


def _write_reports(folder: str, name: str, task: Task, examples: list[Any], logits: Any) -> None:
    if isinstance(task, TokenTask):
        write_token_reports(folder, name, task, examples, logits)
    else:
        write_sequence_reports(folder, name, task, examples, logits)


def _save(model: Any, tokenizer: Any, folder: str) -> None:
    """The model as an ordinary one (adapters merged) with its tokenizer."""
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    restore_dropout(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _write_results(folder: str, results: dict[str, Any]) -> None:
    """all_results.json, and the part of each split in a file of its own."""
    write_json(os.path.join(folder, "all_results.json"), results)
    for split in ("train", "eval", "test"):
        part = {key: value for key, value in results.items() if key.startswith(f"{split}_") or key == "epoch"}
        if any(key.startswith(f"{split}_") for key in part):
            write_json(os.path.join(folder, f"{split}_results.json"), part)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _card_facts(
    arguments: FinetuningArguments, task: Task, results: dict[str, Any], settings: dict[str, Any]
) -> dict[str, Any]:
    hyperparameters = {
        key: settings[key]
        for key in ("learning_rate", "num_train_epochs", "per_device_train_batch_size", "max_seq_length")
    }
    base = arguments.model_name_or_path
    names = {} if os.path.isdir(base) else {"base_model": base}
    return {
        **names,
        **({"datasets": [arguments.dataset_name]} if arguments.dataset_name else {}),
        "hyperparameters": {**hyperparameters, "seed": settings["arguments"]["seed"]},
        "metrics": {key: value for key, value in results.items() if key.startswith(("eval_", "test_"))},
        "seconds": results.get("train_runtime"),
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
    }
