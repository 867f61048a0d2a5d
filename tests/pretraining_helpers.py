"""A small corpus with structure to learn, and ways to run pretraining on it, in this process and in others."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from clozebert import ClozeBertConfig
from clozebert.corpus import ShardWriter
from clozebert.corpus.tokenizer import tokenizer_facts

REPOSITORY = Path(__file__).resolve().parent.parent
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB_SIZE = 61
# Two layers of odd sizes, none of which coincide.
MODEL = {
    "vocab_size": 67, "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 52,
    "max_position_embeddings": 48,
}  # fmt: skip
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


def run_here(folder: Path, output_dir: Path, **changes: Any) -> None:
    """Run pretrain_mlm in this process; it must end well."""
    from clozebert.scripts.pretrain_mlm import main

    main(flags({**MODEL, **settings(folder, output_dir=output_dir, **changes)}))


def run_and_die(folder: Path, output_dir: Path, *, batch: int, how: int = signal.SIGKILL, **changes: Any) -> int:
    """Run pretrain_mlm in a process that sends itself a signal in the forward pass of a training batch.

    Args:
        batch: which micro-batch of this process, counted from 1.

    Returns:
        The exit status; -9 for SIGKILL.
    """

    def work() -> None:
        from clozebert import ClozeBertForMaskedLM
        from clozebert.scripts._program import run

        forward, calls = ClozeBertForMaskedLM.forward, [0]

        def dying(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls[0] += self.training
            if self.training and calls[0] == batch:
                os.kill(os.getpid(), how)
            return forward(self, *args, **kwargs)

        ClozeBertForMaskedLM.forward = dying  # type: ignore[method-assign]
        run(lambda: run_here(folder, output_dir, **changes))

    return in_a_fork(work)


def in_a_fork(work: Callable[[], None], *, timeout: float = 120) -> int:
    """The exit status of a process of its own that does `work`: a fork, which needs no second to import torch."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(timeout)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError(f"still at work after {timeout} seconds")
    assert process.exitcode is not None
    return process.exitcode


def run_program(
    folder: Path, output_dir: Path, *, prelude: str = "", processes: int = 1, check: bool = True, **changes: Any
) -> subprocess.CompletedProcess[str]:
    """Run pretrain_mlm in processes of its own.

    Args:
        prelude: Python code that runs in each process before the program.
    """
    arguments = flags({**MODEL, **settings(folder, output_dir=output_dir, **changes)})
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
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def log_of(output_dir: Path) -> list[dict[str, Any]]:
    """The entries of a run's log, without those fields that depend on the clock."""
    lines = (output_dir / "training_log.jsonl").read_text().splitlines()
    timed = ("tokens_per_second", "data_wait", "model_flops_per_second", "model_flops_share")
    return [{key: value for key, value in json.loads(line).items() if key not in timed} for line in lines]


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
