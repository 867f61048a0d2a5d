"""Checks before a run starts that corpus, tokenizer, model, phases and trackers fit together.

Mistakes in the settings, those of later phases included, are found here, before any work is done.
"""

import contextlib
import importlib.util
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from ..configuration import ClozeBertConfig
from ..corpus import Corpus, Mixture
from ..corpus.tokenizer import load_tokenizer, tokenizer_differences
from ..modeling import ClozeBertForMaskedLM
from ..utils.errors import UserError, as_user_errors
from ..utils.hub_names import hub_name
from ..utils.processes import refuse_differences
from .arguments import Phase, PretrainingArguments
from .checkpoints.folders import newest_valid
from .initialization.initial_model import fingerprint_of_model, load_configuration, padded_vocabulary, set_token_ids
from .planning.run_length import length_by_text
from .run_settings import phase_configuration
from .runtime.machine import is_sharded

logger = logging.getLogger(__name__)

# Entries that BERT's vocabularies keep free, to be renamed.
_UNUSED = re.compile(r"[\[<]unused_?\d+[\]>]")


@dataclass
class CheckedRun:
    """The parts of a run, checked: the tokenizer and, by phase, arguments, corpora and configurations.

    `given` is the run as the user described it, perhaps without a number of steps. `teacher_fingerprint` shows whether
    the teacher has changed; empty without one. `base_model` and `teacher` are the names of these models for the card.
    """

    given: PretrainingArguments
    tokenizer: PreTrainedTokenizerFast
    phases: list[Phase]
    mixtures: list[Mixture]
    configs: list[ClozeBertConfig]
    teacher_fingerprint: str
    base_model: str | None
    teacher: str | None

    @property
    def last_step(self) -> int:
        """How many steps the run has."""
        return self.phases[-1].last_step

    @property
    def longest_row(self) -> int:
        """The most tokens of a row, in any phase."""
        return max(phase.arguments.max_seq_length for phase in self.phases)


# The flags in which processes may differ: what lies on their own disks, and what concerns none of the others.
_OF_A_PROCESS = (
    "corpus", "tokenizer_name", "model_name_or_path", "teacher_name_or_path", "output_dir", "resume_from_checkpoint",
    "max_minutes", "mixed_precision", "use_cpu", "dataloader_num_workers", "ddp_timeout", "report_to", "disable_tqdm",
)  # fmt: skip


def check_processes(run: CheckedRun, accelerator: Any) -> None:
    """Refuse batches that do not fit the processes, what the precision cannot compute, and processes that differ.

    One process may have other flags or another text, as from a stale copy on its machine.
    """
    for phase in run.phases:
        phase.arguments.micro_batches(accelerator.num_processes)  # raises where they do not fit
        check_precision(phase.arguments, accelerator.mixed_precision)
    mine: dict[str, Any] = {
        "teacher": run.teacher_fingerprint,
        "mixed_precision": accelerator.mixed_precision,
        "max_minutes": run.given.max_minutes is None,  # `adapt` computes it from the clock
    }
    for number, (phase, mixture, config) in enumerate(zip(run.phases, run.mixtures, run.configs, strict=True)):
        of_phase = {
            **{name: value for name, value in vars(phase.arguments).items() if name not in _OF_A_PROCESS},
            "corpus": mixture.fingerprint,
            "validation split": mixture.validation_fingerprint,
            "model": {name: value for name, value in config.to_dict().items() if name != "transformers_version"},
        }
        mine |= {f"{name} of phase {number + 1}" if number else name: value for name, value in of_phase.items()}
    refuse_differences(mine)


def check_run(arguments: PretrainingArguments, config: ClozeBertConfig) -> CheckedRun:
    """Open the inputs of a run, and refuse those that do not fit together.

    Args:
        config: of the model; with `model_name_or_path` that model's own is used instead.

    Raises:
        UserError: names what does not fit, and what to do.
    """
    if arguments.max_steps is not None and arguments.num_train_epochs is not None:
        raise UserError(
            f"max_steps={arguments.max_steps} and num_train_epochs={arguments.num_train_epochs} both say how long the "
            "run is: give one of them"
        )
    check_trackers(arguments.report_to)
    tokenizer = load_tokenizer(arguments.tokenizer_name)
    first = _open_mixture(arguments, tokenizer)
    base_model = None
    if arguments.model_name_or_path is not None:
        config, base_model = _open_base_model(arguments, tokenizer)
    else:
        config.vocab_size = padded_vocabulary(len(tokenizer))
    set_token_ids(config, tokenizer)
    # After the checks that need no rows: packing those of a large text takes minutes.
    phases = length_by_text(arguments, first).split_phases()
    mixtures = [first, *(_open_mixture(phase.arguments, tokenizer) for phase in phases[1:])]
    fingerprint, teacher = "", arguments.teacher_name_or_path
    if teacher is not None:
        longest = max(phase.arguments.max_seq_length for phase in phases)
        check_teacher(teacher, tokenizer, max_seq_length=longest)
        fingerprint = fingerprint_of_model(teacher, flag="teacher_name_or_path")
        teacher = hub_name(teacher) or Path(teacher).resolve().name
    configs = [phase_configuration(config, phase) for phase in phases]
    for phase, of_phase in zip(phases, configs, strict=True):
        set_token_ids(of_phase, tokenizer)  # a phase may not change what the tokenizer says
        check_sample(phase.arguments)
        check_fit(phase.arguments, of_phase, tokenizer)
    check_same_weights(configs)
    return CheckedRun(arguments, tokenizer, phases, mixtures, configs, fingerprint, base_model, teacher)


