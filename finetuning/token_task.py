"""Token classification as a task: label names, targets, loss and metrics."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from .metrics import tag_metrics
from .sequence_task import balanced_weights
from .tags import OUTSIDE, TaggedSentence, entity_spans, label_names_of_tags
from .windows import IGNORED, Window, WindowMaker


class TokenTask:
    """What fine-tuning must know about tagging words.

    Args:
        label_names: names by label number; for entities in IOB2.
        entities: whether the tags mark entities (scored as whole spans) or stand for themselves.
        class_weights: [labels] weights of the loss, 1 on average over the words of the training set, or None.
    """

    kind = "token"
    problem_type = "token_classification"

    def __init__(
        self, *, label_names: Sequence[str], entities: bool, class_weights: Sequence[float] | None = None
    ) -> None:
        self.label_names = list(label_names)
        self.label_ids = {name: number for number, name in enumerate(self.label_names)}
        self.entities = entities
        self.class_weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)

    @property
    def best_metric(self) -> tuple[str, bool]:
        """The metric that chooses the best epoch, and whether more of it is better."""
        return ("f1", True) if self.entities else ("accuracy", True)

    def check(self, examples: Sequence[TaggedSentence]) -> None:
        """Every tag must be one the model knows, and there must be some."""
        if not any(tag is not None for sentence in examples for tag in sentence.tags or []):
            raise ValueError(f"{examples[0].source} holds no tag")
        for sentence in examples:
            for index, tag in enumerate(sentence.tags or []):
                if tag is not None and tag not in self.label_ids:
                    raise ValueError(f"{sentence.where(index)}: tag {tag!r} does not occur in the training data")

    def windows(self, examples: Sequence[TaggedSentence], maker: WindowMaker) -> list[Window]:
        """One window of each sentence, or several that overlap where it is longer than the model reads."""
        return maker.of_words(
            [sentence.words for sentence in examples],
            [sentence.spaces for sentence in examples],
            [None if s.tags is None else [self._targets(tag) for tag in s.tags] for s in examples],
        )

    def _targets(self, tag: str | None) -> tuple[int, int]:
        """Labels of a word's first sub-word and of the others: an entity begins but once."""
        if tag is None:
            return IGNORED, IGNORED
        inside = f"I-{tag[2:]}" if self.entities and tag[0] == "B" else tag
        return self.label_ids[tag], self.label_ids[inside]

    def assemble(
        self, examples: Sequence[TaggedSentence], windows: Sequence[Window], logits: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """[words, labels] of each sentence: every word as the window that owns it sees its first sub-word."""
        assembled = [np.full((len(sentence.words), len(self.label_names)), np.nan) for sentence in examples]
        for window, logits_TL in zip(windows, logits, strict=True):
            for word, position in window.words:
                assembled[window.example][word] = logits_TL[position]
        assert not any(np.isnan(words).any() for words in assembled), "a word without a prediction"
        return assembled

    def loss(
        self, outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Sum of the cross-entropies of all labelled positions, divided by their number in the whole (global) batch."""
        logits_NL, labels_N = outputs["logits"].flatten(0, -2), labels.flatten()
        return self.loss_of_logits(logits_NL, labels_N, num_items_in_batch)

    def loss_of_logits(
        self, logits_NL: torch.Tensor, labels_N: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        weights = None if self.class_weights is None else self.class_weights.to(logits_NL.device)
        # fp32: under autocast the sum over a large batch would lose its last digits
        loss = F.cross_entropy(logits_NL.float(), labels_N, weight=weights, ignore_index=IGNORED, reduction="sum")
        count = (labels_N != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        # a batch of padding alone has a loss of zero, not of nan
        return loss / (count.clamp(min=1) if isinstance(count, torch.Tensor) else max(count, 1))

    def metrics(self, logits: Sequence[np.ndarray], examples: Sequence[TaggedSentence]) -> dict[str, float]:
        """Loss and scores of assembled logits over the words that carry a tag."""
        targets = [self._targets(tag)[0] for sentence in examples for tag in sentence.tags or []]
        loss = self.loss_of_logits(torch.from_numpy(np.concatenate(logits)), torch.tensor(targets))
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
        """The likeliest tag of every word; where one is an I- that continues nothing, it begins an entity."""
        tags = [[self.label_names[number] for number in words.argmax(-1)] for words in logits]
        return [repair_iob2(sentence) for sentence in tags] if self.entities else tags

    def predictions(self, logits: Sequence[np.ndarray], examples: Sequence[TaggedSentence]) -> list[dict[str, Any]]:
        """`{"words", "tags", "scores"}` per sentence and, of entities, `"entities"` (with characters, where known)."""
        predictions = []
        for sentence, tags, words_L in zip(examples, self.tags(logits), logits, strict=True):
            scores = torch.from_numpy(words_L).softmax(-1).amax(-1).tolist()
            prediction: dict[str, Any] = {} if sentence.text is None else {"text": sentence.text}
            prediction |= {"words": sentence.words, "tags": tags, "scores": [round(score, 6) for score in scores]}
            if self.entities:
                prediction["entities"] = [_entity(sentence, scores, *span) for span in entity_spans(tags)]
            predictions.append(prediction)
        return predictions


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


def repair_iob2(tags: Sequence[str]) -> list[str]:
    """Write B- for every I- that continues no entity of its type: the same entities, in valid IOB2."""
    repaired: list[str] = []
    for tag in tags:
        continues = bool(repaired) and repaired[-1] != OUTSIDE and repaired[-1][2:] == tag[2:]
        repaired.append(f"B-{tag[2:]}" if tag[0] == "I" and not continues else tag)
    return repaired


def make_token_task(
    sentences: Sequence[TaggedSentence], *, scheme: str, known_names: Sequence[str] | None, balanced: bool
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
    return TokenTask(label_names=names, entities=entities, class_weights=weights)
