"""Pretraining by masked-language modelling: the loop."""

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..configuration import ClozeBertConfig
from ..utils.device import measure_matmul_flops
from ..utils.errors import UserError
from ..utils.files import WriteCard
from ..utils.processes import lost_processes
from ..utils.stop_request import StopRequest
from .arguments import PretrainingArguments
from .batches import load_batches
from .checkpoints.saving import OutputFolder
from .checkpoints.training_state import TrainingState, read_training_state
from .checks import check_processes, check_run
from .evaluation import EvaluationStoppedError, evaluate_mixture
from .optimizers.state import optimizer_state, whole_weights
from .phase_setup import PhaseSetup, dry_phase, set_up_phase, settle_buckets
from .planning.calibration import choose_length
from .planning.expectations import what_to_expect
from .planning.time_budget import Deadline, with_lengths
from .prefetch import ModelInputs
from .reporting.doctor import Doctor
from .reporting.progress import EVALUATION_FAILED, LOG_NAME, RunLog, Stopwatch
from .reporting.run_facts import facts_of_run, kept_length_line, plan_lines, results_of, speed, tracker_settings
from .resume import check_resume, find_checkpoint, remove_earlier_run
from .runtime.machine import choose_compilation, make_accelerator, seed_step
from .runtime.processes import leave, mean_over_processes, on_main_process, sum_over_processes
from .runtime.watchdog import SECONDS_TO_COMPILE, SECONDS_TO_SAVE, Watchdog
from .step import accumulate_gradient, clip_gradient, update_weights

logger = logging.getLogger(__name__)

# One gradient that is not finite may be an accident of the data or the hardware. This many in a row mean divergence.
MOST_SKIPS_IN_A_ROW = 10


