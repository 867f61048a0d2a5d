"""The loop: exact gradients, real learning, what it writes, and what it refuses before any work."""

import dataclasses
import functools
import itertools
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from often import often
from pretraining_helpers import (
    dense_loss,
    log_of,
    losses_of,
    make_corpus,
    make_tokenizer,
    model_config,
    settings,
)
from transformers import AutoModelForMaskedLM, AutoTokenizer

from clozebert import ClozeBertForMaskedLM, ClozeBertForSequenceClassification
from clozebert.corpus import BatchSize, BatchStream, Corpus, Masking, ValidationBatches
from clozebert.training import PretrainingArguments, evaluate_masked_lm, loop, pretrain
from clozebert.training.prefetch import StepLoader, count_predicted, model_inputs, prefetch
from clozebert.training.runtime.machine import make_accelerator
from clozebert.training.step import accumulate_gradient, clip_gradient


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return make_accelerator(mixed_precision="no", use_cpu=True)


def make_stream(folder: Path, *, rows: int = 8) -> BatchStream:
    corpus = Corpus(folder / "corpus")
    return BatchStream(corpus, max_seq_length=40, global_batch_size=rows, masking=Masking(rate=0.3), seed=5)


def run(folder: Path, output_dir: Path | str, *, write_card: Any = None, model: Any = None, **changes: Any) -> Any:
    arguments = PretrainingArguments(**settings(folder, output_dir=str(output_dir), full_determinism=False, **changes))
    return pretrain(arguments, model_config(**(model or {})), write_card=write_card)


def test_a_run_leaves_the_process_as_it_was(prepared: Path, tmp_path: Path) -> None:
    """Kernels that are not deterministic work again, and the configuration is the caller's."""
    config = model_config()
    before = config.to_dict()
    arguments = PretrainingArguments(**settings(prepared, output_dir=str(tmp_path / "run"), max_steps=4, save_steps=0))
    assert arguments.full_determinism
    pretrain(arguments, config)
    assert not torch.are_deterministic_algorithms_enabled()
    assert config.to_dict() == before


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
def test_every_split_of_a_batch_gives_the_same_gradient(
    prepared: Path, accelerator: Accelerator, dtype: torch.dtype, tolerance: float
) -> None:
    stream = make_stream(prepared)
    torch.manual_seed(3)
    model = ClozeBertForMaskedLM(model_config(initializer_range=0.2)).to(dtype)
    dense = dense_loss(model, stream.batch(2)) / len(stream.batch(2).labels)
    dense.backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    assert all(gradient.abs().max() > 0 for gradient in expected.values())
    for micro_batches, recurs in itertools.product((1, 2, 4), (False, True)):
        model.zero_grad()
        make_inputs = functools.partial(model_inputs, recurs=recurs)
        batches, num_predicted = StepLoader(stream, 0, 1, micro_batches, make_inputs)(2)
        assert num_predicted == sum(map(count_predicted, batches))
        assert not recurs or all(len(batch["labels"]) % 64 == 0 for batch in batches)
        loss = accumulate_gradient(model, batches, num_predicted=num_predicted, accelerator=accelerator)
        assert len(batches) == micro_batches
        assert loss.item() == pytest.approx(dense.item(), rel=tolerance)
        for name, parameter in model.named_parameters():
            error = (parameter.grad - expected[name]).norm() / expected[name].norm()
            assert error < tolerance, (name, micro_batches)


def test_evaluation_is_the_mean_over_all_documents(prepared: Path, accelerator: Accelerator) -> None:
    corpus = Corpus(prepared / "corpus", "validation")
    torch.manual_seed(3)
    model = ClozeBertForMaskedLM(model_config(initializer_range=0.2)).train()
    options = {"max_seq_length": 40, "masking": Masking(rate=0.15), "seed": 5}
    whole = list(ValidationBatches(corpus, batch_size=1000, **options))
    assert len(whole) == 1
    metrics = evaluate_masked_lm(model, ValidationBatches(corpus, batch_size=3, **options), accelerator=accelerator)
    with torch.no_grad():
        expected = dense_loss(model, whole[0]).item() / len(whole[0].labels)
    assert metrics["eval_loss"] == pytest.approx(expected, rel=1e-5)
    assert metrics["eval_perplexity"] == pytest.approx(math.exp(expected), rel=1e-4)
    assert metrics["eval_predicted_tokens"] == len(whole[0].labels)
    assert 0 <= metrics["eval_accuracy"] <= 1
    assert model.training, "evaluating leaves the model as it was"
    first = evaluate_masked_lm(
        model, ValidationBatches(corpus, batch_size=3, **options), accelerator=accelerator, max_batches=1
    )
    assert 0 < first["eval_predicted_tokens"] < metrics["eval_predicted_tokens"]


