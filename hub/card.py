"""The model card: README.md with the metadata that the Hub reads.

`card_template.md` shows its parts. A part without any facts is left out. A card that a person edited is never
overwritten: the last line of a card written here holds the hash of the rest, and if it does not match, the file is
left alone.
"""

import copy
import hashlib
import math
import os
import re
import string
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..utils.errors import MissingFileError, UserError, as_user_errors, first_line, reject_unknown_keys
from ..utils.files import write_text
from ..utils.untrusted import read_json_object
from ..utils.wording import counted, in_cell
from .natives import NATIVE

CARD_NAME = "README.md"
_TEMPLATE = Path(__file__).with_name("card_template.md").read_text(encoding="utf-8").strip()
# Heading of a part -> its name in the template.
_PARTS: dict[str, str] = dict(re.findall(r"^## (.+)\n\n\$(\w+)$", _TEMPLATE, flags=re.MULTILINE))
# Parts about the form of the model. The others say how it was made, and stay valid when the form changes.
_OF_THE_FORM = ("how_to_load", "example", "serving")
_MARK = re.compile(r"\n<!-- clozebert-card ([0-9a-f]{64}) -->\n?$")
_CURVE_NAMES = ("loss_curve.png", "training_curve.png", "curve.png", "loss.png")
# The oldest release that opens a bundle: 5.0 to 5.3 reject our configuration class, and 4 has no such classes.
OLDEST_TRANSFORMERS = "5.4"
_OWN_TAGS = ("clozebert", "encoder")
_FACTS = (
    "name", "repo_id", "description", "license", "license_name", "license_link", "language", "datasets", "base_model",
    "tags", "pipeline_tag", "data_statement", "corpus", "started_from", "hyperparameters", "recipe", "steps", "tokens",
    "seconds", "validation_loss", "metrics", "eval_results", "curve", "example", "serving", "versions",
    "limitations", "revision",
)  # fmt: skip
_MOST_LABELS = 20
# The fields that give a model its shape.
_SHAPE = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings")
_LAYERS_AND_SIZE = (("num_hidden_layers", "n_layers"), ("hidden_size", "dim"))
# Suffix of the saved class -> (task on the Hub, Auto class).
_TASKS = {
    "ForMaskedLM": ("fill-mask", "AutoModelForMaskedLM"),
    "ForSequenceClassification": ("text-classification", "AutoModelForSequenceClassification"),
    "ForTokenClassification": ("token-classification", "AutoModelForTokenClassification"),
    "ForQuestionAnswering": ("question-answering", "AutoModelForQuestionAnswering"),
    "ForMultipleChoice": ("multiple-choice", "AutoModelForMultipleChoice"),
    "ForImageClassification": ("image-classification", "AutoModelForImageClassification"),
    "Model": ("feature-extraction", "AutoModel"),
}


@dataclass(frozen=True)
class Card:
    """The model card of a folder.

    Attributes:
        is_ours: whether it is exactly as `write_card` wrote it. data: its metadata.
        parts: name in the template -> text; empty unless the card is ours.
    """

    text: str
    is_ours: bool
    data: Any
    parts: dict[str, str]

    def facts(self) -> dict[str, Any]:
        """The facts for `write_card` that also hold for the same model in another form or place."""
        facts = self.lasting_facts()
        if self.is_ours:
            facts["description"] = _description(self.parts.get("summary", ""))
            facts["eval_results"] = self.data.eval_results
        return facts

    def lasting_facts(self) -> dict[str, Any]:
        """The facts that also hold for a model that is trained further from this one."""
        names = ("license", "license_name", "license_link", "language", "datasets", "base_model", "tags")
        facts = {name: self.data.get(name) for name in names if self.data.get(name)}
        if self.is_ours:
            # Tags about the form of the model are written anew.
            facts["tags"] = [tag for tag in facts.get("tags", []) if tag not in (*NATIVE, *_OWN_TAGS)]
        return facts

    def with_metadata(self, added: Mapping[str, Any]) -> str:
        """The text of the card with further metadata, such as `license`."""
        from huggingface_hub import ModelCard

        card = ModelCard(self.text)
        card.data = copy.copy(self.data)
        for name, value in added.items():
            setattr(card.data, name, value)
        return str(card)

    def history(self) -> dict[str, str]:
        """The parts that say how the model was made."""
        return {name: text for name, text in self.parts.items() if name in _PARTS.values() and name not in _OF_THE_FORM}


