"""Folders in and out: shards, half precision, tied weights, tokenizers; and everything that must be refused."""

import json
import os
import subprocess
import sys
import warnings

import pytest
import torch
from natives import CLASSES, CLASSES_OF_RELATIVES, difference, make_inputs, make_native
from often import often
from safetensors.torch import load_file, save_file

from clozebert.hub import from_native
from clozebert.hub.convert import convert_folder
from clozebert.hub.loading import find_folder, load_native, weight_files
from clozebert.utils.errors import UserError


def save(tmp_path, model_type="bert", class_name="BertForMaskedLM", **options):
    native = make_native(model_type, class_name, **options.pop("changes", {}))
    folder = tmp_path / "native"
    native.save_pretrained(folder, **options)
    return native, folder


def edit_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def edit_config(folder, **changes):
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps(config))
    return config


@pytest.mark.parametrize(
    ("model_type", "class_name"), often(CLASSES[::3] + CLASSES_OF_RELATIVES + CLASSES[1::3] + CLASSES[2::3], 26)
)
def test_there_and_back_is_the_same_file(tmp_path, model_type, class_name):
    _, folder = save(tmp_path, model_type, class_name)
    convert_folder(folder, tmp_path / "ours", to="clozebert")
    assert convert_folder(tmp_path / "ours", tmp_path / "back", to="native") == class_name
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    config_before, config_after = (
        json.loads((path / "config.json").read_text()) for path in (folder, tmp_path / "back")
    )
    assert config_before == config_after


def test_from_native_takes_a_folder(tmp_path):
    native, folder = save(tmp_path, "roberta", "RobertaForTokenClassification")
    ours = from_native(folder)
    inputs = make_inputs("roberta", "RobertaForTokenClassification", "plain")
    assert difference(native(**inputs).logits, ours(**inputs).logits) < 1e-5


