"""Pretraining by masked-language modelling: the loop, and what has to be in place before it begins.

The loss of a step is the sum of -log p(token) over the predicted tokens of the whole global batch, divided by their
number. However the batch is split into micro-batches and processes, the gradient is the same.
"""

import contextlib
import dataclasses
import importlib.util
import json
import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from transformers import AutoConfig, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from ..configuration import ClozeBertConfig
from ..corpus import BatchStream, Corpus, Masking, Mixture, validation_batches
from ..corpus.randomness import derive
from ..corpus.tokenizer import load_tokenizer, tokenizer_facts
from ..modeling import ClozeBertForMaskedLM
from ..utils.device import measure_matmul_flops, wait_for
from ..utils.errors import UserError, as_user_errors
from ..utils.files import check_output_dir, disk_errors, remove_written, whole_files, write_text
from ..utils.untrusted import check_model_folder
from . import doctor
from .arguments import LENGTHS, Phase, PretrainingArguments
from .checkpoints import (
    RUN_FILES,
    TrainingState,
    clear_way,
    commit_checkpoint,
    find_damage,
    list_checkpoints,
    newest_valid,
    read_training_state,
    write_training_state,
)
from .curves import CURVE_NAME, draw_loss_curve
from .evaluation import evaluate_masked_lm, sum_over_processes
from .machine import (
    StopRequest,
    choose_muon_dtype,
    compile_model,
    make_accelerator,
    make_deterministic,
    seed_step,
)
from .optimizers import load_optimizer_state, make_optimizer, optimizer_state, whole_tensor, whole_weights
from .planning import forward_flops, mean_attention_length
from .prefetch import ModelInputs, StepLoader, prefetch, to_device
from .progress import LOG_NAME, RunLog, Stopwatch
from .run_settings import phase_configuration
from .time_budget import MOST_TIMED, StepTime, steps_in, time_steps

logger = logging.getLogger(__name__)

RESULTS_NAME = "all_results.json"
# One gradient that is not finite may be an accident of the data or the hardware; so many in a row are a diverged run.
MOST_SKIPS_IN_A_ROW = 10
_DRY_STEPS = 2

WriteCard = Callable[[str | os.PathLike, dict[str, Any]], None]


def pretrain(
    arguments: PretrainingArguments,
    config: ClozeBertConfig,
    *,
    write_card: WriteCard | None = None,
    recipe: str | None = None,
) -> dict[str, Any]:
    """Train an encoder from `arguments.corpus` and leave it, in Hub format, in `arguments.output_dir`.

    Args:
        arguments: the run.
        config: the model; with `model_name_or_path` that model's own configuration takes its place.
        write_card: writes a folder's README.md from what is known about the run.
        recipe: the recipe's name, for the card.

    Returns:
        What `all_results.json` holds: the losses, the validation figures, tokens and seconds. After a signal that
        stopped the run early, `stopped_by` is the signal's number, and only a checkpoint was written.

    Raises:
        ValueError: contradictions between arguments, corpus, tokenizer, model and checkpoint, before any work; or a
            gradient that is not finite in ten steps in a row.
    """
    run = Pretraining(arguments, config, write_card=write_card, recipe=recipe)
    with StopRequest().listening() as stop, contextlib.closing(run):
        return run.train(stop)


