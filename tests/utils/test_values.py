"""Values of arguments, as recipes, flags and Python give them."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import SchedulerType

from clozebert.adaptation.arguments import AdaptationArguments
from clozebert.finetuning.arguments import PredictionArguments, SequenceArguments, TokenArguments
from clozebert.training import PretrainingArguments
from clozebert.utils.errors import UserError
from clozebert.utils.values import read_fields


@dataclass
class Values:
    name: str | None = None
    count: int = 1
    rate: float = 0.5
    steps: int | float = 0.1
    seed: int = 0
    is_on: bool = False
    kind: Literal["no", "yes"] = "no"
    files: list[str] | None = None
    numbers: list[int] | None = None
    phases: list[dict] = field(default_factory=list)
    trackers: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        read_fields(self)


EQUAL: list[tuple[dict[str, Any], Any]] = [
    ({"name": Path("a") / "b"}, "a/b"),
    ({"name": 2024}, "2024"),
    ({"name": np.int64(-1)}, "-1"),
    ({"name": np.str_("a")}, "a"),
    ({"name": SchedulerType.COSINE}, "cosine"),
    ({"count": np.int32(3)}, 3),
    ({"count": "1e3"}, 1000),
    ({"count": torch.tensor(3)}, 3),
    ({"rate": "1e-3"}, 0.001),
    ({"rate": np.float64(0.25)}, 0.25),
    ({"steps": "0.25"}, 0.25),
    ({"steps": "20"}, 20),
    ({"is_on": np.True_}, True),
    ({"kind": False}, "no"),
    ({"files": "a"}, ["a"]),
    ({"files": Path("a")}, ["a"]),
    ({"files": (Path(name) for name in "ab")}, ["a", "b"]),
    ({"files": {"a": 1}.keys()}, ["a"]),
    ({"files": np.array(["a", "b"])}, ["a", "b"]),
    ({"files": ["none"]}, ["none"]),
    ({"numbers": range(3)}, [0, 1, 2]),
    ({"numbers": np.arange(3)}, [0, 1, 2]),
    ({"phases": {"max_steps": 3}}, [{"max_steps": 3}]),
    ({"phases": "none"}, []),
    ({"trackers": ["none"]}, []),
    ({"trackers": None}, []),
]


@pytest.mark.parametrize(("given", "expected"), EQUAL, ids=lambda value: str(value)[:40])
def test_what_has_the_same_meaning_is_equal(given: dict[str, Any], expected: Any) -> None:
    values = Values(**given)
    (name,) = given
    found = getattr(values, name)
    assert (found, type(found)) == (expected, type(expected))


def test_an_entry_of_a_folder_is_its_path(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (entry,) = os.scandir(tmp_path)
    assert Values(name=entry).name == str(tmp_path / "a")


@given(st.integers(0, 2**64 - 1))
def test_every_digit_of_a_seed_counts(seed: int) -> None:
    assert [Values(seed=one).seed for one in (seed, str(seed), np.uint64(seed))] == [seed] * 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": 0.5}, "name=0.5 must be text"),
        ({"name": True}, "name=True must be text"),
        ({"name": b"a"}, "name=b'a' must be text"),
        ({"name": ["a"]}, r"name=\['a'\] must be text"),
        ({"count": 1.5}, "count=1.5 must be a whole number"),
        ({"count": True}, "count=True must be a whole number"),
        ({"rate": float("inf")}, "rate=inf must be a number"),
        ({"rate": "fast"}, "rate='fast' must be a number"),
        ({"is_on": "yes"}, "is_on='yes' must be true or false"),
        ({"kind": "maybe"}, "kind='maybe' must be one of no, yes"),
        ({"numbers": ["a"]}, "numbers='a' must be a whole number"),
        ({"phases": [None]}, "phases=None must be a list of phases"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Values(**given)


def test_all_programs_read_their_arguments_so(tmp_path: Path) -> None:
    """As a path was text in the arguments of pretraining only, the others failed when they wrote their settings."""
    file = tmp_path / "a.txt"
    file.write_text("a")
    adaptation = AdaptationArguments(
        model_name_or_path=tmp_path, output_dir=tmp_path / "o", input=tmp_path.glob("*.txt"), student=np.int64(3)
    )
    assert (adaptation.model_name_or_path, adaptation.input, adaptation.student) == (str(tmp_path), [str(file)], "3")
    tagging = TokenArguments(model_name_or_path="m", output_dir=tmp_path, train_file=file, tag_column=-1)
    assert (tagging.output_dir, tagging.train_file, tagging.tag_column) == (str(tmp_path), str(file), "-1")
    classifying = SequenceArguments(
        model_name_or_path="m", output_dir=tmp_path, train_file=file, learning_rate=np.float32(0.5), seeds=range(2)
    )
    assert (classifying.learning_rate, classifying.seeds) == (0.5, [0, 1])
    assert PredictionArguments(model_name_or_path=tmp_path, input=file).input == [str(file)]
    pretraining = PretrainingArguments(corpus=tmp_path, tokenizer_name=tmp_path, output_dir=tmp_path / "o")
    assert (pretraining.corpus, pretraining.output_dir) == ([str(tmp_path)], str(tmp_path / "o"))
