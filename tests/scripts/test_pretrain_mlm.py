"""The pretraining program: recipes and flags, mistakes in one line, and runs as a person starts them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from warm_python import WarmPython

sys.path.append(str(Path(__file__).parent.parent))
from pretraining_helpers import MODEL_FLAGS, REPOSITORY, flags, make_corpus

from clozebert.configuration import list_recipes
from clozebert.scripts._program import parse_run_flags
from clozebert.scripts.pretrain_mlm import main
from clozebert.training.run_settings import split_settings

PROGRAM = REPOSITORY / "scripts" / "pretrain_mlm.py"
SMALL = {**MODEL_FLAGS, "layer_types": "null", "max_seq_length": 40, "global_batch_size": 8, "logging_steps": 1}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("prepared"))


def paths(folder: Path) -> list[str]:
    return ["--corpus", str(folder / "corpus"), "--tokenizer_name", str(folder / "tokenizer")]


def call(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_a_recipe_by_path_with_flags_over_it(python: WarmPython, prepared: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "nano.yaml"  # its own, and not the recipe of that name
    recipe.write_text(
        "architecture: tiny\nmodel: {vocab_size: 67, num_hidden_layers: 2, layer_types: null}\n"
        "max_seq_length: 40\nglobal_batch_size: 8\nper_device_train_batch_size: 8\nmax_steps: 100\nwarmup_steps: 10\n"
        "learning_rate: 1e-3\nmixed_precision: no\n"
    )
    output_dir = tmp_path / "run"
    shown = python.run(
        [PROGRAM, "--config", recipe, *paths(prepared), "--output_dir", output_dir, "--max_steps", "20",
         "--hidden_size", "24", "--num_attention_heads", "3", "--max_grad_norm", "0.5"]
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert "2 steps of warm-up" in shown.stdout, "the warm-up keeps its share of a run made shorter by a flag"
    config = json.loads((output_dir / "config.json").read_text())
    assert (config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]) == (24, 2, 64)
    state = json.loads((output_dir / "checkpoint-20" / "training_state" / "state.json").read_text())
    assert state["arguments"]["learning_rate"] == 1e-3
    assert state["arguments"]["max_grad_norm"] == 0.5
    assert state["precision"] == "no"
    card = (output_dir / "README.md").read_text()
    assert "Recipe `nano.yaml`." in card
    assert str(tmp_path) not in card
    assert json.loads((output_dir / "all_results.json").read_text())["step"] == 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "tinny"], "unknown recipe 'tinny'; did you mean 'tiny'?"),
        (["--config", "qqqq"], "roberta-base, small, tiny (the name of a file ends in .yaml)"),
        (["--config", "absent.yaml"], "recipe file absent.yaml does not exist"),
        (["--config", "tiny", "--learning_rat", "3"], "unknown flag --learning_rat; did you mean --learning_rate?"),
        (["--config", "tiny", "--hidden_sise", "3"], "unknown flag --hidden_sise; did you mean --hidden_size?"),
        (["--architecture", "bert-bass"], "unknown architecture 'bert-bass'; did you mean 'bert-base'?"),
        (["--config", "tiny", "--num_attention_heads", "7"], "hidden_size=256 must be a multiple of"),
        (["--config", "tiny", "--norm_type", "batchnorm"], "norm_type='batchnorm' must be one of"),
        (["--config", "tiny", "--vocab_size", "40"], "rounded up to a multiple of 64; train another tokenizer"),
        (["--config", "tiny", "--norm_bias", "true"], "set it in a recipe file, under `model:`"),
        (["--config", "tiny", "--lr", "3"], "unknown flag --lr; did you mean --learning_rate?"),
        (["--config", "tiny", "--warmup_ratio", "0.1"], "give --warmup_steps a number below 1"),
        (["--config", "tiny", "--max_steps", "3", "--num_train_epochs", "2"], "both say how long the run is"),
        (["--config", "tiny", "--max_steps", "3.5"], "'3.5' must be a whole number"),
        (["--model_type", "bert"], "unknown flag --model_type: give --config NAME, a recipe, such as bert-base"),
        (["--max_steps", "3"], "say what to train: --config NAME for a recipe (bert-base, "),
        (["--config", "nano", "--resume_from_checkpoint", "lastest"], "there is no such folder; 'latest' names"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_before_any_work(
    prepared: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output_dir = tmp_path / "run"
    with pytest.raises((ValueError, OSError, SystemExit)) as caught:
        main([*arguments, *paths(prepared), "--output_dir", str(output_dir)])
    if caught.type is SystemExit:
        assert caught.value.code == 2
        assert capsys.readouterr().err.strip().splitlines()[-1].endswith(message)
    else:
        assert message in str(caught.value)
    assert not output_dir.exists()


def test_another_schedule_takes_the_decay_out_of_phases_too(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    phases = "[{max_steps: 3, decay_steps: 0}, {max_steps: 3, lr_scheduler_type: wsd, decay_steps: 1}]"
    recipe.write_text(f"max_steps: 3\nlr_scheduler_type: wsd\ndecay_steps: 0\nphases: {phases}\n")
    settings, _ = split_settings(str(recipe), {"lr_scheduler_type": "linear"})
    assert [phase.get("decay_steps") for phase in settings["phases"]] == [None, 1]
    assert "decay_steps" not in settings


def test_a_corpus_that_is_named_twice_is_refused(prepared: Path, tmp_path: Path) -> None:
    given = [str(word) for word in paths(prepared)]
    corpus = given[given.index("--corpus") + 1]
    (tmp_path / "link").symlink_to(corpus)
    for again in (corpus, f"{corpus}/", str(tmp_path / "link")):
        with pytest.raises(ValueError, match=r"corpus=.* is given 2 times: once is enough"):
            main([*given, "--corpus", again, "--config", "nano", "--max_steps", "2",
                  "--output_dir", str(tmp_path / "run")])  # fmt: skip


def test_the_program_ends_with_status_2_and_no_traceback(python: WarmPython, prepared: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "typo.yaml"
    command = [PROGRAM, "--config", recipe, *paths(prepared), "--output_dir", tmp_path / "o"]
    recipe.write_text("max_stepz: 3\n")
    done = python.run(command)
    assert done.returncode == 2
    assert done.stderr.strip() == f"error: unknown key 'max_stepz' in recipe {recipe}; did you mean 'max_steps'?"
    recipe.write_text("model: {hiden_size: 3}\n")
    done = python.run(command)
    assert done.returncode == 2
    assert "unknown key 'hiden_size'" in done.stderr
    assert "did you mean 'hidden_size'?" in done.stderr
    for content, message in (
        ("hidden_size: 3", "hidden_size is a field of the model: put it under `model:`"),
        ("model: {learning_rate: 1e-3}", "learning_rate is a field of the run: move it out of `model:`"),
    ):
        recipe.write_text(content)
        assert python.run(command).stderr.strip() == f"error: recipe {recipe}: {message}"
    assert "Traceback" not in done.stderr


def test_a_model_brings_its_own_configuration(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("model_name_or_path: somewhere\n")
    for name, given in (("tiny", {"model_name_or_path": "somewhere"}), (str(recipe), {})):
        with pytest.raises(ValueError, match=r"='somewhere' brings its own configuration: leave out --hidden_size"):
            split_settings(name, {**given, "hidden_size": 12})


def test_flags_are_read_as_recipe_values_are() -> None:
    given = parse_run_flags(
        ["--rope_parameters", "{rope_type: default, rope_theta: 500}", "--hidden_dropout_prob", "1e-6",
         "--qk_norm", "true", "--sliding_window", "null", "--gradient_checkpointing",
         "--report_to", "wandb", "trackio"],
        doc=None, verb="pretrain",
    )  # fmt: skip
    assert given == {
        "rope_parameters": {"rope_type": "default", "rope_theta": 500},
        "hidden_dropout_prob": 1e-6,
        "qk_norm": True,
        "sliding_window": None,
        "gradient_checkpointing": True,
        "report_to": ["wandb", "trackio"],
    }


def test_help_needs_neither_torch_loop_nor_data() -> None:
    code = (
        "import sys\nsys.modules['accelerate'] = sys.modules['datasets'] = sys.modules['clozebert.modeling'] = None\n"
        "from clozebert.scripts.pretrain_mlm import main\nmain(['--help'])"
    )
    shown = call("-c", code).stdout
    for flag in ("--config", "--learning_rate", "--resume_from_checkpoint", "--hidden_size", "--dry_run"):
        assert flag in shown
    assert "(default: None)" not in shown


def check_dry_run(name: str, folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> None:
    main(["--config", name, *paths(folder), "--dry_run", "--disable_tqdm", "--mixed_precision", "no", *flags])
    shown = capsys.readouterr().out
    assert "parameters" in shown
    assert "step 2, loss" in shown


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_passes_a_dry_run_with_one_narrow_layer(
    name: str, prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = ("--hidden_size", "96", "--intermediate_size", "160")
    check_dry_run(name, prepared, capsys, "--num_hidden_layers", "1", *narrow)


@pytest.mark.slow
@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_passes_a_dry_run(name: str, prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_dry_run(name, prepared, capsys)


@pytest.mark.parametrize(
    "command", [["clozebert", "pretrain"], pytest.param(["clozebert.scripts.pretrain_mlm"], marks=pytest.mark.slow)]
)
def test_it_runs_as_a_verb_and_as_a_module(prepared: Path, tmp_path: Path, command: list[str]) -> None:
    values = {**SMALL, "max_steps": 2, "save_steps": 0}
    call("-m", *command, *flags(values), *paths(prepared), "--output_dir", str(tmp_path / "run"))
    assert (tmp_path / "run" / "model.safetensors").is_file()
