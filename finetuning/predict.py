"""Labels for new text from a fine-tuned model: files or standard input in, one JSON object for each text out."""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from .arguments import flag

CHUNK = 1024  # examples read, predicted and written at a time


@dataclass
class PredictionArguments:
    """The flags of `predict`."""

    model_name_or_path: str = field(metadata={"help": "Folder or Hub name of a fine-tuned model."})
    input: list[str] = field(
        default_factory=lambda: ["-"],
        metadata={"help": "Files (.txt, .csv, .tsv, .jsonl, .parquet, .conll, .conllu), or - for lines of text."},
    )
    output_file: str = flag("File for the JSON lines, or - for standard output.", "-")
    text_column: str | None = flag("Column of the text in tables (default: as in training, else by name).")
    text_pair_column: str | None = flag("Column of the second text of a pair.")
    max_seq_length: int | None = flag("Tokens read at once (default: as in training).")
    batch_size: int = flag("Windows per forward pass.", 32)
    trust_remote_code: bool = flag("Allow code that comes with the model.", False)

    def __post_init__(self) -> None:
        for path in self.input:
            if path != "-" and not os.path.isfile(path):
                raise FileNotFoundError(f"--input {path}: there is no such file")
        if self.batch_size < 1:
            raise ValueError(f"--batch_size {self.batch_size}: must be at least 1")


def predict(arguments: PredictionArguments, standard_input: IO[str] | None = None) -> int:
    """Write a prediction for every text; the number of them.

    Raises:
        ValueError: the model has no head for classification, or an input cannot be read (with file and line).
    """
    predictor = Predictor(arguments)
    lines = sys.stdin if standard_input is None else standard_input
    output = sys.stdout if arguments.output_file == "-" else open(arguments.output_file, "w", encoding="utf-8")  # noqa: SIM115
    count = 0
    try:
        for path in arguments.input:
            for examples in _chunks(predictor.examples(path, lines)):
                for record in predictor.records(examples):
                    output.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
                    count += 1
                output.flush()
    finally:
        if output is not sys.stdout:
            output.close()
    return count


def _chunks(examples: Iterator[Any]) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    for example in examples:
        chunk.append(example)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


class Predictor:
    """A fine-tuned model with its tokenizer and the settings it was trained with."""

    def __init__(self, arguments: PredictionArguments) -> None:
        import torch

        from .models import LONGEST_BY_DEFAULT, be_quiet, load_fine_tuned, load_tokenizer, longest_input
        from .resume import SETTINGS_FILE
        from .trainer import make_collator
        from .windows import WindowMaker

        name, trusted = arguments.model_name_or_path, arguments.trust_remote_code
        self.arguments = arguments
        be_quiet()
        self.model, self.kind = load_fine_tuned(name, trust_remote_code=trusted)
        self.tokenizer = load_tokenizer(name, trust_remote_code=trusted)
        self.model.to("cuda" if torch.cuda.is_available() else "cpu")
        self.settings: dict[str, Any] = {}
        path = os.path.join(name, SETTINGS_FILE)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.settings = json.load(file)
        limit = longest_input(self.model, self.tokenizer)
        length = arguments.max_seq_length or self.settings.get("max_seq_length") or min(limit, LONGEST_BY_DEFAULT)
        if length > limit:
            raise ValueError(f"--max_seq_length {length}: the model reads at most {limit} tokens")
        overlap = 0 if self.kind == "sequence" else None
        if arguments.max_seq_length is None:
            overlap = self.settings.get("window_overlap", overlap)
        self.maker = WindowMaker(self.tokenizer, max_seq_length=length, overlap=overlap)
        self.task = self._task()
        self.collator = make_collator(self.model, self.tokenizer, per_token=self.kind == "token", packing=True)

    def _task(self) -> Any:
        from .sequence_task import MULTI_LABEL, REGRESSION, SINGLE_LABEL, SequenceTask
        from .token_task import TokenTask

        config = self.model.config
        names = [name for _, name in sorted(config.id2label.items())]
        if self.kind == "token":
            entities = "O" in names and all(name == "O" or name[:2] in ("B-", "I-") for name in names)
            return TokenTask(label_names=names, entities=entities)
        kinds = (SINGLE_LABEL, MULTI_LABEL, REGRESSION)
        by_size = REGRESSION if len(names) == 1 else SINGLE_LABEL
        problem_type = config.problem_type if config.problem_type in kinds else by_size
        return SequenceTask(problem_type=problem_type, label_names=names)

    def examples(self, path: str, lines: IO[str]) -> Iterator[Any]:
        """The texts of one input, checked."""
        from ..corpus.compression import bare_suffix, read_text
        from ..corpus.tables import TABLE_SUFFIXES

        suffix = bare_suffix(path)
        if path == "-":
            yield from self._of_lines(lines, "standard input")
        elif self.kind == "token" and suffix not in (".txt", ".csv", ".tsv"):
            from .tagged_files import read_tagged_file

            yield from read_tagged_file(path, with_tags=False)
        elif suffix in TABLE_SUFFIXES:
            yield from self._of_table(path)
        else:
            yield from self._of_lines(read_text(path).split("\n"), path)

    def _of_lines(self, lines: Any, source: str) -> Iterator[Any]:
        """Each line that is not blank is a text; of a model for pairs, two texts with a tab between."""
        pairs = self.kind == "sequence" and self.settings.get("text_pair_column") is not None
        for number, line in enumerate(lines, start=1):
            if line.strip():
                text, tab, pair = line.strip().partition("\t") if pairs else (line.strip(), "", None)
                if pairs and not tab:
                    raise ValueError(f"{source}, line {number}: the model takes pairs; put a tab between two texts")
                yield self._example(text, pair, source, number)

    def _of_table(self, path: str) -> Iterator[Any]:
        from .columns import SequenceColumns, find_columns
        from .sequence_task import read_examples
        from .tables import read_table

        table = read_table(path, wanted=(self.arguments.text_column, self.arguments.text_pair_column))
        if table.num_blank:
            print(f"{path}: left out {table.num_blank} rows in which every cell is blank", file=sys.stderr)
        as_trained = (self.settings.get("text_column"), self.settings.get("text_pair_column"))
        if self.arguments.text_column is None and as_trained[0] in table.columns:
            columns = SequenceColumns(str(as_trained[0]), as_trained[1], None)
        else:
            columns = find_columns(
                table,
                text_column=self.arguments.text_column,
                text_pair_column=self.arguments.text_pair_column,
                with_label=False,
            )
        examples = read_examples(table, columns, problem_type=None)
        for row, example in enumerate(examples):
            yield self._example(example.text, example.pair, table.source, table.lines[row])

    def _example(self, text: str, pair: str | None, source: str, line: int) -> Any:
        from .sequence_task import SequenceExample
        from .tagged_files import sentence_of_text

        if self.kind == "token":
            return sentence_of_text(text, None, source=source, line=line)
        return SequenceExample(text, pair, None, f"{source}, line {line}")

    def records(self, examples: list[Any]) -> list[dict[str, Any]]:
        """Predictions for checked examples."""
        from .trainer import predict_logits

        windows = self.task.windows(examples, self.maker)
        logits = predict_logits(self.model, windows, self.collator, batch_size=self.arguments.batch_size)
        assembled = self.task.assemble(examples, windows, logits)
        if self.kind == "token":
            return self.task.predictions(assembled, examples)
        texts = [{"text": e.text} if e.pair is None else {"text": e.text, "text_pair": e.pair} for e in examples]
        return [{**text, **record} for text, record in zip(texts, self.task.predictions(assembled), strict=True)]
