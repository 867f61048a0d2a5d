"""The flags of fine-tuning: what is refused before work starts, and the defaults."""

import sys
from pathlib import Path
from typing import Any

import pytest

from clozebert.finetuning.arguments import (
    FinetuningArguments,
    default_batch_size,
    default_epochs,
    default_learning_rate,
)

sys.path.insert(0, str(Path(__file__).parents[1]))
from finetuning_helpers import write_sentiment

# What a run leaves


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_train_epochs": 0.0}, "--num_train_epochs 0.0: must be above 0"),
        ({"learning_rate": float("nan")}, "learning_rate=nan must be a number"),
        ({"max_steps": 0}, "--max_steps 0"),
        ({"lr_scheduler_type": "constant", "warmup_steps": 5.0}, "--warmup_steps 5: --lr_scheduler_type constant has"),
        ({"max_steps": 60, "num_train_epochs": 1.0}, "--max_steps 60 and --num_train_epochs 1 both say how long"),
        ({"window_overlap": -1}, "--window_overlap -1: must not be negative"),
        ({"class_weights": "some"}, "class_weights='some' must be one of none, balanced"),
        ({"seeds": [1, 1]}, "a seed comes twice"),
        ({"seeds": []}, r"seeds=\[\] names no seed"),
        ({"seeds": [1, 2], "seed": 7}, "--seed 7 and --seeds both choose seeds"),
        (
            {"seeds": [1, 2], "resume_from_checkpoint": "o"},
            "o: it is of one seed, and --seeds .* latest",
        ),
        ({"seed": -1}, "--seed -1: must be from 0"),
        ({"seeds": [1, 2**32]}, "--seeds 4294967296: must be from 0"),
        ({"lr_scheduler_type": "some"}, "lr_scheduler_type='some' must be one of linear"),
        ({"lr_scheduler_type": "warmup_stable_decay"}, "lr_scheduler_type='warmup_stable_decay' must be one of linear"),
        (
            {"lr_scheduler_type": "reduce_lr_on_plateau"},
            "lr_scheduler_type='reduce_lr_on_plateau' must be one of linear",
        ),
        ({"lr_scheduler_type": "greedy"}, "lr_scheduler_type='greedy' must be one of linear"),
        ({"dataset_name": "x"}, "either --dataset_name or --train_file"),
        ({"dataset_name": "x", "train_file": None, "test_file": "t.csv"}, "--test_file t.csv: --dataset_name x has"),
        ({"dataset_config_name": "small"}, "--dataset_config_name small needs --dataset_name"),
        ({"overwrite_output_dir": True, "resume_from_checkpoint": "latest"}, "give one of them"),
        ({"overwrite_output_dir": True, "resume_from_checkpoint": "other/checkpoint-5"}, "give one of them"),
        ({"train_file": None}, "give --train_file"),
    ],
)
def test_flags_are_checked(tmp_path: Path, flags: dict[str, Any], message: str) -> None:
    path = write_sentiment(tmp_path / "a.csv", rows=3)
    with pytest.raises(ValueError, match=message):
        FinetuningArguments(**{"model_name_or_path": "m", "output_dir": "o", "train_file": path, **flags})


def test_defaults_shrink_with_the_data_and_grow_with_the_model() -> None:
    sizes = [100, 1_000, 3_000, 15_000, 200_000]
    assert [default_epochs(n, 1) for n in sizes] == [30, 12, 6, 4, 3]
    assert [default_epochs(2_000, tokens) for tokens in (1, 600_000, 1_200_000, 10**9)] == [6, 5, 2, 2]
    assert [default_batch_size(n) for n in sizes] == [8, 16, 32, 32, 32]
    assert default_learning_rate(768) == 5e-5
    assert default_learning_rate(256) > default_learning_rate(1024)
    assert default_learning_rate(96) == 2e-3  # `nano`: 5e-4 was far too low (docs/LOG.md)
    rates = [default_learning_rate(size, post_norm=True) for size in (768, 256, 96)]
    assert rates == pytest.approx([5e-5, 2.6e-4, 1.1e-3], rel=0.05)  # 2e-3 was far too high (docs/LOG.md)
    rates = [default_learning_rate(size, compares_pairs=True) for size in (768, 256, 96)]
    assert rates == pytest.approx([2e-5, 1e-4, 4.5e-4], rel=0.05)
