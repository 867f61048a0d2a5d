"""Predicts with a fine-tuned model: reads files or standard input, writes one JSON object for each text."""

import codecs
import io
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..corpus.readers.compression import bare_suffix, read_text
from ..corpus.readers.table_file import not_utf8
from ..corpus.readers.tables import TABLE_SUFFIXES, open_table
from ..utils.device import find_device
from ..utils.errors import UserError, as_user_errors
from ..utils.files import disk_errors, whole_file, write_json
from ..utils.memory import memory_errors
from ..utils.progress_bar import progress_bar, quiet
from ..utils.wording import counted
from .arguments import PredictionArguments
from .batches import are_finite, make_collator, predict_logits
from .data import TASKS
from .metrics import check_metric_libraries
from .models import check_max_seq_length, compares_pairs, load_auto_tokenizer, load_fine_tuned
from .reports import table_of_results
from .resume import read_settings
from .sequence_task import (
    MULTI_LABEL,
    REGRESSION,
    SINGLE_LABEL,
    are_whole_numbers,
    multi_hot_size,
    read_examples,
    write_whole_numbers_alike,
)
from .tables import SequenceColumns, Table, find_columns, read_table, refuse_rejected_rows
from .tagged_files import read_tagged_file
from .tags import detect_scheme, to_iob2
from .tasks import Task
from .token_task import TokenTask
from .windows import MANY_UNKNOWN, WindowMaker, count_unknown

CHUNK = 1024  # examples read, predicted and written at a time


