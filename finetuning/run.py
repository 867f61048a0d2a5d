"""Fine-tunes once, or once for each seed: from checked flags to a folder that pipelines can load."""

import contextlib
import io
import math
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import TrainingArguments

from ..modeling.evaluation_mode import evaluation_mode
from ..utils.device import choose_precision, find_device, training_modes
from ..utils.errors import UserError, first_line
from ..utils.files import WriteCard, disk_errors, write_json
from ..utils.memory import memory_errors
from ..utils.output import outliving_readers
from ..utils.output_folders import remove_written
from ..utils.processes import joining_processes, lost_processes, process_rank, refuse_differences
from ..utils.progress_bar import quiet
from ..utils.stop_request import StopRequest
from ..utils.wording import counted
from .arguments import (
    FINETUNING_FILES,
    FinetuningArguments,
    default_batch_size,
    default_epochs,
    default_learning_rate,
    own_output_dir,
)
from .batches import PackedCollator, are_finite, make_collator, rounds_of_epoch
from .callbacks import BestOfMovedRun, EarlyStopping, EvaluationLines, TimelyCheckpoints, TrainingProgress
from .card import card_facts, limit_of_windows
from .data import TASKS, LabelledData, read_data
from .metrics import check_metric_libraries
from .models import (
    add_lora,
    check_max_seq_length,
    check_peft,
    check_tokenizer_fits,
    compares_pairs,
    freeze_layers,
    has_post_norm,
    known_label_names,
    load_auto_tokenizer,
    load_classifier,
    load_config,
    prefer_plain_attention,
    save_classifier,
)
from .optimizer import parameter_groups, scale_output_gradient
from .plan import say_plan
from .reports import (
    RESULTS_FILE,
    mean_and_deviation,
    table_of_results,
    warn_of_majority,
    write_all_results,
    write_report,
)
from .resume import (
    AFRESH,
    SETTINGS_FILE,
    checkpoint_to_resume,
    finished_results,
    newest_checkpoint,
    remove_checkpoints,
    settings_of,
)
from .search import check_search, search_hyperparameters
from .tasks import Task
from .trainer import SELECTION, FinetuningTrainer, check_tracker
from .windows import MANY_UNKNOWN, WindowMaker, count_unknown, pair_separator

_NOTHING_KNOWN = 0.9  # unknown, of the tokens


@outliving_readers()  # as for pretraining
@quiet()
def finetune(arguments: FinetuningArguments, *, write_card: WriteCard | None = None) -> dict[str, Any]:
    """Fine-tune, evaluate, save and print, once or once for each seed.

    Args:
        arguments: checked flags; their class determines the type of task.
        write_card: called with the folder and the facts about the model, to write its README.md.

    Returns:
        the results, which are also written to DIR/all_results.json. If a signal stopped training, `stopped_by` is its
        number, and only a checkpoint was written.
    """
    check_metric_libraries(tags=arguments.task_type == "token")
    check_tracker(arguments.report_to)
    if arguments.lora_rank is not None:
        check_peft()
    if arguments.hyperparameter_search is not None and arguments.resume_from_checkpoint is None:
        check_search(arguments)
    way_out = "lower per_device_train_batch_size, and raise gradient_accumulation_steps by the same factor"
    with (
        training_modes(find_device(use_cpu=arguments.use_cpu)),
        lost_processes(goes_on_by="--resume_from_checkpoint latest"),
        own_output_dir(arguments),
        memory_errors(f"{way_out}; while it evaluates, lower per_device_eval_batch_size"),
        contextlib.nullcontext() if process_rank() == 0 else contextlib.redirect_stdout(io.StringIO()),
    ):
        return _finetune(arguments, write_card)


