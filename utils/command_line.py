"""Command-line parsing: the flags of a program and its `--help`.

Flags are written with underscores; dashes are accepted too.
"""

import argparse
import dataclasses
import os
import shutil
import sys
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NoReturn

from .errors import exit_with_error, nearest_name
from .processes import let_first_process_speak
from .values import to_number

# Flags that people know from other programs, mostly `transformers`, and the flag of ours that they mean, where the
# spelling does not tell.
_OTHER_NAMES = {
    "lr": "learning_rate", "epochs": "num_train_epochs", "num_training_steps": "max_steps",
    "model": "model_name_or_path", "out": "output_dir", "data": "input", "block_size": "max_seq_length",
    "bf16": "mixed_precision", "fp16": "mixed_precision", "no_cuda": "use_cpu", "cpu": "use_cpu",
    "workers": "dataloader_num_workers", "num_workers": "num_processes", "resume": "resume_from_checkpoint",
    "layers": "num_hidden_layers", "heads": "num_attention_heads", "dropout": "hidden_dropout_prob",
    "checkpointing_steps": "save_steps", "num_labels": "label_column", "recipe": "config",
    "config_name": "architecture", "model_type": "architecture", "eval_batch_size": "per_device_eval_batch_size",
    "batch_size": "per_device_train_batch_size", "evaluation_strategy": "eval_steps", "data_seed": "seed",
    "hub_model_id": "repo_id", "gpus": "num_devices",
}  # fmt: skip


# The placeholder of a flag's value in the help, by how the flag's name ends.
_METAVARS = {
    "_dir": "DIR", "directory": "DIR", "corpus": "DIR", "checkpoint": "DIR", "_file": "FILE", "_column": "COLUMN",
    "name_or_path": "NAME", "tokenizer_name": "NAME", "dataset_name": "NAME", "config": "NAME", "architecture": "NAME",
}  # fmt: skip


@dataclass(frozen=True)
class Flag:
    """One flag.

    Attributes:
        kind: its type: bool, int, float, str, `list[…]`, `Literal[…]`, or one of these or None.
        default: the default value; None also where the program computes the value.
        section: its heading in the help; flags without one come first.
        is_needed: the program needs a value, but it may come from elsewhere, such as a recipe.
        metavar: the placeholder for its value in the help: DIR, FILE, N.
        shown: shown in the help instead of `default`.
    """

    name: str
    kind: Any
    help: str
    default: Any = None
    is_required: bool = False
    is_needed: bool = False
    section: str = ""
    metavar: str | None = None
    shown: Any = None


def flag(help: str, default: Any = None, section: str = "", **about: Any) -> Any:
    """A field of a dataclass of flags.

    Args:
        default: `...` for a flag that is required.
        section: its heading in the help; flags without one come first.
        about: `metavar`, as in `Flag`, and any other metadata that a program reads from the field.
    """
    metadata = {"help": help, "section": section, **about}
    if default is ...:
        return dataclasses.field(metadata=metadata)
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def flags_of(arguments_class: type) -> list[Flag]:
    """The fields of a dataclass as flags; see `flag`."""
    flags = []
    hints = typing.get_type_hints(arguments_class)
    for item in dataclasses.fields(arguments_class):
        has_default = item.default is not dataclasses.MISSING or item.default_factory is not dataclasses.MISSING
        default = item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
        known = {name: item.metadata[name] for name in ("section", "metavar") if name in item.metadata}
        flags.append(
            Flag(
                item.name,
                hints[item.name],
                item.metadata.get("help", ""),
                default=default if has_default else None,
                is_required=not has_default,
                **known,
            )
        )
    return flags


