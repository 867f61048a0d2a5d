"""Token classification as a task: readers of tagged text, label names, targets, loss and metrics."""

import os
import unicodedata
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ..modeling.heads import IGNORED_LABEL, cross_entropy, widen
from .metrics import class_report, entity_report, tag_metrics
from .reports import ClassReport, Report
from .tables import Table, json_records, read_table, read_text
from .tags import OUTSIDE, TaggedSentence, entity_spans, label_names_of_tags, repair_iob2
from .tasks import Task, balanced_weights
from .windows import Window, WindowMaker

CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
WORD_FIELDS = ("words", "tokens")
TAG_FIELDS = ("tags", "ner_tags", "labels", "pos_tags", "upos", "slots")
SPAN_FIELDS = ("spans", "entities")


# Readers -------------------------------------------------------------------------------------------------------------


def read_tagged_file(path: str, *, tag_column: str | None = None, with_tags: bool = True) -> list[TaggedSentence]:
    """Sentences of a file: CoNLL-U, JSON lines, Parquet, and everything else as CoNLL columns.

    Args:
        path: the file; .conllu, .jsonl / .ndjson / .json and .parquet are told by their suffix.
        tag_column: a name (`xpos`, a JSON field) or a number from 1, from the end if negative. Default: UPOS of
            CoNLL-U, the last column of CoNLL, the usual field of JSON.
        with_tags: False to read words only.

    Raises:
        ValueError: unequal columns, words and tags of unequal number, a span outside its text … (with file and line).
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".parquet":
        sentences = sentences_of_table(read_table(path), tag_column=tag_column, with_tags=with_tags)
    else:
        text = read_text(path)
        if suffix in (".jsonl", ".ndjson", ".json"):
            sentences = [
                _sentence_of_record(record, path, number, tag_column, with_tags)
                for number, record in json_records(path, text)
            ]
        elif suffix == ".conllu":
            sentences = list(_conllu_sentences(path, text, tag_column, with_tags))
        else:
            sentences = list(_conll_sentences(path, text, tag_column, with_tags))
    if not sentences:
        raise ValueError(f"{path} holds no sentence")
    return sentences


def sentences_of_table(table: Table, *, tag_column: str | None, with_tags: bool = True) -> list[TaggedSentence]:
    """Sentences of a table with list columns (Parquet, or a dataset of the Hub)."""
    names = list(table.columns)
    return [
        _sentence_of_record(
            {name: table.columns[name][row] for name in names}, table.source, table.lines[row], tag_column, with_tags
        )
        for row in range(len(table))
    ]


def _blocks(lines: list[str]) -> Iterator[list[tuple[int, str]]]:
    """Runs of lines that are not blank, each line with its number."""
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
    separator = "\t" if sum("\t" in line for line in lines) * 2 > sum(bool(line.strip()) for line in lines) else None
    widths = Counter(len(_cells(line, separator)) for line in lines if line.strip())
    width = widths.most_common(1)[0][0] if widths else 0
    if with_tags and 0 < width < 2:
        raise ValueError(f"{path}: expected columns (word and tag), found lines of {width}; which format is it?")
    column = _column_number(tag_column, width, path) if with_tags else 0
    for block in _blocks(lines):
        # a comment stands before a sentence and need not look like a row; "# O" inside one is a word and its tag
        while block and block[0][1].startswith("#") and len(_cells(block[0][1], separator)) != width:
            block = block[1:]
        rows = [(number, _cells(line, separator)) for number, line in block if not line.startswith("-DOCSTART-")]
        for number, cells in rows:
            if len(cells) != width:
                raise ValueError(f"{path}, line {number}: {len(cells)} columns, where other lines have {width}")
            if not cells[0].strip() or (with_tags and not cells[column].strip()):
                raise ValueError(f"{path}, line {number}: the {'tag' if cells[0].strip() else 'word'} is empty")
        if rows:
            yield TaggedSentence(
                words=[cells[0] for _, cells in rows],
                spaces=[index > 0 for index in range(len(rows))],
                tags=[cells[column].strip() for _, cells in rows] if with_tags else None,
                source=path,
                line=rows[0][0],
                lines=[number for number, _ in rows],
            )


def _cells(line: str, separator: str | None) -> list[str]:
    """Cells of a line; the separator None stands for any run of blanks. Words may hold blanks in files with tabs."""
    return line.split() if separator is None else line.rstrip("\r\n").split(separator)


def _column_number(name: str | None, width: int, path: str) -> int:
    """The index of the tag column: `name` counts from 1, or from the end if negative; default the last."""
    if name is None:
        return width - 1
    try:
        number = int(name)
    except ValueError:
        raise ValueError(f"--tag_column {name}: {path} has no named columns; give a number from 1 to {width}") from None
    index = number - 1 if number > 0 else width + number
    if number == 0 or not 0 < index < width:
        raise ValueError(f"--tag_column {name}: {path} has the columns 1 to {width}, and 1 holds the words")
    return index


def _conllu_sentences(path: str, text: str, tag_column: str | None, with_tags: bool) -> Iterator[TaggedSentence]:
    column = _conllu_column(tag_column, path) if with_tags else 3
    for block in _blocks(text.replace("\r\n", "\n").split("\n")):
        rows = [(number, line.split("\t")) for number, line in block if not line.startswith("#")]
        for number, cells in rows:
            if len(cells) != len(CONLLU_COLUMNS):
                raise ValueError(f"{path}, line {number}: {len(cells)} columns; CoNLL-U has {len(CONLLU_COLUMNS)}")
        words = [(number, cells) for number, cells in rows if cells[0].isdigit()]
        if words:
            tags = [None if cells[column] == "_" else cells[column] for _, cells in words]
            yield TaggedSentence(
                words=[cells[1] for _, cells in words],
                spaces=_conllu_spaces([cells for _, cells in rows]),
                tags=tags if with_tags else None,
                source=path,
                line=words[0][0],
                lines=[number for number, _ in words],
            )


def _conllu_column(name: str | None, path: str) -> int:
    if name is None:
        return CONLLU_COLUMNS.index("upos")
    if name.lower() in CONLLU_COLUMNS:
        return CONLLU_COLUMNS.index(name.lower())
    if name.lstrip("-").isdigit():
        return _column_number(name, len(CONLLU_COLUMNS), path)
    raise ValueError(f"--tag_column {name}: CoNLL-U has {', '.join(CONLLU_COLUMNS)}")


def _conllu_spaces(rows: list[list[str]]) -> list[bool]:
    """Whether a space stands before each word, from SpaceAfter=No of the words and of the ranges they are part of.

    Within a range ("don't" = "do" + "n't") there is none where the parts spell the whole.
    """
    inside: dict[int, bool] = {}  # word id -> glued to the word before it, as part of one range
    glued_after: set[int] = set()
    forms = {int(cells[0]): cells[1] for cells in rows if cells[0].isdigit()}
    for cells in rows:
        first, dash, last = cells[0].partition("-")
        if dash:
            members = range(int(first), int(last) + 1)
            spelled = "".join(forms.get(member, "") for member in members) == cells[1]
            inside.update({member: spelled for member in members if member > members[0]})
        if "SpaceAfter=No" in cells[9].split("|") and (dash or first.isdigit()):
            glued_after.add(int(last if dash else first))
    ids = list(forms)
    return [
        position > 0 and not inside.get(number, False) and ids[position - 1] not in glued_after
        for position, number in enumerate(ids)
    ]


def _sentence_of_record(
    record: dict[str, Any], path: str, number: int, tag_column: str | None, with_tags: bool
) -> TaggedSentence:
    """A JSON object: words and tags; or text and spans; or chunks of text, `{"data": [{"text", "entity"}]}`."""
    where = f"{path}, line {number}"
    word_field = next((name for name in WORD_FIELDS if isinstance(record.get(name), (list, tuple))), None)
    if word_field is not None:
        tag_field = tag_column or next((name for name in TAG_FIELDS if name in record), None)
        return _sentence_of_words(record, path, number, word_field, tag_field, with_tags)
    if isinstance(record.get("data"), list):
        text, spans = _chunks(record["data"], where)
    elif isinstance(record.get("text"), str):
        text = record["text"]
        span_field = tag_column or next((name for name in SPAN_FIELDS if name in record), None)
        if with_tags and (span_field is None or not isinstance(record.get(span_field), list)):
            raise ValueError(f"{where}: text without a list of spans (one of {', '.join(SPAN_FIELDS)})")
        spans = [_checked_span(span, text, where) for span in record[span_field or ""]] if with_tags else []
    else:
        raise ValueError(f"{where}: expected 'words' and 'tags', or 'text' and 'spans'; found {', '.join(record)}")
    return sentence_of_text(text, spans if with_tags else None, source=path, line=number)


def _sentence_of_words(
    record: dict[str, Any], path: str, number: int, word_field: str, tag_field: str | None, with_tags: bool
) -> TaggedSentence:
    where = f"{path}, line {number}"
    words = list(record[word_field])
    odd = next((word for word in words if not isinstance(word, str) or not word.strip()), None)
    if odd is not None:
        raise ValueError(f"{where}: {word_field} holds {odd!r}, expected words that are text and not empty")
    if not words:
        raise ValueError(f"{where}: {word_field} is empty")
    tags: list[str | None] | None = None
    if with_tags:
        values = record.get(tag_field) if tag_field is not None else None
        if not isinstance(values, (list, tuple)):
            raise ValueError(f"{where}: no list of tags; give its field by --tag_column (found {', '.join(record)})")
        if len(values) != len(words):
            raise ValueError(f"{where}: {len(words)} {word_field} but {len(values)} {tag_field}")
        tags = [None if value is None else str(value) for value in values]
    return TaggedSentence(words, [index > 0 for index in range(len(words))], tags, path, number)


def _chunks(chunks: list[Any], where: str) -> tuple[str, list[tuple[int, int, str]]]:
    text, spans = "", []
    for chunk in chunks:
        if not isinstance(chunk, dict) or not isinstance(chunk.get("text"), str):
            raise ValueError(f"{where}: every item of 'data' must be an object with a 'text', found {chunk!r}")
        if chunk.get("entity"):
            spans.append((len(text), len(text) + len(chunk["text"]), str(chunk["entity"])))
        text += chunk["text"]
    return text, spans


def _checked_span(span: Any, text: str, where: str) -> tuple[int, int, str]:
    if not isinstance(span, dict):
        raise ValueError(f"{where}: span {span!r} is not an object with start, end and label")
    start, end, label = span.get("start"), span.get("end"), span.get("label", span.get("type"))
    if not isinstance(start, int) or not isinstance(end, int) or not isinstance(label, str) or not label:
        raise ValueError(f"{where}: span {span!r} needs whole numbers start and end, and a label")
    if not 0 <= start < end <= len(text):
        raise ValueError(f"{where}: span {start}-{end} lies outside its text of {len(text)} characters")
    return start, end, label


def sentence_of_text(
    text: str, spans: Sequence[tuple[int, int, str]] | None, *, source: str, line: int
) -> TaggedSentence:
    """Split running text into words, and at the edges of spans, and give the words of a span its label, in IOB2.

    Raises:
        ValueError: the text has no word, a span covers none, or two spans overlap (with file and line).
    """
    cuts = {position for start, end, _ in spans or [] for position in (start, end)}
    bounds = word_bounds(text, cuts)
    if not bounds:
        raise ValueError(f"{source}, line {line}: the text is empty")
    tags: list[str | None] | None = None
    if spans is not None:
        tags = [OUTSIDE] * len(bounds)
        for start, end, label in sorted(spans):
            touched = [index for index, (first, last) in enumerate(bounds) if first < end and start < last]
            if not touched:
                raise ValueError(f"{source}, line {line}: span {start}-{end} ({label}) covers no word")
            if any(tags[index] != OUTSIDE for index in touched):
                raise ValueError(f"{source}, line {line}: span {start}-{end} ({label}) overlaps another one")
            for index in touched:
                tags[index] = f"{'B' if index == touched[0] else 'I'}-{label}"
    return TaggedSentence(
        words=[text[first:last] for first, last in bounds],
        spaces=[i > 0 and bounds[i - 1][1] < first for i, (first, _) in enumerate(bounds)],
        tags=tags,
        source=source,
        line=line,
        text=text,
        starts=[first for first, _ in bounds],
    )


def word_bounds(text: str, cuts: Container[int] = ()) -> list[tuple[int, int]]:
    """(start, end) of the words of a text: runs of letters, marks and digits; other signs and ideographs one by one.

    No word goes over a position in `cuts`.
    """
    bounds: list[tuple[int, int]] = []
    previous = " "
    for position, character in enumerate(text):
        kind = _kind_of(character)
        if kind == "word" and previous == "word" and position not in cuts:
            bounds[-1] = (bounds[-1][0], position + 1)
        elif kind != " ":
            bounds.append((position, position + 1))
        previous = kind
    return bounds


def _kind_of(character: str) -> str:
    if character.isspace():
        return " "
    category = unicodedata.category(character)
    if category == "Lo" and unicodedata.east_asian_width(character) == "W" and not _is_hangul(character):
        return "sign"  # ideographs and kana are written without spaces between words
    # Mn, Mc: accents and vowel signs belong to their letter; Cf: joiners stand inside words
    return "word" if category[0] in "LNM" or category == "Cf" or character == "_" else "sign"


def _is_hangul(character: str) -> bool:
    return "\uac00" <= character <= "\ud7a3" or "\u1100" <= character <= "\u11ff"


# The task ------------------------------------------------------------------------------------------------------------


class TokenTask(Task):
    """Tagging of words: a tag for each word, read off its first sub-word.

    Args:
        label_names: for entities in IOB2.
        entities: whether the tags mark entities, which are scored as whole spans, or stand for themselves.
        class_weights: [C] weights of the loss, 1 on average over the words of the training data, or None.
        label_subwords: the sub-words that carry their word's tag in training: "first" or "all".
    """

    task_type = "token"
    head = "ForTokenClassification"
    per_token = True
    window_overlap = None

    def __init__(
        self,
        *,
        label_names: Sequence[str],
        entities: bool,
        class_weights: Sequence[float] | None = None,
        label_subwords: str = "all",
    ) -> None:
        super().__init__(problem_type="token_classification", label_names=label_names, class_weights=class_weights)
        self.entities = entities
        self.label_subwords = label_subwords

    @classmethod
    def of_config(cls, config: Any) -> "TokenTask":
        """The task of a fine-tuned model: entities, where its labels are O, B-TYPE and I-TYPE."""
        names = [name for _, name in sorted(config.id2label.items())]
        entities = OUTSIDE in names and all(name == OUTSIDE or name[:2] in ("B-", "I-") for name in names)
        return cls(label_names=names, entities=entities)

    # Examples

    def check(self, examples: Sequence[TaggedSentence]) -> None:
        """Every tag must be one the model knows, and there must be some."""
        if not any(sentence.labels for sentence in examples):
            raise ValueError(f"{examples[0].source} holds no tag")
        for sentence in examples:
            for index, tag in enumerate(sentence.tags or []):
                if tag is not None and tag not in self.label_ids:
                    raise ValueError(f"{sentence.where(index)}: tag {tag!r} does not occur in the training data")

    def example(self, text: str, pair: str | None, *, source: str, line: int) -> TaggedSentence:
        """The words of running text."""
        return sentence_of_text(text, None, source=source, line=line)

    def read_file(self, path: str) -> list[TaggedSentence] | None:
        """Sentences of all formats of tagged text; None for text and tables, whose texts are split into words."""
        if os.path.splitext(path)[1].lower() in (".txt", ".csv", ".tsv"):
            return None
        return read_tagged_file(path, with_tags=False)

    def windows(self, examples: Sequence[TaggedSentence], maker: WindowMaker) -> list[Window]:
        """One window of each sentence, or several that overlap where it is longer than the model reads."""
        return maker.of_words(
            [sentence.words for sentence in examples],
            [sentence.spaces for sentence in examples],
            [None if s.tags is None else [self.target(tag) for tag in s.tags] for s in examples],
        )

    def target(self, tag: str | None) -> tuple[int, int]:
        """Class numbers of a word's first sub-word and of its others: an entity begins but once."""
        if tag is None:
            return IGNORED_LABEL, IGNORED_LABEL
        inside = f"I-{tag[2:]}" if self.entities and tag[0] == "B" else tag
        return self.label_ids[tag], self.label_ids[inside] if self.label_subwords == "all" else IGNORED_LABEL

    # Logits

    def assemble(
        self, examples: Sequence[TaggedSentence], windows: Sequence[Window], logits: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """[words, C] of each sentence. A word has the logits of its first sub-word, in the window it belongs to."""
        assembled = [np.full((len(sentence.words), len(self.label_names)), np.nan) for sentence in examples]
        for window, logits_TC in zip(windows, logits, strict=True):
            for word, position in window.words:
                assembled[window.example][word] = logits_TC[position]
        assert not any(np.isnan(words).any() for words in assembled), "a word without a prediction"
        return assembled

    def blank_logits(self, examples: Sequence[TaggedSentence]) -> list[np.ndarray]:
        """Zeros, [words, C] for each sentence."""
        return [np.zeros((len(sentence.words), len(self.label_names))) for sentence in examples]

    def loss(
        self, outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Sum of the cross-entropies of all labelled tokens, divided by their number in the whole global batch."""
        # fp32: under autocast the sum over a large batch would lose its last digits
        logits_NC = widen(outputs["logits"]).flatten(0, -2)
        return cross_entropy(logits_NC, labels.flatten(), num_items_in_batch, class_weights_C=self.class_weights_C)

    @property
    def best_metric(self) -> tuple[str, bool]:
        """F1 of entities, accuracy of plain tags."""
        return ("f1", True) if self.entities else ("accuracy", True)

    def metrics(self, logits: Sequence[np.ndarray], examples: Sequence[TaggedSentence]) -> dict[str, float]:
        """Loss and scores over the words that carry a tag."""
        targets = torch.tensor([self.target(tag)[0] for sentence in examples for tag in sentence.tags or []])
        loss = self.loss({"logits": torch.from_numpy(np.concatenate(logits)).float()}, targets)
        gold, predicted = self.scored_tags(logits, examples)
        return {"loss": float(loss), **tag_metrics(gold, predicted, entities=self.entities)}

    def scored_tags(
        self, logits: Sequence[np.ndarray], examples: Sequence[TaggedSentence]
    ) -> tuple[list[list[str]], list[list[str]]]:
        """Gold and predicted tags of the words that carry one."""
        gold, predicted = [], []
        for sentence, tags in zip(examples, self.tags(logits), strict=True):
            pairs = [pair for pair in zip(sentence.tags or [], tags, strict=True) if pair[0] is not None]
            gold.append([str(tag) for tag, _ in pairs])
            predicted.append([tag for _, tag in pairs])
        return gold, predicted

    def tags(self, logits: Sequence[np.ndarray]) -> list[list[str]]:
        """The likeliest tag of every word. An I- that continues no entity becomes B-."""
        tags = [[self.label_names[number] for number in words.argmax(-1)] for words in logits]
        return [repair_iob2(sentence) for sentence in tags] if self.entities else tags

    def predictions(self, logits: Sequence[np.ndarray], examples: Sequence[TaggedSentence]) -> list[dict[str, Any]]:
        """`{"words", "tags", "scores"}`, of entities also `"entities"`, and `"text"` where the example is text."""
        predictions = []
        for sentence, tags, words_C in zip(examples, self.tags(logits), logits, strict=True):
            scores = torch.from_numpy(words_C).softmax(-1).amax(-1).tolist()
            prediction: dict[str, Any] = {} if sentence.text is None else {"text": sentence.text}
            prediction |= {"words": sentence.words, "tags": tags, "scores": [round(score, 6) for score in scores]}
            if self.entities:
                prediction["entities"] = [_entity(sentence, scores, *span) for span in entity_spans(tags)]
            predictions.append(prediction)
        return predictions

    def report(self, logits: Sequence[np.ndarray], examples: Sequence[TaggedSentence]) -> Report:
        """Mistakes by their number in a sentence; scores by entity type, or by tag."""
        predictions = self.predictions(logits, examples)
        gold, predicted = self.scored_tags(logits, examples)
        errors = [sum(a != b for a, b in zip(g, p, strict=True)) for g, p in zip(gold, predicted, strict=True)]
        worst = sorted((index for index, count in enumerate(errors) if count), key=lambda index: -errors[index])
        gold_classes = [self._class_of(tag) for tags in gold for tag in tags]
        predicted_classes = [self._class_of(tag) for tags in predicted for tag in tags]
        return Report(
            predictions=[{**p, "gold": sentence.tags} for sentence, p in zip(examples, predictions, strict=True)],
            mistakes=[_mistake(examples[index], predictions[index]["tags"]) for index in worst],
            classes=ClassReport(
                names=list(dict.fromkeys(self._class_of(name) for name in self.label_names)),
                gold=gold_classes,
                predicted=predicted_classes,
                scores=entity_report(gold, predicted)
                if self.entities
                else class_report(gold_classes, predicted_classes),
            ),
        )

    def _class_of(self, tag: str) -> str:
        """The entity type of a tag, or the tag itself."""
        return tag[2:] if self.entities and tag != OUTSIDE else tag


def _mistake(sentence: TaggedSentence, tags: Sequence[str]) -> str:
    pieces = [
        word if gold is None or gold == tag else f"[{word}: {gold} -> {tag}]"
        for word, gold, tag in zip(sentence.words, sentence.tags or [], tags, strict=True)
    ]
    return f"{sentence.where(0)}: [word: gold -> predicted]\n    {' '.join(pieces)}"


def _entity(sentence: TaggedSentence, scores: Sequence[float], label: str, first: int, end: int) -> dict[str, Any]:
    score = round(sum(scores[first:end]) / (end - first), 6)
    entity: dict[str, Any] = {"label": label, "score": score, "first_word": first, "end_word": end}
    if sentence.text is not None and sentence.starts is not None:
        start = sentence.starts[first]
        stop = sentence.starts[end - 1] + len(sentence.words[end - 1])
        entity |= {"start": start, "end": stop, "text": sentence.text[start:stop]}
    else:
        entity["text"] = " ".join(sentence.words[first:end])
    return entity


def make_token_task(
    sentences: Sequence[TaggedSentence],
    *,
    scheme: str,
    known_names: Sequence[str] | None,
    balanced: bool,
    label_subwords: str = "all",
) -> TokenTask:
    """The task that training sentences define; `known_names` (the model's) keep their order if they cover the tags."""
    entities = scheme != "plain"
    names = label_names_of_tags(sentences, entities=entities)
    if known_names is not None and set(names) <= set(known_names):
        names = list(known_names)
    weights = None
    if balanced:
        counts = Counter(tag for sentence in sentences for tag in sentence.tags or [] if tag is not None)
        weights = balanced_weights([counts[name] for name in names])
    return TokenTask(label_names=names, entities=entities, class_weights=weights, label_subwords=label_subwords)