def test_sharded(tmp_path):
    native, folder = save(tmp_path, "modernbert", "ModernBertForMaskedLM", max_shard_size="10KB")
    assert len(list(folder.glob("*.safetensors"))) > 3
    ours = from_native(folder)
    assert torch.equal(ours.model.embeddings.word_embeddings.weight, native.model.embeddings.tok_embeddings.weight)
    wi = native.model.layers[2].mlp.Wi.weight
    assert torch.equal(
        torch.cat([ours.model.layers[2].mlp.gate_proj.weight, ours.model.layers[2].mlp.up_proj.weight]), wi
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays(tmp_path, dtype):
    native, folder = save(tmp_path, changes={"dtype": dtype})
    convert_folder(folder, tmp_path / "ours", to="clozebert")
    stored = load_file(tmp_path / "ours" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {dtype}
    assert "decoder.weight" not in stored  # tied: stored once
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    ours = from_native(native)
    assert ours.decoder.weight is ours.model.embeddings.word_embeddings.weight


def test_base_without_its_pooler(tmp_path):
    from transformers import BertModel

    config = make_native("bert", "BertModel").config
    BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "native")
    ours = from_native(tmp_path / "native")
    assert ours.pooler is None
    assert not ours.config.base_pooler


def test_relative_positions_are_named(tmp_path):
    _, folder = save(tmp_path)
    edit_config(folder, position_embedding_type="relative_key")
    with pytest.raises(ValueError, match=r"position_embedding_type='relative_key' of .*: transformers 5 does not"):
        from_native(folder)


def test_missing_tensor(tmp_path):
    _, folder = save(tmp_path)
    edit_tensors(folder, lambda tensors: tensors.pop("bert.encoder.layer.1.output.dense.bias"))
    with pytest.raises(ValueError, match=r"missing: bert\.encoder\.layer\.1\.output\.dense\.bias"):
        from_native(folder)


def test_extra_tensor(tmp_path):
    _, folder = save(tmp_path)
    edit_tensors(folder, lambda tensors: tensors.update({"bert.encoder.layer.7.note": torch.zeros(2)}))
    with pytest.raises(ValueError, match=r"extra: bert\.encoder\.layer\.7\.note"):
        from_native(folder)


def test_misshaped_tensor(tmp_path):
    _, folder = save(tmp_path)
    name = "bert.encoder.layer.0.intermediate.dense.weight"
    edit_tensors(folder, lambda tensors: tensors.update({name: tensors[name][:-1].clone()}))
    with pytest.raises(ValueError, match=r"of shape \(36, 24\) instead of \(37, 24\): bert\.encoder\.layer\.0\.inter"):
        from_native(folder)


def test_same_refusals_for_our_own_format(tmp_path):
    _, folder = save(tmp_path)
    convert_folder(folder, tmp_path / "ours", to="clozebert")
    edit_tensors(tmp_path / "ours", lambda tensors: tensors.pop("head.norm.weight"))
    with pytest.raises(ValueError, match=r"missing: head\.norm\.weight"):
        convert_folder(tmp_path / "ours", tmp_path / "back", to="native")
    assert not (tmp_path / "back").exists()


def test_other_pretraining_task_is_left_out_with_a_warning(tmp_path):
    """bert-base-uncased itself holds the next-sentence head and the pooler beside the masked-LM head that it names."""
    _, folder = save(tmp_path)
    more = {
        "cls.seq_relationship.weight": torch.zeros(2, 24),
        "bert.pooler.dense.weight": torch.zeros(24, 24),
        "bert.pooler.dense.bias": torch.zeros(24),
    }
    edit_tensors(folder, lambda tensors: tensors.update(more))
    with pytest.warns(UserWarning, match=r"does not use.*bert\.pooler\.dense\.bias.*cls\.seq_relationship\.weight"):
        from_native(folder)


def test_names_of_old_checkpoints(tmp_path):
    """bert-base-uncased calls norms' weights gamma and beta, and stores its position ids."""
    native, folder = save(tmp_path)

    def age(tensors):
        for name in list(tensors):
            if "LayerNorm" in name:
                old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
                tensors[old] = tensors.pop(name)
        tensors["bert.embeddings.position_ids"] = torch.arange(29)[None]

    edit_tensors(folder, age)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        ours = from_native(folder)
    norm = native.bert.encoder.layer[1].attention.output.LayerNorm
    assert torch.equal(ours.model.layers[1].attention_norm.weight, norm.weight)
    assert torch.equal(ours.model.layers[1].attention_norm.bias, norm.bias)


def test_pickle_needs_to_be_allowed(tmp_path):
    native, folder = save(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save(native.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="allow_pickle"):
        from_native(folder)
    ours = from_native(folder, allow_pickle=True)
    assert torch.equal(ours.head.norm.weight, native.cls.predictions.transform.LayerNorm.weight)


def test_pickle_of_an_old_torch(tmp_path):
    """Before torch 1.6 they were no ZIP files; whether a base model has its pooler is read from the names in it."""
    native, folder = save(tmp_path, class_name="BertModel")
    (folder / "model.safetensors").unlink()
    torch.save(native.state_dict(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    ours = from_native(folder, allow_pickle=True)
    assert torch.equal(ours.pooler.dense.weight, native.pooler.dense.weight)


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_pickle_runs_nothing(tmp_path, monkeypatch):
    native, folder = save(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save({**native.state_dict(), "bad": Malicious()}, folder / "pytorch_model.bin")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match=r"(?i)weights"):
        from_native(folder, allow_pickle=True)
    assert not (tmp_path / "ran").exists()


def test_safetensors_are_preferred_to_a_pickle(tmp_path):
    _, folder = save(tmp_path)
    (folder / "pytorch_model.bin").write_bytes(b"not even a pickle")
    from_native(folder)
    assert weight_files(folder) == [folder / "model.safetensors"]


def test_index_may_not_leave_the_folder(tmp_path):
    _, folder = save(tmp_path)
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    index = {"metadata": {}, "weight_map": {"a": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="not a file of its folder"):
        from_native(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type='gpt2'.*cannot be converted; these can: bert"),
        ({"model_type": "clozebert"}, "already holds a ClozeBERT"),
        ({"architectures": ["BertForNextSentencePrediction"]}, "BertForNextSentencePrediction.*no counterpart"),
        ({"architectures": None}, "must name one class"),
        ({"is_decoder": True}, "is_decoder=True"),
        ({"eos_token_id": [3, 4]}, "eos_token_id"),
        ({"hidden_size": "24"}, "config.json: .*'hidden_size'"),
        ({"num_attention_heads": 5}, "config.json: .*not a multiple of the number of attention heads"),
        ({"hidden_act": "gelo"}, "config.json: .*gelo"),
        ({"num_attention_heads": 0}, "config.json: "),
        ({"pad_token_id": 999}, "config.json: "),
        ({"intermediate_size": -3}, "config.json: "),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "quantization_config"),
    ],
)
def test_configurations_without_a_counterpart(tmp_path, change, message):
    _, folder = save(tmp_path)
    edit_config(folder, **change)
    with pytest.raises(ValueError, match=message):
        from_native(folder)


@pytest.mark.parametrize("name", ["flash_attention_2", "kernels-community/flash-attn2", "nonsense"])
@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_an_implementation_that_a_configuration_names_is_not_looked_for(tmp_path, key, name):
    _, folder = save(tmp_path)
    edit_config(folder, **{key: name})
    assert from_native(folder).config._attn_implementation != name


def test_weights_are_not_rounded_in_silence(tmp_path):
    """transformers rounds them to the configuration's type, so the model is what it gives; but it is said."""
    _, folder = save(tmp_path)
    edit_config(folder, dtype="bfloat16")
    with pytest.warns(UserWarning, match="weights of float32 are rounded to bfloat16"):
        assert from_native(folder).dtype == torch.bfloat16
    edit_config(folder, dtype="float64")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_native(folder)


def test_odd_but_legal_fields_come_back(tmp_path):
    """Attention weights among the outputs, which eager attention alone has; a key that is null."""
    _, folder = save(tmp_path)
    given = edit_config(folder, output_attentions=True, output_hidden_states=True, mask_token_id=None)
    convert_folder(folder, tmp_path / "ours", to="clozebert")
    convert_folder(tmp_path / "ours", tmp_path / "back", to="native")
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == given


def test_folders_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="neither a folder nor a name"):
        find_folder(tmp_path / "no-such-folder")
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        load_native(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        load_native(tmp_path)
    with pytest.raises(ValueError, match="cannot be fetched from the Hub"):
        find_folder("nobody/nothing-at-all")  # tests are offline


def test_no_weights(tmp_path):
    _, folder = save(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="holds no weights"):
        from_native(folder)


def make_tokenizer(folder):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{index}" for index in range(42))]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="[MASK]", model_max_length=29, **names)
    fast.save_pretrained(folder)
    return fast


LICENSED = """---
license: other
license_name: research-only
license_link: https://example.com/LICENSE
"""
_PLAIN_PIPELINE = """
import json, sys
sys.modules["clozebert"] = None  # importing it is an error from here on
from transformers import pipeline
for folder in sys.argv[1:]:
    answers = pipeline("fill-mask", model=folder, tokenizer=folder)("w1 w5 [MASK] w9 w30")
    print(json.dumps([[answer["token"], answer["score"]] for answer in answers]))
try:
    import clozebert
except ImportError:
    print("clozebert is not there")
"""


def small_model(name):
    """A named architecture, made small."""
    from clozebert import ClozeBertConfig, ClozeBertForMaskedLM

    small = {"vocab_size": 47, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4,
             "intermediate_size": 37, "max_position_embeddings": 29, "pad_token_id": 0, "bos_token_id": 2,
             "eos_token_id": 3}  # fmt: skip
    if name == "modernbert-base":
        small |= {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "sliding_window": 2}
    if name == "roberta-base":
        small |= {"position_offset": 1}
    torch.manual_seed(0)
    return ClozeBertForMaskedLM(ClozeBertConfig.from_name(name, **small, initializer_range=0.3)).eval()


def test_exported_models_answer_the_same_without_clozebert(tmp_path, python):
    """Models of ours through plain transformers, in a process without our code."""
    from transformers import pipeline

    from clozebert.hub import save_native

    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    names = ["bert-base", "roberta-base", "modernbert-base"]
    answers = {}
    for name in names:
        model = small_model(name)
        answers[name] = pipeline("fill-mask", model=model, tokenizer=tokenizer)("w1 w5 [MASK] w9 w30")
        save_native(model, tmp_path / name, tokenizer)
        assert not list((tmp_path / name).glob("*.py"))
    done = python.run(["-c", _PLAIN_PIPELINE, *(tmp_path / name for name in names)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert last == "clozebert is not there"
    for name, line in zip(names, lines, strict=True):
        there = json.loads(line)
        assert [token for token, _ in there] == [answer["token"] for answer in answers[name]]
        assert [score for _, score in there] == pytest.approx([a["score"] for a in answers[name]], abs=1e-6)


def test_tokenizer_and_card_come_along(tmp_path):
    from huggingface_hub import ModelCard
    from transformers import AutoTokenizer

    _, folder = save(tmp_path)
    tokenizer = make_tokenizer(folder)
    # As old folders are: the tokenizer's class is to be guessed from the model's type.
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("tokenizer_class", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "README.md").write_text(LICENSED + "language: de\n---\n# Theirs\n")
    for name in (
        "LICENSE",
        "NOTICE.txt",
        "COPYING",
        "LICENSE.clozebert",
    ):  # theirs, and that of our code, which is written with the code
        (folder / name).write_text(f"{name} of theirs")
    convert_folder(folder, tmp_path / "ours", to="clozebert")
    for name in ("LICENSE", "NOTICE.txt", "COPYING"):
        assert (tmp_path / "ours" / name).read_text() == f"{name} of theirs"
    assert not (tmp_path / "ours" / "LICENSE.clozebert").exists()
    loaded = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert loaded("w3 w4 [MASK]")["input_ids"] == tokenizer("w3 w4 [MASK]")["input_ids"]
    assert loaded.mask_token_id == 4
    written = json.loads((tmp_path / "ours" / "tokenizer_config.json").read_text())
    # A name that transformers 4 knows as well (5.10 takes that of the model's type); and nothing of how it was loaded.
    assert written["tokenizer_class"] in ("PreTrainedTokenizerFast", "BertTokenizer")
    assert not {"is_local", "local_files_only", "name_or_path"} & set(written)
    card = ModelCard.load(tmp_path / "ours" / "README.md")
    assert (card.data.license, card.data.language) == ("other", "de")
    assert (card.data.license_name, card.data.license_link) == ("research-only", "https://example.com/LICENSE")


def test_special_tokens_of_an_older_tokenizer_go(tmp_path):
    from transformers import AutoTokenizer

    _, folder = save(tmp_path)
    tokenizer = make_tokenizer(folder)
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "special_tokens_map.json").write_text('{"cls_token": "w5", "sep_token": "w6", "mask_token": "w7"}')
    convert_folder(folder, ours, to="clozebert", overwrite=True)
    assert AutoTokenizer.from_pretrained(ours)("w3 [MASK]")["input_ids"] == tokenizer("w3 [MASK]")["input_ids"]
    (ours / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"holds adapter_config\.json, an adapter of PEFT"):
        convert_folder(folder, ours, to="clozebert", overwrite=True)


def test_a_card_that_cannot_be_read_is_said(tmp_path):
    _, folder = save(tmp_path)
    (folder / "README.md").write_text("---\nlicense: mit\nlanguage: [de\n---\n")
    with pytest.warns(UserWarning, match="README.md cannot be read: .*; the new card has none of it"):
        convert_folder(folder, tmp_path / "ours", to="clozebert")


def test_wrong_direction(tmp_path):
    _, folder = save(tmp_path)
    with pytest.raises(ValueError, match="native already"):
        convert_folder(folder, tmp_path / "out", to="native")
    with pytest.raises(ValueError, match="must be clozebert or native"):
        convert_folder(folder, tmp_path / "out", to="bert")
    with pytest.raises(ValueError, match="architecture='bert' needs"):
        convert_folder(folder, tmp_path / "out", to="clozebert", architecture="bert")


_MEASURE = """
import json, sys
from clozebert.hub.convert import convert_folder
from clozebert.modeling import ClozeBertForMaskedLM
from clozebert.utils.memory import peak_memory
from transformers import BertForMaskedLM
before = peak_memory()
convert_folder(sys.argv[1], sys.argv[2], to=sys.argv[3])
print(json.dumps(peak_memory() - before))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell the peak")
def test_memory_of_a_base_size_conversion(tmp_path):
    """Under 2.5 times the checkpoint, over what the imports take; measured: 1.03 (BERT) and 1.54 (ModernBERT)."""
    import transformers

    for name in ("Bert", "ModernBert"):
        config = getattr(transformers, f"{name}Config")()
        getattr(transformers, f"{name}ForMaskedLM")(config).save_pretrained(tmp_path / name)
        size = (tmp_path / name / "model.safetensors").stat().st_size
        for source, target, to in ((name, f"{name}-ours", "clozebert"), (f"{name}-ours", f"{name}-back", "native")):
            done = subprocess.run(
                [sys.executable, "-c", _MEASURE, str(tmp_path / source), str(tmp_path / target), to],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout.splitlines()[-1]) < 2.5 * size


def test_what_a_card_says_outlasts_conversion_both_ways(tmp_path):
    from huggingface_hub import ModelCard
    from saved_models import save

    from clozebert.hub import write_card

    folder = save(tmp_path / "run", "ForTokenClassification", name="bert-base")
    (folder / "eval_confusion.png").write_bytes(b"png")
    score = {"dataset_type": "conll", "dataset_name": "dev.conll", "metric_type": "f1", "metric_value": 0.75}
    facts = {"description": "Reads.", "corpus": {"train": "train.conll"}, "eval_results": [score], "example": "a b"}
    write_card(
        folder, {**facts, "metrics": {"eval_f1": 0.75}, "hyperparameters": {"seed": 3}, "base_model": "org/base"}
    )
    convert_folder(folder, tmp_path / "there", to="native")
    convert_folder(tmp_path / "there", tmp_path / "back", to="clozebert")
    for name, origin, tags in (("there", "run", ["bert"]), ("back", "there", [])):
        text = (tmp_path / name / "README.md").read_text()
        parts = ("| train | train.conll |", "| eval_f1 | 0.75 |", "| seed | 3 |", "](eval_confusion.png)", "An example")
        for part in (*parts, f"Reads. Converted, weight by weight, from `{origin}`;"):
            assert text.count(part) == 1, part
        assert (tmp_path / name / "eval_confusion.png").read_bytes() == b"png"
        data = ModelCard.load(tmp_path / name / "README.md").data
        assert (data.eval_results[0].metric_value, data.base_model) == (0.75, "org/base")
        assert data.tags == [*tags, "clozebert", "encoder"]
