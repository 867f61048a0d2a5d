#!/usr/bin/env python
"""Pretrain an encoder by masked-language modelling, on a corpus that prepare-corpus wrote.

    clozebert pretrain --config small --corpus corpus --tokenizer_name tokenizer --output_dir encoder
    clozebert pretrain --config small --help   (the same, with this recipe's values)

    accelerate launch --config_file LAUNCH.yaml -m clozebert.scripts.pretrain_mlm --config tiny …

A recipe (`--config`: a name or a YAML file) holds everything that a run needs except its paths. Every field of a recipe
is also a flag, and so are many fields of the model's configuration. Flags override the recipe.
"""

from collections.abc import Sequence
from pathlib import Path

from clozebert.scripts._program import exit_if_stopped, parse_run_flags, run
from clozebert.utils.processes import process_rank


def main(argv: Sequence[str] | None = None) -> None:
    from clozebert.training.arguments import PretrainingArguments
    from clozebert.training.run_settings import check_model_is_named, make_config, split_settings, suit_continuing

    flags = parse_run_flags(
        argv,
        doc=__doc__,
        verb="pretrain",
        needed=("corpus", "tokenizer_name", "output_dir"),
        notes=("", "Further fields of the model can be set in a recipe file, under `model:`."),
    )
    name = flags.pop("config", None)
    settings, model = split_settings(name, flags)
    check_model_is_named(settings, model)
    said = suit_continuing(settings, flags)
    if model.pop("vocab_size", None) is not None:
        said.append("vocab_size of the recipe is not used: the model's is the tokenizer's, rounded up to 64")
    if process_rank() == 0:
        print("".join(f"{line}\n" for line in said), end="", flush=True)
    arguments = PretrainingArguments(**settings)
    config = make_config(model, recipe=name)

    from clozebert.hub.origin import card_writer
    from clozebert.training.pretraining import pretrain

    write_card = card_writer(arguments.model_name_or_path)
    results = pretrain(arguments, config, write_card=write_card, recipe=name and Path(name).name)
    if arguments.dry_run and process_rank() == 0:
        print("dry run: training steps ran, and nothing was written")
    exit_if_stopped(results)


if __name__ == "__main__":
    run(main)
