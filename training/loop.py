"""Pretraining by masked-language modelling: the loop."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..configuration import ClozeBertConfig
from ..utils.device import measure_matmul_flops
from ..utils.errors import UserError
from ..utils.files import WriteCard
from .arguments import Phase, PretrainingArguments
from .calibration import choose_length, length_as_begun, seconds_per_token
from .checkpoints import TrainingState, list_checkpoints, read_training_state
from .checks import check_run
from .doctor import Doctor
from .evaluation import evaluate_mixture
from .machine import make_accelerator, make_deterministic, seed_step
from .optimizers import optimizer_state, whole_weights
from .phase_setup import PhaseSetup, set_up_phase
from .prefetch import ModelInputs
from .processes import on_main_process, sum_over_processes
from .progress import LOG_NAME, RunLog, Stopwatch
from .reporting import epochs_of, facts_of_run, plan_lines, results_of, speed, tracker_settings
from .resume import check_resume, find_checkpoint
from .run_length import hours_lines, length_lines
from .saving import OutputFolder
from .signals import StopError, StopRequest
from .step import accumulate_gradient, update_weights

# One gradient that is not finite may be an accident of the data or the hardware; so many in a row are a diverged run.
MOST_SKIPS_IN_A_ROW = 10
_DRY_STEPS = 2
# The share of the plain matrix product's speed that training usually reaches. A run that would be shorter than this by
# it is not timed beforehand.
_USUAL_SHARE, _SHORT_HOURS = 0.4, 1 / 60


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
    """A run that is set up, at the step where it begins or goes on.

    Attributes:
        run: its parts by phase.
        setup: the current phase with its model, optimizer and batches.
        state: what a checkpoint keeps beside weights and optimizer.
        gradient_norm: of the last step.
        peak_flops: FLOP/s of products of plain matrices, of all processes.
    """

    def __init__(
        self,
        arguments: PretrainingArguments,
        config: ClozeBertConfig,
        *,
        write_card: WriteCard | None = None,
        recipe: str | None = None,
    ):
        begun = time.monotonic()
        self.run, self.recipe, self.dry_run = check_run(arguments, config), recipe, arguments.dry_run
        self.output = OutputFolder(Path(arguments.output_dir), tokenizer=self.run.tokenizer, write_card=write_card)
        self.accelerator = make_accelerator(
            mixed_precision=arguments.mixed_precision,
            use_cpu=arguments.use_cpu,
            report_to=[] if arguments.dry_run else arguments.report_to,
            output_dir=arguments.output_dir,
        )
        if arguments.full_determinism:
            make_deterministic()
        processes = self.accelerator.num_processes
        for phase in self.run.phases:
            phase.arguments.micro_batches(processes)  # raises where they do not fit
        matmul_flops = measure_matmul_flops(self.accelerator.device, self.accelerator.mixed_precision)
        self.peak_flops = matmul_flops * processes
        self.gradient_norm = 0.0
        self._begin(begun=begun)

    def _begin(self, *, begun: float) -> None:
        """Find the step to begin at and how long the run is, then set up its phase."""
        arguments = self.run.given
        checkpoint, tensors, index = None, None, 0
        self.state = TrainingState(step=0)
        if not self.dry_run:
            checkpoint = on_main_process(self.accelerator, lambda: find_checkpoint(arguments))
        if checkpoint is not None:
            self.state, tensors = read_training_state(checkpoint)
        said = ""
        if self.state.step and arguments.max_steps is None and arguments.num_train_epochs is None:
            self.run.phases = length_as_begun(self.run.phases[0].arguments, self.state).split_phases()
            said = f"{self.run.last_step:,} steps, as when the run began"
        elif arguments.max_minutes is not None:
            fitting, said = choose_length(
                self.run.phases[0].arguments,
                self.run.configs[0],
                self.run.mixtures[0],
                given=arguments,
                accelerator=self.accelerator,
                begun=begun,
            )
            self.run.phases = fitting.split_phases()
        if checkpoint is not None:
            index = check_resume(checkpoint, self.state, self.run, accelerator=self.accelerator)
        self.planned = self.run.phases
        if self.dry_run:
            self.run.phases = [_dry_phase(phase, self.accelerator) for phase in self.run.phases]
        self.log = self._open_log(arguments)
        self.doctor = Doctor(
            max_steps=self.run.last_step,
            warmup_steps=int(self.run.phases[0].arguments.warmup_steps),
            precision=self.accelerator.mixed_precision,
            unk_token_id=self.run.tokenizer.unk_token_id,
        )
        if said:
            self.log.say(said)
        self._enter(index, checkpoint or arguments.model_name_or_path, tensors)

    def _open_log(self, arguments: PretrainingArguments) -> RunLog:
        if arguments.report_to and not self.dry_run:
            self.accelerator.init_trackers("clozebert", config=tracker_settings(arguments))
        is_main = self.accelerator.is_main_process
        return RunLog(
            self.output.path / LOG_NAME if is_main and not self.dry_run else None,
            accelerator=self.accelerator,
            step=self.state.step,
            max_steps=self.run.last_step,
            visible=is_main,
            bar=not arguments.disable_tqdm,
        )

    def _enter(self, index: int, weights: Any, tensors: dict[str, torch.Tensor] | None) -> None:
        """Set up a phase with the weights and the optimizer's state that came before, and say what it will do."""
        self.setup: PhaseSetup = set_up_phase(
            self.run.phases[index],
            self.run.mixtures[index],
            self.run.configs[index],
            accelerator=self.accelerator,
            state=self.state,
            weights=weights,
            tensors=tensors,
        )
        for line in plan_lines(self.setup, self.planned, index, step=self.state.step, accelerator=self.accelerator):
            self.log.say(line)
        if index == 0:
            self._say_what_to_expect()

    def _say_what_to_expect(self) -> None:
        """Epochs, hours, and what is likely to come of them; a warning where they are too many."""
        setup, planned = self.setup, self.planned
        arguments, tokens = planned[0].arguments, setup.corpora.num_tokens
        if self.state.step == 0:
            for line in length_lines(
                arguments, epochs=epochs_of(setup, planned[0]), tokens=tokens, given=self.run.given
            ):
                self.log.say(line)
        for line in self._hours():
            self.log.say(line)

    def _hours(self) -> list[str]:
        """The estimated duration of what is left of the run."""
        setup, state, processes = self.setup, self.state, self.accelerator.num_processes
        sizes = [(phase, phase.arguments.max_seq_length) for phase in self.planned]
        tokens = sum(phase.arguments.batch_size.before(phase.num_steps) * length for phase, length in sizes)
        on_cpu = self.accelerator.device.type == "cpu"
        if state.step and state.seconds:
            left = (tokens - state.tokens_seen) * state.seconds / max(1, state.tokens_seen)
            return hours_lines(left / 3600, on_cpu=on_cpu, how="for what is left, at the speed so far")
        by_formula = tokens * setup.flops_per_token / (_USUAL_SHARE * self.peak_flops) / 3600
        if by_formula < _SHORT_HOURS and not self.dry_run:
            return hours_lines(by_formula, on_cpu=on_cpu, how="from its FLOPs")
        measured = seconds_per_token(setup, accelerator=self.accelerator) / processes
        return hours_lines(tokens * measured / 3600, on_cpu=on_cpu, how="a training step was timed")

    def train(self, stop: StopRequest) -> dict[str, Any]:
        """All steps that are left, with their logging, evaluation and checkpoints; then the finished model."""
        while True:
            if self._train_phase(stop):
                return self._stop(stop)
            if self.setup.phase is self.run.phases[-1]:
                break
            self._next_phase()
        return {"dry_run": True, "parameters": self.setup.num_parameters} if self.dry_run else self._finish()

    def _train_phase(self, stop: StopRequest) -> bool:
        """The steps that are left of the phase; whether a signal ended it early."""
        setup, state, accelerator, watch = self.setup, self.state, self.accelerator, Stopwatch()
        phase, arguments = setup.phase, setup.arguments
        while state.step < phase.last_step:
            watch.begin()
            batches, num_predicted = next(setup.loader)
            watch.got_batch()

            setup.optimizer.optimizer.set_learning_rate(arguments.learning_rate_factor(state.step - phase.first_step))
            seed_step(arguments.seed, state.step, accelerator.process_index)
            part = accumulate_gradient(
                setup.model,
                batches,
                num_predicted=num_predicted,
                accelerator=accelerator,
                # Several processes have to agree first, after the step.
                stop=stop if accelerator.num_processes == 1 and not self.dry_run else False,
            )
            if part is None:
                setup.optimizer.zero_grad()
                return True
            self.gradient_norm = update_weights(
                setup.model, setup.optimizer, max_grad_norm=arguments.max_grad_norm, accelerator=accelerator
            )
            self._count_skips()
            loss, tokens, stopping = self._agree(part, batches, stop)

            state.step += 1
            state.tokens_seen += tokens
            state.model_flops += tokens * setup.flops_per_token
            state.losses.append(loss)
            watch.end(tokens)
            self.log.advance()
            if self._is_due(arguments.logging_steps) or state.step == phase.last_step:
                self._log_training(watch)
            if self.dry_run:
                continue
            if stopping:
                return True
            if self._is_due(arguments.eval_steps):
                try:
                    # Several processes have to agree first, after a step.
                    self.evaluate(stop.check if accelerator.num_processes == 1 else None)
                except StopError:
                    return True
            if self._is_due(arguments.save_steps):
                self.save_checkpoint()
        return False

    def _count_skips(self) -> None:
        """Note whether the step was left out because its gradient is not finite; so many in a row end the run."""
        state, norm = self.state, self.gradient_norm
        if math.isfinite(norm):
            state.consecutive_skips = 0
            return
        state.skipped_steps += 1
        state.consecutive_skips += 1
        self.log.record(state.step + 1, {"event": "skipped: the gradient is not finite", "grad_norm": str(norm)})
        if state.consecutive_skips == MOST_SKIPS_IN_A_ROW:
            raise UserError(
                f"the gradient was not finite in {MOST_SKIPS_IN_A_ROW} steps in a row, up to step {state.step + 1}: "
                f"the run has diverged; resume from the last checkpoint with a lower learning_rate "
                f"(now {self.setup.arguments.learning_rate}) or a longer warm-up"
            )

    def _agree(self, part: torch.Tensor, batches: list[ModelInputs], stop: StopRequest) -> tuple[float, int, bool]:
        """The loss and the tokens of the global batch, and whether any process was asked to stop."""
        tokens = sum(batch["input_ids"].numel() for batch in batches)
        mine = torch.tensor([part.item(), tokens, bool(stop)], dtype=torch.float64)
        total_loss, total_tokens, stopping = sum_over_processes(mine, self.accelerator).tolist()
        return total_loss, int(total_tokens), stopping > 0

    def _is_due(self, every: int) -> bool:
        return every > 0 and self.state.step % every == 0

    def _log_training(self, watch: Stopwatch) -> None:
        state, norm = self.state, self.gradient_norm
        state.seconds += watch.seconds
        state.train_loss = sum(state.losses) / len(state.losses)
        state.losses.clear()
        reading = watch.read()
        values = {
            "loss": state.train_loss,
            "learning_rate": self.setup.optimizer.param_groups[-1]["lr"],
            "grad_norm": norm if math.isfinite(norm) else str(norm),
            "tokens_seen": state.tokens_seen,
            **reading,
            **speed(reading["tokens_per_second"] * self.setup.flops_per_token, peak=self.peak_flops),
        }
        self.log.record(state.step, values)
        self.log.warn_of_starvation(watch)

    def evaluate(self, report: Callable[[int], object] | None = None) -> None:
        """Log the loss and accuracy on the validation splits, and what is likely wrong with the run.

        Args:
            report: called after each batch.
        """
        state, setup = self.state, self.setup
        metrics = evaluate_mixture(
            setup.model, setup.corpora, setup.arguments, accelerator=self.accelerator, report=report
        )
        if not metrics:
            return
        state.evaluation = {"step": state.step, **metrics}
        self.log.record(state.step, metrics)
        if self.accelerator.is_main_process:
            findings = self.doctor.examine(
                state,
                arguments=setup.arguments,
                corpora=setup.corpora,
                epochs=setup.stream.epochs(state.step - setup.phase.first_step),
                gradient_norm=self.gradient_norm,
            )
            for finding in findings:
                self.log.say(f"warning: {finding}")

    def save_checkpoint(self) -> None:
        """Commit the model with what resuming needs, as OUTPUT_DIR/checkpoint-STEP."""
        setup, accelerator = self.setup, self.accelerator
        weights, tensors = whole_weights(setup.core), optimizer_state(setup.optimizer.optimizer)
        if accelerator.is_main_process:
            state = dataclasses.replace(
                self.state,
                arguments=setup.arguments.decisive(),
                corpus_fingerprint=setup.corpora.fingerprint,
                phase=setup.phase.index,
                first_step=setup.phase.first_step,
                threads=torch.get_num_threads(),
                world_size=accelerator.num_processes,
                precision=accelerator.mixed_precision,
                scaler=None if accelerator.scaler is None else accelerator.scaler.state_dict(),
            )
            keep = setup.arguments.save_total_limit
            self.output.save_checkpoint(
                setup.core, weights, state=state, tensors=tensors, facts=self._facts(), keep=keep
            )
        accelerator.wait_for_everyone()

    def _next_phase(self) -> None:
        """Close the phase with a checkpoint and begin the next one from it, as a run that is resumed there does."""
        checkpoint: Path | None = None
        tensors: dict[str, torch.Tensor] | None = None
        if not self.dry_run:
            checkpoint = self._close_phase()
            _, tensors = read_training_state(checkpoint)
        index = self.setup.phase.index + 1
        self.setup.loader.close()
        del self.setup  # its model and optimizer, before the next ones take their memory
        self.accelerator.free_memory()
        self._enter(index, checkpoint, tensors)

    def _close_phase(self) -> Path:
        """The evaluation and the checkpoint that every phase ends with."""
        if self.state.evaluation.get("step") != self.state.step:
            self.evaluate()
        path = self.output.path / f"checkpoint-{self.state.step}"
        if path not in list_checkpoints(self.output.path):
            self.save_checkpoint()
        return path

    def _stop(self, stop: StopRequest) -> dict[str, Any]:
        self.log.say(f"saving a checkpoint of step {self.state.step:,} …")
        self.save_checkpoint()
        self.log.say(f"stopped at step {self.state.step}; --resume_from_checkpoint latest goes on from there")
        # A process that heard nothing itself stops because another did.
        return {"stopped_by": stop.signal_number or 15, "step": self.state.step}

    def _finish(self) -> dict[str, Any]:
        """The last checkpoint and evaluation, then the model itself, its curve, card and results."""
        self._close_phase()
        weights = whole_weights(self.setup.core)
        results = results_of(self.state, num_parameters=self.setup.num_parameters, peak_flops=self.peak_flops)
        if self.accelerator.is_main_process:
            self.output.save_model(self.setup.core, weights, facts=self._facts(), results=results, say=self.log.say)
        self.accelerator.wait_for_everyone()
        return results

    def _facts(self) -> dict[str, Any]:
        return facts_of_run(
            self.state,
            self.run,
            phase=self.setup.phase.index,
            output_dir=self.output.path,
            recipe=self.recipe,
        )

    def close(self) -> None:
        """Stop the loader, the bar and the trackers."""
        self.setup.loader.close()
        self.log.close()
        self.accelerator.end_training()


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
