"""Readers of tables: what they read, and that what they cannot read is an error with its line."""

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from clozebert.corpus.readers.columnar import open_dataset
from clozebert.corpus.readers.tables import open_table
from clozebert.finetuning.arguments import SequenceArguments
from clozebert.finetuning.data import read_data
from clozebert.finetuning.sequence_task import (
    MULTI_LABEL,
    REGRESSION,
    SINGLE_LABEL,
    SequenceExample,
    SequenceTask,
    label_names_of,
    make_sequence_task,
    multi_hot_size,
    problem_type_of_values,
    read_examples,
)
from clozebert.finetuning.tables import Table, find_columns, read_table
from clozebert.finetuning.tags import TaggedSentence
from clozebert.finetuning.token_task import TokenTask
from clozebert.utils.errors import UserError


def write(folder: Path, name: str, text: str | bytes) -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_csv_with_quoted_line_breaks_knows_where_each_row_begins(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "a.csv", 'text,label\r\n"two\r\nlines, and ""quotes""",x\r\nplain,y\r\n'))
    assert table.columns == {"text": ['two\r\nlines, and "quotes"', "plain"], "label": ["x", "y"]}
    assert table.lines == [2, 4]
    assert table.where(1).endswith("a.csv, line 4")


def test_semicolons_and_byte_order_mark(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "a.csv", "\ufefftext;label\na, b;x\n"))
    assert table.columns == {"text": ["a, b"], "label": ["x"]}


def test_tsv_quotes_are_ordinary_characters(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "a.tsv", 'text\tlabel\nhe said "no\tx\n"all ""quoted"""\ty\n'))
    assert table.columns["text"] == ['he said "no', 'all "quoted"']


def test_tsv_falls_back_to_quotes_that_hold_tabs_and_lines(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "a.tsv", 'text\tlabel\n"a\nb"\tx\n"c\td"\ty\n'))
    assert table.columns["text"] == ["a\nb", "c\td"]
    assert table.lines == [2, 4]


def test_a_file_without_header_gets_numbered_columns(tmp_path: Path) -> None:
    rows = "".join(f"genre\timages\t2014\t{i:04}\t{i / 3:.1f}\tone sentence {i}\tanother one {i}\n" for i in range(20))
    table = read_table(write(tmp_path, "sts.tsv", rows))
    assert not table.has_header
    assert len(table) == 20
    columns = find_columns(table)
    assert (columns.text, columns.pair, columns.label) == ("6", "7", "5")
    assert problem_type_of_values(table.columns["5"]) == REGRESSION


def test_repeated_label_in_first_row_means_no_header(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "a.csv", "good film,pos\nbad film,neg\nnice film,pos\n"))
    assert not table.has_header
    assert len(table) == 3


