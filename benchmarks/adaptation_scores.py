"""Scores of adapted encoders after fine-tuning, three seeds each, on one CPU thread.

    python benchmarks/adaptation_scores.py student --data DATA --work WORK      about an hour and a half of a core
    python benchmarks/adaptation_scores.py extended --data DATA --work WORK     half an hour
    python benchmarks/adaptation_scores.py trimmed --data DATA --work WORK      half an hour

DATA holds the folders that finetuning_table.py and adaptation.py read. Results that are in WORK already are kept, and
several processes may share one WORK. The figures are written to WORK/NAME.json, with the process time of each
adaptation.

`student`: two of the four layers of release/clozebert-books, distilled on the books, and the same two layers trained on
the books without a teacher for the same process time. `extended`, `trimmed`: a BERT of transformers' own class,
pretrained by us for `--minutes`, adapted to the development set of the Finnish treebank, with its original vocabulary
and with a changed one. Of these 1,364 sentences, 1,164 are then the training data of a tagger and 200 its validation
data; its test data is the treebank's test set. `trimmed` keeps the entries of the adaptation text and, in a second
variant, also those of the test sentences. `plain` and `plain-trimmed` are the model before and after that trimming,
without any adaptation.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from finetuning_table import DATASETS, ROOT, SEEDS, Dataset, make_data, read_json, run_cells

from adaptation import NOVELS, ROW, anatomy, books, make_native, pretrain_native

TASKS = ("banking77", "wnut17", "mr", "ewt_pos")
STUDENT_ROW = 128
NEW_ENTRIES, MANY_ENTRIES = 2000, 64_000
TEACHER = ROOT / "release" / "clozebert-books"
VALIDATION_SENTENCES = 200


def write_finnish(source: Path, folder: Path) -> None:
    """Write the treebank's development set as training and validation data, and its test set."""
    treebank = source / "multi_ud_finnish_tdt"
    sentences = (treebank / "fi_tdt-ud-dev.conllu").read_text(encoding="utf-8").strip().split("\n\n")
    for split, kept in (
        ("train", sentences[:-VALIDATION_SENTENCES]),
        ("validation", sentences[-VALIDATION_SENTENCES:]),
    ):
        (folder / f"{split}.conllu").write_text("\n\n".join(kept) + "\n\n", encoding="utf-8")
    shutil.copy(treebank / "fi_tdt-ud-test.conllu", folder / "test.conllu")


FINNISH = {"finnish_pos": Dataset("Finnish TDT: parts of speech", "token", "accuracy", "conllu", write_finnish)}


