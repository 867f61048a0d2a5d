"""`describe`: its closed formulas are the model's own counts, and its mistakes are named."""

import errno

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

import clozebert
from clozebert import ClozeBertConfig, ClozeBertForImageClassification, ClozeBertForMaskedLM
from clozebert.configuration import ARCHITECTURES
from clozebert.corpus.tokenizer import train_tokenizer
from clozebert.scripts import describe
from clozebert.scripts.describe import default_length, find_config, main, parts_of, symbols_of, table
from clozebert.utils.errors import UserError

TINY = {"vocab_size": 53, "hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 37}
VARIANTS = {
    "defaults": {},
    "biases": {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "head_bias": True, "decoder_bias": False},
    "post": {"norm_position": "post", "mlp_type": "mlp", "mlp_bias": True, "position_embedding_type": "absolute"},
    "rmsnorm": {"norm_type": "rmsnorm", "norm_bias": True, "first_attention_norm": False, "qk_norm": True},
    "grouped": {"num_key_value_heads": 2, "attention_bias": True, "type_vocab_size": 3, "tie_word_embeddings": False},
    "small embeddings": {"embedding_size": 20, "embedding_norm": False, "final_norm": False},
    "no prediction layer": {"prediction_dense": False},
    "pairs": {"compare_pairs": True, "sep_token_id": 3},
    "windows": {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "sliding_window": 2},
    "images": {
        "image_size": 12, "patch_size": 4, "position_embedding_type": "absolute", "classifier_pooling": "attention",
        "num_labels": 5,
    },
    "images, sinusoidal": {
        "image_size": 12, "patch_size": 4, "position_embedding_type": "sinusoidal", "classifier_dense": "none",
        "embedding_size": 20,  # which images do not have
    },
}  # fmt: skip

TEXT_VARIANTS = {name: changes for name, changes in VARIANTS.items() if "image_size" not in changes}


def totals(config, *, batch_size=2, length=11):
    symbols = symbols_of(config, batch_size=batch_size, length=length)
    parts = parts_of(config)
    return [sum(part.count(formula(part), symbols) for part in parts) for formula in (
        lambda part: part.parameters, lambda part: part.flops, lambda part: part.written,
    )]  # fmt: skip


def model_of(config):
    return (ClozeBertForMaskedLM if config.image_size is None else ClozeBertForImageClassification)(config)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_parameters_flops_and_written_values_are_the_models(changes):
    """Against the model's parameters, torch's own counter of FLOPs and hooks on every linear map."""
    config = ClozeBertConfig(**{**TINY, **changes})
    config._attn_implementation = "eager"
    if config.layer_types is not None:
        config.sliding_window = 100  # eager attention computes what a window leaves out, so let it leave out nothing
    model = model_of(config).eval()
    length = 11 if config.image_size is None else 10
    parameters, flops, written = totals(config, length=length)
    assert parameters == sum(parameter.numel() for parameter in model.parameters())

    values = []
    for module in model.modules():
        if isinstance(module, (torch.nn.Linear, torch.nn.Conv2d)):
            module.register_forward_hook(lambda _, given, out: values.append(out.numel()))
    inputs = torch.randint(53, (2, 11)) if config.image_size is None else torch.randn(2, 3, 12, 12)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(inputs)
    assert flops == counter.get_total_flops()
    attention = 3 * 2 * length * 24  # the sums of values, before the output map
    assert written == sum(values) + attention


@pytest.mark.parametrize("changes", TEXT_VARIANTS.values(), ids=TEXT_VARIANTS.keys())
@pytest.mark.parametrize("ending", ["Model", "ForSequenceClassification", "ForTokenClassification",
                                    "ForQuestionAnswering", "ForMultipleChoice"])  # fmt: skip
def test_a_models_folder_is_described_with_its_own_head(ending, changes, capsys, tmp_path):
    """Against the model's parameters."""
    config = ClozeBertConfig(**{**TINY, **changes}, num_labels=5, base_pooler=True, classifier_pooling="attention")
    config.classifier_dense = "all" if "qk_norm" in changes else config.classifier_dense
    model = getattr(clozebert, f"ClozeBert{ending}")(config)
    model.save_pretrained(tmp_path)
    main([str(tmp_path), "--sequence_length", "11"])
    out = capsys.readouterr().out
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert any(line.split()[:2] == ["all", f"{parameters:,}"] for line in out.splitlines()), out
    assert "vocabulary" not in out.split("formulas")[0]


def test_a_window_sees_its_pairs_and_no_other():
    config = ClozeBertConfig(**TINY, layer_types=["sliding_attention"] * 3, sliding_window=2)
    (windows,) = (part for part in parts_of(config) if part.name == "attention, window")
    for length in (1, 2, 3, 11, 30):
        positions = torch.arange(length)
        pairs = int(((positions[:, None] - positions).abs() <= 2).sum())
        symbols = symbols_of(config, batch_size=2, length=length)
        assert windows.count(windows.flops, symbols) == 3 * 2 * 4 * pairs * 24


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture(name):
    config = ClozeBertConfig.from_name(name)
    with torch.device("meta"):
        model = model_of(config)
    parameters, *_ = totals(config, length=default_length(config))
    assert parameters == sum(parameter.numel() for parameter in model.parameters())
    lines = table(config, batch_size=3, length=default_length(config), bytes_each=4)
    assert any(line.split()[:2] == ["all", f"{parameters:,}"] for line in lines)


def test_the_table_of_bert_base(capsys):
    main(["bert-base", "--batch_size", "16"])
    out = capsys.readouterr().out
    assert "109,514,298" in out
    assert "4·B·T²·D" in out
    assert "4·B·T·D·F" in out
    assert "batch B = 16, length T = 512, 4 bytes a number" in out


def test_where_the_two_costs_meet(capsys):
    """4·T²·D of attention are 2·T·(4·D² + 2·D·F) of the maps at T = 2·D + F."""
    main(["bert-base"])
    assert f"the same at T = {2 * 768 + 3072:,}" in capsys.readouterr().out


def test_configurations_by_name_recipe_file_and_folder(tmp_path):
    assert find_config("roberta-base").vocab_size == 50265
    assert find_config("tiny").hidden_size == 256
    path = tmp_path / "mine.yaml"
    path.write_text("architecture: bert-base\nmodel:\n  num_hidden_layers: 3\n")
    assert find_config(str(path)).num_hidden_layers == 3
    ClozeBertConfig(**TINY).save_pretrained(tmp_path / "model")
    assert find_config(str(tmp_path / "model")).hidden_size == 24


def test_mistakes_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"'bert-bas' is neither .* did you mean 'bert-base'"):
        find_config("bert-bas")
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        find_config(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="is a bert model: convert it first"):
        find_config(str(tmp_path))
    with pytest.raises(SystemExit):
        main(["tiny", "--dtype", "int8"])
    with pytest.raises(ValueError, match="batch_size=0 must be at least 1"):
        main(["tiny", "--batch_size", "0"])
    with pytest.raises(ValueError, match="--text needs the folder"):
        main(["tiny", "--text", "a b"])
    with pytest.raises(ValueError, match="--sequence_length=513 is longer than the model's max_position_embeddings"):
        main(["bert-base", "--sequence_length", "513"])


