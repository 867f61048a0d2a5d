"""A small corpus with structure to learn, and ways to run pretraining on it, in this process and in others."""

import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn import functional as F
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast
from warm_python import WarmPython

from clozebert import ClozeBertConfig, ClozeBertForMaskedLM
from clozebert.corpus import ShardWriter
from clozebert.corpus.tokenizer import tokenizer_facts

REPOSITORY = Path(__file__).resolve().parent.parent
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB_SIZE = 61
# Two layers of odd sizes, none of which coincide.
MODEL = {
    "vocab_size": 64, "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 52,
    "max_position_embeddings": 48,
}  # fmt: skip
# The vocabulary of a run is the tokenizer's.
MODEL_FLAGS = {name: value for name, value in MODEL.items() if name != "vocab_size"}
RUN: dict[str, Any] = {
    "max_seq_length": 40, "global_batch_size": 8, "per_device_train_batch_size": 4, "learning_rate": 5e-3,
    "warmup_steps": 3, "mixed_precision": "no", "logging_steps": 1, "disable_tqdm": True, "full_determinism": True,
}  # fmt: skip


def make_tokenizer(words: int) -> PreTrainedTokenizerFast:
    """A tokenizer of the special tokens and `words` words w0, w1, …"""
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *(f"w{word}" for word in range(words))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **dict(zip(names, SPECIAL, strict=True)))


def make_corpus(folder: Path, *, documents: int = 150, seed: int = 0) -> Path:
    """Write folder/tokenizer and folder/corpus: in every document, each word follows from the one before it."""
    tokenizer = make_tokenizer(VOCAB_SIZE - len(SPECIAL))
    tokenizer.save_pretrained(folder / "tokenizer")
    draws = np.random.default_rng(seed)
    for split, count in (("train", documents), ("validation", 12)):
        writer = ShardWriter(folder / "corpus" / split, vocab_size=VOCAB_SIZE)
        for _ in range(count):
            length = int(draws.integers(3, 90))
            ids = 5 + (draws.integers(0, 7) + 3 * np.arange(length)) % (VOCAB_SIZE - 5)
            writer.append(ids, np.ones(length, dtype=bool))
        writer.close({"tokenizer": tokenizer_facts(tokenizer)})
    return folder


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """The fields of PretrainingArguments for a run on `folder`."""
    paths = {"corpus": str(folder / "corpus"), "tokenizer_name": str(folder / "tokenizer")}
    return {**RUN, **paths, **changes}


def model_config(**changes: Any) -> ClozeBertConfig:
    return ClozeBertConfig(**{**MODEL, **changes})


def flags(values: dict[str, Any]) -> list[str]:
    """`{"max_steps": 3}` as `--max_steps 3`; lists of paths or numbers as several words, others as YAML."""
    found = []
    for key, value in values.items():
        if isinstance(value, list) and not any(isinstance(item, dict) for item in value):
            found += [f"--{key}", *map(str, value)]
        else:
            found += [f"--{key}", json.dumps(value) if isinstance(value, (list, dict)) else str(value)]
    return found


def dense_loss(model: ClozeBertForMaskedLM, batch: Any) -> torch.Tensor:
    """-sum log p, one document at a time, from all logits: an independent way to the same number."""
    ids, labels = torch.from_numpy(batch.input_ids[0]), torch.full(batch.input_ids.shape[1:], -100)
    labels[torch.from_numpy(batch.masked_positions)] = torch.from_numpy(batch.labels)
    total = torch.zeros((), dtype=next(model.parameters()).dtype)
    for begin, end in zip(batch.cu_seq_lens[:-1], batch.cu_seq_lens[1:], strict=True):
        logits = model(ids[begin:end][None]).logits[0]
        total = total + F.cross_entropy(logits, labels[begin:end], ignore_index=-100, reduction="sum")
    return total


def run_here(folder: Path, output_dir: Path, **changes: Any) -> None:
    """Run pretrain_mlm in this process; it must end well."""
    from clozebert.scripts.pretrain_mlm import main

    main(flags({**MODEL_FLAGS, **settings(folder, output_dir=output_dir, **changes)}))


