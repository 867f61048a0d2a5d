"""What other programs do with a model, on every architecture: look at it, trace it, transform it, set its options."""

import copy
import json
import subprocess
import sys
import warnings

import pytest
import torch
from encoder_cases import build, gradients, random_ids, relative_error, tiny_config
from often import often
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functional_call, grad, vmap
from transformers import AutoConfig, AutoModelForMaskedLM

from clozebert import (
    ClozeBertConfig,
    ClozeBertForImageClassification,
    ClozeBertForMaskedLM,
    ClozeBertForQuestionAnswering,
    ClozeBertForSequenceClassification,
    ClozeBertForTokenClassification,
    ClozeBertModel,
)
from clozebert.configuration import ARCHITECTURES
from clozebert.configuration.named_architectures import every_third_full
from clozebert.modeling.embeddings import RotaryEmbedding

SMALL = {
    "hidden_size": 24, "num_attention_heads": 4, "intermediate_size": 37, "num_hidden_layers": 3, "num_labels": 3,
}  # fmt: skip
TEXT = [name for name in ARCHITECTURES if "image_size" not in ARCHITECTURES[name]]
IDS = torch.as_tensor(random_ids(2, 9))
MASK = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])


def small(name, **changes):
    """A named architecture, small."""
    values = {**SMALL, **changes}
    if "image_size" in ARCHITECTURES[name]:
        values |= {"image_size": 12, "patch_size": 4}
    else:
        values |= {"vocab_size": 53, "pad_token_id": 1, **dict.fromkeys(("bos_token_id", "eos_token_id"), 2)}
        values |= dict.fromkeys(("cls_token_id", "sep_token_id"), 2)
    if "layer_types" in ARCHITECTURES[name]:
        values["layer_types"] = every_third_full(3)
    return ClozeBertConfig.from_name(name, **values)


