"""A masking rate that falls over the run: the stream follows it, and a resume keeps the length it depends on."""

import contextlib
import dataclasses
from pathlib import Path

import pytest
from pretraining_helpers import model_config, settings

from clozebert.training import PretrainingArguments
from clozebert.training.loop import Pretraining


def test_the_rate_falls_linearly_over_the_run(prepared: Path, tmp_path: Path) -> None:
    arguments = PretrainingArguments(
        **settings(prepared, output_dir=str(tmp_path / "run"), full_determinism=False, max_steps=21,
                   mlm_probability=0.5, final_mlm_probability=0.1)
    )  # fmt: skip
    with contextlib.closing(Pretraining(arguments, model_config())) as run:
        stream = run.setup.stream
        assert [stream.rate(step) for step in (0, 10, 20)] == pytest.approx([0.5, 0.3, 0.1])
        assert len(stream.batch(0).labels) > 3 * len(stream.batch(20).labels)
        constant = dataclasses.replace(stream.masking, final_rate=None)
        assert constant.rate == 0.5
    assert arguments.mean_mlm_probability == pytest.approx(0.3)
    with pytest.raises(ValueError, match=r"final_mlm_probability=1\.0 must lie between 0 and 1"):
        dataclasses.replace(arguments, final_mlm_probability=1.0)


def test_its_length_is_part_of_the_run(prepared: Path) -> None:
    values = settings(prepared, output_dir="-", max_steps=20, final_mlm_probability=0.1)
    saved = PretrainingArguments(**values).decisive()
    longer = PretrainingArguments(**{**values, "max_steps": 30})
    assert "max_steps=20 there, max_steps=30 here" in longer.changes_since(saved)[0]
    constant = {**values, "final_mlm_probability": None}
    same = PretrainingArguments(**{**constant, "max_steps": 30})
    assert same.changes_since(PretrainingArguments(**constant).decisive())[0] == []
