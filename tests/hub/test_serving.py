"""What servers take, tried in what they run: onnxruntime and sentence-transformers."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from saved_models import HEADS, make_model, make_tokenizer, save

from clozebert import ClozeBertConfig
from clozebert.hub import serving
from clozebert.hub.convert import to_native
from clozebert.hub.publishing import Completion, check_request, complete_folder
from clozebert.hub.serving import (
    INT8_NAME,
    ONNX_NAME,
    compare_int8,
    export_onnx,
    open_onnx,
    quantize_int8,
    run_onnx,
    write_sentence_transformers,
)
from clozebert.modeling.heads import Pooling

TEXTS = ["the river is long", "stone", "the history of the place , a b c d e f", "q r s"]


def need_onnx():
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    try:
        serving.find_exporter()
    except ImportError as error:
        pytest.skip(str(error))


def check_at_three_shapes(model, folder):
    """Independently of the check that export_onnx makes: other shapes and inputs."""
    session = open_onnx(folder / "onnx" / "model.onnx")
    generator = torch.Generator().manual_seed(11)
    for rows, length in ((1, 6), (4, 13), (2, 33)):
        if model.config.image_size is not None:
            inputs = {"pixel_values": torch.randn(rows, 3, 14, 14, generator=generator)}
        else:
            ids = torch.randint(5, 41, (rows, length), generator=generator)
            mask = torch.ones_like(ids)
            mask[-1, :2] = 0  # padding on the left
            inputs = {"input_ids": ids, "attention_mask": mask}
        if type(model).__name__.endswith("MultipleChoice"):
            inputs = {key: value.unsqueeze(1).repeat(1, 3, 1) for key, value in inputs.items()}
        with torch.no_grad():
            expected = model(**inputs)
        found = run_onnx(session, {key: value.numpy() for key, value in inputs.items()})
        assert found
        for name, value in found.items():
            assert np.abs(value - expected[name].numpy()).max() <= 1e-4, (name, rows, length)


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_onnx_of_every_head(head, tmp_path):
    need_onnx()
    model = make_model(head)
    assert export_onnx(model, tmp_path) <= 1e-4
    check_at_three_shapes(model, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {
            "classifier_pooling": "attention",
            "layer_types": ["full_attention", "sliding_attention"],
            "sliding_window": 2,
        },
        {"classifier_pooling": "cls", "position_embedding_type": "absolute", "position_offset": 1},
        {"compare_pairs": True, "sep_token_id": 3},
        {"classifier_pooling": "max", "type_vocab_size": 2, "norm_position": "post", "num_key_value_heads": 1},
    ],
)
def test_onnx_of_other_blocks(changes, tmp_path):
    need_onnx()
    model = make_model("ForSequenceClassification", **changes)
    export_onnx(model, tmp_path)
    names = {item.name for item in open_onnx(tmp_path / "onnx" / "model.onnx").get_inputs()}
    assert ("token_type_ids" in names) == ("type_vocab_size" in changes)
    if "type_vocab_size" not in changes:
        check_at_three_shapes(model, tmp_path)


@pytest.mark.slow
def test_onnx_of_the_native_form(tmp_path):
    need_onnx()
    assert export_onnx(to_native(make_model(name="bert-base", hidden_dropout_prob=0.0)), tmp_path) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("name", ["modernbert-base", "roberta-base", "bert-base"])
def test_inputs_are_as_long_as_the_positions(name, native):
    """RoBERTa's are counted from behind the padding id; ModernBERT's are not, and its padding id is a large one."""
    changes = {
        "modernbert-base": {"pad_token_id": 39, "layer_types": ["full_attention"] * 2},
        "roberta-base": {"pad_token_id": 1, "position_offset": 2},
        "bert-base": {},
    }[name]
    model = make_model(name=name, vocab_size=40, max_position_embeddings=30, **changes)
    model = to_native(model).eval() if native else model
    inputs = serving._inputs(model, 2, 64)
    assert inputs["input_ids"].shape == (2, 30)
    assert model(**inputs).logits.isfinite().all()


def test_int8_and_its_cost(tmp_path):
    need_onnx()
    model = make_model("ForSequenceClassification", hidden_size=96, intermediate_size=384, initializer_range=0.05)
    export_onnx(model, tmp_path)
    quantize_int8(tmp_path)
    tokenizer = make_tokenizer()
    with torch.no_grad():
        batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
        labels = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.argmax(-1)
    report = compare_int8(tmp_path, TEXTS, tokenizer, labels.tolist())
    assert report.float_accuracy == 1.0
    assert report.int8_accuracy == report.agreement
    assert report.int8_bytes < 0.5 * report.float_bytes
    assert 0 < report.mean_shift < 0.1
    with pytest.raises(ValueError, match="3 entries for 4 texts"):
        compare_int8(tmp_path, TEXTS, tokenizer, [0, 1, 2])
    with pytest.raises(ValueError, match=r"texts=\[\] must be a list of texts"):
        compare_int8(tmp_path, [], tokenizer)


@pytest.mark.parametrize("problem_type", [None, "regression", "multi_label_classification"])
def test_int8_is_compared_by_what_the_head_answers(problem_type, tmp_path, monkeypatch):
    """Of 18 texts, two have another answer in int8: class, value, or one of two labels."""
    rows = np.zeros((18, 1 if problem_type == "regression" else 2), dtype=np.float32)
    rows[:, 0] = 1
    moved = rows.copy()
    moved[[3, 17], 0] = -2
    (tmp_path / "onnx").mkdir()
    for name, size in ((ONNX_NAME, 40), (INT8_NAME, 10)):
        (tmp_path / name).write_bytes(bytes(size))
    read = []

    def run(session, inputs):
        read.append(inputs["input_ids"].shape)
        text = (len(read) - 1) // 2 % 18
        return {"logits": (rows if session == ONNX_NAME else moved)[[text]]}

    monkeypatch.setattr(serving, "open_onnx", lambda path: str(path.relative_to(tmp_path)))
    monkeypatch.setattr(serving, "run_onnx", run)
    tokenizer, texts = make_tokenizer(), ["w1 w2\tw3"] * 18
    report = compare_int8(tmp_path, texts, tokenizer, problem_type=problem_type, pairs=True)
    assert read == 36 * [(1, len(tokenizer("w1 w2", "w3")["input_ids"]))]
    if problem_type == "regression":
        assert report.mean_shift == pytest.approx(2 * 3 / 18)
        assert str(report) == "25% of the size, values shifted by 0.33 on average"
        with pytest.raises(ValueError, match="does not give one class for a text"):
            compare_int8(tmp_path, texts, tokenizer, [0] * 18, problem_type=problem_type, pairs=True)
    else:
        several = problem_type == "multi_label_classification"
        assert report.agreement == pytest.approx(1 - 2 / (36 if several else 18))
        shift = 1 / (1 + math.exp(-1)) - 1 / (1 + math.exp(2))
        assert report.mean_shift == pytest.approx(shift * 2 / (36 if several else 18), rel=1e-6)
        assert "89" in str(report) or several


def test_int8_compares_lists_of_texts_with_numbers_of_classes(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"model\.onnx is not there: export_onnx and quantize_int8 write"):
        compare_int8(tmp_path, ["w1"], make_tokenizer())
    with pytest.raises(ValueError, match="texts='w1' must be a list"):
        compare_int8(tmp_path, "w1", make_tokenizer())
    (tmp_path / "onnx").mkdir()
    for name in (ONNX_NAME, INT8_NAME):
        (tmp_path / name).write_bytes(b"x")
    monkeypatch.setattr(serving, "open_onnx", lambda path: path.name)
    # Of many classes, each form is sure of another one: all of the probability moves.
    sure = 99 * np.eye(1000, dtype=np.float32)
    monkeypatch.setattr(serving, "run_onnx", lambda session, inputs: {"logits": sure[[len(session)]]})
    assert compare_int8(tmp_path, ["w1"], make_tokenizer()).mean_shift == pytest.approx(1)
    with pytest.raises(ValueError, match="labels holds 'spam': give the numbers of the classes"):
        compare_int8(tmp_path, ["w1"], make_tokenizer(), ["spam"])


def test_int8_needs_the_float_form(tmp_path):
    with pytest.raises(ValueError, match="export_onnx writes it first"):
        quantize_int8(tmp_path)


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr("importlib.import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    with pytest.raises(ImportError, match="needs onnxruntime: pip install onnxruntime"):
        serving._need("onnxruntime")


def test_old_transformers_cannot_export(monkeypatch, tmp_path):
    monkeypatch.setattr("transformers.__version__", "5.10.1")
    with pytest.raises(ImportError, match=r"5\.10\.1 is too old for it: pip install 'transformers>=5\.23'"):
        export_onnx(make_model(), tmp_path)


@pytest.mark.parametrize("form", ["onnx", "int8"])
def test_a_missing_exporter_is_told_before_work(tmp_path, monkeypatch, form):
    monkeypatch.setattr("transformers.__version__", "5.10.1")
    folder = save(tmp_path / "model", "ForSequenceClassification")
    given = Completion(serving=(form,), int8_texts=("a b",))
    with pytest.raises(ImportError, match="too old for it"):
        check_request(folder, form="auto", completion=given, public=False)


def test_sentence_transformers_folder_says_the_pooling(tmp_path):
    write_sentence_transformers(tmp_path, pooling="max", hidden_size=24, length=41)
    pooling = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    assert [key for key, value in pooling.items() if value is True] == ["pooling_mode_max_tokens"]
    assert [module["path"] for module in json.loads((tmp_path / "modules.json").read_text())] == ["", "1_Pooling"]


def test_sentence_transformers_has_no_learned_pooling(tmp_path):
    with pytest.raises(ValueError, match="classifier_pooling='attention' has no counterpart"):
        write_sentence_transformers(tmp_path, pooling="attention", hidden_size=24, length=41)


def error_of_embeddings(folder):
    """The largest difference of sentence-transformers' embeddings from our pooling of the encoder, relative."""
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel, AutoTokenizer

    found = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu").encode(TEXTS)
    encoder = AutoModel.from_pretrained(folder, local_files_only=True, trust_remote_code=True).eval()
    kind = json.loads((folder / "1_Pooling" / "config.json").read_text())
    names = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max"}
    pooling = Pooling(ClozeBertConfig(classifier_pooling=next(v for k, v in names.items() if kind.get(k))))
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    batch = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        expected = pooling(encoder(**batch).last_hidden_state, batch["attention_mask"]).numpy()
    return float(np.abs(found - expected).max() / max(1.0, float(np.abs(expected).max())))


