"""Loads fine-tuning data: the examples of every split, and the task that they define."""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from ..corpus.readers.columnar import open_dataset
from ..corpus.readers.columns import is_number
from ..corpus.readers.table_file import TableFile
from ..utils.errors import UserError
from ..utils.wording import counted
from .arguments import FinetuningArguments, SequenceArguments, TokenArguments
from .card import HELD_OUT, HubNames, hub_names
from .sequence_task import (
    MULTI_LABEL,
    REGRESSION,
    SINGLE_LABEL,
    SequenceExample,
    SequenceTask,
    are_whole_numbers,
    make_sequence_task,
    multi_hot_size,
    problem_type_of_values,
    read_examples,
    refuse_decimal_commas,
    write_whole_numbers_alike,
)
from .tables import Table, collect, find_columns, good_rows, read_table, refuse_rejected_rows
from .tagged_files import TAG_FIELDS, WORD_FIELDS, are_words, read_tagged_file, sentences_of_table
from .tags import detect_scheme, to_iob2
from .tasks import Task
from .token_task import TokenTask, make_token_task

TASKS: dict[str, type[Task]] = {task.task_type: task for task in (SequenceTask, TokenTask)}
_MOST_SHOWN = 10  # labels in a message
_ONE_OF = 10  # of so many examples, one is held out
_VALIDATION_SPLITS = ("validation", "dev", "valid", "validation_matched")
Splits = dict[str, list[Any]]  # "train", "validation" and, if given, "test"


class LabelledData(NamedTuple):
    """Checked examples of every split, the task they define, and facts: for prediction, and `on_hub` for the card."""

    splits: Splits
    task: Task
    facts: dict[str, Any]
    on_hub: HubNames


# Makes the task from the examples.
MakeTask = Callable[..., Task]


def read_data(arguments: FinetuningArguments, known: list[str] | None) -> LabelledData:
    """Read the data that the flags name; `known`: the model's own label names, if any."""
    on_hub = hub_names(arguments)
    _warn_of_training_data(arguments)
    if isinstance(arguments, SequenceArguments):
        splits, facts, make_task = _read_sequences(arguments)
    else:
        assert isinstance(arguments, TokenArguments)
        splits, facts, make_task = _read_sentences(arguments)
    if "validation" not in splits:
        facts["eval_split"] = HELD_OUT
        _hold_out_validation(splits, arguments.seed)
    _say_copies(splits)
    task = make_task(splits["train"], known_names=known)
    if arguments.class_weights == "balanced" and not task.has_classes:
        raise UserError(f"--class_weights balanced works for {SINGLE_LABEL} only, this is {task.problem_type}")
    for examples in splits.values():
        task.check(examples)
    if task.problem_type != REGRESSION:
        _say_missing_labels(splits, task)
    return LabelledData(splits, task, facts, on_hub)


def _warn_of_training_data(arguments: FinetuningArguments) -> None:
    """Print a warning if a file to evaluate on is the training file."""
    for name in ("validation_file", "test_file"):
        path = getattr(arguments, name)
        if path is not None and arguments.train_file is not None and os.path.samefile(path, arguments.train_file):
            print(f"--{name} is --train_file: its scores show what the model remembers, not how it does on new data")


def _read_sequences(arguments: SequenceArguments) -> tuple[Splits, dict[str, Any], MakeTask]:
    """Examples from tables: labels become names, sets of names or numbers."""
    if arguments.dataset_name is not None:
        files, eval_split = _dataset_splits(arguments)
        tables = {split: collect(file) for split, file in files.items()}
    else:
        tables, eval_split = _read_tables(arguments), "validation"
    for table in tables.values():
        if table.num_blank:
            print(f"{table.source}: {len(table)} rows; left out: {table.num_blank} in which every cell is blank")
        if not len(table):
            raise UserError(f"{table.source} has no rows")
    columns = find_columns(
        tables["train"],
        text_column=arguments.text_column,
        text_pair_column=arguments.text_pair_column,
        label_column=arguments.label_column,
    )
    assert columns.label is not None
    for table in tables.values():
        refuse_rejected_rows(table, columns.label)
    if arguments.problem_type is None:
        refuse_decimal_commas(tables["train"], columns.label)
    problem_type = arguments.problem_type or problem_type_of_values(tables["train"].columns[columns.label])
    if arguments.dataset_name is not None:
        _leave_out_hidden_test(tables, partial(_hides_labels, column=columns.label))
    multi_hot = multi_hot_size(tables["train"], columns.label) if problem_type == MULTI_LABEL else None
    if problem_type == SINGLE_LABEL and are_whole_numbers(tables["train"].columns[columns.label]):
        for table in tables.values():
            write_whole_numbers_alike(table, columns.label)
    splits: Splits = {
        split: read_examples(
            table,
            columns,
            problem_type=problem_type,
            multi_hot=multi_hot,
            numbers_are_texts=split != "train",  # the only text of a small file may be "1984"
        )
        for split, table in tables.items()
    }
    if multi_hot is not None:
        _say_absent_classes(splits["train"], multi_hot)
    facts = {
        "text_column": columns.text,
        "text_pair_column": columns.pair,
        "label_column": columns.label,
        "problem_type": problem_type,
        "multi_hot": multi_hot,
        "eval_split": eval_split,
    }
    # A column without a name has a number for one, and as the label of a regression that reads as an answer.
    value_name = "value" if columns.label.isdecimal() else columns.label
    return splits, facts, partial(make_sequence_task, problem_type=problem_type, value_name=value_name)


