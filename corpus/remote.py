"""Downloads prepared corpora from URLs (`s3://…`, `gs://…`, `hf://…`, `https://…`) into a local cache, once.

A corpus is copied into the user's cache, under the hash of its manifests. Each file is checked against the size and
SHA-256 of the manifest during the download and gets its name when it is complete; the manifest comes last. So an
interrupted download resumes with the first missing file, and files in the cache are always correct. A manifest cannot
choose the names or the place of files: see `manifest`.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..utils.errors import MissingFileError, MissingPackageError, UserError, UserFileError, as_user_errors
from ..utils.files import cache_folder, whole_file
from ..utils.untrusted import LARGEST_JSON
from .manifest import CORPUS_SPLITS, FileFacts, files_of, parse_manifest

_BLOCK = 1 << 23


def local_folder(place: str | Path) -> Path:
    """The local folder of a corpus; a corpus at a URL is downloaded into the cache if it is not there yet.

    Raises:
        FileNotFoundError: there is no prepared corpus at this place.
        ImportError: the package that reads such URLs is not installed.
        OSError: the URL cannot be read.
        ValueError: the kind of URL is unknown, or a file does not match the manifest.
    """
    if "://" not in str(place):
        return Path(place)
    system, root = _open_url(place)
    from fsspec.implementations.local import LocalFileSystem

    if isinstance(system, LocalFileSystem):
        return Path(root)
    manifests = {
        split: content for split in CORPUS_SPLITS if (content := _read(system, root, split, place)) is not None
    }
    if not manifests:
        raise MissingFileError(f"{place} holds no prepared corpus; write one with clozebert prepare-corpus")
    # Checked before anything is written: the manifest is not trusted.
    files = {
        split: files_of(parse_manifest(content, where=f"{place}/{split}/manifest.json"))
        for split, content in manifests.items()
    }
    digest = hashlib.sha256(b"\0".join(manifests.values())).hexdigest()
    folder = cache_folder() / "corpora" / digest[:32]
    from filelock import FileLock

    with as_user_errors(OSError, about=f"{place} is copied to {folder} (set XDG_CACHE_HOME for another folder)"):
        folder.mkdir(parents=True, exist_ok=True)
        # One process of a machine downloads, the others wait for it.
        with FileLock(folder.with_suffix(".lock")):
            _download(system, root, manifests, files, folder)
    return folder


def _download(
    system: Any, root: str, manifests: dict[str, bytes], files: dict[str, dict[str, FileFacts]], folder: Path
) -> None:
    """Download the splits that are not there yet; the manifest of each comes last."""
    for split, content in manifests.items():
        if not (folder / split / "manifest.json").is_file():
            for name, facts in files[split].items():
                _fetch(system, f"{root}/{split}/{name}", folder / split / name, facts)
            with whole_file(folder / split / "manifest.json") as file:
                file.write(content)


def _open_url(place: str | Path) -> tuple[Any, str]:
    """The file system of a URL, and the path within it."""
    try:
        import fsspec
    except ImportError:
        raise MissingPackageError(f"the corpus {place} is at a URL: pip install fsspec") from None
    try:
        return fsspec.core.url_to_fs(str(place).rstrip("/"))
    except ImportError as error:
        raise MissingPackageError(f"the corpus {place}: {error}") from None
    except ValueError as error:
        raise UserError(f"the corpus {place}: {error}") from None


def _read(system: Any, root: str, split: str, place: str | Path) -> bytes | None:
    try:
        with system.open(f"{root}/{split}/manifest.json", "rb") as file:
            content = file.read(LARGEST_JSON + 1)
    except FileNotFoundError:
        return None
    except Exception as error:  # each file system has its own errors
        raise UserFileError(f"the corpus {place} cannot be read: {str(error) or type(error).__name__}") from None
    if len(content) > LARGEST_JSON:
        raise UserError(
            f"{place}/{split}/manifest.json has more than {LARGEST_JSON >> 20} MiB: clozebert did not write it"
        )
    return content


def _fetch(system: Any, source: str, target: Path, facts: FileFacts) -> None:
    """Download a file unless it exists, and check its size and hash."""
    if target.is_file():
        return
    digest, size = hashlib.sha256(), 0
    with whole_file(target) as copy:
        for block in _blocks(system, source):
            size += len(block)
            digest.update(block)
            copy.write(block)
            if size > facts.size:
                break
        if (size, digest.hexdigest()) != facts:
            raise UserError(
                f"{source} is not the file that the manifest names (SHA-256 {digest.hexdigest()[:12]}… instead of "
                f"{facts.sha256[:12]}…): put the right one there, or prepare the corpus again"
            )


def _blocks(system: Any, source: str) -> Iterator[bytes]:
    try:
        with system.open(source, "rb") as original:
            while block := original.read(_BLOCK):
                yield block
    except FileNotFoundError:
        raise MissingFileError(f"{source} is missing, but the manifest names it: prepare the corpus again") from None
    except Exception as error:
        raise UserFileError(f"{source} cannot be read: {str(error) or type(error).__name__}") from None
