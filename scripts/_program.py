"""What every program here shares: reading its arguments, and telling a person's mistake from a bug of ours."""

import dataclasses
import os
import select
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from clozebert.utils.errors import UserError, nearest_name

_Arguments = TypeVar("_Arguments")

# Before torch is imported: threads that spin while they wait make a busy machine several times slower (docs/LOG.md).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def parse(
    arguments_class: type[_Arguments], argv: Sequence[str] | None = None, *, prog: str, description: str
) -> _Arguments:
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
    nearest = nearest_name(name, known)
    return f"unknown flag --{name}" + (f"; did you mean --{nearest}?" if nearest else "; see --help")


def run(main: Callable[[], Any]) -> NoReturn:
    """Run a program and exit: with status 0, or 2 after a person's mistake, which is one line on stderr.

    A mistake is a `UserError`; `CLOZEBERT_TRACEBACK=1` shows its traceback too. Every other exception is a bug, or the
    machine's: it keeps its traceback, and the status is 1.
    """
    from clozebert.utils.memory import keep_freed_memory

    keep_freed_memory()
    try:
        main()
        sys.stdout.flush()
    except UserError as error:
        if os.environ.get("CLOZEBERT_TRACEBACK") == "1":
            traceback.print_exc()
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        if not _output_is_closed():
            raise
        sys.exit(141)  # as a shell reports the signal SIGPIPE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(0)


def _output_is_closed() -> bool:
    """Whether whoever read our output has gone, as `| head` does; then what waits to be written goes nowhere."""
    if not hasattr(select, "poll"):  # Windows
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    is_closed = any(event & select.POLLERR for _, event in poll.poll(0))
    if is_closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return is_closed
