"""Fine-tune an encoder to classify texts: one label, several labels, or a number; single texts or pairs."""

from collections.abc import Sequence

from clozebert.finetuning.arguments import SequenceArguments
from clozebert.scripts._program import parse, run

_EXAMPLES = ("--model_name_or_path encoder --train_file train.csv --test_file test.csv --output_dir classifier",)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the flags, fine-tune, and print the scores."""
    arguments = parse(
        SequenceArguments,
        argv,
        verb="finetune-sequence",
        description="Fine-tune an encoder to classify texts from CSV, TSV, JSON lines or Parquet.",
        examples=_EXAMPLES,
    )
    import clozebert  # noqa: F401  (lets AutoModel know our models)
    from clozebert.finetuning.run import finetune
    from clozebert.hub.card import write_card

    finetune(arguments, write_card=write_card)


if __name__ == "__main__":
    run(main)
