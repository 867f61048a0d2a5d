"""Registers the configuration with transformers' AutoConfig; the package imports this once AutoConfig is there."""

from transformers.models.auto.configuration_auto import AutoConfig

from .configuration_clozebert import ClozeBertConfig

AutoConfig.register(ClozeBertConfig.model_type, ClozeBertConfig, exist_ok=True)
