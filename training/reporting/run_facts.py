"""What a run reports: its plan, its results, and the facts for its model card."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ...utils.wording import counted
from ..arguments import Phase, PretrainingArguments
from ..checkpoints.training_state import TrainingState
from ..checks import CheckedRun
from ..evaluation import FEW_PREDICTIONS
from ..phase_setup import PhaseSetup
from .curves import CURVE_NAME


def tracker_settings(arguments: PretrainingArguments) -> dict[str, Any]:
    """The arguments, in types that every tracker accepts."""
    return {
        key: value if isinstance(value, (int, float, str)) else str(value)
        for key, value in dataclasses.asdict(arguments).items()
    }


def epochs_of(setup: PhaseSetup, phase: Phase) -> float:
    """How often a phase sees the rows of its corpora."""
    return phase.arguments.batch_size.before(phase.num_steps) / setup.stream.rows_per_epoch


def plan_lines(setup: PhaseSetup, phases: Sequence[Phase], *, step: int, accelerator: Any) -> list[str]:
    """A few lines for the user on what a phase is going to do.

    Args:
        phases: of the run; in a dry run those of the real one, of which `setup` is a small part.
    """
    phase, corpora, config = phases[setup.phase.index], setup.corpora, setup.core.config
    arguments, processes = phase.arguments, accelerator.num_processes
    micro_batches = arguments.micro_batches(processes)
    rows = arguments.rows_at_once(processes)
    smallest = arguments.batch_size.smallest * arguments.max_seq_length
    rising = f", rising from {smallest:,} over {arguments.batch_warmup_steps:,}"
    of_all = f" of {phases[-1].last_step:,}" if len(phases) > 1 else ""
    falls = arguments.muon_constant_steps if arguments.optimizer == "muon" else None
    muon = f", its rate falls after {counted(falls, 'step')}" if falls and falls < phase.num_steps else ""
    precision = "float32" if accelerator.mixed_precision == "no" else accelerator.mixed_precision
    begins_from_text = arguments.embedding_init == "text" and arguments.model_name_or_path is None and step == 0
    lines = [
        f"model: {setup.core.num_parameters():,} parameters, "
        f"{config.num_hidden_layers} layers of {config.hidden_size}, "
        f"vocabulary {config.vocab_size:,}{'; embeddings initialised from the text' if begins_from_text else ''}",
        f"corpus: {corpora.num_tokens:,} tokens in {corpora.num_documents:,} documents, "
        f"{setup.stream.rows_per_epoch:,} rows of {arguments.max_seq_length}",
        f"steps: {phase.num_steps:,}{of_all} of {arguments.tokens_per_step:,} tokens"
        f"{rising if arguments.batch_warmup_steps else ''}, {epochs_of(setup, phase):.2f} epochs; "
        f"{counted(processes, 'process', 'processes')} x "
        f"{counted(micro_batches, 'micro-batch', 'micro-batches')} x {counted(rows, 'row')}",
        f"optimizer: {arguments.optimizer}{muon}; schedule {arguments.lr_scheduler_type} with "
        f"{counted(int(arguments.warmup_steps), 'step')} of warm-up; "
        f"{precision} on {accelerator.device.type}",
    ]
    if len(corpora.names) > 1:
        shares = zip(corpora.names, corpora.shares, strict=True)
        lines[2:2] = ["rows from " + ", ".join(f"{name} {share:.1%}" for name, share in shares)]
    if len(phases) > 1:
        lines[:0] = [f"phase {phase.index + 1} of {len(phases)}"]
    if arguments.vocabulary_sample >= config.vocab_size:
        lines.append(f"vocabulary_sample={arguments.vocabulary_sample:,} is not below the vocabulary: it has no effect")
    most = (arguments.max_eval_batches or math.inf) * arguments.per_device_eval_batch_size * arguments.max_seq_length
    tokens = [split.num_tokens for split in corpora.validation.values()]
    predicted = arguments.eval_mlm_probability * sum(min(of_split, most) for of_split in tokens)
    if not corpora.validation:
        lines.append("evaluation: none, as the corpus holds nothing out (prepare-corpus --validation_fraction)")
    elif predicted < FEW_PREDICTIONS:
        lines.append(
            f"warning: eval_loss is a mean over about {predicted:,.0f} predicted tokens, and says little: "
            f"{'raise max_eval_batches' if max(tokens) > most else 'hold out more text'}"
        )
    return [*lines, f"resumed at step {step}"] if step > phase.first_step else lines


def kept_length_line(run: CheckedRun) -> str:
    """What is said of the length of a resumed run."""
    arguments = run.phases[0].arguments
    decay = f", {arguments.num_decay_steps:,} of decay" if arguments.lr_scheduler_type == "wsd" else ""
    kept = f"{int(arguments.warmup_steps):,} of warm-up{decay}, as in the checkpoint"
    way_out = "" if run.given.max_minutes is None else "; --max_minutes does not change them, --max_steps does"
    return f"{run.last_step:,} steps, {kept}{way_out}"


def speed(flops: float, *, peak: float) -> dict[str, float]:
    """Model FLOP/s of all processes together, and their share of the measured speed of plain matmuls.

    Args:
        peak: FLOP/s of plain matmuls, of all processes.
    """
    return {"model_flops_per_second": flops, "model_flops_share": flops / peak}


def results_of(state: TrainingState, *, num_parameters: int) -> dict[str, Any]:
    """The content of all_results.json."""
    evaluation = {key: value for key, value in _evaluation_of(state).items() if key != "step"}
    seconds = max(state.seconds, 1e-9)
    return {
        "step": state.step,
        "train_loss": state.train_loss,
        **evaluation,
        "tokens_seen": state.tokens_seen,
        "train_runtime": state.seconds,
        "tokens_per_second": state.tokens_seen / seconds,
        **speed(state.model_flops / seconds, peak=max(state.available_flops, 1.0) / seconds),
        "skipped_steps": state.skipped_steps,
        "parameters": num_parameters,
    }


def _evaluation_of(state: TrainingState) -> dict[str, Any]:
    """The evaluation of the model as it is; empty if the last one was of an earlier step."""
    return state.evaluation if state.evaluation.get("step") == state.step else {}


def facts_of_run(
    state: TrainingState, run: CheckedRun, *, phase: int, output_dir: Path, recipe: str | None
) -> dict[str, Any]:
    """The facts for the model card of a run that has reached the phase of index `phase`."""
    import accelerate
    import transformers

    evaluation, upto = _evaluation_of(state), phase + 1
    return {
        "name": output_dir.resolve().name,
        "corpus": _by_phase([mixture.facts() for mixture in run.mixtures[:upto]], absent="not used"),
        "hyperparameters": _hyperparameters(state, run, upto=upto),
        "recipe": recipe,
        "base_model": run.base_model,
        "steps": state.step,
        "tokens": state.tokens_seen,
        "seconds": state.seconds,
        "validation_loss": evaluation.get("eval_loss"),
        "metrics": {"masked-LM accuracy": evaluation["eval_accuracy"]} if evaluation else {},
        "curve": CURVE_NAME,
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "accelerate": accelerate.__version__,
        },
    }


def _by_phase(facts: Sequence[dict[str, Any]], *, absent: Any) -> dict[str, Any]:
    """The first phase's facts, and what changes in each later one; `absent` for what it does not have any more."""
    shown = dict(facts[0])
    for number in range(1, len(facts)):
        before, here = facts[number - 1], facts[number]
        changed = {key: value for key, value in here.items() if before.get(key) != value}
        changed |= {key: absent for key in before if key not in here}
        if changed:
            shown[f"phase {number + 1}"] = changed
    return shown


