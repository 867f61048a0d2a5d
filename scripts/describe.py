#!/usr/bin/env python
"""Print parameters, FLOPs and bytes of an encoder, part by part, for a batch size and a length.

    clozebert describe bert-base --batch_size 16 --sequence_length 512
    clozebert describe encoder --text 'the cat sat on the mat'

You name an architecture, a recipe (its name or a YAML file) or a folder with a config.json. With `--text`, the program
shows which tokens of the text each attention head looks at. It prints the formulas that it evaluates: they are strings
in `clozebert.configuration.costs`.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from huggingface_hub.errors import StrictDataclassError

from clozebert.configuration.costs import SYMBOLS, default_length, parts_of, short_number, symbols_of
from clozebert.scripts._program import check_output_file, parse, run
from clozebert.utils.answers import answer_by_name
from clozebert.utils.command_line import flag
from clozebert.utils.errors import MissingPackageError, UserError, as_user_errors, check_at_least, did_you_mean
from clozebert.utils.figures import save_figure
from clozebert.utils.files import whole_file
from clozebert.utils.untrusted import check_model_folder

if TYPE_CHECKING:
    from clozebert import ClozeBertConfig

# For the image: inches per token, dots per inch, and the most dots on a side.
_INCHES, _DOTS, _PIXELS = 0.16, 150, 30_000
BYTES_OF = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclasses.dataclass
class DescribeArguments:
    config: str = flag(
        "named architecture, recipe, YAML file or folder of a model; can come first, without the flag", ...
    )
    batch_size: int = flag("rows in a batch", 1)
    sequence_length: int | None = flag(
        "tokens in a row (default: 512, or the model's longest if shorter; of an image, its patches)"
    )
    dtype: Literal["float32", "bfloat16", "float16"] = flag("float32, bfloat16 or float16", "float32")
    text: str | None = flag("draw the attention of each head over this sentence; --config must be a model's folder")
    output_file: str = flag("the picture for --text", "attention.png")


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table, or draw the attention maps."""
    arguments = parse(DescribeArguments, argv, doc=__doc__, verb="describe", first="config")
    check_at_least(arguments, batch_size=1, sequence_length=1)
    unused = ("output_file",) if arguments.text is None else ("batch_size", "sequence_length", "dtype")
    for name in unused:
        if getattr(arguments, name) != DescribeArguments.__dataclass_fields__[name].default:
            beside = "without" if arguments.text is None else "beside"
            raise UserError(f"--{name} {getattr(arguments, name)} has no effect {beside} --text: leave it out")
    if arguments.text is not None:
        check_output_file(arguments.output_file)
        draw_attention_map(arguments.config, arguments.text, arguments.output_file)
        print(f"attention maps in {arguments.output_file}")
        return
    config = find_config(arguments.config)
    length = arguments.sequence_length or default_length(config)
    if config.image_size is None and config.position_embedding_type in ("absolute", "sinusoidal"):
        most = config.max_position_embeddings
        if length > most:
            raise UserError(f"--sequence_length={length} is longer than the model's max_position_embeddings={most}")
    print(
        "\n".join(table(config, batch_size=arguments.batch_size, length=length, bytes_each=BYTES_OF[arguments.dtype]))
    )


