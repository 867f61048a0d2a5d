"""Corpora at URLs that fsspec reads (`s3://…`, `gs://…`, `hf://…`, `https://…`): fetched once, then local.

A corpus is copied into the user's cache, under the hash of its manifests. Each file is checked against the manifest's
SHA-256 while it comes and gets its name when it is whole; the manifest comes last. So an interrupted fetch goes on
where it stopped, and what lies in the cache is right.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from ..utils.errors import MissingFileError, MissingPackageError, UserError, UserFileError
from ..utils.files import cache_folder, whole_file

_SPLITS = ("train", "validation")
_BLOCK = 1 << 23


def local_folder(place: str | Path) -> Path:
    """Where a corpus lies on this machine; one at a URL is fetched into the cache unless it is there.

    Raises:
        FileNotFoundError: no prepared corpus lies there.
        ImportError: the package that reads such URLs is not installed.
        OSError: the URL cannot be read.
        ValueError: an unknown kind of URL, or a file that is not the one in the manifest.
    """
    if "://" not in str(place):
        return Path(place)
    try:
        import fsspec
        from fsspec.implementations.local import LocalFileSystem
    except ImportError:
        raise MissingPackageError(f"the corpus {place} is at a URL: pip install fsspec") from None
    try:
        system, root = fsspec.core.url_to_fs(str(place).rstrip("/"))
    except ImportError as error:
        raise MissingPackageError(f"the corpus {place}: {error}") from None
    except ValueError as error:
        raise UserError(f"the corpus {place}: {error}") from None
    if isinstance(system, LocalFileSystem):
        return Path(root)
    manifests = {split: content for split in _SPLITS if (content := _read(system, root, split, place)) is not None}
    if not manifests:
        raise MissingFileError(f"{place} holds no prepared corpus; write one with scripts/prepare_corpus.py")
    digest = hashlib.sha256(b"\0".join(manifests.values())).hexdigest()
    folder = cache_folder() / "corpora" / digest[:32]
    folder.mkdir(parents=True, exist_ok=True)
    from filelock import FileLock

    # One process of a machine fetches, the others wait for it.
    with FileLock(folder.with_suffix(".lock")):
        for split, content in manifests.items():
            if not (folder / split / "manifest.json").is_file():
                _fetch(system, f"{root}/{split}", folder / split, json.loads(content))
                with whole_file(folder / split / "manifest.json") as file:
                    file.write(content)
    return folder


def _read(system: Any, root: str, split: str, place: str | Path) -> bytes | None:
    try:
        return system.cat_file(f"{root}/{split}/manifest.json")
    except FileNotFoundError:
        return None
    except Exception as error:  # each file system has errors of its own
        raise UserFileError(f"the corpus {place} cannot be read: {str(error) or type(error).__name__}") from None


def _fetch(system: Any, source: str, folder: Path, manifest: dict[str, Any]) -> None:
    """Copy the files of a split that are not there yet."""
    digests: dict[str, str | None] = {"documents.bin": manifest.get("files", {}).get("documents.bin")}
    for shard in manifest["shards"]:
        digests |= shard["files"]
    for name, expected in digests.items():
        if (folder / name).is_file():
            continue
        digest = hashlib.sha256()
        with whole_file(folder / name) as copy, system.open(f"{source}/{name}", "rb") as original:
            while block := original.read(_BLOCK):
                digest.update(block)
                copy.write(block)
            if expected is not None and digest.hexdigest() != expected:
                raise UserError(
                    f"{source}/{name} is not the file that the manifest names (SHA-256 {digest.hexdigest()[:12]}… "
                    f"instead of {expected[:12]}…): put the right one there, or prepare the corpus again"
                )
