"""Folders of strangers: no name in them leads out."""

import json
from pathlib import Path

import pytest

from clozebert.utils.errors import UserError
from clozebert.utils.untrusted import check_model_folder, shards_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "private").write_text("secret")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def write(path: Path, **values: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values))


def test_a_link_among_the_chat_templates_is_refused(folder: Path) -> None:
    """transformers reads that folder into the tokenizer, and a published copy would hold the file's content."""
    templates = folder / "additional_chat_templates"
    templates.mkdir()
    (templates / "plain.jinja").write_text("{{ messages }}")
    check_model_folder(folder)
    (templates / "tool_use.jinja").symlink_to(folder.parent / "private")
    with pytest.raises(UserError, match="is a link that leaves its folder"):
        check_model_folder(folder)


def test_a_folder_of_chat_templates_that_is_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (folder / "additional_chat_templates").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is a link that leaves its folder"):
        check_model_folder(folder)


@pytest.mark.parametrize("name", ["sub/other.safetensors", "other.safetensors", "adapter_model.bin", 7])
def test_weights_under_another_name_are_refused(folder: Path, name: object) -> None:
    """They may lie outside or be a pickle, and nothing else of ours would look at them."""
    write(folder / "config.json", transformers_weights=name)
    with pytest.raises(UserError, match="as transformers_weights: give the weights the name"):
        check_model_folder(folder)


@pytest.mark.parametrize("name", ["../private/tokenizer.4.0.0.json", "/tokenizer.4.0.0.json", "sub/t.json", 3])
def test_tokenizers_of_other_places_are_refused(folder: Path, name: object) -> None:
    write(folder / "tokenizer_config.json", fast_tokenizer_files=["tokenizer.json", name])
    with pytest.raises(UserError, match="which is not a file of its folder"):
        check_model_folder(folder)
    write(folder / "tokenizer_config.json", fast_tokenizer_files=["tokenizer.json", "tokenizer.4.0.0.json"])
    check_model_folder(folder)


def test_an_adapter_beside_a_whole_model_is_refused(folder: Path) -> None:
    """transformers applies it to the model, which may hold it already, as after PEFT's merge_and_unload."""
    write(folder / "adapter_config.json", peft_type="LORA")
    (folder / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="is an adapter beside a whole model"):
        check_model_folder(folder)
    (folder / "model.safetensors").unlink()
    check_model_folder(folder)


def test_shards_whose_names_begin_alike_are_all_looked_at(folder: Path) -> None:
    names = [f"{'a' * 90}-{number}.safetensors" for number in range(2)]
    for name in names:
        (folder / name).touch()
    write(folder / "model.safetensors.index.json", weight_map={"one": names[0], "other": names[1]})
    assert [path.name for path in shards_of(folder / "model.safetensors.index.json")] == names
    outside = {"one": f"{'a' * 90}/../../private", "other": names[1]}
    write(folder / "model.safetensors.index.json", weight_map=outside)
    with pytest.raises(UserError, match="which is not a file of its folder"):
        shards_of(folder / "model.safetensors.index.json")
