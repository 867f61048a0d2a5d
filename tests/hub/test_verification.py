"""Fingerprints, and loading in a clean process: what is whole passes, and each way of being broken is named."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from saved_models import HEADS, make_model, make_tokenizer, save
from transformers import (
    DebertaV2Config,
    DebertaV2ForTokenClassification,
    FunnelConfig,
    FunnelForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LongformerConfig,
    LongformerForTokenClassification,
)

from clozebert.hub import verification
from clozebert.hub.convert import to_native
from clozebert.hub.fingerprint import (
    find_differences,
    make_fingerprint,
    model_outputs,
    probe_inputs,
    read_fingerprint,
    write_fingerprint,
)
from clozebert.hub.publishing import Completion, complete_folder, publish
from clozebert.hub.verification import verify_folder
from clozebert.utils.errors import UserError

MODEL_NAME = "model.safetensors"


def test_the_process_gets_no_token(tmp_path, monkeypatch):
    (tmp_path / "token").write_text("hf_mine")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    seen = []
    monkeypatch.setattr(verification.subprocess, "run", lambda *_, env, **__: seen.append(env) or stop())
    with pytest.raises(KeyboardInterrupt):
        verify_folder(saved_with_fingerprint(tmp_path / "model"))
    code = "import huggingface_hub; print(huggingface_hub.get_token())"
    monkeypatch.undo()
    done = subprocess.run([sys.executable, "-c", code], env=seen[0], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


def stop():
    raise KeyboardInterrupt


def saved_with_fingerprint(folder, head="ForMaskedLM", **options):
    save(folder, head, **options)
    write_fingerprint(folder, make_fingerprint(make_model(head, **options)))
    return folder


def change_tensors(folder, change):
    tensors = load_file(folder / MODEL_NAME)
    save_file(change(tensors), folder / MODEL_NAME, metadata={"format": "pt"})


@pytest.mark.parametrize("head", HEADS)
def test_fingerprint_tells_other_weights(head, tmp_path):
    stored = make_fingerprint(make_model(head))
    write_fingerprint(tmp_path, stored)
    assert read_fingerprint(tmp_path) == stored
    assert find_differences(stored, make_fingerprint(make_model(head))) == []
    differences = find_differences(stored, make_fingerprint(make_model(head, seed=1)))
    assert len(differences) == len(stored["outputs"])


def test_as_many_labels_as_tokens_are_no_tokens():
    """The fixed input has 12 tokens in a row, some of which are padding; the logits [2, 12] are no mask's."""
    stored = make_fingerprint(make_model("ForSequenceClassification", num_labels=12))
    assert stored["outputs"]["logits"]["shape"] == [2, 12]
    of_tokens = make_fingerprint(make_model("ForTokenClassification", num_labels=3))
    assert of_tokens["outputs"]["logits"]["shape"] == [21, 3]


def test_fingerprint_of_a_model_that_answers_with_tuples():
    model = make_model()
    stored = make_fingerprint(model)
    model.config.return_dict = False
    assert find_differences(stored, make_fingerprint(model)) == []
    assert find_differences(None, stored) == ["there is no fingerprint.json to compare with"]


def test_fingerprint_notices_one_random_matrix_and_not_rounding():
    model = make_model()
    stored = make_fingerprint(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 1e-6)
    assert find_differences(stored, make_fingerprint(model)) == []
    torch.nn.init.normal_(model.model.layers[1].mlp.up_proj.weight, std=0.2)
    assert find_differences(stored, make_fingerprint(model))


def test_fingerprint_is_taken_on_the_device_of_the_model():
    class OnDevice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.config, self.weight = make_model().config, torch.nn.Parameter(torch.zeros(1, device="meta"))

        @property
        def base_model(self):
            return self

        def forward(self, input_ids, attention_mask, return_dict):
            assert {input_ids.device.type, attention_mask.device.type} == {"meta"}
            return {"last_hidden_state": torch.zeros(*input_ids.shape, 8)}

    assert model_outputs(OnDevice())["last_hidden_state"].shape[1] == 8


