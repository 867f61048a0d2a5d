"""Uploads a folder to a repository on the Hub, in one commit, or in none if nothing changed.

huggingface_hub uploads and commits. Large files are uploaded before the commit, so an interrupted push leaves the last
revision unchanged, and the next push reuses the files already uploaded. The commit names its parent, so of two
concurrent pushes the later one fails. A card that a person edited on the Hub is kept; outdated files of an earlier push
are deleted.
"""

import contextlib
import hashlib
import os
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from ..modeling.bundle import write_code
from ..utils.errors import UserError
from ..utils.files import OLD_SPECIAL_TOKENS, WEIGHTS
from ..utils.hub_names import is_hub_name
from ..utils.untrusted import ADAPTER_NAME
from .card import CARD_NAME, is_ours
from .fingerprint import FILE_NAME as FINGERPRINT_NAME
from .fingerprint import find_differences, read_fingerprint
from .hub_errors import hub_errors
from .processors import has_tokenizer

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# Files that a push deletes if it has none of that name: weights in other shards, the ONNX forms (int8 once had another
# name), and the pickles that Trainer pushes. So are the files that the fingerprint of the last push lists.
_OURS = re.compile(rf"{WEIGHTS}|training_args\.bin|onnx/model(_quantized|_int8)?\.onnx(\.data)?")


@dataclass(frozen=True)
class Push:
    """The result of a push.

    Attributes:
        commit: the revision that now holds the folder. uploaded, deleted: names of files; empty if nothing changed.
        notes: what the user should know.
    """

    commit: str
    uploaded: list[str]
    deleted: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_repo_id(repo_id: str, *, name: str = "repo_id") -> None:
    """Check the name of a repository; `name` is that of the flag.

    Raises:
        UserError: it is not ORG/NAME in the form that the Hub accepts.
    """
    if "/" not in repo_id or not is_hub_name(repo_id):
        raise UserError(f"{name}={repo_id!r}: it must be ORG/NAME, of letters, digits, '-', '_' and single '.'")


def check_access(repo_id: str, *, public: bool, revision: str | None = None) -> None:
    """Ask the Hub, before any work, for what would refuse the push.

    Raises:
        UserError: a bad token, or one that may only read; a repository that is public, or that holds an adapter.
    """
    from huggingface_hub import HfApi

    api = HfApi(library_name="clozebert")
    with hub_errors(repo_id):
        token = (api.whoami().get("auth") or {}).get("accessToken") or {}
        if token.get("role") == "read":
            raise UserError(
                "the token for the Hub may only read: make one that may write, and run `hf auth login`, or set HF_TOKEN"
            )
        if api.repo_exists(repo_id):
            if not public:
                _refuse_public(api, repo_id)
            if revision is not None and revision not in {one.name for one in api.list_repo_refs(repo_id).branches}:
                revision = None  # a new branch begins from main
            if api.file_exists(repo_id, ADAPTER_NAME, revision=revision):
                _refuse_adapter(repo_id)


def push_folder(
    folder: Path, repo_id: str, *, public: bool = False, revision: str | None = None, message: str = "Publish"
) -> Push:
    """Push `folder` to a branch of a repository; files there that are not ours stay.

    The token is the one that huggingface_hub finds (`HF_TOKEN`, or `hf auth login`).

    Args:
        folder: all its files are uploaded.
        public: whether everybody may read the repository; if False, a new one is private.
        revision: the branch, created if it does not exist; None: main.
        message: the commit message.

    Raises:
        UserError: the Hub cannot be reached or refuses; the message is one line without any token.
    """
    from huggingface_hub import HfApi

    check_repo_id(repo_id)
    api = HfApi(library_name="clozebert")
    with hub_errors(repo_id):
        notes = _open_repository(api, repo_id, public)
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        head = api.repo_info(repo_id, revision=revision).sha
        assert head is not None
        before = _hashes(api, repo_id, head)
        if ADAPTER_NAME in before:
            _refuse_adapter(repo_id)
        kept, pushed, reasons = _compare(api, folder, repo_id, head, set(before))
        outdated = {name for name in before if name in pushed or _OURS.fullmatch(name)}
        if has_tokenizer(folder):
            outdated |= {name for name in before if re.fullmatch(OLD_SPECIAL_TOKENS, name)}
        commit = _commit(api, folder, repo_id, head, revision, message, kept=kept, outdated=outdated)
        after = before if commit == head else _hashes(api, repo_id, commit)
    uploaded = sorted(name for name in after if after[name] != before.get(name))
    return Push(commit, uploaded, sorted(set(before) - set(after)), [*notes, *reasons])


def _open_repository(api: "HfApi", repo_id: str, public: bool) -> list[str]:
    if not api.repo_exists(repo_id):
        api.create_repo(repo_id, private=not public, exist_ok=True)
        return []
    if not public:
        _refuse_public(api, repo_id)
        return []
    is_private = bool(api.repo_info(repo_id).private)
    return [f"{repo_id} was private and stays so; its settings on the Hub change that"] if is_private else []


def _refuse_public(api: "HfApi", repo_id: str) -> None:
    if not api.repo_info(repo_id).private:
        raise UserError(f"{repo_id} is public on the Hub: give --public to publish for everybody, or another name")


