"""The conversion program: by path, there and back, and its one-line errors."""

import pytest
import torch
import transformers
from safetensors.torch import load_file

from clozebert.hub import convert
from clozebert.hub.loading import load_native
from clozebert.scripts.convert_checkpoint import main
from clozebert.utils.errors import UserError


@pytest.fixture
def native(tmp_path):
    config = transformers.BertConfig(
        vocab_size=31, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=17
    )
    torch.manual_seed(0)
    model = transformers.BertForTokenClassification(config)
    model.save_pretrained(tmp_path / "native")
    return tmp_path / "native"


def test_there_and_back(native, tmp_path, capsys):
    main(["--input", str(native), "--output_dir", str(tmp_path / "ours"), "--to", "clozebert"])
    main(["--input", str(tmp_path / "ours"), "--output_dir", str(tmp_path / "back"), "--to", "native"])
    printed = capsys.readouterr().out
    assert "ClozeBertForTokenClassification" in printed
    assert "BertForTokenClassification" in printed
    before, after = (load_file(folder / "model.safetensors") for folder in (native, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_by_path_mistakes_are_one_line(tmp_path, repository, python):
    program = repository / "scripts" / "convert_checkpoint.py"
    result = python.run([program, "--input", tmp_path / "no", "--output_dir", tmp_path / "out", "--to", "native"])
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert "neither a folder nor a name on the Hub" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_does_not_write_over_what_is_there(native, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").write_text("mine")
    flags = ["--input", str(native), "--output_dir", str(tmp_path / "out"), "--to", "clozebert"]
    with pytest.raises(ValueError, match="not empty"):
        main(flags)
    main([*flags, "--overwrite_output_dir"])
    assert (tmp_path / "out" / "precious.txt").read_text() == "mine"
    with pytest.raises(ValueError, match="output_dir is the input"):
        main(["--input", str(native), "--output_dir", str(native), "--to", "clozebert", "--overwrite_output_dir"])


def test_what_another_program_writes_meanwhile_stays(native, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()

    def load_slowly(*args, **options):
        (tmp_path / "out" / "config.json").write_text("theirs")
        return load_native(*args, **options)

    monkeypatch.setattr(convert, "load_native", load_slowly)
    with pytest.raises(UserError, match="out is not empty; give --overwrite_output_dir"):
        main(["--input", str(native), "--output_dir", str(tmp_path / "out"), "--to", "clozebert"])
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["config.json"]


def test_pickle_flag(native, tmp_path):
    state = load_file(native / "model.safetensors")
    (native / "model.safetensors").unlink()
    torch.save(state, native / "pytorch_model.bin")
    flags = ["--input", str(native), "--output_dir", str(tmp_path / "out"), "--to", "clozebert"]
    with pytest.raises(ValueError, match="--allow_pickle"):
        main(flags)
    assert not (tmp_path / "out").exists()
    main([*flags, "--allow_pickle"])
    assert (tmp_path / "out" / "model.safetensors").is_file()
