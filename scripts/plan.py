#!/usr/bin/env python
"""Plan a pretraining run: parameters, FLOPs, memory by part, tokens/s, hours and cost.

    clozebert plan --config bert-base --max_steps 100000 --device h100 --num_devices 8 --price_per_hour 2.5
    clozebert plan --config small --corpus corpus --calibrate

The program takes all flags of pretraining. Without `--device`, the plan is for this machine. `--calibrate` trains for
some seconds to measure the machine's speed. With `--corpus`, it measures on the run's own batches.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clozebert.scripts._program import check_output_file, parse_run_flags, run, write_results
from clozebert.utils.command_line import flag, flags_of
from clozebert.utils.errors import FullMemoryError, UserError, check_at_least, check_choice

if TYPE_CHECKING:
    from clozebert.corpus import Mixture
    from clozebert.training.arguments import Phase, PretrainingArguments
    from clozebert.training.planning.memory_and_time import Calibration, Device

_STEPS_OF_AN_UNKNOWN_TEXT = 10_000
_IDLE = (
    "output_dir", "overwrite_output_dir", "resume_from_checkpoint", "dry_run", "report_to", "disable_tqdm",
    "logging_steps", "eval_steps", "max_eval_batches", "save_steps", "save_total_limit", "ddp_timeout",
)  # fmt: skip


@dataclasses.dataclass
class PlanArguments:
    """The flags of the planner itself; those of the run are parsed separately."""

    device: str | None = flag("a kind of GPU, such as a100-80gb, h100, rtx-4090 (default: this machine)")
    num_devices: int = flag("number of devices", 1)
    sharded: bool = flag("weights, gradients and optimizer state spread over the devices (FSDP2)", False)
    utilization: float = flag("share of the device's peak FLOP/s that the run reaches; --calibrate measures it", 0.3)
    price_per_hour: float | None = flag("price of one device for an hour, for the cost")
    calibrate: bool = flag("train on this machine for some seconds, and plan with the measured speed", False)
    calibrate_seconds: float = flag("seconds that --calibrate may take", 20.0)
    output_file: str | None = flag("write the plan here, as JSON")


def main(argv: Sequence[str] | None = None) -> None:
    from clozebert.training.run_settings import check_model_is_named, make_config, split_settings

    own_flags = flags_of(PlanArguments)
    flags = parse_run_flags(
        argv,
        *own_flags,
        doc=__doc__,
        verb="plan",
        more_of_model={"vocab_size": "entries of the vocabulary; a run takes the tokenizer's size"},
        idle=_IDLE,
    )
    given = PlanArguments(**{flag.name: flags.pop(flag.name) for flag in own_flags if flag.name in flags})
    recipe = flags.pop("config", None)
    settings, model = split_settings(recipe, flags)
    check_model_is_named(settings, model)
    plan(given, settings, make_config(model, recipe=recipe), vocab_size=flags.get("vocab_size"))


def plan(given: PlanArguments, settings: dict[str, Any], config: Any, *, vocab_size: int | None = None) -> None:
    """Print the plan of a run; `settings` are fields of PretrainingArguments.

    With `model_name_or_path`, that model's configuration replaces `config`, as in a run. In a run with phases, each
    phase is planned, and `seconds` and `cost` are the totals.
    """
    from clozebert.training.checks import check_same_weights
    from clozebert.training.initialization.initial_model import load_configuration
    from clozebert.training.planning.memory_and_time import check_utilization
    from clozebert.training.planning.run_length import rows_of_text
    from clozebert.training.run_settings import phase_configuration

    check_at_least(given, num_devices=1, price_per_hour=0, calibrate_seconds=0)
    check_utilization(given.utilization)
    check_output_file(given.output_file)
    run, corpora = _run_of(settings)
    phases = run.split_phases()
    if run.model_name_or_path is not None:
        config = load_configuration(run.model_name_or_path)
    else:
        _set_vocabulary(config, settings.get("tokenizer_name"), corpora, vocab_size=vocab_size)
    if corpora is not None:
        tokens = sum(
            phase.arguments.batch_size.before(phase.num_steps) * phase.arguments.max_seq_length for phase in phases
        )
        line = f"steps                 {phases[-1].last_step:>18,} of up to {tokens / phases[-1].last_step:,.0f} tokens"
        if len(phases) == 1:
            rows = rows_of_text(corpora.corpora, max_seq_length=run.max_seq_length)
            epochs = run.batch_size.before(run.num_steps) / rows
            line += f", {epochs:.1f} times the {corpora.num_tokens:,} tokens of the text"
        print(line)
    configs = [phase_configuration(config, phase) for phase in phases]
    check_same_weights(configs)
    machine = _find_device(given, phases[0].arguments)
    found = []
    for phase, of_phase in zip(phases, configs, strict=True):
        if len(phases) > 1:
            print(f"phase {phase.index + 1} of {len(phases)}: {phase.num_steps:,} steps")
        found.append(_plan_phase(given, phase, of_phase, machine, has_corpus=corpora is not None))
    if not given.calibrate:
        print(f"The speed assumes {given.utilization:.0%} of the peak; --calibrate measures it, --utilization sets it.")
    if run.teacher_name_or_path is not None and not given.calibrate:
        print("The teacher is not counted: its weights take memory, and its forward pass a third of a step or more.")
    if run.max_minutes is not None:
        print(f"max_minutes={run.max_minutes:g} is not counted: a run takes as many steps as fit into it.")
    facts = _all_phases(found)
    if given.output_file is not None:
        write_results(given.output_file, facts)


def _run_of(settings: dict[str, Any]) -> "tuple[PretrainingArguments, Mixture | None]":
    """The run with its number of steps, and its corpora if they are given."""
    from clozebert.training.arguments import PretrainingArguments
    from clozebert.training.planning.run_length import length_by_text

    # A run needs these paths, a plan does not.
    paths = {"corpus": settings.get("corpus") or "-", "tokenizer_name": settings.get("tokenizer_name") or "-"}
    run = PretrainingArguments(**{**settings, **paths, "dry_run": True})
    if settings.get("corpus"):
        corpora = _open_corpora(run)
        return length_by_text(run, corpora), corpora
    if run.max_steps is None:
        run = run.of_length(_STEPS_OF_AN_UNKNOWN_TEXT)
        print(f"for {run.num_steps:,} steps: give --corpus, or --max_steps, for the length of your run")
    return run, None


def _set_vocabulary(config: Any, tokenizer_name: str | None, corpora: "Mixture | None", *, vocab_size: Any) -> None:
    """Set the model's vocabulary to that of the corpus or, without a corpus, of the tokenizer."""
    from clozebert.corpus.tokenizer import load_tokenizer
    from clozebert.training.initialization.initial_model import SPECIAL_TOKEN_IDS, padded_vocabulary, set_token_ids

    if corpora is not None:
        set_token_ids(config, corpora.corpora[0])
        config.vocab_size = vocab_size or padded_vocabulary(corpora.corpora[0].vocab_size)
    elif tokenizer_name is not None:
        tokenizer = load_tokenizer(tokenizer_name)
        set_token_ids(config, tokenizer)
        config.vocab_size = vocab_size or padded_vocabulary(len(tokenizer))
    # For a plan it is enough that the special ids lie within the vocabulary given by --vocab_size.
    for name in SPECIAL_TOKEN_IDS:
        if (index := getattr(config, name)) is not None:
            setattr(config, name, min(index, config.vocab_size - 1))