def write_card(
    directory: str | os.PathLike, facts: Mapping[str, Any], *, history: Mapping[str, str] | None = None
) -> None:
    """Write `directory`/README.md, or only warn if the existing one was written or edited otherwise.

    Args:
        directory: a saved model; config.json and the headers of the weights are read from it if they exist.
        facts: what is known. Every key is optional; a missing fact is left out, never guessed.
            name: the model's name (default: the folder's). repo_id, revision: its name and branch on the Hub.
            description: a sentence or two. license, language, datasets and base_model (Hub names), tags: metadata;
                with the license `other`, license_name and license_link.
            data_statement: sentences on the training data. corpus: its manifest, or any mapping that describes it.
            started_from: the model that training started from, a Hub name or the name of a folder.
            hyperparameters: a mapping. recipe: the name of the recipe they come from.
            steps, tokens, seconds: the length of training.
            validation_loss: the masked-LM loss. metrics: a mapping of further measurements on held-out data.
            eval_results: huggingface_hub's `EvalResult`s, or mappings with its fields except the task, for
                `model-index`.
            curve: path of an image (default: a known name in the folder).
            example: a text on which the saved model is run to show its output; True: a sentence of ours.
            serving: lines about the forms for servers.
            versions: a mapping from library to version. limitations: what the model is not good for.
        history: parts of an older card of the same model, which replace those made from the facts.

    Raises:
        MissingFileError: the folder does not exist.
        UserError: a key is none of these.
    """
    reject_unknown_keys(facts, _FACTS, where="facts")
    folder = Path(directory)
    if not folder.is_dir():
        raise MissingFileError(f"cannot write a model card into {folder}: the folder does not exist")
    path = folder / CARD_NAME
    if path.is_file() and not is_ours(path.read_text(encoding="utf-8", errors="replace")):
        warnings.warn(f"{path} was not written by ClozeBERT, or was edited since: it is left as it is", stacklevel=2)
        return
    write_text(path, sign_card(render_card(folder, facts, history=history)))


def read_card(folder: Path) -> Card | None:
    """The card of a folder; None if there is none.

    Raises:
        UserError: its metadata cannot be read.
    """
    from huggingface_hub import ModelCard

    path = folder / CARD_NAME
    if not path.is_file():
        return None
    with as_user_errors(ValueError, OSError, about=str(path)):
        text = path.read_text(encoding="utf-8-sig")  # the metadata begin the file
    try:
        data: Any = ModelCard(text).data
    except Exception as error:
        raise UserError(f"the metadata on top of {path} cannot be read: {first_line(error)}") from None
    # YAML takes the code of Norwegian for a truth value.
    language = data.get("language")
    if isinstance(language, list):
        data.language = ["no" if code is False else code for code in language]
    elif language is False:
        data.language = "no"
    return Card(text, is_ours(text), data, _parts(text) if is_ours(text) else {})


def is_ours(text: str) -> bool:
    """Whether a card is exactly as `write_card` wrote it."""
    mark = _MARK.search(text)
    return mark is not None and hashlib.sha256(text[: mark.start()].encode()).hexdigest() == mark.group(1)


def sign_card(text: str) -> str:
    """A card's text with the last line that `is_ours` checks."""
    text = text.rstrip("\n")
    return f"{text}\n<!-- clozebert-card {hashlib.sha256(text.encode()).hexdigest()} -->\n"


def _parts(text: str) -> dict[str, str]:
    """The parts of a card of ours, by their names in the template."""
    top, *sections = re.split(r"^## ", _MARK.sub("", text), flags=re.MULTILINE)
    parts = {"summary": top.split("\n# ", 1)[-1].partition("\n")[2].strip()}
    for section in sections:
        heading, _, body = section.partition("\n")
        parts[_PARTS.get(heading.strip(), heading.strip())] = body.strip()
    return parts


def below_headings(text: str) -> str:
    """A text with its headings below those of the card, by which the card is read again; not in blocks of code."""
    lines, in_code = [], False
    for line in text.split("\n"):
        in_code ^= line.lstrip().startswith("```")
        # Two signs would begin a part of the card even there.
        lines.append(re.sub(r"^## " if in_code else r"^#{1,2} ", "### ", line))
    return "\n".join(lines)