def make(name, head=None):
    """A model, and the inputs of a call."""
    config = small(name)
    if config.image_size is not None:
        model_class = ClozeBertModel if head is None else ClozeBertForImageClassification
        return build(model_class, config, dtype=torch.float32), {"pixel_values": torch.ones(2, 3, 12, 12)}
    model_class = ClozeBertModel if head is None else head
    return build(model_class, config, dtype=torch.float32), {"input_ids": IDS, "attention_mask": MASK}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_public_name_can_be_asked_for(name):
    """hasattr answers, whatever it is asked of; some programs ask it of all names of all modules."""
    for head in (None, ClozeBertForMaskedLM):
        model, _ = make(name, head)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for part in [model, model.config, *model.modules()]:
                for attribute in dir(part):
                    hasattr(part, attribute)
    assert hasattr(make("modernbert-base")[0].rotary_emb, "inv_freq") is False


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", often(ARCHITECTURES, 4))
def test_a_traced_model_gives_the_same(name):
    """With gradients switched on, and another batch through it than the one it was traced with."""
    model, inputs = make(name)
    names = list(inputs)

    class Positional(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *values):
            return self.model(**dict(zip(names, values, strict=True))).last_hidden_state

    traced = torch.jit.trace(Positional(), tuple(inputs.values()))
    other = {key: value.flip(0) for key, value in inputs.items()}
    with torch.no_grad():
        wanted = model(**other).last_hidden_state
        assert relative_error(traced(*other.values()), wanted.double()) <= 1e-5


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_traced_model_has_no_token_that_sees_nothing(monkeypatch):
    """Padding beyond every window: OpenVINO gave NaN for it, and for the whole row in the next layer."""
    seen = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def watched(*inputs, attn_mask=None, **options):
        if attn_mask is not None and torch.jit.is_tracing():
            seen.append(bool(attn_mask.any(-1).all()))
        return attention(*inputs, attn_mask=attn_mask, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    model = build(ClozeBertModel, small("modernbert-base", sliding_window=2), dtype=torch.float32)
    model.requires_grad_(False)
    mask = torch.tensor([[1] * 9, [1] + [0] * 8])
    wanted = model(IDS, attention_mask=mask).last_hidden_state
    traced = torch.jit.trace(lambda ids, mask: model(ids, attention_mask=mask).last_hidden_state, (IDS, mask))
    assert seen
    assert all(seen)
    found = traced(IDS, mask)
    assert relative_error(found[mask.bool()], wanted[mask.bool()].double()) <= 1e-5


@pytest.mark.parametrize("name", often(ARCHITECTURES, 4))
def test_an_exported_model_gives_the_same(name):
    model, inputs = make(name)
    exported = torch.export.export(model, (), inputs, strict=False).module()
    with torch.no_grad():
        assert relative_error(exported(**inputs).last_hidden_state, model(**inputs)[0].double()) <= 1e-5


@pytest.mark.parametrize("name", TEXT)
def test_gradients_by_function_transforms(name):
    """torch.func.grad is backward's gradient, and vmap over it is each example's own. Measured: 2e-6."""
    model, _ = make(name, ClozeBertForMaskedLM)
    parameters = dict(model.named_parameters())

    def loss(parameters, ids):
        return functional_call(model, parameters, (ids[None],), {"labels": ids[None]}).loss

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        each = vmap(grad(loss), (None, 0))(parameters, IDS)
        one = grad(loss)(parameters, IDS[1])
    wanted = gradients(loss(parameters, IDS[1]), model)
    largest = max(value.abs().max() for value in wanted.values())
    for key, value in wanted.items():
        assert (one[key] - value).abs().max() <= 1e-5 * largest, key
        assert (each[key][1] - value).abs().max() <= 1e-5 * largest, key


def test_forward_mode_derivatives():
    """A tangent is what finite differences give, rotary positions included. Measured: 2e-9."""
    model = build(ClozeBertForMaskedLM, tiny_config("eager", positions="rope"))
    x, tangent = torch.randn(2, 2, 9, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with forward_ad.dual_level():
        logits = model(inputs_embeds=forward_ad.make_dual(x, tangent), attention_mask=MASK).logits
        found = forward_ad.unpack_dual(logits).tangent
    high, low = (model(inputs_embeds=x + step * tangent, attention_mask=MASK).logits for step in (1e-5, -1e-5))
    assert relative_error(found, (high - low).detach() / 2e-5) <= 1e-6


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_without_memory_shows_the_shapes(name):
    """On the meta device, where programs count FLOPs. A mask is read by transformers there, so there is none."""
    model, inputs = make(name)
    inputs = {key: value.to("meta") for key, value in inputs.items() if key != "attention_mask"}
    shape = model.to("meta")(**inputs).last_hidden_state.shape
    assert shape == ((2, 10, 24) if "pixel_values" in inputs else (2, 9, 24))


def test_tables_of_rope_are_the_same_under_autocast():
    rope, positions = RotaryEmbedding(tiny_config(positions="rope")), torch.arange(500)[None]
    wanted = rope(torch.zeros(1, 500, 24), positions)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            found = rope(torch.zeros(1, 500, 24), positions)
        assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("length", [9, 32])  # 32: long enough for tiles, where a layer has a window
def test_fake_tensors_show_the_shapes(name, length):
    config = small(name)
    if config.sliding_window is not None:
        config.sliding_window = 4
    is_image = config.image_size is not None
    model = (ClozeBertForImageClassification if is_image else ClozeBertForMaskedLM)(config)
    with FakeTensorMode(allow_non_fake_inputs=True):
        if is_image:
            outputs = model(torch.zeros(2, 3, 12, 12), labels=torch.zeros(2).long())
        else:
            ids = torch.zeros(2, length, dtype=torch.long)
            outputs = model(ids, labels=ids)
    assert outputs.logits.shape == ((2, 3) if is_image else (2, length, 53))
    assert outputs.loss.shape == ()


@pytest.mark.parametrize(
    "head",
    [
        None,
        ClozeBertForMaskedLM,
        ClozeBertForSequenceClassification,
        ClozeBertForTokenClassification,
        ClozeBertForQuestionAnswering,
    ],
)
@pytest.mark.parametrize("by", ["config", "argument"])
def test_tuples_where_return_dict_is_false(head, by):
    model, inputs = make("bert-base", head)
    wanted = model(**inputs).to_tuple()
    if by == "config":
        model.config.return_dict = False
    found = model(**inputs, **({"return_dict": False} if by == "argument" else {}))
    assert type(found) is tuple
    assert len(found) == len(wanted)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


# Configurations ------------------------------------------------------------------------------------------------------

TYPOS = [
    ("position_embedding_type", "rop", "did you mean 'rope'"),
    ("norm_position", "sandwich", "must be one of post, pre"),
    ("norm_type", "rsmnorm", "did you mean 'rmsnorm'"),
    ("mlp_type", "gluu", "did you mean 'glu'"),
    ("classifier_pooling", "men", "did you mean 'mean'"),
    ("hidden_dropout_prob", 1.5, "must lie between 0 and 1"),
    ("num_hidden_layers", 0, "must be at least 1"),
    ("layer_types", ["sliding_atention"] * 2, "it may hold full_attention"),
    ("num_hidden_layers", 3, "layer_types names 2 layers"),
    ("hiden_size", 8, "did you mean 'hidden_size'"),
]


@pytest.mark.parametrize(("field", "value", "message"), TYPOS)
def test_an_override_is_checked_as_the_constructor_checks(field, value, message, tmp_path):
    config = tiny_config(layer_types=["full_attention", "sliding_attention"])
    ClozeBertForMaskedLM(config).save_pretrained(tmp_path)
    for load in (AutoConfig.from_pretrained, AutoModelForMaskedLM.from_pretrained):
        with pytest.raises(ValueError, match=message):
            load(tmp_path, **{field: value})


def test_a_value_is_checked_when_it_is_set():
    config = tiny_config()
    with pytest.raises(ValueError, match="norm_position='sandwich' must be one of post, pre"):
        config.norm_position = "sandwich"
    assert config.norm_position == "pre"
    config.layer_types = ["sliding_attention"] * 2
    config.sliding_window = None
    with pytest.raises(ValueError, match="sliding_window must be set"):
        ClozeBertModel(config)


@pytest.mark.parametrize("theta", [-10_000.0, 0.0])
def test_a_rotary_base_that_gives_no_angles(theta):
    with pytest.raises(ValueError, match=r"rope_theta=-?\d+\.0 must be a number above 0"):
        tiny_config(rope_parameters={"rope_type": "default", "rope_theta": theta})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": -1.0}},
            r"rope_theta=-1.0 must be a number above 0",
        ),
        ({"rope_parameters": {"rope_typ": "linear"}}, "did you mean 'rope_type'"),
        ({"rope_theta": 500.0}, r"rope_theta=500.0 cannot be set by itself: give rope_parameters"),
    ],
)
def test_rotary_overrides_are_checked(override, message, tmp_path):
    ClozeBertForMaskedLM(tiny_config(position_embedding_type="rope")).save_pretrained(tmp_path)
    for load in (AutoConfig.from_pretrained, AutoModelForMaskedLM.from_pretrained):
        with pytest.raises(ValueError, match=message):
            load(tmp_path, **override)


