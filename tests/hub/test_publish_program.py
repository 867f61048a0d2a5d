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
from warm_python import WarmPython

from clozebert.hub import publishing
from clozebert.hub.card import write_card
from clozebert.hub.convert import to_native
from clozebert.hub.publishing import complete_folder
from clozebert.hub.pushing import push_folder
from clozebert.hub.verification import Verification
from clozebert.modeling.bundle import CLASS_OF_AUTO_CLASS
from clozebert.scripts.publish import main

TEXT_CLASSES = [name for name in CLASS_OF_AUTO_CLASS if name != "AutoModelForImageClassification"]
IMAGE_CLASSES = ["AutoModel", "AutoModelForImageClassification"]
READER = Path(__file__).with_name("reader.py")


@pytest.fixture(scope="module")
def hub():
    with Hub() as server:
        yield server


@pytest.fixture(scope="module")
def without_transformers():
    """Forks of a process that has imported what transformers imports: the Hub's address is read when they import it."""
    with WarmPython(transformers=False) as python:
        yield python


def environment(hub, home, **changes):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    return {
        **kept,
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(home),
        "HF_TOKEN": "hf_writer",
        **changes,
    }


@pytest.fixture
def publish(without_transformers, hub):
    """Run the program on the flags given; in capitals, variables of its environment."""
    program = Path(__file__).parents[2] / "scripts" / "publish.py"

    def run(home, *arguments, **changes):
        return without_transformers.run([program, *arguments], env=environment(hub, home, **changes))

    return run


def read(python, hub, home, sources, *, package="absent", **changes):
    """What a process of its own gets from each source: see reader.py."""
    done = python.run([READER, package, json.dumps(sources)], env=environment(hub, home, **changes), cwd=home)
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


def test_every_auto_class_everywhere_bit_for_bit(hub, tmp_path, monkeypatch, without_transformers):
    """Auto classes x {installed, not} x {online, offline cache} x {local folder, repository}, of bundles and natives.

    A process for each of the four environments. Folders are opened offline: where that works, nothing is asked for.
    What is native does not come from our code: with the package, it is read offline.
    """
    point_client_at(hub, monkeypatch)
    sources, expected = [], {}
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
        expected[repo_id] = (form, f"AutoModel{head}", hash_outputs(as_published))
        sources += [(repo_id, place, names) for place in (repo_id, str(local))]
    home = tmp_path / "home"
    home.mkdir()
    first = {}
    for package, offline in (("absent", "0"), ("absent", "1"), ("installed", "0"), ("installed", "1")):
        given = [
            (repo_id, place, names)
            for repo_id, place, names in sources
            if offline == "1" or (place == repo_id and (package == "absent" or expected[repo_id][0] == "bundle"))
        ]
        asked = len(hub.requests)
        found = read(
            without_transformers, hub, home, [
                {"source": place, "auto_classes": names,
                 "trust_remote_code": expected[repo_id][0] == "bundle" and package == "absent"}
                for repo_id, place, names in given
            ], package=package, HF_HUB_OFFLINE=offline,
        )  # fmt: skip
        assert (len(hub.requests) > asked) == (offline == "0")
        assert len(found) == {"absent0": 6, "absent1": 12, "installed0": 2, "installed1": 12}[package + offline]
        for (repo_id, place, names), answers in zip(given, found, strict=True):
            form, own, logits = expected[repo_id]
            assert answers.keys() >= {*names}
            # A folder gives what its repository gives, everywhere.
            assert hashes(answers) == first.setdefault(repo_id, hashes(answers)), (place, package, offline)
            # What was saved, and not only the same everywhere.
            assert answers[own][1] == logits, (place, package, offline)
            modules = {module.split(".")[0] for module, _ in answers.values() if module}
            ours = "clozebert" if package == "installed" else "transformers_modules"
            assert modules == ({ours} if form == "bundle" else {"transformers"}), (place, package, offline)


