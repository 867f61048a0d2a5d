"""What programs written for BERT give a model, and what they set on its modules."""

import importlib
import json
import os

import pytest
import torch
from encoder_cases import build, random_ids, relative_error, tiny_config
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.integrations.peft import MIN_PEFT_VERSION

from clozebert import (
    ClozeBertConfig,
    ClozeBertForMaskedLM,
    ClozeBertForMultipleChoice,
    ClozeBertForSequenceClassification,
    ClozeBertModel,
)
from clozebert.modeling.bundle import CODE_FILES

IDS = torch.as_tensor(random_ids(2, 9))
MASK = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])


@pytest.mark.parametrize("positions", [torch.zeros(1, 9, dtype=torch.long), torch.arange(9).flip(0)[None]])
def test_positions_that_never_rise_pack_nothing(positions):
    """Every token would be a document of its own; BERT takes such positions as they are."""
    model = build(ClozeBertForSequenceClassification, tiny_config(position_embedding_type="absolute", num_labels=3))
    wanted = model(IDS, attention_mask=torch.ones_like(IDS), position_ids=positions).logits
    assert torch.equal(model(IDS, position_ids=positions).logits, wanted)
    assert wanted.shape == (2, 3)


def test_positions_of_choices_may_be_one_row_for_all():
    model = build(ClozeBertForMultipleChoice, tiny_config(position_embedding_type="absolute"))
    inputs = {"input_ids": IDS.view(1, 2, 9), "attention_mask": MASK.view(1, 2, 9)}
    wanted = model(**inputs, position_ids=torch.arange(1, 10).expand(1, 2, 9)).logits
    assert torch.equal(model(**inputs, position_ids=torch.arange(1, 10)[None]).logits, wanted)
    assert not torch.equal(model(**inputs).logits, wanted)


def test_token_types_may_be_one_row_for_all():
    model = build(ClozeBertModel, tiny_config(type_vocab_size=2))
    types = torch.tensor([[0] * 4 + [1] * 5])
    wanted = model(IDS, attention_mask=MASK, token_type_ids=types.expand(2, 9)).last_hidden_state
    assert torch.equal(model(IDS, attention_mask=MASK, token_type_ids=types).last_hidden_state, wanted)
    with pytest.raises(ValueError, match=r"token_type_ids of shape \(1, 8\) must be \(2, 9\), as the input"):
        model(IDS, token_type_ids=types[:, :8])


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_mask_in_its_extended_form_is_the_mask(implementation, pooling):
    """[B, 1, 1, T], boolean or added to the scores, as BERT takes it; windows and pooling included."""
    config = tiny_config(
        layer_types=["full_attention", "sliding_attention"], sliding_window=2, classifier_pooling=pooling, num_labels=3
    )
    model = build(ClozeBertForSequenceClassification, config)
    model.set_attn_implementation(implementation)
    wanted = model(IDS, attention_mask=MASK).logits
    seen = MASK.bool()[:, None, None]
    added = torch.zeros(seen.shape, dtype=wanted.dtype).masked_fill(~seen, torch.finfo(wanted.dtype).min)
    assert torch.equal(model(IDS, attention_mask=seen).logits, wanted)
    assert torch.equal(model(IDS, attention_mask=added).logits, wanted)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_dropout_is_off_where_its_modules_say_so(implementation):
    model = build(ClozeBertModel, tiny_config(attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.5)).train()
    model.set_attn_implementation(implementation)
    assert not torch.equal(model(IDS).last_hidden_state, model(IDS).last_hidden_state)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    assert torch.equal(model(IDS).last_hidden_state, model(IDS).last_hidden_state)


