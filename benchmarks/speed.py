#!/usr/bin/env python
"""Speed and memory compared with transformers' BERT and ModernBERT on this machine: the table of docs/speed.md.

    python benchmarks/speed.py --output benchmarks/results/speed-cpu.json        # all rows, about half an hour
    python benchmarks/speed.py --rows train-bert encode-full --repeats 3         # some of them
    python benchmarks/speed.py --float32 --output benchmarks/results/speed-cpu-avx2.json    # as CPUs without bf16 work
    python benchmarks/speed.py --render benchmarks/results/speed-cpu.json --into docs/speed.md    # table and plot

Every side is a separate process (contender.py). After a warm-up turn, they take turns for `repeats` rounds; the figures
are medians. transformers' models are measured with eager attention, sdpa, and sdpa compiled, and the table shows the
best. It is measured again in a process that keeps freed memory, as clozebert's programs do, since that alone makes a
large difference. A matmul takes turns with them to measure the machine's peak at the same time; our share of it is
reported. Sentences are those of English EWT (`--sentences`, a CoNLL-U file), shuffled.

On a machine with a GPU, its rows run, too: three turns of ten steps; the sides that compile warm up at the same time.
There `flash_attention_2` is a peer if the package flash_attn is installed. A peer that fails is left out, and the row
shows the last line of its output.

`--float32` gives the second table: float32, with freed memory kept on both sides. A CPU with bf16 in hardware is
restricted to AVX2 instructions (AVX2_ONLY in sides.py). That shows the order of magnitude, and the table says so.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sides import Setting, take_turns
from speed_table import draw, put, render
from transformers.utils import is_flash_attn_2_available

HERE = Path(__file__).parent
EWT = HERE.parent.parent / "shared" / "data" / "tok_ud_english_ewt" / "en_ewt-ud-train.conllu"
# The target ratios in float32, with freed memory kept on both sides.
WANTED_IN_FLOAT32 = {
    "train-bert": 1.3, "train-bert-no-dropout": 1.3, "train-modernbert": 1.1, "train-sentences-bert": 3.5,
    "train-sentences-modernbert": 2.5, "encode-sentences": 2.5, "encode-full": 1.0, "encode-8192": 3.0,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of the table: what both sides do, and the target ratio (theirs / ours)."""

    name: str
    text: str
    work: str
    shape: str
    batches: str  # "full": ROWS x LENGTH; "mixed": documents of at most LENGTH; "sentences"
    rows: int = 16
    length: int = 128
    times: int = 1  # batches in a turn
    their_dropout: float = 0.0
    attentions: tuple[str, ...] = ("eager", "sdpa", "compile")  # their sides: see `peer`
    vocab_size: int | None = None
    sparse: bool = True
    figure: str = "seconds"  # or "memory"
    device: str = "cpu"
    wanted: float = 1.0
    most_repeats: int = 100


