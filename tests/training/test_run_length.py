"""How long a run is by default, its vocabulary, and what is said of both."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pretraining_helpers import make_corpus, make_tokenizer, model_config, run_here, settings

from clozebert import ClozeBertConfig
from clozebert.configuration import list_recipes
from clozebert.configuration.costs import short_number
from clozebert.corpus import BatchSize, Mixture, ShardWriter
from clozebert.corpus.tokenizer import tokenizer_facts
from clozebert.training import checks
from clozebert.training.arguments import PretrainingArguments
from clozebert.training.checkpoints.folders import list_checkpoints
from clozebert.training.checkpoints.training_state import read_training_state
from clozebert.training.checks import check_run
from clozebert.training.initialization.initial_model import padded_vocabulary
from clozebert.training.planning.expectations import hours_lines, length_lines
from clozebert.training.planning.run_length import epochs_by_text, length_by_text, row_fill, rows_of_text
from clozebert.training.run_settings import make_config, read_flag, split_settings, suit_continuing
from clozebert.utils.errors import UserError


def test_the_fill_of_rows_is_weighted_as_the_corpora_are(tmp_path: Path) -> None:
    """In rows of 40, documents of 38 tokens fill all, and those of 23 leave 15 places free."""
    tokenizer = make_tokenizer(50)
    for name, length in (("full", 38), ("short", 23)):
        writer = ShardWriter(tmp_path / name / "train", vocab_size=64)
        for _ in range(40):
            writer.append(np.full(length, 9), np.ones(length, dtype=bool))
        writer.close({"tokenizer": tokenizer_facts(tokenizer)})
    places = [str(tmp_path / name) for name in ("full", "short")]
    for weights in ([1, 3], [3, 1]):
        fill = row_fill(Mixture(places, weights), max_seq_length=40)
        assert fill == pytest.approx((weights[0] * 1 + weights[1] * 25 / 40) / 4)


def test_more_text_is_seen_less_often_but_gives_a_longer_run() -> None:
    sizes = [int(size) for size in np.geomspace(1e3, 1e13, 200)]
    epochs = [epochs_by_text(size) for size in sizes]
    assert epochs == sorted(epochs, reverse=True)
    assert (epochs[0], epochs[-1]) == (40, 1)
    assert [epochs_by_text(int(size)) for size in (10e6, 100e6, 1e9, 10e9)] == [40, 19, 9, 4]
    seen = [size * each for size, each in zip(sizes, epochs, strict=True)]
    # Rounding to whole epochs costs at most half, from two to one.
    assert all(after > 0.5 * before for before, after in itertools.pairwise(seen))
    assert [epochs_by_text(int(size), continued=True) for size in (1e6, 10e6, 100e6, 1e12)] == [10, 10, 9, 1]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Corpora of about 1 M tokens (a 5 MB text) and 40 M, by a tokenizer of 70 entries, which no recipe has."""
    folder = tmp_path_factory.mktemp("texts")
    tokenizer = make_tokenizer(65)
    tokenizer.save_pretrained(folder / "tokenizer")
    draws = np.random.default_rng(0)
    for name, documents in (("small", 2000), ("large", 80_000)):
        for split in ("train", "validation"):
            writer = ShardWriter(folder / name / split, vocab_size=70)
            for length in draws.integers(10, 1000, size=documents if split == "train" else 10):
                writer.append(np.full(length, 6), np.ones(length, dtype=bool))
            writer.close({"tokenizer": tokenizer_facts(tokenizer)})
    return {"tokenizer": folder / "tokenizer", "small": folder / "small", "large": folder / "large"}


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("recipe", list_recipes())
def test_every_recipe_with_the_commands_of_the_readme(texts: dict[str, Path], recipe: str, size: str) -> None:
    """No run sets out on more than 40 epochs, or on a vocabulary with more rows than rounding gives."""
    given = {"corpus": [str(texts[size])], "tokenizer_name": str(texts["tokenizer"]), "output_dir": "-"}
    values, model = split_settings(recipe, given)
    arguments = PretrainingArguments(**values)
    assert arguments.max_steps is None
    run = check_run(arguments, make_config(model))
    epochs = (
        run.phases[0].arguments.num_steps
        * arguments.global_batch_size
        / rows_of_text(run.mixtures[0].corpora, max_seq_length=arguments.max_seq_length)
    )
    tokens = run.mixtures[0].num_tokens
    assert 0.8 * epochs_by_text(tokens) < epochs <= epochs_by_text(tokens) <= 40
    assert run.configs[0].vocab_size == 128
    assert all(0 <= getattr(run.configs[0], name) < 70 for name in ("pad_token_id", "mask_token_id", "cls_token_id"))
    shape = run.phases[0].arguments
    assert isinstance(shape.warmup_steps, int)
    assert 0 <= shape.warmup_steps < 0.1 * shape.num_steps