def _say_absent_classes(examples: list[SequenceExample], size: int) -> None:
    """Print the classes of vectors of zeros and ones that no training example has: the model gets none of them."""
    present = frozenset().union(*(example.labels for example in examples))
    absent = [name for name in map(str, range(size)) if name not in present]
    if absent:
        print(f"classes that no training example has, and that the model will not know: {', '.join(absent)}")


def _read_sentences(arguments: TokenArguments) -> tuple[Splits, dict[str, Any], MakeTask]:
    """Tagged sentences, with IOB2 or plain tags."""
    if arguments.dataset_name is not None:
        tables, eval_split = _dataset_splits(arguments)
        _leave_out_hidden_test(tables, partial(_hides_tags, tag_column=arguments.tag_column))
        splits: Splits = {
            split: sentences_of_table(table, tag_column=arguments.tag_column) for split, table in tables.items()
        }
    else:
        eval_split = "validation"
        paths = {"train": arguments.train_file, "validation": arguments.validation_file, "test": arguments.test_file}
        splits = {
            split: read_tagged_file(path, tag_column=arguments.tag_column) for split, path in paths.items() if path
        }
    for sentences in splits.values():
        if inexact := sum(sentence.inexact_spans for sentence in sentences):
            print(
                f"{sentences[0].source}: entities that begin or end inside a word: {inexact}; the whole word gets the "
                "label, and of two entities in one word the first counts"
            )
    scheme: str = arguments.tag_scheme
    if scheme == "auto":
        scheme = detect_scheme(chain.from_iterable(splits.values()))
    splits = {split: [to_iob2(sentence, scheme) for sentence in sentences] for split, sentences in splits.items()}
    facts = {"tag_scheme": scheme, "label_subwords": arguments.label_subwords, "eval_split": eval_split}
    return splits, facts, partial(make_token_task, scheme=scheme, label_subwords=arguments.label_subwords)


def _read_tables(arguments: SequenceArguments) -> dict[str, Table]:
    """The tables of all splits; all have a header or none has."""
    assert arguments.train_file is not None
    wanted = (arguments.text_column, arguments.text_pair_column, arguments.label_column)
    tables = {"train": read_table(arguments.train_file, wanted=wanted)}
    for split, path in (("validation", arguments.validation_file), ("test", arguments.test_file)):
        if path is not None:
            tables[split] = read_table(path, has_header=tables["train"].has_header)
    if tables["train"].is_header_in_doubt:
        print(
            f"{arguments.train_file}: its first row is taken for names of columns; if it is an example, give the "
            "numbers of the columns as --text_column and --label_column"
        )
    return tables


def _dataset_splits(arguments: FinetuningArguments) -> tuple[dict[str, TableFile], str]:
    """train, validation and test of a dataset, and what it calls its validation split."""
    assert arguments.dataset_name is not None
    tables = open_dataset(arguments.dataset_name, arguments.dataset_config_name)
    if "train" not in tables:
        raise UserError(f"--dataset_name: it has no split 'train', only {', '.join(tables)}")
    eval_split = next((name for name in _VALIDATION_SPLITS if name in tables), _VALIDATION_SPLITS[0])
    names = {"train": "train", "validation": eval_split, "test": "test"}
    return {split: tables[name] for split, name in names.items() if name in tables}, eval_split


def _leave_out_hidden_test(tables: dict[str, Any], hides: Callable[[Any], bool]) -> None:
    if "test" in tables and hides(tables["test"]):
        print(f"{tables.pop('test').source}: left out, as its labels are hidden")


def _hides_labels(table: Table, column: str) -> bool:
    return _are_hidden(table.columns.get(column, []))


