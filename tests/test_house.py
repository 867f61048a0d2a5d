"""The layout: which room may import which, what a file may be, what the wheel holds, and that importing is cheap."""

import ast
import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from often import often
from warm_python import WarmPython

ALLOWED = {
    "utils": set(),
    "configuration": set(),
    "modeling": {"configuration"},
    "corpus": {"configuration", "utils"},
    "training": {"modeling", "corpus", "configuration", "utils"},
    "finetuning": {"modeling", "corpus", "configuration", "utils"},
    "hub": {"modeling", "configuration", "utils"},
    "adaptation": {"modeling", "corpus", "training", "hub", "configuration", "utils"},
    "scripts": {"configuration", "modeling", "corpus", "training", "finetuning", "adaptation", "hub", "utils"},
}
ROOT = Path(__file__).parents[1]
PACKAGE_FILES = [path for room in ALLOWED for path in ROOT.joinpath(room).rglob("*.py")]


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def rooms_imported(path: Path, *, depth: int = 1) -> set[str]:
    """The rooms that a file imports, relatively or by the package's name; for a script, other scripts too.

    Args:
        depth: in how many folders of the package the file lies; so many dots and one more lead to the package itself.
    """
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.level == depth + 1:
            names = [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = node.module.split(".")[1:2] if node.module.split(".")[0] == "clozebert" else []
        elif isinstance(node, ast.Import):
            parts = [alias.name.split(".") for alias in node.names]
            names = [part[1] for part in parts if part[0] == "clozebert" and len(part) > 1]
        found.update(name for name in names if name in ALLOWED)
    return found


@pytest.mark.parametrize("path", PACKAGE_FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_run_left_to_right(path: Path) -> None:
    room, depth = room_of(path), len(path.relative_to(ROOT).parts) - 1
    assert rooms_imported(path, depth=depth) <= ALLOWED[room] | ({"scripts"} if room == "scripts" else set())


@pytest.mark.parametrize("path", [p for p in PACKAGE_FILES if p.parent.name == "scripts"], ids=lambda p: p.name)
def test_scripts_never_import_one_another(path: Path) -> None:
    imported = re.findall(r"(?:from|import) clozebert\.scripts(?:\.(\w+))?", path.read_text(encoding="utf-8"))
    assert set(imported) <= {"_program"}


def test_the_import_rule_can_fail(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("from ..training import loop\nfrom clozebert.hub import card\nimport clozebert.corpus.shards\n")
    assert rooms_imported(bad) == {"training", "hub", "corpus"}
    bad.write_text("from ...training import loop\nfrom ..corpus import own_module_of_that_name\n")
    assert rooms_imported(bad, depth=2) == {"training"}


# Circles -------------------------------------------------------------------------------------------------------------


def modules_below(root: Path) -> dict[str, Path]:
    """Every module of a package by its dotted name, seen from the package."""
    found = {}
    for path in [*root.glob("*.py"), *(path for room in ALLOWED for path in root.joinpath(room).rglob("*.py"))]:
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def modules_imported(name: str, modules: dict[str, Path]) -> set[str]:
    """Which of `modules` one of them imports, inside functions too; what is imported for types alone does not count."""
    path, found = modules[name], set()
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            if isinstance(child, ast.ImportFrom):
                parts = (child.module or "").split(".") if child.module else []
                if child.level:
                    base = [*package[: len(package) - child.level + 1], *parts]
                elif parts and parts[0] == "clozebert":
                    base = parts[1:]
                else:
                    continue
                for alias in child.names:
                    own = ".".join([*base, alias.name])
                    found.add(own if own in modules else ".".join(base))
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return (found & modules.keys()) - {name}


def find_circle(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import one another in a circle; none: an empty list."""
    done: set[str] = set()

    def search(name: str, trail: list[str]) -> list[str]:
        if name in trail:
            return trail[trail.index(name) :]
        if name in done:
            return []
        for imported in sorted(imports[name]):
            if circle := search(imported, [*trail, name]):
                return circle
        done.add(name)
        return []

    return next((circle for name in sorted(imports) if (circle := search(name, []))), [])


def test_no_module_imports_itself_by_way_of_others() -> None:
    modules = modules_below(ROOT)
    imports = {name: modules_imported(name, modules) for name in modules}
    assert sum(map(len, imports.values())) > 200
    assert find_circle(imports) == []


def test_the_circle_rule_can_fail(tmp_path: Path) -> None:
    for name, text in {
        "utils/a.py": "from .b import x",
        "utils/b.py": "def f():\n    from clozebert.corpus import c",
        "corpus/c.py": "from ..utils.a import y",
        "corpus/d.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..utils.b import f",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    modules = modules_below(tmp_path)
    imports = {name: modules_imported(name, modules) for name in modules}
    assert imports["corpus.d"] == set()
    assert find_circle(imports) == ["corpus.c", "utils.a", "utils.b"]


# Files and names -----------------------------------------------------------------------------------------------------


def test_no_python_file_is_longer_than_500_lines() -> None:
    folders = [*ALLOWED, "tests", "benchmarks", "docs"]
    paths = [*ROOT.glob("*.py"), *(path for folder in folders for path in ROOT.joinpath(folder).rglob("*.py"))]
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text("utf-8").splitlines()) for path in paths}
    assert len(lengths) > 200
    assert {name: length for name, length in lengths.items() if length > 500} == {}


# How many Python files may lie directly in one folder of the package. The two largest rooms are divided further.
# modeling/ is flat, with 23, because its files travel flat with each checkpoint.
MOST_FILES = 24
MOST_FILES_OF = {"training": 16, "corpus": 16}


def crowded_folders(paths: list[Path], root: Path) -> dict[str, int]:
    """The folders of a package that hold too many Python files, each with their number."""
    counts = Counter(path.relative_to(root).parent for path in paths)
    most = {folder: MOST_FILES_OF.get(folder.parts[0], MOST_FILES) for folder in counts}
    return {folder.as_posix(): count for folder, count in counts.items() if count > most[folder]}


def test_no_folder_holds_too_many_files() -> None:
    assert crowded_folders(PACKAGE_FILES, ROOT) == {}


def test_the_rule_of_folders_can_fail() -> None:
    numbers = {"modeling": 24, "hub": 25, "corpus": 16, "training": 17, "training/planning": 17, "corpus/readers": 9}
    paths = [Path("/", folder, f"{i}.py") for folder, count in numbers.items() for i in range(count)]
    assert crowded_folders(paths, Path("/")) == {"hub": 25, "training": 17, "training/planning": 17}


# What every program has, and what every module that logs has.
OF_EACH = {"main", "Arguments", "logger"}


def public_names(path: Path) -> set[str]:
    """The classes, functions and constants that a module defines, but for private ones."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return {name for name in found if not name.startswith("_")} - OF_EACH


def test_each_public_name_is_defined_once() -> None:
    places: dict[str, list[str]] = {}
    for path in PACKAGE_FILES:
        for name in public_names(path):
            places.setdefault(name, []).append(path.relative_to(ROOT).as_posix())
    assert len(places) > 500
    assert {name: sorted(found) for name, found in places.items() if len(found) > 1} == {}


# Private operators ---------------------------------------------------------------------------------------------------


def unguarded_operators(text: str) -> list[str]:
    """Private names of PyTorch and transformers that a file reads, unless it has asked before whether they are there.

    A guard is `getattr(torch.ops.mkldnn, "_name", None)` or `hasattr(torch.ops.mkldnn, "_name")` in the same file.
    """
    tree = ast.parse(text)
    guarded = {
        node.args[1].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and (node.func.id == "hasattr" or (node.func.id == "getattr" and len(node.args) == 3))
        and isinstance(node.args[1], ast.Constant)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts = ast.unparse(node).split(".")
            is_private = node.attr.startswith("_") and not node.attr.startswith("__")
            if parts[0] in ("torch", "transformers") and is_private and node.attr not in (*guarded, "_C"):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("torch", "transformers"):
            path = f"{node.module}." + ",".join(alias.name for alias in node.names)
            if any(part.startswith("_") and not part.startswith("__") for part in re.split(r"[.,]", path)):
                found.append(path)
    return found


def test_shipped_files_read_no_private_operator_unguarded() -> None:
    from clozebert.modeling.bundle import CODE_FILES

    shipped = [
        path for path in PACKAGE_FILES if path.name in CODE_FILES and room_of(path) in ("configuration", "modeling")
    ]
    assert len(shipped) == len(CODE_FILES)
    found = {path.name: unguarded_operators(path.read_text(encoding="utf-8")) for path in shipped}
    assert {name: operators for name, operators in found.items() if operators} == {}


def test_the_rule_of_private_operators_can_fail() -> None:
    assert unguarded_operators("y = torch.ops.mkldnn._linear(x)") == ["torch.ops.mkldnn._linear"]
    assert unguarded_operators("from torch._dynamo import disable") == ["torch._dynamo.disable"]
    assert unguarded_operators("f = getattr(torch.ops.mkldnn, '_linear')\ny = torch._foreach_add(x)") == [
        "torch._foreach_add"
    ]
    guarded = "if hasattr(torch.ops.mkldnn, '_linear'):\n    y = torch.ops.mkldnn._linear(x)"
    assert unguarded_operators(guarded) == []


# Shipped files -------------------------------------------------------------------------------------------------------


def test_shipped_files_are_flat_unique_and_loadable_by_transformers(repository: Path) -> None:
    """transformers finds imports by regular expression, follows `from .x import` only, and puts all in one folder."""
    from clozebert.modeling.bundle import CODE_FILES

    sources = {
        path.name: path.read_text(encoding="utf-8")
        for room in ("configuration", "modeling")
        for path in (repository / room).glob("*.py")
        if path.name in CODE_FILES
    }
    assert sorted(sources) == sorted(CODE_FILES)
    for name, text in sources.items():
        assert "from __future__ import annotations" not in text, name
        for module in re.findall(r"^\s*from\s+(\.\S*)\s+import", text, flags=re.MULTILINE):
            flat = module.replace("..configuration.", ".")
            assert re.fullmatch(r"\.\w+", flat), f"{name} imports {module}"
            assert f"{flat[1:]}.py" in CODE_FILES, f"{name} imports {module}, which is not shipped"
        assert not re.search(r"^\s*from\s+\.\s+import", text, flags=re.MULTILINE), name


def test_the_file_that_auto_classes_open_names_all_others(tmp_path: Path) -> None:
    """Of a local folder, transformers 5.4 copies no more than these: a missing file is a FileNotFoundError."""
    from transformers.dynamic_module_utils import get_relative_imports

    from clozebert.modeling.bundle import write_code

    files = set(write_code(tmp_path))
    for opened in ("configuration_clozebert.py", "modeling_clozebert.py"):
        named = {f"{name}.py" for name in get_relative_imports(tmp_path / opened)}
        needed = named.union(*({f"{x}.py" for x in get_relative_imports(tmp_path / name)} for name in named))
        assert needed <= named | {opened}
    assert named | {opened} == files


def test_importing_the_package_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, clozebert; print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def without_transformers() -> Iterator[WarmPython]:
    """Forks of a process that has imported what transformers imports, and nothing of transformers."""
    with WarmPython(transformers=False) as warm:
        yield warm


@pytest.mark.parametrize(
    "first",
    often(
        [
            "from transformers import AutoModel, AutoConfig",
            "import transformers.modeling_layers; from transformers import AutoModel, AutoConfig",
            "from clozebert import ClozeBertForMaskedLM; from transformers import AutoModel, AutoConfig",
            "from transformers import AutoTokenizer, AutoConfig, AutoModel",
            "from clozebert import ClozeBertConfig; from transformers import AutoModel, AutoConfig",
            "from transformers import BertModel, Trainer, pipeline, AutoModel, AutoConfig",
        ],
        3,
    ),
)
@pytest.mark.parametrize("package_first", [True, False])
def test_auto_classes_know_the_architecture_in_any_import_order(
    without_transformers: WarmPython, first: str, package_first: bool
) -> None:
    lines = ["import clozebert", first] if package_first else [first, "import clozebert"]
    code = "; ".join(
        [
            "import sys; print('transformers' in sys.modules)",
            *lines,
            "config = AutoConfig.for_model('clozebert', hidden_size=24, num_attention_heads=2, num_hidden_layers=1)",
            "print(type(AutoModel.from_config(config)).__module__)",
        ]
    )
    done = without_transformers.run(["-c", code])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "clozebert.modeling.encoder"]


def test_the_wheel_holds_every_module_and_recipe_and_nothing_else(wheel: Path, repository: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {f"clozebert/{name}" for name in ("__init__.py", "__main__.py", "py.typed")}
    for room in ALLOWED:
        expected |= {f"clozebert/{path.relative_to(repository)}" for path in (repository / room).rglob("*.py")}
    expected |= {f"clozebert/configuration/{path.name}" for path in (repository / "configuration").glob("*.yaml")}
    expected.add("clozebert/hub/card_template.md")
    assert held == expected


def test_the_wheel_works_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    """Every verb shows its help with only the wheel's files, from a folder that is not the repository."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def python(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )

    where = python("-c", "import clozebert; print(clozebert.__file__)").stdout.strip()
    assert where == str(site / "clozebert" / "__init__.py")
    usage = python("-m", "clozebert", "--help").stdout
    from clozebert.__main__ import PROGRAMS

    for verb, (_, summary) in PROGRAMS.items():
        assert verb in usage
        assert summary in usage
        done = python("-m", "clozebert", verb, "--help")
        assert done.returncode == 0, done.stderr
        assert "--output" in done.stdout or "usage:" in done.stdout


def test_every_script_is_a_verb(repository: Path) -> None:
    from clozebert.__main__ import PROGRAMS

    scripts = {path.stem for path in (repository / "scripts").glob("[!_]*.py")}
    assert scripts == {module for module, _ in PROGRAMS.values()}


def test_an_unknown_verb_is_an_error() -> None:
    done = subprocess.run([sys.executable, "-m", "clozebert", "pretran"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "unknown command 'pretran'; did you mean 'pretrain'?" in done.stderr
