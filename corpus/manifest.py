"""The manifest of one split of a corpus: its fields, and the size and hash of each file.

The number of shards determines the names of a split's files. A manifest that names other files raises an error, so it
can never point outside its folder. A manifest also holds a hash of its other fields.
"""

import hashlib
import json
import re
from typing import Any, NamedTuple

import numpy as np

from ..utils.errors import UserError
from ..utils.untrusted import is_plain_name, parse_json, shown

CORPUS_SPLITS = ("train", "validation")
FORMAT_VERSION = 2
_OWN_HASH = "manifest_sha256"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LARGEST = 1 << 48  # tokens or documents; a larger number means damage
_TOKENIZER_IDS = ("pad_token_id", "cls_token_id", "sep_token_id", "mask_token_id")


class FileFacts(NamedTuple):
    """Bytes and SHA-256 of a file."""

    size: int
    sha256: str


def token_dtype(vocab_size: int) -> str:
    """The smallest dtype that holds every token id."""
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


def shard_names(number: int) -> tuple[str, str]:
    """The names of a shard's two files: tokens and word starts."""
    return f"tokens-{number:05d}.bin", f"word_starts-{number:05d}.bin"


def parse_manifest(content: bytes, *, where: object) -> dict[str, Any]:
    """Parse and check a manifest.

    Args:
        where: the file, for messages.

    Raises:
        UserError: it is damaged or of another version; the message names the key.
    """
    manifest = parse_json(content, where=where)
    if not isinstance(manifest, dict):
        raise UserError(f"{where} must hold an object, not {type(manifest).__name__}: prepare the corpus again")
    version = manifest.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise UserError(
            f"{where}: format_version={shown(version)}, but this version reads {FORMAT_VERSION}; prepare the corpus "
            "again"
        )
    check = _Check(where)
    found = manifest.get(_OWN_HASH)
    check.that(_OWN_HASH, found, found == hash_of(manifest))
    for name in ("documents", "tokens"):
        check.number(name, manifest.get(name), _LARGEST)
    _check_tokenizer(check, manifest.get("tokenizer"))
    check.that(
        "dtype", manifest.get("dtype"), manifest.get("dtype") == token_dtype(manifest["tokenizer"]["vocab_size"])
    )
    files = check.mapping("files", manifest.get("files"))
    check.names("files", files, ("documents.bin",))
    shards: Any = manifest.get("shards")
    check.that("shards", shards, isinstance(shards, list))
    for number, shard in enumerate(shards):
        key = f"shards[{number}]"
        tokens: Any = check.mapping(key, shard).get("tokens")
        check.number(f"{key}.tokens", tokens, _LARGEST)
        check.that(f"{key}.tokens", tokens, tokens > 0)
        check.names(f"{key}.files", check.mapping(f"{key}.files", shard.get("files")), shard_names(number))
    check.that("tokens", manifest["tokens"], manifest["tokens"] == sum(shard["tokens"] for shard in shards))
    return manifest


def format_manifest(facts: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The manifest of these facts with its own hash, and the bytes to write."""
    manifest = {"format_version": FORMAT_VERSION, **facts}
    manifest[_OWN_HASH] = hash_of(manifest)
    return manifest, (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode("utf-8")


def hash_of(manifest: dict[str, Any]) -> str:
    """The hash of all fields of a manifest except the hash itself."""
    values = {key: value for key, value in manifest.items() if key != _OWN_HASH}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode("ascii")).hexdigest()


def files_of(manifest: dict[str, Any]) -> dict[str, FileFacts]:
    """Every file of a split except its manifest, by name."""
    width = np.dtype(manifest["dtype"]).itemsize
    found = {"documents.bin": FileFacts(8 * (manifest["documents"] + 1), manifest["files"]["documents.bin"])}
    for number, shard in enumerate(manifest["shards"]):
        sizes = (width * shard["tokens"], (shard["tokens"] + 7) // 8)
        for name, size in zip(shard_names(number), sizes, strict=True):
            found[name] = FileFacts(size, shard["files"][name])
    return found


def _check_tokenizer(check: "_Check", tokenizer: Any) -> None:
    size: Any = check.mapping("tokenizer", tokenizer).get("vocab_size")
    check.number("tokenizer.vocab_size", size, 1 << 31)
    for name in _TOKENIZER_IDS:
        check.number(f"tokenizer.{name}", tokenizer.get(name), size - 1)
    special = tokenizer.get("special_token_ids")
    check.that("tokenizer.special_token_ids", special, isinstance(special, list))
    for one in special:
        check.number("tokenizer.special_token_ids", one, size - 1)


class _Check:
    """Checks of values, with errors that name file and key."""

    def __init__(self, where: object) -> None:
        self.where = where

    def that(self, key: str, value: object, is_right: bool) -> None:
        if not is_right:
            raise UserError(
                f"{self.where}: {key}={shown(value)} is impossible: the manifest is damaged; prepare the corpus again"
            )

    def number(self, key: str, value: object, largest: int) -> None:
        self.that(key, value, type(value) is int and 0 <= value <= largest)  # a boolean is not a number

    def mapping(self, key: str, value: Any) -> dict[str, Any]:
        self.that(key, value, isinstance(value, dict))
        return value

    def names(self, key: str, files: dict[str, Any], wanted: tuple[str, ...]) -> None:
        """Check that `files` names exactly the wanted files, each with its hash."""
        for name in files:
            if not is_plain_name(name):
                raise UserError(f"{self.where}: {key} names the file {shown(name)}, which is not a file of its folder")
        if set(files) != set(wanted):
            raise UserError(f"{self.where}: {key} must be those of {', '.join(wanted)}, not of {shown(sorted(files))}")
        for name, sha256 in files.items():
            self.that(f"the SHA-256 of {name}", sha256, isinstance(sha256, str) and bool(_SHA256.fullmatch(sha256)))
