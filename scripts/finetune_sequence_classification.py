"""Fine-tune an encoder to classify texts from CSV, TSV, JSON lines or Parquet.

    clozebert finetune-sequence --model_name_or_path encoder --train_file train.csv --output_dir classifier

An example is a text or a pair of texts. Its label is one class, several classes, or a number.
"""

from collections.abc import Sequence

from clozebert.finetuning.arguments import SequenceArguments
from clozebert.scripts._program import exit_if_stopped, parse, run


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse(SequenceArguments, argv, doc=__doc__, verb="finetune-sequence")
    import clozebert  # noqa: F401  (lets AutoModel know our models)
    from clozebert.finetuning.run import finetune
    from clozebert.hub.origin import OF_AN_ENCODER, card_writer

    write_card = card_writer(arguments.model_name_or_path, OF_AN_ENCODER)
    exit_if_stopped(finetune(arguments, write_card=write_card))


if __name__ == "__main__":
    run(main)