class Pretraining:
    """A run that is set up: model, optimizer and batches at the step where it begins.

    Attributes:
        arguments, corpora, stream, core, model, optimizer, loader: those of the current `phase`.
    """

    def __init__(
        self,
        arguments: PretrainingArguments,
        config: ClozeBertConfig,
        *,
        write_card: WriteCard | None = None,
        recipe: str | None = None,
    ):
        self._begun = time.monotonic()
        self.write_card, self.recipe = write_card, recipe
        self.output_dir = Path(arguments.output_dir)
        _check_trackers(arguments.report_to)
        self.tokenizer = tokenizer = load_tokenizer(arguments.tokenizer_name)
        # Everything that a person can get wrong comes before any work, that of the last phase too.
        self.phases = arguments.split_phases()
        mixtures = [Mixture(phase.arguments.corpus, phase.arguments.corpus_weights) for phase in self.phases]
        if arguments.model_name_or_path is not None:
            config = load_configuration(arguments.model_name_or_path)
            check_same_tokens(config, tokenizer, name_or_path=arguments.model_name_or_path)
        set_token_ids(config, tokenizer)
        self.configs = [phase_configuration(config, phase) for phase in self.phases]
        for phase, of_phase, mixture in zip(self.phases, self.configs, mixtures, strict=True):
            check_fit(phase.arguments, of_phase, mixture.corpora, tokenizer)
        check_same_weights(self.configs)

        self.accelerator = make_accelerator(
            mixed_precision=arguments.mixed_precision,
            use_cpu=arguments.use_cpu,
            report_to=[] if arguments.dry_run else arguments.report_to,
            output_dir=arguments.output_dir,
        )
        if arguments.full_determinism:
            make_deterministic()
        self.mixtures = mixtures
        for phase in self.phases:
            phase.arguments.micro_batches(self.accelerator.num_processes)

        self.peak_flops = measure_matmul_flops(self.accelerator.device, self.accelerator.mixed_precision)
        self.gradient_norm = 0.0
        self._warned: set[str] = set()

        checkpoint = None if arguments.dry_run else self._on_main(self._find_checkpoint)
        self.state, tensors, index = TrainingState(step=0), None, 0
        if checkpoint is not None:
            self.state, tensors = read_training_state(checkpoint)
        said = "" if arguments.max_minutes is None else self._set_length(arguments)
        if checkpoint is not None:
            index = self._check_resume(checkpoint)
        if arguments.dry_run:
            self.phases = [_dry_phase(phase, self.accelerator) for phase in self.phases]
        if arguments.report_to and not arguments.dry_run:
            settings = {key: value if isinstance(value, (int, float, str)) else str(value) for key, value in
                        dataclasses.asdict(arguments).items()}  # fmt: skip
            self.accelerator.init_trackers("clozebert", config=settings)
        is_main = self.accelerator.is_main_process
        self.log = RunLog(
            self.output_dir / LOG_NAME if is_main and not arguments.dry_run else None,
            accelerator=self.accelerator,
            step=self.state.step,
            max_steps=self.phases[-1].last_step,
            visible=is_main,
            bar=not arguments.disable_tqdm,
        )
        self._enter(index, checkpoint or arguments.model_name_or_path, tensors)
        for line in [*self.plan(), said]:
            if line:
                self.log.say(line)

    def _set_length(self, arguments: PretrainingArguments) -> str:
        """As many steps as fit into `max_minutes`; a run that is resumed keeps the number that it began with.

        Returns:
            What a person should know of it.
        """
        assert arguments.max_minutes is not None
        if self.state.step:
            saved = {name: self.state.arguments[name] for name in LENGTHS}
            self.phases = dataclasses.replace(arguments.of_length(saved["max_steps"]), **saved).split_phases()
            return f"max_minutes: {saved['max_steps']:,} steps, as when the run began"
        seconds = 60 * arguments.max_minutes
        timing = self._time_steps(arguments, seconds=seconds)
        evaluated = sum(split.num_tokens for split in self.mixtures[0].validation.values())
        if arguments.max_eval_batches is not None:
            of_batch = arguments.per_device_eval_batch_size * arguments.max_seq_length
            evaluated = min(evaluated, arguments.max_eval_batches * of_batch * len(self.mixtures[0].validation))
        processes = self.accelerator.num_processes
        steps = steps_in(
            self._agree_on(seconds - (time.monotonic() - self._begun)),
            timing,
            arguments=arguments,
            world_size=processes,
            eval_tokens=evaluated / processes,
        )
        self.phases = arguments.of_length(steps).split_phases()
        return (
            f"max_minutes={arguments.max_minutes:g}: {steps:,} steps; a micro-batch took {timing.micro_batch:.3g} s "
            f"and an update {timing.update:.3g} s"
        )

    def _time_steps(self, arguments: PretrainingArguments, *, seconds: float) -> StepTime:
        """Take steps of one micro-batch, time them, and forget all that they did."""
        processes, accelerator = self.accelerator.num_processes, self.accelerator
        rows = arguments.global_batch_size // processes // arguments.micro_batches(processes)
        timed = dataclasses.replace(
            arguments,
            max_minutes=None,
            global_batch_size=rows * processes,
            initial_global_batch_size=None,
            batch_warmup_steps=0,
        ).of_length(MOST_TIMED)
        real, self.phases = self.phases, timed.split_phases()
        scaler = None if accelerator.scaler is None else accelerator.scaler.state_dict()
        self._enter(0, None)
        self.optimizer.optimizer.set_learning_rate(0.0)

        def step() -> StepTime:
            batches, num_predicted = next(self.loader)
            begun = time.perf_counter()
            accumulate_gradient(self.model, batches, num_predicted=num_predicted, accelerator=accelerator)
            wait_for(accelerator.device)
            middle = time.perf_counter()
            accelerator.clip_grad_norm_(self.model.parameters(), arguments.max_grad_norm or math.inf)
            self.optimizer.step()
            self.optimizer.zero_grad()
            wait_for(accelerator.device)
            return StepTime(middle - begun, time.perf_counter() - middle)

        timing = time_steps(step, seconds=seconds, agree=self._agree_on)
        self._leave()
        if accelerator.scaler is not None:
            accelerator.scaler.load_state_dict(scaler)
        self.phases = real
        return timing

    def _agree_on(self, value: float) -> float:
        """The mean of a number over all processes, the same in each."""
        mine = torch.tensor([value], dtype=torch.float64)
        return sum_over_processes(mine, self.accelerator).item() / self.accelerator.num_processes

    def _leave(self) -> None:
        """Give up the phase's batches, model and optimizer."""
        self.loader.close()
        del self.model, self.core, self.optimizer
        self.accelerator.free_memory()

    def _enter(
        self, index: int, weights: str | os.PathLike | None, tensors: dict[str, torch.Tensor] | None = None
    ) -> None:
        """Set up a phase: its batches, and model and optimizer with the weights and the state that came before."""
        self.phase, self.corpora = self.phases[index], self.mixtures[index]
        self.arguments = arguments = self.phase.arguments
        config = self.configs[index]
        micro_batches = arguments.micro_batches(self.accelerator.num_processes)
        self.stream = BatchStream(
            self.corpora.corpora,
            max_seq_length=arguments.max_seq_length,
            global_batch_size=arguments.batch_size,
            masking=dataclasses.replace(
                make_masking(arguments, rate=arguments.mlm_probability), final_rate=arguments.final_mlm_probability
            ),
            # A later phase over the same corpus sees it in another order.
            seed=arguments.seed if index == 0 else derive(arguments.seed, index),
            weights=self.corpora.shares,
            total_steps=arguments.max_steps,
        )
        on_cpu = self.accelerator.device.type == "cpu"
        self.flops_per_token = _flops_per_token(config, arguments, self.corpora, on_cpu=on_cpu)
        self.survey: doctor.Survey | None = None

        torch.manual_seed(arguments.seed)
        self.core = make_model(config, weights)
        if arguments.gradient_checkpointing:
            self.core.gradient_checkpointing_enable()
        self.core.train()
        if arguments.torch_compile:
            compile_model(self.core, self.accelerator.device)
        device, precision = self.accelerator.device, self.accelerator.mixed_precision
        optimizer = make_optimizer(self.core, arguments, muon_dtype=choose_muon_dtype(precision, device))
        with warnings.catch_warnings():
            # torch announces another name for the `broadcast_buffers` that Accelerate passes.
            warnings.simplefilter("ignore", FutureWarning)
            self.model, self.optimizer = self.accelerator.prepare(self.core, optimizer)
        if tensors is not None:
            load_optimizer_state(self.optimizer.optimizer, tensors)
        if self.accelerator.scaler is not None and self.state.scaler is not None:
            self.accelerator.scaler.load_state_dict(self.state.scaler)
        self.loader = prefetch(
            StepLoader(
                self.stream,
                self.accelerator.process_index,
                self.accelerator.num_processes,
                micro_batches,
                config=self.core.config if on_cpu else None,
            ),
            self.state.step - self.phase.first_step,
            self.phase.num_steps,
            workers=arguments.dataloader_num_workers,
        )

    def train(self, stop: StopRequest) -> dict[str, Any]:
        """All steps that are left, with their logging, evaluation and checkpoints; then the finished model."""
        while True:
            if self._train_phase(stop):
                return self._stop(stop)
            if self.phase is self.phases[-1]:
                break
            self._next_phase()
        return {"dry_run": True, "parameters": self.num_parameters} if self.arguments.dry_run else self._finish()

    def _train_phase(self, stop: StopRequest) -> bool:
        """The steps that are left of the phase; whether a signal ended it early."""
        arguments, state, watch = self.arguments, self.state, Stopwatch()
        while state.step < self.phase.last_step:
            watch.begin()
            batches, num_predicted = next(self.loader)
            watch.got_batch()

            self.optimizer.optimizer.set_learning_rate(
                arguments.learning_rate_factor(state.step - self.phase.first_step)
            )
            seed_step(arguments.seed, state.step, self.accelerator.process_index)
            part = accumulate_gradient(self.model, batches, num_predicted=num_predicted, accelerator=self.accelerator)
            self.gradient_norm = self._update_weights()
            loss, tokens, stopping = self._agree(part, batches, stop)

            state.step += 1
            state.tokens_seen += tokens
            state.model_flops += tokens * self.flops_per_token
            state.losses.append(loss)
            watch.end(tokens)
            self.log.advance()
            if self._is_due(arguments.logging_steps) or state.step == self.phase.last_step:
                self._log_training(watch)
            if arguments.dry_run:
                continue
            if stopping:
                return True
            if self._is_due(arguments.eval_steps):
                self.evaluate()
            if self._is_due(arguments.save_steps):
                self.save_checkpoint()
        return False

    def _next_phase(self) -> None:
        """Close the phase with a checkpoint and begin the next one from it, as a run that is resumed there does."""
        checkpoint: Path | None = None
        tensors: dict[str, torch.Tensor] | None = None
        if not self.arguments.dry_run:
            checkpoint = self._close_phase()
            _, tensors = read_training_state(checkpoint)
        self._leave()
        self._enter(self.phase.index + 1, checkpoint, tensors)
        for line in self.plan():
            self.log.say(line)

    def _close_phase(self) -> Path:
        """The evaluation and the checkpoint that every phase ends with."""
        if self.state.evaluation.get("step") != self.state.step:
            self.evaluate()
        path = self.output_dir / f"checkpoint-{self.state.step}"
        if path not in list_checkpoints(self.output_dir):
            self.save_checkpoint()
        return path

    def _update_weights(self) -> float:
        """Clip, then step; a gradient that is not finite changes nothing and is counted. Returns its norm before."""
        state, most = self.state, self.arguments.max_grad_norm or math.inf
        # The one moment in a step where the host waits for the device.
        norm = whole_tensor(self.accelerator.clip_grad_norm_(self.model.parameters(), most)).item()
        finite = math.isfinite(norm)
        # The fp16 scaler has to see an overflow, so as to lower its scale; it leaves the weights alone then.
        if finite or self.accelerator.scaler is not None:
            self.optimizer.step()
        self.optimizer.zero_grad()
        if finite:
            state.consecutive_skips = 0
            return norm
        state.skipped_steps += 1
        state.consecutive_skips += 1
        self.log.record(state.step + 1, {"event": "skipped: the gradient is not finite", "grad_norm": str(norm)})
        if state.consecutive_skips == MOST_SKIPS_IN_A_ROW:
            raise UserError(
                f"the gradient was not finite in {MOST_SKIPS_IN_A_ROW} steps in a row, up to step {state.step + 1}: "
                f"the run has diverged; resume from the last checkpoint with a lower learning_rate "
                f"(now {self.arguments.learning_rate}) or a longer warm-up"
            )
        return norm

    def _agree(self, part: torch.Tensor, batches: list[ModelInputs], stop: StopRequest) -> tuple[float, int, bool]:
        """The loss and the tokens of the global batch, and whether any process was asked to stop."""
        tokens = sum(batch["input_ids"].numel() for batch in batches)
        mine = torch.tensor([part.item(), tokens, bool(stop)], dtype=torch.float64)
        total_loss, total_tokens, stopping = sum_over_processes(mine, self.accelerator).tolist()
        return total_loss, int(total_tokens), stopping > 0

    def _is_due(self, every: int) -> bool:
        return every > 0 and self.state.step % every == 0

    def _log_training(self, watch: Stopwatch) -> None:
        state, gradient_norm = self.state, self.gradient_norm
        state.seconds += watch.seconds
        state.train_loss = sum(state.losses) / len(state.losses)
        state.losses.clear()
        reading = watch.read()
        values = {
            "loss": state.train_loss,
            "learning_rate": self.optimizer.param_groups[-1]["lr"],
            "grad_norm": gradient_norm if math.isfinite(gradient_norm) else str(gradient_norm),
            "tokens_seen": state.tokens_seen,
            **reading,
            **self._speed(reading["tokens_per_second"] * self.flops_per_token),
        }
        self.log.record(state.step, values)
        self.log.warn_of_starvation(watch)

    def _speed(self, flops: float) -> dict[str, float]:
        """Model FLOP/s of all processes together, and what share it is of their products of plain matrices."""
        return {
            "model_flops_per_second": flops,
            "model_flops_share": flops / (self.peak_flops * self.accelerator.num_processes),
        }

    def evaluate(self) -> None:
        """Masked-LM loss and accuracy on the validation splits, the same masks each time.

        Of several corpora, the figures are the means of each one's own, weighted by their shares in training.
        """
        figures = {name: self._evaluate_split(split) for name, split in self.corpora.validation.items()}
        if not figures:
            return
        metrics = next(iter(figures.values()))
        if len(self.corpora.names) > 1:
            metrics = mix_figures(figures, {name: self.corpora.share_of(name) for name in figures})
        self.state.evaluation = {"step": self.state.step, **metrics}
        self.log.record(self.state.step, metrics)
        if self.accelerator.is_main_process:
            self._examine()

    def _evaluate_split(self, split: Corpus) -> dict[str, float]:
        arguments = self.arguments
        batches = validation_batches(
            split,
            max_seq_length=arguments.max_seq_length,
            batch_size=arguments.per_device_eval_batch_size,
            masking=make_masking(arguments, rate=arguments.eval_mlm_probability),
            seed=arguments.seed,
        )
        return evaluate_masked_lm(
            self.model, batches, accelerator=self.accelerator, max_batches=arguments.max_eval_batches
        )

    def _examine(self) -> None:
        """Say, once for each, what is likely wrong with the run."""
        arguments, state = self.arguments, self.state
        if self.survey is None:
            self.survey = doctor.survey(
                self.corpora.corpora, shares=self.corpora.shares, unk_token_id=self.tokenizer.unk_token_id
            )
        eval_loss = state.evaluation["eval_loss"]
        max_steps, warmup_steps = self.phases[-1].last_step, self.phases[0].arguments.warmup_steps
        findings = {
            "plateau": doctor.plateau(
                loss=eval_loss,
                entropy=self.survey.unigram_entropy,
                step=state.step,
                max_steps=max_steps,
                warmup_steps=warmup_steps,
                gradient_norm=self.gradient_norm,
                most_norm=arguments.max_grad_norm,
            ),
            "repetition": doctor.repetition(
                epochs=self.stream.epochs(state.step - self.phase.first_step),
                train_loss=state.train_loss,
                eval_loss=eval_loss,
                repeated_share=self.survey.repeated_share,
            ),
            "gradients": doctor.gradients(
                skipped_steps=state.skipped_steps,
                step=state.step,
                warmup_steps=warmup_steps,
                precision=self.accelerator.mixed_precision,
            ),
            "unknowns": doctor.unknowns(unknown_share=self.survey.unknown_share),
        }
        for name, finding in findings.items():
            if finding is not None and name not in self._warned:
                self._warned.add(name)
                self.log.say(f"warning: {finding}")

    def save_checkpoint(self) -> None:
        """Commit the model with what resuming needs, as OUTPUT_DIR/checkpoint-STEP."""
        weights = whole_weights(self.core)
        tensors = optimizer_state(self.optimizer.optimizer)
        scaler = self.accelerator.scaler
        state = dataclasses.replace(
            self.state,
            arguments=self.arguments.decisive(),
            corpus_fingerprint=self.corpora.fingerprint,
            phase=self.phase.index,
            first_step=self.phase.first_step,
            threads=torch.get_num_threads(),
            world_size=self.accelerator.num_processes,
            precision=self.accelerator.mixed_precision,
            scaler=None if scaler is None else scaler.state_dict(),
        )

        def write(directory: Path) -> None:
            self._write_model(directory, weights)
            write_training_state(directory, state, tensors)
            if self.write_card is not None:
                self.write_card(directory, self._facts())

        if self.accelerator.is_main_process:
            commit_checkpoint(self.output_dir, self.state.step, write, keep=self.arguments.save_total_limit)
        self.accelerator.wait_for_everyone()

    def _stop(self, stop: StopRequest) -> dict[str, Any]:
        self.save_checkpoint()
        self.log.say(f"stopped at step {self.state.step}; --resume_from_checkpoint latest goes on from there")
        # A process that heard nothing itself stops because another did.
        return {"stopped_by": stop.signal_number or 15, "step": self.state.step}

    def _finish(self) -> dict[str, Any]:
        """The last checkpoint and evaluation, then the model itself, its curve, card and results."""
        self._close_phase()
        weights = whole_weights(self.core)
        results = self._results()
        if self.accelerator.is_main_process:
            with whole_files(self.output_dir) as directory:
                self._write_model(directory, weights)
            try:
                draw_loss_curve(self.output_dir / LOG_NAME, self.output_dir / CURVE_NAME)
            except ImportError as error:
                self.log.say(str(error))
            if self.write_card is not None:
                self.write_card(self.output_dir, self._facts())
            write_text(self.output_dir / RESULTS_NAME, json.dumps(results, indent=2) + "\n")
        self.accelerator.wait_for_everyone()
        return results

    def close(self) -> None:
        """Stop the loader, the bar and the trackers."""
        self.loader.close()
        self.log.close()
        self.accelerator.end_training()

    @property
    def num_parameters(self) -> int:
        """All weights, each counted once."""
        return sum(parameter.numel() for parameter in self.core.parameters())

    def plan(self) -> list[str]:
        """What the run is going to do, in a few lines for a person."""
        arguments, processes = self.arguments, self.accelerator.num_processes
        micro_batches = arguments.micro_batches(processes)
        phase, corpora = self.phase, self.corpora
        rows = arguments.global_batch_size // (processes * micro_batches)
        smallest = arguments.batch_size.smallest * arguments.max_seq_length
        rising = f", rising from {smallest:,} over {arguments.batch_warmup_steps:,}"
        of_all = f" of {self.phases[-1].last_step:,}" if len(self.phases) > 1 else ""
        lines = [
            f"model: {self.num_parameters:,} parameters, {self.core.config.num_hidden_layers} layers of "
            f"{self.core.config.hidden_size}, vocabulary {self.core.config.vocab_size:,}",
            f"corpus: {corpora.num_tokens:,} tokens in {corpora.num_documents:,} documents, "
            f"{self.stream.rows_per_epoch:,} rows of {arguments.max_seq_length}",
            f"steps: {phase.num_steps:,}{of_all} of {arguments.tokens_per_step:,} tokens"
            f"{rising if arguments.batch_warmup_steps else ''}, {self.stream.epochs(phase.num_steps):.2f} epochs; "
            f"{processes} process(es) x {micro_batches} micro-batch(es) x {rows} row(s)",
            f"{arguments.optimizer}, {arguments.warmup_steps:,} steps of warm-up, {arguments.lr_scheduler_type}; "
            f"precision {self.accelerator.mixed_precision} on {self.accelerator.device.type}",
        ]
        if len(corpora.names) > 1:
            shares = zip(corpora.names, corpora.shares, strict=True)
            lines[2:2] = ["rows from " + ", ".join(f"{name} {share:.1%}" for name, share in shares)]
        if len(self.phases) > 1:
            lines[:0] = [f"phase {phase.index + 1} of {len(self.phases)}"]
        return [*lines, f"resumed at step {self.state.step}"] if self.state.step > phase.first_step else lines

    def _find_checkpoint(self) -> Path | None:
        """Where to resume, after a look at the output folder; for the main process only."""
        arguments = self.phases[0].arguments
        wanted = arguments.resume_from_checkpoint
        check_output_dir(
            self.output_dir,
            overwrite=arguments.overwrite_output_dir or wanted is not None,
            written=RUN_FILES if arguments.overwrite_output_dir else (),
            inputs=[(name, getattr(arguments, name)) for name in ("resume_from_checkpoint", "model_name_or_path")],
            way_out="continue with --resume_from_checkpoint latest, or delete that run with --overwrite_output_dir",
        )
        if arguments.overwrite_output_dir:
            remove_written(self.output_dir, RUN_FILES)
        if wanted is None or wanted == "latest":
            checkpoint = newest_valid(self.output_dir) if wanted else None
        else:
            checkpoint = Path(wanted)
            if damage := find_damage(checkpoint):
                raise UserError(f"resume_from_checkpoint={wanted!r} is no whole checkpoint: {damage}")
        state_step = 0 if checkpoint is None else read_training_state(checkpoint)[0].step
        clear_way(self.output_dir, step=state_step)
        with disk_errors(self.output_dir):
            self.output_dir.mkdir(parents=True, exist_ok=True)
        return checkpoint

    def _check_resume(self, checkpoint: Path) -> int:
        """Refuse to go on with another corpus, stream or model; say aloud what else has changed.

        Returns:
            The phase to go on in: that of the checkpoint or, at its end, the next.
        """
        step, last = self.state.step, self.phases[-1]
        if step > last.last_step:
            raise UserError(f"{checkpoint} is at step {step}, beyond max_steps={last.last_step}")
        phase = next(phase for phase in self.phases if step <= phase.last_step)
        corpora, config = self.mixtures[phase.index], self.configs[phase.index]
        forbidden, said = phase.arguments.changes_since(self.state.arguments)
        if (self.state.phase, self.state.first_step) != (phase.index, phase.first_step):
            forbidden.append(
                f"step {step} in phase {self.state.phase + 1} from step {self.state.first_step} there, in phase "
                f"{phase.index + 1} from step {phase.first_step} here"
            )
        if self.state.corpus_fingerprint != corpora.fingerprint:
            there, here = (
                " + ".join(f"{one[:12]}…" for one in fingerprint.split("+"))
                for fingerprint in (self.state.corpus_fingerprint, corpora.fingerprint)
            )
            forbidden.append(f"corpus fingerprint {there} there, {here} here")
        saved = load_configuration(str(checkpoint))
        for name in ClozeBertConfig.__annotations__:
            before, now_here = getattr(saved, name), getattr(config, name)
            if before != now_here:
                forbidden.append(f"{name}={before!r} there, {name}={now_here!r} here")
        if forbidden:
            raise UserError(
                f"cannot resume from {checkpoint}, which belongs to another run: {'; '.join(forbidden)}; restore these "
                f"values, or begin a new run from these weights with --model_name_or_path {checkpoint}"
            )
        now = {
            "threads": torch.get_num_threads(),
            "world_size": self.accelerator.num_processes,
            "precision": self.accelerator.mixed_precision,
        }
        for name, value in now.items():
            if (was := getattr(self.state, name)) != value:
                said.append(f"{name}={was} there, {value} here (close, but not the same bits)")
        if said and self.accelerator.is_main_process:
            logger.warning("resuming with changed settings: %s", "; ".join(said))
        return phase.index + (step == phase.last_step and phase is not last)

    def _on_main(self, action: Callable[[], Any]) -> Any:
        """The result of `action` on the main process, in all processes; its error ends them all."""
        result: list[Any] = [None, None]
        failure: Exception | None = None  # with its traceback, which a broadcast loses
        if self.accelerator.is_main_process:
            try:
                result[0] = action()
            except Exception as caught:  # whatever it is, the other processes must not wait for a result
                failure = caught
                known = isinstance(caught, UserError)
                result[1] = caught if known else RuntimeError(f"the main process failed: {caught}")
        if self.accelerator.num_processes > 1:
            result = broadcast_object_list(result)
        if (error := failure or result[1]) is not None:
            raise error
        return result[0]

    def _write_model(self, directory: Path, weights: dict[str, torch.Tensor] | None) -> None:
        with _without_progress_bars():
            self.core.save_pretrained(directory, state_dict=weights)
        self.tokenizer.save_pretrained(directory)

    def _results(self) -> dict[str, Any]:
        evaluation = {key: value for key, value in self.state.evaluation.items() if key != "step"}
        speed = self.state.tokens_seen / max(self.state.seconds, 1e-9)
        return {
            "step": self.state.step,
            "train_loss": self.state.train_loss,
            **evaluation,
            "tokens_seen": self.state.tokens_seen,
            "train_runtime": self.state.seconds,
            "tokens_per_second": speed,
            **self._speed(self.state.model_flops / max(self.state.seconds, 1e-9)),
            "skipped_steps": self.state.skipped_steps,
            "parameters": self.num_parameters,
        }

    def _facts(self) -> dict[str, Any]:
        """What the model card can say about this run."""
        import accelerate
        import transformers

        evaluation = self.state.evaluation
        return {
            "name": self.output_dir.resolve().name,
            "corpus": self._by_phase([mixture.facts() for mixture in self.mixtures]),
            "hyperparameters": self._by_phase([_card_values(phase.arguments) for phase in self.phases]),
            "recipe": self.recipe,
            "base_model": _hub_name(self.phases[0].arguments.model_name_or_path),
            "steps": self.state.step,
            "tokens": self.state.tokens_seen,
            "seconds": self.state.seconds,
            "validation_loss": evaluation.get("eval_loss"),
            "metrics": {"masked-LM accuracy": evaluation["eval_accuracy"]} if evaluation else {},
            "curve": CURVE_NAME,
            "versions": {
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "accelerate": accelerate.__version__,
            },
        }

    def _by_phase(self, facts: list[dict[str, Any]]) -> dict[str, Any]:
        """The first phase's facts, and what is different in each later one that the run has come to."""
        shown = dict(facts[0])
        for number in range(1, self.phase.index + 1):
            before, here = facts[number - 1], facts[number]
            changed = {key: value for key, value in here.items() if before.get(key) != value}
            if changed:
                shown[f"phase {number + 1}"] = changed
        return shown


