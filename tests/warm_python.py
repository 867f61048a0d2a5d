"""Python processes that need no seconds to import torch and transformers: forks of one that has imported them.

    with WarmPython() as python:
        done = python.run(["-m", "clozebert", "plan", "--config", "tiny"], cwd=folder)
    done.returncode, done.stdout, done.stderr

A fork has a command line, a folder, an environment and streams of its own. Of this package nothing is imported in it.
For tests of what a program does. That a program starts in a Python that has imported nothing is tested by itself.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
import types
from pathlib import Path
from typing import Any

# What transformers imports, and takes the longest; then what programs import of transformers and beside it.
LIBRARIES = (
    "torch", "torch._dynamo", "torch.distributed.tensor", "scipy.optimize", "sklearn", "pandas",
    "matplotlib.backends.backend_agg",
)  # fmt: skip
TRANSFORMERS = ("transformers.trainer", "transformers.pipelines", "transformers.models.auto.modeling_auto", "datasets")
# Read when Python starts or these libraries are imported; and by huggingface_hub, which transformers imports.
READ_AT_IMPORT, READ_BY_HUB = (
    ("PYTHON", "TORCH", "CUDA_", "OMP_", "GOMP_", "ATEN_", "ONEDNN_"),
    ("HF_", "TRANSFORMERS_"),
)

# Where transformers writes code that comes with a model: a fork is told.
MODULES = "HF_MODULES_CACHE"


class WarmPython:
    """Starts Python processes by forking one that has imported torch and what else takes long.

    Libraries that are not installed are left out. `transformers=False`: all but transformers and huggingface_hub, for
    programs that are to import these themselves.
    """

    def __init__(self, *, transformers: bool = True):
        self._modules = [*LIBRARIES, *TRANSFORMERS] if transformers else [*LIBRARIES]
        self._fixed = READ_AT_IMPORT + (READ_BY_HUB if transformers else ())
        self._server: subprocess.Popen[str] | None = None
        self._environment = dict(os.environ)

    def run(
        self,
        arguments: list[Any],
        *,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        timeout: int = 300,
        input: bytes = b"",
    ) -> subprocess.CompletedProcess[str]:
        """What `subprocess.run([sys.executable, *arguments])` returns, with its output as text.

        `arguments` begin with `-c CODE`, `-m MODULE` or the path of a program.
        """
        environment = dict(os.environ if env is None else env)
        names = {name for name in environment.keys() | self._environment.keys() if name.startswith(self._fixed)}
        names.discard(MODULES)
        changed = sorted(name for name in names if environment.get(name) != self._environment.get(name))
        assert not changed, f"a fork is too late for {', '.join(changed)}: start a process"
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            (place / "in").write_bytes(input)
            request = {
                "arguments": list(map(str, arguments)), "cwd": str(cwd or Path.cwd()), "environment": environment,
                "timeout": timeout, "streams": folder,
            }  # fmt: skip
            server = self._start()
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(json.dumps(request) + "\n")
            server.stdin.flush()
            status = json.loads(server.stdout.readline())
            out, err = ((place / name).read_text("utf-8", "replace") for name in ("out", "err"))
        return subprocess.CompletedProcess(request["arguments"], status, out, err)

    def __enter__(self) -> "WarmPython":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._server is not None:
            self._server.communicate()

    def _start(self) -> "subprocess.Popen[str]":
        if self._server is None:
            command = [sys.executable, __file__, *self._modules]
            pipe = subprocess.PIPE
            self._server = subprocess.Popen(command, env=self._environment, stdin=pipe, stdout=pipe, text=True)
        return self._server


def serve(modules: list[str]) -> None:
    """Fork for each line of standard input, and answer it with the exit status."""
    sys.path.pop(0)  # the folder of this file
    for name in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name.split(".")[0]:
                raise
    early = {"clozebert", "transformers", "huggingface_hub"} & sys.modules.keys()
    assert early == ({"transformers", "huggingface_hub"} if TRANSFORMERS[0] in modules else set()), early
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(request: dict[str, Any]) -> None:
    """Do what Python does with these arguments, and end."""
    signal.alarm(request["timeout"])
    for number, (name, mode) in enumerate((("in", os.O_RDONLY), ("out", os.O_WRONLY), ("err", os.O_WRONLY))):
        stream = os.open(os.path.join(request["streams"], name), mode | os.O_CREAT)
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if MODULES in os.environ:
        for name in ("transformers.utils", "transformers.utils.hub", "transformers.dynamic_module_utils"):
            if name in sys.modules:
                setattr(sys.modules[name], MODULES, os.environ[MODULES])
    status: Any = 0
    try:
        _run(request["arguments"])
    except SystemExit as stopped:
        status = stopped.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    os._exit(status)


def _run(arguments: list[str]) -> None:
    kind, *others = arguments
    if kind == "-c":
        sys.argv[:] = ["-c", *others[1:]]
        sys.path.insert(0, "")
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(others[0], "<string>", "exec"), main.__dict__)
    elif kind == "-m":
        sys.argv[:] = others
        sys.path.insert(0, os.getcwd())
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(kind)))
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1:])
