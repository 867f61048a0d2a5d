"""A malicious pickle under every name that some program reads: none of ours runs it."""

import contextlib
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from finetuning_helpers import write_sentiment
from pretraining_helpers import MODEL_FLAGS, flags, settings
from test_names import OPENERS

from clozebert.corpus import Corpus
from clozebert.utils.errors import UserError

REPOSITORY = Path(__file__).resolve().parents[2]
# What transformers, Trainer, Accelerate, peft, datasets, joblib and others call their pickles.
NAMES = [
    "pytorch_model.bin", "pytorch_model-00001-of-00001.bin", "model.bin", "model.pt", "model.pth", "model.pkl",
    "model.ckpt", "adapter_model.bin", "optimizer.pt", "optimizer.bin", "optimizer.pkl", "scheduler.pt",
    "scheduler.bin", "scaler.pt", "sampler.bin", "dl_state_dict.bin", "random_states_0.pkl", "rng_state.pth",
    "rng_state_0.pth", "training_args.bin", "trainer_state.bin", "custom_checkpoint_0.pkl", "state.pkl", "state.pt",
    "pytorch_model_fsdp.bin", "vocab.pkl", "vocab.bin", "vocab.pt", "tokenizer.pkl", "tokenizer.pickle",
    "tokenizer.bin", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "dataset.pkl", "data.pkl",
    "cache.pkl", "tokens-00000.npy", "documents.npy", "features.pt", "cached_train.pt", "model.joblib",
    "embeddings.npy", "modules.pkl", ".metadata", "__0_0.distcp", "fingerprint.pkl", "preprocessor.pkl",
    "image_processor.pkl",
]  # fmt: skip


class Malicious:
    """Creates a file when it is unpickled."""

    def __init__(self, ran: Path) -> None:
        self.ran = ran

    def __reduce__(self) -> tuple[Callable, tuple[str, str]]:
        return open, (str(self.ran), "w")


def contents(ran: Path) -> list[bytes]:
    """The pickle as it is, as torch.save writes it, as NumPy writes objects."""
    import numpy as np

    plain = pickle.dumps({"weight": Malicious(ran)})
    as_torch, as_numpy = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(as_torch, "w") as archive:
        archive.writestr("archive/data.pkl", plain)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    holder = np.empty(1, dtype=object)
    holder[0] = Malicious(ran)
    np.save(as_numpy, holder, allow_pickle=True)
    return [plain, as_torch.getvalue(), as_numpy.getvalue()]


def plant(folder: Path, ran: Path, kind: int) -> None:
    """Put the pickle beside everything that lies there, and into the sub-folders."""
    for place in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        for name in NAMES:
            if not (place / name).exists():
                (place / name).write_bytes(contents(ran)[kind])


def test_the_pickles_run_where_they_are_loaded(tmp_path: Path) -> None:
    """So that a test that finds nothing has looked for something."""
    import numpy as np

    for kind, load in enumerate(
        (
            pickle.loads,
            lambda content: torch.load(io.BytesIO(content), weights_only=False),
            lambda content: np.load(io.BytesIO(content), allow_pickle=True),
        )
    ):
        ran = tmp_path / str(kind)
        load(contents(ran)[kind])
        assert ran.exists()


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_no_opener_runs_a_pickle_beside_a_model(model: Path, tmp_path: Path, kind: int) -> None:
    ran = tmp_path / "ran"
    plant(model, ran, kind)
    for name, opener in OPENERS.items():
        if name != "publish":  # in the deep test: it starts a process
            opener(model)
    assert not ran.exists()


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_a_model_that_is_a_pickle_alone_is_refused(model: Path, tmp_path: Path, kind: int) -> None:
    ran = tmp_path / "ran"
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(contents(ran)[kind])
    for name, opener in OPENERS.items():
        if "tokenizer" in name:
            opener(model)  # which reads no weights
            continue
        with pytest.raises(UserError, match="is a pickle, which can run code when it is read"):
            opener(model)
    assert not ran.exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_pickle_under_another_name_is_refused(model: Path, tmp_path: Path, name: str) -> None:
    ran = tmp_path / "ran"
    for content in contents(ran):
        (model / name).write_bytes(content)
        for opener in OPENERS.values():
            with contextlib.suppress(UserError):
                opener(model)
        assert not ran.exists()