ON_GPU = ("sdpa", "flash_attention_2", "compile")
ROWS = [
    Row("train-bert", "training step, BERT-base, 16 x 128, BERT with dropout 0.1", "train", "bert", "full",
        their_dropout=0.1, wanted=2.5),
    Row("train-bert-no-dropout", "training step, BERT-base, 16 x 128, no dropout", "train", "bert", "full", wanted=1.8),
    Row("train-modernbert", "training step, ModernBERT-base, 16 x 128", "train", "modernbert", "full", wanted=1.3),
    Row("train-sentences-bert", "training on sentences, BERT-base", "train", "bert", "sentences", rows=64,
        their_dropout=0.1, attentions=("sdpa", "compile"), wanted=6.0, most_repeats=2),
    Row("train-sentences-modernbert", "training on sentences, ModernBERT-base", "train", "modernbert", "sentences",
        rows=64, attentions=("sdpa", "compile"), wanted=4.0, most_repeats=2),
    Row("encode-sentences", "encoding sentences, BERT-base", "encode", "bert", "sentences", rows=64, wanted=3.2,
        most_repeats=3),
    Row("encode-full", "encoding, BERT-base, 16 x 128", "encode", "bert", "full", wanted=1.1),
    Row("encode-8192", "encoding, ModernBERT-base, 1 x 8,192", "encode", "modernbert", "full", rows=1, length=8192,
        attentions=("sdpa", "compile"), wanted=3.0, most_repeats=2),
    Row("encode-8192-memory", "the same, peak memory", "encode", "modernbert", "full", rows=1, length=8192,
        attentions=("sdpa", "compile"), figure="memory", wanted=2.0, most_repeats=1),
    Row("train-memory", "peak memory of a training step, vocabulary 50,368, 16 x 512, BERT-base", "train", "bert",
        "full", length=512, vocab_size=50_368, attentions=("sdpa", "compile"), figure="memory", wanted=2.0,
        most_repeats=1),
    Row("gpu-train-modernbert", "ten training steps, ModernBERT-base, 32 x 1,024, GPU", "train", "modernbert", "full",
        rows=32, length=1024, times=10, attentions=ON_GPU, device="cuda", wanted=1.5, most_repeats=3),
    Row("gpu-train-bert", "ten training steps, BERT-base, 64 x 512, GPU", "train", "bert", "full", rows=64, length=512,
        times=10, attentions=ON_GPU, device="cuda", wanted=1.5, most_repeats=3),
    Row("gpu-train-mixed", "ten training steps, ModernBERT-base, 32 documents of 16 to 1,024 tokens, GPU", "train",
        "modernbert", "mixed", rows=32, length=1024, times=10, attentions=ON_GPU, device="cuda", wanted=2.5,
        most_repeats=3),
    Row("gpu-encode-mixed", "encoding 2,048 documents of 16 to 1,024 tokens, ModernBERT-base, GPU", "encode",
        "modernbert", "mixed", rows=32, length=1024, times=64, device="cuda", wanted=1.2, most_repeats=3,
        attentions=("sdpa", "sdpa sorted", "flash_attention_2 sorted", "compile sorted")),
]  # fmt: skip


def measure(row: Row, batches: Path, setting: Setting) -> dict[str, Any]:
    """Measure all sides of a row, in turns."""
    common = {
        "work": row.work, "shape": row.shape, "batches": str(batches), "rows_per_batch": row.rows, "sparse": row.sparse,
        "device": row.device, "precision": setting.precision,
        "options": {"vocab_size": row.vocab_size} if row.vocab_size else {},
    }  # fmt: skip
    # Ours compiles where `clozebert pretrain` does.
    ours = {"side": "ours", "compile": row.work == "train"}
    keeps = row.figure != "memory"  # memory from building the model would be kept
    ours["keep_memory"] = keeps
    specifications = {"ours": {**common, **ours}}
    attentions = tuple(name for name in row.attentions if "flash" not in name or is_flash_attn_2_available())
    if setting.float32 and row.work == "train" and row.batches == "sentences":
        # One attention only: all sides keep their memory, 12 GB each with padding. In bf16 sdpa was the fastest.
        attentions = ("sdpa",)
    for attention in attentions:
        specifications[attention] = {
            **common, **peer(attention), "side": "transformers", "dropout": row.their_dropout,
            "keep_memory": keeps and setting.float32,
        }  # fmt: skip
    has_peak = row.figure == "seconds" and row.batches == "full"
    if has_peak:
        specifications["matmul"] = {
            "work": "matmul", "device": row.device, "precision": setting.precision, "keep_memory": True,
        }  # fmt: skip
    setting = dataclasses.replace(setting, repeats=min(setting.repeats, row.most_repeats))
    failed: dict[str, str] = {}
    summaries = take_turns(specifications, setting, failed)
    best = min((name for name in attentions if name in summaries), key=lambda name: summaries[name][row.figure])
    # Only for full batches and for speed: with padded batches the padding matters most, and peak memory is unaffected.
    if has_peak and row.device == "cpu" and not setting.float32:
        kept = {f"{best}, memory kept": {**specifications[best], "keep_memory": True}}
        again = take_turns({"ours": specifications["ours"], **kept}, setting)
        summaries |= {name: again[name] for name in kept}
    wanted = WANTED_IN_FLOAT32.get(row.name, row.wanted) if setting.float32 else row.wanted
    result = {"text": row.text, "wanted": wanted, "figure": row.figure, "best": best, "sides": summaries}
    if failed:
        result["failed"] = failed
    result["ratio"] = summaries[best][row.figure] / summaries["ours"][row.figure]
    if has_peak:
        result["share_of_peak"] = flops_per_second(row, result) / summaries["matmul"]["flops_per_second"]
    if f"{best}, memory kept" in summaries:
        result["ratio_memory_kept"] = summaries[f"{best}, memory kept"]["seconds"] / again["ours"]["seconds"]
    return result


