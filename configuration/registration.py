"""Registers the configuration with transformers' AutoConfig. The package imports this after AutoConfig is loaded."""

from transformers.models.auto.configuration_auto import AutoConfig

from .configuration_clozebert import ClozeBertConfig

AutoConfig.register(ClozeBertConfig.model_type, ClozeBertConfig, exist_ok=True)
