"""Token classification: label names, targets, loss and metrics."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from ..corpus.readers.compression import bare_suffix
from ..corpus.readers.formats import has_tagged_words
from ..corpus.readers.tables import TABLE_SUFFIXES
from ..modeling.fast_paths import widen
from ..modeling.losses import IGNORED_LABEL, cross_entropy
from ..utils.errors import UserError
from .metrics import class_report, entity_report, tag_metrics
from .reports import ClassReport, Report
from .tagged_files import read_tagged_file, sentence_of_text
from .tags import OUTSIDE, TaggedSentence, entity_spans, label_names_of_tags, repair_iob2
from .tasks import Task, class_names, refuse_two_forms
from .windows import Window, WindowMaker
from .words import has_unspaced_letter, unit_bounds, word_bounds


class TokenTask(Task):
    """Tagging of words: a tag for each word, predicted at its first subword.

    Args:
        label_names: names by class number; for entities in IOB2.
        entities: whether the tags mark entities, which are scored as whole spans, or are plain tags.
        label_subwords: the subwords that carry their word's tag in training: "first" or "all".
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
        label_subwords: str = "all",
    ) -> None:
        super().__init__(problem_type="token_classification", label_names=label_names)
        self.entities = entities
        self.label_subwords = label_subwords

    @classmethod
    def of_config(cls, config: Any, settings: Mapping[str, Any]) -> "TokenTask":
        """The task of a fine-tuned model; its tags mark entities if its labels are O, B-TYPE and I-TYPE.

        They do not if it was trained with `--tag_scheme plain`.
        """
        names = class_names(config)
        entities = settings.get("tag_scheme") != "plain" and _mark_entities(names)
        return cls(label_names=names, entities=entities, label_subwords=settings.get("label_subwords", "all"))

    # Examples

    def check(self, examples: Sequence[TaggedSentence]) -> None:
        """Raise if a tag is not one of the label names, or if there are no tags."""
        if not any(sentence.labels for sentence in examples):
            raise UserError(f"{examples[0].source} holds no tag")
        for sentence in examples:
            for index, tag in enumerate(sentence.tags or []):
                if tag is not None and tag not in self.label_ids:
                    way_out = "; add an example there, or take this sentence out"
                    raise self.unknown_label(tag, sentence.where(index), way_out)

    def example(self, text: str, pair: str | None, *, source: str, line: int) -> TaggedSentence:
        """An example made of the words of running text."""
        return sentence_of_text(text, None, source=source, line=line)

    def read_file(self, path: str) -> list[TaggedSentence] | None:
        """The sentences of a file in a format of tagged text; None for text and tables, whose texts are split later."""
        suffix = bare_suffix(path)
        if suffix in (".txt", ".csv", ".tsv"):
            return None
        if not has_tagged_words(path) and suffix not in TABLE_SUFFIXES:
            raise UserError(
                f"{path}: name it .txt if each line is a text (or give it as standard input), or .conll if it "
                f"holds columns of words"
            )
        return read_tagged_file(path, with_tags=False)

    def refuse_tagged(self, rows: Iterable[Sequence[str]], source: str) -> None:
        """Raise if a text or table holds CoNLL columns: each word with its tag would be tagged as a text."""
        kept = [cells for cells in rows if cells]
        tags = {cells[-1] if len(cells) > 1 else "" for cells in kept}
        are_alike = len(kept) > 1 and len({len(cells) for cells in kept}) == 1  # as columns are, and texts seldom
        if tags <= self.label_ids.keys() and (len(tags) > 1 or (are_alike and tags == {"O"})):
            raise UserError(
                f"{source}: every line ends with a tag of the model, as in CoNLL columns; name such a file .conll"
            )

    def windows(self, examples: Sequence[TaggedSentence], maker: WindowMaker) -> list[Window]:
        """Windows over the units of the words (see `_units`); the prediction of a word is that of its first unit."""
        units = [_units(sentence, cut_at_signs=self.label_subwords == "first") for sentence in examples]
        windows = maker.of_words(
            [[unit.text for unit in of_sentence] for of_sentence in units],
            [[unit.space for unit in of_sentence] for of_sentence in units],
            [
                None if s.tags is None else [self.target(s.tags[u.word], continues=u.continues) for u in of_sentence]
                for s, of_sentence in zip(examples, units, strict=True)
            ],
        )
        return [replace(window, words=_words_read(window, units[window.example])) for window in windows]

    def target(self, tag: str | None, *, continues: bool = False) -> tuple[int, int]:
        """The class numbers of a unit's first subword and of its other subwords, which never begin an entity.

        Args:
            continues: it is not the first unit of its word, and begins no entity either.
        """
        if tag is None:
            return IGNORED_LABEL, IGNORED_LABEL
        inside = f"I-{tag[2:]}" if self.entities and tag[0] == "B" else tag
        # A model of another program may have no I- where its entities are single words.
        others = self.label_ids.get(inside, IGNORED_LABEL)
        first = others if continues else self.label_ids[tag]
        return first, others if self.label_subwords == "all" else IGNORED_LABEL

    def limitations(self, examples: Sequence[TaggedSentence]) -> str | None:
        """A pipeline encodes unspaced text as a whole, and the model was trained on its letters."""
        unspaced = [has_unspaced_letter(word) for sentence in examples for word in sentence.words]
        if 10 * sum(unspaced) < len(unspaced):
            return None
        return (
            "Tag with `clozebert predict`: it reads scripts without spaces letter by letter, as training did. A "
            "pipeline of transformers cuts their text into other tokens, and can miss most of what the model finds."
        )

    # Logits

    def assemble(
        self, examples: Sequence[TaggedSentence], windows: Sequence[Window], logits: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Logits [words, C] of each sentence. A word has the logits of its first subword, in the word's own window."""
        assembled = self.blank_logits(examples)
        num_words = 0
        for window, logits_TC in zip(windows, logits, strict=True):
            num_words += len(window.words)
            words, positions = window.words.T
            assembled[window.example][words] = logits_TC[positions]
        assert num_words == sum(map(len, assembled)), "each word has one prediction"
        return assembled

    def blank_logits(self, examples: Sequence[TaggedSentence]) -> list[np.ndarray]:
        """Zero logits, [words, C] for each sentence."""
        return [np.zeros((len(sentence.words), len(self.label_names))) for sentence in examples]

    def loss(
        self,
        outputs: Any,
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
        *,
        weighted: bool = True,
    ) -> torch.Tensor:
        # fp32: under autocast the sum over a large batch would lose precision
        logits_NC = widen(outputs["logits"]).flatten(0, -2)
        weights_C = self.class_weights_C if weighted else None
        return cross_entropy(logits_NC, labels.flatten(), num_items_in_batch, class_weights_C=weights_C)

    @property
    def best_metric(self) -> tuple[str, bool]:
        """F1 for entities, accuracy for plain tags; higher is better for both."""
        return ("f1", True) if self.entities else ("accuracy", True)

    def metrics(self, logits: Sequence[np.ndarray], examples: Sequence[TaggedSentence]) -> dict[str, float]:
        """Loss and scores over the words that carry a tag."""
        targets = torch.tensor([self.target(tag)[0] for sentence in examples for tag in sentence.tags or []])
        loss = self.loss({"logits": torch.from_numpy(np.concatenate(logits)).float()}, targets, weighted=False)
        gold, predicted = self.scored_tags(logits, examples)
        return {"loss": float(loss), **tag_metrics(gold, predicted, entities=self.entities)}

    def scored_tags(
        self, logits: Sequence[np.ndarray], examples: Sequence[TaggedSentence]
    ) -> tuple[list[list[str]], list[list[str]]]:
        """Gold and predicted tags of the words that carry one; an entity may go on behind a word without a tag."""
        tagged = [np.array([tag is not None for tag in sentence.tags or []], dtype=bool) for sentence in examples]
        predicted = self.tags([words_NC[is_tagged] for words_NC, is_tagged in zip(logits, tagged, strict=True)])
        return [[tag for tag in sentence.tags or [] if tag is not None] for sentence in examples], predicted

    def tags(self, logits: Sequence[np.ndarray]) -> list[list[str]]:
        """The most probable tag of every word. An I- that continues no entity becomes B-."""
        tags = [[self.label_names[number] for number in words.argmax(-1)] for words in logits]
        return [repair_iob2(sentence) for sentence in tags] if self.entities else tags

    def predictions(self, logits: Sequence[np.ndarray], examples: Sequence[TaggedSentence]) -> list[dict[str, Any]]:
        """`{"words", "tags", "scores"}` per sentence, also `"entities"` and `"text"` if there are any."""
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
        """Predictions; sentences with mistakes, those with most mistakes first; scores by entity type or by tag."""
        predictions = self.predictions(logits, examples)
        gold, predicted = self.scored_tags(logits, examples)
        errors = [sum(a != b for a, b in zip(g, p, strict=True)) for g, p in zip(gold, predicted, strict=True)]
        worst = sorted((index for index, count in enumerate(errors) if count), key=lambda index: -errors[index])
        gold_classes = [self.class_of(tag) for tags in gold for tag in tags]
        predicted_classes = [self.class_of(tag) for tags in predicted for tag in tags]
        return Report(
            predictions=[{**p, "gold": sentence.tags} for sentence, p in zip(examples, predictions, strict=True)],
            mistakes=[_mistake(examples[index], predictions[index]["tags"]) for index in worst],
            classes=ClassReport(
                names=list(dict.fromkeys(self.class_of(name) for name in self.label_names)),
                gold=gold_classes,
                predicted=predicted_classes,
                scores=entity_report(gold, predicted)
                if self.entities
                else class_report(gold_classes, predicted_classes),
            ),
        )

    def class_of(self, name: str) -> str:
        """The entity type of a tag, or the tag itself. A type that is called O, as outside is, is `B-O`.

        By `label_subwords: all`, the later subwords of a word tagged B-X count as I-X.
        """
        if not self.entities or name == OUTSIDE:
            return name
        return name[2:] if name[2:] != OUTSIDE else f"B-{OUTSIDE}"


class _Unit(NamedTuple):
    """A unit of a word: its text, whether a space precedes it, its word's number, whether the word began before it."""

    text: str
    space: bool
    word: int
    continues: bool


def _units(sentence: TaggedSentence, *, cut_at_signs: bool) -> list[_Unit]:
    """The units of a sentence.

    Args:
        cut_at_signs: cut words of files into the words of running text, as `O'Hara` into three. Else no word is cut but
            those of scripts without spaces. If only first subwords carry tags, the later parts of such a word would
            learn none, and running text shows them as words.
    """
    units = []
    for number, (word, space) in enumerate(zip(sentence.words, sentence.spaces, strict=True)):
        before = None
        bounds = word_bounds(word) if cut_at_signs else unit_bounds(word)
        for start, end in bounds or [(0, len(word))]:
            has_space = space if before is None else before < start
            units.append(_Unit(word[start:end], has_space, number, before is not None))
            before = end
    return units


def _words_read(window: Window, units: Sequence[_Unit]) -> np.ndarray:
    """The numbers of the words whose first unit is read in a window, with its position."""
    first = [(units[unit].word, place) for unit, place in window.words.tolist() if not units[unit].continues]
    return np.array(first, dtype=np.int32).reshape(-1, 2)


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
        pieces = zip(sentence.words[first:end], sentence.spaces[first:end], strict=True)
        entity["text"] = "".join(" " * space + word for word, space in pieces).removeprefix(" ")
    return entity


def make_token_task(
    sentences: Sequence[TaggedSentence],
    *,
    scheme: str,
    known_names: Sequence[str] | None,
    label_subwords: str = "all",
) -> TokenTask:
    """The task that training sentences define.

    Args:
        known_names: the model's. They keep their order if they cover the tags and, for entities, are all IOB2.
    """
    entities = scheme != "plain"
    names = label_names_of_tags(sentences, entities=entities)
    refuse_two_forms(names)
    if known_names is not None and set(names) <= set(known_names) and (not entities or _mark_entities(known_names)):
        names = list(known_names)
    return TokenTask(label_names=names, entities=entities, label_subwords=label_subwords)


def _mark_entities(names: Collection[str]) -> bool:
    """Whether label names are those of entities in IOB2."""
    return OUTSIDE in names and all(name == OUTSIDE or name[:2] in ("B-", "I-") for name in names)