def _open_mixture(arguments: PretrainingArguments, tokenizer: PreTrainedTokenizerFast) -> Mixture:
    """The corpora of a phase, all prepared with this tokenizer."""
    places = [os.path.realpath(name) for name in arguments.corpus]
    for name, place in zip(arguments.corpus, places, strict=True):
        if (times := places.count(place)) > 1:
            raise UserError(f"corpus={name} is given {times} times: once is enough; --corpus_weights sets its share")
    mixture = Mixture(arguments.corpus, arguments.corpus_weights)
    for corpus in mixture.corpora:
        check_tokenizer(corpus, tokenizer)
    return mixture


def _open_base_model(
    arguments: PretrainingArguments, tokenizer: PreTrainedTokenizerFast
) -> tuple[ClozeBertConfig, str | None]:
    """The configuration of `model_name_or_path`, and its name for the card.

    If the model is gone, a run that resumes takes the configuration of its checkpoint, which holds the weights, too.
    Then the name may be that of a folder, so the card gets none.
    """
    name = str(arguments.model_name_or_path)
    try:
        config = load_configuration(name)
    except UserError as error:
        checkpoint = _checkpoint_of(arguments)
        if checkpoint is None:
            raise
        logger.warning("%s; resuming without it from %s; the model card will name no base model", error, checkpoint)
        return load_configuration(str(checkpoint), flag="resume_from_checkpoint"), None
    check_same_tokens(config, tokenizer, name_or_path=name)
    return config, hub_name(name)


def _checkpoint_of(arguments: PretrainingArguments) -> Path | None:
    """The checkpoint that a run resumes from, if there is one."""
    wanted = arguments.resume_from_checkpoint
    if wanted == "latest":
        return newest_valid(Path(arguments.output_dir))
    return Path(wanted) if wanted else None