def _card_values(arguments: PretrainingArguments) -> dict[str, Any]:
    return {name: value for name, value in arguments.decisive().items() if value != []}


def _hub_name(name_or_path: str | None) -> str | None:
    """The repository that a continued pretraining began from; a local folder is nobody else's business."""
    return None if name_or_path is None or Path(name_or_path).exists() else name_or_path


def accumulate_gradient(
    model: torch.nn.Module, batches: list[ModelInputs], *, num_predicted: int, accelerator: Any
) -> torch.Tensor:
    """Forward and backward of one process' micro-batches.

    Returns:
        This process' part of the loss, a scalar: the sum over its predicted tokens / `num_predicted`. The parts of all
        processes add up to the loss of the step.
    """
    device = accelerator.device
    # A tensor, not a number: it differs from step to step, and compiled code would be specialised on it.
    items = torch.tensor(float(num_predicted), device=device)
    total = torch.zeros((), device=device)
    for index, batch in enumerate(batches):
        is_last = index == len(batches) - 1
        with contextlib.nullcontext() if is_last else accelerator.no_sync(model):
            loss = model(**to_device(batch, device), num_items_in_batch=items).loss
            # DDP and FSDP take the mean of the processes' gradients; the loss is their sum.
            accelerator.backward(loss * accelerator.num_processes)
        total = total + loss.detach()
    return total