def test_rotary_overrides_are_completed(tmp_path):
    """Another base, or other layer types, as if they had been given to the constructor."""
    ClozeBertForMaskedLM(tiny_config(position_embedding_type="rope")).save_pretrained(tmp_path)
    base = AutoConfig.from_pretrained(tmp_path, rope_parameters={"rope_theta": 500.0})
    assert base.rope_parameters == {"rope_type": "default", "rope_theta": 500.0}
    layers = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4}
    model = AutoModelForMaskedLM.from_pretrained(tmp_path, **layers).eval()
    assert set(model.config.rope_parameters) == {"full_attention", "sliding_attention"}
    assert torch.isfinite(model(IDS).logits).all()


def test_keys_of_other_programs_are_kept(tmp_path):
    config = tiny_config()
    config.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    others = {"task_specific_params": {"ner": {"lang": "en"}}, "transformers.js_config": {"dtype": "q8"}, "our_team": 7}
    file.write_text(json.dumps({**json.loads(file.read_text()), **others, "hiden_act": "relu"}))
    with pytest.warns(UserWarning, match=r"hiden_act \(is hidden_act meant\?\)"):
        again = AutoConfig.from_pretrained(tmp_path)
    again.save_pretrained(tmp_path / "again")
    saved = json.loads((tmp_path / "again" / "config.json").read_text())
    assert {key: saved[key] for key in others} == others


def test_key_heads_are_a_number_and_follow_the_heads(tmp_path):
    config = tiny_config()
    assert config.num_key_value_heads == config.num_attention_heads == 4
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path, num_attention_heads=2).num_key_value_heads == 2
    tiny_config(num_key_value_heads=2).save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path, num_attention_heads=6).num_key_value_heads == 2


