"""Scores with known answers, the loss under any split of a batch, and packed = padded."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss
from transformers import PreTrainedConfig

from clozebert.finetuning.batches import PackedCollator, PaddedCollator, predict_logits
from clozebert.finetuning.metrics import (
    entity_report,
    label_report,
    multi_label_metrics,
    regression_metrics,
    single_label_metrics,
    tag_metrics,
)
from clozebert.finetuning.reports import mean_and_deviation, table_of_results, warn_of_majority
from clozebert.finetuning.sequence_task import (
    MULTI_LABEL,
    REGRESSION,
    SINGLE_LABEL,
    SequenceExample,
    SequenceTask,
    make_sequence_task,
)
from clozebert.finetuning.tagged_files import read_tagged_file
from clozebert.finetuning.tags import TaggedSentence, entity_spans
from clozebert.finetuning.tasks import balanced_weights
from clozebert.finetuning.token_task import TokenTask, make_token_task
from clozebert.finetuning.windows import Window, WindowMaker

sys.path.insert(0, str(Path(__file__).parents[1]))
from finetuning_helpers import TOKENIZER_KINDS, make_config, make_tokenizer

# A model that is always right ----------------------------------------------------------------------------------------


class Oracle(torch.nn.Module):
    """Tags every position by the id that stands there: id modulo the number of labels. Knows nothing of alignment."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.labels = labels
        self.nothing = torch.nn.Parameter(torch.zeros(1))
        self.config = PreTrainedConfig()

    def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> dict[str, torch.Tensor]:
        return {"logits": torch.nn.functional.one_hot(input_ids % self.labels, self.labels).float() * 9}


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("entities", [False, True])
def test_a_perfect_model_scores_exactly_one(kind: str, packed: bool, entities: bool) -> None:
    """The gold tag of a word comes from its first id alone, found by the tokenizer itself; any slip in alignment,
    windows or batches costs score."""
    tokenizer = make_tokenizer(kind)
    names = ["O", "B-A", "I-A", "B-B", "I-B"] if entities else ["P", "Q", "R", "S", "T"]
    text = "the quick brown foxes, jumpingly over Ada's lazy-dogs; and numbers 0123 xyz unknownish letters "
    words = (text * 3).split()
    documents = [words[start : start + length] for start, length in ((0, 40), (3, 1), (5, 7), (11, 30))]

    def first_id(word: str, index: int) -> int:
        return tokenizer((" " if index else "") + word, add_special_tokens=False)["input_ids"][0]

    sentences = []
    for number, document in enumerate(documents):
        tags: list[str | None] = [names[first_id(word, index) % 5] for index, word in enumerate(document)]
        spaces = [index > 0 for index in range(len(document))]
        sentences.append(TaggedSentence(document, spaces, tags, "f", number))
    task = TokenTask(label_names=names, entities=False)
    maker = WindowMaker(tokenizer, max_seq_length=16)
    windows = task.windows(sentences, maker)
    assert len(windows) > len(sentences)
    collator = PackedCollator(per_token=True) if packed else PaddedCollator(0, per_token=True)
    logits = task.assemble(sentences, windows, predict_logits(Oracle(5), windows, collator, batch_size=3))
    gold, predicted = task.scored_tags(logits, sentences)
    scores = tag_metrics(gold, predicted, entities=entities)
    assert scores["accuracy"] == 1.0
    assert scores["f1" if entities else "f1_macro"] == 1.0


def test_a_batch_is_scored_on_the_device_of_the_model() -> None:
    """All of it: the boundaries of packed windows, too."""

    class OnDevice(Oracle):
        def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> dict[str, torch.Tensor]:
            packed = kwargs["packed"]
            places = {x.device.type for x in (input_ids, packed.cu_seq_lens, packed.position_ids)}
            assert places == {"meta"}
            return {"logits": torch.zeros(2, 5)}

    windows = [Window(np.array([2, 3, 4]), None, 0), Window(np.array([2, 3]), None, 1)]
    model = OnDevice(5).to("meta")
    assert len(predict_logits(model, windows, PackedCollator(per_token=False), batch_size=2)) == 2


