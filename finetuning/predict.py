"""Predicts with a fine-tuned model: reads files or standard input, writes one JSON object for each text."""

import codecs
import io
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from itertools import islice
from pathlib import Path
from typing import IO, Any

from ..corpus.readers.compression import bare_suffix, read_text
from ..corpus.readers.tables import TABLE_SUFFIXES, not_utf8, open_table
from ..utils.device import find_device
from ..utils.errors import UserError, as_user_errors
from ..utils.files import disk_errors, whole_file
from ..utils.memory import memory_errors
from ..utils.plurals import counted
from ..utils.progress_bar import progress_bar, quiet
from .arguments import PredictionArguments
from .data import TASKS
from .models import check_max_seq_length, compares_pairs, load_auto_tokenizer, load_fine_tuned
from .resume import read_settings
from .sequence_task import read_examples
from .tables import SequenceColumns, find_columns, read_table
from .trainer import are_finite, make_collator, predict_logits
from .windows import WindowMaker

CHUNK = 1024  # examples read, predicted and written at a time


@quiet()
def predict(arguments: PredictionArguments, standard_input: IO[str] | None = None) -> int:
    """Write a prediction for every text; returns the number of texts.

    Raises:
        ValueError: the model has no head for classification, or an input cannot be read (with file and line).
    """
    predictor = Predictor(arguments)
    lines = sys.stdin if standard_input is None else standard_input
    if isinstance(lines, io.TextIOWrapper):
        # As for files; bytes that are not UTF-8 are reported with their line.
        lines.reconfigure(encoding="utf-8-sig", errors="surrogateescape", newline="\n")
    place = Path("standard output" if arguments.output_file == "-" else arguments.output_file)
    smaller = f"lower batch_size={arguments.batch_size}"
    with memory_errors(smaller), disk_errors(place), _output(arguments.output_file) as output:
        return _write_predictions(predictor, arguments.input, lines, output)


@contextmanager
def _output(name: str) -> Iterator[IO[str]]:
    """Open the output. A file replaces an older one only when it is complete, so an error never leaves an empty file.

    Pipes and devices are written directly.
    """
    if name == "-":
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # as a file and the input, whatever the terminal's encoding
        yield sys.stdout
        return
    path = Path(name).resolve()  # a link is kept: the file that it points to is replaced
    file: Any
    with ExitStack() as opened:
        with as_user_errors(OSError, about="--output_file"):
            if path.exists() and not path.is_file():
                file = opened.enter_context(open(path, "w", encoding="utf-8"))
            else:
                # Unlike a TextIOWrapper, a codecs writer leaves closing to `whole_file`.
                file = codecs.getwriter("utf-8")(opened.enter_context(whole_file(path)))
        yield file


def _write_predictions(predictor: "Predictor", inputs: list[str], lines: IO[str], output: IO[str]) -> int:
    count = 0
    if len(inputs) > 1:
        _check_files(predictor, inputs)
    for path in inputs:
        found = predictor.examples(path, lines)
        # Standard input is read a chunk at a time; a file is read first, so its number of texts is known.
        texts = found if path == "-" else list(found)
        total = len(texts) if isinstance(texts, list) else None
        bar = progress_bar(description="predicting", unit=" texts", total=total, leave=False)
        waiting = iter(texts)
        while examples := list(islice(waiting, CHUNK)):
            for record in predictor.records(examples):
                output.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
                count += 1
            output.flush()
            bar.update(len(examples))
        bar.close()
    return count


def _check_files(predictor: "Predictor", inputs: list[str]) -> None:
    """Read all files once: a mistake in a later one must not cost the predictions of those before it."""
    with redirect_stderr(io.StringIO()):  # which rows are left out is said when a file is predicted
        for path in inputs:
            for _ in predictor.examples(path, ()) if path != "-" else ():
                pass