def _hyperparameters(state: TrainingState, run: CheckedRun, *, upto: int) -> dict[str, Any]:
    """The arguments of the run's phases, and what they were before a resumption changed them."""
    values = [
        _card_values(phase.arguments, run.teacher, state.finished_phases.get(str(phase.index)))
        for phase in run.phases[:upto]
    ]
    shown = _by_phase(values, absent=[])  # an empty list is left out of the facts
    for step, were in state.earlier_arguments.items():
        used = {name: was for name, was in were.items() if any(name in of_phase for of_phase in values)}
        if used:
            shown[f"until step {step}"] = used
    return shown


def _card_values(
    arguments: PretrainingArguments, teacher: str | None, finished: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The arguments that decided a phase, without those that had no effect.

    Args:
        finished: those with which the phase ended, if the run has been resumed with other ones since.
    """
    values: dict[str, Any] = {} if teacher is None else {"teacher_name_or_path": teacher}
    values |= {name: value for name, value in (finished or arguments.decisive()).items() if value != []}
    unused = {
        "muon_": arguments.optimizer != "muon",
        "embedding_init": arguments.model_name_or_path is not None,
        "position_init": arguments.model_name_or_path is not None,
    }
    beginnings = tuple(beginning for beginning, is_unused in unused.items() if is_unused)
    return {name: value for name, value in values.items() if not name.startswith(beginnings)}
