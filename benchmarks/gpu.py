#!/usr/bin/env python
"""What works on a GPU and how fast, in blocks of at most ten minutes: `make gpu`.

    python benchmarks/gpu.py                            # all blocks; results are kept after each
    python benchmarks/gpu.py --blocks kernels loop      # some of them
    python benchmarks/gpu.py --list

Needs torch 2.11, transformers 5.10 and a CUDA device, but no network: the corpus is the text of the installed packages.
Each command is a process of its own. Blocks that check run several at a time; those that measure speed or memory have
the machine to themselves. Results are written to benchmarks/results/gpu.json and into the tables of
docs/gpu_results.md, with a list of what failed. Without a CUDA device nothing is run or written.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
RESULTS = HERE / "results" / "gpu.json"
PAGE = REPOSITORY / "docs" / "gpu_results.md"
LIMIT = 600  # seconds of a block
AT_ONCE = 4  # blocks that only check

PYTEST = ["-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider"]
FLAGS = {
    "default": [],
    "eager": ["--torch_compile", "false"],
    "qk_norm": ["--qk_norm", "true"],
    "fp16": ["--mixed_precision", "fp16"],
    "float32": ["--mixed_precision", "no"],
    "adamw": ["--optimizer", "adamw"],
    "residual in float32": ["--bf16_residual", "false"],
    "FlashAttention 4": ["--flash_attention", "FA4"],
    "FlashAttention 4, residual in float32": ["--flash_attention", "FA4", "--bf16_residual", "false"],
    "attention dropout": ["--attention_probs_dropout_prob", "0.1"],
    "gradient checkpointing": ["--gradient_checkpointing", "true"],
}
PROFILES = ("eager", "default", "residual in float32", "FlashAttention 4", "FlashAttention 4, residual in float32")


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of a block: its name, the arguments of `python`, and whether CUDA is hidden from it."""

    name: str
    words: list[str]
    hides_cuda: bool = False


@dataclasses.dataclass(frozen=True)
class Block:
    """Commands in their order. One that `measures` runs alone; others run beside each other."""

    commands: list[Command]
    measures: bool = False


def words(text: str) -> list[str]:
    return text.split()


def blocks(folder: Path) -> dict[str, Block]:
    """All blocks, in order; `folder` is for their output."""
    corpus, tokenizer = str(folder / "corpus"), str(folder / "tokenizer")
    model = ["--config", "modernbert-base", "--corpus", corpus, "--tokenizer_name", tokenizer, "--disable_tqdm"]
    pretrain = ["-m", "clozebert", "pretrain", *model]
    run = words(
        "--global_batch_size 96 --per_device_train_batch_size 48 --max_steps 80 --logging_steps 20 --eval_steps 0"
    )
    run += words("--save_steps 0 --max_eval_batches 2")
    dry = words("--dry_run --global_batch_size 16 --per_device_train_batch_size 8")
    launch = words("-m accelerate.commands.launch --config_file configuration/accelerate_fsdp.yaml --num_processes 1")
    sharded = [*launch, "scripts/pretrain_mlm.py", *model, *run]
    speed = [str(HERE / "speed.py"), "--output", str(folder / "speed-gpu.json"), "--rows"]
    tokenize = words("-m clozebert train-tokenizer --input installed-python --algorithm bpe --vocab_size 32768")
    prepare = words("-m clozebert prepare-corpus --input installed-python --tokenizer_name")
    suite = [*PYTEST, "-n", "8", "-m", "not slow", "tests/modeling", "tests/training"]
    plan = ["-m", "clozebert", "plan", "--config", "modernbert-base", "--corpus", corpus, "--calibrate"]
    known = {
        "corpus": Block([
            Command("tokenizer", [*tokenize, "--output_dir", tokenizer]),
            Command("corpus", [*prepare, tokenizer, "--output_dir", corpus]),
        ]),
        "kernels": Block([Command("kernels", [*PYTEST, "-n", "4", "-m", "gpu", "tests/modeling"])]),
        "suite": Block([Command("suite", suite, hides_cuda=True)]),
        "model": Block(life_of_a_model(folder, [*pretrain, *run])),
    }  # fmt: skip
    known |= {f"flags: {name}": Block([Command(name, [*pretrain, *dry, *more])]) for name, more in FLAGS.items()}
    measured = (
        {f"profile: {name}": [Command(name, [str(HERE / "gpu.py"), "--profile", name])] for name in PROFILES}
        | {
            f"loop: {name}": [Command(name, [*pretrain, *run, *FLAGS[name], "--output_dir", str(folder / name)])]
            for name in ("eager", "default", "adamw", *PROFILES[2:])
        }
        | {
            "plan": [Command("plan", plan)],
            "fsdp": [Command("fsdp", [*sharded, "--output_dir", str(folder / "fsdp")])],
            "peers modernbert": [Command("modernbert", [*speed, "gpu-train-modernbert"])],
            "peers bert": [Command("bert", [*speed, "gpu-train-bert"])],
            "peers mixed": [Command("mixed", [*speed, "gpu-train-mixed"])],
            "peers encode": [Command("encode", [*speed, "gpu-encode-mixed"])],
        }
    )
    known |= {name: Block(commands, measures=True) for name, commands in measured.items()}
    has_package = find_spec("flash_attn") and find_spec("flash_attn.cute")
    return {name: block for name, block in known.items() if has_package or not uses_package(name)}


