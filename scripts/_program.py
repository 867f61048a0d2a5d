"""What all programs share: reading flags, telling user errors from bugs, and handling Ctrl-C."""

import atexit
import gc
import io
import os
import select
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from clozebert.utils.command_line import Flag, Parser, flags_of
from clozebert.utils.errors import UserError, as_user_errors, exit_with_error
from clozebert.utils.files import write_json
from clozebert.utils.interrupts import answering_interrupts, is_interrupted
from clozebert.utils.limits import available_cpus, processor_limit
from clozebert.utils.output_folders import closed_place
from clozebert.utils.processes import LostProcessError, launched_processes, let_first_process_speak
from clozebert.utils.wording import counted

if TYPE_CHECKING:
    from clozebert.corpus.readers.inputs import Reader

_Arguments = TypeVar("_Arguments")
_format_with_place = warnings.formatwarning
# What several processes may run together.
_LAUNCHED = ("adapt", "finetune-sequence", "finetune-token", "pretrain")

# Set before torch is imported. Threads that spin while waiting make a busy machine several times slower; threads that
# sleep at once make an idle one slower by half. So they spin for about as long as waking up takes (docs/LOG.md).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "4000")  # GNU's OpenMP, which PyTorch uses on Linux
# A container's share of processor time does not hide processors: with a thread for each of them, those that have not
# been stopped wait for those that have.
if processor_limit() is not None:
    os.environ.setdefault("OMP_NUM_THREADS", str(available_cpus()))


def parse(
    arguments_class: type[_Arguments],
    argv: Sequence[str] | None = None,
    *,
    doc: str | None,
    verb: str,
    first: str | None = None,
) -> _Arguments:
    """Read `argv` (default: the command line) into a dataclass whose fields are the flags.

    An unknown flag ends the program with status 2; the message names the most similar known flag.

    Args:
        doc: the program's docstring. The help shows its first line, and its lines `clozebert VERB …` as examples.
        verb: the program's name as a verb of `clozebert`.
        first: the flag whose value may be given first, without the flag's name.
    """
    if verb not in _LAUNCHED and launched_processes() > 1 and "LOCAL_RANK" in os.environ:
        raise UserError(
            f"{verb} runs in one process, and a launcher started {launched_processes()}: start it without accelerate "
            "launch or torchrun"
        )
    given = list(sys.argv[1:] if argv is None else argv)
    if first is not None and given and not given[0].startswith("-"):
        given.insert(0, f"--{first}")
    return arguments_class(**parse_flags(flags_of(arguments_class), given, doc=doc, verb=verb, first=first))


def open_input(arguments: Any, *, dataset_config_name: str | None = None) -> "Reader":
    """The reader of `--input`, by the flags that say how to read it; a flag without effect is refused.

    Args:
        arguments: `ReadingFlags` with `input`.
    """
    from clozebert.corpus.readers.inputs import refuse_unused

    reader = arguments.reader(arguments.input, dataset_config_name=dataset_config_name)
    refuse_unused([reader], text_column=arguments.text_column, dataset_config_name=dataset_config_name)
    return reader


def say_left_out(reader: "Reader") -> None:
    """Print how many documents were left out as bad text, if any were."""
    if reader.bad_texts:
        print(f"{counted(reader.bad_texts, 'document')} left out by --on_bad_text skip")


def parse_flags(
    flags: Sequence[Flag],
    argv: Sequence[str] | None = None,
    *,
    doc: str | None,
    verb: str,
    notes: Iterable[str] = (),
    hints: Mapping[str, str] | None = None,
    first: str | None = None,
) -> dict[str, Any]:
    """The values of `flags` by name; see `parse`."""
    lines = [line.strip() for line in (doc or "").splitlines()] or [""]  # `python -OO` has no docstrings
    start = f"clozebert {verb} "
    examples = [line.removeprefix(start) for line in lines if line.startswith(start)]
    parser = Parser(
        flags, prog=command(verb), description=lines[0], examples=examples, notes=notes, hints=hints, first=first
    )
    return parser.read(argv)


def parse_run_flags(
    argv: Sequence[str] | None, *more: Flag, doc: str | None, verb: str, notes: Iterable[str] = (), **options: Any
) -> dict[str, Any]:
    """The flags of a pretraining run that were given: name -> value. The others keep the recipe's value.

    Args:
        more: the program's own flags.
        notes: lines of the help after those about recipes.
        options: the options of `pretraining_flags`.
    """
    from clozebert.training.run_settings import hints, pretraining_flags, read_flag, recipe_notes, values_for_help

    words = list(sys.argv[1:] if argv is None else argv)
    flags = pretraining_flags(*more, shown=values_for_help(words), **options)
    values = parse_flags(flags, words, doc=doc, verb=verb, notes=[*recipe_notes(), *notes], hints=hints())
    return {key: read_flag(key, value) for key, value in values.items() if value is not None}


def read_file(name: str, file: str) -> str:
    """The text of the file that the flag `name` names."""
    from clozebert.corpus.readers.compression import read_text

    path = Path(file)
    if not path.is_file():
        raise UserError(f"{name}: there is no file {path}")
    return read_text(path).strip()


def check_output_file(output_file: str | None) -> None:
    """Check before any work that `write_results` can write there."""
    if output_file is None:
        return
    path = Path(output_file)
    # The functions of os.path raise nothing below a folder that is closed to the user.
    if os.path.isdir(path):
        raise UserError(f"--output_file={output_file!r} is a folder: name a file")
    # The file would replace /dev/null itself; and /dev/stdout, a link, also where the output goes to a file.
    if path.absolute().parent == Path("/dev") or (os.path.exists(path) and not os.path.isfile(path)):
        raise UserError(f"--output_file={output_file!r} is a device or a pipe: name a file")
    if closed := closed_place(path.absolute().parent):
        raise UserError(f"--output_file={output_file!r}: {closed} is not a folder to which you may write")