def _finetune(arguments: FinetuningArguments, write_card: WriteCard | None) -> dict[str, Any]:
    """`finetune`, called when this run holds the output folder."""
    config = load_config(arguments.model_name_or_path, trust_remote_code=arguments.trust_remote_code)
    trusted = arguments.trust_remote_code
    tokenizer = load_auto_tokenizer(arguments.model_name_or_path, config, trust_remote_code=trusted)
    data = read_data(arguments, known_label_names(config, TASKS[arguments.task_type]))
    searches = arguments.hyperparameter_search is not None
    run: FinetuningRun | None = None
    if arguments.overwrite_output_dir or searches:
        # Setting a run up checks everything. Only then may the earlier run be deleted.
        run = FinetuningRun(arguments, arguments.output_dir, (arguments.seeds or [arguments.seed])[0], data, tokenizer)
        if arguments.overwrite_output_dir and process_rank() == 0:
            remove_written(Path(arguments.output_dir), FINETUNING_FILES)
        if searches:
            with full_disk(arguments.output_dir):
                arguments = replace(arguments, **search_hyperparameters(run))
            run = None  # it has the flags before the search
    if arguments.seeds is None:
        run = run or FinetuningRun(arguments, arguments.output_dir, arguments.seed, data, tokenizer)
        results = run.train(write_card)
        if "stopped_by" in results:
            return results
    else:
        each = []
        for seed in arguments.seeds:
            run = None  # frees its model
            folder = _seed_folder(arguments, seed)
            print(f"seed {seed}:", flush=True)
            run = FinetuningRun(arguments, folder, seed, data, tokenizer)
            # Only now, when all processes have met in setting the run up: each of them refuses a folder that has files.
            with full_disk(folder):
                os.makedirs(folder, exist_ok=True)
            each.append(run.train(write_card))
            if "stopped_by" in each[-1]:
                return each[-1]
        run = None
        results = {**mean_and_deviation(each), "seeds": list(arguments.seeds)}
        if process_rank() == 0:
            with full_disk(arguments.output_dir):
                write_json(os.path.join(arguments.output_dir, RESULTS_FILE), results)
    if process_rank() == 0:
        print(table_of_results(results, splits=[split for split in ("eval", "test") if f"{split}_loss" in results]))
        weigh_classes = data.task.has_classes and arguments.class_weights == "none"
        warning = warn_of_majority(results, num_labels=len(data.task.label_names), weigh_classes=weigh_classes)
        if warning is not None:
            print(warning)
        seeds = arguments.seeds or []
        folders = [_seed_folder(arguments, seed) for seed in seeds] or [arguments.output_dir]
        print(f"model, scores, predictions and mistakes: {', '.join(folders)}", flush=True)
    return results