def test_fingerprint_notices_a_random_comparison_of_pairs():
    """In a vocabulary that is not tiny, where the fixed input has a separator only if it is put there."""
    model = make_model("ForSequenceClassification", vocab_size=997, compare_pairs=True, sep_token_id=3)
    stored = make_fingerprint(model)
    torch.nn.init.normal_(model.comparison.dense.weight, std=0.2)
    assert find_differences(stored, make_fingerprint(model))


def test_fingerprint_is_the_same_for_the_native_form():
    model = make_model(name="bert-base", hidden_dropout_prob=0.0)
    assert find_differences(make_fingerprint(model), make_fingerprint(to_native(model))) == []


def test_fingerprint_leaves_padding_out_and_reaches_it():
    inputs = probe_inputs(make_model().config)
    assert inputs["attention_mask"].sum() < inputs["attention_mask"].numel()
    outputs = make_fingerprint(make_model())["outputs"]
    assert outputs["last_hidden_state"]["shape"] == [int(inputs["attention_mask"].sum()), 24]


@pytest.mark.parametrize("length", [3, 5])
def test_probe_of_short_models(length):
    config = make_model(max_position_embeddings=length).config
    assert probe_inputs(config)["input_ids"].shape[1] <= length


def test_fingerprint_refuses_what_is_not_finite():
    model = make_model()
    model.model.layers[0].mlp.up_proj.weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"layers\.0\.mlp\.up_proj\.weight"):
        make_fingerprint(model)


@pytest.mark.parametrize("text", ["[]", '{"format": 1, "outputs": {"logits": {"shape": [1]}}}'])
def test_damaged_fingerprint_is_named(tmp_path, text):
    (tmp_path / "fingerprint.json").write_text(text)
    with pytest.raises(ValueError, match="not a fingerprint"):
        read_fingerprint(tmp_path)


def test_whole_bundle_passes(tmp_path):
    report = verify_folder(saved_with_fingerprint(tmp_path))
    assert len(report.auto_classes) == 7
    assert report.pipelines == ["feature-extraction", "fill-mask"]
    assert any("classifier" in key for key in report.new_heads["AutoModelForTokenClassification"])
    assert "AutoModelForMaskedLM" not in report.new_heads


@pytest.mark.slow
def test_random_weights_are_an_error(tmp_path):
    folder = saved_with_fingerprint(tmp_path)
    change_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if "layers.1.mlp" not in k})
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.up_proj\.weight is missing .* drawn at random"):
        verify_folder(folder)


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_every_head_passes(head, tmp_path):
    report = verify_folder(saved_with_fingerprint(tmp_path, head))
    assert len(report.auto_classes) == (2 if head == "ForImageClassification" else 7)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-base", "roberta-base", "modernbert-base"])
def test_native_folder_passes(name, tmp_path):
    native = to_native(make_model("ForSequenceClassification", name=name))
    native.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    write_fingerprint(tmp_path, make_fingerprint(native))
    report = verify_folder(tmp_path)
    assert {"AutoModel", "AutoModelForMaskedLM", "AutoModelForSequenceClassification"} <= set(report.auto_classes)
    assert report.pipelines == ["feature-extraction", "text-classification"]


def break_prefix(folder):
    change_tensors(folder, lambda tensors: {k.replace("model.", "encoder."): v for k, v in tensors.items()})


def break_values(folder):
    change_tensors(folder, lambda tensors: {k: torch.flip(v, [0]) for k, v in tensors.items()})


def break_code(folder):
    (folder / "attention.py").unlink()


def break_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()


def break_vocabulary(folder):
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["unheard"])
    tokenizer.save_pretrained(folder)


def break_import(folder):
    path = folder / "heads.py"
    path.write_text(path.read_text() + "\nimport clozebert\n")


def break_connection(folder):
    path = folder / "modeling_clozebert.py"
    path.write_text(path.read_text() + "\nimport socket\nsocket.create_connection(('127.0.0.1', 9))\n")


def break_class(folder):
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"].pop("AutoModelForMaskedLM")
    config["auto_map"].pop("AutoModelForPreTraining")
    (folder / "config.json").write_text(json.dumps(config))