@pytest.mark.parametrize("form", ["rows", "long rows", "documents"])
def test_a_model_on_a_cpu_computes_there_whatever_the_default_device_is(form):
    """As beside `torch.set_default_device("cuda")`, for which the meta device stands here."""
    types = ["full_attention", "sliding_attention"]
    model = build(ClozeBertModel, tiny_config(layer_types=types, hidden_dropout_prob=0.1), dtype=torch.float32).train()
    ids = torch.as_tensor(random_ids(2, 40 if form == "long rows" else 9))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if form == "documents":
        inputs = {"input_ids": ids, "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])}
    torch.manual_seed(0)
    wanted = model(**inputs).last_hidden_state
    torch.manual_seed(0)
    with torch.device("meta"):
        found = model(**inputs).last_hidden_state
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("with_grad", [False, True])
def test_forward_mode_derivatives_of_long_rows_and_documents(documents, with_grad):
    """Under SDPA's own formula, as BERT's; rows so long that windows are computed in tiles otherwise."""
    types = ["full_attention", "sliding_attention"]
    model = build(ClozeBertModel, tiny_config(layer_types=types, attention_probs_dropout_prob=1e-9)).train()
    x, tangent = torch.randn(2, 1, 40, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inputs = {"position_ids": torch.cat([torch.arange(15), torch.arange(25)])[None]} if documents else {}
    with sdpa_kernel(SDPBackend.MATH), forward_ad.dual_level(), torch.set_grad_enabled(with_grad):
        dual = model(inputs_embeds=forward_ad.make_dual(x, tangent), **inputs).last_hidden_state
        found = forward_ad.unpack_dual(dual).tangent
    high, low = (model(inputs_embeds=x + step * tangent, **inputs).last_hidden_state for step in (1e-5, -1e-5))
    assert relative_error(found, (high - low).detach() / 2e-5) <= 1e-6


def test_a_stored_model_can_be_cut_to_its_first_layers(tmp_path):
    """As a native ModernBERT: AutoModel.from_pretrained(…, num_hidden_layers=2)."""
    types = ["full_attention", "sliding_attention", "sliding_attention"]
    whole = build(ClozeBertModel, tiny_config(num_hidden_layers=3, layer_types=types), dtype=torch.float32)
    whole.save_pretrained(tmp_path)
    cut = ClozeBertModel.from_pretrained(tmp_path, num_hidden_layers=2)
    assert cut.config.layer_types == types[:2]
    states = whole(IDS, output_hidden_states=True).hidden_states
    assert torch.equal(cut(IDS).last_hidden_state, cut.final_norm(states[2]))
    with pytest.raises(ValueError, match="layer_types names 3 layers, but num_hidden_layers=4"):
        ClozeBertModel.from_pretrained(tmp_path, num_hidden_layers=4)


HEAD_OF_A_USER = """
import torch
from clozebert import ClozeBertForSequenceClassification

class Tempered(ClozeBertForSequenceClassification):
    def __init__(self, config):
        super().__init__(config)
        self.temperature = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        outputs.logits = outputs.logits / self.temperature
        return outputs
"""


OPEN = """
import sys
import torch
from transformers import AutoModelForSequenceClassification

model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1], trust_remote_code=True)
print(type(model).__name__, model(torch.arange(5)[None] + 5).logits.tolist())
"""


def test_a_class_of_a_user_is_saved_with_its_code(python, tmp_path, monkeypatch):
    """As a subclass of BertForSequenceClassification is."""
    (tmp_path / "tempered_head.py").write_text(HEAD_OF_A_USER)
    monkeypatch.syspath_prepend(tmp_path)
    tempered = importlib.import_module("tempered_head").Tempered
    tempered.register_for_auto_class("AutoModelForSequenceClassification")
    model = build(tempered, tiny_config(num_labels=3)).float()
    model.save_pretrained(tmp_path / "saved")
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")}
    done = python.run(["-c", OPEN, tmp_path / "saved"], env=environment, cwd=tmp_path / "saved")
    assert done.returncode == 0, done.stderr
    name, _, logits = done.stdout.partition(" ")
    assert name == "Tempered"
    assert torch.allclose(torch.tensor(json.loads(logits)), model(torch.arange(5)[None] + 5).logits, atol=1e-5)


def test_a_class_of_ours_is_saved_without_a_second_copy_of_its_code(tmp_path):
    ClozeBertForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
    model = build(ClozeBertForSequenceClassification, tiny_config(num_labels=3))
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.glob("*.py")} == set(CODE_FILES)
    assert model.config.auto_map["AutoModelForSequenceClassification"].startswith("modeling_clozebert.")


def test_a_subclass_with_a_model_type_of_its_own(tmp_path):
    """It begins from a ClozeBERT and is saved as a model of its own: our code would refuse its configuration."""

    class OwnConfig(ClozeBertConfig):
        model_type = "own"

    class OwnModel(ClozeBertModel):
        config: OwnConfig
        config_class = OwnConfig

    parent = build(ClozeBertModel, tiny_config())
    parent.save_pretrained(tmp_path / "parent")
    model = OwnModel.from_pretrained(tmp_path / "parent")
    assert torch.equal(model(IDS).last_hidden_state, parent(IDS).last_hidden_state)
    model.save_pretrained(tmp_path / "own")
    assert sorted(path.name for path in (tmp_path / "own").iterdir()) == ["config.json", "model.safetensors"]
    saved = json.loads((tmp_path / "own/config.json").read_text())
    assert saved["model_type"] == "own"
    assert "auto_map" not in saved


def test_an_adapter_is_saved_without_the_code_of_a_model(tmp_path):
    peft = pytest.importorskip("peft", minversion=MIN_PEFT_VERSION)
    model = build(ClozeBertForMaskedLM, tiny_config(), dtype=torch.float32)
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj"]))
    model.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
