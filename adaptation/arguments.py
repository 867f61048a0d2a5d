"""The flags of `adapt`, their checks, and the settings of continued pretraining. Needs no torch."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..corpus.batches import MIX_BLOCK
from ..corpus.readers.reading_flags import ReadingFlags
from ..training.arguments import PretrainingArguments, largest_divisor
from ..utils.command_line import flag
from ..utils.errors import UserError, check_at_least
from ..utils.files import MODEL_FILES, write_json
from ..utils.output_folders import check_output_dir
from ..utils.untrusted import read_json_object
from ..utils.values import read_fields

WORK_FOLDER, TEACHER_FOLDER = "adaptation", "teacher"
ADAPTATION_RESULTS = "adaptation_results.json"
REPORT_NAME = "report.md"
BEFORE = "before.json"
_SETTINGS = "settings.json"
_CONTENTS = "contents"
# What --overwrite_output_dir deletes; see `files.written_in`.
ADAPTATION_FILES = (
    WORK_FOLDER, ADAPTATION_RESULTS.replace(".", r"\."), REPORT_NAME.replace(".", r"\."), r"loss_curve\.png",
    *MODEL_FILES,
)  # fmt: skip
# The flags that name text.
TEXT_FLAGS = ("input", "validation_input", "replay_input", "general_input", "keep_input", "protect")
# Flags that may change when an adaptation is resumed: where it lies, and how the work uses the machine.
_FREE = (
    "output_dir", "overwrite_output_dir", "prepare_only", "num_processes", "per_device_train_batch_size",
    "disable_tqdm", "use_cpu", "save_steps",
)  # fmt: skip
# Flags that are passed to the training run unchanged.
_OF_PRETRAINING = (
    "per_device_train_batch_size", "mlm_probability", "masking_unit", "seed", "mixed_precision", "use_cpu",
    "max_eval_batches", "save_steps", "disable_tqdm",
)  # fmt: skip
_SCHEDULE_STEPS = 1000
_WARM_UP, _DECAY = 0.05, 0.3
_USUAL_STEPS, _LEAST_ROWS, _MOST_ROWS = 1000, 8, 64
# The learning rate for a model of this width; for other widths it is inversely proportional to the width. A student's
# layers do not fit together at first, and it learns more at a higher rate (docs/LOG.md).
_LEARNING_RATE, _STUDENT_LEARNING_RATE, _WIDTH = 1e-4, 7e-4, 768
# With a tenth, small BERTs forgot more than by run_mlm at its default rate; with a quarter, less (docs/adaptation.md).
_REPLAY_SHARE = 0.25

_TEXT, _VOCABULARY, _TRAINING = "text", "another vocabulary", "training and machine"


@dataclass
class AdaptationArguments(ReadingFlags):
    """The flags. Only a model, text and an output folder are needed."""

    model_name_or_path: str = flag(
        "the encoder with its masked-LM head: a ClozeBERT, or one that convert can read", ...
    )
    output_dir: str = flag("where the adapted model and its report go", ...)
    input: list[str] | None = flag("the new text, in any form that prepare-corpus reads")
    corpus: str | None = flag("instead of --input: what prepare-corpus wrote with the model's own tokenizer")
    validation_input: list[str] | None = flag(
        "new text to validate on; without it, some of --input is held out", section=_TEXT
    )
    validation_fraction: float = flag(
        "the share of the documents of --input and --replay_input to hold out", 0.01, section=_TEXT
    )
    deduplicate: Literal["none", "exact", "near"] = flag("none, exact (each text once) or near", "exact", section=_TEXT)
    num_processes: int | None = flag("processes that tokenize (default: one for each processor)", section=_TEXT)
    replay_input: list[str] | None = flag("text of the kind that the model was trained on, mixed in against forgetting")
    replay_share: float | None = flag(
        "the share of the rows that comes from --replay_input (default: 0.25)", section=_TEXT
    )
    general_input: list[str] | None = flag(
        "text to measure forgetting on (default: some held out of --replay_input)", section=_TEXT
    )
    protect: list[str] | None = flag(
        "test sets: the report says how much of each occurs in the training text", section=_TEXT
    )

    extend_vocabulary: int | None = flag(
        "learn this many new entries from --input, and add them to the vocabulary", section=_VOCABULARY
    )
    trim_vocabulary: bool = flag(
        "drop the entries that no text of this command uses (--protect is not counted)", False, section=_VOCABULARY
    )
    keep_input: list[str] | None = flag("with --trim_vocabulary: text whose entries stay too", section=_VOCABULARY)
    tokenizer_name: str | None = flag(
        "another tokenizer; embeddings of entries with the same text are carried over", section=_VOCABULARY
    )

    student: str | None = flag(
        "distil into a smaller model: a number of layers to keep, or a model with the same tokenizer"
    )
    max_minutes: float | None = flag("minutes that the whole command may take; they decide the number of steps")
    max_steps: int | None = flag("steps, which are updates of the weights (default: by --num_train_epochs)")
    num_train_epochs: float = flag("passes over the new text", 1.0)
    learning_rate: float | None = flag(
        "peak learning rate (default: 1e-4 x 768 / hidden size; for a student 7e-4 x 768 / hidden size)",
        section=_TRAINING,
    )
    global_batch_size: int | None = flag(
        "rows of max_seq_length tokens in a step (default: 8 to 64, by the tokens)", section=_TRAINING
    )
    per_device_train_batch_size: int = flag("rows in one micro-batch, at most", 32, section=_TRAINING)
    max_seq_length: int | None = flag("tokens in a packed row (default: at most 256)", section=_TRAINING)
    mlm_probability: float = flag("share of the tokens that is predicted", 0.3, section=_TRAINING)
    masking_unit: Literal["token", "word", "span"] = flag("what is masked as a whole", "token", section=_TRAINING)
    seed: int = flag("seed of order, masks and dropout", 42, section=_TRAINING)
    mixed_precision: Literal["auto", "no", "bf16", "fp16"] = flag(
        "precision (auto: bf16 where the hardware is fast at it, otherwise no)", "auto", section=_TRAINING
    )
    use_cpu: bool = flag("stay on the CPU even if there is a GPU", False, section=_TRAINING)
    max_eval_batches: int = flag("validate on this many batches of 32 rows, at most", 25, section=_TRAINING)
    save_steps: int = flag("steps between two checkpoints (fewer in a short run)", 500, section=_TRAINING)
    overwrite_output_dir: bool = flag("delete the adaptation in output_dir, and start over", False)
    prepare_only: bool = flag("stop before training, so that several processes can train", False, section=_TRAINING)
    disable_tqdm: bool = flag("show no progress bar", False)

    def __post_init__(self) -> None:
        read_fields(self)
        self._check_texts()
        if self.replay_share is None:
            self.replay_share = _REPLAY_SHARE
        elif not 1 / MIX_BLOCK <= self.replay_share <= 1 - 1 / MIX_BLOCK:
            raise UserError(
                f"replay_share={self.replay_share} must lie between 1/{MIX_BLOCK} and {MIX_BLOCK - 1}/{MIX_BLOCK}; to "
                f"replay nothing, leave out replay_input"
            )
        elif not self.replay_input:
            raise UserError(f"replay_share={self.replay_share} needs --replay_input, the text that it is a share of")
        holds_out = bool(self.replay_input) or (bool(self.input) and not self.validation_input)
        self._refuse_unused(holds_out=holds_out)
        if not 0 < self.validation_fraction < 1:
            raise UserError(
                f"validation_fraction={self.validation_fraction} must lie between 0 and 1, both excluded: the losses "
                f"before and after are of held-out text"
            )
        if self.max_steps is not None and self.max_minutes is not None:
            raise UserError(f"max_steps={self.max_steps} and max_minutes={self.max_minutes}: give one of them")
        for name in ("num_train_epochs", "max_minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"{name}={value} must be above 0")
        check_at_least(self, extend_vocabulary=1, max_steps=1, num_processes=1)
        # Checks the ranges of the flags that are passed to pretraining.
        self._for_checks()

    def _for_checks(self) -> PretrainingArguments:
        return self.for_pretraining(
            hidden_size=_WIDTH, rows=self.global_batch_size or 8, max_seq_length=self.max_seq_length or 256
        )

    def check_rows(self, processes: int) -> None:
        """Refuse a batch that cannot be split evenly; with `prepare_only`, other processes may train than prepare."""
        if self.global_batch_size is not None and not self.prepare_only:
            self._for_checks().micro_batches(processes)

    def _check_texts(self) -> None:
        if (self.input is None) == (self.corpus is None):
            raise UserError("give the new text: --input FILES, or --corpus DIR that clozebert prepare-corpus wrote")
        changed = [name for name in ("extend_vocabulary", "trim_vocabulary", "tokenizer_name") if getattr(self, name)]
        if self.corpus is not None and changed:
            raise UserError(f"{changed[0]} needs the text itself: give --input instead of --corpus")
        if self.corpus is not None and self.validation_input:
            raise UserError("validation_input goes with --input: a prepared corpus has its own validation split")
        if self.student is not None and changed:
            raise UserError(
                f"student={self.student} and {changed[0]}: a student needs its teacher's tokenizer; adapt first, and "
                f"distil the result"
            )
        if self.keep_input and not self.trim_vocabulary:
            raise UserError("keep_input needs --trim_vocabulary")

    def way_to_more(self, name: str) -> str:
        """How to get more of the text that is scored under this name: `new` or `general`."""
        if name == "general":
            return "give more, with --general_input"
        if self.corpus:
            return "prepare the corpus with more held out (prepare-corpus --validation_fraction)"
        return "hold out more, with --validation_fraction or --validation_input"

    def _refuse_unused(self, *, holds_out: bool) -> None:
        """Refuse flags about text that is not read here or not held out, and epochs where something else decides."""
        unused = {}
        if not holds_out:
            unused["validation_fraction"] = "no text is held out of --corpus, or beside --validation_input"
        if not any(getattr(self, name) for name in TEXT_FLAGS):
            names = ("document_separator", "deduplicate", "on_bad_text")
            unused |= dict.fromkeys(names, "a prepared corpus stays as it is")
        for name in ("max_steps", "max_minutes"):
            if getattr(self, name) is not None:
                unused["num_train_epochs"] = f"{name}={getattr(self, name)} sets the length"
        for name, why in unused.items():
            value = getattr(self, name)
            if value != type(self).__dataclass_fields__[name].default:
                raise UserError(f"{name}={value} has no effect: {why}; leave it out")

    def rows_for(self, tokens: float, *, max_seq_length: int) -> int:
        """The rows of a step: a power of two for which `tokens` make about 1,000 steps."""
        if self.global_batch_size is not None:
            return self.global_batch_size
        wanted = max(1.0, tokens / max_seq_length / _USUAL_STEPS)
        return min(_MOST_ROWS, max(_LEAST_ROWS, 1 << round(math.log2(wanted))))

    def rows_for_processes(self, rows: int, processes: int) -> int:
        """The rows of a step, rounded up so that several processes, and their micro-batches, share them evenly."""
        if self.global_batch_size is not None or processes == 1:
            return rows
        of_process = math.ceil(rows / processes)
        micro_batches = math.ceil(of_process / self.per_device_train_batch_size)
        return processes * micro_batches * math.ceil(of_process / micro_batches)

    @property
    def replayed(self) -> float:
        """The share of the rows that come from --replay_input; 0 without it."""
        return float(self.replay_share or 0) if self.replay_input else 0.0

    @property
    def settings(self) -> dict[str, Any]:
        """The flags that must not change when an adaptation is resumed."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in _FREE}

    @property
    def to_save_memory(self) -> str:
        """What to do where the adaptation does not fit into the memory."""
        return (
            f"lower per_device_train_batch_size={self.per_device_train_batch_size}, which keeps the batch of a step, "
            f"or max_seq_length, with --overwrite_output_dir"
        )

    @property
    def work(self) -> Path:
        """The folder of the stages' results."""
        return Path(self.output_dir) / WORK_FOLDER

    def for_pretraining(
        self, *, hidden_size: int, rows: int, max_seq_length: int, processes: int | None = None,
        max_steps: int | None = None, max_minutes: float | None = None,
    ) -> PretrainingArguments:  # fmt: skip
        """The flags of the training run: the rate warms up, stays at its peak, and decays over the last 30 %.

        Given its `processes`, and if no flag gives the rows of a step, a micro-batch has the most rows that fit.
        """
        work = self.work
        passed_on = {name: getattr(self, name) for name in _OF_PRETRAINING}
        if processes is not None and self.global_batch_size is None:
            of_process = max(1, rows // processes)
            most = self.per_device_train_batch_size
            passed_on["per_device_train_batch_size"] = largest_divisor(of_process, most=most)
        corpora, weights = [self.corpus or str(work / "corpus")], []
        if self.replay_input:
            corpora.append(str(work / "replay"))
            weights = [1 - self.replayed, self.replayed]
        of_width = _LEARNING_RATE if self.student is None else _STUDENT_LEARNING_RATE
        usual = float(f"{of_width * _WIDTH / hidden_size:.4g}")
        rate = usual if self.learning_rate is None else self.learning_rate
        arguments = PretrainingArguments(
            corpus=corpora,
            corpus_weights=weights,
            tokenizer_name=str(work / "start"),
            model_name_or_path=str(work / "start"),
            teacher_name_or_path=None if self.student is None else str(work / TEACHER_FOLDER),
            output_dir=str(work / "run"),
            resume_from_checkpoint="latest",
            max_steps=_SCHEDULE_STEPS,
            max_minutes=max_minutes,
            warmup_steps=int(_WARM_UP * _SCHEDULE_STEPS),
            decay_steps=int(_DECAY * _SCHEDULE_STEPS),
            lr_scheduler_type="wsd",
            learning_rate=rate,
            global_batch_size=rows,
            max_seq_length=max_seq_length,
            eval_steps=0,
            **passed_on,
        )
        return arguments if max_steps is None else arguments.of_length(max_steps)


def check_place(arguments: AdaptationArguments, contents: Mapping[str, Any]) -> None:
    """Check that the output folder can be used for this adaptation, or holds the same one, which can be resumed.

    Args:
        contents: for each flag that names a text, a model or a tokenizer, a hash of it; for `corpus` two.

    Raises:
        UserError: it holds another adaptation, or something else.
    """
    path = arguments.work / _SETTINGS
    if path.is_file() and not arguments.overwrite_output_dir:
        saved = read_json_object(path)
        measured = (arguments.work / BEFORE).is_file()
        for name, value in arguments.settings.items():
            if name in contents and saved.get(name) is not None:
                continue  # its content decides, wherever it is
            if name == "max_minutes" and value is not None and saved.get(name) is not None and not measured:
                continue  # nothing depends on it yet
            if saved.get(name) != value:
                raise UserError(
                    f"output_dir={arguments.output_dir} holds an adaptation with {name}={saved.get(name)!r}, and here "
                    f"it is {value!r}: give the same flags to go on, another output_dir, or --overwrite_output_dir"
                )
        there = saved.get(_CONTENTS, {})
        for name, found in contents.items():
            if there.get(name) != found:
                raise UserError(
                    f"output_dir={arguments.output_dir} holds an adaptation with another {name}: its content has "
                    "changed since; give another output_dir, or --overwrite_output_dir"
                )
        return
    check_output_dir(
        arguments.output_dir,
        overwrite=arguments.overwrite_output_dir,
        written=ADAPTATION_FILES,
        inputs=[
            ("model_name_or_path", arguments.model_name_or_path), ("corpus", arguments.corpus),
            ("tokenizer_name", arguments.tokenizer_name), ("student", arguments.student),
            *((name, place) for name in TEXT_FLAGS for place in getattr(arguments, name) or []),
        ],
    )  # fmt: skip


def write_settings(arguments: AdaptationArguments, contents: Mapping[str, Any]) -> None:
    """Record the flags of this adaptation in its folder, with the hashes of what they name."""
    write_json(arguments.work / _SETTINGS, {**arguments.settings, _CONTENTS: contents})