def uses_package(block: str) -> bool:
    """Whether a block needs flash-attn-4."""
    return "--flash_attention" in FLAGS.get(block.partition(": ")[2], [])


def life_of_a_model(folder: Path, pretrain: list[str]) -> list[Command]:
    """Pretrained in fp16, resumed, scored, fine-tuned to tell kinds of lines in Python, and asked for a prediction."""
    model, classifier, lines = (str(folder / name) for name in ("fp16", "classifier", "lines.jsonl"))
    short = [*pretrain, *words("--max_steps 20 --mixed_precision fp16 --output_dir"), model]
    finetune = ["-m", "clozebert", "finetune-sequence", "--train_file", lines, *words("--num_train_epochs 2")]
    return [
        Command("pretrain, fp16", [*short, *words("--save_steps 10 --max_steps 10")]),
        Command("resume", [*short, "--resume_from_checkpoint", "latest"]),
        Command("evaluate", ["-m", "clozebert", "evaluate", model, "--input", lines]),
        Command("fine-tune", [*finetune, "--model_name_or_path", model, "--output_dir", classifier]),
        Command("predict", ["-m", "clozebert", "predict", "--model_name_or_path", classifier, "--input", lines,
                            "--output_file", str(folder / "predicted.jsonl")]),
    ]  # fmt: skip


def write_lines(path: Path, each: int = 500) -> None:
    """Lines of Python's own library that begin with one of three words, without that word, which is their label."""
    left = dict.fromkeys(("import", "def", "return"), each)
    with path.open("w", encoding="utf-8") as file:
        for source in sorted(Path(os.__file__).parent.glob("*.py")):
            for line in source.read_text(encoding="utf-8", errors="replace").splitlines():
                label, _, text = line.strip().partition(" ")
                if text and left.get(label, 0):
                    left[label] -= 1
                    file.write(json.dumps({"text": text, "label": label}) + "\n")


def run_block(name: str, block: Block, environment: dict[str, str]) -> dict[str, Any]:
    """Run a block; returns the status and seconds of each command, and figures if it measures. Kills it after the time
    limit. It keeps the end of the output of a command that failed or gave no figures."""
    begun, found = time.monotonic(), {}
    for command in block.commands:
        left = LIMIT - (time.monotonic() - begun)
        own = {**environment, "CLOZEBERT_TEST_GPU": "0" if command.hides_cuda else "1"}
        if command.hides_cuda:
            own["CUDA_VISIBLE_DEVICES"] = ""
        started = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, *command.words], cwd=REPOSITORY, env=own, text=True, timeout=max(1.0, left),
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            status, said = done.returncode, done.stdout
        except subprocess.TimeoutExpired as error:
            status, said = 124, error.stdout.decode() if isinstance(error.stdout, bytes) else str(error.stdout or "")
        figures = figures_in(said) if block.measures else {}
        facts = {"status": status, "seconds": round(time.monotonic() - started, 1), **figures}
        if status or (block.measures and not figures):
            facts["said"] = said[-8000:]
        found[command.name] = facts
        print(f"{name}: {command.name}: status {status}, {facts['seconds']} s", flush=True)
    return found


