"""What a card keeps of the model that training went on from."""

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from clozebert.hub.card import write_card
from clozebert.hub.origin import OF_AN_ENCODER, card_writer


def test_a_card_keeps_the_licence_of_the_model_that_training_goes_on_from(tmp_path: Path) -> None:
    begun, run = tmp_path / "books", tmp_path / "run"
    begun.mkdir()
    run.mkdir()
    write_card(
        begun, {"license": "cc-by-4.0", "language": "en", "tags": ["law"], "description": "Reads books.", "steps": 9}
    )
    card_writer(str(begun))(run, {"name": "run", "base_model": None, "steps": 7})
    card = (run / "README.md").read_text(encoding="utf-8")
    assert all(kept in card for kept in ("license: cc-by-4.0", "language: en", "- law"))
    assert "It began from `books`. Training took 7 optimizer steps." in card
    assert "Reads books." not in card  # that was another model
    begun.rename(tmp_path / "checkpoint-30")
    card_writer(str(tmp_path / "checkpoint-30"))(run, {"name": "run"})
    assert f"It began from `checkpoint-30 of {tmp_path.name}`." in (run / "README.md").read_text(encoding="utf-8")
    (tmp_path / "checkpoint-30").rename(begun)
    card_writer(str(begun), OF_AN_ENCODER)(run, {"name": "tagger"})
    card = (run / "README.md").read_text(encoding="utf-8")
    assert all(kept in card for kept in ("license: cc-by-4.0", "language: en", "It began from `books`."))
    assert "- law" not in card  # what the text was about says nothing about the tags
    (begun / "README.md").write_text("---\nlicense: [\n---\n", encoding="utf-8")
    with pytest.warns(UserWarning, match="the new card has none of it, not even the licence"):
        card_writer(str(begun))
    card_writer(str(tmp_path / "gone"))(run, {"name": "run"})
    assert "began" not in (run / "README.md").read_text(encoding="utf-8")


def test_a_card_keeps_the_licence_of_a_model_on_the_hub(hub, tmp_path, monkeypatch):
    begun, run = tmp_path / "books", tmp_path / "run"
    begun.mkdir()
    run.mkdir()
    write_card(begun, {"license": "apache-2.0"})
    api = huggingface_hub.HfApi(token="hf_writer")
    for name in ("org/books", "org/bare"):
        api.create_repo(name)
    api.upload_folder(repo_id="org/books", folder_path=begun)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    for name, is_kept in (("org/books", True), ("org/bare", False), ("org/absent", False)):
        card_writer(name)(run, {"name": "run", "base_model": name})
        card = (run / "README.md").read_text(encoding="utf-8")
        assert f"base_model: {name}" in card
        assert ("license: apache-2.0" in card) is is_kept, name
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    card_writer("org/books")  # in the cache
    with pytest.warns(UserWarning, match="the card of org/unseen cannot be read .* names neither its licence nor its"):
        card_writer("org/unseen")