def test_lengths_that_are_given(texts: dict[str, Path]) -> None:
    mixture = Mixture([str(texts["small"])])
    rows = rows_of_text(mixture.corpora, max_seq_length=128)

    def steps(**changes: Any) -> int:
        values = {"corpus": "c", "tokenizer_name": "t", "output_dir": "o", "global_batch_size": 16, **changes}
        return length_by_text(PretrainingArguments(**values), mixture).num_steps

    assert steps() == 40 * rows // 16
    assert steps(model_name_or_path="m") == 10 * rows // 16
    assert steps(num_train_epochs=1.5) == int(1.5 * rows / 16)
    assert steps(num_train_epochs=1e-9) == 1
    assert steps(max_steps=7) == 7
    rising = steps(num_train_epochs=2, initial_global_batch_size=4, batch_warmup_steps=0.5)
    assert 2 * rows / 16 < rising < 1.4 * 2 * rows / 16, "while the batch rises, more steps see as much text"
    for epochs in (0.3, 2, 9.7):
        for share in (0.1, 0.5):
            batch = {"initial_global_batch_size": 4, "batch_warmup_steps": share}
            number = steps(num_train_epochs=epochs, **batch)
            seen, more = (BatchSize(16, 4, int(share * n + 1e-9)).before(n) for n in (number, number + 1))
            assert seen <= epochs * rows < more, "as many steps as there are rows for"
    batch = {"initial_global_batch_size": 1, "batch_warmup_steps": 9000}
    for given in ({"warmup_steps": 3000}, {"lr_scheduler_type": "wsd", "decay_steps": 3000}):
        assert steps(num_train_epochs=2, **batch, **given) == steps(num_train_epochs=2, **batch) > 3000
    with pytest.raises(ValueError, match=r"the run has 2,135 steps, 4.15 epochs of the text: warmup_steps=9000"):
        steps(num_train_epochs=4.15, warmup_steps=9000)


def test_numbers_are_short() -> None:
    """Three digits of what is just below the next prefix are 1 with it, and not 1e+03 without."""
    assert [short_number(number) for number in (999, 999_499, 999_500, 1_000_000)] == ["999 ", "999 k", "1 M", "1 M"]
    given = PretrainingArguments(corpus="c", tokenizer_name="t", output_dir="o")
    for tokens, shown in ((999_499, "999 k"), (999_500, "1 M"), (10**9 - 1, "1 B")):
        assert f"the default for {shown} tokens is" in length_lines(
            given.of_length(5000), epochs=39.9, tokens=tokens, given=given
        )[0]  # fmt: skip


def test_shares_of_a_run() -> None:
    paths = {"corpus": "c", "tokenizer_name": "t", "output_dir": "o"}
    run = PretrainingArguments(**paths, warmup_steps=0.29, lr_scheduler_type="wsd", decay_steps=0.5)
    assert (run.warmup_steps, run.decay_steps) == (0.29, 0.5)
    assert (run.of_length(100).warmup_steps, run.of_length(100).decay_steps) == (29, 50)
    assert PretrainingArguments(**paths, max_steps=200, warmup_steps=0.05).warmup_steps == 10
    assert PretrainingArguments(**paths, max_steps=200, warmup_steps=7).warmup_steps == 7
    with pytest.raises(ValueError, match="are more than the whole run"):
        PretrainingArguments(**paths, warmup_steps=0.6, lr_scheduler_type="wsd", decay_steps=0.6)
    with pytest.raises(ValueError, match=r"num_train_epochs=0\.0 must be above 0"):
        PretrainingArguments(**paths, num_train_epochs=0)


