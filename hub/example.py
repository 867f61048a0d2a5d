"""An example for the model card: how to run the model on a text, and its output."""

import ast
import numbers
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..utils.errors import UserError
from ..utils.progress_bar import quiet
from ..utils.wording import in_cell
from .demo_page import EXAMPLES, PAIR
from .processors import reading_settings, takes_pairs

# Task on the Hub -> (kind of view in the demo, options of its pipeline, columns of the output and their headings).
_TASKS: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "fill-mask": ("fill-mask", {}, {"token_str": "word", "score": "probability"}),
    # Not "first", which takes punctuation as part of a word with byte-level BPE and Unigram.
    "token-classification": (
        "tagging", {"aggregation_strategy": "simple"}, {"word": "span", "entity_group": "label", "score": "probability"}
    ),
    "text-classification": ("classification", {}, {"label": "label", "score": "score"}),
}  # fmt: skip
_MOST_ROWS = 10
# The heads whose answers to a text can be shown.
SHOWN_HEADS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")


def make_example(
    folder: Path, task: str, name: str, text: str | bool, config: Mapping[str, Any], *, revision: str | None = None
) -> str:
    """Markdown with a call of transformers' pipeline and a table of its output. Empty for tasks without an example.

    Args:
        folder: the saved model, which is run here. name, revision: the name and branch of the model in the code.
        text: the input; `{mask}` stands for the mask token. True: a sentence of ours.
        config: the content of the model's config.json.

    Raises:
        UserError: the given text cannot be used.
    """
    if task not in _TASKS or not any(folder.glob("tokenizer*")):
        return ""
    kind, options, columns = _TASKS[task]
    settings = reading_settings(folder)
    first_only = bool(options) and settings.get("label_subwords") == "first"
    if first_only:  # the other subwords have learned no tag
        options = {"aggregation_strategy": "first"}
    is_pair = takes_pairs(folder)
    # In multi-label models a text may have several labels, and a pipeline gives only the best without `top_k`.
    has_several = task == "text-classification" and config.get("problem_type") == "multi_label_classification"
    asked = {"top_k": None} if has_several else {}
    try:
        of_ours = "\t".join(PAIR) if is_pair else EXAMPLES[kind]
        given, rows = _run(folder, task, of_ours if text is True else str(text), options, asked, is_pair=is_pair)
    except Exception as error:
        if text is not True:
            raise
        # At the end of training, a card without an example is better than no card.
        warnings.warn(f"the card of {folder} shows no example: {type(error).__name__}: {error}", stacklevel=2)
        return ""
    arguments = [f'"{task}"', f'model="{name}"', *(f'{key}="{value}"' for key, value in options.items())]
    arguments += [f'revision="{revision}"'] if revision else []
    arguments += ["trust_remote_code=True"] if config.get("model_type") == "clozebert" else []
    lines = [
        "```python",
        "from transformers import pipeline",
        "",
        f"run = pipeline({', '.join(arguments)})",
        f"run({given}{', top_k=None' if has_several else ''})",
        "```",
        "",
    ]
    if first_only:
        lines += ["This pipeline may take a sign behind a word as part of it. `clozebert predict` does not.", ""]
    if not rows:
        return "\n".join([*lines, "It finds nothing in this text."])
    table = [[_cell(row[key]) for key in columns] for row in rows[:_MOST_ROWS]]
    rows_of = [list(columns.values()), ["---"] * len(columns), *table]
    return "\n".join([*lines, "It answers:", "", *(f"| {' | '.join(row)} |" for row in rows_of)])


def text_of_example(part: str) -> str | None:
    """The text that an example on a card was made of, with a tab between those of a pair; None if it is not found."""
    found = re.search(r"^run\((.*?)(, top_k=None)?\)$", part, re.MULTILINE)
    try:
        given = ast.literal_eval(found[1]) if found else None
    except (SyntaxError, ValueError):
        return None
    if isinstance(given, dict):
        return "\t".join(map(str, given.values()))
    return given if isinstance(given, str) else None


def _run(
    folder: Path, task: str, text: str, options: dict[str, str], asked: dict[str, Any], *, is_pair: bool
) -> tuple[str, list[dict[str, Any]]]:
    """The input as Python code, and the pipeline's output for it.

    Args:
        asked: arguments of the call.
        is_pair: the model takes two texts, which a tab separates.
    """
    import transformers

    pipeline: Any = transformers.pipeline  # Any: the function has an overload for each task
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = pipeline(task, model=str(folder), trust_remote_code=False, device="cpu", **options)
        if task == "fill-mask":
            mask = run.tokenizer.mask_token
            text = text.replace("{mask}", mask)
            if text.count(mask) != 1:
                raise UserError(f"example={text!r} must hold {{mask}} once: this model fills it in")
        if not is_pair:
            return _quoted(text), run(text, **asked)
        first, tab, second = text.partition("\t")
        if not tab:
            raise UserError(f"example={text!r}: the model takes pairs; put a tab between two texts")
        found = run({"text": first, "text_pair": second}, **asked)
        code = f'{{"text": {_quoted(first)}, "text_pair": {_quoted(second)}}}'
        return code, found if isinstance(found, list) else [found]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r") + '"'


def _cell(value: Any) -> str:
    if isinstance(value, numbers.Real):  # NumPy's, too
        number = float(value)
        return f"{number:.2f}" if abs(number) >= 0.01 else f"{number:.2g}"
    return in_cell(str(value)) or repr(value)
