"""Phases of a run, mixtures and batches that grow: each bitwise the same after a kill on either side of a boundary."""

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from often import often
from pretraining_helpers import (
    assert_same_bits,
    log_of,
    losses_of,
    make_corpus,
    model_config,
    run_forked,
    run_here,
    settings,
)
from safetensors.torch import load_file

from clozebert import ClozeBertConfig, ClozeBertForMaskedLM
from clozebert.corpus import BatchStream, Corpus, Masking, ShardWriter
from clozebert.corpus.randomness import derive
from clozebert.training import PretrainingArguments, loop, pretrain
from clozebert.training.checks import check_run
from clozebert.training.evaluation import mix_figures
from clozebert.training.optimizers.optimizer import make_optimizer
from clozebert.training.phase_setup import dry_phase
from clozebert.training.prefetch import StepLoader
from clozebert.training.run_settings import phase_configuration
from clozebert.training.runtime.machine import make_accelerator
from clozebert.training.runtime.watchdog import SECONDS_TO_SAVE, Watchdog
from clozebert.training.step import accumulate_gradient
from clozebert.utils.errors import UserError


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return make_accelerator(mixed_precision="no", use_cpu=True)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second corpus, of the same tokenizer."""
    return make_corpus(tmp_path_factory.mktemp("other"), documents=90, seed=9)


def arguments_of(folder: Path, output_dir: Path | str = "-", **changes: Any) -> PretrainingArguments:
    return PretrainingArguments(**settings(folder, output_dir=str(output_dir), **changes))


def three_phases(other: Path) -> dict[str, Any]:
    """Short rows in growing batches; then longer rows, a larger base, two corpora; then another schedule."""
    return {
        "max_steps": 9, "max_seq_length": 24, "initial_global_batch_size": 2, "batch_warmup_steps": 5, "save_steps": 4,
        "eval_steps": 5, "save_total_limit": 9, "hidden_dropout_prob": 0.1, "logging_steps": 4,
        "phases": [
            {"max_steps": 7, "max_seq_length": 40, "corpus": [str(other / "corpus"), str(other / "more")],
             "corpus_weights": [3, 1], "learning_rate": 1e-3, "global_batch_size": 4,
             "model": {"rope_parameters": {"rope_theta": 90_000}, "max_position_embeddings": 64}},
            {"max_steps": 4, "lr_scheduler_type": "wsd", "decay_steps": 4, "mlm_probability": 0.2},
        ],
    }  # fmt: skip


@pytest.fixture(scope="module")
def more(other: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`other` with a third corpus beside its own."""
    (make_corpus(tmp_path_factory.mktemp("third"), documents=40, seed=5) / "corpus").rename(other / "more")
    return other


