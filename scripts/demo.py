"""Run everything once: from the docstrings of the installed Python packages to an encoder and two classifiers.

    clozebert demo --output_dir runs/demo

Each step is a `clozebert` command. The program prints the command, so that you can repeat it with text of your own.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from clozebert.configuration import load_recipe
from clozebert.finetuning.metrics import check_metric_libraries
from clozebert.scripts._program import parse, run
from clozebert.utils.command_line import flag
from clozebert.utils.errors import UserError, as_user_errors, check_at_least
from clozebert.utils.output_folders import check_output_dir

_LEAST_EXAMPLES = 50
PROMPTS = (
    "Return the [MASK] of the array.",
    "Raises a ValueError if the [MASK] is not valid.",
    "The number of [MASK] to use. The default is 1.",
    "If True, return a [MASK] of the object.",
)

# Loads the folder as a user without this package would: importing clozebert fails there.
FILL_MASK = """
import json, sys
sys.modules["clozebert"] = None
import transformers
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
folder, prompts = sys.argv[1], json.loads(sys.argv[2])
model = transformers.AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True)
tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
fill = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer, top_k=4)
found = [[(guess["token_str"].strip(), guess["score"]) for guess in fill(prompt)] for prompt in prompts]
print(json.dumps(found))
"""


@dataclass
class DemoArguments:
    output_dir: str = flag("where everything goes", "runs/demo")
    overwrite_output_dir: bool = flag(
        "write into a folder that is not empty; replace what an earlier demo wrote", False
    )
    input: str = flag("text to pretrain on", "installed-python")
    config: str = flag("recipe of the pretraining run", "nano")
    # With these defaults the whole demo, including the set-up of `make demo`, takes under eight minutes on two cores,
    # even if later steps are a quarter slower than the first ones.
    max_minutes: float = flag("minutes of pretraining", 3.0)
    max_steps: int | None = flag("steps of pretraining, instead of minutes")
    task_examples: int = flag("training examples of each fine-tuning task, at most; at least 50", 1500)


def main(argv: list[str] | None = None) -> None:
    """Run every step, then print where the results are."""
    arguments = parse(DemoArguments, argv, doc=__doc__, verb="demo")
    with as_user_errors(about="--config"):
        load_recipe(arguments.config)  # fails now if it is unknown, not after the tokenizer and the corpus
    # Fewer examples may lack a class that a test text has.
    check_at_least(arguments, max_steps=1, task_examples=_LEAST_EXAMPLES)
    if arguments.max_minutes <= 0:
        raise UserError(f"max_minutes={arguments.max_minutes:g} must be above 0")
    check_metric_libraries(tags=True)
    begun = time.monotonic()
    folder = Path(arguments.output_dir)
    check_output_dir(arguments.output_dir, overwrite=arguments.overwrite_output_dir)
    # Each program replaces only the files that it wrote itself.
    again = ["--overwrite_output_dir"] if arguments.overwrite_output_dir else []
    tokenizer, corpus, encoder = folder / "tokenizer", folder / "corpus", folder / "encoder"

    step("1. A tokenizer", "train-tokenizer", "--input", arguments.input, "--algorithm", "bpe", "--vocab_size", "8192",
         "--output_dir", tokenizer, *again)  # fmt: skip
    step("2. The corpus, tokenized; whole packages are held out", "prepare-corpus", "--input", arguments.input,
         "--tokenizer_name", tokenizer, "--output_dir", corpus, *again)  # fmt: skip
    steps = arguments.max_steps
    limit = ["--max_minutes", f"{arguments.max_minutes:g}"] if steps is None else ["--max_steps", str(steps)]
    step("3. Pretraining", "pretrain", "--config", arguments.config, "--corpus", corpus, "--tokenizer_name", tokenizer,
         "--output_dir", encoder, *limit, *again)  # fmt: skip
    show_fill_mask(encoder)
    write_tasks(folder / "tasks", examples=arguments.task_examples)
    sequence, token = folder / "package-classifier", folder / "token-tagger"
    step("5. Which package does this docstring document?", "finetune-sequence", *finetune_flags(
        encoder, folder / "tasks" / "packages", "csv", sequence), *again)  # fmt: skip
    step("6. What kind is each token of Python source?", "finetune-token", *finetune_flags(
        encoder, folder / "tasks" / "token_kinds", "jsonl", token), *again)  # fmt: skip
    report(folder, encoder, sequence, token, seconds=time.monotonic() - begun)


def step(title: str, verb: str, *flags: str | Path) -> None:
    """Print and run one command of `clozebert`; a failed one ends the demonstration."""
    command = [verb, *map(str, flags)]
    print(f"\n== {title}\n$ clozebert {shlex.join(command)}", flush=True)
    status = _status_of([sys.executable, "-m", "clozebert", *command])
    if status < 0:
        raise UserError(f"{verb} was ended by signal {-status}; for 9, see whether the memory was used up")
    if status:
        sys.exit(status)


def _status_of(command: list[str]) -> int:
    """Run a command to its end. SIGTERM, which reaches this process alone, is passed on to it, and ends both."""
    child: subprocess.Popen[bytes] | None = None
    is_stopped = False

    def stop(number: int, frame: object) -> None:
        nonlocal is_stopped
        is_stopped = True
        if child is not None:
            child.terminate()

    before = signal.signal(signal.SIGTERM, stop)
    try:
        child = subprocess.Popen(command)
        if is_stopped:  # while the command was started
            child.terminate()
        status = child.wait()
    finally:
        signal.signal(signal.SIGTERM, before)
        if child is not None:
            child.kill()  # after Ctrl-C; one that has ended is left alone
    return 128 + signal.SIGTERM if is_stopped else status


def finetune_flags(encoder: Path, data: Path, suffix: str, output: Path) -> list[str | Path]:
    """The flags that both fine-tuning programs share."""
    files = [f"{flag}={data}/{split}.{suffix}" for flag, split in (
        ("--train_file", "train"), ("--validation_file", "validation"), ("--test_file", "test"))]  # fmt: skip
    return ["--model_name_or_path", encoder, *files, "--num_train_epochs", "3", "--output_dir", output]


def show_fill_mask(encoder: Path) -> None:
    """Load the encoder in a process that cannot import clozebert, and print its guesses."""
    print("\n== 4. Loaded by AutoModelForMaskedLM where clozebert cannot be imported; its guesses", flush=True)
    prompts = json.dumps(PROMPTS)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FILL_MASK, str(encoder), prompts], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"error: the saved encoder does not load without clozebert:\n{done.stderr}")
    for prompt, guesses in zip(PROMPTS, json.loads(done.stdout.splitlines()[-1]), strict=True):
        words = ", ".join(f"{word} {score:.0%}" for word, score in guesses)
        print(f"  {prompt:55} {words}")


def write_tasks(folder: Path, *, examples: int) -> None:
    """Write the data of both fine-tuning tasks."""
    from clozebert.corpus.demo.tasks import write_package_task, write_token_kind_task

    write_package_task(folder / "packages", examples=examples)
    write_token_kind_task(folder / "token_kinds", examples=examples)


def report(folder: Path, encoder: Path, sequence: Path, token: Path, *, seconds: float) -> None:
    """Print the results and where they are."""
    pretrained = json.loads((encoder / "all_results.json").read_text())
    print(f"\n== Done in {seconds / 60:.1f} minutes")
    if "eval_loss" in pretrained:  # if all text is in one package, nothing is held out
        print(f"  masked-LM loss on held-out text       {pretrained['eval_loss']:.2f}")
    for title, results in (("package of a docstring", sequence), ("kinds of Python tokens", token)):
        values = json.loads((results / "all_results.json").read_text())
        print(
            f"  {title:24} accuracy {values['test_accuracy']:.3f}   F1 {values['test_f1_macro']:.3f}   "
            f"majority baseline {values['test_majority_accuracy']:.3f}"
        )
    places = {
        "tokenizer": folder / "tokenizer",
        "corpus": folder / "corpus",
        "encoder": encoder,
        "loss curve": encoder / "loss_curve.png",
        "model card": encoder / "README.md",
        "package classifier": sequence,
        "token tagger": token,
    }
    for name, place in places.items():
        print(f"  {name:20} {place}")


if __name__ == "__main__":
    run(main)
