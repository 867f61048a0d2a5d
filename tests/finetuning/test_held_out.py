"""Which examples fine-tuning holds out where there is no validation data."""

import pytest

from clozebert.finetuning.data import _hold_out_validation
from clozebert.finetuning.sequence_task import SequenceExample


def test_the_only_example_of_a_label_is_never_held_out() -> None:
    examples = [SequenceExample("t", None, label, "f") for label in ["a"] * 8 + ["b", "c"] + ["d"] * 20]
    for seed in range(20):
        splits = {"train": list(examples)}
        _hold_out_validation(splits, seed)
        assert len(splits["validation"]) == 3
        assert {e.label for e in splits["train"]} == {"a", "b", "c", "d"}
        assert len(splits["train"]) + len(splits["validation"]) == len(examples)
    with pytest.raises(ValueError, match="give --validation_file"):
        _hold_out_validation({"train": examples[7:10]}, 0)


def test_a_label_of_five_examples_is_always_held_out() -> None:
    examples = [SequenceExample(f"{n}", None, "many" if n >= 15 else f"few {n // 5}", "f") for n in range(600)]
    for seed in range(20):
        splits = {"train": list(examples)}
        _hold_out_validation(splits, seed)
        assert len(splits["validation"]) == 60
        assert {e.label for e in splits["validation"]} == {e.label for e in examples}


def test_copies_of_a_text_are_held_out_together() -> None:
    examples = [SequenceExample(f"t{number % 20}", None, "ab"[number % 2], "f") for number in range(100)]
    for seed in range(20):
        splits = {"train": list(examples)}
        _hold_out_validation(splits, seed)
        assert len(splits["validation"]) == 10
        assert {e.text for e in splits["train"]}.isdisjoint(e.text for e in splits["validation"])