def test_a_tokenizer_without_token_types_is_compared_with_the_first_type():
    """A graph with token types, as of BERT, cannot run without them."""

    class Session:
        def get_inputs(self):
            return [SimpleNamespace(name=name) for name in ("input_ids", "attention_mask", "token_type_ids")]

        def get_outputs(self):
            return [SimpleNamespace(name="logits")]

        def run(self, names, inputs):
            assert inputs.keys() == {"input_ids", "attention_mask", "token_type_ids"}
            return [inputs["token_type_ids"] + inputs["input_ids"]]

    batch = make_tokenizer()(["the river"], return_tensors="np")
    assert "token_type_ids" not in batch
    np.testing.assert_array_equal(serving._logits(Session(), batch), batch["input_ids"])


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
@pytest.mark.parametrize("form", ["bundle", "native"])
def test_sentence_transformers_embeddings(pooling, form, tmp_path):
    pytest.importorskip("sentence_transformers")
    if form == "bundle":
        save(tmp_path, "Model", classifier_pooling=pooling)
    else:
        to_native(make_model("Model", name="bert-base", hidden_dropout_prob=0.0)).save_pretrained(tmp_path)
        make_tokenizer().save_pretrained(tmp_path)
    write_sentence_transformers(tmp_path, pooling=pooling, hidden_size=24, length=41)
    assert error_of_embeddings(tmp_path) <= 1e-6
    # The check can fail: another pooling is far away.
    other = {"cls": "mean", "mean": "max", "max": "cls"}[pooling]
    config = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    from sentence_transformers import SentenceTransformer

    found = SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu").encode(TEXTS)
    write_sentence_transformers(tmp_path, pooling=other, hidden_size=24, length=41)
    assert config != json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    moved = SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu").encode(TEXTS)
    assert np.abs(found - moved).max() > 1e-2