@as_user_errors(ValueError, OSError, StrictDataclassError)
def find_config(name: str) -> "ClozeBertConfig":
    """The configuration of an architecture, a recipe or a folder called `name`.

    Raises:
        ValueError: the name is unknown, or the folder holds another kind of model.
    """
    from clozebert.configuration import ARCHITECTURES, ClozeBertConfig, list_recipes
    from clozebert.training.initialization.initial_model import load_configuration
    from clozebert.training.run_settings import make_config, split_settings

    path = Path(name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(f"folder {name} holds no config.json")
        return load_configuration(name, flag="config")
    if name in ARCHITECTURES:
        return ClozeBertConfig.from_name(name)
    if path.suffix in (".yaml", ".yml") or name in list_recipes():
        return make_config(split_settings(name, {})[1], recipe=name)
    known = sorted({*ARCHITECTURES, *list_recipes()})
    raise UserError(f"{name!r} is neither an architecture, a recipe nor a folder; {did_you_mean(name, known)}")


def table(config: "ClozeBertConfig", *, batch_size: int, length: int, bytes_each: int) -> list[str]:
    """The lines to print."""
    symbols = symbols_of(config, batch_size=batch_size, length=length)
    parts = parts_of(config, *(config.architectures or [])[:1])  # a trained model's parts include its head
    counts = [
        [part.count(formula, symbols) for formula in (part.parameters, part.flops, part.written)] for part in parts
    ]
    total = [sum(column) for column in zip(*counts, strict=True)]
    rows = [["", "part", "parameters", "weights", "FLOPs forward", "activations"]]
    for part, count in zip(parts, counts, strict=True):
        times = f"{part.times} of" if part.times > 1 else ""
        rows.append([times, part.name, *_figures(count, bytes_each)])
    rows.append(["", "all", *_figures(total, bytes_each)])
    lines = [f"batch B = {batch_size}, length T = {length}, {bytes_each} bytes a number", "", *_aligned(rows), ""]
    lines.append("formulas, of one each: parameters; FLOPs of its matrix products; values that these write")
    lines += _aligned([[part.name, *map(_pretty, (part.parameters, part.flops, part.written))] for part in parts])
    used = set(re.findall(r"[A-Z]", " ".join(f"{part.parameters} {part.flops} {part.written}" for part in parts)))
    lines += ["", ", ".join(f"{name} {SYMBOLS[name]} = {symbols[name]:,}" for name in symbols if name in used)]
    lines += ["", *_remarks(config, symbols, total, bytes_each)]
    return lines


def _remarks(config: "ClozeBertConfig", symbols: dict[str, int], total: list[int], bytes_each: int) -> list[str]:
    maps = 3 if config.mlp_type == "glu" else 2
    d, g, f = (symbols[name] for name in "DGF")
    even = (2 * d * d + 2 * d * g + maps * d * f) // (2 * d)
    weights = config.num_hidden_layers * symbols["B"] * symbols["H"] * symbols["T"] ** 2 * bytes_each
    return [
        f"A training step takes about three times the forward FLOPs: {short_number(3 * total[1])}.",
        f"Attention over all tokens grows as T²·D, everything else as T. They cost a layer the same at T = {even:,}.",
        f"Eager attention writes its weights too, B·H·T² numbers a layer: {short_number(weights)}B in all.",
    ]


def _figures(count: list[int], bytes_each: int) -> list[str]:
    parameters, flops, written = count
    return [
        f"{parameters:,}",
        f"{short_number(parameters * bytes_each)}B",
        short_number(flops),
        f"{short_number(written * bytes_each)}B",
    ]


def _pretty(formula: str) -> str:
    """A formula with dots for products, and with squares: `2*D*D` becomes `2·D²`."""
    return re.sub(r"\b([A-Z])\*\1\b", r"\1²", formula).replace("*", "·")


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    number = re.compile(r"[\d.,]+( [kMGTPE]?B?)?$|parameters$|weights$|FLOPs forward$|activations$")
    return [
        "  ".join(
            cell.rjust(width) if column and number.match(cell.strip()) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def draw_attention_map(folder: str, text: str, output_file: str) -> None:
    """Draw the weights softmax(QK^T / sqrt(K)): a row for each layer, a column for each head.

    Raises:
        ValueError: the folder holds no text model, or no tokenizer.
        ImportError: matplotlib is not installed.
    """
    if not Path(folder).is_dir():
        raise UserError(f"--text needs the folder of a trained model with its tokenizer, but {folder!r} is none")
    config = find_config(folder)
    if config.image_size is not None:
        raise UserError(f"--text needs a text model, but {folder} holds one of images")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackageError("drawing attention maps needs matplotlib: pip install matplotlib") from None
    tokens, weights_LHTT = attention_of(folder, text)
    layers, heads = len(weights_LHTT), len(weights_LHTT[0])
    side = max(1.2, _INCHES * len(tokens))
    figure = Figure(figsize=(side * heads + 1, side * layers + 1), layout="constrained")
    axes = figure.subplots(layers, heads, squeeze=False)
    for layer in range(layers):
        for head in range(heads):
            axis = axes[layer][head]
            axis.imshow(weights_LHTT[layer][head], vmin=0, vmax=1, cmap="Blues")
            axis.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=6)
            axis.set_xticks([])
            axis.set_yticks([])
            if head == 0:
                axis.set_yticks(range(len(tokens)), tokens, fontsize=5, parse_math=False)
            if layer == layers - 1:
                axis.set_xticks(range(len(tokens)), tokens, fontsize=5, rotation=90, parse_math=False)
    figure.supylabel("a token (row) looks at …", fontsize=7)
    path = Path(output_file)
    with as_user_errors(ValueError, OSError, about=f"--output_file {output_file}"), whole_file(path) as file:
        about = f"{output_file}: no font here has all letters of the text, so some are boxes"
        save_figure(figure, file, about_missing=about, dpi=_DOTS, format=path.suffix.removeprefix(".") or "png")


def _most_tokens(config: "ClozeBertConfig") -> int:
    """The most tokens that the model takes and whose image has no side of more than `_PIXELS`."""
    maps = max(config.num_hidden_layers, config.num_attention_heads)
    return min(config.max_position_embeddings, int((_PIXELS / _DOTS - 1) / maps / _INCHES))


def attention_of(folder: str, text: str) -> tuple[list[str], Any]:
    """The tokens of a sentence, and the attention weights [layers][H, T, T] as arrays.

    Raises:
        UserError: the folder cannot be loaded, or there are more tokens than can be drawn.
    """
    import torch
    from transformers import AutoTokenizer

    from clozebert import ClozeBertModel
    from clozebert.utils.progress_bar import quiet

    with as_user_errors(Exception, about=f"{folder} cannot be loaded"):
        check_model_folder(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        with quiet():  # the head is left out on purpose, which transformers would report
            model = ClozeBertModel.from_pretrained(folder, attn_implementation="eager", use_safetensors=True).eval()
    answer_by_name(model.config)
    inputs = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    length, most = inputs["input_ids"].shape[1], _most_tokens(model.config)
    if length == 0:
        raise UserError("--text holds no token")
    if length > most:
        raise UserError(f"--text has {length} tokens, and at most {most} of this model can be drawn: give a part of it")
    with torch.no_grad():
        attentions = model(
            inputs["input_ids"], attention_mask=inputs["attention_mask"], output_attentions=True
        ).attentions
    # The pieces as the text has them; byte-level entries write letters outside of ASCII as signs for bytes.
    ids, spans = inputs["input_ids"][0].tolist(), inputs["offset_mapping"][0].tolist()
    entries: Any = tokenizer.convert_ids_to_tokens(ids)
    tokens = [text[start:end].strip() or entry for entry, (start, end) in zip(entries, spans, strict=True)]
    return tokens, [weights_1HTT[0].float().numpy() for weights_1HTT in attentions]


if __name__ == "__main__":
    run(main)