def test_no_pickle_in_a_corpus_is_read(corpus: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    plant(corpus, ran, 0)
    Corpus(corpus).document(0)
    for path in map((corpus / "train").joinpath, Corpus(corpus).files):
        right = path.read_bytes()
        for content in contents(ran):
            path.write_bytes(content)
            with pytest.raises(UserError):
                Corpus(corpus)
        path.write_bytes(right)
    assert not ran.exists()


def test_a_fine_tuning_checkpoint_with_a_pickle_in_it_is_refused_in_one_line(model: Path, tmp_path: Path) -> None:
    """Under each name that Trainer reads, and in place of what it reads as JSON and tensors."""
    from clozebert.scripts.finetune_sequence_classification import main

    table, out = write_sentiment(tmp_path / "a.csv", rows=24), tmp_path / "tuned"
    run = ["--model_name_or_path", str(model), "--train_file", str(table), "--num_train_epochs", "1"]
    run += ["--output_dir", str(out), "--learning_rate", "1e-3", "--mixed_precision", "no"]
    main(run)
    (checkpoint,) = out.glob("checkpoint-*")
    names = {path.name: path.read_bytes() for path in checkpoint.iterdir() if path.is_file()}
    read = {"model.safetensors", "config.json", "optimizer.pt", "scheduler.pt", "trainer_state.json"}
    assert read <= names.keys()
    for number, name in enumerate((*sorted(read), "pytorch_model_fsdp.bin")):
        (checkpoint / name).write_bytes(contents(tmp_path / "ran")[number % 2])
        with pytest.raises(UserError, match=f"resume_from_checkpoint.*{checkpoint.name}"):
            main([*run, "--resume_from_checkpoint", str(checkpoint)])
        (checkpoint / name).unlink() if name not in names else (checkpoint / name).write_bytes(names[name])
    assert not (tmp_path / "ran").exists()
    main([*run, "--resume_from_checkpoint", str(checkpoint)])


# Every command -------------------------------------------------------------------------------------------------------

RUN = """
import importlib, io, json, sys, traceback
from clozebert.__main__ import PROGRAMS
from clozebert.utils.errors import UserError
sys.stdin = io.StringIO("y\\n" * 100)
said = {}
for number, (verb, arguments) in enumerate(json.load(open(sys.argv[1]))):
    try:
        importlib.import_module(f"clozebert.scripts.{PROGRAMS[verb][0]}").main(arguments)
        said[f"{number} {verb}"] = "ended well"
    except (UserError, SystemExit) as error:
        said[f"{number} {verb}"] = f"refused: {error}"
    except BaseException as error:
        said[f"{number} {verb}"] = "traceback: " + "".join(traceback.format_exception(error))[-600:]
json.dump(said, open(sys.argv[2], "w"))
"""


def run_all(commands: list[tuple[str, list[str]]], tmp_path: Path) -> dict[str, str]:
    """Run programs one after another in a process of their own; what came of each."""
    listed, said = tmp_path / "commands.json", tmp_path / "said.json"
    listed.write_text(json.dumps(commands))
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    environment["HF_HOME"] = str(tmp_path / "hf")
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(listed), str(said)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert said.exists(), done.stderr[-3000:]
    return json.loads(said.read_text())


@pytest.mark.faults
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_no_command_runs_a_pickle_from_any_folder(
    corpus_folder: Path, saved_model: Path, tmp_path: Path, kind: int, figure: Callable[[str, Any], None]
) -> None:
    """Every program on folders of which each holds a pickle under each of the names, resumed runs among them."""
    ran, text = tmp_path / "ran", tmp_path / "text"
    for folder in ("corpus", "tokenizer"):
        shutil.copytree(corpus_folder / folder, tmp_path / folder)
    model = Path(shutil.copytree(saved_model, tmp_path / "model"))
    text.mkdir()
    (text / "a.txt").write_text("\n\n".join("the river is long , stone of the place" for _ in range(30)))
    table = write_sentiment(tmp_path / "a.csv", rows=24)
    (tmp_path / "tags.jsonl").write_text('{"tokens": ["the", "river"], "tags": ["O", "B-LOC"]}\n' * 8)
    (tmp_path / "blimp.jsonl").write_text('{"sentence_good": "the river is long", "sentence_bad": "long the is"}\n')
    run = {
        **MODEL_FLAGS,
        **settings(tmp_path, output_dir=tmp_path / "run", max_steps=4, save_steps=2, mixed_precision="no"),
    }
    pretrain = ("pretrain", [*flags(run), "--use_cpu"])
    tuning = ["--model_name_or_path", str(model), "--train_file", str(table), "--num_train_epochs", "2"]
    tuning += ["--output_dir", str(tmp_path / "tuned"), "--learning_rate", "1e-3"]
    first = run_all([pretrain, ("finetune-sequence", tuning)], tmp_path)
    assert set(first.values()) == {"ended well"}, first
    for folder in ("corpus", "tokenizer", "model", "run", "tuned", "text", "cache"):
        if (tmp_path / folder).exists():
            plant(tmp_path / folder, ran, kind)
    for name in NAMES:
        if (text / name).exists():
            (text / name).unlink()  # as text they are no text; see below
    out = lambda name: ["--output_dir", str(tmp_path / "out" / name)]  # noqa: E731
    longer = {**run, "max_steps": 8}
    commands: list[tuple[str, list[str]]] = [
        ("train-tokenizer", ["--input", str(text), "--vocab_size", "150", *out("tokenizer")]),
        ("prepare-corpus", ["--input", str(text), "--tokenizer_name", str(tmp_path / "tokenizer"), *out("corpus")]),
        ("check", [str(tmp_path / "corpus")]),
        ("check", [str(tmp_path / "run")]),
        ("check", [str(model)]),
        ("pretrain", [*flags({**longer, "resume_from_checkpoint": "latest"}), "--use_cpu"]),
        ("plan", [*flags({**MODEL_FLAGS, "max_steps": 4}), "--corpus", str(tmp_path / "corpus"), "--device", "h100"]),
        ("evaluate", ["--model_name_or_path", str(tmp_path / "run"), "--corpus", str(tmp_path / "corpus")]),
        ("evaluate", ["--model_name_or_path", str(model), "--blimp", str(tmp_path / "blimp.jsonl")]),
        ("describe", [str(model)]),
        ("describe", [str(model), "--text", "the river", "--output_file", str(tmp_path / "map.png")]),
        ("finetune-sequence", [*tuning, "--resume_from_checkpoint", "latest"]),
        ("finetune-token", [*tuning[:2], "--train_file", str(tmp_path / "tags.jsonl"), *out("t")]),
        ("predict", ["--model_name_or_path", str(tmp_path / "tuned"), "--input", str(table)]),
        ("convert", ["--input", str(model), "--to", "native", *out("native")]),
        ("convert", ["--input", str(model), "--to", "clozebert", *out("ours")]),
        ("grow", ["--model_name_or_path", str(model), "--input", str(text), "--num_hidden_layers", "4", *out("grown")]),
        ("publish", [str(model), "--repo_id", "org/name", "--dry_run", *out("published")]),
        ("publish", [str(tmp_path / "run"), "--repo_id", "org/name", "--dry_run", *out("published-run")]),
    ]  # fmt: skip
    said = run_all(commands, tmp_path)
    for name in NAMES:  # as input
        (text / name).write_bytes(contents(ran)[kind])
    said |= run_all(
        [("prepare-corpus", ["--input", str(text / name), *commands[1][1][2:]]) for name in NAMES], tmp_path
    )
    tracebacks = {verb: end for verb, end in said.items() if end.startswith("traceback")}
    figure(
        f"pickles, form {kind}",
        f"{int(ran.exists())} executed by {len(said)} commands on {len(NAMES)} names in every folder, "
        f"{len(tracebacks)} tracebacks",
    )
    assert not ran.exists()
    assert tracebacks == {}
    published = {path.name for path in (tmp_path / "out").rglob("published*/**/*")}
    assert not published & set(NAMES), "none is passed on"