class Predictor:
    """A fine-tuned model with its tokenizer and the settings it was trained with."""

    def __init__(self, arguments: PredictionArguments) -> None:
        name, trusted = arguments.model_name_or_path, arguments.trust_remote_code
        self.arguments = arguments
        self.settings = read_settings(name)
        self.model, self.task = load_fine_tuned(name, TASKS.values(), settings=self.settings, trust_remote_code=trusted)
        # A model that another program trained has no settings.
        self.takes_pairs = self.settings.get("text_pair_column") is not None or compares_pairs(self.model)
        tokenizer = load_auto_tokenizer(name, trust_remote_code=trusted)
        self.model.to(find_device())
        wanted = arguments.max_seq_length or self.settings.get("max_seq_length")
        overlap = self.task.window_overlap
        if arguments.max_seq_length is None:
            overlap = self.settings.get("window_overlap", overlap)
        length = check_max_seq_length(wanted, self.model, tokenizer)
        self.maker = WindowMaker(tokenizer, max_seq_length=length, overlap=overlap)
        self.collator = make_collator(self.model, tokenizer, per_token=self.task.per_token, packing=True)

    def examples(self, path: str, lines: Iterable[str]) -> Iterator[Any]:
        """The checked texts of one input; `lines`: the lines of standard input."""
        if path == "-":
            return self._of_lines(lines, "standard input")
        is_table = bare_suffix(path) in TABLE_SUFFIXES
        of_task = None if is_table and self.arguments.text_column else self.task.read_file(path)
        if of_task is not None:
            return iter(of_task)
        if is_table:
            return self._of_table(path)
        text = read_text(path)
        if not text.strip():
            raise UserError(f"{path} is empty: name a file that holds a text in each line")
        texts = text.removesuffix("\n").split("\n")
        self.task.refuse_tagged(map(str.split, texts), path)
        return self._of_lines(texts, path)

    def _of_lines(self, lines: Iterable[str], source: str) -> Iterator[Any]:
        """One text per non-blank line; for a model of pairs, two texts separated by a tab."""
        num_blank = 0
        for number, line in enumerate(lines, start=1):
            if (byte := not_utf8(line)) is not None:
                raise UserError(f"{source}, line {number}: not UTF-8 (byte 0x{byte:02x}); convert the text")
            if not line.strip():
                num_blank += 1
                continue
            text, tab, pair = line.strip("\r\n").partition("\t") if self.takes_pairs else (line, "", None)
            if self.takes_pairs and (not tab or "\t" in str(pair).strip()):
                raise UserError(f"{source}, line {number}: the model takes pairs; put a tab between two texts")
            if pair is not None and not (text.strip() and pair.strip()):
                raise UserError(f"{source}, line {number}: one of the two texts is empty; fill it or remove the line")
            yield self.task.example(text.strip(), pair and pair.strip(), source=source, line=number)
        if num_blank:
            print(f"{source}: left out {counted(num_blank, 'blank line')}", file=sys.stderr)

    def _of_table(self, path: str) -> Iterator[Any]:
        wanted = [name for name in (self.arguments.text_column, self.arguments.text_pair_column) if name is not None]
        as_trained = (self.settings.get("text_column"), self.settings.get("text_pair_column"))
        opened = open_table(path)
        in_doubt = bool(opened.columns) and not wanted and not opened.is_sure_of_columns
        in_doubt = in_doubt and as_trained[0] not in opened.columns
        # If the first row may be data, it is treated as in training: numbered columns mean a file without header.
        without_header = in_doubt and str(as_trained[0]).isdigit()
        if in_doubt and not without_header:
            raise UserError(
                f"{path}: its first row may name columns or be a text; give --text_column, or the column's number if "
                f"the first row is no header (columns: {', '.join(opened.columns)})"
            )
        table = read_table(path, has_header=False if without_header else None, wanted=wanted)
        if bare_suffix(path) == ".tsv":
            header = [list(table.columns)] if table.has_header else []
            self.task.refuse_tagged([*header, *zip(*table.columns.values(), strict=True)], path)
        if table.num_blank:
            print(f"{path}: left out {table.num_blank} rows in which every cell is blank", file=sys.stderr)
        is_known = not wanted and as_trained[0] in table.columns
        if is_known:
            columns = SequenceColumns(str(as_trained[0]), as_trained[1], None)
        else:
            columns = find_columns(
                table,
                text_column=self.arguments.text_column,
                text_pair_column=self.arguments.text_pair_column,
                with_label=False,
            )
        if self.settings or self.takes_pairs or self.task.per_token:
            self._check_pairs(columns, path)
        texts = read_examples(table, columns, problem_type=None, numbers_are_texts=is_known or bool(wanted))
        for row, example in enumerate(texts):
            yield self.task.example(example.text, example.pair, source=table.source, line=table.lines[row])

    def _check_pairs(self, columns: SequenceColumns, path: str) -> None:
        """Raise for pairs if the model was trained on single texts, and the other way round."""
        if self.takes_pairs and columns.pair is None:
            raise UserError(f"{path}: the model takes pairs; give --text_column and --text_pair_column")
        if not self.takes_pairs and columns.pair is not None:
            raise UserError(
                f"{path}: the model takes single texts, and {columns.text!r} and {columns.pair!r} are a pair; "
                "give --text_column alone"
            )

    def records(self, examples: list[Any]) -> list[dict[str, Any]]:
        windows = self.task.windows(examples, self.maker)
        logits = predict_logits(self.model, windows, self.collator, batch_size=self.arguments.batch_size)
        if not are_finite(logits):
            raise UserError(
                f"--model_name_or_path {self.arguments.model_name_or_path}: its answers are not finite, so its "
                f"weights are not finite, or overflow: train it again, with a lower learning rate"
            )
        return self.task.predictions(self.task.assemble(examples, windows, logits), examples)
