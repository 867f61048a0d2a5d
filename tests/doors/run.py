"""Try other people's programs on a bundle and on a native model, and write a table of what works.

python tests/doors/run.py [--only NAME ...] [--into docs/serving.md]

Each program of `programs/` gets an environment of its own with the current versions of what its header names (as
inline script metadata). The package index is the only thing that is asked; the models are made here. Results are kept
in the cache folder, so that a run of some programs renews their rows only. The exit status is 1 where something failed
that is not known to fail, or a known failure is gone.
"""

import argparse
import ast
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = {path.stem.removeprefix("door_"): path for path in sorted((HERE / "programs").glob("door_*.py"))}
FORMS = ("bundle", "native")
LIMIT = 240  # seconds, of one program with one form
BEGIN, END = "<!-- doors: begin (written by `make doors`) -->", "<!-- doors: end -->"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(PROGRAMS), metavar="NAME", help="these programs only")
    parser.add_argument("--into", type=Path, help="the page whose table is renewed")
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "clozebert-doors"
    parser.add_argument(
        "--cache", type=Path, default=default, help="environments, models, results (default: %(default)s)"
    )
    arguments = parser.parse_args()
    if arguments.into and BEGIN not in arguments.into.read_text(encoding="utf-8"):
        parser.error(f"--into={arguments.into} has no line {BEGIN}")
    cache = arguments.cache.resolve()
    results_file = cache / "results.json"
    (cache / "logs").mkdir(parents=True, exist_ok=True)
    results = json.loads(results_file.read_text(encoding="utf-8")) if results_file.is_file() else {}
    results = {name: result for name, result in results.items() if name in PROGRAMS}
    make_models(cache)
    surprises = []
    for name in arguments.only or PROGRAMS:
        results[name] = try_program(cache, name)
        results_file.write_text(json.dumps(results, indent=1), encoding="utf-8")
        print(row(name, results[name]), flush=True)
        surprises += [f"{name}, {form}: {text}" for form in FORMS for text in find_surprises(results[name][form])]
    if arguments.into:
        text = arguments.into.read_text(encoding="utf-8")
        arguments.into.write_text(put_between(text, table(results)), encoding="utf-8")
    print("\n".join(surprises))
    return 1 if surprises else 0


# Environments


def header(path: Path) -> dict[str, Any]:
    """The inline script metadata (PEP 723) of a program: plain lists and strings."""
    text = path.read_text(encoding="utf-8")
    block = re.search(r"^# /// script\n((?:#.*\n)+?)# ///$", text, flags=re.MULTILINE)
    if block is None:
        raise ValueError(f"{path} has no inline script metadata")
    source = "\n".join(line.lstrip("# ") for line in block[1].splitlines())
    found = re.findall(r"^([\w-]+) = (\[.*?\])$", source, flags=re.MULTILINE | re.DOTALL)
    return {key: ast.literal_eval(value) for key, value in found}


def environment(cache: Path, name: str, requirements: list[str]) -> Path:
    """The python of a virtual environment with `requirements`; made anew where they changed, or after a day."""
    uv = cache / "uv" / "bin" / "uv"
    quiet = ["-q", "--disable-pip-version-check"]
    if not uv.is_file():
        subprocess.run([sys.executable, "-m", "venv", str(cache / "uv")], check=True)
        subprocess.run([str(uv.with_name("python")), "-m", "pip", "install", *quiet, "uv"], check=True)
    folder = cache / "environments" / name
    wanted = json.dumps([requirements, datetime.date.today().isoformat()])
    mark = folder / "requirements.json"
    if mark.is_file() and mark.read_text(encoding="utf-8") == wanted:
        return folder / "bin" / "python"
    # One release of torch for all, of which the files are shared.
    torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    (cache / "constraints.txt").write_text(f"{torch}\n", encoding="utf-8")
    variables = {**os.environ, "UV_CACHE_DIR": str(cache / "packages"), "UV_SYSTEM_CERTS": "1"}
    if "PIP_FIND_LINKS" in os.environ:
        variables["UV_FIND_LINKS"] = os.environ["PIP_FIND_LINKS"]
    python = ["--python", str(folder / "bin" / "python"), "-c", str(cache / "constraints.txt")]
    subprocess.run([uv, "venv", "-q", "--clear", "--python", sys.executable, folder], check=True, env=variables)
    subprocess.run([uv, "pip", "install", "-q", *python, "torch", *requirements], check=True, env=variables, cwd=ROOT)
    mark.write_text(wanted, encoding="utf-8")
    return folder / "bin" / "python"


