"""Native models at the edges of conversion: ids that they have no field for, and mistakes."""

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel

from clozebert import ClozeBertModel
from clozebert.hub import from_native, to_native
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
