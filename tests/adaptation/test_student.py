"""`adapt --student`: a smaller model of the same architecture, its report, and what is refused before work."""

from pathlib import Path
from typing import Any

import pytest
import torch
from natives import all_full_is_possible
from safetensors.torch import load_file
from small_models import adapt_flags, save_native
from transformers import AutoModelForMaskedLM

from clozebert import ClozeBertConfig
from clozebert.adaptation import start
from clozebert.adaptation.adapt import adapt
from clozebert.adaptation.arguments import AdaptationArguments
from clozebert.training import loop
from clozebert.utils.errors import UserError


def run(*places: Path, **changes: Any) -> dict[str, Any]:
    return adapt(AdaptationArguments(**adapt_flags(*places, **changes)), say=lambda line: None)


# The two layers that are kept have no window.
needs_full_layers = pytest.mark.skipif(
    not all_full_is_possible(), reason="this transformers has no ModernBERT without windows"
)


@pytest.fixture(scope="module")
def modernbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_native(tmp_path_factory.mktemp("models") / "modernbert", "modernbert", num_hidden_layers=4)


@needs_full_layers
def test_a_student_keeps_some_of_the_layers_and_the_architecture(modernbert: Path, texts: Path, tmp_path: Path) -> None:
    results = run(modernbert, texts / "new.txt", tmp_path / "out", student="2", max_steps=20)
    student, teacher = (AutoModelForMaskedLM.from_pretrained(place) for place in (tmp_path / "out", modernbert))
    assert student.config.model_type == "modernbert"
    assert student.config.num_hidden_layers == 2
    assert results["parameters"]["after"] < results["parameters"]["before"]
    assert results["vocabulary"]["before"] == results["vocabulary"]["after"] == teacher.config.vocab_size
    losses = {stage: found["new"]["eval_loss"] for stage, found in results["evaluation"].items()}
    assert losses["after"] < losses["start"]
    report, card = ((tmp_path / "out" / name).read_text() for name in ("report.md", "README.md"))
    assert f"distilled into a student of {results['parameters']['after']:,} parameters" in report
    assert "| teacher | student, untrained | student |" in report
    assert "compare the loss per word" not in report
    assert "held-out new text, teacher" in card


def test_a_student_may_be_another_model_with_the_same_tokenizer(texts: Path, tmp_path: Path) -> None:
    teacher = save_native(tmp_path / "teacher", "bert")
    narrow = save_native(tmp_path / "narrow", "bert", hidden_size=24, num_hidden_layers=1)
    run(teacher, texts / "new.txt", tmp_path / "out", student=str(narrow))
    assert AutoModelForMaskedLM.from_pretrained(tmp_path / "out").config.hidden_size == 24


@needs_full_layers
def test_a_student_that_was_cut_off_goes_on_wherever_its_folder_lies(
    modernbert: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags: dict[str, Any] = {"student": "2", "save_steps": 2}
    run(modernbert, texts / "new.txt", tmp_path / "whole", **flags)
    seed_step = loop.seed_step

    def cut_off(seed: int, step: int, *others: Any) -> None:
        if step == 3:
            raise RuntimeError("cut off")
        seed_step(seed, step, *others)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loop, "seed_step", cut_off)
    with pytest.raises(RuntimeError, match="cut off"):
        run(modernbert, texts / "new.txt", Path("parts"), **flags)
    monkeypatch.setattr(loop, "seed_step", seed_step)
    Path("parts").rename("moved")
    run(modernbert, texts / "new.txt", tmp_path / "moved", **flags)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "moved"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_what_is_refused_before_work(
    modernbert: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bert = save_native(tmp_path / "bert", "bert")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"student": "5"}, "student=5: take 1 to 4 of the model's layers"),
        ({"student": "0"}, "student=0: take 1 to 4 of the model's layers"),
        ({"student": str(bert)}, "has another tokenizer than the model"),
        ({"student": "2", "extend_vocabulary": 5}, "a student needs its teacher's tokenizer"),
    ]
    for changes, message in cases:
        with pytest.raises(UserError, match=message):
            run(modernbert, texts / "new.txt", tmp_path / "out", **changes)

    def refuse(config: ClozeBertConfig, *others: str) -> None:
        if config.layer_types == ["full_attention"] * 2:
            raise UserError("no such model")

    # As transformers 5.10 does.
    monkeypatch.setattr(start, "choose_architecture", refuse)
    with pytest.raises(UserError, match="has no modernbert of the layers that would be kept: take another"):
        run(modernbert, texts / "new.txt", tmp_path / "out", student="2")
    assert not (tmp_path / "out").exists()