@pytest.mark.reports
@pytest.mark.parametrize("optimizer", often(["muon", "adamw"]))
def test_it_learns_and_leaves_a_model(prepared: Path, tmp_path: Path, optimizer: str) -> None:
    cards: list[tuple[Path, dict[str, Any]]] = []

    def write_card(directory: Any, facts: dict[str, Any]) -> None:
        cards.append((Path(directory), facts))
        (Path(directory) / "README.md").write_text("card")

    results = run(
        prepared, tmp_path / "run", write_card=write_card, max_steps=120, optimizer=optimizer, logging_steps=20,
        save_steps=50, eval_steps=60, lr_scheduler_type="wsd",
    )  # fmt: skip
    # Words follow one another by a rule: guessing from frequencies alone stays at log 56 = 4.03.
    assert results["eval_loss"] < 3.6
    assert results["step"] == 120
    assert results["skipped_steps"] == 0
    assert results == json.loads((tmp_path / "run" / "all_results.json").read_text())
    entries = log_of(tmp_path / "run")
    assert [entry["step"] for entry in entries if "loss" in entry] == [20, 40, 60, 80, 100, 120]
    assert [entry["step"] for entry in entries if "eval_loss" in entry] == [60, 120]
    assert entries[-1]["eval_loss"] == results["eval_loss"]
    assert (tmp_path / "run" / "loss_curve.png").stat().st_size > 5000

    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "run")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert model.config.mask_token_id == tokenizer.mask_token_id == 4
    # The tokenizer of the run states no length; truncation has to know the model's.
    assert make_tokenizer(56).model_max_length > 1e9
    assert tokenizer.model_max_length == model.config.max_position_embeddings
    assert model.dtype == torch.float32
    checkpoints = sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*"))
    assert checkpoints == ["checkpoint-100", "checkpoint-120"]
    last = AutoModelForMaskedLM.from_pretrained(tmp_path / "run" / "checkpoint-120")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, last.get_parameter(name))
    assert "auto_map" in json.loads((tmp_path / "run" / "checkpoint-120" / "config.json").read_text())
    assert cards[-1][0] == tmp_path / "run"
    assert (cards[-1][1]["steps"], cards[-1][1]["name"]) == (120, "run")
    assert str(tmp_path) not in json.dumps(cards[-1][1])
    assert str(tmp_path) not in (tmp_path / "run" / "checkpoint-120" / "training_state" / "state.json").read_text()


def test_the_logged_rate_follows_the_schedule_and_the_seed_decides(prepared: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(prepared, tmp_path / name, max_steps=4, seed=seed, save_steps=0, model={"hidden_dropout_prob": 0.2})
    rates = [entry["learning_rate"] for entry in log_of(tmp_path / "a") if "loss" in entry]
    assert rates == pytest.approx([5e-3 * factor for factor in (0.25, 0.5, 0.75, 1.0)])
    assert losses_of(tmp_path / "a") == losses_of(tmp_path / "b")
    assert losses_of(tmp_path / "a") != losses_of(tmp_path / "c")


def test_bf16_is_close_to_float32(prepared: Path, tmp_path: Path) -> None:
    stream, batches = make_stream(prepared), None
    torch.manual_seed(3)
    model = ClozeBertForMaskedLM(model_config(initializer_range=0.2))
    batches, num_predicted = StepLoader(stream, 0, 1, 1)(0)
    losses = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            losses.append(model(**batches[0], num_items_in_batch=num_predicted).loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[1] != losses[0]


def test_pretraining_goes_on_from_a_model(prepared: Path, tmp_path: Path) -> None:
    first = run(prepared, tmp_path / "first", max_steps=60, save_steps=0)
    second = run(prepared, tmp_path / "second", max_steps=3, save_steps=0, model_name_or_path=str(tmp_path / "first"))
    assert losses_of(tmp_path / "second")[0] < losses_of(tmp_path / "first")[0] - 0.1
    assert second["parameters"] == first["parameters"]


def test_a_model_of_another_tokenizer_is_refused(prepared: Path, tmp_path: Path) -> None:
    ClozeBertForMaskedLM(model_config(mask_token_id=9)).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="has mask_token_id=9, the tokenizer 4"):
        run(prepared, tmp_path / "run", max_steps=3, model_name_or_path=str(tmp_path / "other"))
    # With equal special tokens, the tokenizer beside the model shows it; fewer or more entries may be the same ones.
    for words, replaced in ((56, ("w7", "v7")), (50, ("w7", "w7")), (58, ("w7", "[unused1]"))):
        folder = tmp_path / f"{words}"
        ClozeBertForMaskedLM(model_config()).save_pretrained(folder)
        make_tokenizer(words).save_pretrained(folder)
        path = folder / "tokenizer.json"
        path.write_text(path.read_text().replace(*(f'"{word}"' for word in replaced)))
    with pytest.raises(ValueError, match=r"56' has 'v7' as token 12, the tokenizer 'w7': its embeddings belong to"):
        run(prepared, tmp_path / "run", max_steps=3, model_name_or_path=str(tmp_path / "56"))
    for words in ("50", "58"):
        run(prepared, tmp_path / f"fits{words}", max_steps=3, model_name_or_path=str(tmp_path / words), save_steps=0)
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="is a bert model: convert it first"):
        run(prepared, tmp_path / "run", max_steps=3, model_name_or_path=str(tmp_path / "bert"))


