"""Predict labels or tags with a fine-tuned model, for files or lines of standard input.

    clozebert predict --model_name_or_path classifier --input texts.csv --output_file labels.jsonl

The output is JSON lines. Each holds the labels of a text, or the tags of its words and its entities, with scores.
"""

import sys
from collections.abc import Sequence

from clozebert.finetuning.arguments import PredictionArguments
from clozebert.scripts._program import parse, run


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse(PredictionArguments, argv, doc=__doc__, verb="predict", first="model_name_or_path")
    import clozebert  # noqa: F401  (lets AutoModel know our models)
    from clozebert.finetuning.predict import predict

    count = predict(arguments)
    if arguments.output_file != "-":
        print(f"{count} predictions in {arguments.output_file}", file=sys.stderr)


if __name__ == "__main__":
    run(main)
