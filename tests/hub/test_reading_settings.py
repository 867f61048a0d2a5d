"""How a classifier read its texts is published with it, and found again by `predict`."""

import json
import warnings

import pytest
from huggingface_hub import constants
from saved_models import save

from clozebert.finetuning.resume import read_settings
from clozebert.hub.convert import convert_folder
from clozebert.hub.publishing import complete_folder, publish
from clozebert.utils.errors import MissingFileError


@pytest.fixture
def saved(tmp_path):
    return save(tmp_path / "run")


def test_how_a_classifier_read_its_texts_goes_along(saved, tmp_path):
    """So that `predict` reads pairs as pairs and scores as the run did; names of the machine's files stay at home."""
    reading = {
        "text_column": "a", "text_pair_column": "b", "label_column": "c", "multi_hot": None,
        "max_seq_length": 8, "window_overlap": 3,
    }  # fmt: skip
    settings = {**reading, "arguments": {"train_file": "/home/me/a.csv"}, "data": {"train": "0123"}}
    (saved / "finetuning_settings.json").write_text(json.dumps(settings))
    complete_folder(saved, tmp_path / "copy", "org/name")
    assert json.loads((tmp_path / "copy" / "finetuning_settings.json").read_text()) == reading


def test_how_a_classifier_read_its_texts_is_converted_with_it(hub, unverified, tmp_path, monkeypatch):
    """In both directions, and from the Hub: a model of pairs would else take two texts and a tab for one text."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    run = save(tmp_path / "run", "ForSequenceClassification", name="bert-base")
    reading = {"text_column": "a", "text_pair_column": "b", "max_seq_length": 8, "window_overlap": 3}
    (run / "finetuning_settings.json").write_text(json.dumps({**reading, "arguments": {"train_file": "/home/me/a"}}))
    convert_folder(run, tmp_path / "native", to="native")
    publish(tmp_path / "native", "org/native")
    convert_folder("org/native", tmp_path / "back", to="clozebert")
    for name in ("native", "back"):
        assert json.loads((tmp_path / name / "finetuning_settings.json").read_text()) == reading


def test_how_a_classifier_read_its_texts_is_found_on_the_hub(saved, hub, unverified, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    (saved / "finetuning_settings.json").write_text('{"text_pair_column": "b", "max_seq_length": 8}')
    assert read_settings(str(saved)) == {"text_pair_column": "b", "max_seq_length": 8}
    publish(saved, "org/name")
    assert read_settings("org/name") == {"text_pair_column": "b", "max_seq_length": 8}
    (saved / "finetuning_settings.json").unlink()
    publish(saved, "org/other")
    assert read_settings("org/other") == {}
    assert read_settings("org/nowhere") == {}
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_settings("org/other") == {}  # the cache knows that it has none
    with pytest.warns(UserWarning, match=r"finetuning_settings\.json of org/unseen cannot be looked up"):
        assert read_settings("org/unseen") == {}
    monkeypatch.undo()
    with pytest.raises(MissingFileError, match="there is no folder no/such/folder"):
        read_settings("no/such/folder")