@pytest.mark.parametrize("problem_type", [SINGLE_LABEL, MULTI_LABEL, REGRESSION])
def test_perfect_sequence_logits_score_exactly_one(problem_type: str) -> None:
    labels: list[Any] = {
        SINGLE_LABEL: ["a", "b", "c", "a"],
        MULTI_LABEL: [frozenset("ab"), frozenset("c"), frozenset(), frozenset("a")],
        REGRESSION: [3.0, -100.0, 7.5, 12.0],
    }[problem_type]
    examples = [SequenceExample("t", None, label, "f") for label in labels]
    task = make_sequence_task(examples, problem_type=problem_type, value_name="v", known_names=None)
    logits = np.zeros((4, len(task.label_names)))
    for row, label in enumerate(labels):
        if problem_type == REGRESSION:
            logits[row, 0] = label
        else:
            names = label if problem_type == MULTI_LABEL else {label}
            logits[row] = [30.0 if name in names else -30.0 for name in "abc"]
    scores = task.metrics(logits, examples)
    assert scores["loss"] == pytest.approx(0, abs=1e-12)
    exact = {SINGLE_LABEL: ("accuracy", "f1_macro", "f1_micro"), MULTI_LABEL: ("accuracy", "f1_macro", "f1_micro")}
    for name in exact.get(problem_type, ("pearson", "spearman")):
        assert scores[name] == pytest.approx(1.0, abs=1e-15)
    if problem_type == REGRESSION:
        assert scores["mse"] == 0


def test_labels_near_one_half_are_those_that_were_scored() -> None:
    task = SequenceTask(problem_type=MULTI_LABEL, label_names=["a", "b"])
    example = SequenceExample("t", None, frozenset("a"), "f")
    logits = np.array([[1e-7, -1e-7]])  # with six digits, both have a probability of 0.5
    assert task.metrics(logits, [example])["accuracy"] == 1.0
    assert task.predictions(logits, [example])[0]["labels"] == ["a"]


# Scores by hand ------------------------------------------------------------------------------------------------------


def test_single_label_scores_by_hand() -> None:
    scores = single_label_metrics(np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1]), num_labels=2)
    # class 0: P 1, R 2/3, F1 0.8; class 1: P 1/2, R 1, F1 2/3
    assert scores["accuracy"] == scores["f1_micro"] == 0.75
    assert scores["f1_macro"] == pytest.approx((0.8 + 2 / 3) / 2)
    assert scores["majority_accuracy"] == 0.75
    assert scores["majority_f1_macro"] == pytest.approx((6 / 7) / 2)


def test_multi_label_scores_by_hand() -> None:
    scores = multi_label_metrics(np.array([[1, 0], [1, 1], [0, 0]]), np.array([[1, 0], [1, 0], [0, 1]]))
    assert scores["f1_micro"] == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert scores["f1_macro"] == 0.5
    assert scores["accuracy"] == pytest.approx(1 / 3)


def test_the_report_of_several_labels_by_hand() -> None:
    targets = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0]])
    predicted = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0]])
    report = label_report(targets, predicted, names=["a", "b", "c", "neither"])
    assert report["a"] == {"precision": 1.0, "recall": 0.5, "f1-score": pytest.approx(2 / 3), "support": 2.0}
    assert report["b"] == {"precision": 0.5, "recall": 1.0, "f1-score": pytest.approx(2 / 3), "support": 1.0}
    assert list(report) == ["a", "b", "c", "macro avg"]
    assert report["macro avg"]["f1-score"] == pytest.approx(multi_label_metrics(targets, predicted)["f1_macro"])
    assert label_report(targets * 0, predicted * 0, names=list("abcd")) == {}
    # A single label, or the only one that is scored: the F1 of finding it, not of its absence.
    never = np.zeros((4, 1), dtype=int)
    assert multi_label_metrics(np.array([[1], [0], [0], [0]]), never)["f1_micro"] == 0
    found = multi_label_metrics(np.array([[1, 0], [0, 0], [0, 0]]), np.array([[1, 0], [1, 0], [0, 0]]))
    assert found["f1_micro"] == found["f1_macro"] == pytest.approx(2 / 3)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=3, max_size=20))
def test_correlations_are_those_of_scipy(pairs: list[tuple[int, int]]) -> None:
    stats = pytest.importorskip("scipy.stats")
    a, b = np.array(pairs, dtype=float).T
    scores = regression_metrics(a, b, training_mean=0.0)
    if a.std() == 0 or b.std() == 0:
        assert scores["pearson"] == scores["spearman"] == 0
    else:
        assert scores["pearson"] == pytest.approx(stats.pearsonr(a, b)[0], abs=1e-9)
        assert scores["spearman"] == pytest.approx(stats.spearmanr(a, b)[0], abs=1e-9)