def _are_hidden(labels: Iterable[Any]) -> bool:
    """Whether each label is missing or stands for none: -1, as in the test splits of GLUE, or -100."""
    return all(label is None or str(label) in ("-1", "-1.0", "-100") for label in labels)


def _hides_tags(table: TableFile, tag_column: str | None) -> bool:
    """Whether a split holds sentences of words with a field for their tags, and no word has one."""
    fields = TAG_FIELDS if tag_column is None else (tag_column,)
    is_empty = True
    for row in good_rows(table):
        is_empty = False
        tags: Any = next((row.values[name] for name in fields if name in row.values), "none")
        has_words = any(are_words(row.values.get(name)) for name in WORD_FIELDS)
        if not has_words or not (tags is None or (isinstance(tags, list) and _are_hidden(tags))):
            return False
    return not is_empty


def _choose(groups: list[list[int]], examples: list[Any]) -> set[int]:
    """A tenth of the examples, whole groups of them in the order given, so that every label stays with others, too.

    First comes an example of each label whose tenth rounds to one or more, as far as the tenth of all reaches.
    """
    most = max(1, len(examples) // _ONE_OF)
    left = Counter(chain.from_iterable(example.labels for example in examples))
    counts = Counter(chain.from_iterable(set(example.labels) for example in examples))
    missing = {name for name, count in counts.items() if 2 * count >= _ONE_OF}
    chosen: set[int] = set()
    for is_first_pass in (True, False):
        for group in groups:
            if group[0] in chosen or len(chosen) + len(group) > most:
                continue
            names = Counter(chain.from_iterable(examples[index].labels for index in group))
            if is_first_pass and missing.isdisjoint(names):
                continue
            if all(left[name] > count for name, count in names.items()):
                left.subtract(names)
                chosen.update(group)
                missing -= names.keys()
    return chosen


def _content(example: Any) -> Any:
    """The text of an example, or its words, without its labels."""
    return (example.text, example.pair) if isinstance(example, SequenceExample) else tuple(example.words)


def _say_copies(splits: Splits) -> None:
    """Print how many examples of a split are in one by which the model is trained or chosen, too."""
    known = {split: set(map(_content, splits[split])) for split in ("train", "validation")}
    for other, name, split, effect in (
        ("train", "training", "validation", "scores on them are too high"),
        ("train", "training", "test", "scores on them are too high"),
        ("validation", "validation", "test", "the best epoch is chosen by them, so their scores are too good"),
    ):
        examples = splits.get(split, [])
        if count := sum(_content(example) in known[other] for example in examples):
            print(f"{count:,} of the {len(examples):,} {split} examples are in the {name} data, too: {effect}")


def _say_missing_labels(splits: Splits, task: Task) -> None:
    """Print the labels of the training data that no example of another split has: no score says how these are found."""
    names = list(dict.fromkeys(map(task.class_of, task.label_names)))
    for split, examples in splits.items():
        if split == "train":
            continue
        present = {task.class_of(name) for example in examples for name in example.labels}
        missing = [name for name in names if name not in present]
        if missing and present:
            shown = ", ".join(missing[:_MOST_SHOWN]) + (", …" if len(missing) > _MOST_SHOWN else "")
            print(
                f"no {split} example has {counted(len(missing), 'label')} of the {len(names)}, so the scores say "
                f"nothing of: {shown}"
            )


def _hold_out_validation(splits: Splits, seed: int) -> None:
    """Make validation data of a tenth of the training data: of every label, but never its last example.

    Copies of a text stay together.
    """
    examples = splits["train"]
    if len(examples) < 2:
        raise UserError("one training example, and no --validation_file to evaluate on; give more data")
    order = list(range(len(examples)))
    random.Random(seed).shuffle(order)
    copies: dict[Any, list[int]] = {}
    for index, example in enumerate(examples):
        copies.setdefault(_content(example), []).append(index)
    groups = [copies[_content(examples[index])] for index in order]
    # Where each class is a single text, its copies are on both sides.
    held_out = _choose(groups, examples) or _choose([[index] for index in order], examples)
    if not held_out:
        are_texts = isinstance(examples[0], SequenceExample)
        are_amounts = are_texts and all(is_number(name) for example in examples for name in example.labels)
        hint = ", another --label_column, or --problem_type regression for amounts" if are_amounts else ""
        raise UserError(f"no example can be held out without losing its label; give --validation_file{hint}")
    splits["train"], splits["validation"] = [], []
    for index, example in enumerate(examples):
        splits["validation" if index in held_out else "train"].append(example)