def test_a_model_without_the_head_is_refused(prepared: Path, tmp_path: Path) -> None:
    """Its head would be random."""
    run(prepared, tmp_path / "first", max_steps=3, save_steps=0)
    model = ClozeBertForSequenceClassification.from_pretrained(tmp_path / "first")
    model.save_pretrained(tmp_path / "classifier")
    with pytest.raises(ValueError, match="has no masked-LM head"):
        run(prepared, tmp_path / "run", max_steps=3, model_name_or_path=str(tmp_path / "classifier"))


def test_gradient_checkpointing_changes_nothing(prepared: Path, tmp_path: Path) -> None:
    for name, enabled in (("plain", False), ("recomputed", True)):
        run(prepared, tmp_path / name, max_steps=3, save_steps=0, gradient_checkpointing=enabled)
    assert losses_of(tmp_path / "plain") == pytest.approx(losses_of(tmp_path / "recomputed"), abs=1e-6)


def poison(monkeypatch: pytest.MonkeyPatch, at: range) -> None:
    """Make the gradient of the updates numbered `at` not finite."""
    step = itertools.count()

    def clip(model: torch.nn.Module, **options: Any) -> float:
        if next(step) in at:
            next(model.parameters()).grad[0, 0] = math.nan
        return clip_gradient(model, **options)

    monkeypatch.setattr(loop, "clip_gradient", clip)


def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, range(2, 4))
    results = run(prepared, tmp_path / "run", max_steps=6)
    assert results["skipped_steps"] == 2
    events = [entry for entry in log_of(tmp_path / "run") if "event" in entry]
    assert [entry["step"] for entry in events] == [3, 4]
    assert events[0]["grad_norm"] == "nan"
    weights = AutoModelForMaskedLM.from_pretrained(tmp_path / "run").state_dict()
    assert all(torch.isfinite(value).all() for value in weights.values())


def poison_loss(monkeypatch: pytest.MonkeyPatch, at: tuple[int, ...]) -> None:
    """Make the loss of the updates numbered `at` not finite."""
    step = itertools.count()
    accumulate = loop.accumulate_gradient

    def poisoned(*places: Any, **options: Any) -> Any:
        found = accumulate(*places, **options)
        return found * math.nan if next(step) in at else found

    monkeypatch.setattr(loop, "accumulate_gradient", poisoned)