def _refuse_adapter(repo_id: str) -> None:
    raise UserError(
        f"{repo_id} holds {ADAPTER_NAME}, an adapter of PEFT, and transformers would apply it to the model: delete it "
        f"there, or give another name"
    )


def _hashes(api: "HfApi", repo_id: str, revision: str) -> dict[str, str]:
    """The files of a revision: name -> git hash."""
    from huggingface_hub.hf_api import RepoFile

    listed = api.list_repo_tree(repo_id, recursive=True, revision=revision)
    return {item.path: item.blob_id for item in listed if isinstance(item, RepoFile)}


def _commit(
    api: "HfApi",
    folder: Path,
    repo_id: str,
    head: str,
    revision: str | None,
    message: str,
    *,
    kept: set[str],
    outdated: set[str],
) -> str:
    """Commit the folder on top of `head`; returns the new revision (`head` if unchanged).

    The files in `kept` stay as they are on the Hub; those in `outdated` that the folder lacks are deleted.

    huggingface_hub leaves out files that are already there, and makes no commit if none remain.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    here = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    with contextlib.ExitStack() as opened:
        contents: dict[str, Any] = {name: str(path) for name, path in here.items() if name not in kept}
        if not _has_xet(repo_id, revision or "main"):
            # With hf_xet installed, a path is uploaded with Xet, but an open file over HTTP.
            contents = {name: opened.enter_context(here[name].open("rb")) for name in contents}
        operations = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=x) for name, x in contents.items()]
        deleted = sorted(outdated - set(here))
        done = api.create_commit(
            repo_id,
            [*operations, *(CommitOperationDelete(path_in_repo=name) for name in deleted)],
            commit_message=message,
            revision=revision,
            parent_commit=head,
        )
    return done.oid


def _has_xet(repo_id: str, revision: str) -> bool:
    """Whether the server supports Xet uploads; huggingface_hub assumes it whenever hf_xet is installed."""
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    url = f"{constants.ENDPOINT}/api/models/{repo_id}/xet-write-token/{revision}"
    answer = get_session().get(url, headers=build_hf_headers())
    if answer.status_code in (404, 405, 501):
        return False
    hf_raise_for_status(answer)
    return True


def _compare(
    api: "HfApi", folder: Path, repo_id: str, head: str, there: set[str]
) -> tuple[set[str], set[str], list[str]]:
    """Compare the folder with what was pushed last.

    Returns:
        the files to keep unchanged on the Hub (an edited card, and a fingerprint that differs by rounding), the names
        of the files of the last push, and what the user should know.
    """
    kept, reasons = set(), []
    with tempfile.TemporaryDirectory() as temporary:
        for name in {CARD_NAME, FINGERPRINT_NAME} & there:
            api.hf_hub_download(repo_id, name, revision=head, local_dir=temporary)
        try:
            old = read_fingerprint(temporary) or {}
        except ValueError:
            old = {}
        if CARD_NAME in there and (folder / CARD_NAME).is_file():
            card = (Path(temporary) / CARD_NAME).read_bytes()
            is_changed = card != (folder / CARD_NAME).read_bytes()
            is_as_pushed = hashlib.sha256(card).hexdigest() == old.get("card_sha256")
            if is_changed and not is_as_pushed and not is_ours(card.decode(errors="replace")):
                kept.add(CARD_NAME)
                reasons.append(f"{CARD_NAME} was edited on the Hub and stays as it is there")
    new = read_fingerprint(folder)
    if old and new and _differ_by_rounding(old, new):
        kept.add(FINGERPRINT_NAME)
    return kept, set(map(str, old.get("files", []))), reasons


def _differ_by_rounding(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether two fingerprints are of the same model and card."""
    beside = [key for key in {*old, *new} if key != "outputs" and old.get(key) != new.get(key)]
    return not beside and list(old["outputs"]) == list(new["outputs"]) and not find_differences(old, new)


# Pushes of Trainer during training

# The Hub leaves files that the repository's .gitignore names out of a push.
_IGNORED = "/training_args.bin"


class LoadablePushes(TrainerCallback):
    """`Trainer(..., callbacks=[LoadablePushes()])`: what Trainer pushes can be loaded with `AutoModel`.

    When training begins, the code of a ClozeBERT is put into `output_dir`, and a `.gitignore` that keeps Trainer's
    arguments, a pickle, out of the pushes. The strategies `checkpoint` and `all_checkpoints` also push checkpoints with
    the state of the optimizer, which are pickles.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if not args.push_to_hub or not state.is_world_process_zero:
            return
        os.makedirs(args.output_dir, exist_ok=True)
        path = Path(args.output_dir) / ".gitignore"
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        if _IGNORED not in lines:
            path.write_text("\n".join([*lines, _IGNORED]) + "\n", encoding="utf-8", newline="\n")
        is_adapter = hasattr(model, "peft_config") or getattr(model, "_hf_peft_config_loaded", False)
        if not is_adapter and getattr(getattr(model, "config", None), "model_type", None) == "clozebert":
            write_code(args.output_dir)
