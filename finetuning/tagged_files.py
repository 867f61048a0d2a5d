"""Reads tagged text: CoNLL columns, CoNLL-U, words and tags, character spans, chunks of text."""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from statistics import median_low
from typing import Any

from ..corpus.readers.compression import COLUMNAR_SUFFIXES, bare_suffix, read_text
from ..corpus.readers.table_file import Row, TableFile
from ..corpus.readers.tables import open_table
from ..utils.errors import UserError
from ..utils.wording import in_short
from .tables import good_rows, is_missing, refuse_rejected
from .tags import OUTSIDE, TaggedSentence
from .words import is_unspaced, word_bounds

CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
WORD_FIELDS = ("words", "tokens")
TAG_FIELDS = ("tags", "ner_tags", "labels", "pos_tags", "upos", "slots")
SPAN_FIELDS = ("spans", "entities", "label", "labels")
_TAG_HEADINGS = {"tag", "label", "pos", "upos", "xpos", "ner", "ner_tag", *TAG_FIELDS}
_BLANKS = re.compile(r"[ \t]+")


def read_tagged_file(path: str, *, tag_column: str | None = None, with_tags: bool = True) -> list[TaggedSentence]:
    """Read the sentences of a file: CoNLL-U, JSON lines, Parquet, and everything else as CoNLL columns.

    Args:
        path: the file; .conllu, .jsonl / .ndjson / .json and .parquet are recognised by their suffix.
        tag_column: a name (`xpos`, a JSON field) or a number from 1, from the end if negative. Default: UPOS of
            CoNLL-U, the last column of CoNLL, the field with a common name in JSON.
        with_tags: False to read words only.

    Raises:
        UserError: rows of unequal width, unequal numbers of words and tags, a span outside its text … (with file and
            line).
    """
    suffix = bare_suffix(path)
    if suffix in (".jsonl", ".ndjson", ".json", *COLUMNAR_SUFFIXES):
        sentences = sentences_of_table(open_table(path), tag_column=tag_column, with_tags=with_tags)
    elif suffix == ".conllu":
        sentences = _with_shared_strings(_conllu_sentences(path, read_text(path), tag_column, with_tags))
    else:
        text = read_text(path)
        if suffix == ".csv" and "\t" not in text:
            raise UserError(
                f"{path}: tags are not read from cells with commas; write a word and its tag on each line with a tab "
                "between them and a blank line after each sentence, or JSON lines"
            )
        sentences = _with_shared_strings(_conll_sentences(path, text, tag_column, with_tags))
        _refuse_numbers_as_words(sentences, path)
        _refuse_header(sentences, path)
    if not sentences:
        raise UserError(f"{path} holds no sentence")
    return sentences


def sentences_of_table(table: TableFile, *, tag_column: str | None, with_tags: bool = True) -> list[TaggedSentence]:
    """Sentences of JSON, or of a table with list columns (Parquet, or a dataset of the Hub)."""
    return _with_shared_strings(_sentence_of_row(row, tag_column, with_tags, table=table) for row in good_rows(table))


def _with_shared_strings(sentences: Iterable[TaggedSentence]) -> list[TaggedSentence]:
    """The sentences with one string for each distinct word or tag. Most recur, and would take most of the memory."""
    known: dict[str | None, Any] = {}
    return [
        replace(
            sentence,
            words=[known.setdefault(word, word) for word in sentence.words],
            tags=None if sentence.tags is None else [known.setdefault(tag, tag) for tag in sentence.tags],
        )
        for sentence in sentences
    ]


def _blocks(lines: list[str]) -> Iterator[list[tuple[int, str]]]:
    """The blocks of lines between blank lines, each line with its number."""
    block: list[tuple[int, str]] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            block.append((number, line))
        elif block:
            yield block
            block = []
    if block:
        yield block


