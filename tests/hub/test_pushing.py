"""What a push does, against a server on loopback that speaks the Hub's protocol, by the real client over real HTTP."""

import hashlib
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants
from natives import make_native
from saved_models import make_model, save
from transformers import AutoModel

from clozebert.hub import LoadablePushes, publishing
from clozebert.hub.card import write_card
from clozebert.hub.convert import convert_folder
from clozebert.hub.fingerprint import read_fingerprint
from clozebert.hub.loading import find_folder
from clozebert.hub.publishing import Completion, publish
from clozebert.hub.pushing import push_folder


@pytest.fixture
def saved(tmp_path):
    folder = save(tmp_path / "run")
    write_card(folder, {"description": "Reads docstrings.", "corpus": {"tokens": 77}, "validation_loss": 2.5})
    return folder


def test_trainer_pushes_the_code_of_a_model_but_not_beside_an_adapter(tmp_path):
    arguments = SimpleNamespace(push_to_hub=True, output_dir=str(tmp_path / "out"))
    state = SimpleNamespace(is_world_process_zero=True)
    adapter = SimpleNamespace(config=make_model().config, peft_config={})
    LoadablePushes().on_train_begin(arguments, state, None, model=adapter)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".gitignore"]
    LoadablePushes().on_train_begin(arguments, state, None, model=make_model())
    assert (tmp_path / "out" / "modeling_clozebert.py").is_file()


def test_dry_run_asks_the_hub_nothing(saved, hub, unverified, tmp_path):
    done = publish(saved, "org/name", dry_run=True, output_dir=tmp_path / "copy")
    assert hub.requests == []
    assert done.push is None
    assert set(done.files) == {path.name for path in (tmp_path / "copy").iterdir()}


def test_push_is_private_one_commit_and_nothing_the_second_time(saved, hub, unverified):
    done = publish(saved, "org/name", completion=Completion(license="mit"))
    repository = hub.repositories["org/name"]
    assert repository.private
    assert len(repository.commits) == 2  # with the one that made the repository
    assert set(hub.files("org/name")) == {*done.files, ".gitattributes"}
    hub.requests.clear()
    hub.uploads.clear()
    again = publish(saved, "org/name", completion=Completion(license="mit"))
    assert (again.push.uploaded, again.push.commit) == ([], done.push.commit)
    assert hub.uploads == []
    assert len(repository.commits) == 2
    # The client asks how it should upload, and then has nothing to upload.
    assert not [path for method, path in hub.requests if method == "PUT" or "/commit/" in path]


def test_only_what_changed_goes_up(saved, hub, unverified):
    publish(saved, "org/name", completion=Completion(license="mit"))
    hub.uploads.clear()
    done = publish(saved, "org/name", completion=Completion(license="apache-2.0"))
    assert done.push.uploaded == ["README.md", "fingerprint.json"]
    assert hub.uploads == []


def test_fingerprint_that_differs_by_rounding_stays(saved, hub, unverified, monkeypatch):
    publish(saved, "org/name")
    real = publishing.make_fingerprint

    def rounded(model):
        values = real(model)
        values["outputs"]["logits"]["mean"] *= 1 + 1e-6
        return values

    monkeypatch.setattr(publishing, "make_fingerprint", rounded)
    assert publish(saved, "org/name").push.uploaded == []


def test_card_edited_on_the_hub_stays(saved, hub, unverified):
    publish(saved, "org/name")
    hub.edit("org/name", "README.md", b"# Edited on the page\n")
    done = publish(saved, "org/name", completion=Completion(license="mit"))
    assert hub.files("org/name")["README.md"] == b"# Edited on the page\n"
    assert "edited on the Hub" in " ".join(done.notes)
    # and still stays, although that push stored a fingerprint beside it
    publish(saved, "org/name", completion=Completion(license="apache-2.0"))
    assert hub.files("org/name")["README.md"] == b"# Edited on the page\n"


