"""Convert a saved model: transformers' own bert, roberta, modernbert, vit … to ClozeBERT, or back.

clozebert convert --input bert-base-uncased --output_dir bert --to clozebert
clozebert convert --input encoder --output_dir native --to native
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from clozebert.scripts._program import parse, run
from clozebert.utils.command_line import flag
from clozebert.utils.errors import UserError


@dataclass
class ConvertArguments:
    input: str = flag("the model: a folder, or its name on the Hub", ..., metavar="NAME")
    output_dir: str = flag("the folder to write", ...)
    to: Literal["clozebert", "native"] = flag("clozebert, or native: an architecture of transformers' own", ...)
    architecture: str | None = flag(
        "with --to native: the model_type to write (default: the one it came from, else the first that fits)"
    )
    allow_pickle: bool = flag("read pytorch_model.bin (weights_only) if there are no safetensors", False)
    overwrite_output_dir: bool = flag("write into a folder that is not empty; replace the model in it", False)


def main(argv: list[str] | None = None) -> None:
    arguments = parse(ConvertArguments, argv, doc=__doc__, verb="convert")
    if Path(arguments.output_dir).resolve() == Path(arguments.input).resolve():
        raise UserError("output_dir is the input: the model would be overwritten while it is read")

    from clozebert.hub.convert import convert_folder

    name = convert_folder(
        arguments.input,
        arguments.output_dir,
        to=arguments.to,
        allow_pickle=arguments.allow_pickle,
        architecture=arguments.architecture,
        overwrite=arguments.overwrite_output_dir,
    )
    print(f"{arguments.output_dir}: {name}")


if __name__ == "__main__":
    run(main)
