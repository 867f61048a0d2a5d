"""Native models at the edges of conversion: ids that they have no field for, and mistakes."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    NomicBertConfig,
    NomicBertModel,
    PreTrainedConfig,
    PreTrainedModel,
    ViTConfig,
    ViTModel,
)

from clozebert import ClozeBertForMaskedLM, ClozeBertModel
from clozebert.hub import from_native, to_native
from clozebert.hub.convert import convert_folder
from clozebert.utils.errors import UserError


@pytest.fixture
def config():
    return BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)


def test_ids_that_the_native_configuration_has_no_field_for_come_along(config):
    config.mask_token_id, config.cls_token_id = 7, 2
    ours = from_native(BertForMaskedLM(config))
    assert (ours.config.mask_token_id, ours.config.cls_token_id, ours.config.sep_token_id) == (7, 2, None)
    back = to_native(ours).config
    assert (back.mask_token_id, back.cls_token_id) == (7, 2)
    ours.config.mask_token_id = 8
    assert to_native(ours).config.mask_token_id == 8


def test_what_a_cross_encoder_does_with_the_outputs_comes_along(config):
    assert not hasattr(from_native(BertForMaskedLM(config)).config, "sentence_transformers")
    config.sentence_transformers, config.num_labels = {"activation_fn": "torch.nn.modules.linear.Identity"}, 1
    ours = from_native(BertForSequenceClassification(config))
    assert ours.config.sentence_transformers == config.sentence_transformers
    assert to_native(ours).config.sentence_transformers == config.sentence_transformers
    assert type(ours.config).from_dict(ours.config.to_dict()).sentence_transformers == config.sentence_transformers


def test_a_native_model_is_native_already(config):
    with pytest.raises(UserError, match="BertModel is one of transformers' own models already"):
        to_native(BertModel(config))


def test_a_native_folder_does_not_open_as_ours(config, tmp_path):
    BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="of a bert model: open it with AutoModel, or as a ClozeBERT with"):
        ClozeBertModel.from_pretrained(tmp_path)


def test_a_mask_is_a_tensor(config):
    ours = from_native(BertModel(config))
    with pytest.raises(ValueError, match="attention_mask is a list; give a tensor"):
        ours(torch.tensor([[5, 6]]), attention_mask=[[1, 1]])


IDS = torch.tensor([[5, 6, 7, 1]])


def save_with_own_decoder(model, folder, name):
    """A checkpoint whose decoder is not its embeddings, although its configuration says so."""
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = torch.randn(99, 32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return type(model).from_pretrained(folder).eval()


def test_a_decoder_of_its_own_is_kept(config, tmp_path):
    native = save_with_own_decoder(BertForMaskedLM(config), tmp_path / "bert", "cls.predictions.decoder.weight")
    assert native.config.tie_word_embeddings
    wanted = native(IDS).logits
    convert_folder(tmp_path / "bert", tmp_path / "ours", to="clozebert")
    convert_folder(tmp_path / "ours", tmp_path / "back", to="native")
    found = [
        from_native(native),
        from_native(tmp_path / "bert"),
        ClozeBertForMaskedLM.from_pretrained(tmp_path / "ours"),
    ]
    found += [BertForMaskedLM.from_pretrained(tmp_path / "back")]
    for model in found:
        assert torch.equal(model.eval()(IDS).logits, wanted)
        assert not model.config.tie_word_embeddings
    ours = save_with_own_decoder(from_native(BertForMaskedLM(config)), tmp_path / "other", "decoder.weight")
    assert torch.equal(to_native(ours).eval()(IDS).logits, ours(IDS).logits)


def test_a_model_with_other_tensors_than_its_class_makes_is_refused(config):
    def with_more(model, layer):
        layer.adapter = nn.Linear(2, 2)
        return model

    native = BertModel(config)
    with pytest.raises(UserError, match=r"also has encoder.layer.0.adapter.bias, .*an adapter has to be merged"):
        from_native(with_more(native, native.encoder.layer[0]))
    ours = from_native(BertModel(config))
    with pytest.raises(UserError, match=r"also has layers.0.adapter.bias"):
        to_native(with_more(ours, ours.layers[0]))
    with_buffer = BertModel(config)
    with_buffer.register_buffer("seen", torch.zeros(1))
    from_native(with_buffer)  # a buffer of a user computes nothing that its class does not
    cut = BertModel(config)
    cut.encoder.layer = cut.encoder.layer[:0]
    with pytest.raises(UserError, match=r"the model lacks encoder.layer.0.attention"):
        from_native(cut)


def test_a_model_without_values_converts(config):
    assert from_native(BertForMaskedLM(config).to("meta")).config.tie_word_embeddings


def test_a_vit_with_a_mask_token_converts():
    config = ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, image_size=8,
                       patch_size=4)  # fmt: skip
    native, pixels = ViTModel(config, use_mask_token=True).eval(), torch.randn(1, 3, 8, 8)
    found = from_native(native).eval()(pixel_values=pixels).last_hidden_state
    torch.testing.assert_close(found, native(pixels).last_hidden_state, rtol=0, atol=1e-5)


def test_rotary_positions_that_grow_with_a_batch_are_not_quite_the_same(caplog):
    shape = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1000.0}
    config = NomicBertConfig(**shape, intermediate_size=64, max_position_embeddings=16, rope_parameters=rope)
    native = NomicBertModel(config).eval()
    ours = from_native(native).eval()
    assert "the shorter rows of a batch differ" in caplog.text
    ids = torch.arange(24)[None] % 90
    # Its own token types end at 16 positions in older releases.
    wanted = native(ids, token_type_ids=torch.zeros_like(ids)).last_hidden_state
    assert torch.allclose(ours(ids).last_hidden_state, wanted, atol=1e-5)


class Within(PreTrainedModel):
    """A model of a user's own around an encoder: `post_init` initialises what has no values yet."""

    config_class = PreTrainedConfig

    def __init__(self, config, encoder):
        super().__init__(config)
        self.encoder = encoder
        self.scorer = nn.Linear(32, 1)
        self.post_init()


@pytest.mark.parametrize("direction", ["ours", "native"])
def test_a_converted_model_keeps_its_weights_within_another(config, direction):
    encoder = from_native(BertModel(config))
    encoder = to_native(encoder) if direction == "native" else encoder
    wanted = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    found = Within(PreTrainedConfig(), encoder).encoder.state_dict()
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []
