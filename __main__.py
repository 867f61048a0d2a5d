"""`clozebert VERB …` and `python -m clozebert VERB …`: each verb is a program of `scripts/`."""

import importlib
import sys

from clozebert.scripts._program import run
from clozebert.utils.errors import did_you_mean, exit_with_error

PROGRAMS = {
    "demo": ("demo", "run everything once, on the docstrings of this machine's Python packages"),
    "train-tokenizer": ("train_tokenizer", "train a WordPiece, BPE or Unigram tokenizer on text"),
    "prepare-corpus": ("prepare_corpus", "tokenize text into memory-mapped shards"),
    "check": ("check", "hash every file of a corpus, a checkpoint or a run, and name what is damaged"),
    "plan": ("plan", "predict a run's FLOPs, memory, hours and cost, before it begins"),
    "pretrain": ("pretrain_mlm", "pretrain an encoder by masked-language modelling"),
    "launch-config": ("launch_config", "print the path of a configuration file for accelerate launch"),
    "evaluate": ("evaluate_mlm", "score a masked-LM model on held-out text and on BLiMP's minimal pairs"),
    "describe": ("describe", "print what an encoder costs, part by part, or draw its attention"),
    "adapt": ("adapt", "adapt a trained encoder to other text, and report what it gained and forgot"),
    "grow": ("grow_model", "make a larger model from a trained one: tokens, layers, width, length"),
    "finetune-sequence": ("finetune_sequence_classification", "fine-tune an encoder to classify texts"),
    "finetune-token": ("finetune_token_classification", "fine-tune an encoder to tag words"),
    "predict": ("predict", "classify texts or tag words, in files or standard input"),
    "convert": ("convert_checkpoint", "convert a BERT, RoBERTa, ModernBERT, ViT … to ClozeBERT, or back"),
    "demo-app": ("demo_app", "open a page in the browser to try models on"),
    "publish": ("publish", "complete a model, check that it loads, and push it to the Hub"),
}


def usage() -> str:
    width = max(map(len, PROGRAMS))
    lines = [f"  {verb:{width}}  {summary}" for verb, (_, summary) in PROGRAMS.items()]
    return "\n".join(
        ["usage: clozebert COMMAND [flags]", "", *lines, "", "clozebert COMMAND --help shows the flags of a command."]
    )


def main() -> None:
    """Run the program of the verb that the command line names."""
    arguments = sys.argv[1:]
    if not arguments:
        print(usage())
        sys.exit(2)
    if arguments[0] in ("-h", "--help"):
        run(lambda: print(usage()))
    if arguments[0] == "--version":
        from clozebert import __version__

        print(__version__)
        sys.exit(0)
    verb = arguments[0]
    if verb not in PROGRAMS:
        hint = did_you_mean(verb, PROGRAMS, otherwise="")
        exit_with_error(f"unknown command {verb!r}" + (f"; {hint}" if hint else f"\n\n{usage()}"))
    program = importlib.import_module(f"clozebert.scripts.{PROGRAMS[verb][0]}")
    run(lambda: program.main(arguments[1:]))


if __name__ == "__main__":
    main()