def test_a_loss_that_is_not_finite_is_left_out_of_the_mean(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison_loss(monkeypatch, at=(2,))
    results = run(prepared, tmp_path / "run", max_steps=6, logging_steps=3)
    assert math.isfinite(results["train_loss"])
    text = (tmp_path / "run" / "training_log.jsonl").read_text() + (tmp_path / "run" / "all_results.json").read_text()
    assert "NaN" not in text


def test_an_entry_in_which_no_loss_was_finite_has_none(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of the entry before it."""
    poison_loss(monkeypatch, at=(2, 3))
    run(prepared, tmp_path / "run", max_steps=6, logging_steps=2)
    entries = [entry for entry in log_of(tmp_path / "run") if "learning_rate" in entry]
    assert [("loss" in entry, entry["step"]) for entry in entries] == [(True, 2), (False, 4), (True, 6)]


def test_a_diverged_run_stops_and_says_so(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, range(3, 99))
    with pytest.raises(ValueError, match=r"not finite in 10 steps in a row, up to step 13.*lower learning_rate"):
        run(prepared, tmp_path / "run", max_steps=30, save_steps=3)
    assert (tmp_path / "run" / "latest").read_text() == "checkpoint-3\n"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dry_run_writes_nothing(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    shutil.copytree(prepared, tmp_path / "new", ignore=shutil.ignore_patterns("rows-*"))  # no row index yet
    prepared = tmp_path / "new"
    before = sorted(path for path in prepared.rglob("*"))
    results = run(prepared, "", dry_run=True, max_steps=1000, dataloader_num_workers=workers)
    assert results["dry_run"]
    shown = capsys.readouterr().out
    assert f"{results['parameters']:,} parameters" in shown
    assert "step 2, loss" in shown
    assert sorted(path for path in prepared.rglob("*")) == before


def test_a_batch_that_grows_is_split_into_micro_batches_of_one_size(prepared: Path) -> None:
    stream = BatchStream(
        Corpus(prepared / "corpus"), max_seq_length=40, global_batch_size=BatchSize(24, 4, 10), masking=Masking(),
        seed=5,
    )  # fmt: skip
    for world_size, micro_batches in ((1, 6), (2, 3), (1, 1), (4, 2)):
        most = 24 // (world_size * micro_batches)
        for step in (0, 3, 9, 10):
            rows = []
            for rank in range(world_size):
                count = len(StepLoader(stream, rank, world_size, micro_batches)(step)[0])
                cut = {"rank": rank, "world_size": world_size, "micro_batches": count}
                rows.append([len(stream.batch(step, **cut, micro_batch=number).sample_ids) for number in range(count)])
            assert sum(map(sum, rows)) == stream.batch_size.at(step)
            assert all(0 < count <= most for of_rank in rows for count in of_rank)


def test_batches_come_in_order_whoever_makes_them(prepared: Path) -> None:
    load = StepLoader(make_stream(prepared), 0, 1, 2)
    expected = [load(step) for step in range(3, 9)]
    for workers in (0, 2):
        made = list(prefetch(load, 3, 9, workers=workers))
        assert len(made) == 6
        for (batches, predicted), (expected_batches, expected_predicted) in zip(made, expected, strict=True):
            assert predicted == expected_predicted
            for batch, expected_batch in zip(batches, expected_batches, strict=True):
                assert torch.equal(batch["input_ids"], expected_batch["input_ids"])
                assert torch.equal(batch["masked_positions"], expected_batch["masked_positions"])


def test_an_error_while_making_batches_is_raised() -> None:
    def load(step: int) -> int:
        if step == 2:
            raise OSError("shard vanished")
        return step

    made = prefetch(load, 0, 5)
    assert [next(made), next(made)] == [0, 1]
    with pytest.raises(OSError, match="shard vanished"):
        next(made)


def test_an_abandoned_prefetch_ends_its_thread() -> None:
    made = prefetch(lambda step: np.zeros(step), 0, 10**9)
    next(made)
    made.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_steps": 0}, "max_steps=0 must be at least 1"),
        ({"seed": 2**64}, "seed=18446744073709551616 is too large"),
        ({"max_steps": 10**24}, "max_steps=1000000000000000000000000 is too large: at most 2147483647"),
        ({"max_minutes": 1e300}, r"max_minutes=1e\+300 is too large: at most 1e\+18"),
        ({"warmup_steps": None}, "warmup_steps=None must be a number"),
        ({"learning_rate": "fast"}, "learning_rate='fast' must be a number"),
        ({"max_steps": 1.5}, "max_steps=1.5 must be a whole number"),
        ({"optimizer": "muo"}, r"optimizer='muo' must be one of adamw, muon; did you mean 'muon'\?"),
        ({"mlm_probability": 1.0}, "mlm_probability=1.0 must lie between"),
        ({"adam_epsilon": 0.0}, "adam_epsilon=0.0 must be above 0"),
        ({"mask_share": 0.95}, "mask_share=0.95 and random_share=0.1"),
        (
            {"global_batch_size": 9, "initial_global_batch_size": 2, "batch_warmup_steps": 3},
            "must be a multiple of init",
        ),
        ({"batch_warmup_steps": 3}, "give both or neither"),
        ({"corpus_weights": [1, 2]}, "give one weight for each corpus"),
        ({"max_steps": 5, "warmup_steps": 6}, "warmup_steps=6 and decay_steps=0 do not fit into max_steps=5"),
        ({"decay_steps": 5}, "decay_steps=5 needs lr_scheduler_type='wsd'"),
        ({"corpus": ""}, "corpus is missing"),
        ({"output_dir": ""}, "output_dir is missing"),
        ({"report_to": "tensorbord"}, "report_to='tensorbord' must be one of"),
        ({"overwrite_output_dir": True, "resume_from_checkpoint": "latest"}, "overwrite_output_dir deletes"),
    ],
)
def test_arguments_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PretrainingArguments(**{"corpus": "c", "tokenizer_name": "t", "output_dir": "o", **changes})


def test_yaml_values_are_read_as_their_fields_say() -> None:
    arguments = PretrainingArguments(
        corpus="c", tokenizer_name="t", output_dir="o", learning_rate="1e-3", mixed_precision=False, max_steps=2e4,
        report_to="none",
    )  # fmt: skip
    assert (arguments.learning_rate, arguments.mixed_precision) == (1e-3, "no")
    assert (arguments.max_steps, arguments.report_to) == (20_000, [])
    assert type(arguments.max_steps) is int


def test_a_global_batch_must_split_evenly() -> None:
    arguments = PretrainingArguments(corpus="c", tokenizer_name="t", output_dir="o", global_batch_size=24)
    assert [arguments.micro_batches(world_size) for world_size in (1, 2, 3)] == [1, 1, 1]
    small = dataclasses.replace(arguments, per_device_train_batch_size=4)
    assert [small.micro_batches(world_size) for world_size in (1, 2, 3)] == [6, 3, 2]
    with pytest.raises(ValueError, match="global_batch_size=24 must be a multiple of the 5 processes"):
        arguments.micro_batches(5)
    with pytest.raises(ValueError, match="initial_global_batch_size=3 must be a multiple of the 2 processes"):
        dataclasses.replace(arguments, initial_global_batch_size=3, batch_warmup_steps=9).micro_batches(2)
    with pytest.raises(ValueError, match=r"per_device_train_batch_size=5 must divide the 12 rows.*that does is 4"):
        dataclasses.replace(arguments, per_device_train_batch_size=5).micro_batches(2)


def test_what_does_not_fit_together_is_refused(prepared: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    make_tokenizer(56).save_pretrained(other / "same_size")
    vocabulary = json.loads((other / "same_size" / "tokenizer.json").read_text())
    vocabulary["model"]["vocab"]["renamed"] = vocabulary["model"]["vocab"].pop("w0")
    (other / "same_size" / "tokenizer.json").write_text(json.dumps(vocabulary))
    make_tokenizer(80).save_pretrained(other / "larger")
    refused: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"tokenizer_name": str(other / "same_size")}, {}, "tokenized with another tokenizer .vocab_sha256 differ"),
        ({"tokenizer_name": str(other / "larger")}, {}, "tokenized with another tokenizer .vocab_sha256, vocab_size"),
        ({"tokenizer_name": str(other)}, {}, "holds no tokenizer.json"),
        ({"corpus": str(other)}, {}, "holds no prepared corpus"),
        (
            {"bf16_residual": True, "mixed_precision": "bf16"},
            {"norm_position": "post"},
            "bf16_residual=True needs norm_position='pre'",
        ),
        ({"bf16_residual": True, "mixed_precision": "no"}, {"norm_position": "pre"}, "goes with mixed_precision=bf16"),
        ({}, {"max_position_embeddings": 30}, "max_position_embeddings=30: shorten the rows, or raise"),
        ({"global_batch_size": 6}, {}, "per_device_train_batch_size=4 must divide the 6 rows"),
        ({"report_to": "wandb"}, {}, "report_to='wandb' needs a package that is not installed"),
        ({"mixed_precision": "fp16"}, {}, "mixed_precision='fp16' needs a CUDA device"),
        ({"resume_from_checkpoint": str(other)}, {}, "is not a complete checkpoint: manifest.json cannot be read"),
    ]
    if torch.cuda.is_available():
        del refused[-2]
    for changes, model, message in refused:
        with pytest.raises((ValueError, OSError), match=message):
            run(prepared, tmp_path / "out", model=model, **changes)
        assert not (tmp_path / "out").exists(), message


def test_figures_of_other_validation_text_are_said_on_resuming(prepared: Path, tmp_path: Path, caplog: Any) -> None:
    """Otherwise the losses before and after it would be compared."""
    again = {"max_steps": 6, "resume_from_checkpoint": "latest"}
    run(prepared, tmp_path / "run", max_steps=4, save_steps=2)
    shutil.copytree(prepared, tmp_path / "mixed")
    shutil.rmtree(tmp_path / "mixed" / "corpus" / "validation")
    other = make_corpus(tmp_path / "other", seed=1)
    shutil.copytree(other / "corpus" / "validation", tmp_path / "mixed" / "corpus" / "validation")
    run(
        tmp_path / "mixed",
        tmp_path / "run",
        eval_mlm_probability=0.2,
        max_eval_batches=1,
        per_device_eval_batch_size=4,
        **again,
    )
    assert re.search(r"validation fingerprint \w{12}… there, \w{12}… here", caplog.text)
    assert "eval_mlm_probability=0.15 there, eval_mlm_probability=0.2 here" in caplog.text
    assert "max_eval_batches=None there, max_eval_batches=1 here" in caplog.text
    assert "per_device_eval_batch_size=32 there, per_device_eval_batch_size=4 here" in caplog.text


def test_resuming_another_run_is_refused_by_name(prepared: Path, tmp_path: Path, caplog: Any) -> None:
    run(prepared, tmp_path / "run", max_steps=4, save_steps=2)
    again = {"max_steps": 6, "resume_from_checkpoint": "latest"}
    with pytest.raises(ValueError, match="seed=42 there, seed=7 here"):
        run(prepared, tmp_path / "run", seed=7, **again)
    with pytest.raises(ValueError, match=r"mlm_probability=0.3 there, mlm_probability=0.2 here"):
        run(prepared, tmp_path / "run", mlm_probability=0.2, **again)
    with pytest.raises(ValueError, match="intermediate_size=52 there, intermediate_size=44 here"):
        run(prepared, tmp_path / "run", model={"intermediate_size": 44}, **again)
    other = make_corpus(tmp_path / "other", seed=1)
    with pytest.raises(ValueError, match="corpus fingerprint"):
        run(other, tmp_path / "run", **again)
    with pytest.raises(ValueError, match="is at step 4, beyond max_steps=3"):
        run(prepared, tmp_path / "run", **{**again, "max_steps": 3})
    with pytest.raises(ValueError, match="is not empty; continue with --resume_from_checkpoint latest"):
        run(prepared, tmp_path / "run", max_steps=6)
    with pytest.raises(ValueError, match="holds checkpoint-4, later than step 2"):
        run(prepared, tmp_path / "run", max_steps=6, resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert run(prepared, tmp_path / "run", learning_rate=1e-3, **again)["step"] == 6
    assert "learning_rate=0.005 there, learning_rate=0.001 here" in caplog.text
    assert [entry["step"] for entry in log_of(tmp_path / "run") if "loss" in entry] == [1, 2, 3, 4, 5, 6]


def test_overwriting_deletes_the_run_and_nothing_else(prepared: Path, tmp_path: Path) -> None:
    run(prepared, tmp_path / "run", max_steps=4, save_steps=2)
    mine = [tmp_path / "run" / name for name in ("notes.txt", "other.safetensors", "checkpoint-notes/notes.txt")]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    run(prepared, tmp_path / "run", max_steps=3, save_steps=0, overwrite_output_dir=True)
    assert sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-notes"]
    assert len(losses_of(tmp_path / "run")) == 3
    assert [path.read_text() for path in mine] == ["mine"] * 3


@pytest.mark.parametrize("flag", ["resume_from_checkpoint", "model_name_or_path"])
def test_overwriting_spares_what_the_run_begins_from(prepared: Path, tmp_path: Path, flag: str) -> None:
    run(prepared, tmp_path / "run", max_steps=4, save_steps=2)
    checkpoint = tmp_path / "run" / "checkpoint-2"
    with pytest.raises(ValueError, match=f"deletes .*checkpoint-2, but {flag}="):
        run(prepared, tmp_path / "run", max_steps=4, overwrite_output_dir=True, **{flag: str(checkpoint)})
    assert (checkpoint / "model.safetensors").is_file()
    assert (tmp_path / "run" / "checkpoint-4").is_dir()