@pytest.mark.parametrize("count", range(1, 12))
def test_constants_have_no_correlation(count: int) -> None:
    """Whatever their mean is rounded to: that of seven times 0.1 is not 0.1."""
    scores = regression_metrics(np.full(count, 0.1), np.full(count, 0.7), training_mean=0.0)
    assert scores["pearson"] == scores["spearman"] == 0


@pytest.mark.parametrize("count", range(2, 12))
def test_a_regression_on_a_constant_is_refused(count: int) -> None:
    examples = [SequenceExample("text", None, 0.1, f"line {row}") for row in range(count)]
    with pytest.raises(ValueError, match=r"every label of the training data is 0\.1"):
        make_sequence_task(examples, problem_type=REGRESSION, value_name="v", known_names=None)


TAGS = st.lists(st.sampled_from(["O", "B-A", "I-A", "B-B", "I-B"]), min_size=1, max_size=8)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=4))
def test_entity_scores_are_those_of_sets_of_spans(pairs: list[tuple[list[str], list[str]]]) -> None:
    gold = [g[: min(len(g), len(p))] for g, p in pairs]
    predicted = [p[: min(len(g), len(p))] for g, p in pairs]
    gold_spans = {(i, span) for i, tags in enumerate(gold) for span in entity_spans(tags)}
    predicted_spans = {(i, span) for i, tags in enumerate(predicted) for span in entity_spans(tags)}
    right, total = len(gold_spans & predicted_spans), len(gold_spans) + len(predicted_spans)
    row = entity_report(gold, predicted)["micro avg"]
    assert row["f1-score"] == pytest.approx(2 * right / total if total else 0)


def test_words_without_a_gold_tag_do_not_count() -> None:
    sentence = TaggedSentence(["a", "b"], [False, True], ["X", None], "f", 1)
    task = TokenTask(label_names=["X", "Y"], entities=False)
    scores = task.metrics([np.array([[3.0, 0.0], [0.0, 3.0]])], [sentence])
    assert scores["accuracy"] == 1.0
    assert scores["loss"] == pytest.approx(np.log(1 + np.exp(-3.0)), abs=1e-6)


def test_windows_of_a_long_document_are_averaged() -> None:
    task = SequenceTask(problem_type=SINGLE_LABEL, label_names=["a", "b"])
    examples = [SequenceExample("t", None, "a", "f"), SequenceExample("t", None, "b", "f")]
    windows = [Window(np.array([1]), None, example) for example in (0, 1, 0)]
    logits = [np.array([4.0, 0.0]), np.array([1.0, 2.0]), np.array([0.0, 2.0])]
    assert task.assemble(examples, windows, logits).tolist() == [[2.0, 1.0], [1.0, 2.0]]


def test_mean_and_deviation_by_hand() -> None:
    combined = mean_and_deviation([{"eval_f1": f1, "x": "s", "eval_samples": 6} for f1 in (0.5, 0.7)])
    assert (combined.pop("eval_samples"), "eval_samples_sd" in combined) == (6, False)
    assert combined == {"eval_f1": pytest.approx(0.6), "eval_f1_sd": pytest.approx(0.2 / 2**0.5)}
    assert "0.6000 ± 0.1414" in table_of_results(combined, splits=["eval"])


@pytest.mark.parametrize(
    ("scores", "baselines", "warns"),
    [
        ({"accuracy": 0.98, "f1_macro": 0.49}, {"accuracy": 0.98, "f1_macro": 0.49}, True),
        ({"accuracy": 0.90, "f1_macro": 0.70}, {"accuracy": 0.98, "f1_macro": 0.49}, False),  # classes were weighted
        ({"accuracy": 0.57, "f1_macro": 0.46}, {"accuracy": 0.75, "f1_macro": 0.43}, True),  # a guess has 0.5
        ({"accuracy": 1.0}, {"accuracy": 1.0}, False),  # the data have one class
        ({"f1": 0.0, "accuracy": 0.8}, {"f1": 0.0, "accuracy": 0.8}, True),
        ({"mse": 2.1}, {"mse": 2.0}, True),
        ({"mse": 1.9}, {"mse": 2.0}, False),
    ],
)
def test_a_model_that_beats_no_baseline_is_named(
    scores: dict[str, float], baselines: dict[str, float], warns: bool
) -> None:
    results = {f"eval_{name}": value for name, value in scores.items()}
    results |= {f"eval_majority_{name}": value for name, value in baselines.items()}
    warning = warn_of_majority(mean_and_deviation([results, results]), num_labels=2, weigh_classes=True)
    assert (warning is not None) == warns
    if warning is not None:
        constant = "the mean of the training labels" if "mse" in scores else "the most frequent answer"
        assert f"no better than always {constant} (" in warning
        assert "--class_weights balanced" in warning
        assert "--class_weights" not in str(warn_of_majority(results, num_labels=2, weigh_classes=False))