@pytest.fixture
def folder(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "the": 2, "cat": 3, "sat": 4}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(tmp_path)
    torch.manual_seed(0)
    ClozeBertForMaskedLM(ClozeBertConfig(**TINY)).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.reports
def test_attention_maps_of_a_sentence(folder, capfd, caplog, monkeypatch):
    pytest.importorskip("matplotlib")
    from clozebert.scripts.describe import attention_of

    tokens, weights = attention_of(str(folder), "the cat sat")
    assert tokens == ["the", "cat", "sat"]
    assert [layer.shape for layer in weights] == [(4, 3, 3)] * 3
    assert weights[0].sum(-1) == pytest.approx(1.0, abs=1e-6)
    picture = folder / "maps.png"
    transformers.logging.set_verbosity_warning()
    transformers.logging.add_handler(caplog.handler)
    main([str(folder), "--text", "the cat sat", "--output_file", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
    transformers.logging.remove_handler(caplog.handler)
    printed = capfd.readouterr()
    assert str(picture) in printed.out
    assert "LOAD REPORT" not in caplog.text
    monkeypatch.setattr(describe, "attention_of", lambda *given: (["a", "$$", "$x^$"], weights))
    main([str(folder), "--text", "a $$ $x^$", "--output_file", str(picture)])  # no formulas


@pytest.mark.reports
def test_a_picture_that_cannot_be_written_leaves_the_earlier_one(folder, monkeypatch):
    """And one whose name has no ending keeps its name."""
    figure = pytest.importorskip("matplotlib.figure")
    picture = folder / "maps"
    flags = [str(folder), "--text", "the cat sat", "--output_file"]
    main([*flags, str(picture)])
    before = picture.read_bytes()
    assert before.startswith(b"\x89PNG")

    def fill_the_disk(self, file, **options):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(figure.Figure, "savefig", fill_the_disk)
    with pytest.raises(UserError, match=f"{picture} cannot be written .No space left on device.: free some space"):
        main([*flags, str(picture)])
    assert picture.read_bytes() == before
    with pytest.raises(UserError, match="is a folder: name a file"):
        main([*flags, str(folder)])


def test_a_text_that_is_too_long_to_draw(folder):
    pytest.importorskip("matplotlib")
    # Four heads beside each other, 0.16 inches a token and one more inch, are 30,000 dots of 1/150 inch at 310 tokens.
    with pytest.raises(ValueError, match="--text has 311 tokens, and at most 310 of this model"):
        main([str(folder), "--text", "cat " * 311, "--output_file", str(folder / "maps.png")])
    with pytest.raises(ValueError, match="--text holds no token"):
        main([str(folder), "--text", "", "--output_file", str(folder / "maps.png")])
    ClozeBertForMaskedLM(ClozeBertConfig(**TINY, max_position_embeddings=8)).save_pretrained(folder)
    with pytest.raises(ValueError, match="--text has 9 tokens, and at most 8"):
        main([str(folder), "--text", "cat " * 9, "--output_file", str(folder / "maps.png")])


def test_it_runs_by_path(repository, python):
    done = python.run([repository / "scripts" / "describe.py", "bert-bas"])
    assert done.returncode == 2
    assert done.stderr.startswith("error: 'bert-bas' is neither")


def test_the_pieces_are_written_as_in_the_text(tmp_path):
    tokenizer = train_tokenizer(["hyvää yötä 國際"] * 9, algorithm="bpe", vocab_size=300)
    tokenizer.save_pretrained(tmp_path)
    config = ClozeBertConfig(**{**TINY, "vocab_size": len(tokenizer)})
    ClozeBertForMaskedLM(config).save_pretrained(tmp_path)
    tokens, _ = describe.attention_of(str(tmp_path), "hyvää yötä")
    assert "".join(tokens) == "[CLS]hyvääyötä[SEP]"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--text", "a", "--dtype", "bfloat16"], "--dtype bfloat16 has no effect beside --text"),
        (["--output_file", "a.png"], "--output_file a.png has no effect without --text"),
    ],
)
def test_flags_of_the_other_output_are_refused(flags, message):
    with pytest.raises(ValueError, match=message):
        main(["nano", *flags])
