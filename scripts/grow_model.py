"""Make a larger model from a trained one: more tokens, more or wider layers, longer sequences.

    clozebert grow --model_name_or_path encoder --input sample.txt --output_dir larger --num_hidden_layers 12

The program measures pseudo-perplexity before and after each growth. Train the larger model afterwards:
`clozebert pretrain --model_name_or_path larger …`
"""

import os
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clozebert.corpus.readers.reading_flags import ReadingFlags
from clozebert.scripts._program import open_input, parse, read_file, run, say_left_out
from clozebert.utils.command_line import flag
from clozebert.utils.errors import UserError, check_at_least
from clozebert.utils.files import whole_files
from clozebert.utils.output_folders import check_output_dir
from clozebert.utils.tokenizer_files import save_tokenizer
from clozebert.utils.wording import counted

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from clozebert.training.initialization.new_tokens import Enlarged


@dataclass
class GrowArguments(ReadingFlags):
    model_name_or_path: str = flag(
        "a masked-LM model with its tokenizer: a ClozeBERT, or one that convert can read", ...
    )
    input: list[str] = flag("text on which pseudo-perplexity is measured", ...)
    output_dir: str = flag("the folder to write; empty, or not there yet", ...)
    pseudo_perplexity_documents: int = flag("measure on this many documents, from the beginning", 100)
    new_tokens: list[str] | None = flag("tokens to add; @FILE reads them, one on each line")
    num_hidden_layers: int | None = flag("layers; the existing ones are repeated")
    hidden_size: int | None = flag("width, a multiple of the head size")
    num_attention_heads: int | None = flag("heads; their size stays the same")
    intermediate_size: int | None = flag("width of the feed-forward")
    max_position_embeddings: int | None = flag("the longest sequence")
    rope_theta: float | None = flag("base of rotary positions at that length (default: stretched to fit)")
    noise: float | None = flag(
        "noise on copied weights, as a share of their tensor's standard deviation (default: 0.01)"
    )
    seed: int | None = flag("seed of the noise (default: 0)")


_WIDTHS = ("hidden_size", "num_attention_heads", "intermediate_size")


def main(argv: list[str] | None = None) -> None:
    arguments = parse(GrowArguments, argv, doc=__doc__, verb="grow")
    check_at_least(arguments, pseudo_perplexity_documents=1)
    for name in ("noise", "seed"):
        if getattr(arguments, name) is not None and not any(getattr(arguments, width) for width in _WIDTHS):
            raise UserError(f"--{name} is for a model that grows wider: give one of {', '.join(_WIDTHS)}, too")

    from clozebert.corpus.tokenizer import load_tokenizer
    from clozebert.hub.convert import load_clozebert_masked_lm
    from clozebert.hub.loading import find_folder
    from clozebert.training.initialization.growth import grow
    from clozebert.training.initialization.new_tokens import enlarge

    check_place = partial(check_output_dir, arguments.output_dir, way_out="give another folder")
    check_place()
    new_tokens = _new_tokens(arguments.new_tokens or [])
    reader = open_input(arguments)
    texts = list(islice(reader.texts(), arguments.pseudo_perplexity_documents))
    say_left_out(reader)
    folder = find_folder(arguments.model_name_or_path)
    tokenizer: Any = load_tokenizer(str(folder), flag="model_name_or_path")
    new_tokens = _say_new_tokens(new_tokens, enlarge(tokenizer, new_tokens))
    model = load_clozebert_masked_lm(folder)
    dtype = model.dtype
    model = model.float()  # so that rounding does not show in the figures
    if model.config.mask_token_id is None:
        model.config.mask_token_id = tokenizer.mask_token_id
    growths = {}
    names = (*_WIDTHS, "num_hidden_layers", "max_position_embeddings", "rope_theta", "noise", "seed")
    sizes = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    steps = grow(model, tokenizer, texts=texts, new_tokens=new_tokens, **sizes)
    for name, result in steps:
        print(f"{name}: {result}", flush=True)
        growths[f"{name}: pseudo-perplexity before"] = result.before
        growths[f"{name}: pseudo-perplexity after"] = result.after
        model, tokenizer = result.model, result.tokenizer
    check_place()  # another program may have written there in the meantime
    _write(model.to(dtype), tokenizer, arguments, source=folder, growths=growths)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{arguments.output_dir}: {parameters:,} parameters; continue training with --model_name_or_path "
        f"{arguments.output_dir}"
    )


def _write(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerFast",
    arguments: GrowArguments,
    *,
    source: Path,
    growths: dict[str, float],
) -> None:
    """Write the larger model with its tokenizer, what lay beside the model in `source`, and a card."""
    from clozebert.hub.card import write_card
    from clozebert.hub.origin import facts_of_origin
    from clozebert.hub.processors import copy_beside
    from clozebert.utils.progress_bar import quiet

    target = Path(arguments.output_dir)
    origin, _, facts = facts_of_origin(arguments.model_name_or_path, source)
    facts |= {
        "name": target.resolve().name,
        "description": f"Grown from `{origin}`, and not trained since.",
        "metrics": growths,
        "eval_results": None,
    }
    with whole_files(target) as folder:
        with quiet():
            model.save_pretrained(folder)
        save_tokenizer(tokenizer, folder)
        copy_beside(source, folder)
        write_card(folder, facts)


def _say_new_tokens(new_tokens: list[str], enlarged: "Enlarged") -> list[str]:
    """Print what becomes of the new tokens, and return those that can be added. `grow` refuses if none can."""
    if len(enlarged.left_out) == len(new_tokens):
        return new_tokens
    for token, why in enlarged.left_out.items():
        print(f"{token!r} is left out: it {why}")
    added = [token for token in new_tokens if token not in enlarged.left_out]
    if inside := len(added) - len(enlarged.beside):
        print(f"{counted(inside, 'token')} added to the vocabulary")
    if enlarged.beside:
        print(f"{counted(len(enlarged.beside), 'token')} stored beside the vocabulary: {', '.join(enlarged.beside)}")
    return added


def _new_tokens(given: list[str]) -> list[str]:
    tokens: list[str] = []
    for item in given:
        if not item.startswith("@") or item == "@":
            tokens.append(item)
            if os.path.isfile(item):
                print(f"note: {item} is added as a token; @{item} would read the tokens in that file")
        else:
            tokens += filter(None, map(str.strip, read_file("new_tokens", item[1:]).splitlines()))
    return list(dict.fromkeys(tokens))


if __name__ == "__main__":
    run(main)