def _conll_sentences(path: str, text: str, tag_column: str | None, with_tags: bool) -> Iterator[TaggedSentence]:
    lines = text.replace("\r\n", "\n").split("\n")
    separator, width = _layout(lines)
    if with_tags and 0 < width < 2:
        raise UserError(f"{path}: a line must hold a word, a tab or a space, and a tag, and has one column")
    column = _column_number(tag_column, width, path) if with_tags else 0
    blocks = list(_blocks(lines))
    num_comments = _num_comments(blocks)
    for block in blocks:
        rows = _conll_rows(block, separator, width, num_comments=num_comments)
        for number, cells in rows:
            _check_row(cells, width, word=0, tag=column if with_tags else 0, where=f"{path}, line {number}")
        if rows:
            numbers = [number for number, _ in rows]
            words = [cells[0] for _, cells in rows]
            spaces = _spaces_between(words)
            tags: list[str | None] | None = [cells[column].strip() for _, cells in rows] if with_tags else None
            yield TaggedSentence(words, spaces, tags, source=path, line=numbers[0], lines=numbers)


def _refuse_numbers_as_words(sentences: list[TaggedSentence], path: str) -> None:
    """Raise if the first column numbers the words of each sentence, as in CoNLL-U and GermEval."""
    starts = {tuple(sentence.words[:2]) for sentence in sentences if len(sentence.words) > 1}
    if starts and starts <= {("0", "1"), ("1", "2"), ("1-2", "1")}:
        raise UserError(
            f"{path}: column 1 holds the numbers of the words, not the words; give CoNLL-U a name that ends in "
            ".conllu, or leave that column out (cut -f2-)"
        )


def _refuse_header(sentences: list[TaggedSentence], path: str) -> None:
    """Raise if the first row names the columns: its cells would be a word and, where tags are plain, a class."""
    if not sentences or sentences[0].words[0].lower() not in ("word", "words", "token", "tokens", "form"):
        return
    tags = [tag for sentence in sentences for tag in sentence.tags or []]
    if tags and tags.count(tags[0]) == 1 and str(tags[0]).lower() in _TAG_HEADINGS:
        raise UserError(f"{path}, line {sentences[0].line}: a header, not a word and its tag; remove that line")


def _layout(lines: list[str]) -> tuple[str | None, int]:
    """The separator of most lines, and how many columns most of them have."""
    filled = [line for line in lines if line.strip()]
    separator = "\t" if 2 * sum("\t" in line for line in lines) > len(filled) else None
    widths = Counter(len(_cells(line, separator)) for line in filled)
    return separator, widths.most_common(1)[0][0] if widths else 0


def _num_comments(blocks: list[list[tuple[int, str]]]) -> int:
    """How many comments most sentences have before them: so many are comments even where they look like rows.

    They begin with a hash and a space, since most tweets may begin with a hashtag.
    """
    if len(blocks) < 2:
        return 0
    return median_low(sum(1 for _ in takewhile(lambda row: row[1].startswith("# "), block)) for block in blocks)


def _conll_rows(
    block: list[tuple[int, str]], separator: str | None, width: int, *, num_comments: int
) -> list[tuple[int, list[str]]]:
    """The rows of a sentence with their line numbers, without comments and document marks.

    Args:
        num_comments: how many lines that could be a row or a comment are comments; see `_num_comments`.
    """
    # A comment comes before a sentence and does not look like a row; "# O" inside a sentence is a word and its tag.
    while block and block[0][1].startswith("#"):
        if len(_cells(block[0][1], separator)) == width:
            if not (num_comments and block[0][1].startswith("# ")):
                break
            num_comments -= 1
        block = block[1:]
    rows = ((number, _cells(line, separator)) for number, line in block)
    return [(number, cells) for number, cells in rows if cells[0].split()[:1] != ["-DOCSTART-"]]


def _check_row(cells: list[str], width: int, *, word: int, tag: int, where: str) -> None:
    """Raise if a row has another width, or its cell in the column `word` or `tag` is empty."""
    if len(cells) == 1 < width and " " in cells[0]:
        raise UserError(f"{where}: blanks between the columns, where other lines have tabs")
    if len(cells) != width:
        raise UserError(f"{where}: {len(cells)} columns, where other lines have {width}")
    for name, cell in (("word", cells[word]), ("tag", cells[tag])):
        if not cell.strip():
            raise UserError(f"{where}: the {name} is empty, or spaces alone")


def _cells(line: str, separator: str | None) -> list[str]:
    """The cells of a line; the separator None means any whitespace. In files with tabs, words may hold spaces.

    No-break spaces and the like belong to the word, as in "10\N{NO-BREAK SPACE}000".
    """
    return _BLANKS.split(line.strip(" \t\r\n")) if separator is None else line.rstrip("\r\n").split(separator)