@pytest.mark.slow
def test_checkpoints_are_revisions_in_a_clean_environment(hub, tmp_path, publish, without_transformers):
    folder = run_folder(tmp_path / "run")
    done = publish(tmp_path, folder, "--repo_id", "org/steps", "--all_checkpoints", "--license", "mit")
    assert done.returncode == 0, done.stderr
    assert set(hub.repositories["org/steps"].branches) == {"main", "checkpoint-4"}
    (tmp_path / "reader").mkdir()
    final, step, local = read(
        without_transformers,
        hub,
        tmp_path / "reader",
        [encoder_of("org/steps"), encoder_of("org/steps", "checkpoint-4"), encoder_of(folder / "checkpoint-4")],
    )
    assert hashes(step) == hashes(local) != hashes(final)
    uploads = len(hub.uploads)
    again = publish(tmp_path, folder, "--repo_id", "org/steps", "--all_checkpoints", "--license", "mit")
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
def test_native_form_needs_neither_package_nor_trust(hub, tmp_path, publish):
    folder = save(tmp_path / "run", name="bert-base", hidden_dropout_prob=0.0)
    done = publish(tmp_path, folder, "--repo_id", "org/native")
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


def test_a_wrong_token_is_one_line_and_status_2(hub, tmp_path, publish):
    folder = save(tmp_path / "run")
    wrong = "hf_TopSecretTopSecret"
    done = publish(tmp_path, folder, "--repo_id", "org/name", HF_TOKEN=wrong)
    assert done.returncode == 2, done.stderr
    assert "does not accept the token" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert wrong not in done.stdout + done.stderr
    assert "org/name" not in hub.repositories


@pytest.mark.slow
def test_more_mistakes(hub, tmp_path, publish):
    folder = save(tmp_path / "run")
    for arguments, changes, message in (
        ((folder, "--repo_id", "org/../name"), {}, "must be ORG/NAME"),
        ((folder, "--repo_id", "org/name", "--licence", "mit"), {}, "did you mean --license?"),
        ((tmp_path / "no", "--repo_id", "org/name"), {}, "there is no folder"),
        ((folder, "--repo_id", "org/name"), {"HF_ENDPOINT": "http://127.0.0.1:9"}, "cannot be reached"),
        ((folder, "--repo_id", "nobody/name"), {}, "the token has no right to nobody/name"),
        ((folder, "--repo_id", "org/name", "--all_checkpoints"), {}, "no folder checkpoint-STEP"),
        ((folder, "--repo_id", "org/name", "--data_statement", "@nowhere.md"), {}, "there is no file nowhere.md"),
        ((folder, "--repo_id", "org/name", "--eval_metric", "f1"), {}, "give both, or neither"),
        ((folder, "--repo_id", "org/name", "--eval_task", "x"), {}, "eval_task='x' needs eval_dataset"),
        ((folder, "--repo_id", "org/name", "--public"), {}, "needs a licence"),
    ):
        done = publish(tmp_path, *arguments, **changes)
        assert done.returncode == 2, done.stderr
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "org/name" not in hub.repositories


@pytest.mark.slow
def test_damaged_checkpoint_is_refused(hub, tmp_path, publish):
    folder = run_folder(tmp_path / "run")
    state = folder / "checkpoint-4" / "training_state"
    state.mkdir()
    manifest = {"format": 2, "files": {"model.safetensors": {"size": 7, "sha256": "0" * 64}}}
    (state / "manifest.json").write_text(json.dumps(manifest))
    done = publish(tmp_path, folder, "--repo_id", "org/damaged", "--all_checkpoints")
    assert done.returncode == 2
    assert "checkpoint-4 is not whole: manifest.json does not name config.json" in done.stderr
    assert "org/damaged" not in hub.repositories


@pytest.mark.slow
def test_trainer_pushes_open_without_the_package(hub, tmp_path, without_transformers):
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
    sources = [encoder_of("org/trainer", sha) for sha in pushes]
    *found, here = read(without_transformers, hub, tmp_path / "reader", [*sources, encoder_of(tmp_path / "out")])
    assert hashes(found[-1]) == hashes(here)