def peer(name: str) -> dict[str, Any]:
    """The specification of a transformers side: an attention, or "compile" for sdpa compiled, then maybe "sorted"."""
    attention, *more = name.split()
    compiles = attention == "compile"
    return {"attention": "sdpa" if compiles else attention, "compile": compiles, "sorted": "sorted" in more}


def windowed_time_per_token(folder: Path, setting: Setting) -> dict[str, Any]:
    """Seconds per token at 1,024 and 16,384 tokens, for a model with only windowed layers."""
    shape = {
        "vocab_size": 50_368, "hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12,
        "intermediate_size": 1152, "max_position_embeddings": 16_384, "layer_types": ["sliding_attention"] * 6,
        "sliding_window": 64,
    }  # fmt: skip
    specifications = {}
    for length in (1024, 16_384):
        specifications[str(length)] = {
            "side": "ours", "work": "encode", "shape": shape, "device": "cpu",
            "batches": str(write_batches(folder / f"{length}.npz", [length] * (16_384 // length))),
            "rows_per_batch": 1, "keep_memory": True, "precision": setting.precision,
        }  # fmt: skip
    sides = take_turns(specifications, setting)
    return {
        "text": "time per token, windowed layers only, 16,384 against 1,024 tokens", "wanted": 1.3, "sides": sides,
        "figure": "seconds", "ratio": sides["16384"]["seconds"] / sides["1024"]["seconds"],
    }  # fmt: skip


def import_and_load(folder: Path, *, repeats: int) -> dict[str, Any]:
    """Seconds for importing a model class, and for `from_pretrained` of a base model, in fresh processes."""
    save = (
        "import sys, torch; from transformers import BertConfig, BertForMaskedLM;"
        "from clozebert.hub import from_native; model = BertForMaskedLM(BertConfig());"
        "model.save_pretrained(sys.argv[1]); from_native(model).save_pretrained(sys.argv[2])"
    )
    folders = [str(folder / name) for name in ("bert", "clozebert")]
    subprocess.run([sys.executable, "-c", save, *folders], check=True, stderr=subprocess.DEVNULL)
    programs = {
        "import, transformers": "from transformers import BertForMaskedLM",
        "import, ours": "from clozebert import ClozeBertForMaskedLM",
        "load, transformers": f"from transformers import BertForMaskedLM as M; M.from_pretrained({folders[0]!r})",
        "load, ours": f"from clozebert import ClozeBertForMaskedLM as M; M.from_pretrained({folders[1]!r})",
    }
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(repeats + 1):
        for name, program in programs.items():
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-c", program], check=True, stderr=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - begun)
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    return {
        "text": "import of a model class; import and from_pretrained of a base model (theirs / ours)", "wanted": 1.0,
        "figure": "seconds", "sides": medians,
        "ratio": medians["import, transformers"] / medians["import, ours"],
        "ratio_load": medians["load, transformers"] / medians["load, ours"],
    }  # fmt: skip


def write_batches(file: Path, lengths: list[int], ids: np.ndarray | None = None) -> Path:
    """Write sequences of given lengths, with random tokens if no ids are given."""
    if ids is None:
        ids = np.random.default_rng(0).integers(1000, 29_000, sum(lengths))
    np.savez(file, ids=ids, lengths=np.array(lengths))
    return file


def mixed_lengths(row: Row) -> list[int]:
    """Document lengths: log-normal with median 300, clipped to [16, `row.length`]."""
    drawn = np.exp(np.random.default_rng(0).normal(np.log(300), 1.0, size=(row.times, row.rows)))
    lengths = drawn.clip(16, row.length).astype(int)
    # The longest of each batch gets the full length, so all their batches have one shape, which is compiled once.
    lengths[np.arange(row.times), lengths.argmax(axis=1)] = row.length
    return lengths.ravel().tolist()


def sentence_batches(file: Path, source: Path, *, sentences: int) -> Path:
    """The first sentences of a CoNLL-U file, shuffled and encoded with a WordPiece tokenizer trained on them."""
    from clozebert.corpus.tokenizer import train_tokenizer

    lines = source.read_text(encoding="utf-8").splitlines()
    texts = [line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")]
    tokenizer = train_tokenizer(texts, vocab_size=16_384)
    chosen = np.random.default_rng(0).permutation(len(texts))[:sentences]
    encoded = tokenizer([texts[index] for index in chosen], verbose=False)["input_ids"]
    return write_batches(file, [len(ids) for ids in encoded], np.concatenate(encoded))


def machine(setting: Setting) -> dict[str, Any]:
    """The machine and the settings of the measurement."""
    import torch

    names = ("torch", "transformers", "accelerate", "numpy")
    facts: dict[str, Any] = {
        "processor": processor(), "threads": setting.threads, "python": platform.python_version(),
        "precision": "float32" if setting.float32 else "bf16", "emulated": setting.emulated,
        "versions": {name: importlib.metadata.version(name) for name in names},
    }  # fmt: skip
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def processor() -> str:
    """The name and the number of the processors."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{os.cpu_count()} x {name}"


def flops_per_second(row: Row, result: dict[str, Any]) -> float:
    """Model FLOP/s of our side, by clozebert's own FLOP count."""
    from clozebert import ClozeBertConfig
    from clozebert.training.planning.memory_and_time import forward_flops

    ours = result["sides"]["ours"]
    config = ClozeBertConfig.from_name(f"{row.shape}-base")
    trains = row.work == "train"
    predicted = 0.15 if trains else 0.0
    flops = forward_flops(config, tokens=ours["tokens"], length=row.length, predicted=predicted, reads=trains)
    return (3 if trains else 1) * flops / ours["seconds"]


def main() -> None:
    """Measure, write, render."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [row.name for row in ROWS]
    parser.add_argument("--rows", nargs="+", choices=[*names, "windowed", "import"], help="only these")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--float32", action="store_true", help="the second table, see above")
    parser.add_argument("--sentences", type=Path, default=EWT, help="a CoNLL-U file with `# text =` lines")
    parser.add_argument("--output", type=Path, help="a JSON file for the results; it keeps its other rows")
    parser.add_argument("--render", type=Path, help="draw the plot of such a file beside it, and print its table …")
    parser.add_argument("--into", type=Path, help="… or put it into this document, between its markers")
    arguments = parser.parse_args()
    if arguments.render:
        results = json.loads(arguments.render.read_text())
        draw(results, arguments.render.with_suffix(".png"))
        if arguments.into:
            put(render(results), arguments.into, marker=arguments.render.stem)
        else:
            print(render(results))
        return
    from clozebert.utils.device import has_fast_bf16

    # Checked in this process, whose environment does not limit instructions to AVX2.
    emulated = arguments.float32 and has_fast_bf16(torch.device("cpu"))
    setting = Setting(arguments.threads, arguments.repeats, float32=arguments.float32, emulated=emulated)
    command = "python benchmarks/speed.py" + (" --float32" if arguments.float32 else "")
    results = {"command": command, "machine": machine(setting), "rows": {}}
    if arguments.output and arguments.output.exists():
        results["rows"] = json.loads(arguments.output.read_text())["rows"]
    has_gpu = torch.cuda.is_available()
    wanted = arguments.rows or [*(row.name for row in ROWS if row.device == "cpu" or has_gpu), "windowed", "import"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in wanted:
            if name == "windowed":
                result = windowed_time_per_token(folder, setting)
            elif name == "import":
                result = import_and_load(folder, repeats=arguments.repeats)
            else:
                row = next(row for row in ROWS if row.name == name)
                file = folder / f"{name}.npz"
                if row.batches == "sentences":
                    sentence_batches(file, arguments.sentences, sentences=row.rows * (2 if row.work == "train" else 8))
                elif row.batches == "mixed":
                    write_batches(file, mixed_lengths(row))
                else:
                    write_batches(file, [row.length] * row.rows * row.times)
                result = measure(row, file, setting)
            results["rows"][name] = result
            print(f"{result['text']}: {result['ratio']:.2f}", flush=True)
            if arguments.output:
                arguments.output.parent.mkdir(parents=True, exist_ok=True)
                arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    print(render(results))


if __name__ == "__main__":
    main()