def _plan_phase(
    given: PlanArguments, phase: "Phase", config: Any, machine: "tuple[Device, str, Any]", *, has_corpus: bool
) -> dict[str, Any]:
    """Print the plan of one phase and return it.

    Args:
        machine: the kind of device, the precision, and torch's device if steps can be timed.
    """
    from clozebert.training.checks import check_model, check_precision
    from clozebert.training.planning.memory_and_time import make_plan, mean_attention_length, plan_table
    from clozebert.training.planning.run_length import row_fill

    arguments = phase.arguments
    check_model(arguments, config)
    corpora = length = calibration = full = None
    fill = 1.0
    if has_corpus:
        corpora = _open_corpora(arguments)
        length = mean_attention_length(corpora, max_seq_length=arguments.max_seq_length)
        fill = row_fill(corpora, max_seq_length=arguments.max_seq_length)
    device, precision, _ = machine
    check_precision(arguments, precision)
    if given.calibrate:
        try:
            calibration = _calibrate(given, phase, config, machine, corpora)
        except FullMemoryError as error:
            full = error  # after the plan, which says how much the run needs
    plan = make_plan(
        arguments,
        config,
        device=device,
        num_devices=given.num_devices,
        precision=precision,
        sharded=given.sharded,
        utilization=given.utilization,
        document_length=length,
        fill=fill,
        price_per_hour=given.price_per_hour,
        calibration=calibration,
    )
    print("\n".join(plan_table(plan)))
    if full is not None:
        raise full
    if calibration is not None and calibration.peak_bytes is not None:
        print(f"memory measured       {calibration.peak_bytes / 2**30:>14.2f} GiB, one micro-batch to an update")
    measured = None if calibration is None else dataclasses.asdict(calibration)
    return {**dataclasses.asdict(plan), "calibration": measured}