def test_json_lines_and_array_give_the_same(tmp_path: Path) -> None:
    records = [{"text": "a\u2028b", "label": ["x", "y"]}, {"text": "c", "label": []}]
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    from_lines = read_table(write(tmp_path, "a.jsonl", lines))
    from_array = read_table(write(tmp_path, "a.json", json.dumps(records)))
    assert from_lines.columns == from_array.columns == {"text": ["a\u2028b", "c"], "label": [["x", "y"], []]}


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"text": ["a", "b"], "label": [0, 1]}), path)
    table = read_table(path)
    assert table.columns == {"text": ["a", "b"], "label": [0, 1]}
    assert table.where(0).endswith("row 1")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,label\na,x\nb\n", r"a\.csv, line 3: 1 columns where the first row has 2"),
        ("a.csv", 'text,label\na,x\n"b,y\nc,x\n', r"a\.csv, line 3: broken quote in the row that begins here"),
        ("a.csv", 'text,label\n"a"b,x\n', r"a\.csv, line 2: broken quote"),
        ("a.csv", "", "is empty"),
        ("a.csv", "text,label\n", "has a header and no rows"),
        ("a.csv", "text,text\na,b\n", "two columns are named 'text'"),
        ("a.csv", b"text,label\na,x\n\xff,y\n", r"a\.csv, line 3: byte 0xff is not UTF-8: convert the file"),
        ("a.json", b'[{"text": "\xff"}]', r"a\.json, line 1: byte 0xff is not UTF-8: convert the file"),
        ("a.csv", b"text,cat\xe9gorie\na,x\nb,y\n", r"a\.csv: the column name 'cat.*gorie' is not UTF-8: convert"),
        ("a.jsonl", b'{"text": "a", "\\ud83d": "x"}\n', r"a\.jsonl: the column name '.ud83d' is not UTF-8: convert"),
        ("a.jsonl", b'{"text": "\xff"}\n', r"a\.jsonl, line 1: byte 0xff is not UTF-8: convert the file"),
        ("a.tsv", "text\tlabel\na\tx\tz\n", r"a\.tsv, line 2: 3 columns where the first row has 2"),
        ("a.jsonl", '{"text": "a"}\n{"text": \n', r"a\.jsonl, line 2: not JSON"),
        ("a.jsonl", "[1]\n", "expected a JSON object, found int"),
        ("a.parquet", b"nothing of the kind", "not a Parquet file"),
        ("a.xlsx", "x", "cannot tell its format"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_line(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read_table(write(tmp_path, name, content))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no such file: .*gone\.csv"):
        read_table(str(tmp_path / "gone.csv"))


# Columns and labels


def table_of(**columns: list) -> Table:
    return Table("data.jsonl", columns, list(range(1, len(next(iter(columns.values()))) + 1)))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("text", "category"), ("text", None, "category")),
        (("idx", "sentence1", "sentence2", "label"), ("sentence1", "sentence2", "label")),
        (("label", "premise", "hypothesis"), ("premise", "hypothesis", "label")),
        (("id", "Text", "Score"), ("Text", None, "Score")),
        (("question", "sentence", "label"), ("question", "sentence", "label")),
    ],
)
def test_columns_found_by_name(names: tuple[str, ...], expected: tuple) -> None:
    columns = find_columns(table_of(**{name: ["a", "b"] for name in names}))
    assert (columns.text, columns.pair, columns.label) == expected


def test_columns_given_by_hand_win_and_a_wrong_name_says_which_there_are() -> None:
    table = table_of(text=["a"], other=["b"], label=["x"])
    assert find_columns(table, text_column="other").text == "other"
    with pytest.raises(ValueError, match=r"--text_column txt: data\.jsonl has no such column; it has text"):
        find_columns(table, text_column="txt")


def test_undecidable_columns_are_an_error_that_lists_them() -> None:
    table = table_of(a=["one two"] * 3, b=["x", "y", "z"], c=["x", "y", "z"])
    with pytest.raises(ValueError, match=r"--text_column \(columns: a, b, c\)"):
        find_columns(table)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", "b"], SINGLE_LABEL),
        ([0, 1, 2], SINGLE_LABEL),
        (["1", "2.5"], REGRESSION),
        ([0.25, 1], REGRESSION),
        ([["a"], []], MULTI_LABEL),
        (['["a"]', "[]"], MULTI_LABEL),
        ([' ["a"]', " []"], MULTI_LABEL),
    ],
)
def test_problem_type_by_the_labels(values: list, kind: str) -> None:
    assert problem_type_of_values(values) == kind


def test_one_label_in_two_unicode_forms_is_refused() -> None:
    examples = [SequenceExample("t", None, label, "f") for label in ("caf\u00e9", "bar", "cafe\u0301")]
    with pytest.raises(ValueError, match="are the same text in two Unicode forms: write them alike"):
        label_names_of(examples, SINGLE_LABEL)


def test_other_data_may_not_have_a_label_in_another_unicode_form() -> None:
    tagger = TokenTask(label_names=["caf\u00e9", "bar"], entities=False)
    tagged = TaggedSentence(["t"], [False], ["cafe\u0301"], "dev.conll", 7)
    classifier = SequenceTask(problem_type=SINGLE_LABEL, label_names=["caf\u00e9", "bar"])
    example = SequenceExample("t", None, "cafe\u0301", "dev.csv, line 7")
    for task, one, where in ((tagger, tagged, "dev.conll, line 7"), (classifier, example, "dev.csv, line 7")):
        with pytest.raises(ValueError, match=rf"{where}: the (tag|label) .* are the same text in two Unicode forms"):
            task.check([one])


