#!/usr/bin/env python
"""Adapt a trained encoder to other text, and report what it gained and what it forgot.

    clozebert adapt --model_name_or_path bert-base-uncased --input my_text/ --output_dir adapted --max_minutes 60

The encoder is a BERT, RoBERTa, ModernBERT … with its masked-LM head, of the Hub or a folder. Masked-language modelling
continues on the text, with another vocabulary if wanted: --extend_vocabulary, --trim_vocabulary or --tokenizer_name.
--replay_input mixes in text of the old kind, against forgetting. The output folder gets a model of the same
architecture, report.md and a model card. The same command goes on where it was stopped.
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
