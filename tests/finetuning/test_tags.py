"""Tag schemes: known conversions, detection, and readers of tagged text."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozebert.corpus.readers.columnar import DatasetTable
from clozebert.finetuning.tagged_files import (
    read_tagged_file,
    sentence_of_text,
    sentences_of_table,
)
from clozebert.finetuning.tags import (
    TaggedSentence,
    detect_scheme,
    entity_spans,
    label_names_of_tags,
    repair_iob2,
    to_iob2,
)
from clozebert.utils.errors import UserError


def sentence(tags: str | list[str]) -> TaggedSentence:
    tags = tags.split() if isinstance(tags, str) else tags
    return TaggedSentence(["w"] * len(tags), [True] * len(tags), list(tags), "f", 1, list(range(1, len(tags) + 1)))


@pytest.mark.parametrize(
    ("scheme", "tags", "expected"),
    [
        ("iob1", "O I-A I-A B-A I-B O", "O B-A I-A B-A B-B O"),
        ("iob2", "O B-A I-A B-A B-B O", "O B-A I-A B-A B-B O"),
        ("bioes", "S-A B-A E-A B-B I-B E-B O", "B-A B-A I-A B-B I-B I-B O"),
        ("bioes", "U-A B-A L-A O", "B-A B-A I-A O"),
        ("bioes", "S-A B-A M-A E-A", "B-A B-A I-A I-A"),
        ("plain", "NOUN VERB", "NOUN VERB"),
    ],
)
def test_known_conversions(scheme: str, tags: str, expected: str) -> None:
    assert detect_scheme([sentence(tags)]) == scheme
    assert to_iob2(sentence(tags), scheme).tags == expected.split()


def test_slips_in_iob2_are_read_and_refused_where_the_scheme_is_given() -> None:
    slip = sentence("B-A I-A O I-A")
    assert detect_scheme([slip]) == "iob1"
    assert to_iob2(slip, "iob1").tags == ["B-A", "I-A", "O", "B-A"]
    with pytest.raises(ValueError, match=r"f, line 4: tag 'I-A' follows 'O', so it continues no entity"):
        to_iob2(slip, "iob2")


@pytest.mark.parametrize(
    ("tags", "scheme", "message"),
    [
        ("O S-A", "iob2", "line 2: tag 'S-A' is outside the scheme iob2"),
        ("O X-A", "bioes", "line 2: tag 'X-A' is outside the scheme bioes"),
        ("B-A E-B", "bioes", "line 2: tag 'E-B' follows 'B-A', so it continues no entity"),
        ("B- O", "iob2", "line 1: tag 'B-' is outside the scheme"),
    ],
)
def test_tags_outside_the_scheme(tags: str, scheme: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        to_iob2(sentence(tags), scheme)


def test_a_tag_unlike_the_others_is_named() -> None:
    with pytest.raises(ValueError, match="line 3: tag 'PER' is neither O nor of the form B-TYPE"):
        detect_scheme([sentence("O B-PER PER")])


def test_entity_tags_in_another_spelling_are_named() -> None:
    """They were taken for tags of single words, and scored so."""
    for tags in ("O B_PER I_PER", "O PER-B PER-I", "O PER_B", "O B I O", "O S B E", "O b-per i-per", "O B- I-"):
        with pytest.raises(UserError, match=r"line 2: tag .* is neither O nor of .* B-TYPE.*B-X for B.*--tag_scheme"):
            detect_scheme([sentence(tags)])
    for tags in ("o b-per i-per o", "o B-PER I-PER", "o b i"):
        with pytest.raises(UserError, match="line 1: tag 'o' is neither O nor of"):
            detect_scheme([sentence(tags)])
    others = "PRON_B VERB/O PER LOC_B/B_PER I_PER/O O/B M E S/B I I/b-per i-per/O E S/O B X/O E-A"
    for tags in others.split("/"):
        assert detect_scheme([sentence(tags)]) == "plain"


SPANS = st.lists(st.tuples(st.sampled_from("AB"), st.integers(1, 3), st.integers(0, 2)), max_size=6)


@settings(max_examples=60, deadline=None)
@given(SPANS)
def test_every_scheme_spells_the_same_entities(spans: list[tuple[str, int, int]]) -> None:
    """Entities are written in each scheme by a few lines of their own, and must come back."""
    tags: dict[str, list[str]] = {"iob1": [], "iob2": [], "bioes": []}
    entities, previous = [], None
    for kind, length, gap in spans:
        start = len(tags["iob2"])
        entities.append((kind, start, start + length))
        tags["iob1"] += [f"{'B' if previous == kind else 'I'}-{kind}"] + [f"I-{kind}"] * (length - 1)
        tags["iob2"] += [f"B-{kind}"] + [f"I-{kind}"] * (length - 1)
        tags["bioes"] += [f"S-{kind}"] if length == 1 else [f"B-{kind}", *[f"I-{kind}"] * (length - 2), f"E-{kind}"]
        for scheme in tags:
            tags[scheme] += ["O"] * gap
        previous = kind if gap == 0 else None
    for scheme, written in tags.items():
        converted = to_iob2(sentence(written), scheme).tags
        assert converted == tags["iob2"]
        assert entity_spans([str(tag) for tag in converted or []]) == entities


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["O", "B-A", "I-A", "B-B", "I-B"]), max_size=8))
def test_repair_keeps_the_entities_and_makes_tags_valid(tags: list[str]) -> None:
    repaired = repair_iob2(tags)
    assert entity_spans(repaired) == entity_spans(tags)
    assert to_iob2(sentence(repaired), "iob2").tags == repaired


def test_label_names_are_sorted_and_have_both_letters() -> None:
    assert label_names_of_tags([sentence("B-Z O B-A")], entities=True) == ["O", "B-A", "I-A", "B-Z", "I-Z"]
    assert label_names_of_tags([sentence("VERB NOUN")], entities=False) == ["NOUN", "VERB"]
    with pytest.raises(ValueError, match="no entity in the training data"):
        label_names_of_tags([sentence("O O")], entities=True)
    with pytest.raises(ValueError, match="only one tag"):
        label_names_of_tags([sentence("NOUN")], entities=False)


# Readers


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_conll_columns_comments_and_docstart(tmp_path: Path) -> None:
    text = "-DOCSTART-\t-X-\tO\n\n# id = 1 two\n#tag\tX\tB-A\nb c\tY\tO\n \t \n\nd\tZ\tI-A\n"
    sentences = read_tagged_file(write(tmp_path, "a.conll", text))
    assert [(s.words, s.tags, s.lines) for s in sentences] == [
        (["#tag", "b c"], ["B-A", "O"], [4, 5]),
        (["d"], ["I-A"], [8]),
    ]
    assert read_tagged_file(str(tmp_path / "a.conll"), tag_column="2")[0].tags == ["X", "Y"]
    assert read_tagged_file(str(tmp_path / "a.conll"), tag_column="-2")[0].tags == ["X", "Y"]
    text = "-DOCSTART- (1 EU)\tO\na\tO\n-DOCSTART-ed\tB-X\n"
    assert read_tagged_file(write(tmp_path, "b.conll", text))[0].words == ["a", "-DOCSTART-ed"]


@pytest.mark.parametrize(
    "text",
    [
        "# id 1\tdomain=en\nAda _ _ B-PER\nran _ _ O\n\n# id 2\tdomain=en\n# _ _ O\n",  # MultiCoNER
        "# sent0\nAda B-PER\nran O\n\n# sent1\n# O\n",
    ],
)
def test_comments_that_look_like_rows_stand_before_most_sentences(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.conll"
    path.write_text(text)
    found = read_tagged_file(str(path))
    assert [(one.words, one.tags) for one in found] == [(["Ada", "ran"], ["B-PER", "O"]), (["#"], ["O"])]


def test_several_comments_that_look_like_rows(tmp_path: Path) -> None:
    """A comment that does not look like one, such as of a new document, does not count."""
    sentences = [f"# sent_id = {number}\n# lang = en\n{word} _ _ NOUN\n" for number, word in enumerate("abcd#")]
    text = "# newdoc id = one\n" + "\n".join(sentences)
    found = read_tagged_file(write(tmp_path, "a.conll", text))
    assert [(one.words, one.tags) for one in found] == [([word], ["NOUN"]) for word in "abcd#"]
    texts = ["The cat sat down", "Hi", "Ada ran home again"]  # of which one has as many words as there are columns
    for head, columns in (("", ""), ("text = ", " _ _"), ("sent_id = 7\n# text = ", " _ _")):
        blocks = [f"# {head}{text}\n" + "".join(f"{word}{columns} O\n" for word in text.split()) for text in texts]
        found = read_tagged_file(write(tmp_path, "b.conll", "\n".join(blocks)))
        assert [one.words for one in found] == [text.split() for text in texts]


def test_a_hash_that_begins_some_sentences_is_a_word(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("# O\n1 O\n\nAda B-PER\n\nran O\n")
    assert [one.words for one in read_tagged_file(str(path))] == [["#", "1"], ["Ada"], ["ran"]]
    path.write_text("#ff O\n\n#nlproc O\n\nran O\n")  # hashtags, in most sentences
    assert [one.words for one in read_tagged_file(str(path))] == [["#ff"], ["#nlproc"], ["ran"]]


def test_conll_with_spaces(tmp_path: Path) -> None:
    sentences = read_tagged_file(write(tmp_path, "a.txt", "EU NNP B-NP S-ORG\nrejects VBZ B-VP O\n"))
    assert sentences[0].tags == ["S-ORG", "O"]


def test_a_no_break_space_is_part_of_its_word(tmp_path: Path) -> None:
    text = "10\u00a0000 B-NUM\ncamions O\nde O\n"
    assert read_tagged_file(write(tmp_path, "a.conll", text))[0].words == ["10\u00a0000", "camions", "de"]
    with pytest.raises(UserError, match="line 1: the word is empty"):
        read_tagged_file(write(tmp_path, "b.conll", "\u00a0 O\nde O\n"))


def test_numbers_of_words_are_not_taken_for_words(tmp_path: Path) -> None:
    """CoNLL-U under another name, and columns as of GermEval: both were read as sentences of numbers."""
    columns = "# a source\n1\tIn\tO\tO\n2\tBonn\tB-LOC\tO\n\n1\tJa\tO\tO\n\n1\tDas\tO\tO\n2\tRad\tO\tO\n"
    for text in (columns, CONLLU):
        path = write(tmp_path, "a.conll", text)
        for with_tags in (True, False):
            with pytest.raises(UserError, match=r"a\.conll: column 1 holds the numbers of .*\.conllu.*cut -f2-"):
                read_tagged_file(path, with_tags=with_tags)
    years = read_tagged_file(write(tmp_path, "b.conll", "1\tO\n2\tO\n\nIn\tO\n1984\tB-TIME\n"))
    assert [sentence.words for sentence in years] == [["1", "2"], ["In", "1984"]]


def test_tables_with_commas_are_refused(tmp_path: Path) -> None:
    for text in ("tokens,tags\n\"['Ada', 'wrote']\",\"['B-PER', 'O']\"\n", "Sentence #,Word,Tag\n1,Ada,B-PER\n"):
        with pytest.raises(UserError, match=r"a\.csv: tags are not read from cells with commas; write a word and its"):
            read_tagged_file(write(tmp_path, "a.csv", text))
    assert read_tagged_file(write(tmp_path, "b.csv", "Ada\tB-PER\n"))[0].words == ["Ada"]


CONLLU = """# sent_id = 1
1\tDon\tdo\tAUX\tVB\t_\t0\troot\t_\tSpaceAfter=No
2\tQuixote\tq\tPROPN\tNNP\t_\t1\tx\t_\t_
3-4\tdidn't\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
3\tdid\tdo\tAUX\tVBD\t_\t1\tx\t_\t_
4\tn't\tnot\tPART\tRB\t_\t1\tx\t_\t_
4.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_
5\t!\t!\t_\t.\t_\t1\tx\t_\t_
"""


def test_conllu_words_ranges_empty_nodes_and_spaces(tmp_path: Path) -> None:
    (sentence_read,) = read_tagged_file(write(tmp_path, "a.conllu", CONLLU))
    assert sentence_read.words == ["Don", "Quixote", "did", "n't", "!"]
    assert sentence_read.spaces == [False, False, True, False, False]
    assert sentence_read.tags == ["AUX", "PROPN", "AUX", "PART", None]
    assert read_tagged_file(str(tmp_path / "a.conllu"), tag_column="xpos")[0].tags[-1] == "."  # type: ignore[index]
    assert read_tagged_file(str(tmp_path / "a.conllu"), tag_column="-6")[0].tags[-1] == "."  # type: ignore[index]
    odd = CONLLU.replace("4.1\tgo", "1-x\tgo").replace("4.1", "²")
    assert read_tagged_file(write(tmp_path, "odd.conllu", odd))[0].words == sentence_read.words


def test_json_lines_in_their_forms(tmp_path: Path) -> None:
    records = [
        {"tokens": ["a", "b"], "ner_tags": ["O", "B-X"]},
        {"text": "Call Ada-Lou now", "spans": [{"start": 5, "end": 12, "label": "PER"}]},
        {"text": "a b", "tokens": [{"text": "a", "id": 0}], "spans": [{"start": 0, "end": 1, "label": "X"}]},
        {"text": "a b", "label": [[2, 3, "X"]], "answer": "accept"},
        {"text": "a b", "entities": [{"id": 1, "label": "X", "start_offset": 0, "end_offset": 3}], "relations": []},
        {"intent": "x", "data": [{"text": "play "}, {"text": "the doors", "entity": "band"}, {"text": " now"}]},
    ]
    path = write(tmp_path, "a.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    read = read_tagged_file(path)
    assert read[0].tags == ["O", "B-X"]
    assert read[1].words == ["Call", "Ada", "-", "Lou", "now"]
    assert read[1].spaces == [False, True, False, False, True]
    assert read[1].tags == ["O", "B-PER", "I-PER", "I-PER", "O"]
    # As Prodigy and doccano write them.
    assert [one.tags for one in read[2:5]] == [["B-X", "O"], ["O", "B-X"], ["B-X", "I-X"]]
    assert (read[5].words, read[5].tags) == (["play", "the", "doors", "now"], ["O", "B-band", "I-band", "O"])


def test_tags_of_json_without_blanks_and_of_ignored_words(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"tokens": ["a", "b", "c"], "tags": [1, -100, null]}\n')
    assert read_tagged_file(path)[0].tags == ["1", None, None]
    path = write(tmp_path, "a.jsonl", '{"tokens": ["a", "b"], "tags": ["O ", " B-X"]}\n')
    assert read_tagged_file(path)[0].tags == ["O", "B-X"]


@pytest.mark.parametrize("scheme", ["iob2", "bioes"])
def test_an_entity_goes_on_behind_a_word_without_a_tag(scheme: str) -> None:
    """As where -100 is dropped before scores are computed."""
    last = "I-PER" if scheme == "iob2" else "E-PER"
    tagged = TaggedSentence(list("abcd"), [False] * 4, ["B-PER", None, last, "O"], "a.jsonl", 1)
    assert detect_scheme([tagged]) == scheme
    assert to_iob2(tagged, scheme).tags == ["B-PER", None, "I-PER", "O"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokens": ["a", "b"], "tags": ["O"]}, "row 2: 2 tokens but 1 tags"),
        ({"tokens": ["a"], "tags": [b"O"]}, "row 2: tags holds b'O'; give each word one tag"),
        ({"text": " ", "spans": []}, "row 2: the text is empty"),
        ({"text": "a", "spans": [{"start": 0, "end": 9, "label": "X"}]}, r"row 2: span 0-9 lies .* of 1 characters$"),
        (
            {"text": "\U0001f600 a", "spans": [{"start": 3, "end": 4, "label": "X"}]},
            "row 2: span 3-4 lies outside its text of 3 characters; count Unicode characters, not UTF-16 units",
        ),
    ],
)
def test_a_table_without_lines_is_counted_in_rows(values: dict[str, object], message: str) -> None:
    good = {"tokens": ["a"], "tags": ["O"]} if "tokens" in values else {"text": "a", "spans": []}
    with pytest.raises(UserError, match=f"^data, {message}"):
        sentences_of_table(DatasetTable("data", [good, values]), tag_column=None)
    read = sentences_of_table(DatasetTable("data", [good, good]), tag_column=None)
    assert read[1].where(0) == "data, row 2"


def test_spans_do_not_change_the_words() -> None:
    """Prediction has no spans to cut at, so a model is trained and scored on the words that it will be asked for."""
    text = "xAby z zu"
    read = sentence_of_text(text, [(1, 2, "P"), (2, 3, "Q"), (5, 8, "R")], source="f", line=1)
    assert read.words == sentence_of_text(text, None, source="f", line=1).words == ["xAby", "z", "zu"]
    assert (read.tags, read.inexact_spans) == (["B-P", "B-R", "I-R"], 3)
    exact = sentence_of_text("the เชียงใหม่ way", [(4, 13, "LOC")], source="f", line=1)
    assert ("".join(exact.words[1:-1]), exact.inexact_spans) == ("เชียงใหม่", 0)
    assert exact.tags == ["O", "B-LOC", *["I-LOC"] * (len(exact.words) - 3), "O"]


def test_many_spans_in_a_long_text() -> None:
    spans = [(3 * number, 3 * number + 2, "X") for number in range(20_000)]
    read = sentence_of_text("ab " * len(spans), spans, source="f", line=1)
    assert read.tags == ["B-X"] * len(spans)


def test_words_of_scripts_without_spaces_are_joined_as_they_are_written(tmp_path: Path) -> None:
    path = write(tmp_path, "a.conll", "東\tB-X\n京\tI-X\n、\tO\nAWS\tO\n社\tO\n한국어\tO\n문장\tO\n")
    sentence_read = read_tagged_file(path)[0]
    assert sentence_read.spaces == [False, False, False, True, True, True, True]
    record = write(tmp_path, "a.jsonl", json.dumps({"tokens": ["ภาษา", "ไทย", "is"], "tags": ["O", "O", "O"]}) + "\n")
    assert read_tagged_file(record)[0].spaces == [False, False, True]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.conll", "a\tO\nb\tO\nc\n", r"a\.conll, line 3: 1 columns, where other lines have 2"),
        ("a.conll", "a\tO\nb\tO\nc O\n", r"a\.conll, line 3: blanks between the columns, where other lines have tabs"),
        ("a.conll", "a\tO\nb\t \n", r"a\.conll, line 2: the tag is empty"),
        ("a.conll", "a\nb\n", "a line must hold a word, .*, and a tag, and has one column"),
        ("a.conllu", "1\ta\tb\n", r"a\.conllu, line 1: 3 columns; CoNLL-U has 10"),
        ("a.conllu", CONLLU.replace("4\tn't", "4\t"), r"a\.conllu, line 6: the word is empty"),
        ("a.conllu", CONLLU.replace("PART", ""), r"a\.conllu, line 6: the tag is empty"),
        ("a.conllu", CONLLU * 2, r"a\.conllu, line 10: word 1 follows word 5; put a blank line between sentences"),
        ("a.conll", "\n\n", "holds no sentence"),
        ("a.jsonl", '{"words": ["a"], "tags": [" "]}', "line 1: tags holds ' '; give each word one tag, or null"),
        ("a.jsonl", '{"words": ["a"], "tags": [["X"]]}', r"line 1: tags holds \['X'\]; give each word one tag"),
        ("a.jsonl", '{"words": ["a"], "tags": [NaN]}', "line 1: tags holds nan; give each word one tag"),
        ("a.jsonl", '{"text": "a", "spans": [{"start": 0, "end": 1, "label": " "}]}', "and a label"),
        ("a.jsonl", '{"words": ["a"], "tags": []}', "line 1: 1 words but 0 tags"),
        ("a.jsonl", '{"words": ["a", ""], "tags": ["O", "O"]}', "line 1: words holds ''"),
        ("a.jsonl", '{"words": ["a", null], "tags": ["O", "O"]}', "line 1: words holds None"),
        ("a.jsonl", '{"words": ["a"]}', "line 1: no list of tags"),
        ("a.jsonl", '{"text": "ab"}', "line 1: text without a list of spans"),
        ("a.jsonl", '{"text": "ab", "spans": [{"start": 1, "end": 9, "label": "X"}]}', "span 1-9 lies outside"),
        ("a.jsonl", '{"text": "ab", "spans": [{"start": 1, "end": 1, "label": "X"}]}', "span 1-1 is empty"),
        ("a.jsonl", '{"text": "ab", "spans": [{"start": 1, "label": "X"}]}', "needs whole numbers"),
        ("a.jsonl", '{"text": " ", "spans": []}', "line 1: the text is empty"),
        (
            "a.jsonl",
            '{"text": "a b c", "spans": [{"start": 0, "end": 3, "label": "X"}, {"start": 2, "end": 5, "label": "Y"}]}',
            r"span 2-5 \(Y\) overlaps another one, and a word gets one label: keep the inner or the outer spans",
        ),
        (
            "a.jsonl",
            '{"text": "a", "spans": [], "answer": "accept"}\n{"text": "b", "spans": [], "answer": "reject"}',
            "line 2: its answer is 'reject', so its labels are not known to be right: leave out such examples",
        ),
        ("a.jsonl", '{"other": 1}', "expected 'words' and 'tags', or 'text' and 'spans'; found other"),
        ("a.tsv", "word\tpos\nAda\tNOUN\nruns\tVERB\n", "a.tsv, line 1: a header, not a word and its tag"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_tagged_file(write(tmp_path, name, text))


@pytest.mark.parametrize("column", ["0", "1", "3", "upos"])
def test_a_wrong_tag_column_is_named(tmp_path: Path, column: str) -> None:
    with pytest.raises(ValueError, match=f"--tag_column {column}"):
        read_tagged_file(write(tmp_path, "a.conll", "a\tO\n"), tag_column=column)


@pytest.mark.parametrize("column", ["0", "1", "2", "-9", "11", "form", "ID"])
def test_numbers_and_words_of_conllu_are_no_tags(tmp_path: Path, column: str) -> None:
    with pytest.raises(ValueError, match=f"--tag_column {column}: tags stand in the columns 3 to 10 of .*lemma, upos"):
        read_tagged_file(write(tmp_path, "a.conllu", CONLLU), tag_column=column)


@pytest.mark.parametrize("record", [{"tokens": ["a"], "tags": ["O"]}, {"text": "a", "spans": []}])
def test_a_field_for_tags_that_is_not_there_is_named(tmp_path: Path, record: dict[str, object]) -> None:
    path = write(tmp_path, "a.jsonl", json.dumps(record) + "\n")
    with pytest.raises(ValueError, match="line 1: --tag_column gold: there is no such field; found t"):
        read_tagged_file(path, tag_column="gold")


@pytest.mark.parametrize(
    ("path", "sentences", "words", "scheme"),
    [
        ("tok_ud_english_ewt/en_ewt-ud-dev.conllu", 2_001, 25_147, "plain"),
        ("tok_ner_wnut17/wnut17train.conll", 3_394, 62_730, "iob2"),
        ("tok_ner_wnut17/emerging.test.annotated", 1_287, 23_394, "iob2"),
        ("multi_ud_chinese_gsd/zh_gsd-ud-dev.conllu", 500, 12_665, "plain"),
        ("multi_ud_finnish_tdt/fi_tdt-ud-test.conllu", 1_555, 21_070, "plain"),
        ("tok_slots_snips/validate.jsonl", 700, None, "iob2"),
        ("tok_ner_crossner/ai/train.txt", 100, None, "iob2"),
    ],
)
def test_real_files_have_the_published_counts(
    shared_data: Path, path: str, sentences: int, words: int | None, scheme: str
) -> None:
    read = read_tagged_file(str(shared_data / path))
    assert len(read) == sentences
    assert words is None or sum(len(s.words) for s in read) == words
    assert detect_scheme(read) == scheme


def test_conllu_words_and_spaces_spell_the_text(shared_data: Path) -> None:
    """The treebank's own `# text =` lines are the truth about its spaces."""
    path = shared_data / "tok_ud_english_ewt/en_ewt-ud-dev.conllu"
    texts = [line[9:].strip() for line in path.read_text(encoding="utf-8").split("\n") if line.startswith("# text = ")]
    for text, read in zip(texts, read_tagged_file(str(path)), strict=True):
        spelled = "".join((" " if space else "") + word for word, space in zip(read.words, read.spaces, strict=True))
        assert " ".join(spelled.split()) == " ".join(text.split())
