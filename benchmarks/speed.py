#!/usr/bin/env python
"""Speed and memory beside transformers' BERT and ModernBERT, side by side on this machine: the table of docs/speed.md.

    python benchmarks/speed.py --output benchmarks/results/speed-cpu.json        # all rows, about half an hour
    python benchmarks/speed.py --rows train-bert encode-full --repeats 3         # some of them
    python benchmarks/speed.py --float32 --output benchmarks/results/speed-cpu-avx2.json    # as CPUs without bf16 work
    python benchmarks/speed.py --render benchmarks/results/speed-cpu.json --into docs/speed.md    # table and plot

Every side is a process of its own (contender.py). They take turns, `repeats` times round, after a turn that does not
count; the figures are medians. transformers' models are measured under eager attention, sdpa, and sdpa compiled, and
the best stands in the table; it is measured again in a process that keeps its freed memory, as clozebert's
programs do, since that alone is worth much. A product of two matrices takes turns with them: the machine's peak at
these moments, of which our share is counted. Sentences: those of English EWT (`--sentences`, a CoNLL-U file), shuffled.
Where there is a GPU, its rows run too.

`--float32` is the second table: float32, and freed memory kept on both sides. A CPU that has bf16 in hardware is told
to take AVX2 instructions alone (AVX2_ONLY below). That shows the order of magnitude, and the table says so.
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

HERE = Path(__file__).parent
EWT = HERE.parent.parent / "shared" / "data" / "tok_ud_english_ewt" / "en_ewt-ud-train.conllu"
WARM_UP = 1
# A CPU with wider instructions works as one that has no more than AVX2.
AVX2_ONLY = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
# The ratios wanted in float32, of both sides with freed memory kept.
WANTED_IN_FLOAT32 = {
    "train-bert": 1.3, "train-bert-no-dropout": 1.3, "train-modernbert": 1.1, "train-sentences-bert": 3.5,
    "train-sentences-modernbert": 2.5, "encode-sentences": 2.5, "encode-full": 1.0, "encode-8192": 3.0,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all rows of a run share."""

    threads: int
    repeats: int
    float32: bool = False
    emulated: bool = False

    @property
    def precision(self) -> str:
        return "no" if self.float32 else "bf16"


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table: what both sides do, and the ratio that is wanted (theirs / ours)."""

    name: str
    text: str
    work: str
    shape: str
    batches: str  # "full": ROWS x LENGTH; "sentences"
    rows: int = 16
    length: int = 128
    their_dropout: float = 0.0
    attentions: tuple[str, ...] = ("eager", "sdpa", "compile")
    compile_ours: bool = False
    vocab_size: int | None = None
    sparse: bool = True
    figure: str = "seconds"  # or "memory"
    device: str = "cpu"
    wanted: float = 1.0
    most_repeats: int = 100


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
    Row("gpu-train-modernbert", "training step, ModernBERT-base, 32 x 1,024, GPU", "train", "modernbert", "full",
        rows=32, length=1024, compile_ours=True, attentions=("sdpa", "compile"), device="cuda", wanted=1.5),
    Row("gpu-train-bert", "training step, BERT-base, 64 x 512, GPU", "train", "bert", "full", rows=64, length=512,
        compile_ours=True, attentions=("sdpa", "compile"), device="cuda", wanted=1.5),
]  # fmt: skip


class Side:
    """A contender's process."""

    def __init__(self, specification: dict[str, Any], setting: Setting) -> None:
        environment = {
            **os.environ, "OMP_NUM_THREADS": str(setting.threads), "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false", **(AVX2_ONLY if setting.emulated else {}),
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "contender.py"), json.dumps(specification)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
        )  # fmt: skip
        self.turns: list[dict[str, Any]] = []
        self.facts = self._read()

    def turn(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.turns.append(self._read())

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(self.process.args[1:])} ended with status {self.process.wait()}")  # type: ignore[arg-type]
        return json.loads(line)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def summary(self) -> dict[str, Any]:
        turns = self.turns[WARM_UP:]
        seconds = [turn["seconds"] for turn in turns]
        if "tokens" not in self.facts:
            flops = [turn["result"] for turn in turns]
            return {"flops_per_second": statistics.median(flops), "all_flops_per_second": [round(x) for x in flops]}
        return {
            "seconds": statistics.median(seconds),
            "all_seconds": [round(value, 4) for value in seconds],
            "tokens_per_second": self.facts["tokens"] / statistics.median(seconds),
            "memory": self.turns[-1]["memory"],
            "first_result": self.turns[0]["result"],
            **self.facts,
        }