def test_an_older_transformers_is_named(tmp_path):
    """The code that travels with a checkpoint says what it needs, before an import fails for want of a name."""
    ClozeBertModel(tiny_config()).save_pretrained(tmp_path)
    code = (
        "import sys, types; old = types.ModuleType('transformers'); old.__version__ = '4.57.1'\n"
        f"sys.modules['transformers'] = old; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import configuration_clozebert"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "ImportError: the code of this model needs transformers 5.4 or newer, and 4.57.1 is installed" in done.stderr


# Inputs --------------------------------------------------------------------------------------------------------------


def test_token_types_that_a_model_has_not_are_left_out():
    """As native models without types do: a BERT tokenizer gives 1 to the second text of a pair."""
    model = build(ClozeBertModel, tiny_config())
    wanted = model(IDS).last_hidden_state
    assert torch.equal(model(IDS, token_type_ids=torch.ones_like(IDS)).last_hidden_state, wanted)


def test_positions_that_leave_some_out_are_of_one_document():
    """A document begins where positions restart, and not where they jump ahead."""
    model = build(ClozeBertModel, tiny_config(position_embedding_type="absolute"))
    positions = torch.tensor([[0, 1, 2, 5, 6, 8, 9, 10, 15]])
    wanted = model(IDS, attention_mask=torch.ones_like(IDS), position_ids=positions).last_hidden_state
    found = model(IDS, position_ids=positions).last_hidden_state
    assert relative_error(found, wanted) < 1e-12  # measured: 0


def test_a_mask_for_each_layer_type_needs_all_of_them():
    model = build(ClozeBertModel, tiny_config(layer_types=["full_attention", "sliding_attention"]))
    with pytest.raises(ValueError, match=r"with the keys 'full': .* full_attention, sliding_attention is missing"):
        model(IDS, attention_mask={"full": None})


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "attention"])
def test_an_empty_document_pools_to_the_same_whatever_stands_beside_it(pooling):
    model = build(ClozeBertForSequenceClassification, tiny_config(classifier_pooling=pooling))
    ids = torch.as_tensor(random_ids(1, 9))
    other = ids.clone()
    other[0, 4:] = torch.as_tensor(random_ids(5, seed=3))
    for bounds, empty in (([0, 4, 4, 9], 1), ([0, 4, 9, 9], 2), ([0, 0, 4, 9], 0)):
        cu_seq_lens = torch.tensor(bounds)
        first, second = (model(x, cu_seq_lens_q=cu_seq_lens).logits[empty] for x in (ids, other))
        assert torch.equal(first, second)
        assert torch.equal(first, model.classifier(model.head(torch.zeros(24, dtype=torch.float64))))


@pytest.mark.parametrize("layer_types", [None, ["full_attention", "sliding_attention"]])
def test_dynamic_rope_goes_by_the_length_of_each_document(layer_types):
    """Packed = padded = alone, to the bit of the tables, and alone as transformers' formula has it."""
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    config = tiny_config(max_position_embeddings=16, position_embedding_type="rope", rope_parameters=rope,
                         layer_types=layer_types)  # fmt: skip
    model = build(ClozeBertModel, config)
    short, long = torch.as_tensor(random_ids(1, 8)), torch.as_tensor(random_ids(1, 60, seed=1))
    alone = [model(ids).last_hidden_state[0] for ids in (short, long)]
    packed = model(torch.cat([short, long], 1), cu_seq_lens_q=torch.tensor([0, 8, 68])).last_hidden_state[0]
    rows = torch.cat([torch.nn.functional.pad(short, (0, 52)), long])
    mask = torch.tensor([[1] * 8 + [0] * 52, [1] * 60])
    padded = model(rows, attention_mask=mask).last_hidden_state
    for wanted, *found in zip(alone, packed.split([8, 60]), [padded[0, :8], padded[1]], strict=True):
        for one in found:
            torch.testing.assert_close(one, wanted, rtol=1e-10, atol=1e-12)
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if layer_types is None:
        wanted, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, torch.device("cpu"), seq_len=60)
        found, _ = model.rotary_emb.inverse_frequencies(None, torch.device("cpu"), torch.float32, torch.tensor([[60]]))
        torch.testing.assert_close(found[0, 0], wanted)


def test_dynamic_rope_of_one_pair_of_channels():
    """Its angle is the position at any base: theta^0 is 1."""
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    config = tiny_config(hidden_size=6, num_attention_heads=3, max_position_embeddings=4,
                         position_embedding_type="rope", rope_parameters=rope)  # fmt: skip
    cos_1TK, _ = build(ClozeBertModel, config).rotary_emb(
        torch.zeros(1, 9, 6, dtype=torch.double), torch.arange(9)[None]
    )
    torch.testing.assert_close(cos_1TK[0, :, 0], torch.arange(9).double().cos())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_dynamic_rope_counts_lengths_in_whole_numbers(dtype):
    """bf16 has 2,048 and then 2,064; 2,055 tokens are so many with a mask and without."""
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    config = tiny_config(max_position_embeddings=16, position_embedding_type="rope", rope_parameters=rope)
    model = build(ClozeBertModel, config, dtype=dtype)
    ids = torch.as_tensor(random_ids(1, 2055))
    tables = []
    model.layers[0].register_forward_pre_hook(
        lambda module, args, kwargs: tables.append(torch.stack(kwargs["position_embeddings"])), with_kwargs=True
    )
    with torch.no_grad():
        model(ids)
        model(ids, attention_mask=torch.ones_like(ids))
    assert torch.equal(tables[0], tables[1])