def test_own_card_edited_here_may_change_again(saved, hub, unverified):
    for text in ("# Mine, first\n", "# Mine, second\n"):
        (saved / "README.md").write_text(text)
        publish(saved, "org/name")
        assert hub.files("org/name")["README.md"].decode() == text


def test_what_other_people_put_there_stays_and_what_we_left_goes(saved, hub, unverified, tmp_path):
    (saved / "finetuning_settings.json").write_text('{"text_column": "a", "text_pair_column": "b"}')
    assert "finetuning_settings.json" in publish(saved, "org/name").push.uploaded
    for name in ("paper.pdf", "losses.py.txt", "notes/losses.py"):
        hub.edit("org/name", name, b"theirs")
    hub.edit("org/name", "training_args.bin", b"a pickle of Trainer's")
    hub.edit("org/name", "onnx/model_int8.onnx", b"int8, by the name that it once had")
    native = save(tmp_path / "native", name="bert-base")
    done = publish(native, "org/name")
    names = set(hub.files("org/name"))
    assert {"paper.pdf", "losses.py.txt", "notes/losses.py"} <= names
    gone = {"training_args.bin", "onnx/model_int8.onnx", "modeling_clozebert.py", "LICENSE.clozebert"}
    assert not {*gone, "finetuning_settings.json"} & names  # by which predict would give this model pairs
    assert "modeling_clozebert.py" in done.push.deleted
    assert done.form == "native"


def test_a_repository_of_somebody_elses_keeps_files_that_are_called_as_ours(hub, unverified, tmp_path):
    huggingface_hub.HfApi().create_repo("org/own")
    for name in ("losses.py", "modules.json"):
        hub.edit("org/own", name, b"theirs")
    native = save(tmp_path / "native", name="bert-base")
    licence = Completion(license="mit")
    assert publish(native, "org/own", public=True, completion=licence).push.deleted == []
    other = save(tmp_path / "other", name="bert-base", seed=3)
    assert publish(other, "org/own", public=True, completion=licence).push.deleted == []
    assert hub.files("org/own")["losses.py"] == b"theirs"


def test_scores_and_forms_for_servers_of_another_model_go(saved, hub, unverified, tmp_path):
    (saved / ".eval_results").mkdir()
    (saved / ".eval_results" / "data.yaml").write_text("- value: 2.5\n")
    publish(saved, "org/name", completion=Completion(license="mit", serving=("sentence-transformers",)))
    forms = {".eval_results/data.yaml", "modules.json", "1_Pooling/config.json"}
    assert forms <= set(hub.files("org/name"))
    publish(save(tmp_path / "other", seed=3), "org/name", completion=Completion(license="mit"))
    assert not forms & set(hub.files("org/name"))


def test_special_tokens_that_transformers_4_wrote_go(saved, hub, unverified, tmp_path):
    huggingface_hub.HfApi().create_repo("org/old", private=True)
    hub.edit("org/old", "special_tokens_map.json", b'{"cls_token": "a", "sep_token": "b", "mask_token": "c"}')
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "notes.txt").write_text("no tokenizer")
    assert push_folder(tmp_path / "alone", "org/old").deleted == []
    assert publish(saved, "org/old").push.deleted == ["special_tokens_map.json"]


@pytest.mark.parametrize("revision", [None, "there", "new"])
def test_a_repository_with_an_adapter_is_refused_before_work(saved, hub, monkeypatch, revision):
    """transformers would apply it to the model: its answers were others. A new branch begins from main."""
    api = huggingface_hub.HfApi()
    api.create_repo("org/adapter", private=True)
    api.create_branch("org/adapter", branch="there")
    hub.edit("org/adapter", "adapter_config.json", b"{}", branch="there" if revision == "there" else "main")
    monkeypatch.setattr(publishing, "complete_folder", None)  # it is not called
    shown = message_of(lambda: publish(saved, "org/adapter", revision=revision))
    assert "org/adapter holds adapter_config.json" in shown
    assert "new" not in hub.repositories["org/adapter"].branches
    shown = message_of(lambda: push_folder(saved, "org/adapter", revision=revision))
    assert "delete it there" in shown
    assert "model.safetensors" not in hub.files("org/adapter")


