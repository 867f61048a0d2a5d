"""Growing a model by the program: what is written is the larger model, and mistakes come before work."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

sys.path.append(str(Path(__file__).parent.parent / "hub"))
from saved_models import make_model, save

from clozebert.hub import to_native
from clozebert.scripts.grow_model import main
from clozebert.training.initialization import growth
from clozebert.training.initialization.growth import grow
from clozebert.utils.errors import UserError

TEXTS = "the river is long\nthe history of the stone\na place of stone , the river\n"


@pytest.fixture
def flags(tmp_path):
    save(tmp_path / "encoder", classifier_pooling="cls")
    (tmp_path / "sample.txt").write_text(TEXTS)
    return [
        "--model_name_or_path", str(tmp_path / "encoder"), "--input", str(tmp_path / "sample.txt"),
        "--output_dir", str(tmp_path / "larger"),
    ]  # fmt: skip


def test_all_growths_one_upon_the_other(flags, tmp_path, capsys):
    (tmp_path / "tokens.txt").write_text("river stone\nhistory of\n")
    main([*flags, "--new_tokens", "a b", f"@{tmp_path / 'tokens.txt'}", "--hidden_size", "48",
          "--num_attention_heads", "6", "--intermediate_size", "50", "--num_hidden_layers", "3",
          "--max_position_embeddings", "82", "--noise", "0"])  # fmt: skip
    printed = capsys.readouterr().out
    figures = re.findall(r"(\w+): pseudo-perplexity ([\d.]+) before, ([\d.]+) after", printed)
    assert [name for name, _, _ in figures] == ["vocabulary", "width", "depth", "length"]
    # Without noise, twice the width computes the same.
    assert figures[1][1] == figures[1][2]
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "larger")
    config = model.config
    assert (config.hidden_size, config.num_hidden_layers, config.max_position_embeddings) == (48, 3, 82)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "larger")
    assert len(tokenizer) == config.vocab_size == make_model().config.vocab_size + 3
    assert tokenizer.model_max_length == 82
    assert tokenizer.backend_tokenizer.truncation is None
    assert tokenizer.tokenize("the river stone") == ["the", "river stone"]
    assert torch.isfinite(model(input_ids=torch.arange(5, 35)[None].repeat(1, 2)).logits).all()
    assert "| depth: pseudo-perplexity after |" in (tmp_path / "larger" / "README.md").read_text()


def test_what_another_program_writes_meanwhile_stays(flags, tmp_path, monkeypatch):
    (tmp_path / "larger").mkdir()

    def grow_slowly(*args, **options):
        yield from grow(*args, **options)
        (tmp_path / "larger" / "config.json").write_text("theirs")

    monkeypatch.setattr(growth, "grow", grow_slowly)
    with pytest.raises(UserError, match="larger is not empty; give another folder"):
        main([*flags, "--num_hidden_layers", "3"])
    assert (tmp_path / "larger" / "config.json").read_text() == "theirs"


def test_the_card_keeps_what_holds_of_the_larger_model_too(flags, tmp_path):
    card = "---\nlicense: mit\nlanguage: de\nbase_model: org/small\n---\n# Theirs\n"
    (tmp_path / "encoder" / "README.md").write_text(card)
    main([*flags, "--num_hidden_layers", "3"])
    data, text = ModelCard.load(tmp_path / "larger" / "README.md").data, (tmp_path / "larger" / "README.md").read_text()
    assert (data.license, data.language, data.base_model) == ("mit", "de", "org/small")
    assert "Grown from `encoder`, and not trained since." in text


def test_a_model_of_the_hub_is_called_by_its_name(flags, tmp_path, monkeypatch):
    """It lies in a folder of the cache whose name is that of a commit."""
    monkeypatch.setattr("clozebert.hub.loading.find_folder", lambda name: tmp_path / "encoder")
    flags[1] = "org/small"
    main([*flags, "--num_hidden_layers", "3"])
    assert ModelCard.load(tmp_path / "larger" / "README.md").data.base_model == "org/small"
    assert "Grown from `org/small`" in (tmp_path / "larger" / "README.md").read_text()


@pytest.mark.parametrize(
    ("content", "message"), [("\ufeffriver stone\n".encode(), None), (b"stra\xdfe\n", "tokens.txt, line 1: not UTF-8")]
)
def test_the_encoding_of_the_file_of_tokens(flags, tmp_path, content, message):
    (tmp_path / "tokens.txt").write_bytes(content)
    more = ["--new_tokens", f"@{tmp_path / 'tokens.txt'}"]
    if message is not None:
        with pytest.raises(ValueError, match=message):
            main([*flags, *more])
        return
    main([*flags, *more])
    assert AutoTokenizer.from_pretrained(tmp_path / "larger").tokenize("the river stone") == ["the", "river stone"]


def test_tokens_that_the_tokenizer_has_stay_as_they_are(flags, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "river").touch()
    main([*flags, "--new_tokens", "river", "river stone", "the"])
    shown = capsys.readouterr().out
    assert shown.count("is added as a token") == 1
    assert "note: river is added as a token; @river would read" in shown
    for word in ("river", "the"):
        assert f"{word!r} is left out: it is in the tokenizer already" in shown
    assert "1 token stored beside the vocabulary: river stone" in shown
    assert AutoTokenizer.from_pretrained(tmp_path / "larger").tokenize("the river stone") == ["the", "river stone"]


def test_native_models_grow_too(flags, tmp_path):
    model = make_model(name="bert-base", hidden_dropout_prob=0.0)
    folder = tmp_path / "encoder"
    for path in [*folder.glob("*.py"), folder / "model.safetensors", folder / "config.json"]:
        path.unlink()
    to_native(model).save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "bert"
    main([*flags, "--num_hidden_layers", "4"])
    old, new = load_file(folder / "model.safetensors"), load_file(tmp_path / "larger" / "model.safetensors")
    for layer, source in enumerate((0, 0, 1, 1)):
        theirs = f"bert.encoder.layer.{source}.attention.output.dense.weight"
        assert torch.equal(new[f"model.layers.{layer}.attention.o_proj.weight"], old[theirs])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "nothing to grow"),
        (["--num_hidden_layers", "1"], "num_hidden_layers=1 is less than the model's 2"),
        (["--num_hidden_layers", "3", "--hidden_size", "12"], "hidden_size=12 is less than the model's 24"),
        (["--num_hidden_layers", "3", "--hidden_size", "0"], "hidden_size=0 is less than the model's 24"),
        (["--max_position_embeddings", "99", "--rope_theta", "-3"], "^rope_theta=-3.0 must be above 0"),
        (["--num_hidden_layers", "3", "--max_position_embeddings", "8"], "must exceed the model's 41"),
        (["--num_hidden_layers", "3", "--rope_theta", "9"], "give that too"),
        (["--num_hidden_layers", "3", "--noise", "0.1"], "--noise is for a model that grows wider: give one of hidden"),
        (["--num_hidden_layers", "3", "--seed", "0"], "--seed is for a model that grows wider"),
        (["--new_tokens", "river"], "'river' is in the tokenizer already; leave them out"),
        (["--new_tokens", "@nowhere"], "there is no file nowhere"),
        (["--num_hidden_layers", "3", "--text_column", "a"], "--text_column a: no input has columns"),
        (
            ["--num_hidden_layers", "3", "--pseudo_perplexity_documents", "0"],
            "pseudo_perplexity_documents=0 must be at least 1",
        ),
    ],
)
def test_mistakes_come_before_work(flags, tmp_path, more, message, monkeypatch):
    monkeypatch.setattr("clozebert.training.initialization.pseudo_perplexity.masked_loss", None)  # nothing is measured
    with pytest.raises(ValueError, match=message):
        main([*flags, *more])
    assert not (tmp_path / "larger").exists()


def test_only_masked_lm_models(flags, tmp_path):
    save(tmp_path / "classifier", "ForSequenceClassification")
    flags[1] = str(tmp_path / "classifier")
    with pytest.raises(ValueError, match="holds a ClozeBertForSequenceClassification"):
        main([*flags, "--num_hidden_layers", "3"])