def _description(summary: str) -> str | None:
    """The sentences of a summary before those that `_summary` writes."""
    return re.split(r"\bThis is an? [a-z ]*encoder, saved for", summary)[0].strip() or None


# The parts


def render_card(folder: Path, facts: Mapping[str, Any], *, history: Mapping[str, str] | None = None) -> str:
    """The text of the card: metadata between `---` lines, then Markdown."""
    config = _read_json(folder / "config.json")
    architecture = (config.get("architectures") or [""])[0]
    # The plain `…Model` comes last in the table.
    ending = next((ending for ending in _TASKS if architecture.endswith(ending)), "ForMaskedLM")
    task, auto_class = _TASKS[ending]
    name = str(facts.get("name") or folder.resolve().name)
    called = str(facts.get("repo_id") or name)
    parts = {
        "metadata": _metadata(facts, config, task, name),
        "name": name,
        "summary": _summary(folder, facts, config, task),
        "how_to_load": _how_to_load(called, facts.get("revision"), config, auto_class, task),
        "example": _example(folder, facts, config, task, called),
        "serving": "\n".join(f"- {line}." for line in facts.get("serving") or []),
        "training_data": _training_data(facts),
        "training": _training(folder, facts),
        "evaluation": _evaluation(facts),
        "limits": _limits(facts),
    }
    if history is not None:
        parts.update({name: history.get(name, "") for name in _PARTS.values() if name not in _OF_THE_FORM})
    parts["evaluation"] = "\n\n".join(filter(None, [parts["evaluation"], *_pictures(folder, parts)]))
    text = _TEMPLATE
    for heading, part in _PARTS.items():
        if not parts[part]:
            text = text.replace(f"## {heading}\n\n${part}\n\n", "")
    return string.Template(text).substitute(parts)


def _metadata(facts: Mapping[str, Any], config: Mapping[str, Any], task: str, name: str) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    given = facts.get("eval_results") or []
    results = [x if isinstance(x, EvalResult) else EvalResult(task_type=task, **x) for x in given]
    # The Hub does not accept YAML's .nan; undefined scores appear in the table of measurements only.
    results = [x for x in results if not isinstance(x.metric_value, float) or math.isfinite(x.metric_value)]
    given_tags = facts.get("tags") or []
    tags = [config.get("model_type", "clozebert"), *_OWN_TAGS]
    tags += [given_tags] if isinstance(given_tags, str) else given_tags
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag=facts.get("pipeline_tag") or task,
        tags=list(dict.fromkeys(tags)),
        language=facts.get("language"),
        license=facts.get("license"),
        license_name=facts.get("license_name"),
        license_link=facts.get("license_link"),
        datasets=facts.get("datasets"),
        base_model=facts.get("base_model"),
        model_name=name if results else None,
        eval_results=results or None,
    )
    return data.to_yaml()


def _summary(folder: Path, facts: Mapping[str, Any], config: Mapping[str, Any], task: str) -> str:
    kind = "an image encoder" if config.get("image_size") else "a bidirectional text encoder"
    sentences = [below_headings(str(facts["description"]))] if facts.get("description") else []
    sentences.append(f"This is {kind}, saved for the task `{task}`.")
    parts = []
    # DistilBERT has its own field names.
    layers, size = (config.get(name) or config.get(other) for name, other in _LAYERS_AND_SIZE)
    if layers and size:
        parts.append(f"{counted(layers, 'layer')} of {size}")
    if parameters := _count_parameters(folder):
        parts.append(f"{parameters:,} parameters")
    if not config.get("image_size"):
        if config.get("vocab_size"):
            parts.append(f"a vocabulary of {config['vocab_size']:,}")
        if longest := _longest_sequence(folder, config):
            parts.append(f"sequences of up to {longest:,} tokens")
    if parts:
        sentences.append(f"It has {', '.join(parts)}.")
    if task in ("text-classification", "token-classification", "image-classification"):
        what = "It gives a number for" if _is_regression(config, task) else "Its labels are"
        names = [str(name) for name in (config.get("id2label") or {}).values()]
        sentences += _labels(names, what=what, are_tags=task == "token-classification")
    return " ".join(sentences)


