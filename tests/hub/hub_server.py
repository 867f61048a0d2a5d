"""A small server on loopback that speaks the Hub's protocol, for the real `huggingface_hub` client.

It keeps repositories with branches and tags, tells small files from large ones (LFS), takes large ones by the LFS batch
protocol, or by Xet where it is given a folder for that, and commits as newline-delimited JSON, whole or not at all,
refuses a commit whose parent is not the head any more, hides private repositories from whoever has no token, redirects
large downloads to another host name as the Hub does, and can be made to break off. It is no part of the package.
"""

import base64
import hashlib
import json
import re
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from hub_repositories import File, Repository, is_ignored, is_large


class Hub:
    """The state of the server, and what it was asked.

    Attributes:
        tokens: token -> (user, namespaces it may write to). uploads: the hashes of large files received.
        requests: (method, path). xet_store: a folder in which hf_xet itself keeps large files; None: no Xet here.
        broken: called with (method, path) before each answer; True breaks the connection.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.tokens: dict[str, tuple[str, set[str]]] = {"hf_writer": ("writer", {"writer", "org"})}
        self.lfs: dict[str, bytes] = {}
        self.uploads: list[str] = []
        self.requests: list[tuple[str, str]] = []
        self.xet_store: Path | None = None
        self.broken: Callable[[str, str], bool] = lambda method, path: False
        hub = self

        class Bound(_Handler):
            state = hub

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.lock = threading.Lock()

    def __enter__(self) -> "Hub":
        # It ends as soon as it is asked to, and not at the end of half a second.
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.server.shutdown()
        self.server.server_close()

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        """The content of a revision."""
        repository = self.repositories[repo_id]
        sha = repository.resolve(revision)
        assert sha is not None, f"no revision {revision}"
        return {name: self.content(file) for name, file in repository.commits[sha].items()}

    def content(self, file: File) -> bytes:
        return self.lfs[file.lfs_oid] if file.lfs_oid else file.content

    def xet_files(self) -> dict[str, tuple[str, int]]:
        """SHA-256 -> Xet's own hash, and the size, of what was uploaded by Xet: from the lists (shards) it left there.

        A list is records of 48 bytes: of each file its hash and number of parts, the parts, what verifies them, and
        its SHA-256.
        """
        found = {}
        for path in self.xet_store.rglob("shards/*.mdb") if self.xet_store else ():
            data, at = path.read_bytes(), 48
            while data[at : at + 32] != b"\xff" * 32:
                flags, parts = struct.unpack_from("<II", data, at + 32)
                size = sum(struct.unpack_from("<I", data, at + 48 * (1 + part) + 36)[0] for part in range(parts))
                end = at + 48 * (1 + parts * (2 if flags >> 31 else 1))
                if flags >> 30 & 1:
                    found[_xet_hex(data[end : end + 32])] = (_xet_hex(data[at : at + 32]), size)
                    end += 48
                at = end
        return found

    def edit(self, repo_id: str, name: str, content: bytes, branch: str = "main") -> None:
        """As a person does on the page of the repository."""
        repository = self.repositories[repo_id]
        files = dict(repository.commits[repository.branches[branch]])
        files[name] = File(content)
        repository.commit(branch, files, f"Edit {name}")


def _xet_hex(digest: bytes) -> str:
    """A hash as Xet writes it: four numbers, the lowest byte of each first."""
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", digest))


def point_client_at(hub: Hub, monkeypatch: Any) -> None:
    """Make the huggingface_hub of this process talk to `hub`, with the token of a writer."""
    import huggingface_hub
    from huggingface_hub import constants
    from transformers.utils import hub as transformers_hub

    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    monkeypatch.setattr(transformers_hub, "_hf_api", None, raising=False)  # which keeps the first address it meets
    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_writer")
    huggingface_hub.close_session()


class _AnswerError(Exception):
    """An answer that is an error, with the headers by which the client tells errors apart."""

    def __init__(self, status: int, message: str, code: str | None = None, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status, self.message, self.code, self.headers = status, message, code, headers or {}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else what is written after the headers waits 40 ms for the client's word
    state: Hub

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._handle()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def _handle(self) -> None:
        self.url = urlsplit(self.path)
        if self.state.broken(self.command, self.url.path):
            # After a part of the body was read, as when a cable is pulled.
            self.rfile.read(min(1000, int(self.headers.get("Content-Length") or 0)))
            self.close_connection = True
            return
        length = int(self.headers.get("Content-Length") or 0)
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.body = self._read_chunks()
        else:
            self.body = self.rfile.read(length)
        with self.state.lock:
            self.state.requests.append((self.command, self.url.path))
            try:
                for pattern, method, answer in _ROUTES:
                    match = re.fullmatch(pattern, self.url.path)
                    if match and self.command in method:
                        answer(self, *match.groups())
                        return
                raise _AnswerError(404, f"{self.command} {self.url.path} is not there", "EntryNotFound")
            except _AnswerError as failure:
                headers = {**failure.headers, "X-Error-Message": failure.message}
                if failure.code:
                    headers["X-Error-Code"] = failure.code
                self._send(failure.status, json.dumps({"error": failure.message}).encode(), headers)

    def _read_chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline().strip() or b"0", 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, size: int | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body) if size is None else size))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode())

    # Who may do what

    def _user(self) -> tuple[str, set[str]] | None:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not given:
            return None
        if given not in self.state.tokens:
            raise _AnswerError(401, "Invalid credentials in Authorization header")
        return self.state.tokens[given]

    def _repository(self, name: str, *, write: bool = False) -> Repository:
        name = unquote(name)
        user = self._user()
        repository = self.state.repositories.get(name)
        if repository is None or (repository.private and (user is None or name.split("/")[0] not in user[1])):
            raise _AnswerError(404 if user else 401, "Repository not found", "RepoNotFound")
        if write and (user is None or name.split("/")[0] not in user[1]):
            raise _AnswerError(403, f"you have no write access to {name}")
        return repository

    def _commit_of(self, repository: Repository, revision: str) -> str:
        sha = repository.resolve(revision)
        if sha is None:
            raise _AnswerError(404, f"Invalid rev id: {unquote(revision)}", "RevisionNotFound")
        return sha

    # Answers

    def whoami(self) -> None:
        user = self._user()
        if user is None:
            raise _AnswerError(401, "Invalid username or password.")
        role = {"accessToken": {"role": "write" if user[1] else "read"}}
        orgs = [{"name": name} for name in sorted(user[1])]
        self._json({"type": "user", "name": user[0], "orgs": orgs, "auth": role})

    def create(self) -> None:
        user = self._user()
        if user is None:
            raise _AnswerError(401, "Invalid username or password.")
        given = json.loads(self.body)
        name = f"{given.get('organization') or user[0]}/{given['name']}"
        if name.split("/")[0] not in user[1]:
            raise _AnswerError(403, f'You don\'t have the rights to create a model under the namespace "{name}"')
        url = {"url": f"{self.state.endpoint}/{name}", "name": name}
        if name in self.state.repositories:
            self._json({**url, "error": "You already created this model repo"}, 409)
            return
        is_private = given.get("visibility") == "private" or given.get("private") is True
        repository = Repository(private=is_private)
        repository.commit("main", {".gitattributes": File(b"*.safetensors filter=lfs\n")}, "initial commit")
        self.state.repositories[name] = repository
        self._json(url)

    def info(self, name: str, revision: str = "main") -> None:
        repository = self._repository(name)
        sha = self._commit_of(repository, revision)
        siblings = [{"rfilename": path} for path in sorted(repository.commits[sha])]
        self._json({"id": unquote(name), "sha": sha, "private": repository.private, "siblings": siblings, "tags": []})

    def refs(self, name: str) -> None:
        repository = self._repository(name)
        listed = {
            kind: [{"name": n, "ref": f"refs/{path}/{n}", "targetCommit": sha} for n, sha in found.items()]
            for kind, path, found in (("branches", "heads", repository.branches), ("tags", "tags", repository.tags))
        }
        self._json({**listed, "converts": []})

    def tree(self, name: str, revision: str, folder: str | None = None) -> None:
        repository = self._repository(name)
        files = repository.commits[self._commit_of(repository, revision)]
        prefix = f"{unquote(folder)}/" if folder else ""
        is_deep = parse_qs(self.url.query).get("recursive", ["false"])[0].lower() in ("true", "1")
        inside = {path: file for path, file in files.items() if path.startswith(prefix)}
        if folder and not inside:
            raise _AnswerError(404, f"{unquote(folder)} does not exist", "EntryNotFound")
        folders = {prefix + path[len(prefix) :].split("/")[0] for path in inside if "/" in path[len(prefix) :]}
        listed: list[dict[str, Any]] = [
            {"type": "directory", "path": path, "size": 0, "oid": hashlib.sha1(path.encode()).hexdigest()}
            for path in sorted(folders)
        ]
        listed += [
            _entry(path, file) for path, file in sorted(inside.items()) if is_deep or "/" not in path[len(prefix) :]
        ]
        self._json(listed)

    def paths_info(self, name: str, revision: str) -> None:
        repository = self._repository(name)
        files = repository.commits[self._commit_of(repository, revision)]
        if self.headers.get("Content-Type", "").startswith("application/json"):
            paths = json.loads(self.body)["paths"]
        else:
            paths = parse_qs(self.body.decode())["paths"]
        self._json([_entry(path, files[path]) for path in paths if path in files])

    def validate_yaml(self) -> None:
        self._json({"errors": [], "warnings": []})

    def preupload(self, name: str, revision: str) -> None:
        repository = self._repository(name, write=True)
        files = repository.commits[self._commit_of(repository, revision)]
        given = json.loads(self.body)
        patterns = given.get("gitIgnore")
        if patterns is None:
            patterns = files[".gitignore"].content.decode() if ".gitignore" in files else ""
        self._json(
            {
                "files": [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if is_large(file["path"], file["size"]) else "regular",
                        "shouldIgnore": is_ignored(file["path"], patterns),
                        "oid": _remote_oid(files.get(file["path"])),
                    }
                    for file in given["files"]
                ]
            }
        )

    def lfs_batch(self, name: str) -> None:
        self._repository(name, write=True)
        objects = []
        for item in json.loads(self.body)["objects"]:
            answer: dict[str, Any] = {"oid": item["oid"], "size": item["size"]}
            if item["oid"] not in self.state.lfs:
                answer["actions"] = {
                    "upload": {"href": f"{self.state.endpoint}/lfs/{item['oid']}"},
                    "verify": {"href": f"{self.state.endpoint}/verify/{name}"},
                }
            objects.append(answer)
        is_xet = self.state.xet_store is not None and "xet" in json.loads(self.body).get("transfers", [])
        self._json({"transfer": "xet" if is_xet else "basic", "objects": objects})

    def xet_token(self, name: str, kind: str, revision: str) -> None:
        self._repository(name, write=kind == "write")
        if self.state.xet_store is None:
            raise _AnswerError(404, "there is no Xet here")
        # By this address, hf_xet keeps in a folder what it would send to the store over HTTP.
        store, token, ends = f"local://{self.state.xet_store}", "xet_token", 9_999_999_999
        headers = {"X-Xet-Cas-Url": store, "X-Xet-Access-Token": token, "X-Xet-Token-Expiration": str(ends)}
        self._send(200, json.dumps({"casUrl": store, "accessToken": token, "exp": ends}).encode(), headers)

    def lfs_put(self, oid: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise _AnswerError(400, "the content does not have the hash that was announced")
        self.state.lfs[oid] = self.body
        self.state.uploads.append(oid)
        self._send(200, b"")

    def verify(self, name: str) -> None:
        self._repository(name, write=True)
        given = json.loads(self.body)
        if len(self.state.lfs.get(given["oid"], b"")) != given["size"]:
            raise _AnswerError(422, "the object is not there")
        self._json({})

    def commit(self, name: str, revision: str) -> None:
        repository = self._repository(name, write=True)
        branch = unquote(revision)
        if branch not in repository.branches:
            raise _AnswerError(404, f"Invalid rev id: {branch}", "RevisionNotFound")
        head = repository.branches[branch]
        files, message = dict(repository.commits[head]), ""
        for line in self.body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "header":
                message = value["summary"]
                if value.get("parentCommit", head) != head:
                    raise _AnswerError(412, "A commit has happened since. Please refresh and try again.")
            elif item["key"] == "file":
                files[value["path"]] = File(base64.b64decode(value["content"]))
            elif item["key"] == "lfsFile":
                if value["oid"] in self.state.lfs:
                    size = len(self.state.lfs[value["oid"]])
                elif value["oid"] in (by_xet := self.state.xet_files()):
                    size = by_xet[value["oid"]][1]
                else:
                    raise _AnswerError(400, f"the object {value['oid']} was not uploaded")
                files[value["path"]] = _pointer(value["oid"], size)
            elif item["key"] == "deletedFile":
                if files.pop(value["path"], None) is None:
                    raise _AnswerError(404, "A file with this name doesn't exist", "EntryNotFound")
            else:
                raise _AnswerError(400, f"unknown operation {item['key']}")
        sha = repository.commit(branch, files, message)
        self._json({"success": True, "commitOid": sha, "commitUrl": f"{self.state.endpoint}/{name}/commit/{sha}"})

    def branch(self, name: str, branch: str) -> None:
        repository = self._repository(name, write=True)
        if unquote(branch) in repository.branches:
            raise _AnswerError(409, "Reference already exists")
        start = json.loads(self.body or b"{}").get("startingPoint", "main")
        repository.branches[unquote(branch)] = self._commit_of(repository, start)
        self._json({})

    def tag(self, name: str, revision: str) -> None:
        repository = self._repository(name, write=True)
        tag = json.loads(self.body)["tag"]
        if tag in repository.tags:
            raise _AnswerError(409, "Tag reference exists already")
        repository.tags[tag] = self._commit_of(repository, revision)
        self._json({})

    def resolve(self, name: str, revision: str, path: str) -> None:
        repository = self._repository(name)
        sha = self._commit_of(repository, revision)
        file = repository.commits[sha].get(unquote(path))
        headers = {"X-Repo-Commit": sha}
        if file is None:
            raise _AnswerError(404, "Entry not found", "EntryNotFound", headers)  # the client caches that it is absent
        if file.lfs_oid:
            headers.update({"X-Linked-Etag": f'"{file.lfs_oid}"', "X-Linked-Size": str(file.size)})
            if file.lfs_oid in (by_xet := self.state.xet_files()):
                headers["X-Xet-Hash"] = by_xet[file.lfs_oid][0]
                headers["X-Xet-Refresh-Route"] = f"{self.state.endpoint}/api/models/{name}/xet-read-token/{sha}"
            headers["Location"] = f"http://localhost:{self.state.port}/cdn/{file.lfs_oid}"
            self._send(302, b"", headers)
            return
        headers.update({"ETag": f'"{file.oid}"', "Content-Type": "text/plain"})
        self._send(200, file.content, headers, size=file.size)

    def cdn(self, oid: str) -> None:
        if self.headers.get("Authorization"):
            # The store must never be shown the token.
            raise _AnswerError(400, "a token was sent to the store")
        content = self.state.lfs[oid]
        self._send(200, content, {"ETag": f'"{oid}"'}, size=len(content))


def _pointer(oid: str, size: int) -> File:
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {size}\n"
    return File(text.encode(), oid, size)


def _entry(path: str, file: File) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": file.size, "oid": file.oid}
    if file.lfs_oid:
        entry["lfs"] = {"oid": file.lfs_oid, "size": file.size, "pointerSize": len(file.content)}
    return entry


def _remote_oid(file: File | None) -> str | None:
    return None if file is None else file.lfs_oid or file.oid


_REPO = r"([^/]+/[^/]+)"
_READ, _WRITE = ("GET", "HEAD"), ("POST",)
_ROUTES: list[tuple[str, tuple[str, ...], Callable[..., None]]] = [
    (r"/api/whoami-v2", _READ, _Handler.whoami),
    (r"/api/repos/create", _WRITE, _Handler.create),
    (r"/api/validate-yaml", _WRITE, _Handler.validate_yaml),
    (rf"/api/models/{_REPO}", _READ, _Handler.info),
    (rf"/api/models/{_REPO}/revision/([^/]+)", _READ, _Handler.info),
    (rf"/api/models/{_REPO}/refs", _READ, _Handler.refs),
    (rf"/api/models/{_REPO}/tree/([^/]+)(?:/(.+))?", _READ, _Handler.tree),
    (rf"/api/models/{_REPO}/paths-info/([^/]+)", _WRITE, _Handler.paths_info),
    (rf"/api/models/{_REPO}/preupload/([^/]+)", _WRITE, _Handler.preupload),
    (rf"/api/models/{_REPO}/commit/([^/]+)", _WRITE, _Handler.commit),
    (rf"/api/models/{_REPO}/branch/([^/]+)", _WRITE, _Handler.branch),
    (rf"/api/models/{_REPO}/tag/([^/]+)", _WRITE, _Handler.tag),
    (rf"/api/models/{_REPO}/xet-(read|write)-token/([^/]+)", _READ, _Handler.xet_token),
    (rf"/{_REPO}\.git/info/lfs/objects/batch", _WRITE, _Handler.lfs_batch),
    (r"/lfs/(\w+)", ("PUT",), _Handler.lfs_put),
    (rf"/verify/{_REPO}", _WRITE, _Handler.verify),
    (r"/cdn/(\w+)", _READ, _Handler.cdn),
    (rf"/{_REPO}/resolve/([^/]+)/(.+)", _READ, _Handler.resolve),
]