def _flops_per_token(
    config: ClozeBertConfig, arguments: PretrainingArguments, corpora: Mixture, *, on_cpu: bool
) -> float:
    """FLOPs of a training step for each token, forward and backward; what is recomputed is not counted."""
    length, tokens = mean_attention_length(corpora, max_seq_length=arguments.max_seq_length), 1_000_000
    predicted = arguments.mean_mlm_probability
    return 3 * forward_flops(config, tokens=tokens, length=length, predicted=predicted, on_cpu=on_cpu) / tokens


def make_masking(arguments: PretrainingArguments, *, rate: float) -> Masking:
    """The masking that the arguments describe, with a `rate` for training or for validation."""
    return Masking(
        rate=rate, mask_share=arguments.mask_share, random_share=arguments.random_share, unit=arguments.masking_unit
    )


def make_model(config: ClozeBertConfig, weights: str | os.PathLike | None) -> ClozeBertForMaskedLM:
    """A model with random weights, or with those of a folder or Hub repository, in float32."""
    if weights is None:
        return ClozeBertForMaskedLM(config)
    with _without_progress_bars():
        return ClozeBertForMaskedLM.from_pretrained(weights, config=config, dtype=torch.float32, use_safetensors=True)


def load_configuration(name_or_path: str) -> ClozeBertConfig:
    """The configuration of a ClozeBERT model.

    Raises:
        ValueError: it is a model of another kind.
    """
    check_model_folder(name_or_path)
    with as_user_errors(Exception, about=f"model_name_or_path={name_or_path!r}"):
        config = AutoConfig.from_pretrained(name_or_path, trust_remote_code=False)
    if config.model_type != "clozebert":
        raise UserError(
            f"model_name_or_path={name_or_path!r} is a {config.model_type} model: convert it first (clozebert convert)"
        )
    return config