def measure(row: Row, batches: Path, setting: Setting) -> dict[str, Any]:
    """All sides of a row, in turns."""
    common = {
        "work": row.work, "shape": row.shape, "batches": str(batches), "rows_per_batch": row.rows, "sparse": row.sparse,
        "device": row.device, "precision": setting.precision,
        **({"vocab_size": row.vocab_size} if row.vocab_size else {}),
    }  # fmt: skip
    ours = {"side": "ours", "dropout": 0.0, "attention": "sdpa", "compile": row.compile_ours}
    keeps = row.figure != "memory"  # what was needed to build the model would stay
    ours["keep_memory"] = keeps
    specifications = {"ours": {**common, **ours}}
    attentions = row.attentions
    if setting.float32 and row.work == "train" and row.batches == "sentences":
        # All sides keep their memory: padded, 12 GB each. In bf16 sdpa was the faster one.
        attentions = ("sdpa",)
    for attention in attentions:
        specifications[attention] = {
            **common, "side": "transformers", "dropout": row.their_dropout, "compile": attention == "compile",
            "attention": "sdpa" if attention == "compile" else attention, "keep_memory": keeps and setting.float32,
        }  # fmt: skip
    has_peak = row.figure == "seconds" and row.batches == "full"
    if has_peak:
        specifications["matmul"] = {
            "work": "matmul", "device": row.device, "precision": setting.precision, "keep_memory": True,
        }  # fmt: skip
    setting = dataclasses.replace(setting, repeats=min(setting.repeats, row.most_repeats))
    summaries = take_turns(specifications, setting)
    best = min(attentions, key=lambda name: summaries[name][row.figure])
    # Where batches are padded it is the padding that counts, and the peak of memory does not depend on this.
    if has_peak and row.device == "cpu" and not setting.float32:
        kept = {f"{best}, memory kept": {**specifications[best], "keep_memory": True}}
        again = take_turns({"ours": specifications["ours"], **kept}, setting)
        summaries |= {name: again[name] for name in kept}
    wanted = WANTED_IN_FLOAT32.get(row.name, row.wanted) if setting.float32 else row.wanted
    result = {"text": row.text, "wanted": wanted, "figure": row.figure, "best": best, "sides": summaries}
    result["ratio"] = summaries[best][row.figure] / summaries["ours"][row.figure]
    if has_peak:
        result["share_of_peak"] = flops_per_second(row, result) / summaries["matmul"]["flops_per_second"]
    if f"{best}, memory kept" in summaries:
        result["ratio_memory_kept"] = summaries[f"{best}, memory kept"]["seconds"] / again["ours"]["seconds"]
    return result


def take_turns(specifications: dict[str, Any], setting: Setting) -> dict[str, dict[str, Any]]:
    sides = {}
    try:
        for name, specification in specifications.items():
            sides[name] = Side(specification, setting)
        for _ in range(WARM_UP + setting.repeats):
            for side in sides.values():
                side.turn()
        return {name: side.summary() for name, side in sides.items()}
    finally:
        for side in sides.values():
            side.close()


