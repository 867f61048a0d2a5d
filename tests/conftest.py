"""What all tests share: no network, one thread each, as two of them run at a time, and no GPU but in `make gpu`."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
# Tests compare on the CPU, and some fork, which a process that has used CUDA cannot.
if os.environ.get("CLOZEBERT_TEST_GPU") != "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import base64
import contextlib
import gc
import importlib.util
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
# A PNG file of one point.
_POINT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
# Where Python is told to keep nothing of what it compiles, as in many containers, each process that the tests start
# would compile torch and transformers anew, more than half of its first seconds. So it is kept, away from all sources.
# The Makefile does the same.
BYTECODE = str(REPOSITORY / "build" / "bytecode")
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = BYTECODE
if sys.pycache_prefix == BYTECODE:
    # What earlier tests compiled in their temporary folders, nobody imports again.
    shutil.rmtree(f"{sys.pycache_prefix}{tempfile.gettempdir()}", ignore_errors=True)
# So that `warm_python` is importable, whichever way pytest is started.
if str(REPOSITORY / "tests") not in sys.path:
    sys.path.append(str(REPOSITORY / "tests"))
from warm_python import WarmPython  # noqa: E402

if importlib.util.find_spec("hypothesis"):  # a GPU machine may lack it
    import hypothesis

    # A busy machine is no defect of what is tested. The examples are the same in each run, so that a commit fails by
    # what it changed. `pytest --hypothesis-profile random` and the deep fault suite draw new ones.
    hypothesis.settings.register_profile("random", deadline=None)
    hypothesis.settings.register_profile("same", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("same")

# A shell that starts the tests in the background, or nohup, has signals ignored, and so would the programs under test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _skip_without_scores() -> Generator[None, object, object]:
    """Skip what asks for the scores' packages, the extra `finetune`, where these are not installed."""
    try:
        return (yield)
    except ImportError as error:
        absent = [name for name in ("sklearn", "seqeval") if importlib.util.find_spec(name) is None]
        needed = str(error.name).partition(".")[0]
        if needed in absent or (absent and str(error).startswith("scores need ")):
            pytest.skip(f"not installed: {', '.join(absent)}")
        raise


def pytest_collection_finish() -> None:
    """What imports and collection made stays to the end: no garbage collection of a test looks at it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    return (yield from _skip_without_scores())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    return (yield from _skip_without_scores())


@pytest.fixture(autouse=True)
def quick_reports(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes a third of a small run's time: its figures are a point, and the device's peak is not measured.

    Of runs in the process of the tests and its forks. A test marked `reports` has both as they are.
    """
    if "reports" in request.keywords:
        return
    if figure := sys.modules.get("matplotlib.figure"):
        monkeypatch.setattr(figure.Figure, "savefig", _save_point)
    if loop := sys.modules.get("clozebert.training.loop"):
        monkeypatch.setattr(loop, "measure_matmul_flops", lambda device, precision: 1e11)


def _save_point(figure: object, place: Any, **options: Any) -> None:
    with contextlib.nullcontext(place) if hasattr(place, "write") else Path(place).open("wb") as file:
        file.write(_POINT)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout, which is the package."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real datasets beside the checkout; tests that use them are skipped where there are none."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no ../shared/data beside the checkout")
    return folder


@pytest.fixture(scope="session")
def python() -> Iterator[WarmPython]:
    """Starts Python programs in forks of a process that has imported torch and transformers, and nothing of ours."""
    with WarmPython() as warm:
        yield warm


@pytest.fixture(scope="session")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what git knows, so that no build folder is left in the checkout."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (repository / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((repository / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "-q", "-w", str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl"))
