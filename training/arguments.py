"""`PretrainingArguments`: every field of a pretraining run, with transformers' names where it has one."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..configuration.recipes import merge_nested
from ..utils.command_line import flag
from ..utils.errors import UserError, check_at_least, check_choice, reject_unknown_keys, there_and_here
from ..utils.values import read_fields
from .optimizers.schedules import inverse_sqrt_factor, learning_rate_factor

if TYPE_CHECKING:
    from ..corpus import BatchSize

# What a changed value means for a resumed run: other batches (refused), or other updates or figures (reported).
_SAME, _SAID = "same", "said"
# Fields that a later phase of a run cannot change.
_OF_THE_RUN = (
    "tokenizer_name", "output_dir", "overwrite_output_dir", "resume_from_checkpoint", "model_name_or_path", "dry_run",
    "teacher_name_or_path", "max_minutes", "num_train_epochs", "embedding_init", "position_init",
    "seed", "optimizer", "mixed_precision", "use_cpu", "full_determinism", "flash_attention",
    "report_to", "disable_tqdm", "phases", "ddp_timeout",
)  # fmt: skip
# Fields that depend on the number of steps.
LENGTHS = ("max_steps", "warmup_steps", "decay_steps", "batch_warmup_steps")
# Below 1 these are shares of max_steps.
SHARES = ("warmup_steps", "decay_steps", "batch_warmup_steps")
_LEAST_STEPS = {"batch_warmup_steps": 1}  # however short the run, since the first batch size is given beside it
# Fields that belong to one phase: the next one does not inherit them.
_OF_A_PHASE = ("warmup_steps", "decay_steps", "initial_global_batch_size", "batch_warmup_steps")
# With less, the weights that Muon trains grow during the run, and the encoder fine-tunes badly (docs/LOG.md).
_WEIGHT_DECAY = {"muon": 0.1, "adamw": 0.01}
_TRACKERS = ("tensorboard", "trackio", "wandb")


_BATCHES = "batches"
_NEW_MODEL = "initial weights of a new model"
_MASKING = "masking and predictions"
_OPTIMIZER = "optimizer and schedule"
_MACHINE = "precision and machine"
_RECORDS = "logging, evaluation, checkpoints"
_MORE = "several corpora, phases, a teacher"


@dataclass
class PretrainingArguments:
    """A pretraining run by masked-language modelling.

    One step is one update of the weights by one global batch: `global_batch_size` rows of `max_seq_length` tokens, or
    fewer while the batch size warms up. They are split over the processes and, in each, into micro-batches of
    `per_device_train_batch_size` rows. The split changes speed and memory, never the gradient.

    Without `max_steps`, `run_length.length_by_text` sets the number of steps. Until then `warmup_steps`, `decay_steps`
    and `batch_warmup_steps` may be shares of it, below 1.

    Raises:
        ValueError: a value that is out of range, of the wrong type, or contradicts another.
    """

    corpus: list[str] = flag("what prepare-corpus wrote: a folder or a URL; several are mixed", [], metavar="DIR")
    tokenizer_name: str = flag("the tokenizer of the corpus: a folder, or a name on the Hub", "")
    output_dir: str = flag("folder for the model, its checkpoints and the log", "")
    model_name_or_path: str | None = flag("continue from the weights of this model instead of random ones")
    teacher_name_or_path: str | None = flag("distil from this model, which must have the same tokenizer", section=_MORE)
    num_train_epochs: float | None = flag("passes over the corpus (default: 1 to 40, more for less text)")
    max_steps: int | None = flag("steps (updates of the weights), instead of epochs", on_resume=_SAID)
    max_minutes: float | None = flag(
        "end within this many minutes: the first steps are timed, and the run is shortened if necessary"
    )
    per_device_train_batch_size: int = flag("rows in one micro-batch, at most; fewer take less memory", 32)
    max_seq_length: int = flag("tokens in a row; longer documents are split", 128, on_resume=_SAME)
    resume_from_checkpoint: str | None = flag(
        "continue a stopped run: 'latest' (or begin, without a checkpoint), or a checkpoint's folder", metavar="DIR"
    )
    overwrite_output_dir: bool = flag("delete the run in output_dir, and start over", False)
    dry_run: bool = flag("print the plan of the run, take two steps, write nothing", False)

    global_batch_size: int = flag("rows in one step, over all devices", 256, _BATCHES, on_resume=_SAME)
    initial_global_batch_size: int | None = flag(
        "rows in the first step, rising evenly to global_batch_size", section=_BATCHES, on_resume=_SAME
    )
    batch_warmup_steps: int | float = flag(
        "steps of this batch-size warm-up; below 1: a share of the run", 0, _BATCHES, on_resume=_SAME
    )
    per_device_eval_batch_size: int = flag("rows in one validation batch", 32, _BATCHES, on_resume=_SAID)
    dataloader_num_workers: int = flag("processes that make batches; 0: a thread does", 0, _BATCHES)
    seed: int = flag("seed of initial weights, order, masks and dropout", 42, _BATCHES, on_resume=_SAME)

    embedding_init: Literal["random", "text"] = flag(
        "initial token embeddings; text: from counts of which tokens co-occur", "random", _NEW_MODEL, on_resume=_SAME
    )
    position_init: Literal["random", "sinusoidal"] = flag(
        "initial learned positions; with sinusoidal, heads of the first two layers also attend to near tokens",
        "random",
        _NEW_MODEL,
        on_resume=_SAME,
    )

    mlm_probability: float = flag("share of the tokens that is predicted", 0.3, _MASKING, on_resume=_SAME)
    final_mlm_probability: float | None = flag(
        "the same share at the end of the run; it changes linearly", section=_MASKING, on_resume=_SAME
    )
    masking_unit: Literal["token", "word", "span"] = flag(
        "what is masked as a whole", "token", _MASKING, on_resume=_SAME
    )
    mask_share: float = flag("share of the predicted tokens shown as [MASK]", 0.8, _MASKING, on_resume=_SAME)
    random_share: float = flag("share of the predicted tokens shown as a random token", 0.1, _MASKING, on_resume=_SAME)
    vocabulary_sample: int = flag(
        "compare predictions with this many tokens: the most frequent, and others drawn by frequency; 0: with all",
        0,
        _MASKING,
        on_resume=_SAME,
    )
    eval_mlm_probability: float = flag(
        "share of the validation tokens that is predicted; always the same ones", 0.15, _MASKING, on_resume=_SAID
    )

    learning_rate: float = flag("peak learning rate of AdamW", 5e-4, _OPTIMIZER, on_resume=_SAID)
    lr_scheduler_type: Literal["linear", "cosine", "wsd"] = flag(
        "how the learning rate falls (wsd: it stays at the peak first)", "linear", _OPTIMIZER, on_resume=_SAID
    )
    warmup_steps: int | float = flag(
        "steps of linear warm-up; below 1: a share of the run", 0, _OPTIMIZER, on_resume=_SAID
    )
    decay_steps: int | float | None = flag(
        "steps of wsd's decay; below 1: a share of the run (default: a fifth)", section=_OPTIMIZER, on_resume=_SAID
    )
    optimizer: Literal["adamw", "muon"] = flag(
        "adamw, or muon for the matrices and adamw for the rest", "adamw", _OPTIMIZER, on_resume=_SAME
    )
    muon_learning_rate: float = flag("peak learning rate of Muon", 0.02, _OPTIMIZER, on_resume=_SAID)
    muon_constant_steps: int | None = flag(
        "steps after which Muon's rate falls as 1 / sqrt(step) (default: it does not)",
        section=_OPTIMIZER,
        on_resume=_SAID,
    )
    muon_momentum: float = flag("momentum of Muon", 0.95, _OPTIMIZER, on_resume=_SAID)
    weight_decay: float | None = flag(
        "decoupled weight decay of linear layers; nothing else decays (default: muon 0.1, adamw 0.01)",
        section=_OPTIMIZER,
        on_resume=_SAID,
    )
    adam_beta1: float = flag("decay of AdamW's first moment", 0.9, _OPTIMIZER, on_resume=_SAID)
    adam_beta2: float = flag("decay of AdamW's second moment", 0.98, _OPTIMIZER, on_resume=_SAID)
    adam_epsilon: float = flag("added to AdamW's denominator", 1e-8, _OPTIMIZER, on_resume=_SAID)
    max_grad_norm: float = flag("clip the gradient to this norm; 0: do not clip", 1.0, _OPTIMIZER, on_resume=_SAID)

    mixed_precision: Literal["auto", "no", "bf16", "fp16"] = flag(
        "precision (auto: bf16 where the hardware is fast at it, otherwise no)", "auto", _MACHINE
    )
    bf16_residual: bool | None = flag(
        "with bf16, keep the residual stream in bf16 too: less memory to move (default: on CUDA, in pre-norm models)",
        section=_MACHINE,
    )
    gradient_checkpointing: bool = flag(
        "recompute activations in the backward pass: less memory, more time", False, _MACHINE
    )
    torch_compile: bool | None = flag(
        "compile with torch.compile (default: on CUDA)", section=_MACHINE, on_resume=_SAID
    )
    flash_attention: Literal["FA4"] | None = flag(
        "newer attention kernels for an H100, H200 or B200, if the package flash-attn-4 is installed",
        section=_MACHINE,
        on_resume=_SAID,
    )
    use_cpu: bool = flag("stay on the CPU even if there is a GPU", False, _MACHINE)
    full_determinism: bool = flag("only deterministic kernels; slower on GPUs", False, _MACHINE)
    ddp_timeout: int = flag("seconds after which a process or a data worker counts as hung", 300, _MACHINE)

    logging_steps: int = flag("steps between two log entries", 10, _RECORDS)
    eval_steps: int = flag(
        "steps between two evaluations (fewer in a short run without --max_steps); 0: only at the end", 500, _RECORDS
    )
    max_eval_batches: int | None = flag("evaluate on this many batches only", section=_RECORDS, on_resume=_SAID)
    save_steps: int = flag(
        "steps between two checkpoints (fewer in a short run without --max_steps); 0: only at the end", 500, _RECORDS
    )
    save_total_limit: int | None = flag("checkpoints to keep, the newest ones", 2, _RECORDS)
    report_to: list[str] = flag("trackers besides the log: tensorboard, trackio, wandb", [], _RECORDS, metavar="NAME")
    disable_tqdm: bool = flag("no progress bar; a line for each log entry instead", False, _RECORDS)

    corpus_weights: list[float] = flag(
        "share of the rows from each corpus (default: by their sizes)", [], _MORE, on_resume=_SAME
    )
    phases: list[dict] = flag(
        "further phases after max_steps: a YAML list, with the changed fields of each phase", [], _MORE, metavar="YAML"
    )

    def __post_init__(self) -> None:
        read_fields(self)
        if self.weight_decay is None:
            self.weight_decay = _WEIGHT_DECAY[self.optimizer]
        self._check_ranges()
        if self.max_steps is not None:
            for name in SHARES:
                setattr(self, name, _steps_of(getattr(self, name), self.max_steps, least=_LEAST_STEPS.get(name, 0)))
        self._check_together()
        if self.phases:
            self.split_phases()

    @classmethod
    def field_names(cls) -> list[str]:
        return [item.name for item in dataclasses.fields(cls)]

    @property
    def tokens_per_step(self) -> int:
        """The most tokens that one global batch can hold."""
        return self.global_batch_size * self.max_seq_length

    @property
    def batch_size(self) -> "BatchSize":
        """The rows of each step."""
        from ..corpus import BatchSize

        steps = self.batch_warmup_steps
        # A share of a length that is not known yet counts as one step, which is enough to check the sizes.
        warmup = int(steps) if steps >= 1 or not steps else 1
        return BatchSize(self.global_batch_size, self.initial_global_batch_size, warmup)

    @property
    def num_steps(self) -> int:
        """`max_steps` of a run whose length is known."""
        assert self.max_steps is not None, "the length of the run is chosen first: run_length"
        return self.max_steps

    def split_phases(self) -> "list[Phase]":
        """The phases of the run in order; without `phases` there is one.

        The first has these arguments. Each later one has those of the phase before, with the changes in its entry, but
        without warm-ups and with the schedule's default decay.

        Raises:
            ValueError: an invalid entry. The message names its index; `phases[0]` is the second phase.
        """
        found = [Phase(0, 0, self.num_steps, dataclasses.replace(self, phases=[]), {})]
        for number, entry in enumerate(self.phases):
            before = found[-1]
            changes = {"corpus_weights": [], **entry} if "corpus" in entry else dict(entry)
            model = changes.pop("model", None) or {}
            known = [name for name in self.field_names() if name not in _OF_THE_RUN]
            try:
                if not isinstance(model, dict):
                    raise UserError(f"model={model!r} must be `name: value` lines")
                if "vocab_size" in model:
                    raise UserError(f"vocab_size={model['vocab_size']}: leave it out, the tokenizer says it")
                if of_run := next((name for name in changes if name in _OF_THE_RUN), None):
                    raise UserError(f"{of_run} belongs to the whole run, and no phase can change it: leave it out")
                reject_unknown_keys(changes, [*known, "model"], where="a phase")
                if changes.get("max_steps") is None:
                    raise UserError("max_steps is missing: say how long the phase is")
                fresh = {name: PretrainingArguments.__dataclass_fields__[name].default for name in _OF_A_PHASE}
                arguments = dataclasses.replace(before.arguments, **{**fresh, **changes})
            except UserError as error:
                raise UserError(f"phases[{number}]: {error}") from None
            changed = merge_nested(before.model, model)
            found.append(Phase(len(found), before.last_step, arguments.num_steps, arguments, changed))
        return found

    def of_length(self, max_steps: int) -> "PretrainingArguments":
        """The same run with another number of steps: warm-ups and decay keep their share of it, if it had a length.

        From three steps on it is evaluated at least twice and saved at least three times, unless that is switched off.
        """
        before = self.max_steps
        kept = {name: getattr(self, name) for name in SHARES}
        if before is not None:
            kept |= {name: with_same_share(name, n, before, max_steps) for name, n in kept.items() if n}
        return dataclasses.replace(
            self,
            max_steps=max_steps,
            **kept,
            eval_steps=min(self.eval_steps, -(-max_steps // 2)),
            save_steps=min(self.save_steps, -(-max_steps // 4)),
        )

    def of_one_micro_batch(self, rows: int, world_size: int) -> "PretrainingArguments":
        """The same run in steps of a single micro-batch of `rows` rows in each of `world_size` processes."""
        return dataclasses.replace(
            self,
            global_batch_size=rows * world_size,
            initial_global_batch_size=None,
            batch_warmup_steps=0,
            per_device_train_batch_size=rows,
        )

    @property
    def mean_mlm_probability(self) -> float:
        """The share of the tokens that is predicted, over the whole run."""
        final = self.mlm_probability if self.final_mlm_probability is None else self.final_mlm_probability
        return (self.mlm_probability + final) / 2

    @property
    def num_decay_steps(self) -> int:
        """How many steps the decay of `wsd` takes; by default a fifth of the run, or what the warm-up leaves."""
        if self.decay_steps is not None:
            return int(self.decay_steps)
        return min(self.num_steps // 5, self.num_steps - int(self.warmup_steps))

    def learning_rate_factor(self, step: int) -> float:
        """The schedule's factor for the update made in `step`."""
        return learning_rate_factor(
            step,
            schedule=self.lr_scheduler_type,
            max_steps=self.num_steps,
            warmup_steps=int(self.warmup_steps),
            decay_steps=self.num_decay_steps,
        )

    def muon_factor(self, step: int) -> float:
        """Muon's further factor for that update."""
        return inverse_sqrt_factor(step, self.muon_constant_steps)

    def micro_batches(self, world_size: int) -> int:
        """How many micro-batches each of `world_size` processes makes of its share of a full global batch.

        Raises:
            ValueError: the global batch cannot be split evenly over the processes and micro-batches.
        """
        if self.global_batch_size % world_size:
            raise UserError(
                f"global_batch_size={self.global_batch_size} must be a multiple of the {world_size} processes"
            )
        if self.batch_size.smallest % world_size:
            rows = self.initial_global_batch_size
            raise UserError(f"initial_global_batch_size={rows} must be a multiple of the {world_size} processes")
        rows = self.global_batch_size // world_size
        size = min(rows, self.per_device_train_batch_size)
        if rows % size:
            raise UserError(
                f"per_device_train_batch_size={size} must divide the {rows} rows of a process "
                f"(global_batch_size={self.global_batch_size} over {world_size}); the nearest that does is "
                f"{largest_divisor(rows, most=size)}"
            )
        return rows // size

    def rows_at_once(self, world_size: int) -> int:
        """The rows of a full micro-batch in each of `world_size` processes."""
        return self.global_batch_size // world_size // self.micro_batches(world_size)

    @property
    def to_save_memory(self) -> str:
        """What to do where a run does not fit into the memory."""
        return (
            f"lower per_device_train_batch_size={self.per_device_train_batch_size}, which keeps the batch of a step, "
            f"or set gradient_checkpointing; while it evaluates, lower "
            f"per_device_eval_batch_size={self.per_device_eval_batch_size}"
        )

    def decisive(self) -> dict[str, Any]:
        """The fields that determine the weights and their validation figures; nothing about the machine."""
        return {
            item.name: getattr(self, item.name) for item in dataclasses.fields(self) if item.metadata.get("on_resume")
        }

    def changes_since(self, saved: dict[str, Any]) -> tuple[list[str], list[str]]:
        """How these arguments differ from a checkpoint's: changes that forbid resuming, and changes that are reported.

        Returns:
            Two lists of `name=old there, name=new here`.
        """
        here: dict[str, dict[str, Any]] = {_SAME: {}, _SAID: {}}
        for item in dataclasses.fields(self):
            if kind := item.metadata.get("on_resume"):
                here[kind][item.name] = getattr(self, item.name)
        if self.final_mlm_probability is not None:
            # The rate of a step depends on the length of the run.
            here[_SAME]["max_steps"] = self.max_steps
        return there_and_here(saved, here[_SAME]), there_and_here(saved, here[_SAID])

    def _check_ranges(self) -> None:
        check_at_least(
            self, max_steps=1, global_batch_size=1, per_device_train_batch_size=1, per_device_eval_batch_size=1,
            max_seq_length=8, seed=0, learning_rate=0, muon_learning_rate=0, weight_decay=0, max_grad_norm=0,
            warmup_steps=0, decay_steps=0, dataloader_num_workers=0, logging_steps=1, eval_steps=0, save_steps=0,
            max_eval_batches=1, save_total_limit=1, adam_epsilon=0, initial_global_batch_size=1, batch_warmup_steps=0,
            ddp_timeout=1, vocabulary_sample=0, muon_constant_steps=1,
        )  # fmt: skip
        for name in ("mlm_probability", "final_mlm_probability", "eval_mlm_probability"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise UserError(f"{name}={getattr(self, name)} must lie between 0 and 1, both excluded")
        if self.adam_epsilon == 0:  # a weight without a gradient would become 0 / 0
            raise UserError(f"adam_epsilon={self.adam_epsilon} must be above 0")
        for name in ("adam_beta1", "adam_beta2", "muon_momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must lie in [0, 1)")

    def _check_together(self) -> None:
        """Refuse missing values, and values that contradict one another."""
        self._check_paths()
        _ = self.batch_size  # raises where its values contradict one another
        if self.mask_share < 0 or self.random_share < 0 or self.mask_share + self.random_share > 1:
            raise UserError(
                f"mask_share={self.mask_share} and random_share={self.random_share} share the predicted tokens: "
                f"both must be at least 0, and their sum at most 1"
            )
        if self.vocabulary_sample and self.teacher_name_or_path is not None:
            raise UserError(
                f"vocabulary_sample={self.vocabulary_sample} with teacher_name_or_path={self.teacher_name_or_path!r}: "
                f"a teacher predicts the whole vocabulary; give --vocabulary_sample 0"
            )
        self._check_length()
        self._check_schedule()
        if self.overwrite_output_dir and self.resume_from_checkpoint == "latest":
            raise UserError(
                "overwrite_output_dir deletes the run that resume_from_checkpoint=latest would continue: give one"
            )
        for name in self.report_to:
            check_choice("report_to", name, _TRACKERS)

    def _check_paths(self) -> None:
        if not self.corpus:
            raise UserError("corpus is missing: give the folder that clozebert prepare-corpus wrote (--corpus DIR)")
        if self.corpus_weights and len(self.corpus_weights) != len(self.corpus):
            raise UserError(
                f"corpus_weights={self.corpus_weights} and corpus={self.corpus}: give one weight for each corpus"
            )
        if not self.tokenizer_name:
            raise UserError("tokenizer_name is missing: give the tokenizer's folder (--tokenizer_name DIR)")
        if not self.output_dir and not self.dry_run:
            raise UserError("output_dir is missing: say where the model goes (--output_dir DIR)")

    def _check_length(self) -> None:
        for name in ("max_minutes", "num_train_epochs"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UserError(f"{name}={value} must be above 0")
        if self.phases and self.max_steps is None:
            raise UserError("phases need max_steps: say how long the first phase is, too (--max_steps)")
        if self.max_minutes is not None and self.phases:
            raise UserError("max_minutes does not go with phases: give max_steps for each of them instead")

    def _check_schedule(self) -> None:
        warmup, decay = self.warmup_steps, self.decay_steps or 0
        if self.max_steps is not None and warmup + decay > self.max_steps:
            raise UserError(f"warmup_steps={warmup} and decay_steps={decay} do not fit into max_steps={self.max_steps}")
        if sum(share for share in (warmup, decay) if share < 1) > 1:
            raise UserError(f"warmup_steps={warmup} and decay_steps={decay} are more than the whole run")
        if self.decay_steps is not None and self.lr_scheduler_type != "wsd":
            raise UserError(
                f"decay_steps={self.decay_steps} needs lr_scheduler_type='wsd', not {self.lr_scheduler_type!r}"
            )


@dataclass(frozen=True)
class Phase:
    """A part of a run with its own arguments.

    Attributes:
        index: which phase it is, from 0.
        first_step, num_steps: how many steps of the run come before it, and how many it has.
        arguments: its own; `max_steps` is the length of the phase, but for a dry run, which takes fewer.
        model: the fields of the model's configuration that differ from the run's.
    """

    index: int
    first_step: int
    num_steps: int
    arguments: PretrainingArguments
    model: dict[str, Any]

    @property
    def last_step(self) -> int:
        """How many steps of the run are done when it ends."""
        return self.first_step + self.num_steps


def divisors(number: int) -> Iterator[int]:
    """The divisors of a number, the largest first."""
    return (divisor for divisor in range(number, 0, -1) if number % divisor == 0)


def largest_divisor(number: int, *, most: int) -> int:
    """The largest divisor of a number that is at most `most`."""
    return next(divisor for divisor in divisors(number) if divisor <= most)


def with_same_share(name: str, steps: float, before: float, after: float) -> int:
    """The steps of a warm-up or decay (one of `SHARES`) in a run of `after` steps, where it has `steps` of `before`."""
    return max(int(steps) * int(after) // int(before), _LEAST_STEPS.get(name, 0))


def _steps_of(steps: int | float | None, max_steps: int, *, least: int) -> int | None:
    """A number of steps; below 1 it is a share of `max_steps`, of at least `least` steps."""
    if not steps:
        return None if steps is None else 0
    # In binary, a share such as 29 / 100 is a little too small.
    return max(least, int(steps * max_steps + 1e-9 if steps < 1 else steps))
