"""`Preparation`: a corpus preparation as an object, run here or as steps of an engine such as datatrove.

    if __name__ == "__main__":                           # processes import the script once more
        preparation = Preparation(input=["text"], tokenizer_name="tokenizer", output_dir="corpus")
        preparation.run()                                # here; or in parts, which gives the same bytes:
        for part in range(16):
            preparation.run_part(part, 16)               # anywhere, in any order
        preparation.merge(16)

In an engine that calls its steps as `step(documents, rank, world_size)`, such as datatrove, `preparation` itself is the
step with 16 tasks, and `Merge(preparation, 16)` is the step with one task that depends on them.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...utils.errors import UserError, check_at_least, check_choice
from ...utils.output_folders import check_output_dir
from ..readers.formats import id_reader
from ..readers.inputs import INSTALLED_PYTHON, Reader, refuse_unused
from ..shards import CORPUS_FILES
from ..tokenizer import load_tokenizer, make_id_tokenizer
from .parts import cut, job, part_folder, read_about
from .prepare import DEDUPLICATION, ReportProgress, Run, prepare, readers_in_order

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass
class Preparation:
    """What a corpus is prepared from, and how; the fields are the flags of `prepare_corpus`."""

    input: list[str]
    tokenizer_name: str | None
    output_dir: str
    validation_input: list[str] | None = None
    validation_fraction: float | None = None
    deduplicate: str = "none"
    text_column: str | None = None
    document_separator: str = "blank_line"
    on_bad_text: str = "error"
    dataset_config_name: str | None = None
    num_processes: int | None = None
    overwrite_output_dir: bool = False
    id_column: str | None = None
    vocab_size: int | None = None

    def check(self, part: int | None = None, num_parts: int | None = None) -> None:
        """Raise the errors that can be found before the texts are read; token ids are read and checked here.

        Args:
            part: check one of `num_parts` parts alone, which does not write into the output folder.
            num_parts: without `part`: check a merge, which reads no text.
        """
        if part is None:
            check_output_dir(
                self.output_dir,
                overwrite=self.overwrite_output_dir,
                written=CORPUS_FILES,
                inputs=[("input", place) for place in [*self.input, *(self.validation_input or [])]],
                holds_model=False,
            )
        readers = readers_in_order(self._common["reader"], self._common["validation_reader"], self.deduplicate)
        if part is not None and num_parts is not None:
            readers = cut(readers, part=part, num_parts=num_parts)
        is_merge = part is None and num_parts is not None
        if self.id_column is not None and self.on_bad_text == "error" and not is_merge:
            for reader in readers:
                for _ in reader:
                    pass

    def run(self, report: ReportProgress | None = None) -> dict[str, dict[str, Any]]:
        """Read, tokenize and write everything; returns the manifests by split. See `prepare`."""
        self.check()
        return self.write(report)

    def run_part(self, part: int, num_parts: int, report: ReportProgress | None = None) -> Path:
        """Read and tokenize one of `num_parts` parts of the files, on any machine; `merge` joins them into the corpus.

        A part covers whole files. A part that exists already is kept, unless `overwrite_output_dir` is set.

        Returns:
            the part's folder, in `output_dir`.parts.

        Raises:
            UserError: as `prepare`; or an input is not made of files.
        """
        reader, validation_reader = self._common["reader"], self._common["validation_reader"]
        readers = readers_in_order(reader, validation_reader, self.deduplicate)
        folder = part_folder(Path(self.output_dir), part, num_parts)
        of_part = cut(readers, part=part, num_parts=num_parts)
        run = Run(
            of_part,
            tokenizer=self._common["tokenizer"],
            deduplicate=self.deduplicate,
            num_processes=self.num_processes,
            report=report,
        )
        identity = job(readers, run.job_facts(), num_parts=num_parts)
        if self.overwrite_output_dir or read_about(folder, of_part, job=identity) is None:
            run.tokenize_part(folder, identity)
        return folder

    def has_part(self, part: int, num_parts: int) -> bool:
        """Whether a part exists; its inputs are not compared (`run_part` does that)."""
        return part_folder(Path(self.output_dir), part, num_parts).is_dir()

    def merge(self, num_parts: int, report: ReportProgress | None = None) -> dict[str, dict[str, Any]]:
        """Write the corpus from all parts; returns the manifests by split. See `prepare`."""
        return self.write(report, num_parts=num_parts)

    def write(self, report: ReportProgress | None = None, *, num_parts: int | None = None) -> dict[str, dict[str, Any]]:
        """`run` without its checks, or `merge`."""
        return prepare(
            **self._common,
            validation_fraction=self._fraction(),
            num_processes=self.num_processes,
            num_parts=num_parts,
            overwrite=self.overwrite_output_dir,
            report=report,
            with_tokenizer=self.id_column is not None,
        )

    def __call__(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        """Run as a step of an engine: task `rank` of `world_size` prepares part `rank`."""
        self.run_part(rank, world_size)

    @cached_property
    def _common(self) -> dict[str, Any]:
        self._check_flags()
        validation = self._reader(self.validation_input, 0.0) if self.validation_input else None
        if validation and self.validation_fraction is not None:
            raise UserError(
                f"validation_fraction={self.validation_fraction} holds out some of input, and validation_input names "
                f"what is held out: give one of them"
            )
        reader = self._reader(self.input, 0.0 if validation else self._fraction())
        readers = [reader] if validation is None else [reader, validation]
        refuse_unused(readers, text_column=self.text_column, dataset_config_name=self.dataset_config_name)
        return {
            "reader": reader,
            "validation_reader": validation,
            "tokenizer": self._tokenizer(),  # last, as loading it takes seconds
            "output_dir": self.output_dir,
            "deduplicate": self.deduplicate,
        }

    @property
    def tokenizer_folder(self) -> str:
        """The folder of the tokenizer; for token ids, the tokenizer is made here."""
        return self.tokenizer_name or str(Path(self.output_dir) / "tokenizer")

    def _check_flags(self) -> None:
        """Refuse flags that contradict each other."""
        check_choice("deduplicate", self.deduplicate, DEDUPLICATION)
        check_at_least(self, vocab_size=1)
        if self.id_column is None:
            if self.vocab_size is not None:
                raise UserError(f"vocab_size={self.vocab_size} is for --id_column alone; a tokenizer has its own")
            if self.tokenizer_name is None:
                raise UserError("give --tokenizer_name DIR, or --id_column and --vocab_size where the text is ids")
            return
        if self.tokenizer_name is not None:
            raise UserError(f"id_column={self.id_column!r} needs no tokenizer_name={self.tokenizer_name!r}")
        if self.text_column is not None:
            raise UserError(f"id_column={self.id_column!r} and text_column={self.text_column!r}: give one of them")
        if self.vocab_size is None:
            raise UserError(f"id_column={self.id_column!r} needs --vocab_size: how many ids there are")

    def _tokenizer(self) -> "PreTrainedTokenizerFast":
        name = self.tokenizer_name
        return make_id_tokenizer(self.vocab_size or 1) if name is None else load_tokenizer(name)

    def _reader(self, inputs: list[str], held_out_fraction: float) -> Reader:
        return Reader(
            inputs,
            text_column=self.text_column if self.id_column is None else self.id_column,
            read_cell=None if self.id_column is None else id_reader(self.vocab_size or 1),
            document_separator=self.document_separator,
            on_bad_text=self.on_bad_text,
            dataset_config_name=self.dataset_config_name,
            held_out_fraction=held_out_fraction,
        )

    def _fraction(self) -> float:
        if self.validation_fraction is not None:
            return self.validation_fraction
        return 0.05 if INSTALLED_PYTHON in self.input else 0.01


@dataclass
class Merge:
    """The last step of an engine: merges all parts of a preparation into the corpus."""

    preparation: Preparation
    num_parts: int

    def __call__(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        """Merge the parts, in the first task only."""
        if rank == 0:
            self.preparation.merge(self.num_parts)