def finnish_text(work: Path, split: str = "train") -> Path:
    """Write the sentences of the tagger's training or test data to a file, one per line."""
    path = work / f"finnish-{split}.txt"
    text = (work / "data" / "finnish_pos" / f"{split}.conllu").read_text(encoding="utf-8")
    lines = (line.removeprefix("# text = ") for line in text.splitlines() if line.startswith("# text = "))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def command(work: Path, name: str, *words: str | Path) -> float:
    """Run a `clozebert` command unless it was run before; returns its process time in seconds, all included."""
    measured = work / f"{name}.seconds"
    if not measured.is_file():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with (work / f"{name}.log").open("ab") as log:
            subprocess.run([sys.executable, "-m", "clozebert", *map(str, words)], stdout=log, stderr=log, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        measured.write_text(f"{after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime:.1f}\n")
    return float(measured.read_text())


def steps_for(work: Path, name: str, seconds: float, make: Any) -> int:
    """The number of steps that take `seconds` of process time, estimated from two short runs of 10 and 40 steps."""
    short, longer = (command(work, f"{name}-{steps}", *make(work / f"{name}-{steps}", steps)) for steps in (10, 40))
    of_step = (longer - short) / 30
    return 10 + round((seconds - short) / of_step)


def make_student(work: Path, data: Path, steps: int) -> dict[str, Any]:
    """Train the student with its teacher, and the same layers without a teacher."""
    parts = [line.split("\t")[:2] for line in (ROOT / "release" / "books.tsv").read_text().splitlines()[1:]]
    train, held_out = ([data / name for split, name in parts if split == wanted] for wanted in ("train", "validation"))
    if not (work / "teacher").exists():
        shutil.copytree(TEACHER, work / "teacher")
    command(
        work, "corpus", "prepare-corpus", "--input", *train, "--validation_input", *held_out,
        "--tokenizer_name", TEACHER, "--output_dir", work / "corpus",
    )  # fmt: skip

    def adapted(model: Path, *more: str) -> Any:
        return lambda output, count: (
            "adapt", "--model_name_or_path", model, "--corpus", work / "corpus", "--max_seq_length", str(STUDENT_ROW),
            "--max_steps", str(count), "--output_dir", output, "--disable_tqdm", "--num_processes", "1", *more,
        )  # fmt: skip

    found: dict[str, Any] = {}
    found["student"] = {
        "steps": steps, "process_seconds": command(
            work, "student", *adapted(TEACHER, "--student", "2")(work / "student", steps)
        ),
    }  # fmt: skip
    seconds = found["student"]["process_seconds"]
    rate = str(read_json(work / "student" / "adaptation_results.json")["settings"]["learning_rate"])
    alone = adapted(work / "student" / "adaptation" / "start", "--learning_rate", rate)
    count = steps_for(work, "alone", seconds, alone)
    found["alone"] = {"steps": count, "process_seconds": command(work, "alone", *alone(work / "alone", count))}
    for name in ("student", "alone"):
        stages = read_json(work / name / "adaptation_results.json")["evaluation"]
        found[name]["loss"] = {stage: texts["new"]["eval_loss"] for stage, texts in stages.items()}
    return found


def pretrained_bert(work: Path, data: Path, minutes: float, *, vocabulary: int | None = None) -> Path:
    """A native BERT of four layers of width 192; its vocabulary comes from novels or, given its size, all texts."""
    folder = work / ("bert" if vocabulary is None else "many")
    if not (folder / "native" / "config.json").is_file():
        texts = None
        if vocabulary is not None:
            novels = [
                Path(path).read_text(encoding="utf-8")[:400_000] for path in books(data, "mlm_standardebooks", NOVELS)
            ]
            texts = [*novels, *anatomy(data), *finnish_text(work).read_text(encoding="utf-8").splitlines()]
        make_native("bert", folder / "random", data, texts=texts, vocabulary=vocabulary)
        pretrain_native("bert", folder, folder / "random", data, minutes)
    return folder / "native"


def make_finnish(work: Path, model: Path, steps: int, changes: dict[str, str | None]) -> dict[str, Any]:
    """Adapt to Finnish once for each entry of `changes`."""
    found = {}
    for name, words in changes.items():
        seconds = command(
            work, name, "adapt", "--model_name_or_path", model, "--input", finnish_text(work),
            "--document_separator", "line", "--max_seq_length", str(ROW), "--global_batch_size", "16",
            "--max_steps", str(steps), "--output_dir", work / name, "--disable_tqdm",
            "--num_processes", "1", *([] if words is None else words.split()),
        )  # fmt: skip
        results = read_json(work / name / "adaptation_results.json")
        found[name] = {"process_seconds": seconds, **{key: results[key] for key in ("steps", "tokens", "parameters")}}
    return found


def scores(
    work: Path, names: list[str], models: list[str], seeds: list[int], datasets: dict[str, Dataset]
) -> dict[str, Any]:
    """The test scores of every model on every data set, and the mean over data sets for each seed that all have."""
    found: dict[str, Any] = {}
    for model in models:
        of_data = {
            name: {
                seed: read_json(path)["results"][f"test_{datasets[name].metric}"]
                for seed in seeds
                if (path := work / "cells" / f"{name}-{model}-{seed}.json").is_file()
            }
            for name in names
        }
        found[model] = {name: list(of_seed.values()) for name, of_seed in of_data.items()}
        shared = [seed for seed in seeds if all(seed in of_seed for of_seed in of_data.values())]
        means = [statistics.mean(of_seed[seed] for of_seed in of_data.values()) for seed in shared]
        if means:
            spread = statistics.stdev(means) if len(means) > 1 else None
            found[model]["mean"] = {"of_seeds": means, "mean": statistics.mean(means), "sd": spread}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["student", "extended", "trimmed"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10, help="pretraining of the BERT")
    parser.add_argument("--steps", type=int, help="of the student (500), of the adaptations to Finnish (300)")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    arguments = parser.parse_args()
    work, data, what = arguments.work.resolve(), arguments.data.resolve(), arguments.what
    work.mkdir(parents=True, exist_ok=True)
    datasets = {name: DATASETS[name] for name in TASKS} if what == "student" else FINNISH
    make_data(work, data, datasets)
    if what == "student":
        models = ["teacher", "student", "alone"]
        figures = make_student(work, data, arguments.steps or 500)
    else:
        many = MANY_ENTRIES if what == "trimmed" else None
        base = pretrained_bert(work, data, arguments.minutes, vocabulary=many)
        changes: dict[str, str | None] = {f"{what}-not": None}
        if what == "extended":
            changes["extended"] = f"--extend_vocabulary {NEW_ENTRIES}"
        else:
            changes["trimmed-narrow"] = "--trim_vocabulary"
            changes["trimmed"] = f"--trim_vocabulary --keep_input {finnish_text(work, 'test')}"
        models = list(changes)
        figures = make_finnish(work, base, arguments.steps or 300, changes)
        if what == "trimmed":
            for name, folder in (("plain", base), ("plain-trimmed", work / "trimmed" / "adaptation" / "start")):
                shutil.copytree(folder, work / name, dirs_exist_ok=True)
                models.append(name)
    run_cells(work, datasets, models, arguments.seeds, lambda name, _: work / name)
    figures["scores"] = scores(work, list(datasets), models, arguments.seeds, datasets)
    (work / f"{what}.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