@quiet()
def predict(arguments: PredictionArguments, standard_input: IO[str] | None = None) -> int:
    """Write a prediction for every text; returns the number of texts.

    Raises:
        ValueError: the model has no head for classification, or an input cannot be read (with file and line).
    """
    predictor = Predictor(arguments)
    lines = sys.stdin if standard_input is None else standard_input
    if "-" in arguments.input and isinstance(lines, io.TextIOWrapper):
        # As for files; bytes that are not UTF-8 are reported with their line.
        lines.reconfigure(encoding="utf-8-sig", errors="surrogateescape", newline="\n")
    place = Path("standard output" if arguments.output_file == "-" else arguments.output_file)
    smaller = f"lower per_device_eval_batch_size={arguments.per_device_eval_batch_size}"
    with memory_errors(smaller), disk_errors(place), _output(arguments.output_file) as output:
        count = _write_predictions(predictor, arguments.input, lines, output)
    if arguments.scores_file is not None:  # now that nothing can happen to the answers
        results = predictor.scored.scores()
        write_json(arguments.scores_file, results)
        print(table_of_results(results, splits=["test"]), file=sys.stderr)
    return count


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
            logits = predictor.logits(examples)
            if predictor.arguments.scores_file is not None:
                predictor.scored.add(logits, examples)
            for record in predictor.task.predictions(logits, examples):
                output.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
                count += 1
            output.flush()
            bar.update(len(examples))
        bar.close()
    share = predictor.unknown / max(1, predictor.tokens)
    if share > MANY_UNKNOWN:
        print(f"warning: the model's tokenizer does not know {share:.1%} of the tokens", file=sys.stderr)
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
        if arguments.scores_file is not None:
            check_metric_libraries(tags=True)
        self.settings = read_settings(name)
        self.model, self.task = load_fine_tuned(name, TASKS.values(), settings=self.settings, trust_remote_code=trusted)
        # A model that another program trained has no settings.
        self.takes_pairs = self.settings.get("text_pair_column") is not None or compares_pairs(self.model)
        self._refuse_unused()
        self.scored = ScoredAnswers(self.task)
        self.unknown = self.tokens = 0  # of what was read: tokens that the tokenizer does not know, and all
        tokenizer = load_auto_tokenizer(name, self.model.config, trust_remote_code=trusted)
        self.model.to(find_device(use_cpu=arguments.use_cpu))
        wanted = arguments.max_seq_length or self.settings.get("max_seq_length")
        overlap = self.task.window_overlap
        if arguments.max_seq_length is None:
            overlap = self.settings.get("window_overlap", overlap)
        length = check_max_seq_length(wanted, self.model, tokenizer)
        self.maker = WindowMaker(tokenizer, max_seq_length=length, overlap=overlap)
        self.collator = make_collator(self.model, tokenizer, per_token=self.task.per_token, packing=True)

    def _refuse_unused(self) -> None:
        """Refuse the column of a label for a tagger, and of a tag for a classifier."""
        per_token, scores = self.task.per_token, self.arguments.scores_file is not None
        of_texts = ["text_column", "text_pair_column"] if scores else []
        unused = ["label_column", *of_texts] if per_token else ["tag_column"]
        for name in unused:
            if (value := getattr(self.arguments, name)) is not None:
                tags, texts = "tags words: --tag_column names the tags", "classifies texts: --label_column names labels"
                what = tags if per_token else texts
                raise UserError(f"--{name} {value} has no use here, as the model {what}")

    def examples(self, path: str, lines: Iterable[str]) -> Iterator[Any]:
        """The checked texts of one input; `lines`: the lines of standard input."""
        if self.arguments.scores_file is not None:
            return iter(self._labelled(path))
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

    def _labelled(self, path: str) -> list[Any]:
        """The examples of a file with their labels or tags, which the model must know."""
        task: Task = self.task
        examples: list[Any]
        if isinstance(task, TokenTask):
            flags = self.settings.get("arguments", {})
            sentences = read_tagged_file(path, tag_column=self.arguments.tag_column or flags.get("tag_column"))
            scheme = flags.get("tag_scheme", "auto") if task.entities else "plain"
            scheme = detect_scheme(sentences) if scheme == "auto" else scheme
            examples = [to_iob2(sentence, scheme) for sentence in sentences]
        elif bare_suffix(path) in TABLE_SUFFIXES:
            table, columns, numbers_are_texts = self._table(path)
            label = self._label_column(table, columns)
            refuse_rejected_rows(table, label)
            if task.problem_type == SINGLE_LABEL and are_whole_numbers(task.label_names):
                write_whole_numbers_alike(table, label)
            multi_hot = self.settings.get("multi_hot")
            if task.problem_type == MULTI_LABEL and "multi_hot" not in self.settings:  # another program's model
                multi_hot = multi_hot_size(table, label)
            examples = read_examples(
                table,
                replace(columns, label=label),
                problem_type=task.problem_type,
                multi_hot=multi_hot,
                numbers_are_texts=numbers_are_texts,
            )
        else:
            raise UserError(f"{path}: scores need labels, which are in a table ({', '.join(TABLE_SUFFIXES)})")
        task.check(examples)
        return examples

    def _label_column(self, table: Table, columns: SequenceColumns) -> str:
        given, trained = self.arguments.label_column, self.settings.get("label_column")
        if given is not None or trained in table.columns:
            return given or str(trained)
        found = find_columns(table, text_column=columns.text, text_pair_column=columns.pair)
        assert found.label is not None
        return found.label

    def _of_lines(self, lines: Iterable[str], source: str) -> Iterator[Any]:
        """One text per non-blank line; for a model of pairs, two texts separated by a tab."""
        num_blank = 0
        for number, line in enumerate(lines, start=1):
            if (byte := not_utf8(line)) is not None:
                raise UserError(f"{source}, line {number}: not UTF-8 (byte 0x{byte:02x}); convert the text")
            if not line.strip():
                num_blank += 1
                continue
            whole = line.strip("\r\n")  # spaces at the ends are part of the text, as in training
            text, tab, pair = whole.partition("\t") if self.takes_pairs else (whole, "", None)
            if self.takes_pairs and (not tab or "\t" in str(pair).strip()):
                raise UserError(f"{source}, line {number}: the model takes pairs; put a tab between two texts")
            if pair is not None and not (text.strip() and pair.strip()):
                raise UserError(f"{source}, line {number}: one of the two texts is empty; fill it or remove the line")
            yield self.task.example(text, pair and pair.rstrip("\t"), source=source, line=number)
        if num_blank:
            print(f"{source}: left out {counted(num_blank, 'blank line')}", file=sys.stderr)

    def _of_table(self, path: str) -> Iterator[Any]:
        table, columns, numbers_are_texts = self._table(path)
        texts = read_examples(table, columns, problem_type=None, numbers_are_texts=numbers_are_texts)
        for row, example in enumerate(texts):
            yield self.task.example(example.text, example.pair, source=table.source, line=table.lines[row])

    def _table(self, path: str) -> tuple[Table, SequenceColumns, bool]:
        """A table, the columns of its texts, and whether training or a flag names them: then numbers are texts, too."""
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
        return table, columns, is_known or bool(wanted)

    def _check_pairs(self, columns: SequenceColumns, path: str) -> None:
        """Raise for pairs if the model was trained on single texts, and the other way round."""
        if self.takes_pairs and columns.pair is None:
            raise UserError(f"{path}: the model takes pairs; give --text_column and --text_pair_column")
        if not self.takes_pairs and columns.pair is not None:
            raise UserError(
                f"{path}: the model takes single texts, and {columns.text!r} and {columns.pair!r} are a pair; "
                "give --text_column alone"
            )

    def logits(self, examples: list[Any]) -> Any:
        """The model's logits of some examples; an error if they are not finite."""
        windows = self.task.windows(examples, self.maker)
        unknown, tokens = count_unknown(windows, self.maker.tokenizer)
        self.unknown, self.tokens = self.unknown + unknown, self.tokens + tokens
        logits = predict_logits(
            self.model, windows, self.collator, batch_size=self.arguments.per_device_eval_batch_size
        )
        if not are_finite(logits):
            raise UserError(
                f"--model_name_or_path {self.arguments.model_name_or_path}: its answers are not finite, so its "
                f"weights are not finite, or overflow: train it again, with a lower learning rate"
            )
        return self.task.assemble(examples, windows, logits)


class ScoredAnswers:
    """Logits and labels of everything that was read, and the scores over all of it."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._logits: list[np.ndarray] = []
        self._examples: list[Any] = []

    def add(self, logits: Any, examples: list[Any]) -> None:
        self._logits.extend(logits)
        self._examples.extend(examples)

    def scores(self) -> dict[str, Any]:
        """Under the names that a run gives the scores of its test data."""
        logits: Any = self._logits if self._task.per_token else np.stack(self._logits)
        found = self._task.metrics(logits, self._examples)
        if self._task.problem_type == REGRESSION:  # these two go by the mean and the scale of the training labels
            found = {name: value for name, value in found.items() if name not in ("loss", "majority_mse")}
        return {**{f"test_{name}": value for name, value in found.items()}, "test_samples": len(self._examples)}
