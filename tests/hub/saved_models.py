"""Tiny saved models of every head, with a tokenizer, as a training run leaves them."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import clozebert

WORDS = ["the", "history", "of", "place", "is", "long", "river", "stone", *"abcdefghijklmnopqrstuvwxyz.,"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering",
         "ForMultipleChoice", "ForImageClassification")  # fmt: skip
# A block that no native architecture has.
SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 37,
    "max_position_embeddings": 41,
    "norm_type": "rmsnorm",
    "qk_norm": True,
    "classifier_pooling": "mean",
    "initializer_range": 0.2,
}


def make_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=41,
    )


def make_model(head: str = "ForMaskedLM", *, seed: int = 0, name: str | None = None, **changes: Any) -> Any:
    """A model with random weights in every tensor; `name`: a named architecture, shrunk."""
    sizes = {"vocab_size": len(WORDS) + len(SPECIAL), "num_labels": 3, **SIZES, **changes}
    if name is not None:
        for knob in ("norm_type", "qk_norm", "classifier_pooling"):
            if knob not in changes:
                sizes.pop(knob, None)
        if name.startswith("modernbert"):
            ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
            sizes.update(ids, layer_types=["full_attention", "sliding_attention"])
        config = clozebert.ClozeBertConfig.from_name(name, **sizes)
    elif head == "ForImageClassification":
        config = clozebert.ClozeBertConfig(
            **sizes, image_size=14, patch_size=7, num_channels=3, position_embedding_type="absolute"
        )
    else:
        config = clozebert.ClozeBertConfig(**sizes)
    torch.manual_seed(seed)
    model = getattr(clozebert, f"ClozeBert{head}")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def save(directory: Path, head: str = "ForMaskedLM", **options: Any) -> Path:
    """A folder with the model and its tokenizer."""
    make_model(head, **options).save_pretrained(directory)
    if head != "ForImageClassification":
        make_tokenizer().save_pretrained(directory)
    return directory