def _column_number(name: str | None, width: int, path: str) -> int:
    """The index of the tag column; `name` is a number from 1, or from the end if negative; None: the last column."""
    if name is None:
        return width - 1
    try:
        index = _index_of_column(int(name), width)
    except ValueError:
        raise UserError(f"--tag_column {name}: {path} has no named columns; give a number from 2 to {width}") from None
    if not 0 < index < width:
        raise UserError(f"--tag_column {name}: {path} has the columns 1 to {width}, and 1 holds the words")
    return index


def _index_of_column(number: int, width: int) -> int:
    """The index of a column by its number from 1, or from the end if negative; -1 for 0."""
    return number - 1 if number >= 0 else width + number


def _conllu_sentences(path: str, text: str, tag_column: str | None, with_tags: bool) -> Iterator[TaggedSentence]:
    column = _conllu_column(tag_column, path) if with_tags else 3
    for block in _blocks(text.replace("\r\n", "\n").split("\n")):
        rows = _conllu_rows(block, path)
        of_words = [(number, cells) for number, cells in rows if cells[0].isdigit()]
        for number, cells in of_words:
            _check_row(cells, len(CONLLU_COLUMNS), word=1, tag=column, where=f"{path}, line {number}")
        for (_, (before, *_)), (number, (after, *_)) in pairwise(of_words):
            if int(after) <= int(before):
                raise UserError(
                    f"{path}, line {number}: word {after} follows word {before}; put a blank line between sentences"
                )
        if of_words:
            numbers = [number for number, _ in of_words]
            words = [cells[1] for _, cells in of_words]
            spaces = _conllu_spaces([cells for _, cells in rows])
            tags = [None if cells[column] == "_" else cells[column] for _, cells in of_words] if with_tags else None
            yield TaggedSentence(words, spaces, tags, source=path, line=numbers[0], lines=numbers)


def _conllu_rows(block: list[tuple[int, str]], path: str) -> list[tuple[int, list[str]]]:
    """The rows of a sentence with their line numbers, without comments."""
    rows = [(number, line.split("\t")) for number, line in block if not line.startswith("#")]
    for number, cells in rows:
        if len(cells) != len(CONLLU_COLUMNS):
            raise UserError(f"{path}, line {number}: {len(cells)} columns; CoNLL-U has {len(CONLLU_COLUMNS)}")
    return rows


def _conllu_column(name: str | None, path: str) -> int:
    first, width = CONLLU_COLUMNS.index("form") + 1, len(CONLLU_COLUMNS)
    if name is None:
        return CONLLU_COLUMNS.index("upos")
    if name.lower() in CONLLU_COLUMNS:
        index = CONLLU_COLUMNS.index(name.lower())
    elif name.lstrip("-").isdigit():
        index = _index_of_column(int(name), width)
    else:
        raise UserError(f"--tag_column {name}: CoNLL-U has {', '.join(CONLLU_COLUMNS)}")
    if not first <= index < width:
        raise UserError(
            f"--tag_column {name}: tags stand in the columns {first + 1} to {width} of {path}; give one of "
            f"{', '.join(CONLLU_COLUMNS[first:])}"
        )
    return index


def _conllu_spaces(rows: list[list[str]]) -> list[bool]:
    """Whether a space precedes each word, from SpaceAfter=No of the words and of the ranges they are part of.

    Within a range ("don't" = "do" + "n't") there is no space if the parts spell the whole.
    """
    forms = {int(cells[0]): cells[1] for cells in rows if cells[0].isdigit()}
    inside: set[int] = set()  # the words after the first of a range, if the words spell the range
    glued_after: set[int] = set()
    for cells in rows:
        words = _conllu_word_ids(cells[0])
        if words and "".join(forms.get(word, "") for word in words) == cells[1]:
            inside.update(words[1:])
        if words and "SpaceAfter=No" in cells[9].split("|"):
            glued_after.add(words[-1])
    glued = inside.union(after for before, after in pairwise(forms) if before in glued_after)
    return [position > 0 and word not in glued for position, word in enumerate(forms)]