def test_label_names_do_not_depend_on_the_order_of_rows() -> None:
    def names(labels: list) -> list[str]:
        table = table_of(text=["a"] * len(labels), label=labels)
        return label_names_of(read_examples(table, find_columns(table), problem_type=SINGLE_LABEL), SINGLE_LABEL)

    assert names(["b", "a", "c"]) == names(["c", "b", "a"]) == ["a", "b", "c"]
    assert names(["10", "9", "2"]) == ["2", "9", "10"]
    assert names([1.0, 0.0]) == names([Decimal("1.0"), Decimal("0.0")]) == ["0", "1"]  # Parquet has decimals, too


@pytest.mark.parametrize(
    ("text", "label", "kind", "message"),
    [
        ("  ", "x", SINGLE_LABEL, "line 2: the text .* is empty"),
        (None, "x", SINGLE_LABEL, "line 2: the text .* is empty"),
        (float("nan"), "x", SINGLE_LABEL, "line 2: the text .* is empty"),
        (7, "x", SINGLE_LABEL, "line 2: column 'text' is not text but int"),
        ("a", float("nan"), SINGLE_LABEL, "line 2: the label .* is missing"),
        ("a", "", SINGLE_LABEL, "line 2: the label .* is missing"),
        ("a", "NaN", SINGLE_LABEL, "line 2: the label .* is missing"),
        ("a", None, SINGLE_LABEL, "line 2: the label .* is missing"),
        ("a", b"x", SINGLE_LABEL, "line 2: the label .* is a bytes, expected one value"),
        ("a", ["x"], SINGLE_LABEL, "line 2: the label .* is a list, expected one value"),
        ("a", "high", REGRESSION, "line 2: the label .* is 'high', expected a finite number"),
        ("a", float("nan"), REGRESSION, "line 2: the label .* expected a finite number"),
        (
            "a",
            "2,5",
            REGRESSION,
            "line 2: the label .* is '2,5', .* number; write numbers without commas",
        ),
        ("a", "x", MULTI_LABEL, "line 2: the label .* expected a list of labels"),
        ("a", "[x", MULTI_LABEL, "line 2: the label .* not a JSON list"),
        ("a", ["x", "y", "x"], MULTI_LABEL, "line 2: the list of labels .* holds 'x' more than once"),
        ("a", ["x", ["y"]], MULTI_LABEL, "line 2: the label .* is a list, expected one value"),
        ("a", [float("nan"), "x"], MULTI_LABEL, "line 2: the label .* is missing"),
        ("a", [0.5, 1.5], MULTI_LABEL, "line 2: the list of labels .* holds 0.5; .* a regression has one number"),
    ],
)
def test_bad_cells_are_errors_with_their_line(text: object, label: object, kind: str, message: str) -> None:
    good = {SINGLE_LABEL: "x", REGRESSION: 1.5, MULTI_LABEL: ["x"]}[kind]
    table = table_of(text=["fine", text], label=[good, label])
    with pytest.raises(ValueError, match=message):
        read_examples(table, find_columns(table), problem_type=kind)


