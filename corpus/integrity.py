"""Checks a prepared corpus for damage, by the hash of every file."""

from pathlib import Path

from ..utils.errors import UserError
from .manifest import CORPUS_SPLITS, files_of
from .packing import check_index
from .shards import check_hash, check_sizes, read_manifest


def holds_corpus(directory: Path) -> bool:
    """Whether a folder is a prepared corpus, complete or not."""
    return any((directory / split / "manifest.json").exists() for split in CORPUS_SPLITS)


def find_damaged_files(directory: Path) -> tuple[list[str], int]:
    """Read all of a corpus and its row indices, and find the damaged files.

    Returns:
        one sentence for each damaged file, and how many files were compared.
    """
    problems: list[str] = []
    count = 0
    for split in CORPUS_SPLITS:
        folder = directory / split
        path = folder / "manifest.json"
        if not path.exists():
            problems.append(f"{path} is missing")
            continue
        try:
            manifest, fingerprint = read_manifest(path)
        except UserError as error:
            problems.append(str(error))
            continue
        for name, facts in files_of(manifest).items():
            count += 1
            try:
                check_sizes(folder, {name: facts})
                check_hash(folder / name, facts, anew=True)
            except UserError as error:
                problems.append(str(error))
        for index in sorted(folder.glob(f"rows-*-{fingerprint[:16]}")):
            try:
                count += len(check_index(index, all_hashes=True))
            except UserError as error:
                problems.append(str(error))
    return problems, count