def refuse_replacing(output_file: str | None, files: Iterable[Path]) -> None:
    """Raise if the results would replace one of the files that are read."""
    if output_file is None or not os.path.exists(output_file):
        return
    if any(os.path.samefile(output_file, file) for file in files):
        raise UserError(f"--output_file={output_file!r} is one of the files that are read: name another one")


def write_results(output_file: str, results: Mapping[str, Any]) -> None:
    """Write the results of a program to the file given by --output_file."""
    with as_user_errors(OSError, about="--output_file"):
        write_json(output_file, results, allow_nan=True)


def exit_if_stopped(results: Mapping[str, Any]) -> None:
    """If a signal stopped the run, exit with the status 128 + signal, so that the caller sees it is not done."""
    if "stopped_by" in results:
        sys.exit(128 + results["stopped_by"])


def command(verb: str) -> str:
    """How the program was called: `clozebert VERB`, `python scripts/x.py` or `python -m clozebert.scripts.x`."""
    name = Path(sys.argv[0]).name
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name.startswith("clozebert"):
        module = spec.name.removesuffix(".__main__")
        return f"python -m clozebert {verb}" if module == "clozebert" else f"python -m {module}"
    # Another program may have called this one, and changed the folder since it began.
    if name.endswith(".py") and Path(__file__).resolve().parent == Path(sys.argv[0]).resolve().parent:
        return f"python {sys.argv[0]}"
    return f"clozebert {verb}"


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """One line for a warning of this package; a library's warning keeps its file and line."""
    if category is UserWarning and Path(filename).is_relative_to(Path(__file__).parents[1]):
        return f"warning: {message}\n"
    return _format_with_place(message, category, filename, lineno, line)


def run(main: Callable[[], Any]) -> NoReturn:
    """Run a program and exit: with status 0, or 2 after a user error, which is shown as one line on stderr.

    User errors are `UserError`s; `CLOZEBERT_TRACEBACK=1` shows their traceback, too. Any other exception is a bug or a
    fault of the machine: it keeps its traceback, and the status is 1. Ctrl-C ends the program soon, with status 130.
    """
    try:
        _run(main)
    except SystemExit as leaving:
        if launched_processes() > 1 and (leaving.code is None or isinstance(leaving.code, int)):
            _end_one_of_several(leaving.code or 0)
        raise


def _check_folders(wants_help: bool) -> None:
    """Exit if the current folder is gone or there is none for temporary files: libraries ask for both, unnamed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        exit_with_error("the folder that you are in was deleted: go to another one, or to the new one of that name")
    try:
        if not wants_help:
            tempfile.gettempdir()
    except FileNotFoundError:
        exit_with_error("there is no folder for temporary files: set TMPDIR to one to which you may write")


def _run(main: Callable[[], Any]) -> NoReturn:
    from clozebert.utils.memory import keep_freed_memory

    _replace_closed_streams()
    wants_help = not {"-h", "--help"}.isdisjoint(sys.argv)
    _check_folders(wants_help)
    keep_freed_memory()
    # Line buffering for files and pipes, too, where Python would buffer thousands of characters. A character that the
    # terminal's encoding lacks is escaped, as on stderr: what is shown of a text must not end a program.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    # Skips Python's last garbage collection, which takes most of a second for the objects of torch and transformers.
    atexit.register(gc.freeze)
    if sys.stderr.isatty() and not wants_help:
        # A sign of life: importing torch and transformers takes seconds.
        print("loading …", file=sys.stderr, flush=True)
    warnings.formatwarning = _format_warning
    try:
        with answering_interrupts():
            main()
            sys.stdout.flush()
    except UserError as error:
        _end_with(error)
    except BrokenPipeError:
        if not _output_is_closed():
            raise
        sys.exit(141)  # as a shell reports the signal SIGPIPE
    except KeyboardInterrupt:
        _end_interrupted()
    except Exception:
        # After Ctrl-C, libraries may raise other errors, for example a pool whose workers are gone.
        if is_interrupted():
            _end_interrupted()
        raise
    sys.exit(0)


def _end_with(error: UserError) -> NoReturn:
    if os.environ.get("CLOZEBERT_TRACEBACK") == "1":
        traceback.print_exc()
    if not isinstance(error, LostProcessError):  # which not all processes have
        let_first_process_speak()
    exit_with_error(" ".join(str(error).split()))


def _end_one_of_several(status: int) -> NoReturn:
    """Exit without Python's own clean-up, which can abort one of several processes (SIGABRT).

    gloo's thread may still have to free the tensors of the last collective operation, and needs the interpreter's lock
    for it. Once Python ends, a thread that asks for that lock is ended: here in a destructor, which ends the process.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _replace_closed_streams() -> None:
    """Give a stream that the caller has closed (`<&-`, `>&-`) nothing to read and nowhere to write; Python has None.

    In this order each gets its own number again. A file of ours with the number 2 would take in what libraries print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _end_interrupted() -> NoReturn:
    """Exit at once: what libraries do at exit, such as waiting for workers, can take long."""
    print("interrupted", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(130)


def _output_is_closed() -> bool:
    """Whether the reader of our output is gone, as with `| head`; if so, the rest of the output is discarded."""
    if not hasattr(select, "poll"):  # Windows
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    is_closed = any(event & select.POLLERR for _, event in poll.poll(0))
    if is_closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return is_closed
