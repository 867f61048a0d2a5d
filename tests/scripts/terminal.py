"""Programs in a pseudo-terminal: when the first sign of life comes, whether there is a bar, how soon Ctrl-C ends them.

`python tests/scripts/terminal.py FOLDER TEXT [WORD]` measures every verb, or the rows that hold the word, on a text
file of some megabytes, and prints a table. FOLDER keeps what the verbs need.
"""

import contextlib
import fcntl
import importlib.util
import itertools
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Session:
    """What a program did in a terminal.

    Attributes:
        first_sign: seconds to its first output.
        answered, ended: seconds from Ctrl-C to a line that says what happens now, and to the end of the process.
        shown: all of its output.
    """

    first_sign: float | None
    answered: float | None
    ended: float | None
    status: int | None
    shown: str

    @property
    def has_bar(self) -> bool:
        """A bar with a total, such as ` 40%|████      | 2/5` or tokenizers' own."""
        return bool(re.search(r"\d+%\||[█░▏▎▍▌▋▊▉] *\d+ */ *\d+", self.shown))


def in_terminal(
    command: list[str],
    *,
    interrupt_when: Callable[[str, float], bool],
    timeout: float = 120.0,
    environment: dict[str, str] | None = None,
) -> Session:
    """Run a command in a terminal, and press Ctrl-C when `interrupt_when(shown so far, seconds)` says so."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    begun = time.monotonic()
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, close_fds=True,
        env={**os.environ, **(environment or {}), "TERM": "xterm", },
        preexec_fn=_make_controlling,
    )  # fmt: skip
    os.close(theirs)
    shown, pressed, before = "", None, 0
    first_sign = answered = ended = None
    while time.monotonic() - begun < timeout:
        ready, _, _ = select.select([ours], [], [], 0.02)
        now = time.monotonic()
        if ready:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the other end is closed
                data = b""
            text = data.decode("utf-8", errors="replace")
            if text.strip() and first_sign is None:
                first_sign = now - begun
            shown += text
            if pressed is not None and answered is None and re.search("stopping: |interrupted", shown[before:]):
                answered = now - pressed
        if process.poll() is not None:
            ended = None if pressed is None else now - pressed
            break
        if pressed is None and interrupt_when(shown, now - begun):
            pressed, before = time.monotonic(), len(shown)
            os.write(ours, b"\x03")
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with contextlib.suppress(OSError):
        shown += os.read(ours, 1 << 20).decode("utf-8", errors="replace")
    os.close(ours)
    return Session(first_sign, answered, ended, process.returncode, shown)


def _make_controlling() -> None:
    """So that Ctrl-C reaches the process as a signal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def after(text: str, seconds: float) -> Callable[[str, float], bool]:
    """When `text` (a regular expression) was shown, and some seconds after that."""
    seen: list[float] = []

    def decide(shown: str, now: float) -> bool:
        if not seen and re.search(text, shown):
            seen.append(now)
        return bool(seen) and now - seen[0] >= seconds

    return decide