@pytest.mark.parametrize("head", [ClozeBertForSequenceClassification, ClozeBertForTokenClassification])
def test_labels_that_are_no_classes(head):
    model = build(head, tiny_config(problem_type="single_label_classification"))
    labels = torch.full((2,) if head is ClozeBertForSequenceClassification else (2, 9), 0.9)
    with pytest.raises(ValueError, match=r"labels of type torch.float32"):
        model(IDS, labels=labels)


@pytest.mark.parametrize("problem_type", ["regression", "multi_label_classification"])
def test_labels_of_a_transposed_shape_are_refused(problem_type):
    model = build(ClozeBertForSequenceClassification, tiny_config(problem_type=problem_type, num_labels=3))
    with pytest.raises(ValueError, match=r"labels of shape \(3, 2\) do not fit logits of shape \(2, 3\)"):
        model(IDS, labels=torch.zeros(3, 2))
    assert model(IDS, labels=torch.zeros(2, 3)).loss > 0


def test_answers_that_are_no_positions_and_answers_in_packed_rows():
    model = build(ClozeBertForQuestionAnswering, tiny_config())
    with pytest.raises(ValueError, match="must be whole numbers: each is the number of a class"):
        model(IDS, start_positions=torch.tensor([0.9, 1.0]), end_positions=torch.tensor([2, 3]))
    packed = {"input_ids": IDS[:1], "cu_seq_lens_q": torch.tensor([0, 4, 9])}
    assert model(**packed).start_logits.shape == (1, 9)
    with pytest.raises(ValueError, match="these rows are packed: give start_positions with padded rows"):
        model(**packed, start_positions=torch.tensor([1, 1]), end_positions=torch.tensor([2, 2]))


@pytest.mark.parametrize("reentrant", often([True, False]))
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_checkpointing_draws_the_dropout_that_it_drew(reentrant):
    """On long rows, where attention without a gradient works in blocks. Measured: 0 and 1e-13."""
    changes = {"attention_probs_dropout_prob": 0.3, "hidden_dropout_prob": 0.1, "mlp_dropout": 0.1}
    plain = build(ClozeBertForMaskedLM, tiny_config("sdpa", max_position_embeddings=1600, **changes)).train()
    again = copy.deepcopy(plain)
    again.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    again.enable_input_require_grads()
    ids = torch.as_tensor(random_ids(1, 1500))
    assert 4 * 1500**2 > 8.4e6
    for model in (plain, again):
        torch.manual_seed(9)
        model(ids, labels=ids).loss.backward()
    for one, other in zip(plain.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["lora", "tokens", "whole"])
def test_adapters_of_the_embeddings(kind):
    """New words of a domain are trained so; forward must not look for rows on whatever took the embedding's place."""
    peft = pytest.importorskip("peft")
    model = build(ClozeBertForMaskedLM, tiny_config(positions="absolute", type_vocab_size=2), dtype=torch.float32)
    if kind == "lora":
        config = peft.LoraConfig(r=2, target_modules=["word_embeddings", "token_type_embeddings"])
    elif kind == "tokens":
        config = peft.LoraConfig(r=2, target_modules=["q_proj"], trainable_token_indices={"word_embeddings": [5, 6]})
    else:
        config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["word_embeddings"])
    torch.nn.init.zeros_(model.decoder.bias)  # peft leaves the bias of a tied decoder out, of a native BERT too
    wanted = model(IDS).logits
    adapted = peft.get_peft_model(model, config)
    torch.testing.assert_close(adapted(IDS).logits, wanted)
    adapted(IDS, labels=IDS).loss.backward()
    trained = [name for name, parameter in adapted.named_parameters() if parameter.grad is not None]
    assert any("word_embeddings" in name for name in trained)


def test_pooling_packed_documents_needs_no_padding():
    """No tensor of a forward and backward pass has as many numbers as padded documents would have."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    largest = 0

    class Largest(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            sizes = [value.numel() for value in tree_leaves(result) if isinstance(value, torch.Tensor)]
            largest = max([largest, *sizes])
            return result

    lengths = [400] + [2] * 300
    padded = 24 * 400 * 301
    for pooling in ("cls", "mean", "max", "attention"):
        model = build(ClozeBertForSequenceClassification, tiny_config(classifier_pooling=pooling), dtype=torch.float32)
        ids = torch.as_tensor(random_ids(1, sum(lengths)))
        bounds = torch.tensor([0, *lengths]).cumsum(0)
        largest = 0
        with Largest():
            model(ids, cu_seq_lens_q=bounds, labels=torch.zeros(301, dtype=torch.long)).loss.backward()
        assert largest < padded / 4, pooling