def break_fingerprint(folder):
    (folder / "fingerprint.json").unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (break_prefix, "drawn at random"),
        (break_values, "is off by"),
        (break_code, "attention"),
        (break_tokenizer, "no tokenizer"),
        (break_vocabulary, "vocab_size"),
        (break_import, "clozebert cannot be imported"),
        (break_connection, "open a connection"),
        (break_class, "no Auto class opens it as ClozeBertForMaskedLM"),
        (break_fingerprint, "no fingerprint"),
    ],
)
def test_each_damage_is_named(damage, message, tmp_path):
    folder = saved_with_fingerprint(tmp_path)
    damage(folder)
    with pytest.raises(ValueError, match=message):
        verify_folder(folder)


@pytest.mark.slow
def test_an_encoder_that_cannot_be_converted_is_published_as_it_is(tmp_path):
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 37}
    config = DebertaV2Config(vocab_size=50, max_position_embeddings=41, num_labels=3, **sizes)
    DebertaV2ForTokenClassification(config).save_pretrained(tmp_path / "encoder")
    make_tokenizer().save_pretrained(tmp_path / "encoder")
    found = publish(tmp_path / "encoder", "org/deberta", dry_run=True, output_dir=tmp_path / "out")
    assert (found.form, "token-classification" in found.report.pipelines) == ("native", True)
    assert (tmp_path / "out/model.safetensors").read_bytes() == (tmp_path / "encoder/model.safetensors").read_bytes()
    with pytest.raises(UserError, match=r"model_type='deberta-v2' .* cannot be converted; these can: bert"):
        complete_folder(tmp_path / "encoder", tmp_path / "bundle", "org/deberta", form="bundle")
    wanted = Completion(serving=("sentence-transformers",))
    with pytest.raises(UserError, match="how a deberta-v2 pools is not known here, but only of bert"):
        complete_folder(tmp_path / "encoder", tmp_path / "pooled", "org/deberta", completion=wanted)
    GPT2LMHeadModel(GPT2Config(n_embd=24, n_layer=1, n_head=3, vocab_size=40)).save_pretrained(tmp_path / "decoder")
    with pytest.raises(UserError, match="names GPT2LMHeadModel with model_type='gpt2': only encoders"):
        complete_folder(tmp_path / "decoder", tmp_path / "other", "org/decoder")


@pytest.mark.slow
def test_an_encoder_whose_other_heads_do_not_take_the_fixed_input_is_published(tmp_path):
    """Longformer's heads for questions want separators; Funnel's classifiers have an encoder without its decoder."""
    sizes = {"vocab_size": 50, "num_labels": 2}
    longformer = LongformerConfig(
        **sizes, hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=37, attention_window=[4],
        max_position_embeddings=41, pad_token_id=0, sep_token_id=3,
    )  # fmt: skip
    funnel = FunnelConfig(**sizes, block_sizes=[1, 1], num_decoder_layers=1, d_model=24, n_head=3, d_head=8, d_inner=37)
    opens = {}
    for model in (LongformerForTokenClassification(longformer), FunnelForSequenceClassification(funnel)):
        folder = tmp_path / type(model).__name__
        model.save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)
        opens[folder.name] = publish(folder, "org/encoder", dry_run=True).report.auto_classes
    assert "AutoModelForTokenClassification" in opens["LongformerForTokenClassification"]
    assert "AutoModelForQuestionAnswering" not in opens["LongformerForTokenClassification"]
    assert "AutoModelForSequenceClassification" in opens["FunnelForSequenceClassification"]


def test_the_licence_of_the_code_goes_with_the_code(tmp_path):
    run = save(tmp_path / "run", name="bert-base")
    complete_folder(run, tmp_path / "bundle", "org/name", form="bundle")
    assert (tmp_path / "bundle" / "LICENSE.clozebert").is_file()
    complete_folder(tmp_path / "bundle", tmp_path / "native", "org/name", form="native")
    assert not (tmp_path / "native" / "LICENSE.clozebert").exists()
