"""Tiny native models, whose sizes never coincide, and the inputs and comparisons that the tests of hub/ share."""

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from clozebert.hub.convert import tensor_names
from clozebert.hub.natives import NATIVE

LABELS = 5
_BERT = {
    "vocab_size": 47,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 29,
    "type_vocab_size": 3,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_NO_TYPES = {key: value for key, value in _BERT.items() if key != "type_vocab_size" and "dropout" not in key}
SIZES: dict[str, dict[str, Any]] = {
    "bert": _BERT,
    "roberta": {**_BERT, "max_position_embeddings": 31},
    # Windows of 2 on either side, so that a row of 11 tokens shows them.
    "modernbert": {**_NO_TYPES, **_IDS, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 4},
    "vit": {
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 37,
        "image_size": 21,
        "patch_size": 7,
        "num_channels": 2,
    },
    "distilbert": {
        "vocab_size": 47,
        "dim": 24,
        "n_layers": 3,
        "n_heads": 4,
        "hidden_dim": 37,
        "max_position_embeddings": 29,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "qa_dropout": 0.0,
        "seq_classif_dropout": 0.0,
    },
    "electra": {**_BERT, "embedding_size": 10, "summary_last_dropout": 0.0},
    "nomic_bert": _BERT,
    "eurobert": {
        **_NO_TYPES,
        **_IDS,
        "mask_token_id": 3,
        "num_key_value_heads": 2,
        "classifier_pooling": "bos",
    },
}
RELATIVES = ("xlm-roberta", "camembert")  # RoBERTas under other names
CLASSES = [
    (model_type, name)
    for model_type, architecture in NATIVE.items()
    if model_type not in RELATIVES
    for name in architecture.heads
]
CLASSES_OF_RELATIVES = [(model_type, name) for model_type in RELATIVES for name in NATIVE[model_type].heads]
# RoPE's frequencies are float32 in transformers whatever the model's type, and EuroBERT's norm is too.
FLOAT64_TOLERANCE = {"modernbert": 1e-5, "nomic_bert": 1e-5, "eurobert": 1e-5}
HAS_TYPES = {"bert", "roberta", "electra", "nomic_bert"}


def all_full_is_possible() -> bool:
    """Whether this transformers lets a ModernBERT have full attention only; 5.10 does not."""
    try:
        transformers.ModernBertConfig(num_hidden_layers=2, layer_types=["full_attention"] * 2)
    except Exception:
        return False
    return True


def make_native(model_type: str, class_name: str, *, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A native model with random weights in every tensor, biases, norms and padding rows included."""
    architecture = NATIVE[model_type]
    labels = 2 if class_name.endswith("QuestionAnswering") else LABELS
    sizes = SIZES["roberta" if model_type in RELATIVES else model_type]
    config = getattr(transformers, architecture.config_class)(**{**sizes, "num_labels": labels, **changes})
    torch.manual_seed(0)
    model = getattr(transformers, class_name)(config)
    if model_type in RELATIVES and class_name.endswith("MultipleChoice") and model.roberta.pooler is None:
        pytest.skip("this transformers builds it without the pooler that it reads; 5.10 does")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(torch.randn_like(parameter) * 0.2 + float(is_norm))
        parameters = dict(model.named_parameters(remove_duplicate=False))
        for tied, name in architecture.tied.items():  # a second bias, which an untied model never reads
            if name in parameters:
                parameters[tied].copy_(parameters[name])
    return model.to(dtype).eval()


def make_inputs(model_type: str, class_name: str, kind: str, *, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Inputs of 3 rows of 11 tokens (or of images): `plain`, `right`, `left`, `types`, `embeds`."""
    generator = torch.Generator().manual_seed(1)
    if model_type == "vit":
        size, channels = SIZES["vit"]["image_size"], SIZES["vit"]["num_channels"]
        return {"pixel_values": torch.randn(3, channels, size, size, generator=generator).to(dtype)}
    shape = (2, 3, 11) if class_name.endswith("MultipleChoice") else (3, 11)
    pad = 1 if NATIVE[model_type].prefix == "roberta" else 0
    ids = torch.randint(4, 47, shape, generator=generator)
    mask = torch.ones(shape, dtype=torch.long)
    if kind in ("right", "left", "embeds"):
        for row, length in enumerate((11, 6, 3)):
            padding = slice(length, None) if kind != "left" else slice(None, 11 - length)
            mask[..., row, padding] = 0
        ids = ids.masked_fill(mask == 0, pad)
    inputs: dict[str, Any] = {"input_ids": ids}
    if kind != "plain":
        inputs["attention_mask"] = mask
    if kind == "types":
        inputs["token_type_ids"] = torch.randint(0, 3, shape, generator=generator)
    if kind == "embeds":
        size = SIZES[model_type].get("embedding_size", 24)
        inputs["inputs_embeds"] = torch.randn(*shape, size, generator=generator).to(dtype)
        del inputs["input_ids"]
    return inputs


def run(model: nn.Module, inputs: dict[str, Any]) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """What a model says at tokens (not at padding), and its hidden states there; with gradients of both together."""
    model.zero_grad()
    outputs = model(**inputs, output_hidden_states=True)
    mask = inputs.get("attention_mask")
    flat_mask = None if mask is None else mask.flatten(0, -2)
    said = {}
    for name in ("logits", "start_logits", "end_logits", "last_hidden_state", "pooler_output"):
        value = outputs.get(name)
        if value is None:
            continue
        per_token = flat_mask is not None and value.shape[:2] == flat_mask.shape
        said[name] = value[flat_mask != 0] if per_token else value
    hidden = [state if flat_mask is None else state[flat_mask != 0] for state in outputs.hidden_states]
    generator = torch.Generator().manual_seed(2)
    total = sum(
        (value * torch.randn(value.shape, generator=generator).to(value.dtype)).sum()
        for value in [*said.values(), hidden[1]]
    )
    total.backward()
    return {name: value.detach() for name, value in said.items()}, [state.detach() for state in hidden]


def gradients(model_type: str, class_name: str, native: nn.Module, ours: nn.Module) -> dict[str, tuple[Any, Any]]:
    """For each native tensor: its gradient there, and ours brought into its layout."""
    theirs = dict(native.named_parameters(remove_duplicate=False))
    mine = dict(ours.named_parameters(remove_duplicate=False))
    pairs = {}
    for names, native_name in tensor_names(NATIVE[model_type], class_name, ours.state_dict()):
        parts = [mine[name].grad for name in names]
        if any(part is None for part in parts):
            assert theirs[native_name].grad is None, native_name
            continue
        pairs[native_name] = (theirs[native_name].grad, torch.cat(parts) if len(parts) > 1 else parts[0])
    return pairs


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference, relative to the size of the values where they exceed 1."""
    assert a.shape == b.shape
    a, b = a.detach(), b.detach()
    scale = max(1.0, float(a.abs().max())) if a.numel() else 1.0
    return float((a.double() - b.double()).abs().max()) / scale if a.numel() else 0.0
