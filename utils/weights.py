"""Makes a model from given tensors, without drawing random weights first."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init


def make_empty(model_class: Any, config: PreTrainedConfig, **options: Any) -> Any:
    """A model with uninitialised parameters and initialised buffers."""
    with init.no_init_weights():
        return model_class(config, **options)


def fill(model: PreTrainedModel, tensors: Mapping[str, torch.Tensor]) -> None:
    """Make `tensors`, in their own data type, the parameters of `model`, and tie the tied weights again.

    As after `from_pretrained`, a model that this one becomes a part of does not initialise it again in `post_init`.

    Raises:
        RuntimeError: a tensor is missing, left over or of another shape.
    """
    model.load_state_dict(tensors, strict=True, assign=True)
    model.tie_weights()
    for module in model.modules():
        module._is_hf_initialized = True  # type: ignore[assignment]  # read by transformers
    model.to(next(iter(tensors.values())).device)  # type: ignore[arg-type]  # the buffers, too


def is_untied(model: PreTrainedModel) -> bool:
    """Whether a model's output embeddings differ from its input embeddings.

    A checkpoint may hold both. transformers then keeps both, although `config.tie_word_embeddings` says that they are
    one: whoever ties them by the configuration loses one of them.
    """
    outputs: Any = model.get_output_embeddings()
    inputs: Any = model.get_input_embeddings()
    if outputs is None or outputs.weight is inputs.weight or outputs.weight.is_meta or inputs.weight.is_meta:
        return False
    return not torch.equal(outputs.weight, inputs.weight)