class FinetuningRun:
    """A run that is set up: data as windows, Trainer's arguments, and a model.

    Args:
        arguments: checked flags.
        folder: where the run writes its files.
        seed: of the head's weights, the order of the data and the dropout.
        data: examples, the task they define, and facts about them.
        tokenizer: the tokenizer of the model.
    """

    def __init__(
        self,
        arguments: FinetuningArguments,
        folder: str,
        seed: int,
        data: LabelledData,
        tokenizer: Any,
    ) -> None:
        self.arguments, self.folder, self.seed, self.tokenizer = arguments, folder, seed, tokenizer
        self.splits, self.task, self.facts, self.on_hub = data
        self.device = find_device(use_cpu=arguments.use_cpu)
        self.precision = choose_precision(arguments.mixed_precision, self.device)
        transformers.set_seed(seed)
        self.model = self.load_model()
        check_tokenizer_fits(self.model, tokenizer)
        overlap = self.task.window_overlap if arguments.window_overlap is None else arguments.window_overlap
        max_seq_length = check_max_seq_length(arguments.max_seq_length, self.model, tokenizer)
        self.maker = WindowMaker(tokenizer, max_seq_length=max_seq_length, overlap=overlap)
        self.windows = {split: self.task.windows(examples, self.maker) for split, examples in self.splits.items()}
        if arguments.class_weights == "balanced":
            self.task.balance(self.windows["train"])
        self._check_unknown()
        self.collator = make_collator(
            self.model,
            tokenizer,
            per_token=self.task.per_token,
            packing=arguments.packing == "auto",
        )
        if arguments.mixed_precision == "auto" and self.precision == "bf16" and not self._computes_in_bf16():
            self.precision = "no"
        num_tokens = sum(len(window.input_ids) for window in self.windows["train"])
        with joining_processes():
            self.training = self._training_arguments(num_tokens)
        self._check_processes()
        self.check_warmup(self.training)
        self.best_metric = _best_metric(arguments, self.task)
        validation = self.splits["validation"]
        scores = self.task.metrics(self.task.blank_logits(validation), validation)
        # A baseline is the same after every epoch.
        scores = {name: score for name, score in scores.items() if not name.startswith("majority_")}
        if self.best_metric[0] not in scores:
            raise UserError(f"--metric_for_best_model {self.best_metric[0]}: there is {', '.join(scores)}")
        self.settings = settings_of(self)
        # A resumed run may change these two, but its processes must not differ in them.
        free = {name: getattr(arguments, name) for name in ("per_device_eval_batch_size", "seeds")}
        refuse_differences({**self.settings["arguments"], **self.settings, **free})

    def _check_unknown(self) -> None:
        """Print a warning if the tokenizer does not know a part of the text, and raise if it knows next to nothing."""
        for split, windows in self.windows.items():
            unknown, tokens = count_unknown(windows, self.tokenizer)
            share = unknown / max(1, tokens)
            way_out = "take a model whose tokenizer knows this text"
            if split == "train" and share > _NOTHING_KNOWN:
                raise UserError(
                    f"the tokenizer does not know {share:.0%} of the tokens of the training data: {way_out}"
                )
            if share > MANY_UNKNOWN:
                print(f"warning: the tokenizer does not know {share:.1%} of the tokens of the {split} data: {way_out}")

    def _computes_in_bf16(self) -> bool:
        """Whether the model computes a batch of two windows under a CPU's autocast. DeBERTa, for one, does not."""
        if self.model.config.model_type == "clozebert" or self.device.type != "cpu":
            return True
        batch = self.collator(self.windows["train"][:2])
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        try:
            with evaluation_mode(self.model), torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                self.model(**inputs)
        except RuntimeError as error:
            reason = f"{self.model.config.model_type} models do not compute in bf16 ({first_line(error)})"
            warnings.warn(f"mixed_precision=auto is float32 here: {reason}", stacklevel=2)
            return False
        return True

    def _training_arguments(self, num_tokens: int) -> TrainingArguments:
        """Trainer's arguments: the flags, and defaults that depend on the size of data and model."""
        arguments, num_examples = self.arguments, len(self.splits["train"])
        strategy = "epoch" if arguments.eval_steps is None else "steps"
        training = TrainingArguments(
            output_dir=self.folder,
            per_device_train_batch_size=arguments.per_device_train_batch_size or default_batch_size(num_examples),
            per_device_eval_batch_size=arguments.per_device_eval_batch_size,
            gradient_accumulation_steps=arguments.gradient_accumulation_steps,
            num_train_epochs=arguments.num_train_epochs or float(default_epochs(num_examples, num_tokens)),
            max_steps=arguments.max_steps,
            warmup_steps=arguments.warmup_steps,
            learning_rate=arguments.learning_rate
            or default_learning_rate(
                self.model.config.hidden_size,
                compares_pairs=compares_pairs(self.model),
                post_norm=has_post_norm(self.model.config),
            ),
            lr_scheduler_type=arguments.lr_scheduler_type,
            weight_decay=arguments.weight_decay,
            eval_strategy=strategy,
            save_strategy=strategy,
            logging_strategy=strategy,
            eval_steps=arguments.eval_steps,
            save_steps=arguments.eval_steps or 500,
            logging_steps=arguments.eval_steps or 500,
            logging_nan_inf_filter=False,  # a run that diverges must not show a loss of zero
            save_total_limit=2,  # the best one and the last: with 1, Trainer deletes the last before the model is saved
            load_best_model_at_end=True,
            metric_for_best_model=SELECTION,
            greater_is_better=True,
            bf16=self.precision == "bf16",
            fp16=self.precision == "fp16",
            use_cpu=self.device.type == "cpu",
            seed=self.seed,
            remove_unused_columns=False,
            report_to=arguments.report_to,
            # In a ClozeBERT every weight has a gradient, and torch would warn that it looked for others in vain.
            ddp_find_unused_parameters=False if self.model.config.model_type == "clozebert" else None,
            log_level_replica="passive",  # else the other processes print what the first one does not
            disable_tqdm=True,
            dataloader_pin_memory=self.device.type == "cuda",
            accelerator_config={"even_batches": False},  # no window twice in an epoch: see SharedBatches
        )
        if training.n_gpu > 1:
            # Trainer would share each batch among all GPUs of the machine (DataParallel). Batches and the loss would be
            # as many times as large, and autocast would be left out.
            training._n_gpu = 1
        return training

    def _check_processes(self) -> None:
        windows, processes = len(self.windows["train"]), self.training.world_size
        if windows < processes:
            raise UserError(f"{processes} processes share {counted(windows, 'training window')}: start fewer processes")

    def check_warmup(self, training: TrainingArguments, *, of: str = "the run") -> None:
        """Raise if the warm-up is longer than the run, whose learning rate would never reach its peak.

        Args:
            of: what has these arguments, for the message.
        """
        num_batches = rounds_of_epoch(
            len(self.windows["train"]), batch_size=training.train_batch_size, processes=training.world_size
        )
        num_steps = math.ceil(training.num_train_epochs * math.ceil(num_batches / training.gradient_accumulation_steps))
        num_steps = training.max_steps if training.max_steps > 0 else num_steps
        if training.warmup_steps > num_steps:
            raise UserError(
                f"--warmup_steps {training.warmup_steps:g}: {of} has {counted(num_steps, 'step')}; give fewer, or a "
                f"share of all steps, such as 0.1"
            )

    def load_model(self) -> Any:
        """Load the encoder and its head, as they are before training."""
        arguments, task = self.arguments, self.task
        model: Any = load_classifier(
            arguments.model_name_or_path,
            task=task,
            dropout=arguments.dropout,
            separator=self._pair_separator(),
            compare_pairs=getattr(arguments, "compare_pairs", None),
            trust_remote_code=arguments.trust_remote_code,
            use_cpu=arguments.use_cpu,
        )
        if (self.device.type, self.precision) == ("cpu", "bf16"):
            prefer_plain_attention(model)
        freeze_layers(model, arguments.freeze_layers)
        model = model if arguments.lora_rank is None else add_lora(model, rank=arguments.lora_rank)
        scale_output_gradient(model, task.target_scale)
        return model

    def _pair_separator(self) -> int | None:
        """The id of the token between the two texts of a pair; None if the data are no pairs, or no token is there.

        Raises:
            UserError: the flags ask for a comparison of pairs, and there is none to make.
        """
        is_pair = self.facts.get("text_pair_column") is not None
        separator = pair_separator(self.tokenizer) if is_pair else None
        if getattr(self.arguments, "compare_pairs", None) and separator is None:
            reason = "the tokenizer puts no token between two texts" if is_pair else "the data have no second text"
            raise UserError(f"--compare_pairs true: {reason}")
        return separator

    def parameter_groups(self, model: Any, learning_rate: float) -> list[dict[str, Any]]:
        """The optimizer's groups for a model that `load_model` made."""
        return parameter_groups(
            model,
            learning_rate=learning_rate,
            weight_decay=self.arguments.weight_decay,
            layer_decay=self.arguments.layer_decay,
            output_scale=self.task.target_scale,
        )

    def make_trainer(
        self, *, arguments: TrainingArguments | None = None, model_init: Callable[[], Any] | None = None
    ) -> FinetuningTrainer:
        """A trainer of this run's model or, given `model_init`, of the models that it makes."""
        trainer = FinetuningTrainer(
            task=self.task,
            best_metric=self.best_metric,
            evaluation=(self.splits["validation"], self.windows["validation"]),
            collator=self.collator,
            groups=self.parameter_groups,
            # `--packing off` pads the same batches as packing uses, so that the two can be compared.
            group_by_length=self.arguments.packing == "auto" and not isinstance(self.collator, PackedCollator),
            train_dataset=self.windows["train"],
            processing_class=self.tokenizer,
            args=arguments or self.training,
            model=self.model if model_init is None else None,
            model_init=model_init,
        )
        trainer.pop_callback(transformers.PrinterCallback)
        trainer.add_callback(BestOfMovedRun())
        trainer.add_callback(EvaluationLines(self.best_metric[0], is_weighted=self.task.class_weights_C is not None))
        trainer.add_callback(TrainingProgress())
        if self.arguments.early_stopping_patience is not None:
            trainer.add_callback(EarlyStopping(self.best_metric, self.arguments.early_stopping_patience))
        return trainer

    def train(self, write_card: WriteCard | None = None) -> dict[str, Any]:
        """Train, score the best model on every split, and save everything into the folder."""
        try:
            with full_disk(self.folder):
                done = finished_results(self.arguments.resume_from_checkpoint, self.folder, self.settings)
                if done is not None:
                    print(f"{self.folder}: this run is finished; {AFRESH} trains it again", flush=True)
                    return done
                trainer, trained = self._train()
                return trained if "stopped_by" in trained else self._finish(trainer, trained, write_card)
        except KeyboardInterrupt:
            if newest_checkpoint(self.folder) is not None:
                print(f"{self.folder}: --resume_from_checkpoint latest goes on from there", file=sys.stderr)
            raise

    def _train(self) -> tuple[FinetuningTrainer, dict[str, Any]]:
        """Train; return the trainer, and the time and the loss, or the signal that stopped training and the step."""
        checkpoint = checkpoint_to_resume(self.arguments.resume_from_checkpoint, self.folder, self.settings)
        say_plan(self, checkpoint)
        trainer = self.make_trainer()
        path = os.path.join(self.folder, SETTINGS_FILE)
        if trainer.is_world_process_zero() and (checkpoint is None or not os.path.exists(path)):
            write_json(path, self.settings)  # a resumed run keeps the file that is there: a full disk would empty it
        stop = StopRequest()
        checkpoints = TimelyCheckpoints(stop, trainer.accelerator)
        trainer.add_callback(checkpoints)
        with stop.listening():
            metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
        if checkpoints.has_stopped:
            print(f"stopped at step {trainer.state.global_step}; --resume_from_checkpoint latest goes on from there")
            return trainer, {"stopped_by": stop.reason, "step": trainer.state.global_step}
        # A resumed run's own time and loss cover its last part only, and are left out.
        known = metrics if checkpoint is None else {}
        return trainer, {key: known[key] for key in ("train_runtime", "train_loss") if key in known}

    def _finish(
        self,
        trainer: FinetuningTrainer,
        results: dict[str, Any],
        write_card: WriteCard | None,
    ) -> dict[str, Any]:
        """Score the best model on every split, and save it and all that tells of it."""
        is_main = trainer.is_world_process_zero()
        trainer.leave_mixed_precision()
        results |= {"train_samples": len(self.splits["train"]), "train_windows": len(self.windows["train"])}
        results["epoch"] = float(trainer.state.epoch or 0)
        results = {key: value for key, value in results.items() if not math.isnan(value)}
        names = {split: name for split, name in (("validation", "eval"), ("test", "test")) if split in self.splits}
        logits = {}
        for split in names:
            logits[split] = trainer.document_logits(self.splits[split], self.windows[split])
            if not are_finite(logits[split]):
                raise UserError(
                    f"--learning_rate {self.training.learning_rate:g}: training has diverged, and the model's "
                    f"answers are not finite; give a lower rate"
                )
        if is_main:
            save_classifier(trainer.model, self.tokenizer, self.folder)
        for split, name in names.items():
            scores = self.task.metrics(logits[split], self.splits[split])
            results |= {f"{name}_{key}": value for key, value in scores.items()}
            results[f"{name}_samples"] = len(self.splits[split])
            if is_main:
                write_report(self.folder, name, self.task.report(logits[split], self.splits[split]))
        if is_main:
            path = os.path.join(self.folder, SETTINGS_FILE)
            if not os.path.exists(path):  # the folder was deleted during the run
                write_json(path, self.settings)
            if write_card is not None:
                facts = card_facts(self.arguments, self.on_hub, results, self.settings)
                limits = [self.task.limitations(self.splits["train"])]
                if any(len(windows) > len(self.splits[split]) for split, windows in self.windows.items()):
                    limits.append(limit_of_windows(self.maker.max_seq_length, per_token=self.task.per_token))
                write_card(self.folder, facts | {"limitations": " ".join(filter(None, limits))})
            write_all_results(self.folder, results)  # last: they say that the run is finished
            remove_checkpoints(self.folder, keep=trainer.state.best_model_checkpoint)
        return results


def _seed_folder(arguments: FinetuningArguments, seed: int) -> str:
    return os.path.join(arguments.output_dir, f"seed-{seed}")


def full_disk(folder: str) -> contextlib.AbstractContextManager[None]:
    """A context that writes a run's files into `folder`; a full disk is an error of the user."""
    return disk_errors(Path(folder), way_out="free some space, then --resume_from_checkpoint latest")


def _best_metric(arguments: FinetuningArguments, task: Task) -> tuple[str, bool]:
    """The score that selects the best evaluation, and whether higher is better."""
    if arguments.metric_for_best_model is None:
        return task.best_metric
    name = arguments.metric_for_best_model.removeprefix("eval_")
    return name, name not in ("loss", "mse")