# The loss ------------------------------------------------------------------------------------------------------------


def tasks_with_batch() -> list[tuple[Any, torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    weighted = SequenceTask(problem_type=SINGLE_LABEL, label_names="abc")
    weighted.class_weights_C = torch.tensor([0.5, 2.0, 1.0])
    return [
        (SequenceTask(problem_type=SINGLE_LABEL, label_names="abc"), torch.randn(8, 3), torch.randint(3, (8,))),
        (weighted, torch.randn(8, 3), torch.randint(3, (8,))),
        (SequenceTask(problem_type=MULTI_LABEL, label_names="abc"), torch.randn(8, 3), torch.rand(8, 3).round()),
        (
            SequenceTask(problem_type=REGRESSION, label_names=["v"], target_mean=3.0, target_scale=2.0),
            torch.randn(8, 1),
            torch.randn(8),
        ),
        (
            TokenTask(label_names="abc", entities=False),
            torch.randn(8, 5, 3),
            torch.randint(3, (8, 5)).masked_fill(torch.rand(8, 5) < 0.4, -100),
        ),
    ]


@pytest.mark.parametrize("case", range(5))
def test_any_split_of_a_batch_has_the_same_loss(case: int) -> None:
    task, logits, labels = tasks_with_batch()[case]
    items = (labels != -100).sum()
    whole = task.loss({"logits": logits}, labels, items)
    for sizes in ([4, 4], [1, 2, 5]):
        parts = zip(logits.split(sizes), labels.split(sizes), strict=True)
        split = sum(task.loss({"logits": some}, of_them, items) for some, of_them in parts)
        torch.testing.assert_close(split, whole, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(task.loss({"logits": logits}, labels), whole)


def test_losses_are_the_textbook_ones() -> None:
    (single, logits, labels), _, (multi, m_logits, m_labels), (regression, r_logits, r_labels), _ = tasks_with_batch()
    log_p = logits.log_softmax(-1)[torch.arange(8), labels]
    torch.testing.assert_close(single.loss({"logits": logits}, labels), -log_p.mean())
    p = m_logits.sigmoid()
    expected = -(m_labels * p.log() + (1 - m_labels) * (1 - p).log()).mean()
    torch.testing.assert_close(multi.loss({"logits": m_logits}, m_labels), expected)
    expected = (((r_logits[:, 0] - 3) / 2 - r_labels) ** 2).mean()
    torch.testing.assert_close(regression.loss({"logits": r_logits}, r_labels), expected)


@pytest.mark.parametrize("counts", [[10, 30, 60], [10, 30, 60, 0, 0]])
def test_balanced_weights_are_one_on_average(counts: list[int]) -> None:
    """Classes that do not occur, as I- of entities of one word, change nothing."""
    weights = balanced_weights(counts)
    assert sum(w * c for w, c in zip(weights, counts, strict=True)) == pytest.approx(100)
    assert weights[0] * 10 == pytest.approx(weights[1] * 30) == pytest.approx(weights[2] * 60)


@pytest.mark.parametrize("label_subwords", ["all", "first"])
def test_balanced_types_have_one_share_of_the_loss(tmp_path: Path, label_subwords: str) -> None:
    """Later subwords of a word tagged B-X count as I-X, which may not occur in the data at all."""
    path = tmp_path / "a.conll"
    path.write_text("Ada\tB-PER\nwent\tO\nto\tO\nRome\tB-LOC\nand\tO\nNew\tB-LOC\nYork\tI-LOC\n.\tO\n")
    sentences = read_tagged_file(str(path))
    task = make_token_task(sentences, scheme="iob2", known_names=None, label_subwords=label_subwords)
    maker = WindowMaker(make_tokenizer("wordpiece"), max_seq_length=6, overlap=2)
    shares, total = shares_of_loss(task, task.windows(sentences, maker))
    assert shares["O"] == pytest.approx(total / 3)
    assert shares["B-LOC"] + shares.get("I-LOC", 0) == pytest.approx(total / 3)
    assert shares["B-PER"] + shares.get("I-PER", 0) == pytest.approx(total / 3)


def test_balanced_classes_of_long_and_short_texts_have_one_share_of_the_loss() -> None:
    examples = [SequenceExample("a " * length, None, label, "f") for length, label in ((50, "x"), (2, "y"), (2, "y"))]
    task = make_sequence_task(examples, problem_type=SINGLE_LABEL, value_name="v", known_names=["x", "y", "z"])
    windows = task.windows(examples, WindowMaker(make_tokenizer("wordpiece"), max_seq_length=10, overlap=0))
    assert len(windows) == 9
    shares, total = shares_of_loss(task, windows)
    assert shares == pytest.approx({"x": total / 2, "y": total / 2})
    assert total == pytest.approx(9)


def shares_of_loss(task: Any, windows: list[Window]) -> tuple[dict[str, float], float]:
    """What the targets of each label weigh together in the training loss, and all."""
    task.balance(windows)
    targets = torch.cat([torch.tensor(window.target).reshape(-1) for window in windows])
    shares = {}
    for number in targets[targets != -100].unique().tolist():
        only = targets.masked_fill(targets != number, -100)
        even = torch.zeros(len(only), len(task.label_names))  # each target's loss is the logarithm of the classes
        loss = task.loss({"logits": even}, only, num_items_in_batch=1) / math.log(len(task.label_names))
        shares[task.label_names[number]] = loss.item()
    return shares, sum(shares.values())


def test_scores_have_the_loss_without_weights() -> None:
    """In nats, as log_loss of scikit-learn; a weighted one has another scale in data with other shares."""
    examples = [SequenceExample("t", None, label, "f") for label in "aaab"]
    task = make_sequence_task(examples, problem_type=SINGLE_LABEL, value_name="v", known_names=None)
    logits = np.random.default_rng(0).normal(size=(4, 2))
    wanted = task.metrics(logits, examples)
    task.class_weights_C = torch.tensor([0.1, 5.0])
    assert task.metrics(logits, examples) == wanted
    probabilities = torch.from_numpy(logits).softmax(-1).numpy()
    assert wanted["loss"] == pytest.approx(log_loss([0, 0, 0, 1], probabilities), rel=1e-6)


def test_a_batch_without_labels_has_no_loss_and_no_nan() -> None:
    task = TokenTask(label_names="ab", entities=False)
    assert task.loss({"logits": torch.randn(1, 2, 2)}, torch.full((1, 2), -100)) == 0


# Packed and padded ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("per_token", "pooling"), [(True, "cls"), (False, "cls"), (False, "mean"), (False, "max"), (False, "attention")]
)
def test_packed_is_padded_in_loss_and_gradient(per_token: bool, pooling: str) -> None:
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    import clozebert  # noqa: F401

    tokenizer = make_tokenizer("wordpiece")
    texts = ["the quick fox", "a wonderful film and a happy end", "dog", "hello world and so on and on and on"]
    maker = WindowMaker(tokenizer, max_seq_length=32)
    auto = AutoModelForTokenClassification if per_token else AutoModelForSequenceClassification
    torch.manual_seed(0)
    model = auto.from_config(make_config("clozebert", len(tokenizer), num_labels=3, classifier_pooling=pooling))
    task: Any
    if per_token:
        task = TokenTask(label_names="abc", entities=False)
        documents = [text.split() for text in texts]
        spaces = [[index > 0 for index in range(len(words))] for words in documents]
        windows = maker.of_words(documents, spaces, [[(len(w) % 3, len(w) % 3) for w in words] for words in documents])
    else:
        task = SequenceTask(problem_type=SINGLE_LABEL, label_names="abc")
        windows = maker.of_texts(texts, None, [0, 1, 2, 1])
    results = []
    for collator in (PaddedCollator(0, per_token), PackedCollator(per_token)):
        batch = collator(windows)
        labels = batch.pop("labels")
        model.zero_grad()
        loss = task.loss(model(**batch), labels)
        loss.backward()
        results.append((loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-5, atol=1e-5)
    assert results[0][1].abs().max() > 1e-3