def test_what_is_said(texts: dict[str, Path]) -> None:
    paths = {"corpus": "c", "tokenizer_name": "t", "output_dir": "o"}
    given = PretrainingArguments(**paths)
    lines = length_lines(given.of_length(5000), epochs=39.9, tokens=1_000_000, given=given)
    assert lines[0].startswith("length: 39.9 epochs; the default for 1 M tokens is 40 (--num_train_epochs, --max_steps")
    assert "clozebert adapt --model_name_or_path" in lines[1]
    assert len(lines) == 2
    long = PretrainingArguments(**paths, max_steps=10_000)
    (warning,) = length_lines(long, epochs=724.0, tokens=30_000_000, given=long)
    assert warning.startswith("warning: the text is seen 724 times")
    assert "--num_train_epochs 40, or" in warning
    timed = PretrainingArguments(**paths, max_steps=10_000, max_minutes=5)  # as `adapt --max_minutes 5` runs
    (warning,) = length_lines(timed, epochs=724.0, tokens=30_000_000, given=timed)
    assert "--num_train_epochs 40 in place of --max_minutes, or" in warning
    few = length_lines(given.of_length(61), epochs=40, tokens=30_000_000, given=given)
    assert "61 steps are few" in few[1]
    assert "--config tiny or small" in few[1]
    assert "--global_batch_size 8 with a lower --learning_rate" in few[1]
    # A way out that makes the run no longer is none.
    for rows, ways_out in (
        (64, "take a smaller recipe (--config nano or tiny), or --global_batch_size 8 with a lower --learning_rate"),
        (32, "take a smaller recipe (--config nano), or --global_batch_size 8 with a lower --learning_rate"),
        (16, "take --global_batch_size 8 with a lower --learning_rate"),
        (8, "take more text"),
    ):
        small = PretrainingArguments(**paths, global_batch_size=rows)
        assert length_lines(small.of_length(61), epochs=40, tokens=30_000_000, given=small)[1].endswith(f": {ways_out}")
    assert hours_lines(0.5, on_cpu=True, how="x") == ["time: about 30 minutes (x), evaluations and checkpoints on top"]
    assert len(hours_lines(23.9, on_cpu=True, how="x")) == len(hours_lines(144, on_cpu=False, how="x")) == 1
    assert "--max_minutes" in hours_lines(144, on_cpu=True, how="x")[1]


def test_a_continued_run_takes_lower_rates_unless_they_are_given() -> None:
    flags = {"model_name_or_path": "there", "optimizer": "muon"}
    values, _ = split_settings("tiny", flags)
    (said,) = suit_continuing(values, flags)
    assert (values["learning_rate"], values["muon_learning_rate"]) == (0.0006, 0.004)
    assert "--learning_rate 0.0006 instead of 0.003" in said
    values, _ = split_settings("tiny", {**flags, "learning_rate": 0.1, "muon_learning_rate": 0.2})
    assert suit_continuing(values, {**flags, "learning_rate": 0.1, "muon_learning_rate": 0.2}) == []
    assert (values["learning_rate"], values["muon_learning_rate"]) == (0.1, 0.2)
    values, _ = split_settings("tiny", {})
    assert suit_continuing(values, {}) == []


def test_each_phase_of_a_continued_run_takes_lower_rates(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "max_steps: 4\nlearning_rate: 1e-3\nphases: [{max_steps: 4, learning_rate: 5e-4}, {max_steps: 2}]\n"
    )
    for flags, rates in (({}, (2e-4, 1e-4)), ({"learning_rate": 3e-4}, (3e-4, 5e-4))):
        flags["model_name_or_path"] = "there"
        values, _ = split_settings(str(path), flags)
        said = suit_continuing(values, flags)
        assert (values["learning_rate"], values["phases"][0]["learning_rate"]) == rates
        assert "learning_rate" not in values["phases"][1]
        assert ["epochs" in line for line in said] == ([False] if len(flags) == 1 else [])


def test_phases_of_a_flag_keep_the_rates_that_it_gives_them() -> None:
    flags = {"model_name_or_path": "there", "phases": [{"max_steps": 4, "learning_rate": 5e-4}, {"max_steps": 2}]}
    values, _ = split_settings(None, flags)
    (said,) = suit_continuing(values, flags)
    assert (values["learning_rate"], values["phases"][0]["learning_rate"]) == (1e-4, 5e-4)
    assert "phase" not in said