@pytest.mark.parametrize(
    "labels",
    [
        [[0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
        [[0, 1, 1], [1, 0, 0], [0, 0, 0]],
        [[False, True, True], [True, False, False], [False] * 3],
        ["[0, 1, 1]", "[1, 0, 0]", "[0, 0, 0]"],
    ],
)
def test_vectors_of_zeros_and_ones_are_the_classes_that_are_one(labels: list) -> None:
    """The form that transformers' own classifier of several labels takes."""
    table = table_of(text=["a", "b", "c"], label=labels)
    columns, size = find_columns(table), multi_hot_size(table, "label")
    assert size == 3
    examples = read_examples(table, columns, problem_type=MULTI_LABEL, multi_hot=size)
    assert [example.labels for example in examples] == [{"1", "2"}, {"0"}, set()]
    other = table_of(text=["a"], label=[[0, 2, 1]])
    with pytest.raises(UserError, match=r"label is \[0, 2, 1\]; in the training data, labels are 3 zeros and ones"):
        read_examples(other, columns, problem_type=MULTI_LABEL, multi_hot=size)


def sequence_arguments(path: str, **flags: Any) -> SequenceArguments:
    return SequenceArguments(model_name_or_path="m", output_dir="o", train_file=path, **flags)


def test_what_the_data_cannot_teach_or_show_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f'text {number},"[{number % 2}, {1 - number % 2}, 0, 0]"\n' for number in range(20))
    path = write(tmp_path, "a.csv", f"text,label\n{rows}")
    assert read_data(sequence_arguments(path, validation_file=path), None).task.label_names == ["0", "1"]
    said = capsys.readouterr().out
    assert "classes that no training example has, and that the model will not know: 2, 3\n" in said
    assert "--validation_file is --train_file: its scores show what the model remembers" in said
    read_data(sequence_arguments(path), None)
    assert "--validation_file" not in capsys.readouterr().out


def test_numbers_with_commas_are_not_taken_for_names(tmp_path: Path) -> None:
    """A spreadsheet of a country that writes 2,5."""
    rows = "".join(f"film {number};{number % 5},{number % 3}\n" for number in range(60))
    path = write(tmp_path, "a.csv", f"text;score\n{rows}film;3\n")
    with pytest.raises(UserError, match=r"line 2: .* is '0,0'; write numbers without commas, as 2\.5, or give"):
        read_data(sequence_arguments(path), None)
    named = read_data(sequence_arguments(path, problem_type=SINGLE_LABEL), None)
    assert len(named.task.label_names) == 16
    other = write(tmp_path, "b.csv", f"text;score\n{rows}film;three\nshow;three\n")
    assert "three" in read_data(sequence_arguments(other), None).task.label_names


def test_a_header_is_no_example_where_columns_are_given_by_number(tmp_path: Path) -> None:
    rows = "".join(f"{'pos' if number % 2 else 'neg'},film {number}\n" for number in range(30))
    numbers = {"text_column": "2", "label_column": "1"}
    path = write(tmp_path, "a.csv", f"label,text\n{rows}")
    with pytest.raises(UserError, match=r"line 1: the first row names columns \(label, text\); give names"):
        read_data(sequence_arguments(path, **numbers), None)
    data = read_data(sequence_arguments(write(tmp_path, "b.csv", rows), **numbers), None)
    assert data.task.label_names == ["neg", "pos"]


@pytest.mark.parametrize("header", ["", "1,2\n"])
def test_a_class_may_be_the_number_of_its_column(tmp_path: Path, header: str) -> None:
    rows = "".join(f"{1 + number % 2},film {number}\n" for number in range(30))
    path = write(tmp_path, "a.csv", header + rows)
    data = read_data(sequence_arguments(path, text_column="2", label_column="1", problem_type=SINGLE_LABEL), None)
    assert data.task.label_names == ["1", "2"]
    assert sum(map(len, data.splits.values())) == 30


def test_the_value_of_a_regression_is_not_named_by_the_number_of_its_column(tmp_path: Path) -> None:
    rows = "".join(f"{number}.5\ta film {number}\n" for number in range(30))
    data = read_data(sequence_arguments(write(tmp_path, "a.tsv", rows)), None)
    assert (data.facts["label_column"], data.task.label_names) == ("1", ["value"])
    data = read_data(sequence_arguments(write(tmp_path, "b.tsv", f"stars\ttext\n{rows}")), None)
    assert data.task.label_names == ["stars"]


@pytest.mark.parametrize("values", [[1e308, -1e308], [1e300, 0.5], [2e-320, 1e-320], [1e9 + 0.5, 1e9]])
def test_amounts_that_float32_cannot_tell_apart_are_refused(values: list[float]) -> None:
    examples = [SequenceExample("a", None, value, "f, line 1") for value in values]
    flags: dict[str, Any] = {"problem_type": REGRESSION, "value_name": "v", "known_names": None}
    with pytest.raises(UserError, match=r"labels of the training data, .* are too large or too close together"):
        make_sequence_task(examples, **flags)
    years = [SequenceExample("a", None, float(year), "f, line 1") for year in (2001, 2002)]
    assert make_sequence_task(years, **flags).target_mean == 2001.5


def test_numbers_of_classes_are_no_such_vectors() -> None:
    for labels in ([[0, 1], [2]], [[0, 1], [1, 2]], [["0", "1"], ["1", "0"]], [[1], [0]]):
        table = table_of(text=["a", "b"], label=labels)
        assert multi_hot_size(table, "label") is None
        examples = read_examples(table, find_columns(table), problem_type=MULTI_LABEL)
        assert [example.labels for example in examples] == [{str(name) for name in of_row} for of_row in labels]


def test_class_numbers_in_parquet_have_the_names_that_datasets_wrote(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    kind = datasets.ClassLabel(names=["O", "B-PER"])
    features = datasets.Features({"text": datasets.Value("string"), "label": kind, "tags": datasets.Sequence(kind)})
    rows = [{"text": "a", "label": 1, "tags": [0, 1]}, {"text": "b", "label": -1, "tags": []}]
    path = str(tmp_path / "a.parquet")
    datasets.Dataset.from_list(rows, features=features).to_parquet(path)
    expected = {"text": ["a", "b"], "label": ["B-PER", None], "tags": [["O", "B-PER"], []]}
    assert read_table(path).columns == expected
    from_folder = open_dataset(str(tmp_path), None)["train"]
    assert [row.values for row in from_folder.rows()] == [row.values for row in open_table(path).rows()]


def test_a_class_number_without_a_name_is_an_error(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    features = {"label": {"names": ["a", "b"], "_type": "ClassLabel"}}
    for found in (features, None, ["label"]):
        schema = {"huggingface": json.dumps({"info": {"features": found}})}
        table = pyarrow.table({"text": ["x"], "label": [2]}).replace_schema_metadata(schema)
        parquet.write_table(table, tmp_path / "a.parquet")
        if found is features:
            with pytest.raises(UserError, match="class number 2, but the data name 2 classes: a, b"):
                read_table(str(tmp_path / "a.parquet"))
        else:
            assert read_table(str(tmp_path / "a.parquet")).columns["label"] == [2]


@pytest.mark.parametrize("values", ['"text": "good \\ud83d text"', '"text": "fine", "label": "\\udc00"'])
def test_half_a_character_is_an_error_with_its_line(tmp_path: Path, values: str) -> None:
    path = write(tmp_path, "a.jsonl", '{"text": "a \\ud83d\\ude00"}\n{' + values + "}\n")
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: '\\ud[8c].*' is half a character"):
        read_table(path)


def test_a_column_of_numbers_is_not_text() -> None:
    table = table_of(text=["1", "2.5"], label=["x", "y"])
    with pytest.raises(ValueError, match="column 'text' holds only numbers"):
        read_examples(table, find_columns(table), problem_type=SINGLE_LABEL)


def test_a_first_row_that_may_be_an_example_is_not_dropped_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its class occurs once, as the name of a column does."""
    rows = "".join(f"a film {number},{'angry' if number % 2 else 'sad'}\n" for number in range(30))
    path = write(tmp_path, "a.csv", f"I loved it,happy\n{rows}")
    read_data(sequence_arguments(path), None)
    assert f"{path}: its first row is taken for names of columns; if it is an example, " in capsys.readouterr().out
    data = read_data(sequence_arguments(path, text_column="1", label_column="2", validation_file=path), None)
    assert data.task.label_names == ["angry", "happy", "sad"]
    read_data(sequence_arguments(write(tmp_path, "b.csv", f"text,label\n{rows}")), None)
    assert "first row" not in capsys.readouterr().out


def test_a_small_validation_file_may_hold_only_numbers(tmp_path: Path) -> None:
    train = write(tmp_path, "a.csv", "text,label\nEmma,x\nDracula,y\n")
    small = write(tmp_path, "b.csv", "text,label\n1984,x\n")
    (example,) = read_data(sequence_arguments(train, validation_file=small), None).splits["validation"]
    assert (example.text, example.label) == ("1984", "x")


def test_one_class_only_is_an_error() -> None:
    table = table_of(text=["a", "b"], label=["x", "x"])
    with pytest.raises(ValueError, match="only one class in the training data: 'x'"):
        label_names_of(read_examples(table, find_columns(table), problem_type=SINGLE_LABEL), SINGLE_LABEL)


@pytest.mark.parametrize(
    ("path", "rows", "columns"),
    [
        ("cls_banking77/train.csv", 10_003, ("text", None, "category")),
        ("cls_banking77/test.csv", 3_080, ("text", None, "category")),
        ("cls_movie_reviews/movie_reviews.jsonl", 2_000, ("text", None, "label")),
        ("sts_stsb_open_subset/sts-train.tsv", 1_000, ("6", "7", "5")),
        ("sts_stsb_open_subset/sts-dev.tsv", 375, ("6", "7", "5")),
    ],
)
def test_real_files_have_the_published_number_of_rows(shared_data: Path, path: str, rows: int, columns: tuple) -> None:
    table = read_table(str(shared_data / path))
    found = find_columns(table)
    assert (len(table), (found.text, found.pair, found.label)) == (rows, columns)
    kind = problem_type_of_values(table.columns[columns[2]])
    assert len(read_examples(table, found, problem_type=kind)) == rows


@pytest.mark.parametrize(
    ("label", "hint"), [("{}", ", another --label_column, or --problem_type regression for amounts"), ("n{}", "")]
)
def test_labels_that_occur_once_each_cannot_be_held_out(tmp_path: Path, label: str, hint: str) -> None:
    path = write(tmp_path, "a.csv", "text,price\n" + "".join(f"the text {i},{label.format(i)}\n" for i in range(9)))
    arguments = SequenceArguments(model_name_or_path="m", train_file=path, output_dir="o", label_column="price")
    with pytest.raises(UserError, match=f"give --validation_file{hint}$"):
        read_data(arguments, None)


@pytest.mark.parametrize(
    ("train", "validation", "hint"),
    [
        (("990", "1000"), "1009.5", r", whose labels were taken for classes; --problem_type regression reads numbers"),
        (("990", "high"), "1009.5", ""),
        (("990", "1000"), "low", ""),
    ],
)
def test_ratings_that_only_validation_gives_as_fractions(
    tmp_path: Path, train: tuple[str, str], validation: str, hint: str
) -> None:
    rows = "".join(f"the text {i},{train[i % 2]}\n" for i in range(8))
    arguments = SequenceArguments(
        model_name_or_path="m",
        output_dir="o",
        train_file=write(tmp_path, "a.csv", f"text,price\n{rows}"),
        validation_file=write(tmp_path, "b.csv", f"text,price\nthe text,990\nthe text,{validation}\n"),
        label_column="price",
    )
    with pytest.raises(UserError, match=rf"line 3: label '{validation}' does not occur in the training data{hint}$"):
        read_data(arguments, None)
    if hint:
        assert read_data(replace(arguments, problem_type="regression"), None).task.problem_type == "regression"


def test_a_label_column_that_one_file_lacks_is_named(tmp_path: Path) -> None:
    """Of numbers too, which are written alike in all files."""
    for labels in ("01", "ab"):
        (tmp_path / "train.csv").write_text(f"text,label\ngood,{labels[0]}\nbad,{labels[1]}\n")
        (tmp_path / "b.csv").write_text(f"text,lable\ngood,{labels[0]}\n")
        flags = {"train_file": str(tmp_path / "train.csv"), "validation_file": str(tmp_path / "b.csv")}
        arguments = SequenceArguments(model_name_or_path="-", output_dir=str(tmp_path / "o"), **flags)
        with pytest.raises(UserError, match=r"--label_column label: .*b\.csv has no such column; it has text, lable"):
            read_data(arguments, None)