@pytest.mark.parametrize(("old", "new"), [('"files": [', '"files": 5, "x": ['), ('"mean": ', '"mean": "a", "x": ')])
def test_a_damaged_fingerprint_on_the_hub_is_replaced(saved, hub, unverified, old, new):
    publish(saved, "org/name")
    text = hub.files("org/name")["fingerprint.json"].decode()
    assert old in text
    hub.edit("org/name", "fingerprint.json", text.replace(old, new).encode())
    assert publish(saved, "org/name").push.uploaded == ["fingerprint.json"]


def test_revision_is_a_branch(saved, hub, unverified, tmp_path):
    first = publish(saved, "org/name").push.commit
    other = save(tmp_path / "checkpoint-5", seed=5)
    publish(other, "org/name", revision="checkpoint-5")
    assert set(hub.repositories["org/name"].branches) == {"main", "checkpoint-5"}
    assert hub.files("org/name")["model.safetensors"] == (saved / "model.safetensors").read_bytes()
    assert hub.files("org/name", "checkpoint-5")["model.safetensors"] == (other / "model.safetensors").read_bytes()
    # A commit stays readable by its hash after the branch has gone on.
    publish(other, "org/name")
    for revision, folder in ((first, saved), ("main", other)):
        path = huggingface_hub.hf_hub_download(
            "org/name", "model.safetensors", revision=revision, cache_dir=tmp_path / "cache"
        )
        assert Path(path).read_bytes() == (folder / "model.safetensors").read_bytes()


def test_private_is_for_those_with_a_token(saved, hub, unverified, tmp_path, monkeypatch):
    publish(saved, "org/name")
    options = {"cache_dir": tmp_path / "cache", "trust_remote_code": True}
    hub.tokens["hf_stranger"] = ("stranger", {"stranger"})
    for token in (False, "hf_stranger"):
        with pytest.raises(OSError, match=r"not a valid model identifier|not a local folder"):
            AutoModel.from_pretrained("org/name", token=token, **options)
    assert AutoModel.from_pretrained("org/name", token="hf_writer", **options).config.hidden_size == 24


