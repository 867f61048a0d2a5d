"""A model whose layers lie on several devices, as `device_map="auto"` spreads it."""

import pytest
import torch
from accelerate.utils import send_to_device
from encoder_cases import build, random_ids, tiny_config

from clozebert import ClozeBertForMaskedLM, ClozeBertForSequenceClassification

IDS = torch.as_tensor(random_ids(2, 9))
MASK = torch.ones_like(IDS)
MASK[1, 5:] = 0


@pytest.mark.parametrize("model_class", [ClozeBertForMaskedLM, ClozeBertForSequenceClassification])
@pytest.mark.parametrize("packed", [False, True])
def test_a_model_spread_over_two_devices(model_class, packed):
    """Accelerate moves what a module is given; what `forward` uses itself must follow. The second device: meta."""
    model = build(model_class, tiny_config(), dtype=torch.float32)

    def follow(module, args, kwargs):
        device = next(module.parameters()).device
        return send_to_device(args, device), send_to_device(kwargs, device)

    for module in [
        model.model.layers[-1],
        model.model.final_norm,
        model.head,
        getattr(model, "decoder", None) or model.classifier,
    ]:
        module.to("meta").register_forward_pre_hook(follow, with_kwargs=True)
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    if packed:
        inputs = {"input_ids": IDS[:1], "cu_seq_lens_q": torch.tensor([0, 4, 9], dtype=torch.int32)}
    per_token = model_class is ClozeBertForMaskedLM
    labels = inputs["input_ids"] if per_token else torch.tensor([0, 1])
    outputs = model(**inputs, labels=labels)
    assert outputs.loss.device.type == outputs.logits.device.type == "meta"