def measure(rows: dict[str, tuple[list[str], Callable[[str, float], bool]]]) -> list[str]:
    """A line for each verb."""
    lines = ["| verb | first sign (s) | Ctrl-C to an answer (s) | Ctrl-C to the prompt (s) | bar |", "|" + " --- |" * 5]

    def figure(value: float | None) -> str:
        return "none" if value is None else f"{value:.2f}"

    for name, (flags, decide) in rows.items():
        done = in_terminal([sys.executable, "-m", "clozebert", *flags], interrupt_when=decide, timeout=120)
        lines.append(
            f"| {name} | {figure(done.first_sign)} | {figure(done.answered)} | {figure(done.ended)} | "
            f"{'yes' if done.has_bar else 'no'} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
        if done.ended is None:
            print(f"{shlex.join(flags)}\n{done.shown[-2000:]}", file=sys.stderr)
    return lines


def main(folder: Path, text: Path, only: str = "") -> None:
    """Measure the verbs on the text of a folder, with all that they need made in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)

    def call(*flags: str) -> None:
        subprocess.run([sys.executable, "-m", "clozebert", *flags], check=True, capture_output=True)

    tokenizer, corpus, model = folder / "tokenizer", folder / "corpus", folder / "model"
    sample = folder / "sample.txt"
    words = text.read_text(encoding="utf-8") if text.is_file() else ""
    sample.write_text(words[:400_000])
    if not model.is_dir():
        small = ["--max_steps", "2", "--hidden_size", "64", "--num_attention_heads", "2", "--disable_tqdm"]
        call("train-tokenizer", "--input", str(sample), "--vocab_size", "4000", "--output_dir", str(tokenizer))
        call("prepare-corpus", "--input", str(sample), "--tokenizer_name", str(tokenizer), "--output_dir", str(corpus),
             "--validation_fraction", "0.3", "--document_separator", "line")  # fmt: skip
        call("pretrain", "--config", "tiny", "--corpus", str(corpus), "--tokenizer_name", str(tokenizer),
             "--output_dir", str(model), *small)  # fmt: skip
    table = folder / "train.csv"
    lines = [line.replace('"', "") for line in words.splitlines() if len(line) > 40][:3000]
    table.write_text("text,label\n" + "".join(f'"{line}",{"ab"[i % 2]}\n' for i, line in enumerate(lines)))
    conll = folder / "train.conll"
    tagged = ["".join(f"{word} {'AB'[len(word) % 2]}\n" for word in line.split()) for line in lines]
    conll.write_text("\n".join(tagged))
    many = folder / "many.txt"
    many.write_text("\n".join(lines * 50))
    classifier = folder / "classifier"
    if not classifier.is_dir():
        call("finetune-sequence", "--model_name_or_path", str(model), "--train_file", str(table), "--max_steps", "2",
             "--output_dir", str(classifier))  # fmt: skip
    numbers = itertools.count(time.time_ns())

    def out() -> list[str]:
        return ["--output_dir", str(folder / f"out-{next(numbers)}")]

    run = ["--corpus", str(corpus), "--tokenizer_name", str(tokenizer)]
    bar, loading = r"\d+%\|", "loading"
    tune = ["--model_name_or_path", str(model), "--train_file"]
    rows = {
        "train-tokenizer, reading": (["train-tokenizer", "--input", *[str(text)] * 5, *out()], after(bar, 0.05)),
        "train-tokenizer, training": (["train-tokenizer", "--input", str(text), "--algorithm", "unigram", *out()],
                                      after(r"00:00:0\d\]", 1.0)),
        "prepare-corpus": (["prepare-corpus", "--input", *[str(text)] * 5, "--tokenizer_name", str(tokenizer), *out()],
                           after(bar, 1.0)),
        "pretrain, loading": (["pretrain", "--config", "small", *run, *out()], after(loading, 1.0)),
        "pretrain, training": (["pretrain", "--config", "small", *run, *out()], after("time: about", 3.0)),
        "pretrain, BERT-base": (["pretrain", "--config", "bert-base", *run, *out(), "--global_batch_size", "32",
                                 "--max_steps", "9", "--warmup_steps", "1"], after("time: about", 4.0)),
        "pretrain, evaluating": (["pretrain", "--config", "small", *run, *out(), "--global_batch_size", "16",
                                  "--eval_steps", "1", "--max_eval_batches", "1000"], after("loss", 2.0)),
        "check": (["check", str(corpus)], after(loading, 0.05)),
        "plan --calibrate": (["plan", "--config", "small", "--calibrate"], after(bar, 2.0)),
        "evaluate": (["evaluate", str(model), "--corpus", str(corpus), "--pseudo_perplexity_documents", "1000"],
                     after(bar, 3.0)),
        "finetune-sequence": (["finetune-sequence", *tune, str(table), *out()], after(bar, 2.0)),
        "finetune-token": (["finetune-token", *tune, str(conll), *out()], after(bar, 2.0)),
        "predict": (["predict", "--model_name_or_path", str(classifier), "--input", str(many), "--output_file",
                     str(folder / "predicted.jsonl")], after(bar, 1.0)),
        "grow": (["grow", "--model_name_or_path", str(model), "--input", str(sample), "--num_hidden_layers", "8",
                  "--pseudo_perplexity_documents", "2000", *out()], after(bar, 1.0)),
        "grow --new_tokens": (["grow", "--model_name_or_path", str(model), "--input", str(many), "--new_tokens",
                               "astronomers", "--pseudo_perplexity_documents", "2000", *out()], after(bar, 1.0)),
        "adapt": (["adapt", "--model_name_or_path", str(model), "--input", str(sample), *out()], after(loading, 8.0)),
        "convert": (["convert", "--input", str(model), "--to", "native", *out()], after(loading, 1.0)),
        "describe": (["describe", "bert-base"], after(loading, 1.0)),
        "publish --dry_run": (["publish", str(model), "--repo_id", "a/b", "--dry_run"], after(loading, 6.0)),
        "demo": (["demo", *out()], after(loading, 12.0)),
        "demo-app": (["demo-app", str(model)], after("http://", 2.0)),
    }  # fmt: skip
    if importlib.util.find_spec("gradio") is None:
        del rows["demo-app"]
    print("\n".join(measure({name: row for name, row in rows.items() if only in name})))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
