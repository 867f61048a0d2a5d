"""The flags of the fine-tuning programs, their checks and their defaults. Needs no torch."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from ..corpus.readers.compression import COMPRESSIONS, bare_suffix
from ..corpus.readers.tables import TABLE_SUFFIXES
from ..utils.command_line import flag
from ..utils.errors import MissingFileError, UserError
from ..utils.files import MODEL_FILES
from ..utils.locks import owned_folder
from ..utils.output_folders import check_output_dir, closed_place
from ..utils.values import read_fields

DEFAULT_SEED = 42
# What --overwrite_output_dir deletes, also in the folder of each seed; see `files.written_in`.
FINETUNING_FILES = tuple(
    rf"(seed-\d+/)?{name}"
    for name in (
        r"checkpoint-\d+", *MODEL_FILES,
        r"(all|train|eval|test)_results\.json", r"(eval|test)_(predictions\.jsonl|mistakes\.txt|report\.json)",
        r"(eval|test)_(confusion|f1_by_class)\.png", r"finetuning_settings\.json", r"hyperparameter_search\.json",
    )
)  # fmt: skip

_ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]
PROBLEM_TYPES: tuple[str, ...] = get_args(_ProblemType)
# Transformers' schedules that need no more settings than the warm-up steps. Those that follow a score have no warm-up,
# and take a lower score for a better one.
_Schedule = Literal[
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"
]

_DATA, _TRAINING, _RUNS = "data", "training", "runs and machine"


@dataclass
class FinetuningArguments:
    """The flags of every task. Only a model, data and an output folder are needed."""

    task_type: ClassVar[str]
    model_name_or_path: str = flag("folder or Hub name of the encoder", ...)
    output_dir: str = flag("folder for the fine-tuned model and its results", ...)
    train_file: str | None = flag("training data")
    validation_file: str | None = flag("data for choosing the best epoch (default: a tenth of the training data)")
    test_file: str | None = flag("data to score the chosen model on")
    dataset_name: str | None = flag("a dataset on the Hub, or a folder that save_to_disk wrote, instead of files")
    dataset_config_name: str | None = flag("configuration of the dataset on the Hub", section=_DATA)
    overwrite_output_dir: bool = flag("delete the run in the output folder, and start over", False)
    resume_from_checkpoint: str | None = flag(
        "continue a stopped run: 'latest' (or begin, without a checkpoint), or a checkpoint's folder"
    )
    trust_remote_code: bool = flag("allow code that comes with the model", False, section=_RUNS)
    max_seq_length: int | None = flag("tokens read at once; longer texts become windows (default: at most 512)")
    window_overlap: int | None = flag(
        "tokens that neighbouring windows share (default: a quarter of the window in tagging, none in classification)",
        section=_DATA,
    )
    num_train_epochs: float | None = flag("passes over the data (default: by its size)")
    max_steps: int = flag("stop after this many optimizer steps; -1 for whole epochs", -1, section=_TRAINING)
    learning_rate: float | None = flag("peak learning rate (default: by the width of the model)")
    per_device_train_batch_size: int | None = flag("windows per step and device (default: by the size of the data)")
    per_device_eval_batch_size: int = flag("windows per forward pass in evaluation", 32, section=_RUNS)
    gradient_accumulation_steps: int = flag(
        "micro-batches per optimizer step; the gradient is that of one large batch", 1, section=_TRAINING
    )
    warmup_steps: float = flag("steps of linear warm-up; below 1, a share of all steps", 0.1, section=_TRAINING)
    lr_scheduler_type: _Schedule = flag("schedule after warm-up, by transformers' name", "linear", section=_TRAINING)
    weight_decay: float = flag("decoupled weight decay of matrices", 0.01, section=_TRAINING)
    layer_decay: float = flag("learning-rate factor for each layer further down", 1.0, section=_TRAINING)
    dropout: float | None = flag(
        "dropout in training (default: the model's own, or 0.1 where it has none)", section=_TRAINING
    )
    freeze_layers: int = flag("freeze the embeddings and this many layers, from the bottom", 0, section=_TRAINING)
    lora_rank: int | None = flag(
        "train low-rank updates of this rank (needs peft), merged at the end", section=_TRAINING
    )
    class_weights: Literal["none", "balanced"] = flag(
        "'none', or 'balanced' to give every class the same share of the training loss", "none", section=_TRAINING
    )
    early_stopping_patience: int | None = flag(
        "stop after this many evaluations without a better score", section=_TRAINING
    )
    eval_steps: int | None = flag(
        "steps between two evaluations, each with a checkpoint (default: one after each epoch)", section=_TRAINING
    )
    metric_for_best_model: str | None = flag(
        "score for choosing the best evaluation (default: by the task)", section=_TRAINING
    )
    mixed_precision: Literal["auto", "no", "bf16", "fp16"] = flag(
        "auto (bf16 where it is fast), no, bf16 or fp16", "auto", section=_RUNS
    )
    packing: Literal["auto", "off"] = flag(
        "'auto': no padding where the model reads packed batches, else batches of similar lengths; 'off': pad",
        "auto",
        section=_DATA,
    )
    seed: int = flag("seed of the new head, the order of the data, dropout, and what is held out", DEFAULT_SEED)
    seeds: list[int] | None = flag(
        "run once for each seed, in sub-folders, with the same examples held out; report mean and deviation",
        section=_RUNS,
    )
    hyperparameter_search: int | None = flag(
        "first try this many settings of learning rate, batch size and epochs (if not given), then train the best",
        section=_TRAINING,
    )
    report_to: str = flag("tracker for transformers' Trainer ('tensorboard', 'wandb' …)", "none", section=_RUNS)
    use_cpu: bool = flag("stay on the CPU even if there is a GPU", False, section=_RUNS)

    def __post_init__(self) -> None:
        read_fields(self)
        if self.dataset_name is None and self.train_file is None:
            raise UserError("give --train_file (or --dataset_name)")
        if self.dataset_name is not None and self.train_file is not None:
            raise UserError("give either --dataset_name or --train_file, not both")
        self._check_splits_of_dataset()
        for name in ("train_file", "validation_file", "test_file"):
            path = getattr(self, name)
            if path is not None and not os.path.isfile(path):
                of_folder = "is a folder: give one file, or the folder of a saved dataset as --dataset_name"
                wrong = of_folder if os.path.isdir(path) else "there is no such file"
                raise MissingFileError(f"--{name} {path}: {wrong}")
        self._check_numbers()
        self._check_combinations()
        self._check_seeds()

    def _check_splits_of_dataset(self) -> None:
        """Refuse flags that the origin of the data leaves without effect."""
        if self.dataset_name is None and self.dataset_config_name is not None:
            raise UserError(f"--dataset_config_name {self.dataset_config_name} needs --dataset_name")
        for name in ("validation_file", "test_file"):
            if self.dataset_name is not None and getattr(self, name) is not None:
                raise UserError(
                    f"--{name} {getattr(self, name)}: --dataset_name {self.dataset_name} has splits of its own; leave "
                    f"one of the two out, or give all data as files"
                )

    def _check_numbers(self) -> None:
        positive = (
            "max_seq_length", "num_train_epochs", "learning_rate", "per_device_train_batch_size",
            "per_device_eval_batch_size", "gradient_accumulation_steps", "early_stopping_patience", "eval_steps",
            "layer_decay", "lora_rank", "hyperparameter_search",
        )  # fmt: skip
        for name in positive:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"--{name} {value}: must be above 0")
        for name in ("warmup_steps", "weight_decay", "freeze_layers", "window_overlap"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise UserError(f"--{name} {value}: must not be negative")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise UserError(f"--dropout {self.dropout}: must be at least 0 and below 1")
        if self.max_steps == 0 or self.max_steps < -1:
            raise UserError(f"--max_steps {self.max_steps}: must be above 0, or -1 for whole epochs")
        if self.max_steps > 0 and self.num_train_epochs is not None:
            raise UserError(
                f"--max_steps {self.max_steps} and --num_train_epochs {self.num_train_epochs:g} both say how long the "
                f"run is: give one of them"
            )

        if self.lr_scheduler_type == "constant" and self.warmup_steps not in (0, type(self).warmup_steps):
            raise UserError(
                f"--warmup_steps {self.warmup_steps:g}: --lr_scheduler_type constant has no warm-up; take "
                f"constant_with_warmup"
            )

    def _check_combinations(self) -> None:
        if self.lora_rank is not None and self.freeze_layers:
            raise UserError("--lora_rank freezes the encoder already; leave out --freeze_layers")
        if self.overwrite_output_dir and self.resume_from_checkpoint is not None:
            raise UserError(
                "--overwrite_output_dir begins a new run, and --resume_from_checkpoint continues one; give one of them"
            )

    def _check_seeds(self) -> None:
        for seed in [self.seed, *(self.seeds or [])]:
            if not 0 <= seed < 2**32:
                raise UserError(f"{'--seed' if self.seeds is None else '--seeds'} {seed}: must be from 0 to 2**32 - 1")
        if self.seeds is None:
            return
        if not self.seeds:
            raise UserError("seeds=[] names no seed: give one or more, or leave it out")
        if len(set(self.seeds)) != len(self.seeds):
            raise UserError(f"--seeds {self.seeds}: a seed comes twice")
        if self.seed != DEFAULT_SEED:
            raise UserError(f"--seed {self.seed} and --seeds both choose seeds: give one of them")
        if self.resume_from_checkpoint not in (None, "latest"):
            raise UserError(
                f"--resume_from_checkpoint {self.resume_from_checkpoint}: it is of one seed, and --seeds trains "
                "several; give --resume_from_checkpoint latest"
            )


@dataclass
class SequenceArguments(FinetuningArguments):
    """The flags of `finetune_sequence_classification`."""

    task_type: ClassVar[str] = "sequence"
    text_column: str | None = flag("column of the text (default: found by name, else by content)")
    text_pair_column: str | None = flag("column of the second text of a pair", section=_DATA)
    label_column: str | None = flag("column of the label")
    problem_type: _ProblemType | None = flag(
        "single_label_classification, multi_label_classification or regression (default: by the labels)", section=_DATA
    )
    compare_pairs: bool | None = flag(
        "for pairs: the classifier compares the means of the two texts (default: a new one of a ClozeBERT model does)",
        section=_DATA,
    )


@dataclass
class TokenArguments(FinetuningArguments):
    """The flags of `finetune_token_classification`."""

    task_type: ClassVar[str] = "token"
    tag_column: str | None = flag("column or field of the tag: a name, or a number from 1 (-1: the last)")
    tag_scheme: Literal["auto", "iob1", "iob2", "bioes", "plain"] = flag(
        "auto, iob1, iob2, bioes or plain", "auto", section=_DATA
    )
    label_subwords: Literal["first", "all"] = flag(
        "subwords that carry their word's tag in training: 'all', or 'first' (then tag with clozebert predict)",
        "all",
        section=_DATA,
    )


@dataclass
class PredictionArguments:
    """The flags of `predict`."""

    model_name_or_path: str = flag("folder or Hub name of a fine-tuned model; can come first, without the flag", ...)
    input: list[str] = flag(
        "files (.txt, .csv, .tsv, .jsonl, .parquet; for taggers .conll, .conllu), or - for lines of text", ["-"]
    )
    output_file: str = flag("file for the JSON lines, or - for standard output", "-")
    text_column: str | None = flag("column of the text in tables (default: as in training, else by name)")
    text_pair_column: str | None = flag("column of the second text of a pair")
    scores_file: str | None = flag("JSON file for scores: the files hold labels or tags to compare the answers with")
    label_column: str | None = flag("column of the label, for the scores (default: as in training, else by name)")
    tag_column: str | None = flag("column or field of the tag, for the scores (default: as in training)")
    max_seq_length: int | None = flag("tokens read at once (default: as in training)")
    per_device_eval_batch_size: int = flag("windows per forward pass", 32)
    use_cpu: bool = flag("stay on the CPU even if there is a GPU", False)
    trust_remote_code: bool = flag("allow code that comes with the model", False)

    def __post_init__(self) -> None:
        read_fields(self)
        self._check_inputs()
        if os.path.exists(self.output_file):
            for path in self.input:
                if path != "-" and os.path.samefile(path, self.output_file):
                    raise UserError(f"--output_file {self.output_file}: it is --input too, and writing would empty it")
        self._check_outputs()
        for name in ("per_device_eval_batch_size", "max_seq_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name} {value}: must be at least 1")
        for name in ("text_column", "text_pair_column"):
            if getattr(self, name) is not None and not any(bare_suffix(path) in TABLE_SUFFIXES for path in self.input):
                raise UserError(f"--{name} {getattr(self, name)}: no --input is a table ({', '.join(TABLE_SUFFIXES)})")

    def _check_inputs(self) -> None:
        if not self.input:
            raise UserError("--input names no file: give one or more, or - for standard input")
        for path in self.input:
            if path != "-" and os.path.exists(path) and not os.path.isfile(path):
                raise UserError(f"--input {path}: not a file; pipe lines of text into --input -")
            if path != "-" and not os.path.isfile(path):
                raise MissingFileError(f"--input {path}: there is no such file")

    def _check_outputs(self) -> None:
        if Path(self.output_file).suffix.lower() in COMPRESSIONS:
            raise UserError(f"--output_file {self.output_file}: the answers are not compressed; name it .jsonl")
        if self.scores_file is None:
            for name in ("label_column", "tag_column"):
                if getattr(self, name) is not None:
                    raise UserError(f"--{name} {getattr(self, name)} is for scores: give --scores_file, too")
        elif os.path.isdir(self.scores_file) or closed_place(Path(os.path.abspath(self.scores_file)).parent):
            raise UserError(f"--scores_file {self.scores_file}: no file can be written there; give another")
        elif "-" in self.input:
            raise UserError(f"--scores_file {self.scores_file}: lines of text have no labels; give files to --input")
        elif os.path.realpath(self.scores_file) in map(os.path.realpath, [*self.input, self.output_file]):
            raise UserError(f"--scores_file {self.scores_file} is --input or --output_file, too: give another file")


# Flags that may change when a run is resumed; for the data, the content is compared instead.
_FREE_ON_RESUME = {
    "model_name_or_path", "output_dir", "train_file", "validation_file", "test_file", "overwrite_output_dir",
    "resume_from_checkpoint", "report_to", "trust_remote_code", "per_device_eval_batch_size", "seeds", "use_cpu",
}  # fmt: skip


def comparable(arguments: FinetuningArguments) -> dict[str, Any]:
    """The flags that determine the result of a run."""
    return {f.name: getattr(arguments, f.name) for f in fields(arguments) if f.name not in _FREE_ON_RESUME}


@contextmanager
def own_output_dir(arguments: FinetuningArguments) -> Iterator[None]:
    """Create the output folder and lock it against other programs.

    A folder with files in it raises an error, unless the flags say to resume, or to delete the run in it. It is deleted
    when model and data are known to fit.
    """
    resume = arguments.resume_from_checkpoint
    if resume not in (None, "latest") and not os.path.isdir(str(resume)):
        raise UserError(f"--resume_from_checkpoint {resume}: there is no such folder")
    check_output_dir(
        arguments.output_dir,
        overwrite=arguments.overwrite_output_dir or resume is not None,
        written=FINETUNING_FILES if arguments.overwrite_output_dir else (),
        inputs=[
            (f"--{name}", getattr(arguments, name))
            for name in ("model_name_or_path", "train_file", "validation_file", "test_file")
        ],
        name="--output_dir",
        way_out="choose another, or give --overwrite_output_dir or --resume_from_checkpoint latest",
    )
    with owned_folder(Path(arguments.output_dir)):
        yield


def default_epochs(num_examples: int, num_tokens: int) -> int:
    """Passes over the data: more for fewer examples; at most 3 M tokens in all, but at least two passes."""
    by_examples = next(
        (epochs for limit, epochs in ((500, 30), (2_000, 12), (5_000, 6), (20_000, 4)) if num_examples < limit), 3
    )
    return min(by_examples, max(2, 3_000_000 // max(1, num_tokens)))


def default_batch_size(num_examples: int) -> int:
    """Windows per step: small data sets get small batches, so that there are enough steps."""
    return 8 if num_examples < 500 else 16 if num_examples < 2_000 else 32


def default_learning_rate(hidden_size: int, *, compares_pairs: bool = False, post_norm: bool = False) -> float:
    """5e-5 × (768 / hidden size)², between 1e-5 and 2e-3: 5e-5 for a base model, 4.5e-4 for one of width 256.

    With norms behind the blocks, as BERT has them, the exponent is 1.5: 5e-5 and 2.6e-4. For a model that compares
    pairs it is 2e-5 × (768 / hidden size)^1.5, at most 2e-3: 2e-5 and 1e-4.
    """
    if compares_pairs:
        rate = 2e-5 * (768 / hidden_size) ** 1.5
    else:
        rate = max(1e-5, 5e-5 * (768 / hidden_size) ** (1.5 if post_norm else 2))
    return round(min(2e-3, rate), 7)