def _conllu_word_ids(cell: str) -> range:
    """The word numbers of a row: one for `3`, all of the range for `3-4`, none for the empty node `3.1`."""
    match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", cell)
    return range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)


def _sentence_of_row(row: Row, tag_column: str | None, with_tags: bool, *, table: TableFile) -> TaggedSentence:
    """The sentence of a JSON object: words and tags; text and spans; or chunks, `{"data": [{"text", "entity"}]}`."""
    record, where = row.values, table.where(row.line)
    if with_tags:
        refuse_rejected(record.get("answer"), where)
    word_field = next((name for name in WORD_FIELDS if are_words(record.get(name))), None)
    if word_field is not None:
        words = _words_of(record, word_field, where)
        tags = _tags_of(record, word_field, tag_column, where) if with_tags else None
        return TaggedSentence(words, _spaces_between(words), tags, table.source, row.line, unit=table.unit)
    if isinstance(record.get("data"), list):
        text, spans = _chunks(record["data"], where)
    elif isinstance(record.get("text"), str):
        text, spans = record["text"], _spans_of(record, tag_column, where) if with_tags else []
    else:
        wanted = (
            "'words' and 'tags', or 'text' and 'spans'" if with_tags else "'words' or 'text', or give --text_column"
        )
        raise UserError(f"{where}: expected {wanted}; found {', '.join(record)}")
    return sentence_of_text(text, spans if with_tags else None, source=table.source, line=row.line, unit=table.unit)


def are_words(value: Any) -> bool:
    """Whether a field may hold words. Prodigy has objects there, beside text and spans."""
    return isinstance(value, (list, tuple)) and not (value and isinstance(value[0], dict))


def _spans_of(record: dict[str, Any], span_field: str | None, where: str) -> list[tuple[int, int, str]]:
    if span_field is not None and span_field not in record:
        raise UserError(f"{where}: --tag_column {span_field}: there is no such field; found {', '.join(record)}")
    span_field = span_field or next((name for name in SPAN_FIELDS if name in record), None)
    if span_field is None or not isinstance(record.get(span_field), list):
        raise UserError(
            f"{where}: text without a list of spans (one of {', '.join(SPAN_FIELDS)}), such as "
            f'{{"start": 0, "end": 3, "label": "PER"}}'
        )
    return [_checked_span(span, record["text"], where) for span in record[span_field]]


def _words_of(record: dict[str, Any], word_field: str, where: str) -> list[str]:
    words = list(record[word_field])
    odd = [word for word in words if not isinstance(word, str) or not word.strip()]
    if odd:
        raise UserError(f"{where}: {word_field} holds {odd[0]!r}, expected words that are text and not empty")
    if not words:
        raise UserError(f"{where}: {word_field} is empty")
    return words


def _tags_of(record: dict[str, Any], word_field: str, tag_field: str | None, where: str) -> list[str | None]:
    if tag_field is not None and tag_field not in record:
        raise UserError(f"{where}: --tag_column {tag_field}: there is no such field; found {', '.join(record)}")
    tag_field = tag_field or next((name for name in TAG_FIELDS if name in record), None)
    values, words = record.get(tag_field or ""), record[word_field]
    if not isinstance(values, (list, tuple)):
        raise UserError(f"{where}: no list of tags; give its field by --tag_column (found {', '.join(record)})")
    if len(values) != len(words):
        raise UserError(f"{where}: {len(words)} {word_field} but {len(values)} {tag_field}")
    return [_tag_of(value, tag_field, where) for value in values]


def _tag_of(value: Any, tag_field: str | None, where: str) -> str | None:
    """The name of a tag; None for a word without one, which transformers marks by -100."""
    if value is None or value == -100:
        return None
    if isinstance(value, (list, tuple, dict, bytes)) or is_missing(value):
        raise UserError(f"{where}: {tag_field} holds {in_short(value)}; give each word one tag, or null for none")
    return str(value).strip()


def _chunks(chunks: list[Any], where: str) -> tuple[str, list[tuple[int, int, str]]]:
    text, spans = "", []
    for chunk in chunks:
        if not isinstance(chunk, dict) or not isinstance(chunk.get("text"), str):
            raise UserError(f"{where}: every item of 'data' must be an object with a 'text', found {in_short(chunk)}")
        if chunk.get("entity"):
            spans.append((len(text), len(text) + len(chunk["text"]), str(chunk["entity"])))
        text += chunk["text"]
    return text, spans


