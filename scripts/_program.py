"""What every program here shares: reading its arguments, and telling a person's mistake from a bug of ours."""

import dataclasses
import difflib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

Arguments = TypeVar("Arguments")

# Before torch is imported: threads that spin while they wait make a busy machine several times slower (docs/LOG.md).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def parse(
    arguments_class: type[Arguments], argv: Sequence[str] | None = None, *, prog: str, description: str
) -> Arguments:
    """Read `argv` (default: the command line) into a dataclass whose fields are the flags.

    An unknown flag ends the program with status 2 and names the nearest known one.
    """
    from transformers import HfArgumentParser

    parser = HfArgumentParser(
        arguments_class,  # type: ignore[arg-type]
        prog=prog,
        description=description,
        usage="%(prog)s [flags]; --help lists them",
        allow_abbrev=False,
    )
    namespace, unknown = parser.parse_known_args(None if argv is None else list(argv))
    if unknown:
        parser.error(unknown_flag_message(unknown[0], [f.name for f in dataclasses.fields(arguments_class)]))  # type: ignore[arg-type]
    return arguments_class(**vars(namespace))


def unknown_flag_message(flag: str, known: Sequence[str]) -> str:
    """`unknown flag --vocab_sise; did you mean --vocab_size?`"""
    if not flag.startswith("--"):
        return f"unexpected argument {flag!r}; flags begin with --"
    name = flag[2:].split("=")[0].replace("-", "_")
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"unknown flag --{name}" + (f"; did you mean --{nearest[0]}?" if nearest else "; see --help")


def run(main: Callable[[], Any]) -> NoReturn:
    """Run a program and exit: a person's mistake is one line on stderr and status 2, a bug keeps its traceback.

    A mistake is a `ValueError`, `ImportError` or `OSError` that our own code raised; the same types coming out of a
    library are bugs, and so is everything else. `CLOZEBERT_TRACEBACK=1` shows the traceback of mistakes too.
    """
    from clozebert.utils.memory import keep_freed_memory

    keep_freed_memory()
    try:
        main()
    except (ValueError, ImportError, OSError) as error:
        if os.environ.get("CLOZEBERT_TRACEBACK") == "1" or not _raised_by_us(error):
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(0)


def _raised_by_us(error: BaseException) -> bool:
    """Whether the innermost frame of `error`'s traceback is code of this package (or a script of it run by path)."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    frames = traceback.extract_tb(error.__traceback__)
    innermost = os.path.abspath(frames[-1].filename) if frames else ""
    return innermost.startswith(package + os.sep) and "site-packages" not in innermost[len(package) :]