class Parser(argparse.ArgumentParser):
    """Reads flags. A mistake is reported in one line that says what to do.

    Args:
        flags: in the order in which the help shows them; those without a section come first.
        prog: the command as the user typed it.
        examples: example command lines without `prog`.
        notes: lines at the end of the help.
        hints: for names that are not flags, what to do instead.
        first: the flag whose value may come first, without the flag's name.
    """

    def __init__(
        self,
        flags: Sequence[Flag],
        *,
        prog: str,
        description: str,
        examples: Iterable[str] = (),
        notes: Iterable[str] = (),
        hints: Mapping[str, str] | None = None,
        first: str | None = None,
    ) -> None:
        self.flags, self.hints = {flag.name: flag for flag in flags}, hints or {}
        self.first = f"--{first}"
        needed = [f"--{flag.name} {_metavar(flag)}" for flag in flags if flag.is_required or flag.is_needed]
        required = [words.removeprefix(f"{self.first} ") for words in needed]
        shown = [f"  {prog} {example}" for example in examples]
        if shown:
            shown = ["", "example:" if len(shown) == 1 else "examples:", *shown]
        super().__init__(
            prog=prog,
            usage=" ".join(["%(prog)s", *required, "[flags]"]),
            description="\n".join([description, *shown]),
            epilog="\n".join(notes),
            formatter_class=_Formatter,
            allow_abbrev=False,
            add_help=False,
        )
        sections: dict[str, Any] = {"": self.add_argument_group("flags")}
        for flag in flags:
            if flag.section not in sections:
                sections[flag.section] = self.add_argument_group(flag.section)
            _add(sections[flag.section], flag)
        sections[""].add_argument("-h", "--help", action="help", help="show this")

    def read(self, argv: Sequence[str] | None = None) -> dict[str, Any]:
        """The values of all flags, by name."""
        given = [_with_underscores(word) for word in (sys.argv[1:] if argv is None else argv)]
        self._unknown = [word for word in given if word.startswith("--") and not self._knows(word)]
        namespace, unknown = self.parse_known_args(given)
        if unknown:
            self.error(self.about_unknown(unknown[0]))
        return vars(namespace)

    def _knows(self, word: str) -> bool:
        return word[2:].partition("=")[0] in (*self.flags, "help", "")

    def about_unknown(self, word: str) -> str:
        """The message for an unknown flag: `unknown flag --vocab_sise; did you mean --vocab_size?`"""
        if not word.startswith("--"):
            return f"unexpected argument {word!r}; flags begin with --"
        name = word[2:].split("=")[0].replace("-", "_")
        if name in self.hints:
            return f"unknown flag --{name}: {self.hints[name]}"
        meant = _OTHER_NAMES.get(name)
        nearest = meant if meant in self.flags else nearest_name(name, self.flags)
        return f"unknown flag --{name}" + (f"; did you mean --{nearest}?" if nearest else "; see --help")

    def error(self, message: str) -> NoReturn:
        missing = "the following arguments are required: "
        if message.startswith(missing) and self._unknown:
            message = self.about_unknown(self._unknown[0])  # perhaps the one that is missing, mistyped
        elif message.startswith(missing):
            names = message[len(missing) :].replace("/", " or ")
            if names == self.first:
                names = f"{_metavar(self.flags[names[2:]])} ({names})"
            message = f"give {names}; {self.prog} --help shows all flags"
        elif message.endswith(("expected at least one argument", "expected one argument")):
            name = message.removeprefix("argument ").partition(":")[0]
            message += f"; write {name}=VALUE if the value begins with -"
        let_first_process_speak()
        exit_with_error(message.removeprefix("argument "))


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=min(110, shutil.get_terminal_size((100, 20)).columns))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.metavar is None:
            return ", ".join(action.option_strings)
        return f"{action.option_strings[0]} {action.metavar}"


def _with_underscores(word: str) -> str:
    if not word.startswith("--") or word == "--":
        return word
    name, equals, value = word.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value


class _Extend(argparse.Action):
    """Joins a list given in several parts: `--input a --input b` is `--input a b`."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        before: Any = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, values if before is self.default else [*before, *values])


def _add(group: Any, flag: Flag) -> None:
    kind, choices = _bare(flag.kind), []
    if typing.get_origin(kind) is Literal:
        kind, choices = str, list(typing.get_args(kind))
    options: dict[str, Any] = {"dest": flag.name, "help": _help(flag, choices), "required": flag.is_required}
    options["default"] = flag.default
    if kind is bool:
        # A flag that is off by default is given bare; one that may be on by default can be switched off.
        options |= {"nargs": "?", "const": True, "type": _boolean}
        options["metavar"] = None if _default_of(flag) is False else "[true|false]"
    else:
        options["metavar"] = _metavar(flag)
        if typing.get_origin(kind) is list:
            options |= {"nargs": "+", "action": _Extend}
            kind = typing.get_args(kind)[0]
        options["type"] = partial(_number, flag.name, kind) if kind in (int, float) else _text
        if choices:
            options["choices"] = choices
    group.add_argument(f"--{flag.name}", **options)


def _bare(kind: Any) -> Any:
    """The type without `| None`; for `int | float`, float."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        kinds = [one for one in typing.get_args(kind) if one is not type(None)]
        return float if float in kinds else kinds[0]
    return kind


def _default_of(flag: Flag) -> Any:
    return flag.default if flag.shown is None else flag.shown


def _help(flag: Flag, choices: Sequence[str]) -> str:
    text = flag.help
    if choices and not all(choice in text for choice in choices):
        text += f": {', '.join(choices)}"
    shown = _default_of(flag)
    if flag.is_required or flag.is_needed:
        text += " (required)"
    elif shown is not None and shown is not False and shown not in ("", []) and "(default" not in text:
        text += f" (default: {_written(shown)})"
    return text.replace("%", "%%")


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        words = [_written(item) for item in value]
        return " ".join(words) if len(words) < 5 else f"{' '.join(words[:4])} …"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_written(one)}" for key, one in value.items()) + "}"
    return str(value)


def _metavar(flag: Flag) -> str:
    kind = _bare(flag.kind)
    is_list = typing.get_origin(kind) is list
    if is_list:
        kind = typing.get_args(kind)[0]
    of_name = next((word for ending, word in _METAVARS.items() if flag.name.endswith(ending)), None)
    of_choices = "WORD" if typing.get_origin(kind) is Literal else "TEXT"
    word = flag.metavar or {int: "N", float: "X"}.get(kind) or of_name or of_choices
    return f"{word} …" if is_list else word


def _boolean(text: str) -> bool:
    known = {"true": True, "yes": True, "1": True, "on": True, "false": False, "no": False, "0": False, "off": False}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return known[text.lower()]


def _text(text: str) -> str:
    """The text, with `~/` expanded: a shell does not expand it in `--output_dir=~/encoder`."""
    return os.path.expanduser(text) if text.startswith("~/") else text


def _number(name: str, kind: type, text: str) -> int | float:
    try:
        return to_number(name, text, kind)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None
