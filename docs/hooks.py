"""What mkdocs does beside its own work: pages from outside docs/, tables of flags, and the package by itself."""

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"(\]\()([^)#\s]+)")
_FIELDS = re.compile(r"<!-- fields of (\w+) in (\S+) -->")


def on_startup(**_: Any) -> None:
    """Link the package's folders into build/api: the API reference must not walk through environments and runs."""
    package = ROOT / "build" / "api" / "clozebert"
    package.mkdir(parents=True, exist_ok=True)
    for source in [ROOT / "__init__.py", *(path.parent for path in ROOT.glob("*/__init__.py"))]:
        link = package / source.name
        if not link.is_symlink():
            link.symlink_to(source, target_is_directory=source.is_dir())


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of `PAGES`, and every file outside docs/ that a page links to."""
    for source, page in PAGES.items():
        text = _LINK.sub(_from_root, (ROOT / source).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
        _add_linked(files, config, text, folder=ROOT / "docs")
    for file in files.documentation_pages():
        if file.abs_src_path and "/" not in file.src_uri:
            _add_linked(files, config, file.content_string, folder=ROOT / "docs")
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to files outside docs/ into links to their copies, and marks into tables of fields."""
    markdown = _FIELDS.sub(lambda match: table_of_fields(ROOT / match.group(2), match.group(1)), markdown)
    return markdown if "/" in page.file.src_uri else _LINK.sub(_to_copy, markdown)


def table_of_fields(path: Path, class_name: str) -> str:
    """The fields of a dataclass of flags: names, types, and their help texts, which stand in a call beside each.

    The file is read and not imported, so that a build needs neither torch nor transformers.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    rows = ["| field | type | meaning |", "| --- | --- | --- |"]
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Call):
            constants = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
            text = max((value for value in constants if isinstance(value, str)), key=len, default="")
            # Within `code` a bar stands for itself, and so would a backslash.
            meaning = text.replace("|", "\\|")
            rows.append(f"| `{node.target.id}` | `{ast.unparse(node.annotation)}` | {meaning} |")
    return "\n".join(rows)


def _from_root(match: re.Match[str]) -> str:
    """A link in README.md, as a page in docs/ would write it."""
    start, target = match.groups()
    if "://" in target:
        return match.group()
    return start + (target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}")


def _to_copy(match: re.Match[str]) -> str:
    start, target = match.groups()
    if not target.startswith("../"):
        return match.group()
    name = target.removeprefix("../")
    return start + PAGES.get(name, f"files/{name}")


def _add_linked(files: Files, config: Any, text: str, *, folder: Path) -> None:
    for _, target in _LINK.findall(text):
        name = target.removeprefix("../")
        if target.startswith("../") and name not in PAGES and (folder / target).is_file():
            copy = File.generated(config, f"files/{name}", abs_src_path=str(ROOT / name))
            if copy.src_uri not in files.src_uris:
                files.append(copy)
