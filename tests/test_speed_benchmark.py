"""benchmarks/speed.py: both sides do the same work, and a side that dies says why. Speed is not tested."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

import contender
import gpu
import sides
import speed

LENGTHS = (9, 70, 23, 5, 41, 12)
COMMON = {"hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 37, "vocab_size": 211}
COMMON["initializer_range"] = 0.3  # attention counts
TINY = {
    "modernbert": {**COMMON, "num_hidden_layers": 4, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2},
    "bert": {**COMMON, "num_hidden_layers": 2},
}


@pytest.mark.parametrize("name", sorted(path.stem for path in Path(speed.__file__).parent.glob("*.py")))
def test_a_benchmark_can_be_imported(name, monkeypatch):
    folder = Path(speed.__file__).parent
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "adaptation", raising=False)  # where it is the package's room of that name
    assert Path(importlib.import_module(name).__file__).parent == folder


@pytest.fixture
def specification(tmp_path):
    ids = np.random.default_rng(1).integers(1, 211, sum(LENGTHS))
    return {
        "batches": str(speed.write_batches(tmp_path / "batches.npz", list(LENGTHS), ids)), "rows_per_batch": 3,
        "precision": "no", "device": "cpu", "sparse": True, "keep_memory": False, "dropout": 0.0,
    }  # fmt: skip


def of_side(make, specification, **more):
    specification = {**specification, **more}
    return make(specification, contender.read_batches(specification))


@pytest.mark.parametrize("shape", TINY)
def test_both_sides_train_on_the_same(specification, shape):
    common = {**specification, "shape": shape, "options": TINY[shape]}
    ours, facts = of_side(contender.make_trainer, common, side="ours")
    theirs, their_facts = of_side(contender.make_trainer, common, side="transformers", **speed.peer("sdpa"))
    assert facts == their_facts
    assert facts["tokens"] == sum(LENGTHS)
    assert ours(1) == pytest.approx(theirs(1), abs=1e-5)  # measured: 5e-7
    ours()
    theirs()
    assert ours(1) == pytest.approx(theirs(1), rel=5e-4)  # ours clips the gradient; measured: 6e-5


@pytest.mark.parametrize("name", ["eager", "sdpa", "sdpa sorted"])
def test_both_sides_encode_the_same(specification, name):
    common = {**specification, "shape": "modernbert", "options": TINY["modernbert"]}
    ours, _ = of_side(contender.make_encoder, common, side="ours")
    theirs, _ = of_side(contender.make_encoder, common, side="transformers", **speed.peer(name))
    assert ours() == pytest.approx(theirs(), abs=1e-5)  # measured: 9e-7


def test_peers_by_name():
    assert speed.peer("compile sorted") == {"attention": "sdpa", "compile": True, "sorted": True}
    assert speed.peer("flash_attention_2") == {"attention": "flash_attention_2", "compile": False, "sorted": False}


def test_each_batch_of_mixed_documents_is_padded_to_one_length():
    row = next(row for row in speed.ROWS if row.name == "gpu-train-mixed")
    lengths = np.array(speed.mixed_lengths(row)).reshape(row.times, row.rows)
    assert (lengths.max(axis=1) == 1024).all()
    assert lengths.min() >= 16
    assert 0.35 < lengths.mean() / 1024 < 0.45


def test_the_gpu_program_runs_rows_that_exist(tmp_path):
    blocks = [block.commands for name, block in gpu.blocks(tmp_path).items() if name.startswith("peers")]
    rows = [word for commands in blocks for command in commands for word in command.words[-1:]]
    assert rows == [row.name for row in speed.ROWS if row.device == "cuda"]


# A side that says that it is built, and does as many turns as its specification says.
STAND_IN = """
import json, sys
specification = json.loads(sys.argv[1])
print(json.dumps({"tokens": 10}), flush=True)
for turn, _ in enumerate(sys.stdin):
    if turn == specification["turns"]:
        print("x" * 9000, file=sys.stderr)
        raise MemoryError("no room for it")
    answer = {"seconds": turn + specification["seconds"], "memory": 7, "result": 0.0}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    file = tmp_path / "stand_in.py"
    file.write_text(STAND_IN)
    monkeypatch.setattr(sides, "CONTENDER", file)
    return {"device": "cuda", "turns": 99, "seconds": 1.0}


def test_a_peer_that_dies_is_left_out_and_named(stand_in, capsys):
    specifications = {
        "ours": {**stand_in, "compile": True}, "sdpa": {**stand_in, "turns": 2},
        "compile": {**stand_in, "compile": True, "seconds": 3.0}, "flash": {**stand_in, "turns": 0},
    }  # fmt: skip
    failed = {}
    found = sides.take_turns(specifications, sides.Setting(threads=1, repeats=3), failed)
    # The first turn, of 1 and 3 seconds, does not count.
    assert {name: side["all_seconds"] for name, side in found.items()} == {"ours": [2, 3, 4], "compile": [4, 5, 6]}
    assert found["ours"]["tokens_per_second"] == pytest.approx(10 / 3)
    assert failed == {"sdpa": "MemoryError: no room for it", "flash": "MemoryError: no room for it"}
    said = capsys.readouterr().err
    assert "sdpa is left out" in said
    assert "Traceback" in said
    assert len(said) < 10_000


@pytest.mark.parametrize("died", ["ours", "sdpa"])
def test_nothing_is_measured_without_ours_or_without_a_peer(stand_in, died):
    specifications = {"ours": stand_in, "sdpa": stand_in}
    specifications[died] = {**stand_in, "turns": 1}
    with pytest.raises(sides.SideFailedError, match=r"ended with status 1(.|\n)*no room for it"):
        sides.take_turns(specifications, sides.Setting(threads=1, repeats=3), {})