@pytest.mark.slow
def test_published_with_all_forms(tmp_path, monkeypatch):
    """Twice the same bytes, named on the card, and the sentence-transformers folder is one."""
    need_onnx()
    pytest.importorskip("sentence_transformers")
    folder = save(tmp_path / "run", "ForSequenceClassification", classifier_pooling="max")
    given = Completion(serving=("onnx", "int8", "sentence-transformers"), int8_texts=tuple(TEXTS), license="mit")
    for name in ("one", "two"):
        complete_folder(folder, tmp_path / name, "org/name", completion=given)
    one, two = (
        {p.relative_to(tmp_path / name): p.read_bytes() for p in (tmp_path / name).rglob("*") if p.is_file()}
        for name in ("one", "two")
    )
    assert [name for name in one if one[name] != two.get(name)] == []
    assert str(tmp_path).encode() not in b"".join(one.values())
    assert b"site-packages" not in b"".join(one.values())
    card = (tmp_path / "one" / "README.md").read_text()
    for part in ("`onnx/model.onnx`", "`onnx/model_quantized.onnx`", "on 4 texts", "max pooling"):
        assert part in card
    assert error_of_embeddings(tmp_path / "one") <= 1e-6
    complete_folder(tmp_path / "one", tmp_path / "plain", "org/name")
    assert "For servers" not in (tmp_path / "plain" / "README.md").read_text()