@pytest.fixture(scope="module")
def undisturbed(prepared: Path, more: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    run_here(prepared, output_dir, **three_phases(more))
    return output_dir


def test_each_phase_has_its_own_batches_rate_and_model(prepared: Path, more: Path, undisturbed: Path) -> None:
    entries = [entry for entry in log_of(undisturbed) if "loss" in entry]
    # Each phase ends with an entry of its own.
    assert [entry["step"] for entry in entries] == [4, 8, 9, 12, 16, 20]
    model = ("hidden_dropout_prob",)
    values = {name: value for name, value in three_phases(more).items() if name not in model}
    phases = arguments_of(prepared, **values).split_phases()
    of_entries = [phases[index] for index in (0, 0, 0, 1, 1, 2)]
    for entry, phase in zip(entries, of_entries, strict=True):
        factor = phase.arguments.learning_rate_factor(entry["step"] - 1 - phase.first_step)
        assert entry["learning_rate"] == pytest.approx(phase.arguments.learning_rate * factor)
    configs = [ClozeBertConfig.from_pretrained(undisturbed / f"checkpoint-{step}") for step in (9, 12, 20)]
    assert [config.rope_parameters["rope_theta"] for config in configs] == [10_000, 90_000, 90_000]
    assert [config.max_position_embeddings for config in configs] == [48, 64, 64]
    evaluations = {entry["step"]: entry for entry in log_of(undisturbed) if "eval_loss" in entry}
    assert sorted(evaluations) == [5, 9, 10, 15, 16, 20]
    assert "eval_loss_corpus" not in evaluations[9]
    mixed = evaluations[16]
    assert mixed["eval_loss"] == pytest.approx(0.75 * mixed["eval_loss_corpus"] + 0.25 * mixed["eval_loss_more"])


def test_a_finished_phase_keeps_its_values_on_the_card(
    prepared: Path, more: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """The second phase has a rate of its own, so a new one is for the first phase, which is over, and the third."""
    run = {**three_phases(more), "learning_rate": 7e-3, "resume_from_checkpoint": undisturbed / "checkpoint-12"}
    run_here(prepared, tmp_path / "run", **run)
    (event,) = [entry["event"] for entry in log_of(tmp_path / "run") if "event" in entry]
    before = settings(prepared)["learning_rate"]
    assert f"learning_rate={before!r} there, learning_rate=0.007 here (no effect: phase 1 is finished)" in event
    card = (tmp_path / "run" / "README.md").read_text()
    assert f"| learning_rate | {before} |" in card
    assert "| phase 2.learning_rate | 0.001 |" in card


@pytest.mark.parametrize(
    ("batches", "newest"),
    # Micro-batches of four rows: 1, 1, 1, 2 and from then on 2 in each step of the first phase (14 in all), then 1.
    often([([10, 9, 9], None), ([13], 8), ([16], 9)]),
    ids=["often", "before", "after"],
)
def test_killed_on_either_side_of_a_boundary_it_goes_on_bitwise(
    prepared: Path, more: Path, undisturbed: Path, tmp_path: Path, batches: list[int], newest: int | None
) -> None:
    run = {**three_phases(more), "resume_from_checkpoint": "latest"}
    for batch in batches:
        assert run_forked(prepared, tmp_path / "run", die_at=batch, **run) == [-9]
    if newest is not None:
        assert (tmp_path / "run" / "latest").read_text() == f"checkpoint-{newest}\n"
    run_here(prepared, tmp_path / "run", **run)
    assert_same_bits(undisturbed, tmp_path / "run", step=20)


def test_the_second_phase_is_a_loop_of_its_own_from_the_weights_of_the_first(
    prepared: Path, tmp_path: Path, accelerator: Accelerator
) -> None:
    """Without momentum nothing but the weights is handed on, so a plain loop from them is the independent truth."""
    first = {"adam_beta1": 0.0, "adam_beta2": 0.0, "save_steps": 0, "warmup_steps": 0, "max_steps": 3}
    arguments = arguments_of(
        prepared, tmp_path / "run", **first, phases=[{"max_steps": 4, "max_seq_length": 24, "learning_rate": 2e-3}]
    )
    pretrain(arguments, model_config())
    second = arguments.split_phases()[1].arguments
    stream = BatchStream(
        Corpus(prepared / "corpus"), max_seq_length=24, global_batch_size=8, masking=Masking(rate=0.3),
        seed=derive(arguments.seed, 1),
    )  # fmt: skip
    model = ClozeBertForMaskedLM.from_pretrained(tmp_path / "run" / "checkpoint-3").train()
    optimizer, losses = make_optimizer(model, second), []
    for step in range(4):
        batches, num_predicted = StepLoader(stream, 0, 1, 2)(step)
        losses.append(accumulate_gradient(model, batches, num_predicted=num_predicted, accelerator=accelerator).item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.set_learning_rate(1 - step / 4)
        optimizer.step()
        optimizer.zero_grad()
    assert losses_of(tmp_path / "run")[3:] == pytest.approx(losses, abs=1e-6)


def test_a_finished_run_goes_on_with_a_phase_that_is_added_later(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = {"max_steps": 4, "save_steps": 2, "save_total_limit": 9}
    longer = {**run, "phases": [{"max_steps": 3, "max_seq_length": 24}]}
    pretrain(arguments_of(prepared, tmp_path / "whole", **longer), model_config())
    pretrain(arguments_of(prepared, tmp_path / "later", **run), model_config())
    pretrain(arguments_of(prepared, tmp_path / "later", **longer, resume_from_checkpoint="latest"), model_config())
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "later"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert losses_of(tmp_path / "whole") == losses_of(tmp_path / "later")
    # Also in another folder, which has no checkpoint of the first phase.
    first = str(tmp_path / "later" / "checkpoint-4")
    pretrain(arguments_of(prepared, tmp_path / "branch", **longer, resume_from_checkpoint=first), model_config())
    branch = load_file(tmp_path / "branch" / "model.safetensors")
    assert all(torch.equal(one[name], branch[name]) for name in one)
    shutil.rmtree(tmp_path / "branch" / "checkpoint-7")
    (tmp_path / "branch" / "model.safetensors").unlink()
    capsys.readouterr()
    pretrain(arguments_of(prepared, tmp_path / "branch", **longer, resume_from_checkpoint="latest"), model_config())
    shown = capsys.readouterr().out
    assert "phase 2 of 2" in shown
    assert "(for what is left, at the speed so far)" in shown


def test_figures_of_an_earlier_phase_are_not_those_of_the_model(prepared: Path, more: Path, tmp_path: Path) -> None:
    """The text of the second phase has no validation split."""
    silent = tmp_path / "silent"
    shutil.copytree(more / "corpus" / "train", silent / "train")
    phases = [{"max_steps": 3, "corpus": [str(silent)]}]
    run = arguments_of(prepared, tmp_path / "run", max_steps=4, eval_steps=2, save_steps=2, phases=phases)
    assert "eval_loss" not in pretrain(run, model_config())
    assert any("eval_loss" in entry for entry in log_of(tmp_path / "run"))


def test_the_next_phase_goes_on_with_the_loss_scale_at_the_end_of_the_last(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fp16; a resumed run would else go back to the scale of the checkpoint that it began from."""
    scales = []
    made = loop.make_accelerator

    def make(**options: Any) -> Any:
        accelerator = made(**options)
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
        return accelerator

    set_up = loop.set_up_phase

    def remember(*places: Any, accelerator: Any, **options: Any) -> Any:
        found = set_up(*places, accelerator=accelerator, **options)
        scales.append(accelerator.scaler.get_scale())
        return found

    def update(optimizer: Any, *, num_broken: int, accelerator: Any) -> None:
        optimizer.zero_grad()
        accelerator.scaler._scale = torch.full((), 2.0 * accelerator.scaler.get_scale())

    monkeypatch.setattr(loop, "make_accelerator", make)
    monkeypatch.setattr(loop, "set_up_phase", remember)
    monkeypatch.setattr(loop, "update_weights", update)
    monkeypatch.setattr(loop, "clip_gradient", lambda *places, **options: 1.0)
    run: dict[str, Any] = {"max_steps": 4, "save_steps": 2, "save_total_limit": 9, "phases": [{"max_steps": 2}]}
    pretrain(arguments_of(prepared, tmp_path / "run", **run), model_config())
    again = str(tmp_path / "run" / "checkpoint-2")
    pretrain(arguments_of(prepared, tmp_path / "again", **run, resume_from_checkpoint=again), model_config())
    assert scales == [4.0, 64.0, 16.0, 64.0]


def test_the_plan_of_a_change_is_refused_where_it_is_behind(prepared: Path, tmp_path: Path) -> None:
    run = {"max_steps": 4, "phases": [{"max_steps": 4}], "save_steps": 2}
    pretrain(arguments_of(prepared, tmp_path / "run", **run), model_config())
    for changes, message in (
        ({"max_steps": 5}, "step 8 in phase 2 from step 4 there, in phase 2 from step 5 here"),
        ({"phases": [{"max_steps": 4, "max_seq_length": 24}]}, "max_seq_length=40 there, max_seq_length=24 here"),
        ({"phases": [{"max_steps": 4, "corpus_weights": [2.0]}]}, r"corpus_weights=\[\] there"),
        ({"phases": []}, "is at step 8, beyond max_steps=4"),
    ):
        again = arguments_of(prepared, tmp_path / "run", **{**run, **changes}, resume_from_checkpoint="latest")
        with pytest.raises(ValueError, match=message):
            pretrain(again, model_config())


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ([{"max_seq_length": 24}], r"phases\[0\]: max_steps is missing"),
        ([{"max_steps": None}], r"phases\[0\]: max_steps is missing"),
        ([{"max_steps": 3}, {"max_steps": 3, "max_seq_len": 24}], r"phases\[1\]: unknown key 'max_seq_len'.*did you"),
        ([{"max_steps": 3, "optimizer": "muon"}], r"phases\[0\]: optimizer belongs to the whole run"),
        ([{"max_steps": 3, "max_minutes": 1}], r"phases\[0\]: max_minutes belongs to the whole run"),
        ([{"max_steps": 3, "num_train_epochs": 1}], r"phases\[0\]: num_train_epochs belongs to the whole run"),
        ([{"max_steps": 3, "embedding_init": "text"}], r"phases\[0\]: embedding_init belongs to the whole run"),
        ([{"max_steps": 3, "learning_rate": "fast"}], r"phases\[0\]: learning_rate='fast' must be a number"),
        ([{"max_steps": 3, "warmup_steps": 4}], r"phases\[0\]: warmup_steps=4 and decay_steps=0 do not fit"),
        ([{"max_steps": 3, "model": [1]}], r"phases\[0\]: model=\[1\] must be `name: value` lines"),
        ([{"max_steps": 3, "model": {"vocab_size": 9}}], r"phases\[0\]: vocab_size=9: leave it out, the tokenizer"),
        (["max_steps"], "phases='max_steps' must be a list of phases"),
    ],
)
def test_a_phase_that_cannot_be_is_refused(phases: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PretrainingArguments(corpus="c", tokenizer_name="t", output_dir="o", max_steps=9, phases=phases)


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        ({"model": {"hidden_size": 48}}, r"phases\[0\] changes the shape of .*may change rope_parameters"),
        ({"model": {"rope_teta": 1}}, r"unknown key 'rope_teta' in phases\[0\], under `model`; (?!.*sub_configs)"),
        ({"model": {"norm_type": "batch"}}, r"phases\[0\], under `model`: norm_type='batch' must be one of"),
        ({"model": {"hidden_size": 10**20}}, r"under `model`: hidden_size=100000000000000000000 is too large"),
        ({"max_seq_length": 60}, "max_seq_length=60 exceeds the model's max_position_embeddings=48"),
        ({"corpus": "nowhere"}, "nowhere holds no prepared corpus"),
        ({"per_device_train_batch_size": 3}, "per_device_train_batch_size=3 must divide the 8 rows"),
    ],
)
def test_a_later_phase_that_does_not_fit_is_refused_before_any_work(
    prepared: Path, tmp_path: Path, phase: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, OSError), match=message):
        pretrain(
            arguments_of(prepared, tmp_path / "run", max_steps=9, phases=[{"max_steps": 3, **phase}]), model_config()
        )
    assert not (tmp_path / "run").exists()


def test_a_phase_that_cannot_begin_ends_the_run_with_its_own_error(
    prepared: Path, more: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here as on a full disk. Nothing is lost: the first phase has its checkpoint, and its folder is free again."""
    phases = {"max_steps": 4, "phases": [{"max_steps": 2, "learning_rate": 1e-3}]}
    real, entered = loop.set_up_phase, []

    def set_up_phase(phase: Any, *parts: Any, **more: Any) -> Any:
        entered.append(phase.index)
        if entered == [0, 1]:
            raise OSError("no space left on device")
        return real(phase, *parts, **more)

    monkeypatch.setattr(loop, "set_up_phase", set_up_phase)
    with pytest.raises(OSError, match="no space left on device"):
        run_here(prepared, tmp_path / "run", **phases)
    run_here(prepared, tmp_path / "run", **phases, resume_from_checkpoint="latest")
    run_here(prepared, tmp_path / "undisturbed", **phases)
    assert_same_bits(tmp_path / "run", tmp_path / "undisturbed", step=6)


def test_a_run_that_cannot_begin_closes_its_log(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the memory is full when a step is timed: bar and trackers are open by then."""
    closed = []

    def fails(*args: Any, **options: Any) -> None:
        raise RuntimeError("no memory, made up")

    monkeypatch.setattr(loop.RunLog, "close", lambda self: closed.append(self))
    monkeypatch.setattr(loop, "what_to_expect", fails)
    with pytest.raises(RuntimeError, match="made up"):
        pretrain(arguments_of(prepared, tmp_path / "run"), model_config())
    assert len(closed) == 1


def test_what_a_phase_takes_over(prepared: Path) -> None:
    first, second, third = arguments_of(
        prepared, warmup_steps=3, max_steps=20, lr_scheduler_type="wsd", decay_steps=9, adam_beta2=0.9,
        initial_global_batch_size=4, batch_warmup_steps=6, corpus_weights=[1.0],
        phases=[{"max_steps": 5, "adam_beta2": 0.8}, {"max_steps": 6, "corpus": ["a", "b"]}],
    ).split_phases()  # fmt: skip
    assert [phase.first_step for phase in (first, second, third)] == [0, 20, 25]
    assert [phase.arguments.adam_beta2 for phase in (first, second, third)] == [0.9, 0.8, 0.8]
    assert [phase.arguments.warmup_steps for phase in (first, second, third)] == [3, 0, 0]
    assert [phase.arguments.decay_steps for phase in (first, second, third)] == [9, None, None]
    assert [phase.arguments.batch_size.smallest for phase in (first, second, third)] == [4, 8, 8]
    assert [phase.arguments.corpus_weights for phase in (first, second, third)] == [[1.0], [1.0], []]
    assert third.arguments.lr_scheduler_type == "wsd"


def test_a_phase_takes_over_what_earlier_ones_changed_inside_a_value() -> None:
    thetas = [{"full_attention": {"rope_theta": 500_000}}, {"sliding_attention": {"rope_theta": 20_000}}]
    phases = [{"max_steps": 5, "model": {"rope_parameters": theta}} for theta in thetas]
    arguments = PretrainingArguments(corpus="c", tokenizer_name="t", output_dir="o", max_steps=5, phases=phases)
    base = ClozeBertConfig.from_name("modernbert-base")
    found = [phase_configuration(base, phase).rope_parameters for phase in arguments.split_phases()]
    bases = [[of[name]["rope_theta"] for name in ("full_attention", "sliding_attention")] for of in found]
    assert bases == [[160_000, 10_000], [500_000, 10_000], [500_000, 20_000]]


def test_a_phase_may_name_the_layer_type_of_a_model_that_has_one() -> None:
    """As the example of the page does, whatever the model."""
    config = model_config(position_embedding_type="rope")
    arguments = PretrainingArguments(
        corpus=["c"], tokenizer_name="t", output_dir="o", max_steps=5,
        phases=[{"max_steps": 5, "model": {"rope_parameters": {"full_attention": {"rope_theta": 160000}}}}],
    )  # fmt: skip
    assert phase_configuration(config, arguments.split_phases()[1]).rope_parameters["rope_theta"] == 160000


def test_a_dry_run_enters_every_phase(prepared: Path, more: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_here(prepared, Path("-"), **{**three_phases(more), "dry_run": True})
    shown = capsys.readouterr().out
    assert [f"phase {number} of 3" in shown for number in (1, 2, 3)] == [True] * 3
    assert "step 6, loss" in shown
    assert "rows from corpus 75.0%, more 25.0%" in shown


def test_the_watchdog_allows_time_to_set_up_a_later_phase(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With several processes: a large model is read, and its text may be counted."""
    events: list[Any] = []
    progress, set_up = Watchdog.progress, loop.set_up_phase

    def note(self: Watchdog, *, allow: float = 0.0) -> None:
        events.append(allow)
        progress(self, allow=allow)

    def note_phase(phase: Any, *parts: Any, **more: Any) -> Any:
        events.append(f"phase {phase.index}")
        return set_up(phase, *parts, **more)

    monkeypatch.setattr(Watchdog, "progress", note)
    monkeypatch.setattr(loop, "set_up_phase", note_phase)
    run_here(prepared, tmp_path / "run", max_steps=3, phases=[{"max_steps": 1}])
    place = events.index("phase 1")
    assert events[place - 1 : place + 2] == [SECONDS_TO_SAVE, "phase 1", 0.0]


def test_a_mixture_is_on_the_card_and_in_the_stream(prepared: Path, more: Path, tmp_path: Path) -> None:
    cards: list[dict[str, Any]] = []
    run = {"max_steps": 3, "corpus": [str(prepared / "corpus"), str(more / "more")], "corpus_weights": [0.25, 0.75]}
    arguments = arguments_of(prepared, tmp_path / "run", **run)
    pretrain(arguments, model_config(), write_card=lambda directory, facts: cards.append(facts))
    assert cards[-1]["corpus"]["more"]["share"] == 0.75
    assert cards[-1]["corpus"]["corpus"]["documents"] == 150
    assert cards[-1]["hyperparameters"]["corpus_weights"] == [0.25, 0.75]
    assert str(tmp_path) not in json.dumps(cards[-1])
    results = json.loads((tmp_path / "run" / "all_results.json").read_text())
    assert results["eval_loss"] == pytest.approx(0.25 * results["eval_loss_corpus"] + 0.75 * results["eval_loss_more"])
    again = {**run, "max_steps": 4, "resume_from_checkpoint": "latest"}
    with pytest.raises(ValueError, match=r"corpus_weights=\[0.25, 0.75\] there, corpus_weights=\[0.5, 0.5\] here"):
        pretrain(arguments_of(prepared, tmp_path / "run", **{**again, "corpus_weights": [0.5, 0.5]}), model_config())
    with pytest.raises(ValueError, match=r"corpus fingerprint \w{12}… \+ \w{12}… there, \w{12}… \+ \w{12}… here"):
        pretrain(arguments_of(prepared, tmp_path / "run", **{**again, "corpus": run["corpus"][::-1]}), model_config())


def test_a_split_that_predicts_nothing_is_left_out_of_a_mixture(
    prepared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(prepared / "corpus", tmp_path / "short")
    shutil.rmtree(tmp_path / "short" / "validation")
    whole = Corpus(prepared / "corpus")
    writer = ShardWriter(tmp_path / "short" / "validation", vocab_size=whole.vocab_size)
    writer.append(np.array([9]), np.ones(1, dtype=bool))
    writer.close({"tokenizer": whole.manifest["tokenizer"]})
    corpora = [str(prepared / "corpus"), str(tmp_path / "short")]
    run = {"max_steps": 2, "warmup_steps": 0, "corpus": corpora, "eval_mlm_probability": 0.01}
    pretrain(arguments_of(prepared, tmp_path / "run", **run), model_config())
    results = json.loads((tmp_path / "run" / "all_results.json").read_text())
    assert results["eval_loss"] == pytest.approx(results["eval_loss_corpus"])
    assert "eval_loss_short" not in results
    assert "short is left out of the evaluation: the held-out text is so short" in caplog.text


def test_figures_of_a_mixture_are_weighted_by_its_shares() -> None:
    one = {"eval_loss": 2.0, "eval_accuracy": 0.5, "eval_predicted_tokens": 100, "eval_perplexity": np.exp(2.0)}
    two = {"eval_loss": 4.0, "eval_accuracy": 0.1, "eval_predicted_tokens": 7, "eval_perplexity": np.exp(4.0)}
    # A third corpus has no validation split: the others' shares are taken for the whole.
    mixed = mix_figures({"one": one, "two": two}, {"one": 0.6, "two": 0.2})
    assert mixed["eval_loss"] == pytest.approx(2.5)
    assert mixed["eval_perplexity"] == pytest.approx(np.exp(2.5))
    assert mixed["eval_accuracy"] == pytest.approx(0.4)
    assert mixed["eval_predicted_tokens"] == 107
    assert (mixed["eval_loss_one"], mixed["eval_loss_two"]) == (2.0, 4.0)


def test_a_dry_run_on_several_devices_takes_no_more_rows_at_once_than_the_run() -> None:
    arguments = PretrainingArguments(
        corpus="c", tokenizer_name="t", output_dir="o", max_steps=9, global_batch_size=256,
        per_device_train_batch_size=128,
    )  # fmt: skip
    devices = SimpleNamespace(device=torch.device("cuda"), num_processes=8)
    dry = dry_phase(arguments.split_phases()[0], devices).arguments
    assert dry.per_device_train_batch_size == arguments.rows_at_once(8) == 32
    assert dry.global_batch_size == 256
    processor = SimpleNamespace(device=torch.device("cpu"), num_processes=1)
    for length, rows in ((128, 32), (512, 8), (8192, 1)):
        phase = dataclasses.replace(arguments, max_seq_length=length).split_phases()[0]
        assert dry_phase(phase, processor).arguments.per_device_train_batch_size == rows


def test_another_rope_type_takes_theta_and_nothing_else_from_the_one_before(prepared: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 20.0}
    ropes = [
        {"rope_theta": 5e3},
        yarn,
        {"factor": 2.0},
        {"rope_type": "linear", "factor": 8.0},
        {"rope_type": "default"},
    ]
    phases = [{"max_steps": 3, "model": {"rope_parameters": rope}} for rope in ropes]
    arguments = PretrainingArguments(**settings(prepared, output_dir="o", max_steps=3, phases=phases))
    config = model_config(position_embedding_type="rope", rope_parameters={"rope_theta": 7e3})
    found = [phase_configuration(config, phase).rope_parameters for phase in arguments.split_phases()]
    yarn = {**yarn, "rope_theta": 5e3, "original_max_position_embeddings": 48}
    assert found[2:4] == [yarn, {**yarn, "factor": 2.0}]
    assert found[4:] == [
        {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e3},
        {"rope_type": "default", "rope_theta": 5e3},
    ]


def test_an_empty_phase_is_refused() -> None:
    for phases in ([None], [{"max_steps": 3}, None]):
        with pytest.raises(UserError, match="phases=None must be a list of phases"):
            PretrainingArguments(corpus="c", tokenizer_name="t", output_dir="o", max_steps=9, phases=phases)
    assert PretrainingArguments(corpus="c", tokenizer_name="t", output_dir="o", phases=None).phases == []


def test_a_phase_keeps_the_tokens_of_the_tokenizer(prepared: Path) -> None:
    phases = [{"max_steps": 3, "model": {"mask_token_id": 7}}]
    arguments = PretrainingArguments(**settings(prepared, output_dir="o", max_steps=3, phases=phases))
    checked = check_run(arguments, model_config())
    assert {config.mask_token_id for config in checked.configs} == {checked.tokenizer.mask_token_id}
