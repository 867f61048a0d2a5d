"""Resuming: finds the checkpoint to resume from, and checks that it belongs to this run."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..configuration import ClozeBertConfig
from ..utils.errors import UserError, there_and_here
from ..utils.files import INCOMPLETE, WEIGHTS, written_in
from ..utils.output_folders import check_output_dir, remove_written
from .arguments import Phase, PretrainingArguments
from .checkpoints.damage import find_damage
from .checkpoints.folders import RUN_FILES, clear_way, newest_valid
from .checkpoints.training_state import TrainingState, read_state
from .checks import CheckedRun
from .initialization.initial_model import load_configuration
from .reporting.progress import LOG_NAME
from .runtime.machine import choose_bf16_residual

_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "embedding_dropout", "mlp_dropout")
logger = logging.getLogger(__name__)


def find_checkpoint(arguments: PretrainingArguments, *, take: Callable[[], None]) -> Path | None:
    """Find the checkpoint to resume from, and make the output folder ready for the run; main process only.

    The folder is locked. What killed runs left half written is removed, and damaged checkpoints are renamed.

    Args:
        take: locks the output folder for this run, before anything in it is changed.

    Raises:
        UserError: the folder holds a run that the arguments neither resume nor overwrite, or a checkpoint is damaged.
    """
    output_dir, wanted = Path(arguments.output_dir), arguments.resume_from_checkpoint
    checkpoint = None if wanted in (None, "latest") else Path(str(wanted))
    if checkpoint is not None and not checkpoint.is_dir():
        inside = output_dir / checkpoint
        way_out = f"give {inside}" if inside.is_dir() else "'latest' names the newest one"
        raise UserError(f"resume_from_checkpoint={wanted!r}: there is no such folder; {way_out}")
    is_own = checkpoint is not None and checkpoint.resolve().parent == output_dir.resolve()
    begins_again = checkpoint is not None and _holds_no_more_than_a_log(output_dir)
    check_output_dir(
        output_dir,
        overwrite=arguments.overwrite_output_dir or wanted == "latest" or is_own or begins_again,
        written=RUN_FILES if arguments.overwrite_output_dir else (),
        inputs=_inputs(arguments),
        way_out="continue with --resume_from_checkpoint latest, or delete that run with --overwrite_output_dir",
    )
    if checkpoint is not None and (damage := find_damage(checkpoint)):
        raise UserError(f"resume_from_checkpoint={wanted!r} is not a complete checkpoint: {damage}")
    take()
    if wanted == "latest":
        checkpoint = newest_valid(output_dir)
        if checkpoint is None and written_in(output_dir, [WEIGHTS]):
            raise UserError(
                f"resume_from_checkpoint='latest': {output_dir} holds a model and no checkpoint to resume, and a new "
                f"run would replace that model; give another --output_dir, or --overwrite_output_dir in its place"
            )
        if checkpoint is None and _holds_no_more_than_a_log(output_dir):
            logger.warning(
                "no checkpoint is in %s yet: the run begins at its first step; one that branched off from another's "
                "checkpoint needs --resume_from_checkpoint CHECKPOINT again",
                output_dir,
            )
    if not arguments.overwrite_output_dir:
        clear_way(output_dir, step=0 if checkpoint is None else read_state(checkpoint)[0].step)
    return checkpoint


def _holds_no_more_than_a_log(output_dir: Path) -> bool:
    """Whether a run in this folder was killed before it saved a checkpoint."""
    if not (output_dir / LOG_NAME).is_file():
        return False
    return all(path.name.startswith((LOG_NAME, INCOMPLETE)) for path in written_in(output_dir, RUN_FILES))


def remove_earlier_run(arguments: PretrainingArguments) -> None:
    """With `overwrite_output_dir`, delete the run in the output folder; main process only, when this one is set up."""
    if arguments.overwrite_output_dir:
        remove_written(Path(arguments.output_dir), RUN_FILES)
        clear_way(Path(arguments.output_dir), step=0)


def _inputs(arguments: PretrainingArguments) -> list[tuple[str, str | None]]:
    """The inputs of the run, each after the flag that names it."""
    found = [
        (name, getattr(arguments, name))
        for name in ("resume_from_checkpoint", "model_name_or_path", "teacher_name_or_path")
    ]
    corpora = [*arguments.corpus, *(place for phase in arguments.phases for place in _as_list(phase.get("corpus")))]
    found += [("corpus", place) for place in corpora]
    # The tokenizer's own files are never deleted, so it may lie in output_dir itself.
    if Path(arguments.tokenizer_name).resolve() != Path(arguments.output_dir).resolve():
        found.append(("tokenizer_name", arguments.tokenizer_name))
    return found


def _as_list(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value] if value else []


def check_resume(checkpoint: Path, state: TrainingState, run: CheckedRun, *, accelerator: Any) -> tuple[int, str]:
    """Refuse to resume with another corpus, teacher or model, or other batches; report and note other changes.

    Returns:
        The index of the checkpoint's phase, even at the end of it, because its last evaluation may be missing; and what
        has changed, for the log.
    """
    step, last = state.step, run.phases[-1]
    if step > last.last_step:
        raise UserError(f"{checkpoint} is at step {step}, beyond max_steps={last.last_step}")
    phase = next(phase for phase in run.phases if step <= phase.last_step)
    forbidden, said = phase.arguments.changes_since(state.arguments)
    forbidden += _other_phase(state, phase)
    mixture = run.mixtures[phase.index]
    forbidden += _other_content("corpus", state.corpus_fingerprint, mixture.fingerprint)
    forbidden += _other_content("teacher", state.teacher_fingerprint, run.teacher_fingerprint)
    saved = load_configuration(str(checkpoint))
    if saved.vocab_size >= len(run.tokenizer):
        # A run that began with another vocabulary size keeps it.
        for config in run.configs:
            config.vocab_size = saved.vocab_size
    forbidden += _other_model(saved, run.configs[phase.index])
    if forbidden:
        raise UserError(
            f"cannot resume from {checkpoint}, which belongs to another run: {'; '.join(forbidden)}; restore these "
            f"values, or begin a new run from these weights with --model_name_or_path {checkpoint} and another --seed "
            f"(with the same one it begins with the same rows and masks again)"
        )
    said += _other_content("validation", state.validation_fingerprint, mixture.validation_fingerprint)
    said += _other_machine(state, accelerator, phase.arguments, run.configs[phase.index])
    said += _of_finished_phases(state, run)
    here = phase.arguments.decisive()
    if were := {name: was for name, was in state.arguments.items() if name in here and here[name] != was}:
        # What an earlier resumption set at this step was never used.
        state.earlier_arguments[str(step)] = {**were, **state.earlier_arguments.get(str(step), {})}
    changed = f"resuming with changed settings: {'; '.join(said)}" if said else ""
    if said and accelerator.is_main_process:
        logger.warning(changed)
    return phase.index, changed


def _other_phase(state: TrainingState, phase: Phase) -> list[str]:
    if (state.phase, state.first_step) == (phase.index, phase.first_step):
        return []
    return [
        f"step {state.step} in phase {state.phase + 1} from step {state.first_step} there, in phase "
        f"{phase.index + 1} from step {phase.first_step} here"
    ]


def _of_finished_phases(state: TrainingState, run: CheckedRun) -> list[str]:
    return [
        f"{change} (no effect: phase {phase.index + 1} is finished)"
        for phase in run.phases
        for change in there_and_here(state.finished_phases.get(str(phase.index), {}), phase.arguments.decisive())
    ]


def _other_content(name: str, there: str, here: str) -> list[str]:
    if there == here:
        return []
    was, now = (" + ".join(f"{one[:12]}…" for one in several.split("+") if one) for several in (there, here))
    return [f"{name} fingerprint {was or 'none'} there, {now or 'none'} here"]


def _other_model(saved: ClozeBertConfig, config: ClozeBertConfig) -> list[str]:
    return there_and_here(vars(saved), {name: getattr(config, name) for name in ClozeBertConfig.__annotations__})


def _other_machine(
    state: TrainingState, accelerator: Any, arguments: PretrainingArguments, config: ClozeBertConfig
) -> list[str]:
    """Differences of the machine, because of which the resumed run is not bitwise the same."""
    on_cuda, precision = accelerator.device.type == "cuda", accelerator.mixed_precision
    now = {
        "threads": torch.get_num_threads(),
        "world_size": accelerator.num_processes,
        "precision": precision,
        "micro_batch_rows": arguments.rows_at_once(accelerator.num_processes),
        "bf16_residual": choose_bf16_residual(arguments.bf16_residual, config, precision=precision, on_cuda=on_cuda),
    }
    # Each micro-batch draws its own dropout.
    redrawn = ("world_size", "micro_batch_rows") if any(getattr(config, name) for name in _DROPOUTS) else ()
    return [
        f"{name}={was} there, {value} here ({'other dropout' if name in redrawn else 'close, but not the same bits'})"
        for name, value in now.items()
        if (was := getattr(state, name)) not in (value, None)
    ]