def test_push_cut_off_leaves_the_last_revision_and_resumes(saved, hub, unverified, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the client waits between its tries
    publish(saved, "org/name")
    before = hub.files("org/name")
    other = save(tmp_path / "other", seed=5)
    (other / "loss_curve.png").write_bytes(b"png")
    uploads = []

    def second_upload(method, path):
        uploads.extend([path] if method == "PUT" and path not in uploads else [])
        return method == "PUT" and len(uploads) > 1 and path == uploads[-1]

    for broken in (second_upload, lambda method, path: "/commit/" in path):
        hub.broken = broken
        with pytest.raises(ValueError, match="cannot be reached"):
            publish(other, "org/name")
        assert hub.files("org/name") == before
    hub.broken = lambda method, path: False
    arrived = list(hub.uploads)
    done = publish(other, "org/name")
    assert len(arrived) > 1  # of the first push, and of the one that was cut off
    assert len(hub.uploads) == len(set(hub.uploads)), "a large file went up twice"
    assert "model.safetensors" in done.push.uploaded
    assert hub.files("org/name")["model.safetensors"] == (other / "model.safetensors").read_bytes()


def _forget_stores():
    """Older releases of huggingface_hub keep for minutes where a repository's store is."""
    getattr(huggingface_hub.utils._xet, "XET_CONNECTION_INFO_CACHE", {}).clear()


def test_push_by_xet_and_back(saved, hub, unverified, tmp_path, monkeypatch):
    """hf_xet itself uploads and downloads; the Hub's own way for large files."""
    pytest.importorskip("hf_xet")
    hub.xet_store = tmp_path / "store"
    publish(saved, "org/name")
    assert hub.lfs == {}
    digest = hashlib.sha256((saved / "model.safetensors").read_bytes()).hexdigest()
    assert set(hub.xet_files()) == {digest}
    downloaded = huggingface_hub.hf_hub_download("org/name", "model.safetensors", cache_dir=tmp_path / "cache")
    assert Path(downloaded).read_bytes() == (saved / "model.safetensors").read_bytes()
    assert publish(saved, "org/name").push.uploaded == []
    # Cut off: the store does not answer any more, or what went there never arrives in a commit.
    before = hub.repositories["org/name"].branches["main"]
    other = save(tmp_path / "other", seed=5)
    _forget_stores()
    hub.xet_store = Path("/proc/nowhere")
    assert "the transfer of org/name broke off" in message_of(lambda: publish(other, "org/name"))
    _forget_stores()
    hub.xet_store, hub.broken = tmp_path / "store", lambda method, path: "/commit/" in path
    assert "cannot be reached" in message_of(lambda: publish(other, "org/name"))
    assert hub.repositories["org/name"].branches["main"] == before
    hub.broken = lambda method, path: False
    assert "model.safetensors" in publish(other, "org/name").push.uploaded


def test_push_that_lost_a_race_is_refused(saved, hub, unverified):
    publish(saved, "org/name")

    def someone_else_commits(method, path):
        if "/commit/" in path:
            hub.edit("org/name", "other.txt", b"first")
        return False

    hub.broken = someone_else_commits
    with pytest.raises(ValueError, match="changed by somebody else"):
        publish(saved, "org/name", completion=Completion(license="mit"))


def test_public_only_by_word(saved, hub, unverified, monkeypatch):
    publish(saved, "org/name", public=True, completion=Completion(license="mit"))
    assert not hub.repositories["org/name"].private
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "complete_folder", None)  # refused before work
        with pytest.raises(ValueError, match="org/name is public"):
            publish(saved, "org/name")
    hub.repositories["org/name"].private = True
    done = publish(saved, "org/name", public=True, completion=Completion(license="mit"))
    assert "stays so" in done.notes[-1]


def message_of(call):
    with pytest.raises(ValueError) as caught:
        call()
    shown = str(caught.value)
    assert "\n" not in shown
    assert caught.value.__cause__ is None
    return shown


@pytest.mark.parametrize("token", ["hf_wrongwrongwrong", None])
def test_wrong_token_and_none(saved, hub, token, monkeypatch, tmp_path):
    (monkeypatch.delenv("HF_TOKEN") if token is None else monkeypatch.setenv("HF_TOKEN", token))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    shown = message_of(lambda: push_folder(saved, "org/name"))
    assert "hf auth login" in shown
    assert "hf_wrong" not in shown
    assert hub.repositories == {}


def test_no_right_to_write(saved, hub):
    shown = message_of(lambda: push_folder(saved, "stranger/name"))
    assert "the token has no right to stranger/name" in shown
    assert "rights to create" in shown


def test_a_token_that_may_only_read_is_refused_before_work(saved, hub, monkeypatch):
    hub.tokens["hf_reader"] = ("reader", set())
    monkeypatch.setenv("HF_TOKEN", "hf_reader")
    monkeypatch.setattr(publishing, "complete_folder", None)  # it is not called
    assert "may only read" in message_of(lambda: publish(saved, "org/name"))


def test_server_that_shows_the_token_in_its_answer(saved, hub, monkeypatch):
    hub.tokens["hf_shown_to_nobody"] = ("writer", set())
    monkeypatch.setenv("HF_TOKEN", "hf_shown_to_nobody")
    shown = message_of(lambda: push_folder(saved, "hf_shown_to_nobody/name"))
    assert "rights to create" in shown
    assert 'namespace "hf_shown_to_nobody' not in shown


