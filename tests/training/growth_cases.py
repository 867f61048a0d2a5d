"""Small models of several kinds, for the tests of growing."""

import torch

from clozebert import ClozeBertConfig, ClozeBertForMaskedLM

SMALL = {
    "vocab_size": 47,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 29,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
    "cls_token_id": 2,
    "sep_token_id": 3,
    "mask_token_id": 4,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
WINDOWED = {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "sliding_window": 2}
DOCUMENTS = [[2, 10, 11, 12, 13, 3], [2, 30, 31, 5, 3], [2, 44, 3]]
KINDS = {
    "bert": ("bert-base", {}),
    "roberta": ("roberta-base", {"position_offset": 1}),
    "modernbert": ("modernbert-base", WINDOWED),
    "electra": ("bert-base", {"embedding_size": 10}),
    "untied": ("bert-base", {"tie_word_embeddings": False}),
    "rmsnorm": ("bert-base", {"norm_position": "pre", "norm_type": "rmsnorm", "qk_norm": True, "mlp_type": "glu",
                              "num_key_value_heads": 2, "position_embedding_type": "rope"}),
}  # fmt: skip


def make(kind="bert", **changes):
    name, more = KINDS[kind]
    torch.manual_seed(0)
    config = ClozeBertConfig.from_name(name, **{**SMALL, **more, "initializer_range": 0.2, **changes})
    model = ClozeBertForMaskedLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def logits(model, length=9):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 47, (2, length), generator=generator)
    return model(input_ids=ids).logits
