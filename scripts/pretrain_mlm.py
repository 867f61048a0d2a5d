#!/usr/bin/env python
"""Pretrain an encoder by masked-language modelling.

    pretrain_mlm.py --config tiny --corpus CORPUS --tokenizer_name TOKENIZER --output_dir DIR
    accelerate launch --config_file LAUNCH.yaml scripts/pretrain_mlm.py --config tiny …

A recipe (`--config`, a name or a YAML file) holds everything a run needs but its paths; every field of a recipe, and
every field of the model's configuration, is a flag that overrides it.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clozebert.scripts._program import parse, run

DESCRIPTION = "Pretrain an encoder by masked-language modelling, from a corpus that prepare_corpus wrote."


def main(argv: Sequence[str] | None = None) -> None:
    """Read recipe and flags, then train."""
    from clozebert.training.arguments import PretrainingArguments
    from clozebert.training.run_settings import make_config, split_settings

    flags = _parse_flags(argv)
    name = flags.pop("config", None)
    settings, model = split_settings(name, flags)
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
    from clozebert.training.run_settings import flags_class, read_flag

    values = vars(parse(flags_class(), argv, prog="pretrain_mlm", description=DESCRIPTION))
    return {key: read_flag(key, value) for key, value in values.items() if value is not None}


if __name__ == "__main__":
    run(main)
