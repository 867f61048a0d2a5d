#!/usr/bin/env python
"""Pretrain an encoder by masked-language modelling.

    clozebert pretrain --config tiny --corpus CORPUS --tokenizer_name TOKENIZER --output_dir DIR
    accelerate launch --config_file LAUNCH.yaml -m clozebert.scripts.pretrain_mlm --config tiny …

A recipe (`--config`, a name or a YAML file) holds everything a run needs but its paths; every field of a recipe, and
many fields of the model's configuration, is a flag that overrides it.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clozebert.scripts._program import parse_flags, run

DESCRIPTION = "Pretrain an encoder by masked-language modelling, on a corpus that prepare-corpus wrote."
_EXAMPLES = (
    "--config small --corpus corpus --tokenizer_name tokenizer --output_dir encoder",
    "--config small --help   (the same, with this recipe's values)",
)


def main(argv: Sequence[str] | None = None) -> None:
    """Read recipe and flags, then train."""
    from clozebert.training.arguments import PretrainingArguments
    from clozebert.training.run_settings import make_config, split_settings, suit_continuing

    flags = _parse_flags(argv)
    name = flags.pop("config", None)
    settings, model = split_settings(name, flags)
    said = suit_continuing(settings, flags)
    if model.pop("vocab_size", None) is not None:
        said.append("vocab_size of the recipe is not used: the model's is the tokenizer's, rounded up to 64")
    if os.environ.get("RANK", "0") == "0":
        print("".join(f"{line}\n" for line in said), end="", flush=True)
    arguments = PretrainingArguments(**settings)
    config = make_config(model)

    from clozebert.hub.card import write_card
    from clozebert.training.pretraining import pretrain

    results = pretrain(arguments, config, write_card=write_card, recipe=name and Path(name).stem)
    if "stopped_by" in results:
        # As a shell reports a process that a signal ended: whoever started the run sees that it is not done.
        sys.exit(128 + results["stopped_by"])


def _parse_flags(argv: Sequence[str] | None) -> dict[str, Any]:
    """The flags that were given, by name; the others keep the recipe's value."""
    from clozebert.training.run_settings import hints, pretraining_flags, read_flag, recipe_notes, values_for_help

    words = list(sys.argv[1:] if argv is None else argv)
    values = parse_flags(
        pretraining_flags(shown=values_for_help(words), needed=("corpus", "tokenizer_name", "output_dir")),
        words,
        verb="pretrain",
        description=DESCRIPTION,
        examples=_EXAMPLES,
        notes=[*recipe_notes(), "", "Further fields of the model can be set in a recipe file, under `model:`."],
        hints=hints(),
    )
    return {key: read_flag(key, value) for key, value in values.items() if value is not None}


if __name__ == "__main__":
    run(main)