def test_token_that_cannot_be_one(saved, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_TopSecret\u00e9")
    shown = message_of(lambda: push_folder(saved, "org/name"))
    assert "holds characters that none has" in shown
    assert "TopSecret" not in shown


@pytest.mark.parametrize("token", ["hf_wrongwrongwrong", "hf_writer", None])
def test_repository_that_is_not_there_to_read(token, hub, tmp_path, monkeypatch):
    (monkeypatch.delenv("HF_TOKEN") if token is None else monkeypatch.setenv("HF_TOKEN", token))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    shown = message_of(lambda: convert_folder("org/nothing", tmp_path / "out", to="native"))
    expected = "does not accept the token" if token == "hf_wrongwrongwrong" else "there is no repository org/nothing"
    assert expected in shown
    assert token is None or token not in shown
    assert not (tmp_path / "out").exists()


def test_licence_files_are_fetched_when_converting(hub, tmp_path, monkeypatch):
    native = tmp_path / "bert"
    make_native("bert", "BertForMaskedLM").save_pretrained(native)
    (native / "LICENSE.txt").write_text("Do as you like.")
    (native / "bpe.codes").write_text("a b 1")  # by which PhoBERT's tokenizer joins
    push_folder(native, "org/licensed")
    # In the cache, files are links that lead out of their folder.
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    convert_folder("org/licensed", tmp_path / "ours", to="clozebert")
    assert (tmp_path / "ours/LICENSE.txt").read_text() == "Do as you like."
    assert (find_folder("org/licensed") / "bpe.codes").is_file()


def test_a_cache_without_the_tokenizer_is_said(saved, hub, unverified, tmp_path, monkeypatch):
    publish(save(tmp_path / "native", name="bert-base"), "org/native")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    AutoModel.from_pretrained("org/native", cache_dir=tmp_path / "cache")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.warns(UserWarning, match="the cache holds no tokenizer of org/native"):
        convert_folder("org/native", tmp_path / "ours", to="clozebert")


def test_no_network(saved, hub, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be reached" in message_of(lambda: push_folder(saved, "org/name"))
    assert "cannot be reached" in message_of(lambda: convert_folder("org/name", saved / "out", to="native"))


def test_offline(saved, hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()
    assert "HF_HUB_OFFLINE is set" in message_of(lambda: push_folder(saved, "org/name"))
    assert "HF_HUB_OFFLINE is set" in message_of(lambda: convert_folder("org/name", saved / "out", to="native"))


# What Trainer and models push by themselves


def test_model_pushes_its_code(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the library does not ask whether there is Xet
    make_model().push_to_hub("org/pushed", private=True)
    assert {"config.json", "model.safetensors", "modeling_clozebert.py", "heads.py"} <= set(hub.files("org/pushed"))
    folder = tmp_path / "saved"
    (folder / "checkpoint-5").mkdir(parents=True)
    for other in (folder / "checkpoint-5" / "model.safetensors", folder / "old.safetensors"):
        other.write_bytes(b"not of this save")
    model = make_model(seed=2)
    model.add_model_tags(["cloze-tag"])
    model.save_pretrained(folder, push_to_hub=True, repo_id="org/saved", variant="v", max_shard_size="30KB")
    files = hub.files("org/saved")
    assert {"config.json", "model.safetensors.index.v.json", "modeling_clozebert.py", "README.md"} <= set(files)
    assert not any(b"not of this save" in content for content in files.values())
    assert b"- cloze-tag" in files["README.md"]


def test_fingerprint_names_version_and_card(saved, hub, unverified, tmp_path):
    publish(saved, "org/name", output_dir=tmp_path / "copy")
    values = read_fingerprint(tmp_path / "copy")
    assert values["card_sha256"] == hashlib.sha256((tmp_path / "copy" / "README.md").read_bytes()).hexdigest()
    assert values["clozebert"]


def test_native_repository_opens_by_name(hub, unverified, tmp_path):
    publish(save(tmp_path / "run", name="bert-base"), "org/native")
    model = AutoModel.from_pretrained("org/native", cache_dir=tmp_path / "cache")
    assert type(model).__name__ == "BertModel"