def check_trackers(names: list[str]) -> None:
    """Refuse trackers whose package is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"report_to={name!r} needs a package that is not installed: pip install {name}")


def check_fit(arguments: PretrainingArguments, config: ClozeBertConfig, tokenizer: PreTrainedTokenizerFast) -> None:
    """Refuse a tokenizer and a model that do not belong together.

    Raises:
        ValueError: names what does not fit, and what to do.
    """
    if len(tokenizer) > config.vocab_size:
        raise UserError(
            f"the tokenizer has {len(tokenizer)} tokens, more than the {config.vocab_size} of the model "
            f"{arguments.model_name_or_path}: name the model's own tokenizer, or add tokens to the model first "
            f"(clozebert grow --new_tokens)"
        )
    check_model(arguments, config)


def check_precision(arguments: PretrainingArguments, precision: str) -> None:
    """Refuse a residual stream in bf16 in a run of another precision.

    Args:
        precision: that of the run on this machine.
    """
    if arguments.bf16_residual and precision != "bf16":
        raise UserError(f"bf16_residual=True goes with mixed_precision=bf16, not {precision}")


def check_model(arguments: PretrainingArguments, config: ClozeBertConfig) -> None:
    """Refuse a model that reads no text, or has too few positions for the rows.

    Raises:
        UserError: names what does not fit.
    """
    if config.image_size is not None:
        raise UserError(f"image_size={config.image_size}: masked-language modelling needs a text model")
    if arguments.max_seq_length > config.max_position_embeddings:
        grow = "by `clozebert grow` " if arguments.model_name_or_path else ""
        way_out = f"shorten the rows, or raise the positions {grow}(--max_position_embeddings)"
        raise UserError(
            f"max_seq_length={arguments.max_seq_length} exceeds the model's "
            f"max_position_embeddings={config.max_position_embeddings}: {way_out}"
        )
    if arguments.position_init == "sinusoidal" and arguments.model_name_or_path is None:
        check_positions(config)
    if arguments.bf16_residual and config.norm_position == "post":
        raise UserError("bf16_residual=True needs norm_position='pre': post-norm writes the residual stream in float32")


def check_positions(config: ClozeBertConfig) -> None:
    """Refuse `position_init` for a new model without learned positions of its own width."""
    kind, size = config.position_embedding_type, config.embedding_size
    wrong = None
    if kind != "absolute":
        wrong = f"is for learned positions, and position_embedding_type is {kind!r}"
    elif size not in (None, config.hidden_size):
        wrong = f"needs embeddings of the model's width, and embedding_size={size}"
    if wrong:
        raise UserError(f"position_init='sinusoidal' {wrong}: leave it out (--position_init random)")


def check_same_weights(configs: list[ClozeBertConfig]) -> None:
    """Refuse a model that cannot be built, and phases whose weights have other names or shapes than the first one's.

    Raises:
        UserError: says why, or names the weight.
    """

    def shapes(config: ClozeBertConfig) -> dict[str, tuple[int, ...]]:
        # This finds sizes that are not divisible; on the meta device it costs nothing.
        with torch.device("meta"), as_user_errors():
            return {name: tuple(value.shape) for name, value in ClozeBertForMaskedLM(config).named_parameters()}

    expected = shapes(configs[0])
    for number, config in enumerate(configs[1:]):
        found = shapes(config)
        differing = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
        if differing:
            raise UserError(
                f"phases[{number}] changes the shape of {differing[0]}: a phase continues with the same weights; "
                f"under `model` it may change rope_parameters, dropout and, with rope, max_position_embeddings"
            )


def check_tokenizer(corpus: Corpus, tokenizer: PreTrainedTokenizerFast) -> None:
    """Refuse a tokenizer other than the one that the corpus was prepared with."""
    if differing := tokenizer_differences(tokenizer, corpus.manifest["tokenizer"]):
        raise UserError(
            f"the corpus {corpus.directory} was tokenized with another tokenizer ({', '.join(differing)} differ): "
            f"prepare it again with this one, or name the one it was prepared with"
        )


def check_same_tokens(config: ClozeBertConfig, tokenizer: PreTrainedTokenizerFast, *, name_or_path: str) -> None:
    """Refuse to continue from a model that was trained with another tokenizer.

    The special tokens of its configuration show that, or the tokenizer beside it.
    """
    for theirs, ours in _differing_tokens(config, tokenizer, name_or_path):
        raise UserError(
            f"model_name_or_path={name_or_path!r} has {theirs}, the tokenizer {ours}: its embeddings belong to "
            f"another one; give its own as tokenizer_name, and prepare the corpus with it"
        )


def check_sample(arguments: PretrainingArguments) -> None:
    """Refuse `vocabulary_sample` if the weights are sharded."""
    if arguments.vocabulary_sample and is_sharded():
        raise UserError(
            f"vocabulary_sample={arguments.vocabulary_sample} reads single rows of weights that FSDP shards: run "
            f"without FSDP, or with all tokens (--vocabulary_sample 0)"
        )


def check_teacher(name_or_path: str, tokenizer: PreTrainedTokenizerFast, *, max_seq_length: int) -> None:
    """Refuse a teacher that cannot read the student's rows.

    Raises:
        UserError: names what differs.
    """
    teacher = load_configuration(name_or_path, flag="teacher_name_or_path")
    what = f"teacher_name_or_path={name_or_path!r}"
    if is_sharded():
        raise UserError(f"{what}: a teacher is not sharded, so distillation runs without FSDP")
    if len(tokenizer) > teacher.vocab_size:
        raise UserError(
            f"{what} has {teacher.vocab_size} rows, and the tokenizer {len(tokenizer)} tokens: student and teacher "
            f"need the same tokenizer"
        )
    for theirs, ours in _differing_tokens(teacher, tokenizer, name_or_path):
        raise UserError(f"{what} has {theirs}, and the tokenizer {ours}: both need the same tokenizer")
    if max_seq_length > teacher.max_position_embeddings:
        raise UserError(
            f"max_seq_length={max_seq_length} exceeds the {teacher.max_position_embeddings} tokens that {what} takes"
        )


def differing_entries(name_or_path: str, tokenizer: PreTrainedTokenizerFast) -> Iterator[tuple[int, str, str]]:
    """Ids that are one entry of the tokenizer beside a model and another of the given one: id, both entries.

    Either may have more entries, and may have given a name to an `[unused0]`. A folder or a repository without a
    tokenizer that can be read says nothing.
    """
    own: dict[str, int] = {}
    with contextlib.suppress(Exception):  # the library raises plain ones; and the run reads the given tokenizer only
        place = Path(name_or_path) / "tokenizer.json"
        if not Path(name_or_path).is_dir():
            place = Path(hf_hub_download(name_or_path, "tokenizer.json"))
        own = Tokenizer.from_file(str(place)).get_vocab()
    given = {number: token for token, number in tokenizer.get_vocab().items()}
    for token, number in sorted(own.items(), key=lambda entry: entry[1]):
        mine = given.get(number, token)
        if mine != token and not _UNUSED.fullmatch(token) and not _UNUSED.fullmatch(mine):
            yield number, token, mine


def _differing_tokens(
    config: ClozeBertConfig, tokenizer: PreTrainedTokenizerFast, name_or_path: str
) -> Iterator[tuple[str, str]]:
    """Ids of special tokens, then other entries, that differ between a model and the tokenizer: both, in words."""
    for name in ("pad_token_id", "cls_token_id", "sep_token_id", "mask_token_id"):
        theirs, ours = getattr(config, name), getattr(tokenizer, name)
        if theirs is not None and theirs != ours:
            yield f"{name}={theirs}", str(ours)
    for number, entry, given in differing_entries(name_or_path, tokenizer):
        yield f"{entry!r} as token {number}", repr(given)