class Pretraining:
    """A run that is set up, at the step where it begins or resumes.

    Attributes:
        run: its parts by phase.
        setup: the current phase with its model, optimizer and batches.
        state: what a checkpoint keeps beside weights and optimizer.
        gradient_norm: of the last step.
        peak_flops: FLOP/s of plain matmuls, of all processes.
        goes_on_by: what resumes a stopped run, for messages.
    """

    def __init__(
        self,
        arguments: PretrainingArguments,
        config: ClozeBertConfig,
        *,
        write_card: WriteCard | None = None,
        recipe: str | None = None,
        goes_on_by: str = "--resume_from_checkpoint latest",
    ):
        begun = time.monotonic()
        self.run, self.recipe, self.dry_run = check_run(arguments, config), recipe, arguments.dry_run
        self.goes_on_by = goes_on_by
        self.output = OutputFolder(
            Path(arguments.output_dir), tokenizer=self.run.tokenizer, length=self.run.longest_row, write_card=write_card
        )
        self.accelerator = make_accelerator(
            mixed_precision=arguments.mixed_precision,
            use_cpu=arguments.use_cpu,
            report_to=[] if arguments.dry_run else arguments.report_to,
            output_dir=arguments.output_dir,
            timeout=arguments.ddp_timeout,
        )
        matmul_flops = measure_matmul_flops(self.accelerator.device, self.accelerator.mixed_precision)
        self.peak_flops = matmul_flops * self.accelerator.num_processes
        self.gradient_norm = 0.0
        try:
            with lost_processes(goes_on_by=goes_on_by):
                check_processes(self.run, self.accelerator)
                self._begin(begun=begun)
        except BaseException:
            self.close()
            raise

    def _begin(self, *, begun: float) -> None:
        """Find the step to begin at and how long the run is, then set up its phase."""
        arguments = self.run.given
        self.state, checkpoint, tensors = TrainingState(step=0), None, None
        if not self.dry_run:
            checkpoint = on_main_process(self.accelerator, lambda: find_checkpoint(arguments, take=self.output.take))
        if checkpoint is not None:
            self.state, tensors = read_training_state(checkpoint)
        self._evaluated_at = self.state.evaluation.get("step")  # the last evaluation that was tried
        # A checkpoint in another folder, from which the run branches off, is not one of this run.
        is_own = checkpoint is not None and checkpoint.resolve().parent == self.output.path.resolve()
        self._saved_at, self._save_waits = self.state.step if is_own else None, False
        said = self._settle_length(begun=begun)
        index, changed = 0, ""
        if checkpoint is not None:
            index, changed = check_resume(checkpoint, self.state, self.run, accelerator=self.accelerator)
        self.planned = self.run.phases
        if self.dry_run:
            self.run.phases = [dry_phase(phase, self.accelerator) for phase in self.run.phases]
        self._set_up(index, checkpoint or arguments.model_name_or_path, tensors)
        if not self.dry_run:
            on_main_process(self.accelerator, lambda: remove_earlier_run(arguments))
        self.log = self._open_log(arguments)
        if changed:
            self.log.note(self.state.step + 1, changed)
        self.doctor = Doctor(self.run, precision=self.accelerator.mixed_precision)
        for line in said:
            self.log.say(line)
        self._announce(begins=True)

    def _settle_length(self, *, begun: float) -> list[str]:
        """Set the number of steps if no flag does: on resuming, the original one; else what fits into `max_minutes`.

        Returns lines for the user.
        """
        given = self.run.given
        self._seconds_per_place: float | None = None  # of one process, if steps were timed already
        self._deadline: Deadline | None = None  # for a new run only; a resumed one keeps its steps
        by_text = given.max_steps is None and given.num_train_epochs is None
        if self.state.step and (by_text or given.max_minutes is not None):
            self.run.phases = with_lengths(self.run.phases[0].arguments, self.state.arguments).split_phases()
            return [kept_length_line(self.run)]
        if given.max_minutes is None:
            return []
        uncounted = self.run.phases[0].arguments
        chosen = choose_length(self.run, accelerator=self.accelerator, begun=begun)
        self._deadline = Deadline(
            begun + 60 * given.max_minutes,
            uncounted,
            most_steps=uncounted.num_steps if given.max_steps is None else None,
            evaluation=chosen.evaluation_seconds,
        )
        self._seconds_per_place = chosen.seconds_per_place
        self.run.phases = chosen.arguments.split_phases()
        return [chosen.said]

    def _open_log(self, arguments: PretrainingArguments) -> RunLog:
        if arguments.report_to and not self.dry_run:
            # What a killed run logged after its checkpoint is logged again. A run that is overwritten counts from 1.
            again = {"tensorboard": {"purge_step": self.state.step + 1}}
            self.accelerator.init_trackers("clozebert", config=tracker_settings(arguments), init_kwargs=again)
        is_main = self.accelerator.is_main_process
        return RunLog(
            self.output.path / LOG_NAME if is_main and not self.dry_run else None,
            accelerator=self.accelerator,
            step=self.state.step,
            max_steps=self.run.last_step,
            visible=is_main,
            bar=not arguments.disable_tqdm,
            evaluates_again=self._evaluates_first(),
        )

    def _set_up(self, index: int, weights: Any, tensors: dict[str, torch.Tensor] | None) -> None:
        """Set up a phase with the previous weights and optimizer state."""
        self.setup: PhaseSetup = set_up_phase(
            self.run.phases[index],
            self.run.mixtures[index],
            self.run.configs[index],
            accelerator=self.accelerator,
            state=self.state,
            weights=weights,
            tensors=tensors,
        )

    def _announce(self, *, begins: bool = False) -> None:
        """Print what the phase will do and, when the run begins or resumes, how long the run will take."""
        for line in plan_lines(self.setup, self.planned, step=self.state.step, accelerator=self.accelerator):
            self.log.say(line)
        if begins:
            lines = what_to_expect(
                self.setup,
                self.planned,
                self.run.given,
                state=self.state,
                accelerator=self.accelerator,
                peak_flops=self.peak_flops,
                measured=self._seconds_per_place,
            )
            for line in lines:
                self.log.say(line)

    def train(self, stop: StopRequest) -> dict[str, Any]:
        """Run all remaining steps, with logging, checkpoints and evaluation; then save the finished model."""
        several = self.accelerator.num_processes > 1
        self.stop = stop
        self.watchdog = Watchdog(timeout=self.setup.arguments.ddp_timeout, stop=self.stop)
        with self.watchdog.watching() if several else contextlib.nullcontext():
            while not self._train_phase():
                if self.setup.phase is self.run.phases[-1]:
                    return self._finish()
                self._next_phase()
            return self._stop()

    def _train_phase(self) -> bool:
        """Run the remaining steps of the phase and close it. Returns whether a signal ended it early."""
        setup, state, accelerator, watch = self.setup, self.state, self.accelerator, Stopwatch()
        if self._evaluates_first() and self.evaluate():
            return True
        compiles = choose_compilation(setup.arguments.torch_compile, self.accelerator.device)
        self.watchdog.progress(allow=SECONDS_TO_COMPILE if compiles else 0.0)
        if compiles:
            self.log.say("training is compiled: the tokens/s of the first steps may include the time of compilation")
        settle_buckets(setup, accelerator=accelerator)
        while state.step < setup.phase.last_step:
            self._keep_to_time()
            phase, arguments = setup.phase, setup.arguments
            watch.begin()
            batches, num_predicted = next(setup.loader)
            watch.got_batch()

            step = state.step - phase.first_step
            setup.optimizer.optimizer.set_learning_rate(
                arguments.learning_rate_factor(step), muon=arguments.muon_factor(step)
            )
            seed_step(arguments.seed, state.step, accelerator.process_index)
            part = accumulate_gradient(
                setup.model,
                batches,
                num_predicted=num_predicted,
                accelerator=accelerator,
                should_stop=self._should_stop,
            )
            if part is None:
                setup.optimizer.zero_grad()
                return True
            self.gradient_norm = clip_gradient(
                setup.model, max_grad_norm=arguments.max_grad_norm, accelerator=accelerator
            )
            loss, tokens, num_broken, stopping = self._sum_over_processes(part, batches)
            update_weights(setup.optimizer, num_broken=num_broken, accelerator=accelerator)
            self._count_skips(num_broken)

            state.step += 1
            state.tokens_seen += tokens
            state.model_flops += tokens * setup.flops_per_token
            if math.isfinite(loss):  # else one skipped step would make the mean of many NaN
                state.losses.append(loss)
            state.count_seconds(watch.end(tokens), peak_flops=self.peak_flops)
            self.watchdog.progress()
            self.log.advance()
            if self._is_due(arguments.logging_steps) or state.step == phase.last_step:
                self._log_training(watch)
            if stopping or self._save_and_evaluate():
                return True
        return self._close_phase()

    def _keep_to_time(self) -> None:
        """When the learning rate begins to decay, set the number of steps that fit the time, at the pace so far."""
        if self._deadline is None or self.dry_run:
            return
        before = self.setup.phase.num_steps
        fitting = self._deadline.recount(
            self.setup.arguments,
            self.state.step,
            agree=lambda value: mean_over_processes(value, self.accelerator),
        )
        if fitting is None:
            return
        self.run.phases = fitting.split_phases()
        (self.setup.phase,) = self.run.phases
        self.setup.loader.close()
        self.setup.loader = load_batches(
            self.setup.stream,
            self.setup.phase,
            step=self.state.step,
            accelerator=self.accelerator,
            config=self.setup.core.config,
        )
        event = f"max_minutes={fitting.max_minutes:g}: {fitting.num_steps:,} steps, not {before:,}, at the pace so far"
        self.log.record(self.state.step + 1, {"event": event})  # a checkpoint of this step has the length before
        self.log.change_length(fitting.num_steps)

    def _save_and_evaluate(self) -> bool:
        """Save and evaluate if due, saving first so that nothing is lost. Returns whether a signal ended it early.

        While updates are skipped, saving waits: the last update may have ruined the weights.
        """
        self._save_waits |= self._is_due(self.setup.arguments.save_steps)
        if self._save_waits and not self.state.consecutive_skips:
            self.save_checkpoint()
        return self._is_due(self.setup.arguments.eval_steps) and self.evaluate()

    def _evaluates_first(self) -> bool:
        """Whether the run resumes from a step that was due for an evaluation: its checkpoint is saved before that."""
        step, phase = self.state.step, self.setup.phase
        is_due = step == phase.last_step or (step > phase.first_step and self._is_due(phase.arguments.eval_steps))
        return is_due and self._evaluated_at != step

    def _count_skips(self, num_broken: int) -> None:
        """Count steps that are skipped because the gradient is not finite. Too many in a row end the run."""
        state, norm = self.state, self.gradient_norm
        if num_broken == 0:
            state.consecutive_skips = 0
            return
        state.skipped_steps += 1
        state.consecutive_skips += 1
        processes = self.accelerator.num_processes
        where = "" if num_broken == processes else f" in {num_broken} of {processes} processes"
        event = f"skipped: the gradient is not finite{where}"
        self.log.record(state.step + 1, {"event": event, "grad_norm": str(norm)})
        if state.consecutive_skips == MOST_SKIPS_IN_A_ROW:
            raise UserError(
                f"the gradient was not finite in {MOST_SKIPS_IN_A_ROW} steps in a row, up to step {state.step + 1}: "
                f"the run has diverged; resume from the last checkpoint, or from one before it, with a lower "
                f"learning_rate (now {self.setup.arguments.learning_rate}) or a longer warm-up"
            )

    def _sum_over_processes(self, part: torch.Tensor, batches: list[ModelInputs]) -> tuple[float, int, int, bool]:
        """The sums over all processes: the loss and the tokens of the global batch, how many gradients are not finite,
        and whether any process was asked to stop."""
        tokens = sum(batch["input_ids"].numel() for batch in batches)
        is_broken = not math.isfinite(self.gradient_norm)
        mine = torch.tensor([part.item(), tokens, is_broken, bool(self.stop)], dtype=torch.float64)
        loss, all_tokens, num_broken, stopping = sum_over_processes(mine, self.accelerator).tolist()
        return loss, int(all_tokens), int(num_broken), stopping > 0

    def _is_due(self, every: int) -> bool:
        return every > 0 and self.state.step % every == 0

    def _log_training(self, watch: Stopwatch) -> None:
        state, norm = self.state, self.gradient_norm
        loss = {}
        if state.losses:  # else every loss since the last entry was not finite
            loss["loss"] = state.train_loss = sum(state.losses) / len(state.losses)
            state.losses.clear()
        reading = watch.read()
        values = {
            **loss,
            **self.setup.optimizer.optimizer.learning_rates(),
            "grad_norm": norm if math.isfinite(norm) else str(norm),
            "tokens_seen": state.tokens_seen,
            **reading,
            **speed(reading["tokens_per_second"] * self.setup.flops_per_token, peak=self.peak_flops),
        }
        self.log.record(state.step, values)
        self.log.warn_of_starvation(watch)

    def evaluate(self) -> bool:
        """Log the loss and accuracy on the validation splits, and what is likely wrong with the run.

        An evaluation that fails is reported and logged, and the run continues.

        Returns:
            Whether a signal ended it early.
        """
        setup, metrics = self.setup, {}
        with self._going_on(EVALUATION_FAILED):
            try:
                metrics = evaluate_mixture(
                    setup.model,
                    setup.corpora,
                    setup.arguments,
                    accelerator=self.accelerator,
                    should_stop=self._should_stop,
                )
            except EvaluationStoppedError:
                return True
        if metrics:
            self.state.evaluation = {"step": self.state.step, **metrics}
            self.log.record(self.state.step, metrics)
            with self._going_on("the model card, or the search for what is wrong with the run, failed"):
                # All wait here while the main process reads documents here and there, on any disk. In their next step,
                # on CUDA, the others would note progress before they wait for it, and so end the allowance.
                self.watchdog.progress(allow=SECONDS_TO_SAVE)
                on_main_process(self.accelerator, self._look)
                self.watchdog.progress()
        self._evaluated_at = self.state.step
        return False

    @contextlib.contextmanager
    def _going_on(self, failed: str) -> Iterator[None]:
        """Report and log an error, with which the run goes on."""
        try:
            yield
        except Exception as error:
            reason = f"{failed}: {type(error).__name__}: {error}"
            logger.warning(reason, exc_info=not isinstance(error, UserError))
            self.log.record(self.state.step, {"event": reason})

    def _look(self) -> None:
        """Write the evaluation into the checkpoint's card, and print what is likely wrong with the run."""
        if self._saved_at == self.state.step:
            self.output.describe_checkpoint(self.state.step, self._facts())
        for finding in self.doctor.examine(self.state, self.setup, gradient_norm=self.gradient_norm):
            self.log.say(f"warning: {finding}")

    def _should_stop(self) -> bool:
        self.watchdog.progress()
        return bool(self.stop)

    def save_checkpoint(self) -> None:
        """Commit the model with what resuming needs, as OUTPUT_DIR/checkpoint-STEP."""
        setup, accelerator = self.setup, self.accelerator
        keeps = accelerator.is_main_process  # only this process writes
        weights = whole_weights(setup.core, keep=keeps)
        tensors = optimizer_state(setup.optimizer.optimizer, keep=keeps)
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
            teacher_fingerprint=self.run.teacher_fingerprint,
            validation_fingerprint=setup.corpora.validation_fingerprint,
            micro_batch_rows=setup.arguments.rows_at_once(accelerator.num_processes),
            bf16_residual=setup.core.model.residual_dtype == torch.bfloat16,
        )
        # A checkpoint that may be ruined replaces none; see `_save_and_evaluate`.
        keep = None if self.state.consecutive_skips else setup.arguments.save_total_limit

        def save() -> None:
            self.output.save_checkpoint(
                setup.core, weights, state=state, tensors=tensors, facts=self._facts(), keep=keep
            )

        self.watchdog.progress(allow=SECONDS_TO_SAVE)
        on_main_process(accelerator, save)
        self.watchdog.progress()
        self._saved_at, self._save_waits = state.step, False

    def _next_phase(self) -> None:
        """Begin the next phase from the checkpoint at the end of the last one, as a run resumed there would."""
        self.watchdog.progress(allow=SECONDS_TO_SAVE)  # a large model may be read from a network disk
        checkpoint = None if self.dry_run else self.output.path / f"checkpoint-{self.state.step}"
        tensors = None
        if checkpoint is not None:
            saved, tensors = read_training_state(checkpoint)
            self.state.scaler = saved.scaler  # the rest of the state is in memory
        index = self.setup.phase.index + 1
        self.state.finished_phases[str(index - 1)] = self.setup.arguments.decisive()
        self.setup.loader.close()
        del self.setup  # frees its model and optimizer before the next ones are made
        self.accelerator.free_memory()
        self._set_up(index, checkpoint, tensors)
        self._announce()
        self.watchdog.progress()

    def _close_phase(self) -> bool:
        """Save and evaluate at the end of a phase. Returns whether a signal ended it early."""
        if self.dry_run:
            return False
        if self._saved_at != self.state.step:
            self.save_checkpoint()
        return self._evaluated_at != self.state.step and self.evaluate()

    def _stop(self) -> dict[str, Any]:
        if self.state.step and self._saved_at != self.state.step and not self.dry_run:
            self.log.say(f"saving a checkpoint of step {self.state.step:,} …")
            self.save_checkpoint()
        self.log.say(f"stopped at step {self.state.step}; {self.goes_on_by} goes on from there")
        return {"stopped_by": self.stop.reason, "step": self.state.step}

    def _finish(self) -> dict[str, Any]:
        """Save the model, its curve, card and results, and return the results. For a dry run, return its size only."""
        setup = self.setup
        if self.dry_run:
            return {"dry_run": True, "parameters": setup.core.num_parameters()}
        weights = whole_weights(setup.core, keep=self.accelerator.is_main_process)
        results = results_of(self.state, num_parameters=setup.core.num_parameters())

        def save() -> None:
            distilled = setup.arguments.teacher_name_or_path is not None
            self.output.save_model(
                setup.core, weights, facts=self._facts(), results=results, say=self.log.say, distilled=distilled
            )

        self.watchdog.progress(allow=SECONDS_TO_SAVE)
        on_main_process(self.accelerator, save)
        return results

    def _facts(self) -> dict[str, Any]:
        phase, folder = self.setup.phase.index, self.output.path
        return facts_of_run(self.state, self.run, phase=phase, output_dir=folder, recipe=self.recipe)

    def close(self) -> None:
        """Stop the loader, the bar and the trackers."""
        try:
            if hasattr(self, "setup"):  # missing if a phase could not begin
                self.setup.loader.close()
            if hasattr(self, "log"):  # missing if the run could not
                self.log.close()
            leave(self.accelerator)
        finally:
            self.output.release()