def check_fit(
    arguments: PretrainingArguments,
    config: ClozeBertConfig,
    corpora: Sequence[Corpus],
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    """Refuse corpora, a tokenizer and a model that do not belong together.

    Raises:
        ValueError: names what does not fit, and the way out.
    """
    if len(tokenizer) > config.vocab_size:
        raise UserError(
            f"the tokenizer has {len(tokenizer)} tokens, more than the model's vocab_size={config.vocab_size}: give "
            f"--vocab_size {-(-len(tokenizer) // 64) * 64}"
        )
    for corpus in corpora:
        check_tokenizer(corpus, tokenizer)
    if config.image_size is not None:
        raise UserError(f"image_size={config.image_size}: masked-language modelling needs a text model")
    if arguments.max_seq_length > config.max_position_embeddings:
        raise UserError(
            f"max_seq_length={arguments.max_seq_length} exceeds the model's "
            f"max_position_embeddings={config.max_position_embeddings}"
        )
    # Sizes that do not divide one another show when the model is built; here it costs nothing.
    with torch.device("meta"), as_user_errors():
        ClozeBertForMaskedLM(config)


def check_same_weights(configs: list[ClozeBertConfig]) -> None:
    """Refuse phases whose models have other weights than the first one's.

    Raises:
        ValueError: names the weight.
    """

    def shapes(config: ClozeBertConfig) -> dict[str, tuple[int, ...]]:
        with torch.device("meta"), as_user_errors():
            return {name: tuple(value.shape) for name, value in ClozeBertForMaskedLM(config).named_parameters()}

    expected = shapes(configs[0])
    for number, config in enumerate(configs[1:]):
        found = shapes(config)
        differing = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
        if differing:
            raise UserError(
                f"phases[{number}] changes the shape of {differing[0]}: a phase goes on with the weights that there "
                f"are; under model it may change rope_parameters, max_position_embeddings where there is rope, dropout"
            )


def mix_figures(figures: dict[str, dict[str, float]], shares: dict[str, float]) -> dict[str, float]:
    """The validation figures of a mixture: each corpus' own loss, and the means weighted by the shares."""
    total = sum(shares.values())

    def mean(name: str) -> float:
        return sum(shares[corpus] / total * values[name] for corpus, values in figures.items())

    return {
        "eval_loss": mean("eval_loss"),
        "eval_perplexity": math.exp(min(700.0, mean("eval_loss"))),
        "eval_accuracy": mean("eval_accuracy"),
        "eval_predicted_tokens": sum(int(values["eval_predicted_tokens"]) for values in figures.values()),
        **{f"eval_loss_{corpus}": values["eval_loss"] for corpus, values in figures.items()},
    }


def check_tokenizer(corpus: Corpus, tokenizer: PreTrainedTokenizerFast) -> None:
    """Refuse a tokenizer other than the one that the corpus was prepared with."""
    theirs, ours = corpus.manifest["tokenizer"], tokenizer_facts(tokenizer)
    differing = [name for name, value in ours.items() if theirs.get(name) != value]
    if differing:
        raise UserError(
            f"the corpus {corpus.directory} was tokenized with another tokenizer ({', '.join(differing)} differ): "
            f"prepare it again with this one, or name the one it was prepared with"
        )


def check_same_tokens(config: ClozeBertConfig, tokenizer: PreTrainedTokenizerFast, *, name_or_path: str) -> None:
    """Refuse to go on from a model whose special tokens show that it learned with another tokenizer."""
    for name in ("pad_token_id", "cls_token_id", "sep_token_id", "mask_token_id"):
        theirs, ours = getattr(config, name), getattr(tokenizer, name)
        if theirs is not None and theirs != ours:
            raise UserError(
                f"model_name_or_path={name_or_path!r} has {name}={theirs}, the tokenizer {ours}: its embeddings "
                f"belong to another one; name its own as tokenizer_name, and prepare the corpus with it"
            )


def set_token_ids(config: ClozeBertConfig, tokenizer: PreTrainedTokenizerFast) -> None:
    """The special tokens of the configuration are the tokenizer's, whatever the architecture said before."""
    had_ends = config.bos_token_id is not None
    # RoBERTa's positions begin in the row after the padding id's, and only so does it export as one.
    follows_padding = config.position_offset == (config.pad_token_id or 0) + 1
    for name in ("pad_token_id", "cls_token_id", "sep_token_id", "mask_token_id", "bos_token_id", "eos_token_id"):
        setattr(config, name, getattr(tokenizer, name))
    if had_ends and config.bos_token_id is None:
        config.bos_token_id, config.eos_token_id = tokenizer.cls_token_id, tokenizer.sep_token_id
    if config.position_rule == "non_pad" and follows_padding:
        config.position_offset = tokenizer.pad_token_id + 1


@contextlib.contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Keep transformers' bars for reading and writing shards out of the run's own."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _dry_phase(phase: Phase, accelerator: Any) -> Phase:
    """A phase in a dry run: two steps, in each of which a process takes a single micro-batch, on a CPU of one row."""
    arguments = phase.arguments
    rows = 1 if accelerator.device.type == "cpu" else arguments.per_device_train_batch_size
    rows = min(rows, arguments.global_batch_size)
    return dataclasses.replace(
        phase,
        first_step=_DRY_STEPS * phase.index,
        num_steps=_DRY_STEPS,
        arguments=dataclasses.replace(
            arguments,
            global_batch_size=rows * accelerator.num_processes,
            initial_global_batch_size=None,
            batch_warmup_steps=0,
            per_device_train_batch_size=rows,
        ),
    )


def _check_trackers(names: list[str]) -> None:
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"report_to={name!r} needs a package that is not installed: pip install {name}")
