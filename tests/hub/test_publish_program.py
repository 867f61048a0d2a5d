"""`scripts/publish.py` as a person runs it, and what a reader in a clean environment gets of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from hub_server import Hub, point_client_at
from reader import hash_outputs
from saved_models import make_model, make_tokenizer, save

from clozebert.hub import publishing
from clozebert.hub.card import write_card
from clozebert.hub.convert import to_native
from clozebert.hub.publishing import complete_folder
from clozebert.hub.pushing import push_folder
from clozebert.hub.verification import Verification
from clozebert.modeling.bundle import class_of_auto_class
from clozebert.scripts.publish import main

TEXT_CLASSES = [name for name in class_of_auto_class() if name != "AutoModelForImageClassification"]
IMAGE_CLASSES = ["AutoModel", "AutoModelForImageClassification"]
READER = Path(__file__).with_name("reader.py")


@pytest.fixture(scope="module")
def hub():
    with Hub() as server:
        yield server


def environment(hub, home, **changes):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    return {
        **kept,
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(home),
        "HF_TOKEN": "hf_writer",
        **changes,
    }


def publish(hub, home, *arguments, **options):
    repository = Path(__file__).parents[2]
    changes = {key: options.pop(key) for key in list(options) if key.isupper()}
    return subprocess.run(
        [sys.executable, repository / "scripts" / "publish.py", *map(str, arguments)],
        capture_output=True, text=True, env=environment(hub, home, **changes), timeout=300, check=False, **options,
    )  # fmt: skip


def read(hub, home, sources, *, package="absent", **changes):
    """What a process of its own gets from each source: see reader.py."""
    done = subprocess.run(
        [sys.executable, READER, package, json.dumps(sources)],
        capture_output=True, text=True, env=environment(hub, home, **changes), cwd=home, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def encoder_of(source, revision=None):
    return {"source": str(source), "auto_classes": ["AutoModel"], "revision": revision, "trust_remote_code": True}


def hashes(answers):
    return {name: value for name, (_, value) in answers.items()}


def run_folder(folder, **options):
    """A folder with the final model and a checkpoint, as pretraining leaves it."""
    save(folder, **options)
    save(folder / "checkpoint-4", seed=4, **options)
    return folder


# Repository -> head and options of what is published there: the form with our code, and native architectures.
PUBLISHED = {
    "org/bundle": ("ForMaskedLM", {}),
    "org/bundle-image": ("ForImageClassification", {}),
    "org/bert": ("ForSequenceClassification", {"name": "bert-base"}),
    "org/roberta": ("ForMaskedLM", {"name": "roberta-base"}),
    "org/modernbert": ("ForTokenClassification", {"name": "modernbert-base"}),
    "org/vit": ("ForImageClassification", {"name": "vit-base", "image_size": 14, "patch_size": 7}),
}


def test_every_auto_class_everywhere_bit_for_bit(hub, tmp_path, monkeypatch):
    """Auto classes x {installed, not} x {online, offline cache} x {local folder, repository}, of bundles and natives.

    A process for each of the four environments opens every source.
    """
    point_client_at(hub, monkeypatch)
    sources, expected = [], []
    for repo_id, (head, options) in PUBLISHED.items():
        # transformers' own question answering takes two labels only.
        model = make_model(head, num_labels=2, **options)
        form = "bundle" if "bundle" in repo_id else "native"
        folder = save(tmp_path / "run" / repo_id, head, num_labels=2, **options)
        local = tmp_path / "local" / repo_id
        # Trying it in a clean process has tests of its own.
        assert complete_folder(folder, local, repo_id)[0] == form
        push_folder(local, repo_id)
        assert ("modeling_clozebert.py" in hub.files(repo_id)) == (form == "bundle")
        is_image = head == "ForImageClassification"
        as_published = model if form == "bundle" else to_native(model)
        names = IMAGE_CLASSES if is_image else TEXT_CLASSES
        if form == "native":  # ModernBERT has no AutoModelForPreTraining
            names = [n for n in names if type(as_published.config) in getattr(transformers, n)._model_mapping]
        for source in (repo_id, local):
            sources.append({"source": str(source), "auto_classes": names})
            expected.append((form, f"AutoModel{head}", hash_outputs(as_published)))
    first = None
    for package in ("absent", "installed"):
        home = tmp_path / package
        home.mkdir()
        given = [
            {**source, "trust_remote_code": form == "bundle" and package == "absent"}
            for source, (form, _, _) in zip(sources, expected, strict=True)
        ]
        for offline in ("0", "1"):
            asked = len(hub.requests)
            found = read(hub, home, given, package=package, HF_HUB_OFFLINE=offline)
            assert (len(hub.requests) > asked) == (offline == "0")
            first = first or found
            for source, answers, reference, (form, own, logits) in zip(sources, found, first, expected, strict=True):
                place = (source["source"], package, offline)
                assert hashes(answers) == hashes(reference), place
                # What was saved, and not only the same everywhere.
                assert answers[own][1] == logits, place
                modules = {module.split(".")[0] for module, _ in answers.values() if module}
                ours = "clozebert" if package == "installed" else "transformers_modules"
                assert modules == ({ours} if form == "bundle" else {"transformers"}), place
    # A folder gives what its repository gives.
    assert [hashes(a) for a in first[::2]] == [hashes(a) for a in first[1::2]]


@pytest.mark.slow
def test_checkpoints_are_revisions_in_a_clean_environment(hub, tmp_path):
    folder = run_folder(tmp_path / "run")
    done = publish(hub, tmp_path, folder, "--repo_id", "org/steps", "--all_checkpoints", "--license", "mit")
    assert done.returncode == 0, done.stderr
    assert set(hub.repositories["org/steps"].branches) == {"main", "checkpoint-4"}
    (tmp_path / "reader").mkdir()
    final, step, local = read(
        hub,
        tmp_path / "reader",
        [encoder_of("org/steps"), encoder_of("org/steps", "checkpoint-4"), encoder_of(folder / "checkpoint-4")],
    )
    assert hashes(step) == hashes(local) != hashes(final)
    uploads = len(hub.uploads)
    again = publish(hub, tmp_path, folder, "--repo_id", "org/steps", "--all_checkpoints", "--license", "mit")
    assert again.stdout.count("nothing changed since") == 2, again.stdout
    assert len(hub.uploads) == uploads


def test_checkpoints_go_up_with_the_runs_licence_and_without_its_evaluation(hub, tmp_path, monkeypatch):
    """What stands beside the final model only is no obstacle to its checkpoints, and no mistake is met half-way."""
    point_client_at(hub, monkeypatch)
    monkeypatch.setattr(publishing, "verify_folder", lambda folder: Verification(["AutoModel"], {}, []))
    folder = run_folder(tmp_path / "run")
    write_card(folder, {"license": "mit"})
    (folder / "all_results.json").write_text(json.dumps({"eval_loss": 2.0}))
    flags = [str(folder), "--repo_id", "org/licensed", "--all_checkpoints", "--public"]
    main([*flags, "--eval_dataset", "org/text", "--eval_metric", "eval_loss", "--with_space", str(tmp_path / "space")])
    branches = {name: hub.files("org/licensed", name) for name in hub.repositories["org/licensed"].branches}
    assert set(branches) == {"main", "checkpoint-4"}
    assert all(b"license: mit" in files["README.md"] for files in branches.values())
    assert ".eval_results/text.yaml" in branches["main"]
    assert (tmp_path / "space" / "app.py").is_file()
    # A mistake in the last checkpoint stops the first push, too.
    (folder / "checkpoint-4" / "README.md").write_text("---\nlicense: [\n---\n")
    flags[2] = "org/unmade"
    with pytest.raises(ValueError, match="cannot be read"):
        main(flags)
    assert "org/unmade" not in hub.repositories


@pytest.mark.slow
def test_native_form_needs_neither_package_nor_trust(hub, tmp_path):
    folder = save(tmp_path / "run", name="bert-base", hidden_dropout_prob=0.0)
    done = publish(hub, tmp_path, folder, "--repo_id", "org/native")
    assert done.returncode == 0, done.stderr
    code = (
        "from transformers import AutoModelForMaskedLM, pipeline\n"
        "print(type(AutoModelForMaskedLM.from_pretrained('org/native')).__module__)\n"
        "print(len(pipeline('fill-mask', model='org/native')('the [MASK] stone')))\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(hub, tmp_path), check=False
    )
    assert shown.stdout.split() == ["transformers.models.bert.modeling_bert", "5"], shown.stderr


def test_mistakes_are_one_line_and_status_2(hub, tmp_path):
    folder = save(tmp_path / "run")
    wrong = "hf_TopSecretTopSecret"
    for arguments, changes, message in (
        ((folder, "--repo_id", "org/../name"), {}, "must be ORG/NAME"),
        ((folder, "--repo_id", "org/name", "--licence", "mit"), {}, "did you mean --license?"),
        ((folder, "--repo_id", "org/name"), {"HF_TOKEN": wrong}, "does not accept the token"),
    ):
        done = publish(hub, tmp_path, *arguments, **changes)
        assert done.returncode == 2, done.stderr
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        assert wrong not in done.stdout + done.stderr
    assert "org/name" not in hub.repositories


@pytest.mark.slow
def test_more_mistakes(hub, tmp_path):
    folder = save(tmp_path / "run")
    for arguments, changes, message in (
        ((tmp_path / "no", "--repo_id", "org/name"), {}, "there is no folder"),
        ((folder, "--repo_id", "org/name"), {"HF_ENDPOINT": "http://127.0.0.1:9"}, "cannot be reached"),
        ((folder, "--repo_id", "nobody/name"), {}, "may not write to nobody/name"),
        ((folder, "--repo_id", "org/name", "--all_checkpoints"), {}, "no folder checkpoint-STEP"),
        ((folder, "--repo_id", "org/name", "--data_statement", "@nowhere.md"), {}, "there is no file nowhere.md"),
        ((folder, "--repo_id", "org/name", "--eval_metric", "f1"), {}, "give both, or neither"),
        ((folder, "--repo_id", "org/name", "--public"), {}, "needs a licence"),
    ):
        done = publish(hub, tmp_path, *arguments, **changes)
        assert done.returncode == 2, done.stderr
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "org/name" not in hub.repositories


@pytest.mark.slow
def test_damaged_checkpoint_is_refused(hub, tmp_path):
    folder = run_folder(tmp_path / "run")
    state = folder / "checkpoint-4" / "training_state"
    state.mkdir()
    manifest = {"files": {"model.safetensors": {"size": 7, "sha256": "0"}}}
    (state / "manifest.json").write_text(json.dumps(manifest))
    done = publish(hub, tmp_path, folder, "--repo_id", "org/damaged", "--all_checkpoints")
    assert done.returncode == 2
    assert "checkpoint-4 is not whole: model.safetensors has" in done.stderr
    assert "org/damaged" not in hub.repositories


@pytest.mark.slow
def test_trainer_pushes_open_without_the_package(hub, tmp_path):
    """Every push on the way, by `hub_strategy="every_save"`, and the last one."""
    code = Path(__file__).with_name("trainer_pushes.py")
    make_tokenizer().save_pretrained(tmp_path / "start")
    make_model("ForSequenceClassification").save_pretrained(tmp_path / "start")
    without_xet = environment(hub, tmp_path, HF_HUB_DISABLE_XET="1")  # Trainer does not ask whether there is Xet
    done = subprocess.run(
        [sys.executable, code, str(tmp_path / "start"), str(tmp_path / "out")],
        capture_output=True, text=True, env=without_xet, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    repository = hub.repositories["org/trainer"]
    pushes = [sha for sha, message in repository.messages.items() if "initial" not in message]
    assert len(pushes) >= 2  # the last one may find nothing left to push
    (tmp_path / "reader").mkdir()
    for sha in pushes:
        names = set(repository.commits[sha])
        assert "training_args.bin" not in names
        assert {"modeling_clozebert.py", "model.safetensors", "config.json"} <= names
    *found, here = read(
        hub, tmp_path / "reader", [*(encoder_of("org/trainer", sha) for sha in pushes), encoder_of(tmp_path / "out")]
    )
    assert hashes(found[-1]) == hashes(here)