def _calibrate(
    given: PlanArguments, phase: "Phase", config: Any, machine: "tuple[Device, str, Any]", corpora: "Mixture | None"
) -> "Calibration":
    """Time steps of a phase on this machine."""
    from clozebert.training.planning.calibration import calibrate
    from clozebert.training.runtime.flash_attention import flash_attention
    from clozebert.utils.memory import memory_errors

    arguments, (_, precision, here) = phase.arguments, machine
    for corpus in corpora.corpora if corpora is not None else ():
        if corpus.vocab_size > config.vocab_size:
            raise UserError(
                f"the corpus {corpus.directory} has a vocabulary of {corpus.vocab_size} tokens, more than the "
                f"{config.vocab_size} of the model, so no step can be timed on it: leave out --calibrate, or "
                f"prepare the corpus with the model's tokenizer"
            )
    with flash_attention(arguments.flash_attention, here), memory_errors(arguments.to_save_memory):
        found = calibrate(
            arguments,
            config,
            device=here,
            precision=precision,
            seconds=given.calibrate_seconds,
            corpora=corpora,
            num_devices=given.num_devices,
        )
    if phase.index and here.type != "cuda":
        # A process knows its peak since it began, which an earlier phase may have set.
        return dataclasses.replace(found, peak_bytes=None)
    return found


def _all_phases(plans: list[dict[str, Any]]) -> dict[str, Any]:
    """The first phase's plan; with several phases, their total hours and cost are put into it and printed."""
    facts = dict(plans[0])
    if len(plans) == 1:
        return facts
    facts |= {"seconds": sum(of_one["seconds"] for of_one in plans), "phases": plans}
    print(f"hours of all phases   {facts['seconds'] / 3600:>18,.2f}")
    if facts["cost"] is not None:
        facts["cost"] = sum(of_one["cost"] for of_one in plans)
        print(f"cost of all phases    {facts['cost']:>18,.2f}")
    return facts


def _open_corpora(arguments: Any) -> "Mixture":
    from clozebert.corpus import Mixture

    return Mixture(arguments.corpus, arguments.corpus_weights)


def _find_device(given: PlanArguments, arguments: Any) -> "tuple[Device, str, Any]":
    """The kind of device, the precision that a run uses there and, for this machine, torch's device."""
    from clozebert.training.planning.memory_and_time import DEVICES, Device

    if given.device is not None:
        if given.calibrate:
            raise UserError(f"--calibrate measures this machine: leave out --device {given.device}")
        check_choice("device", given.device, DEVICES)
        precision = arguments.mixed_precision
        return DEVICES[given.device], "bf16" if precision == "auto" else precision, None

    from clozebert.utils.device import choose_precision, find_device, measure_matmul_flops, memory_of

    here = find_device(use_cpu=arguments.use_cpu)
    precision = choose_precision(arguments.mixed_precision, here)
    return Device(here.type, measure_matmul_flops(here, precision), memory_of(here)), precision, here


if __name__ == "__main__":
    run(main)
