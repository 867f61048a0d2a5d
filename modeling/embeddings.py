# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""Embeddings of tokens, positions (learned, sinusoidal, cosines and sines of RoPE) and image patches.

Shapes: B rows, T tokens of a row (packed: B = 1 and all documents in one row), D hidden size, E embedding size, K head
size.
"""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import logging

from ..configuration.configuration_clozebert import ClozeBertConfig
from .blocks import make_norm
from .fast_paths import Dropout, is_autocast, values_of
from .inputs import check_ids
from .packed import Packed

logger = logging.get_logger(__name__)


class TextEmbeddings(nn.Module):
    """Sum of token, token-type and (learned or sinusoidal) position embeddings; then norm, dropout, projection to D."""

    def __init__(self, config: ClozeBertConfig):
        super().__init__()
        size = config.embedding_size or config.hidden_size
        if config.pad_token_id is not None and not 0 <= config.pad_token_id < config.vocab_size:
            last = config.vocab_size - 1
            raise ValueError(f"pad_token_id={config.pad_token_id} must lie between 0 and vocab_size - 1 = {last}")
        self.config = config
        self.size = size
        self.pad_token_id: Any = config.pad_token_id
        self.counts_tokens = config.position_rule == "non_pad"
        self.word_embeddings = nn.Embedding(config.vocab_size, size, padding_idx=config.pad_token_id)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, size) if config.type_vocab_size else None
        adds_positions = config.position_embedding_type in ("absolute", "sinusoidal")
        self.positions = PositionEmbeddings(config, size) if adds_positions else None
        self.norm = make_norm(config, size) if config.embedding_norm else None
        self.dropout = Dropout(
            config.hidden_dropout_prob if config.embedding_dropout is None else config.embedding_dropout
        )
        self.projection = nn.Linear(size, config.hidden_size) if size != config.hidden_size else None

    def forward(
        self,
        input_ids: torch.Tensor | None,
        *,
        inputs_embeds: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Shape: ids [B, T] or inputs_embeds [B, T, E], types and positions from 0 [B or 1, T] -> [B, T, D]."""
        if inputs_embeds is None:
            assert input_ids is not None
            # An adapter that has replaced the table may not tell its number of rows.
            rows = getattr(self.word_embeddings, "num_embeddings", None) or self.config.vocab_size
            check_ids(input_ids, rows, name="input_ids", limit="vocab_size")
            inputs_embeds = self.word_embeddings(input_ids)
        elif inputs_embeds.shape[-1] != self.size:
            raise ValueError(
                f"inputs_embeds of shape {tuple(inputs_embeds.shape)} must be [batch, length, {self.size}], the "
                f"embeddings' size"
            )
        else:
            self._check_type(inputs_embeds)
        x_BTE = inputs_embeds
        if self.token_type_embeddings is not None:
            if token_type_ids is None:
                token_type_ids = torch.zeros(x_BTE.shape[:2], dtype=torch.long, device=x_BTE.device)
            types = getattr(self.token_type_embeddings, "num_embeddings", None) or self.config.type_vocab_size
            check_ids(token_type_ids, types, name="token_type_ids", limit="type_vocab_size")
            x_BTE = x_BTE + self.token_type_embeddings(token_type_ids)
        elif token_type_ids is not None and token_type_ids.device.type == "cpu" and values_of(token_type_ids.any()):
            logger.warning_once("token_type_ids have no effect: this model has no token types (type_vocab_size=0)")
        if self.positions is not None:
            counted = self.count_positions(input_ids, x_BTE) if position_ids is None else position_ids
            x_BTE = self.positions(x_BTE, counted)
        if self.norm is not None:
            x_BTE = self.norm(x_BTE)
        x_BTE = self.dropout(x_BTE)
        return x_BTE if self.projection is None else self.projection(x_BTE)

    def _check_type(self, inputs_embeds: torch.Tensor) -> None:
        """Refuse embeddings of another type than the weights, except under autocast, which converts them."""
        weight = getattr(self.word_embeddings, "weight", None)
        ours = getattr(weight, "dtype", torch.float32)
        if inputs_embeds.dtype == ours or not ours.is_floating_point:
            return
        if not inputs_embeds.is_floating_point() or not is_autocast(inputs_embeds):
            raise ValueError(
                f"inputs_embeds are {inputs_embeds.dtype}, the model's weights {ours}: give them as {ours}"
            )

    def count_positions(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """Positions [B or 1, T] from 0. Rule `row` counts columns; rule `non_pad` counts tokens that are not padding.

        Under `non_pad` padding tokens are at position -1, the row before the first; without ids all tokens count.
        """
        if input_ids is None or not self.counts_tokens:
            given = input_ids if input_ids is not None else inputs_embeds
            assert given is not None
            return torch.arange(given.shape[1], device=given.device).unsqueeze(0)
        is_token_BT = input_ids.ne(self.pad_token_id).long()
        return is_token_BT.cumsum(dim=1) * is_token_BT - 1


class PositionEmbeddings(nn.Module):
    """Adds a learned or a sinusoidal vector for each position.

    Sinusoidal (Vaswani et al. 2017): PE(p, 2i) = sin(p / 10000^(2i/E)), PE(p, 2i+1) = cos(p / 10000^(2i/E)).
    """

    def __init__(self, config: ClozeBertConfig, size: int):
        super().__init__()
        self.offset = config.position_offset
        self.num_rows = config.max_position_embeddings + self.offset
        self.table = None
        if config.position_embedding_type == "absolute":
            # The row of padding tokens stays zero, as in RoBERTa.
            padding_idx = self.offset - 1 if config.position_rule == "non_pad" and self.offset else None
            self.table = nn.Embedding(self.num_rows, size, padding_idx=padding_idx)

    def forward(self, x_BTE: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Shape: [B, T, E], positions [B or 1, T] -> [B, T, E]."""
        if self.table is None:
            return x_BTE + sinusoidal_positions(position_ids, x_BTE.shape[-1]).to(x_BTE.dtype)
        rows = position_ids + self.offset
        known = getattr(self.table, "num_embeddings", None) or self.num_rows
        check_ids(rows, known, name="position_ids", limit="max_position_embeddings")
        return x_BTE + self.table(rows)


class ImageEmbeddings(nn.Module):
    """Embeddings of ViT (Dosovitskiy et al. 2020): a class token, then the patches, with positions.

    For another image size, learned positions are interpolated (bicubic) and sinusoidal ones are computed.
    """

    def __init__(self, config: ClozeBertConfig):
        super().__init__()
        assert config.image_size is not None
        assert config.patch_size is not None
        if config.image_size % config.patch_size:
            raise ValueError(f"image_size={config.image_size} must be a multiple of patch_size={config.patch_size}")
        self.patch_size = config.patch_size
        self.num_channels = config.num_channels
        self.side = config.image_size // config.patch_size
        self.projection = nn.Conv2d(
            config.num_channels, config.hidden_size, kernel_size=config.patch_size, stride=config.patch_size
        )
        self.class_token = nn.Parameter(torch.zeros(1, 1, config.hidden_size))
        self.kind = config.position_embedding_type
        self.table = None
        if self.kind == "absolute":
            self.table = nn.Parameter(torch.zeros(1, self.side**2 + 1, config.hidden_size))
        self.norm = make_norm(config, config.hidden_size) if config.embedding_norm else None
        self.dropout = Dropout(
            config.hidden_dropout_prob if config.embedding_dropout is None else config.embedding_dropout
        )

    def shape_of(self, pixel_values: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Size:
        """The shape [B, 1 + patches] of the tokens of pixels [B, channels, height, width], or of the embeddings.

        Raises:
            ValueError: not exactly one input, one with a wrong number of dimensions or channels, an empty batch, or
                sides that are not multiples of the patch size.
        """
        if (pixel_values is None) == (inputs_embeds is None):
            raise ValueError("this is an image model (image_size is set): give one of pixel_values and inputs_embeds")
        if inputs_embeds is not None:
            if inputs_embeds.dim() != 3:
                raise ValueError(f"inputs_embeds of shape {tuple(inputs_embeds.shape)} must be [batch, length, size]")
            return inputs_embeds.shape[:2]
        assert pixel_values is not None
        if pixel_values.dim() != 4 or pixel_values.shape[1] != self.num_channels:
            raise ValueError(
                f"pixel_values of shape {tuple(pixel_values.shape)} must be [batch, {self.num_channels}, height, width]"
            )
        if not torch.compiler.is_compiling() and 0 in pixel_values.shape:
            raise ValueError(
                f"pixel_values of shape {tuple(pixel_values.shape)} hold no image: leave an empty batch out"
            )
        rows, columns = (side // self.patch_size for side in pixel_values.shape[2:])
        if (rows * self.patch_size, columns * self.patch_size) != tuple(pixel_values.shape[2:]):
            raise ValueError(
                f"pixel_values of height and width {tuple(pixel_values.shape[2:])} must be multiples of "
                f"patch_size={self.patch_size}"
            )
        return torch.Size((pixel_values.shape[0], 1 + rows * columns))

    def forward(
        self, pixel_values: torch.Tensor | None, *, inputs_embeds: torch.Tensor | None = None, **kwargs: Any
    ) -> torch.Tensor:
        """Shape: [B, channels, height, width] -> [B, 1 + patches, D]. `inputs_embeds` are returned unchanged."""
        if inputs_embeds is not None:
            return inputs_embeds
        assert pixel_values is not None
        rows, columns = (side // self.patch_size for side in pixel_values.shape[2:])
        x_BTD = self.projection(pixel_values.to(self.projection.weight.dtype)).flatten(2).transpose(1, 2)
        x_BTD = torch.cat([self.class_token.expand(x_BTD.shape[0], -1, -1), x_BTD], dim=1)
        positions = self.position_table(rows, columns, x_BTD)
        if positions is not None:
            x_BTD = x_BTD + positions
        if self.norm is not None:
            x_BTD = self.norm(x_BTD)
        return self.dropout(x_BTD)

    def position_table(self, rows: int, columns: int, like: torch.Tensor) -> torch.Tensor | None:
        """Positions [1, 1 + rows * columns, D] for a grid of patches, or None."""
        if self.kind == "sinusoidal":
            return sinusoidal_grid(rows, columns, like.shape[-1], like.device).to(like.dtype)
        if self.table is None or (rows, columns) == (self.side, self.side):
            return self.table
        size = like.shape[-1]
        grid = self.table[:, 1:].reshape(1, self.side, self.side, size).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, size=(rows, columns), mode="bicubic", align_corners=False)
        return torch.cat([self.table[:, :1], grid.permute(0, 2, 3, 1).reshape(1, rows * columns, size)], dim=1)


class RotaryEmbedding(nn.Module):
    """Cosines and sines of RoPE (Su et al. 2021): angle(p, i) = p * theta^(-2i/K) for pair i of a head's K channels.

    Channel i is paired with channel i + K/2, as in transformers. There are no buffers: a table has a few thousand
    numbers, so each forward computes it, and nothing can be lost in loading, casting or moving a model.

    Under `dynamic` (NTK-aware scaling) theta grows with the length of a sequence beyond max_position_embeddings. Each
    row, or each packed document, has its own length, so other sequences of the batch change nothing.
    """

    def __init__(self, config: ClozeBertConfig):
        super().__init__()
        self.config = config
        self.head_size = config.hidden_size // config.num_attention_heads
        if self.head_size % 2:
            raise ValueError(f"rope needs an even head size, but hidden_size / num_attention_heads = {self.head_size}")

    @property
    def inv_freq(self) -> torch.Tensor:
        """The K/2 inverse frequencies theta^(-2i/K) at max_position_embeddings, if all layers share them."""
        if "rope_type" not in (self.config.rope_parameters or {}):
            raise AttributeError("inv_freq: each layer type has frequencies of its own")
        lengths = torch.tensor([[self.config.max_position_embeddings]])
        return self.inverse_frequencies(None, torch.device("cpu"), torch.float32, lengths)[0].flatten()

    def inverse_frequencies(
        self, layer_type: str | None, device: torch.device, dtype: torch.dtype, lengths_BT: torch.Tensor | None
    ) -> tuple[torch.Tensor, float]:
        """The frequencies [K/2], or [B or 1, T, K/2] if they depend on the length of each token's sequence, and the
        factor on cosines and sines.
        """
        parameters = self.config.rope_parameters
        assert parameters is not None
        layer_type = layer_type if layer_type in parameters else None
        parameters = parameters if layer_type is None else parameters[layer_type]
        kind, theta, size = parameters["rope_type"], parameters["rope_theta"], self.head_size
        if kind not in ("default", "linear", "dynamic"):
            frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](self.config, device, layer_type=layer_type)
            return frequencies.to(device, dtype), scaling
        exponents = torch.arange(0, size, 2, device=device, dtype=dtype) / size
        if kind == "dynamic":
            assert lengths_BT is not None
            longest, factor = self.config.max_position_embeddings, parameters["factor"]
            beyond_BT1 = lengths_BT.to(device, dtype).clamp(min=longest).unsqueeze(-1) / longest
            theta = theta * (factor * beyond_BT1 - (factor - 1)) ** (size / max(size - 2, 1))
        # Computed here, because transformers' own functions only compute in float32.
        frequencies = 1.0 / theta**exponents
        return (frequencies / parameters["factor"] if kind == "linear" else frequencies), 1.0

    def _lengths(
        self, x_BTD: torch.Tensor, position_ids: torch.Tensor, packed: Packed | None, mask_BT: torch.Tensor | None
    ) -> torch.Tensor:
        """The length of each token's sequence, [B or 1, T]."""
        if packed is not None:
            return packed.lengths_of_tokens(x_BTD.shape[:2])
        if mask_BT is not None:
            return (mask_BT != 0).sum(dim=1, keepdim=True).expand(mask_BT.shape)
        length = position_ids.shape[1]
        return position_ids.new_full((1, length), length)

    @torch.no_grad()
    def forward(
        self,
        x_BTD: torch.Tensor,
        position_ids: torch.Tensor,
        layer_type: str | None = None,
        packed: Packed | None = None,
        mask_BT: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Shape: position_ids [B or 1, T] -> cosines and sines, each [B or 1, T, K] in x's type.

        The documents, or else the mask of tokens, tell how long sequences are; without them, all rows are full.
        """
        parameters, lengths_BT = self.config.rope_parameters, None
        assert parameters is not None
        if parameters.get(layer_type, parameters)["rope_type"] == "dynamic":
            lengths_BT = self._lengths(x_BTD, position_ids, packed, mask_BT)
        # In float32 even for half-precision models: bf16 angles are off by whole turns after a few hundred tokens.
        dtype = torch.float64 if x_BTD.dtype == torch.float64 else torch.float32
        frequencies, scaling = self.inverse_frequencies(layer_type, x_BTD.device, dtype, lengths_BT)
        # Autocast does not change the type of elementwise products, cosines and sines.
        angles_BTK = (position_ids[..., None].to(dtype) * frequencies).repeat(1, 1, 2)
        return (angles_BTK.cos() * scaling).to(x_BTD.dtype), (angles_BTK.sin() * scaling).to(x_BTD.dtype)


def sinusoidal_positions(position_ids: torch.Tensor, size: int) -> torch.Tensor:
    """Sinusoidal positions, [B, T] -> [B, T, size], in float64 if the device has it, so that they are rounded once."""
    dtype = torch.float32 if position_ids.device.type == "mps" else torch.float64
    frequencies = torch.exp(
        torch.arange(0, size, 2, device=position_ids.device, dtype=dtype) * (-math.log(10_000.0) / size)
    )
    angles = position_ids[..., None].to(dtype) * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :size]


def sinusoidal_grid(rows: int, columns: int, size: int, device: torch.device) -> torch.Tensor:
    """2-D sinusoidal positions [1, 1 + rows * columns, size]: half the channels for the row, half for the column.

    The class token's vector is zero.
    """
    half = size // 2
    row_codes = sinusoidal_positions(torch.arange(rows, device=device), half)
    column_codes = sinusoidal_positions(torch.arange(columns, device=device), size - half)
    grid = torch.cat(
        [
            row_codes[:, None].expand(rows, columns, half),
            column_codes[None].expand(rows, columns, size - half),
        ],
        dim=-1,
    )
    return torch.cat([grid.new_zeros(1, 1, size), grid.reshape(1, rows * columns, size)], dim=1)


__all__ = ["ImageEmbeddings", "RotaryEmbedding", "TextEmbeddings"]