def run_forked(
    folder: Path,
    output_dir: Path,
    *,
    processes: int = 1,
    die_at: int | None = None,
    how: int = signal.SIGKILL,
    only_rank: int | None = None,
    prelude: Callable[[int], None] | None = None,
    **changes: Any,
) -> list[int]:
    """Run pretrain_mlm in forks of this process, which need no seconds to import torch, as a launcher would.

    Each writes which rows its batches hold, by step and place in the global batch, into OUTPUT_DIR_rows/.

    Args:
        die_at: the micro-batch, counted from 1 in each process, in whose forward pass a process sends itself a signal.
        how: which signal.
        only_rank: the process that does so; None: all.
        prelude: called in each process first, with its rank.

    Returns:
        Their exit statuses; -9 for SIGKILL. Where one process ends by itself another may end with an error.
    """

    def work(rank: int) -> None:
        from accelerate.state import AcceleratorState

        from clozebert.scripts._program import run

        AcceleratorState._reset_state(reset_partial_state=True)
        if prelude is not None:
            prelude(rank)
        if die_at is not None and only_rank in (None, rank):
            _signal_in_forward(die_at, how)
        rows = output_dir.with_name(f"{output_dir.name}_rows")
        rows.mkdir(exist_ok=True)
        _write_rows(rows / f"{os.getpid()}.jsonl")
        run(lambda: run_here(folder, output_dir, **changes))

    return in_forks(work, launcher_environments(processes))


def launcher_environments(processes: int) -> list[dict[str, str]]:
    """What a launcher adds to the environment of each process; nothing for one."""
    if processes == 1:
        return [{}]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        "WORLD_SIZE": processes,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "ACCELERATE_USE_CPU": "true",
    }
    return [
        {key: str(value) for key, value in {**common, "RANK": rank, "LOCAL_RANK": rank}.items()}
        for rank in range(processes)
    ]


def _signal_in_forward(batch: int, number: int) -> None:
    from clozebert.training import loop

    forward, settle, calls = ClozeBertForMaskedLM.forward, loop.settle_buckets, [0]

    def signalling(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls[0] += self.training
        if self.training and calls[0] == batch:
            os.kill(os.getpid(), number)
        return forward(self, *args, **kwargs)

    def settling(*args: Any, **kwargs: Any) -> None:
        before, calls[0] = calls[0], -batch  # its micro-batch is of no step
        settle(*args, **kwargs)
        calls[0] = before

    ClozeBertForMaskedLM.forward = signalling  # type: ignore[method-assign]
    loop.settle_buckets = settling


def _write_rows(path: Path) -> None:
    from clozebert.corpus import BatchStream

    batch_of = BatchStream.batch

    def writing(self: Any, step: int, **cut: int) -> Any:
        batch = batch_of(self, step, **cut)
        place = cut["micro_batch"] * cut["world_size"] + cut["rank"]
        with path.open("a") as file:
            file.write(json.dumps([step, place, batch.sample_ids.tolist()]) + "\n")
        return batch

    BatchStream.batch = writing  # type: ignore[method-assign]


def rows_of(output_dir: Path) -> dict[int, list[int]]:
    """The rows that each step of a run's newest processes were made of, in order."""
    chunks: dict[int, dict[int, list[int]]] = {}
    files = sorted(
        output_dir.with_name(f"{output_dir.name}_rows").glob("*.jsonl"), key=lambda path: path.stat().st_mtime
    )
    for path in files:
        for line in path.read_text().splitlines():
            step, place, ids = json.loads(line)
            chunks.setdefault(step, {})[place] = ids
    return {step: [row for place in sorted(parts) for row in parts[place]] for step, parts in chunks.items()}


def in_forks(work: Callable[[int], None], environments: list[dict[str, str]], *, timeout: float = 300) -> list[int]:
    """The exit statuses of processes that do `work(rank)`, each with its additions to the environment."""
    with contextlib.suppress(ImportError):  # what a run imports at its end, once for all forks
        importlib.import_module("matplotlib.backends.backend_agg")

    def begin(rank: int) -> None:
        os.environ.update(environments[rank])
        torch.set_num_threads(1)
        # tqdm's own lock is one for all forks: a process that is killed while it holds it would stop all later ones.
        tqdm.set_lock(threading.RLock())
        work(rank)

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=begin, args=(rank,)) for rank in range(len(environments))]
    for process in processes:
        process.start()
    deadline = time.monotonic() + timeout
    for process in processes:
        process.join(max(0.1, deadline - time.monotonic()))
    late = [process for process in processes if process.is_alive()]
    for process in late:
        process.kill()
        process.join()
    assert not late, f"{len(late)} of {len(processes)} processes were still at work after {timeout} seconds"
    return [int(process.exitcode or 0) for process in processes]


