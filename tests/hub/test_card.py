"""The model card: readable metadata, honest sections, and a person's edits are never lost."""

import json

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import save_file

from clozebert.hub.card import is_ours, write_card

FACTS = {
    "name": "my-encoder",
    "license": "apache-2.0",
    "language": "en",
    "datasets": ["owner/data"],
    "corpus": {"num_documents": 1234, "num_tokens": 5_600_000, "sources": ["/home/somebody/private/text"]},
    "hyperparameters": {"learning_rate": 1e-3, "optimizer": "muon"},
    "recipe": "tiny",
    "steps": 500,
    "validation_loss": 3.25,
    "versions": {"torch": "2.13"},
}


@pytest.fixture
def saved(tmp_path):
    config = {
        "architectures": ["ClozeBertForMaskedLM"],
        "model_type": "clozebert",
        "num_hidden_layers": 3,
        "hidden_size": 20,
        "vocab_size": 77,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"a": torch.zeros(7, 11), "b": torch.zeros(5)}, tmp_path / "model.safetensors")
    return tmp_path


def test_metadata_is_what_the_hub_reads(saved):
    write_card(saved, FACTS)
    data = ModelCard.load(saved / "README.md").data
    assert data.library_name == "transformers"
    assert data.pipeline_tag == "fill-mask"
    assert (data.license, data.language, data.datasets) == ("apache-2.0", "en", ["owner/data"])
    assert "clozebert" in data.tags


def test_sections_hold_the_facts(saved):
    (saved / "loss_curve.png").write_bytes(b"png")
    write_card(saved, FACTS)
    text = (saved / "README.md").read_text()
    for part in ("# my-encoder", "82 parameters", "3 layers of 20", "5,600,000", "0.001", "muon", "3.25", "500"):
        assert part in text, part
    assert "25.79" in text  # e^3.25
    assert "](loss_curve.png)" in text
    # The model's line and the tokenizer's: without the second, transformers asks at a terminal, and waits.
    assert text.count('from_pretrained("my-encoder", trust_remote_code=True)') == 2
    assert text.count('from_pretrained("my-encoder")') == 2
    assert "import clozebert" in text
    assert "AutoModelForMaskedLM" in text


def test_no_folder_of_the_machine_leaks(saved):
    write_card(saved, FACTS)
    assert "somebody" not in (saved / "README.md").read_text()


def test_missing_facts_are_missing_lines(tmp_path):
    write_card(tmp_path, {})
    text = (tmp_path / "README.md").read_text()
    assert "None" not in text
    assert "Training" not in text
    assert "Evaluation" not in text
    assert ModelCard.load(tmp_path / "README.md").data.library_name == "transformers"


def test_native_format_needs_no_code(saved):
    config = json.loads((saved / "config.json").read_text())
    config.update(model_type="bert", architectures=["BertForSequenceClassification"])
    (saved / "config.json").write_text(json.dumps(config))
    write_card(saved, FACTS)
    text = (saved / "README.md").read_text()
    assert "trust_remote_code" not in text
    assert "pipeline_tag: text-classification" in text


def test_own_card_is_renewed_and_an_edited_one_kept(saved):
    write_card(saved, FACTS)
    write_card(saved, {**FACTS, "validation_loss": 2.5})
    path = saved / "README.md"
    assert "2.5 |" in path.read_text()
    edited = path.read_text().replace("# my-encoder", "# My encoder, by hand")
    path.write_text(edited)
    assert not is_ours(edited)
    with pytest.warns(UserWarning, match="edited by a person"):
        write_card(saved, FACTS)
    assert path.read_text() == edited


def test_card_of_a_person_is_kept(saved):
    (saved / "README.md").write_text("# by hand\n")
    with pytest.warns(UserWarning, match="person"):
        write_card(saved, FACTS)
    assert (saved / "README.md").read_text() == "# by hand\n"


def test_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        write_card(tmp_path / "no", {})
