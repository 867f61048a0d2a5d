"""Fine-tune an encoder to tag words from CoNLL, CoNLL-U, JSON lines or Parquet.

    clozebert finetune-token --model_name_or_path encoder --train_file train.conllu --output_dir tagger

The tags may be named entities, parts of speech or slots.
"""

from collections.abc import Sequence

from clozebert.finetuning.arguments import TokenArguments
from clozebert.scripts._program import exit_if_stopped, parse, run


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse(TokenArguments, argv, doc=__doc__, verb="finetune-token")
    import clozebert  # noqa: F401  (lets AutoModel know our models)
    from clozebert.finetuning.run import finetune
    from clozebert.hub.origin import OF_AN_ENCODER, card_writer

    write_card = card_writer(arguments.model_name_or_path, OF_AN_ENCODER)
    exit_if_stopped(finetune(arguments, write_card=write_card))


if __name__ == "__main__":
    run(main)