def _checked_span(span: Any, text: str, where: str) -> tuple[int, int, str]:
    if isinstance(span, (list, tuple)) and len(span) == 3:  # as doccano writes it
        span = dict(zip(("start", "end", "label"), span, strict=True))
    elif isinstance(span, dict) and "start_offset" in span:  # as doccano writes it beside relations
        span = {"start": span["start_offset"], "end": span.get("end_offset"), "label": span.get("label")}
    if not isinstance(span, dict):
        raise UserError(f"{where}: span {in_short(span)} is not an object with start, end and label")
    start, end, label = span.get("start"), span.get("end"), span.get("label", span.get("type"))
    if not isinstance(start, int) or not isinstance(end, int) or not isinstance(label, str) or not label.strip():
        raise UserError(f"{where}: span {in_short(span)} needs whole numbers start and end, and a label")
    if start >= end:
        raise UserError(f"{where}: span {start}-{end} is empty: its end is behind its last character")
    if not 0 <= start < end <= len(text):
        # As JavaScript counts, a character beyond U+FFFF, such as an emoji, is two.
        is_utf_16 = 0 <= start < end <= len(text.encode("utf-16-le", "surrogatepass")) // 2
        hint = "; count Unicode characters, not UTF-16 units" if is_utf_16 else ""
        raise UserError(f"{where}: span {start}-{end} lies outside its text of {len(text)} characters{hint}")
    return start, end, label.strip()


def sentence_of_text(
    text: str, spans: Sequence[tuple[int, int, str]] | None, *, source: str, line: int, unit: str = "line"
) -> TaggedSentence:
    """Split running text into words, and give the words of each span its label, in IOB2.

    The words do not depend on the spans, so a model is scored on the same words as in prediction. A span that ends
    inside a word takes the whole word; if two spans share a word, the first one gets it. `inexact_spans` counts them.

    Raises:
        UserError: the text has no words, a span covers none, or two spans overlap (with file and line).
    """
    bounds = word_bounds(text)
    if not bounds:
        raise UserError(f"{source}, {unit} {line}: the text is empty")
    tags, num_inexact = None, 0
    if spans is not None:
        tags, num_inexact = _tags_of_spans(spans, bounds, where=f"{source}, {unit} {line}")
    return TaggedSentence(
        words=[text[first:last] for first, last in bounds],
        spaces=[i > 0 and bounds[i - 1][1] < first for i, (first, _) in enumerate(bounds)],
        tags=tags,
        source=source,
        line=line,
        text=text,
        starts=[first for first, _ in bounds],
        inexact_spans=num_inexact,
        unit=unit,
    )


def _tags_of_spans(
    spans: Sequence[tuple[int, int, str]], bounds: Sequence[tuple[int, int]], *, where: str
) -> tuple[list[str | None], int]:
    """The tags of the words, and how many spans begin or end inside one."""
    tags: list[str | None] = [OUTSIDE] * len(bounds)
    starts, ends = [first for first, _ in bounds], [last for _, last in bounds]
    num_inexact = covered = 0
    for start, end, label in sorted(spans):
        touched = range(bisect_right(ends, start), bisect_left(starts, end))
        if not touched:
            raise UserError(f"{where}: span {start}-{end} ({label}) covers no word")
        if start < covered:
            raise UserError(
                f"{where}: span {start}-{end} ({label}) overlaps another one, and a word gets one label: keep the "
                "inner or the outer spans, or train a model for each"
            )
        covered = end
        num_inexact += starts[touched[0]] < start or end < ends[touched[-1]]
        free = [index for index in touched if tags[index] == OUTSIDE]
        for index in free:
            tags[index] = f"{'B' if index == free[0] else 'I'}-{label}"
    return tags, num_inexact


def _spaces_between(words: Sequence[str]) -> list[bool]:
    """Whether a space precedes each word, for files that do not say: not between words of unspaced scripts."""

    def is_glued(character: str) -> bool:
        return unicodedata.category(character)[0] in "LMP" and is_unspaced(character)

    glued = [is_glued(before[-1]) and is_glued(word[0]) for before, word in pairwise(words)]
    return [False, *(not one for one in glued)]