def _is_regression(config: Mapping[str, Any], task: str) -> bool:
    """Whether a classifier is a regression; without a problem type, it is one if it has a single output."""
    kind = config.get("problem_type")
    return task == "text-classification" and (
        kind == "regression" or (kind is None and len(config.get("id2label") or {}) == 1)
    )


def _longest_sequence(folder: Path, config: Mapping[str, Any]) -> int | None:
    from .fingerprint import COUNTED_FROM_PADDING

    rows = config.get("max_position_embeddings")
    if rows and config.get("model_type") in COUNTED_FROM_PADDING:
        rows -= (config.get("pad_token_id") or 0) + 1
    if rows and config.get("model_type") not in ("clozebert", *NATIVE):
        # Others count from the padding, too. `announce_length` has given the tokenizer what the loaded model takes.
        return min(rows, _read_json(folder / "tokenizer_config.json").get("model_max_length", rows))
    return rows


def _labels(names: list[str], *, what: str, are_tags: bool) -> list[str]:
    """A sentence that lists the labels, unless they are transformers' placeholders."""
    if not names or all(re.fullmatch(r"LABEL_\d+", name) for name in names):
        return []
    spans = list(dict.fromkeys(name[2:] for name in names if are_tags and name[:2] in ("B-", "I-")))
    shown, what = (spans, "It marks spans of") if spans else (names, what)
    listed = ", ".join(_code(name) for name in shown[:_MOST_LABELS])
    return [f"{what} {listed}" + (f", … ({len(shown)} in all)." if len(shown) > _MOST_LABELS else ".")]