def windowed_time_per_token(folder: Path, setting: Setting) -> dict[str, Any]:
    """Seconds a token at 1,024 and 16,384 tokens, of layers that all have windows."""
    shape = {
        "vocab_size": 50_368, "hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12,
        "intermediate_size": 1152, "max_position_embeddings": 16_384, "layer_types": ["sliding_attention"] * 6,
        "sliding_window": 64,
    }  # fmt: skip
    specifications = {}
    for length in (1024, 16_384):
        specifications[str(length)] = {
            "side": "ours", "work": "encode", "shape": shape, "dropout": 0.0, "compile": False, "device": "cpu",
            "batches": str(write_batches(folder / f"{length}.npz", [length] * (16_384 // length))),
            "rows_per_batch": 1, "keep_memory": True, "precision": setting.precision,
        }  # fmt: skip
    sides = take_turns(specifications, setting)
    return {
        "text": "time per token, windowed layers only, 16,384 against 1,024 tokens", "wanted": 1.3, "sides": sides,
        "figure": "seconds", "ratio": sides["16384"]["seconds"] / sides["1024"]["seconds"],
    }  # fmt: skip


def import_and_load(folder: Path, *, repeats: int) -> dict[str, Any]:
    """Seconds of importing a model class, and of `from_pretrained` of a base model, in fresh processes."""
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
    """Sequences of given lengths; random tokens where none are given."""
    if ids is None:
        ids = np.random.default_rng(0).integers(1000, 29_000, sum(lengths))
    np.savez(file, ids=ids, lengths=np.array(lengths))
    return file


def sentence_batches(file: Path, source: Path, *, sentences: int) -> Path:
    """The first sentences of a CoNLL-U file, shuffled, as a WordPiece tokenizer of theirs cuts them."""
    from clozebert.corpus.tokenizer import train_tokenizer

    lines = source.read_text(encoding="utf-8").splitlines()
    texts = [line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")]
    tokenizer = train_tokenizer(texts, vocab_size=16_384)
    chosen = np.random.default_rng(0).permutation(len(texts))[:sentences]
    encoded = tokenizer([texts[index] for index in chosen], verbose=False)["input_ids"]
    return write_batches(file, [len(ids) for ids in encoded], np.concatenate(encoded))


def machine(setting: Setting) -> dict[str, Any]:
    """What the figures were measured on, and how."""
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
    """The processor's name, with how many of it there are."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{os.cpu_count()} x {name}"


def flops_per_second(row: Row, result: dict[str, Any]) -> float:
    """Model FLOP/s of our side, by clozebert's own count."""
    from clozebert import ClozeBertConfig
    from clozebert.training.planning import forward_flops

    ours = result["sides"]["ours"]
    config = ClozeBertConfig.from_name(f"{row.shape}-base")
    trains = row.work == "train"
    predicted, on_cpu = 0.15 if trains else 0.0, trains and row.device == "cpu"
    flops = forward_flops(config, tokens=ours["tokens"], length=row.length, predicted=predicted, on_cpu=on_cpu)
    return (3 if trains else 1) * flops / ours["seconds"]


def render(results: dict[str, Any]) -> str:
    """The table, in Markdown, with the machine above it."""
    machine = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    precision = machine.get("precision", "bf16")
    emulated = " AVX2 emulated: the CPU has more, and was told to use no more." if machine.get("emulated") else ""
    kept = "" if precision == "bf16" else " Freed memory kept on both sides."
    lines = [f"{machine['processor']}, {machine['threads']} threads, {precision}, {versions}.{emulated}{kept}", "",
             "| work | ours | the best of theirs | ratio | wanted | theirs with freed memory kept |",
             "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for row in results["rows"].values():
        sides, unit = row["sides"], row["figure"]
        if "best" not in row:
            figures = ", ".join(f"{name}: {shown(value, unit)}" for name, value in sides.items())
            extra = f", {row['ratio_load']:.2f}" if "ratio_load" in row else ""
            lines.append(f"| {row['text']} | {figures} | | {row['ratio']:.2f}{extra} | {row['wanted']} | |")
            continue
        kept = f"{row['ratio_memory_kept']:.2f}" if "ratio_memory_kept" in row else ""
        share = ""
        if "share_of_peak" in row:
            peak = sides["matmul"]["flops_per_second"] / 1e9
            share = f" ({row['share_of_peak']:.0%} of a matmul's {peak:,.0f} GFLOP/s)"
        lines.append(
            f"| {row['text']} | {shown(sides['ours'], unit)}{share} | {shown(sides[row['best']], unit)} "
            f"({row['best']}) | **{row['ratio']:.2f}** | {row['wanted']} | {kept} |"
        )
    return "\n".join(lines)


def put(text: str, document: Path, *, marker: str) -> None:
    """Replace what stands between `<!-- marker -->` and `<!-- /marker -->`."""
    before, opening, rest = document.read_text().partition(f"<!-- {marker} -->\n")
    _, closing, after = rest.partition(f"<!-- /{marker} -->")
    if not closing:
        raise ValueError(f"{document} has no markers <!-- {marker} --> and <!-- /{marker} -->")
    document.write_text(f"{before}{opening}{text}\n{closing}{after}")


def shown(side: Any, figure: str) -> str:
    if isinstance(side, float):
        return f"{side:.2f} s"
    if figure == "memory":
        return f"{side['memory'] / 2**30:.2f} GiB"
    return f"{side['seconds']:.3f} s, {side['tokens_per_second']:,.0f} tokens/s"


def draw(results: dict[str, Any], file: Path) -> None:
    """Our speed over that of the fastest of theirs, as bars."""
    from matplotlib.figure import Figure

    rows = [row for row in results["rows"].values() if "best" in row]
    figure = Figure(figsize=(7.5, 0.42 * len(rows) + 0.8), layout="constrained")
    axis = figure.subplots()
    names = [row["text"] for row in rows][::-1]
    axis.barh(names, [row["ratio"] for row in rows][::-1], color="#4c72b0")
    axis.plot([row["wanted"] for row in rows][::-1], names, "k|", markersize=14, label="wanted")
    axis.axvline(1, color="grey", linewidth=0.8)
    axis.set_xlabel("transformers / clozebert (time, or memory)")
    axis.tick_params(axis="y", labelsize=8)
    axis.legend()
    figure.savefig(file, dpi=130)


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

    # Asked of this process, whose environment holds no such limit.
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
                else:
                    write_batches(file, [row.length] * row.rows)
                result = measure(row, file, setting)
            results["rows"][name] = result
            print(f"{result['text']}: {result['ratio']:.2f}", flush=True)
            if arguments.output:
                arguments.output.parent.mkdir(parents=True, exist_ok=True)
                arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    print(render(results))


if __name__ == "__main__":
    main()