def run_blocks(blocks: dict[str, Block], environment: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each block's name and what it found, as they end: the corpus first, then what checks, then what measures."""
    known = dict(blocks)
    if corpus := known.pop("corpus", None):
        yield "corpus", run_block("corpus", corpus, environment)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        checks = {name: block for name, block in known.items() if not block.measures}
        names = {pool.submit(run_block, name, block, environment): name for name, block in checks.items()}
        for done in as_completed(names):
            yield names[done], done.result()
    for name, block in known.items():
        if block.measures:
            yield name, run_block(name, block, environment)


def figures_in(said: str) -> dict[str, Any]:
    """What a program measured: a JSON object that it printed; or the last loss of a training loop and its tokens/s, the
    median over log intervals (the first includes compilation); or the tokens/s of a plan."""
    if found := json_in(said):
        return found
    if losses := re.findall(r"^step \d+, loss ([^\s,]+)", said, re.MULTILINE):
        found["loss"] = float(losses[-1])
    # The loop prints four digits: 3195 or 3.462e+05.
    speeds = re.findall(r"^step \d+, loss .*tokens_per_second ([^\s,]+)", said, re.MULTILINE)
    if speeds := speeds or re.findall(r"^tokens/s\s+([\d,]+)", said, re.MULTILINE):
        found["tokens_per_second"] = statistics.median(float(speed.replace(",", "")) for speed in speeds)
    return found


def json_in(said: str) -> dict[str, Any]:
    """The last line that is a JSON object; libraries print warnings before and after it."""
    for line in reversed(said.splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(json.JSONDecodeError):
                return json.loads(line)
    return {}


def profile(way: str) -> None:
    """Print the milliseconds of a training step, all and by kind of kernel, and the peak memory, as JSON."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    from clozebert import ClozeBertConfig, ClozeBertForMaskedLM
    from clozebert.modeling.packed import Packed
    from clozebert.training.runtime.flash_attention import flash_attention
    from clozebert.training.runtime.machine import compile_model

    device, flags = torch.device("cuda"), FLAGS[way]
    torch.manual_seed(0)
    model = ClozeBertForMaskedLM(ClozeBertConfig.from_name("modernbert-base")).to(device).train()
    if "--bf16_residual" not in flags:
        model.model.residual_dtype = torch.bfloat16
    if "--torch_compile" not in flags:
        compile_model(model, device)
    tokens = 48 * 1024
    ids = torch.randint(5, 50_000, (1, tokens), device=device)
    chosen = torch.randperm(tokens, device=device)[: tokens * 3 // 10].sort().values
    packed = Packed.from_lengths([1024] * 48, device)
    items = torch.tensor(float(len(chosen)), device=device)
    batch: dict[str, Any] = {
        "input_ids": ids, "packed": packed, "masked_positions": chosen, "labels": ids[0, chosen]
    }  # fmt: skip

    def step() -> Any:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(**batch, num_items_in_batch=items, loss_only=True).loss
        loss.backward()
        model.zero_grad()
        return loss

    def turn(steps: int = 10) -> float:
        """Milliseconds of a step."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(steps):
            step()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / steps

    with flash_attention("FA4" if "--flash_attention" in flags else None, device):
        begun = time.perf_counter()
        loss = step().item()
        first = time.perf_counter() - begun
        turn(3)
        torch.cuda.reset_peak_memory_stats()
        milliseconds = statistics.median(turn() for _ in range(3))
        with profiled(activities=[ProfilerActivity.CUDA]) as trace:
            step()
            torch.cuda.synchronize()
    parts: dict[str, float] = {}
    for event in trace.key_averages():
        kind = kind_of(event.key)
        parts[kind] = parts.get(kind, 0.0) + event.self_device_time_total / 1e3
    found = {
        "milliseconds": milliseconds, "tokens_per_second": 1e3 * tokens / milliseconds, "loss": loss,
        "first_step_seconds": first, "peak_gib": torch.cuda.max_memory_allocated() / 2**30, "parts": parts,
    }  # fmt: skip
    # On a new line: the program that reads this gets what libraries write to stderr in the same stream.
    print(f"\n{json.dumps(found)}", flush=True)


def kind_of(kernel: str) -> str:
    """The kind of a kernel, from its name."""
    name = kernel.lower()
    kinds = {
        "windows": ("key_gradient", "query_gradient", "forward_kernel", "turn_kernel"),
        "attention": ("flash", "fmha", "attn"), "matmuls": ("gemm", "cutlass", "cublas", "nvjet", "xmma"),
        "compiled": ("triton",), "copies": ("memcpy", "memset", "copy"), "norms": ("norm",),
    }  # fmt: skip
    return next((kind for kind, words in kinds.items() if any(word in name for word in words)), "others")


def tables(results: dict[str, Any]) -> list[str]:
    """The measurements and the failures, as Markdown."""
    machine = results["machine"]
    lines = [f"Measured on {machine['gpu']}, torch {machine['torch']}, transformers {machine['transformers']}.", ""]
    lines += ["| command | status | seconds | tokens/s | loss |", "| --- | --- | --- | --- | --- |"]
    failed, profiles = [], []
    for block, commands in results["blocks"].items():
        for name, facts in commands.items():
            speed = f"{facts['tokens_per_second']:,.0f}" if "tokens_per_second" in facts else ""
            loss = f"{facts['loss']:.5g}" if "loss" in facts else ""
            whole = block if block.endswith(name) else f"{block}: {name}"
            cells = (whole, facts["status"], facts["seconds"], speed, loss)
            lines.append(f"| {' | '.join(map(str, cells))} |")
            if facts["status"]:
                failed.append((block, name, facts["said"].strip().splitlines()[-1:] or [""]))
            elif block.startswith("profile") and "parts" in facts:
                profiles.append((name, facts))
            elif block.startswith("profile"):
                failed.append((block, name, ["no figures in what it printed"]))
    if profiles:
        lines += ["", "| step of 48 x 1,024 | ms | tokens/s | loss | first, s | peak, GiB | by kind of kernel, ms |",
                  "| --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for name, step in profiles:
        longest = sorted(step["parts"].items(), key=lambda item: -item[1])
        parts = ", ".join(f"{kind} {value:.1f}" for kind, value in longest)
        cells = (name, f"{step['milliseconds']:.1f}", f"{step['tokens_per_second']:,.0f}", f"{step['loss']:.5f}",
                 f"{step['first_step_seconds']:.0f}", f"{step['peak_gib']:.2f}", parts)  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "What failed:", ""]
    lines += [f"- {block}, {name}: `{last[0][:200]}`" for block, name, last in failed] or ["- nothing"]
    return lines


def is_asked(block: str, asked: list[str]) -> bool:
    """`flags` asks for all of `flags: eager`, `flags: fp16` and so on."""
    return block in asked or block.split(":")[0] in asked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", nargs="+", help="only these; `corpus` comes before all that train")
    parser.add_argument("--list", action="store_true", help="print the blocks and their commands, and run nothing")
    parser.add_argument("--folder", type=Path, help="for corpora and runs (default: a temporary one)")
    parser.add_argument("--profile", choices=PROFILES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.profile:
        profile(arguments.profile)
        return
    folder = arguments.folder or Path(tempfile.gettempdir(), f"clozebert-gpu-{os.getpid()}")
    known = blocks(folder)
    asked = arguments.blocks or list(known)
    if unknown := [name for name in asked if not any(is_asked(block, [name]) for block in known)]:
        parser.error(f"unknown blocks: {', '.join(unknown)}; known: {', '.join(known)}")
    wanted = {name: block for name, block in known.items() if is_asked(name, asked)}
    if arguments.list:
        for name, block in wanted.items():
            print(name, *(f"    python {' '.join(command.words)}" for command in block.commands), sep="\n")
        return
    import torch
    import transformers

    if not torch.cuda.is_available():
        print("no CUDA device here: nothing was run, and nothing is written")
        return
    # This checkout is used as the package, whether it is installed or not.
    packages = folder / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    if not (packages / "clozebert").exists():
        (packages / "clozebert").symlink_to(REPOSITORY)
    path = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    machine = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "transformers": transformers.__version__,
    }  # fmt: skip
    results: dict[str, Any] = {"machine": machine, "blocks": {}}
    if RESULTS.exists() and (before := json.loads(RESULTS.read_text(encoding="utf-8")))["machine"] == machine:
        results = before
    write_lines(folder / "lines.jsonl")
    for name, found in run_blocks(wanted, environment):
        results["blocks"][name] = found
        results["blocks"] = {name: results["blocks"][name] for name in known if name in results["blocks"]}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        from speed_table import put

        put("\n".join(tables(results)), PAGE, marker="measured")


if __name__ == "__main__":
    main()