def _code(name: str) -> str:
    """A name as code within a line of Markdown."""
    name = " ".join(name.split())
    longest = max(map(len, re.findall("`+", name)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {name} {fence}" if longest else f"`{name}`"


def _how_to_load(name: str, revision: str | None, config: Mapping[str, Any], auto_class: str, task: str) -> str:
    of_branch = f', revision="{revision}"' if revision else ""
    if config.get("model_type", "clozebert") != "clozebert":
        lines = ["It is in transformers' own format:", "", *_python(name, auto_class, task, options=of_branch)]
        return "\n".join(lines)
    return "\n".join(
        [
            f"The folder carries the model's code, which needs transformers {OLDEST_TRANSFORMERS} or newer. With "
            "transformers alone, which then runs that code:",
            "",
            *_python(name, auto_class, task, options=f"{of_branch}, trust_remote_code=True"),
            "",
            "Or with the package, installed from its repository and not from PyPI, and no code from the folder:",
            "",
            *_python(name, auto_class, task, options=of_branch, first="import clozebert"),
        ]
    )


def _python(name: str, auto_class: str, task: str, *, options: str = "", first: str | None = None) -> list[str]:
    is_image = task == "image-classification"
    variable, processor = ("image_processor", "AutoImageProcessor") if is_image else ("tokenizer", "AutoTokenizer")
    return [
        "```python",
        *([first] if first else []),
        f"from transformers import {auto_class}, {processor}",
        "",
        f'model = {auto_class}.from_pretrained("{name}"{options})',
        f'{variable} = {processor}.from_pretrained("{name}"{options})',
        "```",
    ]


def _example(folder: Path, facts: Mapping[str, Any], config: Mapping[str, Any], task: str, called: str) -> str:
    if not facts.get("example"):
        return ""
    from .example import make_example

    return make_example(folder, task, called, facts["example"], config, revision=facts.get("revision"))


def _training_data(facts: Mapping[str, Any]) -> str:
    statement, corpus = below_headings(str(facts.get("data_statement") or "").strip()), facts.get("corpus")
    if isinstance(corpus, Mapping) and corpus:
        return f"{statement}\n\n{_table(corpus)}".strip()
    return statement or ("Not recorded." if "corpus" in facts else "")


def _training(folder: Path, facts: Mapping[str, Any]) -> str:
    sentences = [f"It began from {_model_link(str(facts['started_from']))}."] if facts.get("started_from") else []
    sentences += [_recipe(str(facts["recipe"]), _read_json(folder / "config.json"))] if facts.get("recipe") else []
    sentences += _took(facts)
    lines = [" ".join(sentences)] if sentences else []
    if facts.get("hyperparameters"):
        lines.append(_table(facts["hyperparameters"]))
    lines += _loss_curve(folder, facts.get("curve"))
    if facts.get("versions"):
        lines.append("Made with " + ", ".join(f"{key} {value}" for key, value in facts["versions"].items()) + ".")
    return "\n\n".join(lines)


def _took(facts: Mapping[str, Any]) -> list[str]:
    units = {"steps": "optimizer step", "tokens": "token", "seconds": "second"}
    given = {key: round(facts[key]) for key in units if isinstance(facts.get(key), (int, float))}
    took = [counted(number, units[key]) for key, number in given.items() if number or key != "seconds"]
    took += ["less than a second"] if given.get("seconds") == 0 else []
    return [f"Training took {', '.join(took)}."] if took else []


def _loss_curve(folder: Path, given: Any) -> list[str]:
    names = [Path(given).name] if given else _CURVE_NAMES
    return [f"![Loss over training]({name})" for name in names if (folder / name).is_file()][:1]


def _model_link(name: str) -> str:
    return f"[{name}](https://huggingface.co/{name})" if "/" in name else f"`{name}`"


def _recipe(name: str, config: Mapping[str, Any]) -> str:
    """The recipe, and how the model's shape differs from it."""
    from ..configuration import ClozeBertConfig, list_recipes, load_recipe

    if name not in list_recipes() or config.get("model_type") != "clozebert":
        return f"Recipe `{name}`."
    recipe = load_recipe(name)
    usual = ClozeBertConfig.from_name(recipe["architecture"], **recipe.get("model", {}))
    changed = {field: config[field] for field in _SHAPE if field in config and config[field] != getattr(usual, field)}
    listed = ", ".join(f"`{field}` {value:,}" for field, value in changed.items())
    return f"Recipe `{name}`, but with {listed}." if changed else f"Recipe `{name}`."


def _pictures(folder: Path, parts: Mapping[str, str]) -> list[str]:
    """The images of the folder that no part shows yet, with captions made from their names."""
    shown = "\n".join(parts.values())
    files = [path.name for path in sorted(folder.glob("*.png")) if f"]({path.name})" not in shown]
    return [f"![{Path(name).stem.replace('_', ' ')}]({name})" for name in files]


def _evaluation(facts: Mapping[str, Any]) -> str:
    rows: dict[str, Any] = {}
    loss = facts.get("validation_loss")
    if isinstance(loss, (int, float)):
        rows["masked-LM loss on held-out text (nats per masked token)"] = loss
        rows["its exponential (masked perplexity)"] = math.exp(min(loss, 700))
    rows.update(facts.get("metrics") or {})
    return _table(rows, heads=("measure", "value")) if rows else ""


def _limits(facts: Mapping[str, Any]) -> str:
    stated = str(facts.get("limitations") or "").strip()
    general = (
        "What is written above is all that was recorded. The model repeats the biases and the mistakes of its training "
        "data; nothing beyond the measures above was evaluated. Measure it on your own task before you rely on it."
    )
    return f"{stated + ' ' if stated else ''}{general}"


def _table(values: Mapping[str, Any], heads: tuple[str, str] = ("", "")) -> str:
    """A Markdown table of two columns; nested mappings are flattened to dotted names."""
    rows = [f"| {in_cell(key)} | {_show(value)} |" for key, value in _flat(values) if value is not None]
    return "\n".join([f"| {heads[0]} | {heads[1]} |", "| --- | --- |", *rows])


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", value))
    return rows


def _show(value: Any) -> str:
    """A value in a table cell. Of an absolute path only the name is shown, since paths of a machine are private."""
    if isinstance(value, (list, tuple)):
        shown = [_show(item) for item in value[:8]]
        return ", ".join(shown) + (f", … ({len(value):,} in all)" if len(value) > 8 else "")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if os.path.isabs(text):
        text = Path(text).name
    return in_cell(text)


def _read_json(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _count_parameters(folder: Path) -> int:
    """The number of stored parameters, from the headers of the safetensors files; no weights are read."""
    from safetensors import safe_open

    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="np") as tensors:
            total += sum(math.prod(tensors.get_slice(key).get_shape()) for key in tensors.keys())  # noqa: SIM118
    return total
