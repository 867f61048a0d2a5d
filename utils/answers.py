"""How a model answers, where its folder has a say in it."""

from typing import Any


def answer_by_name(config: Any) -> None:
    """Have a model answer with named outputs, and give states and attention weights only to calls that ask for them.

    A configuration of transformers may say otherwise: with tuples, which have no names; and with all states, which fill
    the memory. One that asks for attention weights cannot be saved with any attention but the eager one.
    """
    config.return_dict, config.output_hidden_states, config.output_attentions = True, False, False