def run_program(
    folder: Path,
    output_dir: Path,
    *,
    prelude: str = "",
    processes: int = 1,
    check: bool = True,
    launcher: WarmPython | None = None,
    **changes: Any,
) -> subprocess.CompletedProcess[str]:
    """Run pretrain_mlm in processes of its own.

    Args:
        prelude: Python code that runs in each process before the program.
        launcher: starts `accelerate launch` for several processes, which are Pythons that have imported nothing.
    """
    arguments = flags({**MODEL_FLAGS, **settings(folder, output_dir=output_dir, **changes)})
    program = output_dir.with_name(f"{output_dir.name}_program.py")
    program.write_text(f"{prelude}\nfrom clozebert.scripts._program import run\n"
                       f"from clozebert.scripts.pretrain_mlm import main\nrun(main)\n")  # fmt: skip
    command = [sys.executable, str(program), *arguments]
    if processes > 1:
        launch = REPOSITORY / "configuration" / "accelerate_cpu.yaml"
        command[:1] = [
            sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(launch),
            "--num_processes", str(processes),
        ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if launcher is None:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    else:
        done = launcher.run(command[1:], env=environment)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def log_of(output_dir: Path) -> list[dict[str, Any]]:
    """The entries of a run's log, without what depends on the clock: some fields, and steps that were counted again."""
    lines = (output_dir / "training_log.jsonl").read_text().splitlines()
    timed = ("tokens_per_second", "data_wait", "model_flops_per_second", "model_flops_share")
    entries = [{key: value for key, value in json.loads(line).items() if key not in timed} for line in lines]
    return [entry for entry in entries if not str(entry.get("event")).startswith("max_minutes=")]


def losses_of(output_dir: Path) -> list[float]:
    return [entry["loss"] for entry in log_of(output_dir) if "loss" in entry]


def assert_same_bits(one: Path, other: Path, *, step: int) -> None:
    """Final weights, the last checkpoint's weights and optimizer state, and everything logged are equal to the bit."""
    names = (
        "model.safetensors",
        f"checkpoint-{step}/model.safetensors",
        f"checkpoint-{step}/training_state/optimizer.safetensors",
    )
    for name in names:
        mine, theirs = load_file(one / name), load_file(other / name)
        assert mine.keys() == theirs.keys()
        assert len(mine) > 5
        assert all((mine[key] == theirs[key]).all() for key in mine), name
    assert log_of(one) == log_of(other)


def changed_weights(folder: Path, flag: str, value: str, *, continued: bool, **model: Any) -> list[str]:
    """The weights that begin otherwise with the setting `flag` as `value` than as `random`, in a run of one step.

    Args:
        continued: the runs go on from a trained model.
        model: flags of the model.
    """
    from clozebert.scripts.pretrain_mlm import main

    common = {"max_steps": 1, "learning_rate": 0.0, "warmup_steps": 0, "seed": 3, "eval_steps": 0}
    make_corpus(folder)
    started_from = {**MODEL_FLAGS, **model}
    if continued:
        run_here(folder, folder / "base", **model, **common)
        started_from = {"model_name_or_path": str(folder / "base")}
    tables = []
    for begins in ("random", value):
        # In a recipe, as such a flag is refused beside a model.
        recipe = folder / f"{begins}.yaml"
        recipe.write_text(f"{flag}: {begins}\n")
        given = settings(folder, output_dir=folder / begins, config=recipe, **common)
        main(flags({**started_from, **given}))
        tables.append(load_file(folder / begins / "model.safetensors"))
    return sorted(name for name, weight in tables[0].items() if not torch.equal(weight, tables[1][name]))


def check_killed_run(folder: Path, **changes: Any) -> None:
    """A run that is killed after four of six steps ends with the weights of one that is not."""
    make_corpus(folder)
    common = {"max_steps": 6, "save_steps": 2, "eval_steps": 0, **changes}
    run_here(folder, folder / "whole", **common)
    run_forked(folder, folder / "parts", die_at=4, resume_from_checkpoint="latest", **common)
    assert not (folder / "parts" / "model.safetensors").exists()
    run_here(folder, folder / "parts", resume_from_checkpoint="latest", **common)
    whole, parts = (load_file(folder / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())
