"""The model that a run starts from: its configuration, its special tokens, random or loaded weights."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedTokenizerFast

from ...configuration import ClozeBertConfig
from ...corpus import Corpus
from ...modeling import ClozeBertForMaskedLM
from ...utils.answers import answer_by_name
from ...utils.errors import UserError, as_user_errors
from ...utils.files import hash_model
from ...utils.progress_bar import without_progress_bars
from ...utils.untrusted import check_model_folder
from ...utils.wording import counted

_MODEL_FILES = ["config.json", "model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json"]
# The keys under which `from_pretrained` reports weights that it did not load unchanged.
_REPORTED = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")


def load_configuration(name_or_path: str, *, flag: str = "model_name_or_path") -> ClozeBertConfig:
    """The configuration of a ClozeBERT model.

    Args:
        flag: the flag that names it, for messages.

    Raises:
        ValueError: it is a model of another kind.
    """
    check_model_folder(name_or_path)
    # Libraries raise all kinds of exceptions for malformed files.
    with as_user_errors(Exception, about=f"{flag}={name_or_path!r}"):
        config = AutoConfig.from_pretrained(name_or_path, trust_remote_code=False)
    if config.model_type != "clozebert":
        raise UserError(
            f"{flag}={name_or_path!r} is a {config.model_type} model: convert it first with "
            f"clozebert convert --input {name_or_path} --output_dir FOLDER --to clozebert"
        )
    answer_by_name(config)
    return config


def fingerprint_of_model(name_or_path: str, *, flag: str) -> str:
    """A hash of a model's configuration and weights, wherever it lies; a model on the Hub is downloaded.

    Args:
        flag: the flag that names it, for messages.
    """
    folder = Path(name_or_path)
    if not folder.is_dir():
        with as_user_errors(Exception, about=f"{flag}={name_or_path!r}"):
            folder = Path(snapshot_download(name_or_path, allow_patterns=_MODEL_FILES))
    return hashlib.sha256(json.dumps(hash_model(folder)).encode()).hexdigest()


def padded_vocabulary(tokens: int) -> int:
    """The size of the model's vocabulary: that of the tokenizer, rounded up to a multiple of 64 for fast matmuls."""
    return -(-tokens // 64) * 64


SPECIAL_TOKEN_IDS = ("pad_token_id", "cls_token_id", "sep_token_id", "mask_token_id", "bos_token_id", "eos_token_id")


def set_token_ids(config: ClozeBertConfig, tokenizer: PreTrainedTokenizerFast | Corpus) -> None:
    """Set the special tokens of the configuration to the tokenizer's, whatever the architecture has.

    Instead of the tokenizer, a corpus that was prepared with it will do.
    """
    had_ends = config.bos_token_id is not None
    # RoBERTa's positions begin in the row after the padding id; otherwise a model cannot be exported as a RoBERTa.
    follows_padding = config.position_offset == (config.pad_token_id or 0) + 1
    for name in SPECIAL_TOKEN_IDS:
        setattr(config, name, getattr(tokenizer, name, None))
    if had_ends and config.bos_token_id is None:
        config.bos_token_id, config.eos_token_id = tokenizer.cls_token_id, tokenizer.sep_token_id
    if config.position_rule == "non_pad" and follows_padding:
        config.position_offset = tokenizer.pad_token_id + 1


def say_missing(model: Any, missing: Sequence[str]) -> str:
    """What a checkpoint of a masked-LM model lacks, as a part of a message.

    Args:
        missing: the names of the weights that it lacks; not empty.
    """
    of_encoder = [name for name in missing if name.startswith(f"{model.base_model_prefix}.")]
    what = "lacks a part of its encoder" if of_encoder else "has no masked-LM head"
    return f"{what}: {counted(len(missing), 'weight')}, {(of_encoder or missing)[0]} among them, would be random"


def make_model(
    config: ClozeBertConfig, weights: str | os.PathLike | None, *, strict: bool = False
) -> ClozeBertForMaskedLM:
    """A model with random weights, or with those of a folder or Hub repository, in float32.

    Args:
        strict: refuse missing and unexpected weights.

    Raises:
        UserError: the weights cannot be read, or are not those of such a model.
    """
    if weights is None:
        return ClozeBertForMaskedLM(config)
    with without_progress_bars(), as_user_errors(SafetensorError, OSError, about=f"the weights of {weights}"):
        loaded: Any = ClozeBertForMaskedLM.from_pretrained(
            weights, config=config, dtype=torch.float32, use_safetensors=True, output_loading_info=True
        )
    model, report = loaded
    if strict and (wrong := [str(name) for kind in _REPORTED for name in report.get(kind) or ()]):
        raise UserError(f"{weights} does not hold the weights of this model: {wrong[0]} is missing, or does not fit")
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            f"model_name_or_path={str(weights)!r} {say_missing(model, missing)}; take a checkpoint that still has it"
        )
    # Else they would be maps of the file, which the run may delete, as that of an older checkpoint.
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model
