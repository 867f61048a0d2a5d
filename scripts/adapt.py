#!/usr/bin/env python
"""Adapt a trained encoder to other text, and report what it gained and what it forgot.

    clozebert adapt --model_name_or_path bert-base-uncased --input my_text/ --output_dir adapted --max_minutes 60

The encoder is a BERT, RoBERTa, ModernBERT … with its masked-LM head, from the Hub or a folder. The program continues
masked-language modelling on the new text. `--extend_vocabulary`, `--trim_vocabulary` and `--tokenizer_name` change the
vocabulary. `--replay_input` mixes in text of the old kind, so that the model forgets less. The output folder gets a
model of the same architecture, report.md and a model card. After an interruption, the same command continues the run.
"""

from collections.abc import Sequence

from clozebert.adaptation.arguments import AdaptationArguments
from clozebert.scripts._program import exit_if_stopped, parse, run


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse(AdaptationArguments, argv, doc=__doc__, verb="adapt")

    from clozebert.adaptation.adapt import adapt

    exit_if_stopped(adapt(arguments, say=lambda line: print(line, flush=True)))


if __name__ == "__main__":
    run(main)
