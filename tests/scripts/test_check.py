"""`check` over folders that are no corpus and no pretraining run."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import AutoModel

from clozebert.scripts import check
from clozebert.utils.errors import UserError

sys.path.insert(0, str(Path(__file__).parents[1]))
from finetuning_helpers import make_checkpoint


def test_a_fine_tuned_model_is_no_damaged_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its checkpoints are those of transformers, which have no manifest."""
    folder = Path(make_checkpoint(tmp_path / "m"))
    make_checkpoint(folder / "checkpoint-2")
    (folder / "checkpoint-2" / "trainer_state.json").write_text('{"global_step": 2}')
    for one in (folder, folder / "checkpoint-2"):
        check.main([str(one)])
        assert "3 files of the model can be read (it has no hashes)" in capsys.readouterr().out
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-1])
    with pytest.raises(UserError, match=r"a model, is damaged: .*model\.safetensors"):
        check.main([str(folder)])


def test_a_model_with_a_broken_or_a_larger_tokenizer_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(make_checkpoint(tmp_path / "m"))
    rows = AutoModel.from_pretrained(folder).config.vocab_size
    path = folder / "tokenizer.json"
    for size in (rows, rows + 1):
        Tokenizer(models.WordLevel({f"t{number}": number for number in range(size)}, unk_token="t0")).save(str(path))
        if size == rows:
            check.main([str(folder)])
            assert "3 files of the model can be read" in capsys.readouterr().out
    with pytest.raises(
        UserError, match=rf"damaged: \S*tokenizer.json has {rows + 1} tokens, and the model {rows} rows"
    ):
        check.main([str(folder)])
    path.write_text("{")
    with pytest.raises(UserError, match=r"a model, is damaged: \S*tokenizer\.json is no tokenizer: EOF"):
        check.main([str(folder)])


def test_a_model_with_a_number_that_is_none_is_damaged(tmp_path: Path) -> None:
    folder = Path(make_checkpoint(tmp_path / "m"))
    weights = load_file(folder / "model.safetensors")
    name = sorted(weights)[0]
    small = {name: weights[name].to(torch.float8_e4m3fn)}  # torch has no `isfinite` for it
    save_file(small, tmp_path / "fp8.safetensors", metadata={"format": "pt"})
    check._read_weights(tmp_path / "fp8.safetensors")
    weights[name].view(-1)[-1] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        UserError, match=rf"is damaged: \S*model\.safetensors: {name} holds numbers that are not finite"
    ):
        check.main([str(folder)])


def test_an_unfinished_fine_tuning_run_is_not_called_damaged(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "checkpoint-2")  # without trainer_state.json, which comes last
    (tmp_path / "finetuning_settings.json").write_text("{}")
    with pytest.raises(UserError, match="is a fine-tuning run that has not ended: it holds no model yet"):
        check.main([str(tmp_path)])


def test_a_folder_of_texts_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UserError, match="is no corpus, run or model"):
        check.main([str(tmp_path)])


def test_every_shard_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(make_checkpoint(tmp_path / "m"))
    AutoModel.from_pretrained(folder).save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    shards = len(list((tmp_path / "sharded").glob("*.safetensors")))
    assert shards > 1
    check.main([str(tmp_path / "sharded")])
    assert f"undamaged: {shards + 1} files of the model can be read" in capsys.readouterr().out


def test_a_pickle_is_not_called_damaged(tmp_path: Path) -> None:
    folder = Path(make_checkpoint(tmp_path / "m"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"^\S*pytorch_model\.bin is a pickle"):
        check.main([str(folder)])
