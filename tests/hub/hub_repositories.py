"""What the server of `hub_server` keeps: repositories with branches, tags, and files small and large."""

import fnmatch
import hashlib
import json
from dataclasses import dataclass, field
from urllib.parse import unquote

LFS_NAMES = ("*.safetensors", "*.bin", "*.pt", "*.png", "*.onnx", "*.onnx.data", "*.h5")
LFS_SIZE = 10_000_000


@dataclass
class File:
    """A file of a commit: its bytes, or the hash of a large one."""

    content: bytes
    lfs_oid: str | None = None
    lfs_size: int = 0

    @property
    def size(self) -> int:
        return self.lfs_size if self.lfs_oid else len(self.content)

    @property
    def oid(self) -> str:
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()


@dataclass
class Repository:
    private: bool
    commits: dict[str, dict[str, File]] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, File], message: str) -> str:
        described = json.dumps([branch, len(self.commits), message, *((n, f.oid) for n, f in sorted(files.items()))])
        sha = hashlib.sha1(described.encode()).hexdigest()
        self.commits[sha], self.messages[sha], self.branches[branch] = files, message, sha
        return sha

    def resolve(self, revision: str) -> str | None:
        revision = unquote(revision)
        if revision in self.commits:
            return revision
        return self.branches.get(revision) or self.tags.get(revision)


def is_large(name: str, size: int) -> bool:
    return size > LFS_SIZE or any(fnmatch.fnmatch(name, pattern) for pattern in LFS_NAMES)


def is_ignored(name: str, patterns: str) -> bool:
    """As git, of the patterns that are used here: names, wildcards, and a leading / for the top folder."""
    for line in patterns.splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        target = name if pattern.startswith("/") else name.split("/")[-1]
        if fnmatch.fnmatch(target, pattern.lstrip("/")):
            return True
    return False