def make_models(cache: Path) -> None:
    """The models, made by an environment with what publishing needs."""
    link = cache / "package" / "clozebert"
    if link.is_symlink() and link.resolve() != ROOT:
        link.unlink()
    link.parent.mkdir(exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(ROOT)
    if (cache / "models" / "made").is_file():
        return
    requirements = ["-r", "pyproject.toml", "--extra", "serving"]
    python = environment(cache, "models", requirements)
    shutil.rmtree(cache / "models", ignore_errors=True)
    variables = {**os.environ, "PYTHONPATH": str(link.parent), "HF_HUB_OFFLINE": "1"}
    subprocess.run([python, HERE / "make_models.py", cache / "models"], check=True, env=variables)
    (cache / "models" / "made").touch()


# Programs


def try_program(cache: Path, name: str) -> dict[str, Any]:
    """What came of one program: form -> the ways that were tried, the last of which passed or was the last."""
    requirements = header(PROGRAMS[name])["dependencies"]
    result: dict[str, Any] = {"date": datetime.date.today().isoformat(), "job": job(name), "program": program(name)}
    try:
        python = environment(cache, name, requirements)
    except subprocess.CalledProcessError:
        failed = {"way": "as is", "error": "it did not install", "whose": "not known", "versions": {}}
        return {**result, **{form: [failed] for form in FORMS}}
    for form in FORMS:
        tried: list[dict[str, Any]] = []
        while not tried or ("error" in tried[-1] and len(tried) < tried[-1].get("ways", 0)):
            tried.append(try_way(cache, python, name, form, len(tried)))
        result[form] = tried
    return result


def try_way(cache: Path, python: Path, name: str, form: str, way: int) -> dict[str, Any]:
    first = re.match(r"[\w.-]+", header(PROGRAMS[name])["dependencies"][0])
    assert first is not None
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "HF_", "UV_"))}
    variables.update(
        DOORS_FORM=form, DOORS_WAY=str(way), DOORS_MODELS=str(cache / "models"), DOORS_PACKAGE=str(cache / "package"),
        PYTHONPATH=str(HERE), HF_HOME=str(cache / "home"), HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
        PATH=f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    )  # fmt: skip
    work = cache / "work"
    for left in (work, cache / "home"):
        shutil.rmtree(left, ignore_errors=True)
    work.mkdir()
    log = cache / "logs" / f"{name}-{form}-{way}.txt"
    with log.open("w", encoding="utf-8") as file:
        command = [python, PROGRAMS[name], first[0]]
        try:
            options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
            subprocess.run(command, env=variables, cwd=work, timeout=LIMIT, **options)
        except subprocess.TimeoutExpired:
            return {"way": str(way), "error": f"no end within {LIMIT} seconds", "whose": "not known", "versions": {}}
    return read_result(log.read_text(encoding="utf-8", errors="replace")) or {
        "way": str(way), "error": "the process died", "whose": "not known", "versions": {}
    }  # fmt: skip


def read_result(printed: str) -> dict[str, Any]:
    """What `door.run` said among all that was printed; empty where it said nothing."""
    lines = [line for line in printed.splitlines() if line.startswith("DOOR ")]
    return json.loads(lines[-1].removeprefix("DOOR ")) if lines else {}


def job(name: str) -> str:
    """What a program does: the docstring behind its colon."""
    return _docstring(name).split(": ", 1)[1].rstrip(".")


def program(name: str) -> str:
    return _docstring(name).split(": ", 1)[0]


def _docstring(name: str) -> str:
    text = ast.get_docstring(ast.parse(PROGRAMS[name].read_text(encoding="utf-8")))
    if text is None or ": " not in text:
        raise ValueError(f"{PROGRAMS[name]} needs a docstring: PROGRAM: what it does")
    return " ".join(text.split())


# The page


def find_surprises(tried: list[dict[str, Any]]) -> list[str]:
    found = [f"{way['way']}: {way['error']}" for way in tried if way.get("whose") == "not known"]
    mended = [way["way"] for way in tried if way.get("is_mended")]
    return found + [f"{way}: works now, and is named as a known failure" for way in mended]


def cell(tried: list[dict[str, Any]]) -> str:
    if not tried:
        return "not tried"
    last = tried[-1]
    if "error" in last:
        return "no"
    difference = last.get("difference")
    return last["way"] + ("" if difference is None else f", {difference:.0e}" if difference else ", 0")


def row(name: str, result: dict[str, Any]) -> str:
    versions = (result["native"] or result["bundle"])[-1].get("versions", {})
    others = [version for key, version in versions.items() if key not in ("transformers", "torch")]
    own = others[0] if others else versions.get("transformers", "")
    known = result["program"] if result["program"].endswith(own) else f"{result['program']} {own}"
    cells = [known, versions.get("transformers", ""), result["job"]]
    return "| " + " | ".join([*cells, *(cell(result[form]) for form in FORMS)]) + " |"


def table(results: dict[str, Any]) -> str:
    """The table of all results, and below it what failed."""
    ordered = sorted(results.items(), key=lambda item: item[1]["program"].lower())
    dates = sorted({result["date"] for result in results.values()})
    every = [tried for result in results.values() for form in FORMS for tried in result[form]]
    torches = sorted({tried["versions"]["torch"] for tried in every if tried.get("versions", {}).get("torch")})
    said = []
    for form in FORMS:
        tried = [result[form][-1] for result in results.values() if result[form]]
        said.append(f"{form}: {sum('error' not in last for last in tried)} of {len(tried)} work")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    lines = [
        f"Tried {when} with torch {', '.join(torches)} and Python {python}: "
        f"{len(results)} programs; {'; '.join(said)}.",
        "",
        "| program | transformers | what it did | bundle | native |",
        "| --- | --- | --- | --- | --- |",
        *(row(name, result) for name, result in ordered),
    ]
    failures = [
        f"| {result['program']} | {form} | {way['way']} | `{shorten(way['error'])}` | {way['whose']} |"
        for _, result in ordered
        for form in FORMS
        for way in result[form]
        if "error" in way
    ]
    if failures:
        lines += [
            "",
            "What failed:",
            "",
            "| program | form | way | error | whose |",
            "| --- | --- | --- | --- | --- |",
            *failures,
        ]
    return "\n".join(lines)


def shorten(error: str) -> str:
    error = re.sub(r"/\S+/", "…/", error).replace("|", "/").replace("`", "'")
    return error if len(error) <= 180 else error[:179].rstrip() + "…"


def put_between(text: str, table: str) -> str:
    """The page with `table` between its marks."""
    head, rest = text.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


if __name__ == "__main__":
    sys.exit(main())