def test_a_phase_that_stands_without_a_list_takes_lower_rates_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("max_steps: 4\nlearning_rate: 1e-3\nphases: {max_steps: 4, learning_rate: 5e-4}\n")
    flags = {"model_name_or_path": "there"}
    values, _ = split_settings(str(path), flags)
    suit_continuing(values, flags)
    arguments = PretrainingArguments(**values, corpus="-", tokenizer_name="-", output_dir="-")
    assert [phase.arguments.learning_rate for phase in arguments.split_phases()] == [2e-4, 1e-4]


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("learning_rate: fast", "learning_rate='fast' must be a number"),
        ("learning_rate:", "learning_rate=None must be a number"),
        ("phases: 3\nmax_steps: 4", "phases=3 must be a list of phases"),
    ],
)
def test_a_mistake_in_the_recipe_of_a_continued_run_is_one_line(tmp_path: Path, recipe: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(recipe + "\n")
    flags = {"model_name_or_path": "there"}
    values, _ = split_settings(str(path), flags)

    def begin() -> None:
        suit_continuing(values, flags)
        PretrainingArguments(**values, corpus="-", tokenizer_name="-", output_dir="-")

    with pytest.raises(UserError, match=message):
        begin()


def test_a_warm_up_of_the_batch_size_takes_a_step_however_short_the_run(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("max_steps: 100000\nglobal_batch_size: 16\ninitial_global_batch_size: 4\nbatch_warmup_steps: 100\n")
    paths = {"corpus": "-", "tokenizer_name": "-", "output_dir": "-"}
    arguments = PretrainingArguments(**split_settings(str(path), {"max_steps": 200})[0], **paths)
    assert arguments.batch_warmup_steps == 1
    assert arguments.of_length(3).batch_warmup_steps == 1
    share = PretrainingArguments(
        **paths, max_steps=2, global_batch_size=16, initial_global_batch_size=4, batch_warmup_steps=0.3
    )
    assert share.batch_warmup_steps == 1


def test_another_schedule_leaves_out_the_recipes_decay() -> None:
    for given, decay in (({}, 0.5), ({"lr_scheduler_type": "wsd"}, 0.5), ({"lr_scheduler_type": "cosine"}, None)):
        values, _ = split_settings("nano", given)
        assert PretrainingArguments(**values, corpus="-", tokenizer_name="-", output_dir="-").decay_steps == decay
    values, _ = split_settings("nano", {"lr_scheduler_type": "cosine", "decay_steps": 0.2})
    with pytest.raises(UserError, match=r"decay_steps=0\.2 needs lr_scheduler_type='wsd'"):
        PretrainingArguments(**values, corpus="-", tokenizer_name="-", output_dir="-")


def test_numbers_of_a_recipe_under_a_flag_for_its_length(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for steps in ("1e3", "1000", "'1000'"):
        path.write_text(f"max_steps: {steps}\nwarmup_steps: '100'\ndecay_steps: 0.2\n")
        values, _ = split_settings(str(path), {"max_steps": 50})
        assert (values["max_steps"], values["warmup_steps"], values["decay_steps"]) == (50, 5, 0.2)
        values, _ = split_settings(str(path), {"num_train_epochs": 2})
        assert values["warmup_steps"] == 0.1
    for steps, message in (
        ("lots", "'lots' must be a whole number"), ("9" * 400, "9 must be a whole"), ("0", "=0 must be at least 1")
    ):  # fmt: skip
        path.write_text(f"max_steps: {steps}\n")
        with pytest.raises(UserError, match=message):
            split_settings(str(path), {"max_steps": 50})


def test_what_lasts_the_whole_recipe_lasts_the_whole_run_of_epochs(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("max_steps: 100\nlr_scheduler_type: wsd\ndecay_steps: 100\n"
                    "initial_global_batch_size: 8\nbatch_warmup_steps: 100\n")  # fmt: skip
    values, _ = split_settings(str(path), {"num_train_epochs": 2})
    arguments = PretrainingArguments(**values, corpus="-", tokenizer_name="-", output_dir="-")
    for steps in (1, 7, 200, 1_000_000):
        run = arguments.of_length(steps)
        assert (run.decay_steps, run.batch_warmup_steps) == (steps, steps)


def test_fields_of_the_model_are_read_as_yaml() -> None:
    assert read_flag("rope_parameters", "{rope_theta: 1e4}") == {"rope_theta": 1e4}
    assert read_flag("norm_eps", "1e-5") == 1e-5
    # By YAML 1.1 these would be 64, 90 and 5.
    assert [read_flag("pad_token_id", text) for text in ("0100", "1:30", "0b101")] == ["0100", "1:30", "0b101"]
    assert [read_flag("pad_token_id", text) for text in ("0", "-12", "1_000", "0x1f")] == [0, -12, 1000, 31]
    assert read_flag("layer_types", "null") is None
    with pytest.raises(UserError, match=r"rope_theta='fast' must be a number above 0"):
        make_config({"architecture": "nano", "layer_types": None, "rope_parameters": {"rope_theta": "fast"}})


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("model: {hidden_size: -3}", "hidden_size=-3 must be at least 1"),
        ("architecture: nano\nmodel: {num_hidden_layers: many}", "'num_hidden_layers' .*'many'"),
        ("architecture: nanoo", "unknown architecture 'nanoo'"),
    ],
)
def test_a_mistake_in_the_model_of_a_recipe_names_the_recipe(tmp_path: Path, recipe: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(recipe)
    with pytest.raises(UserError, match=rf"recipe .*mine\.yaml: (?s:.*){message}"):
        make_config(split_settings(str(path), {})[1], recipe=str(path))
    # A flag's own mistake is not the recipe's.
    with pytest.raises(UserError, match=r"^norm_type='batchnorm' must be one of"):
        make_config(split_settings("nano", {"norm_type": "batchnorm"})[1], recipe="nano")


def test_the_vocabulary_is_the_tokenizers(tmp_path: Path) -> None:
    assert [padded_vocabulary(size) for size in (1, 64, 65, 30_522)] == [64, 64, 128, 30_528]
    prepared = make_corpus(tmp_path)
    arguments = PretrainingArguments(**settings(prepared, max_steps=3), output_dir="-")
    for size in (30, 67, 5000):
        assert check_run(arguments, model_config(vocab_size=size)).configs[0].vocab_size == 64


def test_a_resumed_run_keeps_its_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps that it began with, and the rows of its vocabulary, though today it would take others."""
    prepared, run = make_corpus(tmp_path), {"output_dir": tmp_path / "run", "save_total_limit": 9, "save_steps": 9}
    with monkeypatch.context() as patch:
        patch.setattr(checks, "padded_vocabulary", lambda tokens: 67)
        run_here(prepared, **run, num_train_epochs=1)
    begun = list_checkpoints(tmp_path / "run")
    steps = read_training_state(begun[-1])[0].step
    shown = capsys.readouterr().out
    assert f"steps: {steps} of 320 tokens, 0.9" in shown or f"steps: {steps} of 320 tokens, 1.00" in shown
    for path in begun[1:]:
        shutil.rmtree(path)
    run_here(prepared, **run, resume_from_checkpoint="latest", warmup_steps=1, max_minutes=9)
    kept = f"{steps} steps, 3 of warm-up, as in the checkpoint; --max_minutes does not change them, --max_steps does"
    assert kept in capsys.readouterr().out
    assert read_training_state(list_checkpoints(tmp_path / "run")[-1])[0].step == steps
    assert ClozeBertConfig.from_pretrained(tmp_path / "run").vocab_size == 67


def test_a_resumed_run_with_another_schedule_keeps_its_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Only wsd has the decay_steps that the checkpoint names."""
    prepared, run = make_corpus(tmp_path), {"output_dir": tmp_path / "run", "save_total_limit": 9, "save_steps": 9}
    run_here(prepared, **run, num_train_epochs=1, lr_scheduler_type="wsd", decay_steps=5)
    begun = list_checkpoints(tmp_path / "run")
    steps = read_training_state(begun[-1])[0].step
    for path in begun[1:]:
        shutil.rmtree(path)
    run_here(prepared, **run, resume_from_checkpoint="latest", lr_scheduler_type="linear")
    assert f"{steps} steps, 3 of warm-up, as in the checkpoint" in capsys.readouterr().out
    assert "decay_steps=5 there, decay_steps=None here" in caplog.text
    assert read_training_state(list_checkpoints(tmp_path / "run")[-1])[0].step == steps


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"hidden_size": 10**20}, "hidden_size=100000000000000000000 is too large"),
        *(({"architecture": value}, "must be the name of one") for value in (5, 1.5, True, ["bert"], {"a": 1})),
    ],
)
def test_an_impossible_model_is_refused_in_a_sentence(model: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        make_config(model)
    of_recipe = {key: value for key, value in model.items() if key == "architecture"} or {"model": model}
    (tmp_path / "my.yaml").write_text(json.dumps(of_recipe))
    with pytest.raises(UserError, match=f"my.yaml: .*{message}"):
        make_config(split_settings(str(tmp_path / "my.yaml"), {})[1], recipe=str(tmp_path / "my.yaml"))
