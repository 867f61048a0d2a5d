"""Sentence embeddings: `encode` packs texts of similar length, with no padding, and pools their vectors.

Models of transformers' own classes cannot read packed texts and get them padded.

Shapes: S sequences, T tokens of one of them, N tokens of a packed row, D hidden size.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import torch
from torch import nn
from transformers import PreTrainedModel

from .evaluation_mode import evaluation_mode
from .packed import Packed, batches_by_length
from .packed_view import cut_if_padding_is_read, fewer_if_eager, pad_rows

_TOKENS_ON_CPU, _TOKENS_ON_DEVICE = 4096, 131_072
_POOLINGS = ("mean", "cls", "max")


def encode(
    model: PreTrainedModel,
    tokenizer: Any,
    texts: Iterable[str],
    *,
    pooling: Literal["mean", "cls", "max"] | None = "mean",
    tokens_per_batch: int | None = None,
) -> torch.Tensor | list[torch.Tensor]:
    """Encode texts. Result `i` belongs to `texts[i]` and does not depend on the other texts.

    For bf16, load the model with `AutoModel.from_pretrained(…, dtype=torch.bfloat16)`.

    Args:
        model: any encoder that `AutoModel` loads; a ClozeBERT is faster. It keeps its training or evaluation mode.
        tokenizer: the model's; its special tokens are added.
        texts: of any lengths that the model takes. They are not truncated.
        pooling: `mean` or `max` over the text's tokens, special ones included, or `cls`, the first; None: all tokens.
        tokens_per_batch: of one packed row, or of a padded batch, padding included; None: what suits the device. A
            longer text gets a batch of its own.

    Returns:
        [S, D], or for `pooling=None` a list of S tensors [T, D]; in the model's type, on its device.

    Raises:
        ValueError: one text or a table instead of a list of texts, an item that is no string, an unknown pooling, a
            text longer than the model's learned positions, less than one token a batch, or a model with a head.
    """
    if isinstance(texts, str):
        raise ValueError(f"texts={texts[:40]!r} is one text: give a list of texts")
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):  # their items are names
        raise ValueError(f"texts is a {type(texts).__name__}: give one column of it")
    texts = list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"texts[{index}]={str(text)[:40]} is a {type(text).__name__} and not a string")
    ids = tokenizer(texts, add_special_tokens=True, verbose=False)["input_ids"] if texts else []
    return encode_ids(model, ids, pooling=pooling, tokens_per_batch=tokens_per_batch)


@torch.no_grad()
def encode_ids(
    model: PreTrainedModel,
    sequences: Sequence[Sequence[int]],
    *,
    pooling: Literal["mean", "cls", "max"] | None = "mean",
    tokens_per_batch: int | None = None,
) -> torch.Tensor | list[torch.Tensor]:
    """As `encode`, for token ids."""
    if pooling is not None and pooling not in _POOLINGS:
        raise ValueError(f"pooling={pooling!r} must be one of {', '.join(_POOLINGS)}, or None")
    if tokens_per_batch is not None and tokens_per_batch < 1:
        raise ValueError(f"tokens_per_batch={tokens_per_batch} must be at least 1, or None for what suits the device")
    lengths = [len(sequence) for sequence in sequences]
    if 0 in lengths:
        raise ValueError(f"sequence {lengths.index(0)} is empty: leave it out")
    _check_length(model, max(lengths, default=0))
    device = _device_of(model)
    most = _TOKENS_ON_CPU if device.type == "cpu" else _TOKENS_ON_DEVICE
    budget = tokens_per_batch or fewer_if_eager(model, most)
    results: list[Any] = [None] * len(sequences)
    # On a GPU a packed row may be padded too, in float32 for example, and all of it to one length.
    padded = device.type != "cpu" or not _is_packed(model)
    with evaluation_mode(model):
        batches = batches_by_length(lengths, budget, padded=padded)
        for batch in cut_if_padding_is_read(model, batches, lengths):
            for index, x_TD in zip(batch, _run(model, [sequences[index] for index in batch], device), strict=True):
                results[index] = _pool(x_TD, pooling)
    if pooling is None:
        return results
    nothing = torch.empty(0, model.config.hidden_size, dtype=model.dtype, device=device)
    return torch.stack(results) if results else nothing


def _device_of(model: PreTrainedModel) -> torch.device:
    """Where the model computes. Accelerate keeps offloaded weights on the meta device, and its hooks know better."""
    if model.device.type != "meta":
        return model.device
    hooks = (getattr(module, "_hf_hook", None) for module in model.modules())
    devices = (getattr(hook, "execution_device", None) for hook in hooks)
    return torch.device(next((device for device in devices if device is not None), model.device))


def _check_length(model: PreTrainedModel, longest: int) -> None:
    """Refuse a text for which a model of transformers has no position, if its table is called `position_embeddings`.

    A ClozeBERT checks what it is given itself.
    """
    if _is_packed(model):
        return
    for name, table in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(table, nn.Embedding):
            positions = table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
            if longest > positions:
                raise ValueError(
                    f"a text of {longest} tokens is longer than the model's {positions} positions: shorten or split it"
                )


def _is_packed(model: PreTrainedModel) -> bool:
    return model.config.model_type == "clozebert"


def _run(model: PreTrainedModel, sequences: Sequence[Sequence[int]], device: torch.device) -> Sequence[torch.Tensor]:
    """The last hidden states of some sequences, packed into one row or, for native models, padded; [T, D] each."""
    sizes = [len(sequence) for sequence in sequences]
    is_packed = _is_packed(model)
    if is_packed:
        ids_1N = torch.tensor([list(chain.from_iterable(sequences))], device=device)
        outputs = model(input_ids=ids_1N, packed=Packed.from_lengths(sizes, device), return_dict=True)
    else:
        rows = [torch.tensor(sequence, device=device) for sequence in sequences]
        outputs = model(**pad_rows(rows, model.config.pad_token_id or 0), return_dict=True)
    if "last_hidden_state" not in outputs:
        raise ValueError(
            "the model has a head, and would give its answers instead of vectors: load it with AutoModel, or give its "
            "base_model"
        )
    x_BTD = outputs.last_hidden_state
    return x_BTD[0].split(sizes) if is_packed else [x_TD[:size] for x_TD, size in zip(x_BTD, sizes, strict=True)]


def _pool(x_TD: torch.Tensor, pooling: str | None) -> torch.Tensor:
    if pooling is None:
        return x_TD.clone()
    if pooling == "cls":
        return x_TD[0].clone()
    if pooling == "max":
        return x_TD.amax(dim=0)
    # Summed in float32 or better: bf16 loses the small parts of a long sum.
    return x_TD.mean(dim=0, dtype=torch.promote_types(x_TD.dtype, torch.float32)).to(x_TD.dtype)


__all__ = ["encode", "encode_ids"]
