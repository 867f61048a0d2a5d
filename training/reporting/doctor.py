"""Warns when a run goes wrong: plateaus, repeated data, gradients that are not finite, unknown tokens.

Each check returns a sentence or None; `Doctor` runs them all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...corpus import Corpus, Mixture
from ..checkpoints.training_state import TrainingState
from ..checks import CheckedRun
from ..phase_setup import PhaseSetup

# With a loss above this share of the unigram entropy, a model has learned token frequencies and little else.
_PLATEAU = 0.96
_MANY_UNKNOWN, _MANY_REPEATED = 0.01, 0.05
_SAMPLED_DOCUMENTS, _SAMPLED_TOKENS, _OF_A_DOCUMENT = 20_000, 2_000_000, 1 << 16


@dataclass(frozen=True)
class Survey:
    """A corpus in three figures, from a sample of its documents.

    Attributes:
        unigram_entropy: -sum p log p over the tokens, nats: the loss of guessing by frequency alone.
        unknown_share: the share of the tokens that the tokenizer does not know.
        repeated_share: the share of the documents that are exact copies of earlier ones.
    """

    unigram_entropy: float
    unknown_share: float
    repeated_share: float


@dataclass(frozen=True)
class Vitals:
    """The figures that the checks look at.

    Attributes:
        step, max_steps, warmup_steps: of the run.
        train_loss, eval_loss: of the last log entry, and of the last evaluation. There is no train_loss where the two
            do not compare: with a teacher, or if a corpus of a mixture has no validation split.
        epochs: how often the documents of the phase were seen.
        gradient_norm, most_norm: the norm in the last step, and the norm that it is clipped to (0: not clipped).
        skipped_steps: steps whose gradient was not finite.
        precision: the run's mixed precision.
        survey: of the corpora of the phase.
    """

    step: int
    max_steps: int
    warmup_steps: int
    train_loss: float | None
    eval_loss: float
    epochs: float
    gradient_norm: float
    most_norm: float
    skipped_steps: int
    precision: str
    survey: Survey


class Doctor:
    """Checks a run after each evaluation, and reports what is likely wrong with it, each finding once."""

    def __init__(self, run: CheckedRun, *, precision: str):
        self.run, self.precision = run, precision
        self._said: set[str] = set()
        self._surveyed: Mixture | None = None

    def examine(self, state: TrainingState, setup: PhaseSetup, *, gradient_norm: float) -> list[str]:
        """The findings that were not reported before.

        Args:
            gradient_norm: of the last step.
        """
        if setup.corpora is not self._surveyed:
            unknown = self.run.tokenizer.unk_token_id
            self._survey = survey(setup.corpora.corpora, shares=setup.corpora.shares, unk_token_id=unknown)
            self._surveyed = setup.corpora
        corpora = setup.corpora
        compares = setup.arguments.teacher_name_or_path is None and len(corpora.validation) == len(corpora.names)
        vitals = Vitals(
            step=state.step,
            max_steps=self.run.last_step,
            warmup_steps=int(self.run.phases[0].arguments.warmup_steps),
            train_loss=state.train_loss if compares else None,
            eval_loss=state.evaluation["eval_loss"],
            epochs=setup.stream.epochs(state.step - setup.phase.first_step),
            gradient_norm=gradient_norm,
            most_norm=setup.arguments.max_grad_norm,
            skipped_steps=state.skipped_steps,
            precision=self.precision,
            survey=self._survey,
        )
        findings = {look.__name__: look(vitals) for look in (plateau, repetition, gradients, unknowns)}
        new = {name: finding for name, finding in findings.items() if finding is not None and name not in self._said}
        self._said.update(new)
        return list(new.values())


def survey(corpora: Sequence[Corpus], *, shares: Sequence[float], unk_token_id: int | None) -> Survey:
    """Look at evenly spaced documents of each corpus, fewer than 40,000, with about four million tokens at most.

    Of a long document, only its length and its first 65,536 tokens count.

    Args:
        shares: the share of the rows from each corpus; their sum is 1.
    """
    frequencies, unknown, repeated = np.zeros(corpora[0].vocab_size), 0.0, 0.0
    for corpus, share in zip(corpora, shares, strict=True):
        counts, repeated_share = _look_at(corpus)
        total = max(int(counts.sum()), 1)
        unknown += share * (0 if unk_token_id is None else int(counts[unk_token_id])) / total
        repeated += share * repeated_share
        counts[corpus.special_token_ids] = 0
        frequencies += share * counts / total
    return Survey(unigram_entropy(frequencies), unknown, repeated)


def _look_at(corpus: Corpus) -> tuple[np.ndarray, float]:
    """How often each token occurs in a sample of a corpus, int64 [vocabulary], and the share of repeated documents."""
    tokens = min(corpus.num_tokens, corpus.num_documents * _OF_A_DOCUMENT)
    step = max(1, corpus.num_documents // _SAMPLED_DOCUMENTS, tokens // _SAMPLED_TOKENS)
    counts = np.zeros(corpus.vocab_size, dtype=np.int64)
    seen: set[tuple[int, bytes]] = set()
    indices = range(0, corpus.num_documents, step)
    for index in indices:
        begin, end = corpus.offsets[index : index + 2]
        ids, _ = corpus.gather(np.array([begin]), np.array([min(end - begin, _OF_A_DOCUMENT)]))
        counts += np.bincount(ids, minlength=corpus.vocab_size)
        seen.add((int(end - begin), ids.tobytes()))
    return counts, 1 - len(seen) / max(len(indices), 1)


def unigram_entropy(counts: np.ndarray) -> float:
    """-sum p log p of frequencies, in nats."""
    shares = counts[counts > 0] / max(float(counts.sum()), 1e-300)
    return float(-(shares * np.log(shares)).sum())


def plateau(vitals: Vitals) -> str | None:
    """Warn if the loss is still about the unigram entropy a twentieth of the run (100 steps or more) after warm-up.

    A training loss well below the entropy is no plateau. After two epochs, `repetition` speaks of it.
    """
    loss, entropy, norm = vitals.eval_loss, vitals.survey.unigram_entropy, vitals.gradient_norm
    if vitals.step < vitals.warmup_steps + max(100, vitals.max_steps // 20) or loss < _PLATEAU * entropy:
        return None
    if vitals.train_loss is not None and vitals.train_loss < 0.9 * _PLATEAU * entropy:
        if vitals.epochs > 2:
            return None
        return (
            f"the held-out loss of {loss:.2f} at step {vitals.step:,} is no better than guessing by frequency "
            f"({entropy:.2f}), but the training loss is {vitals.train_loss:.2f}: the two texts are of different kinds, "
            f"or the held-out text is too short"
        )
    found = (
        f"the held-out loss of {loss:.2f} at step {vitals.step:,} is no better than guessing by frequency "
        f"({entropy:.2f}): the model does not use the context yet. "
    )
    if loss > 1.1 * entropy or (vitals.most_norm and norm > 5 * vitals.most_norm):
        return found + "The updates are too large: lower learning_rate, or lengthen warmup_steps"
    return found + (
        "Likely learning_rate is too low, or too high for post-norm; learned positions (BERT, RoBERTa) leave this "
        "plateau sooner with position_init=sinusoidal and embedding_init=text"
    )


def repetition(vitals: Vitals) -> str | None:
    """Warn if documents are repeated, in the corpus itself or over so many epochs that the model memorises them.

    Normally the training loss is higher than the held-out loss, because more tokens are masked in training.
    """
    if vitals.survey.repeated_share > _MANY_REPEATED:
        return (
            f"{vitals.survey.repeated_share:.0%} of the documents looked at are copies of another: prepare the corpus "
            f"with --deduplicate exact, or near"
        )
    if vitals.train_loss is not None and vitals.epochs > 2 and vitals.train_loss < 0.9 * vitals.eval_loss:
        return (
            f"after {vitals.epochs:.1f} epochs the training loss of {vitals.train_loss:.2f} is below the held-out "
            f"loss of {vitals.eval_loss:.2f}: the model learns the documents by heart; add text, or stop earlier"
        )
    return None


def gradients(vitals: Vitals) -> str | None:
    """Warn if updates were skipped because a gradient was not finite."""
    step, skipped, precision = vitals.step, vitals.skipped_steps, vitals.precision
    # The dynamic loss scaling of fp16 overflows about once in two thousand steps.
    if skipped == 0 or (precision == "fp16" and skipped <= 20 + step // 500):
        return None
    found = f"{skipped} of {step:,} updates were left out, because their gradient was not finite. "
    if precision == "fp16":
        return found + "fp16 overflows: take mixed_precision=bf16, or no"
    if step <= 2 * vitals.warmup_steps or skipped > step // 100:
        return found + "Likely the updates are too large: lower learning_rate, or lengthen warmup_steps"
    return found + "So few are likely an accident of the hardware; if there are more, lower learning_rate"


def unknowns(vitals: Vitals) -> str | None:
    """Warn if the tokenizer does not know much of the text."""
    share = vitals.survey.unknown_share
    if share <= _MANY_UNKNOWN:
        return None
    return (
        f"{share:.1%} of the tokens are unknown to the tokenizer, and nothing is learned from them: "
        f"train a tokenizer on this text (clozebert train-tokenizer; --algorithm bpe leaves nothing unknown)"
    )
