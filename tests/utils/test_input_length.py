"""The longest input of each architecture: a sequence of that length runs, and one longer does not."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pretraining_helpers import make_tokenizer
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

import clozebert  # noqa: F401  (lets AutoModel know our models)
from clozebert.utils.input_length import NO_LIMIT, announce_length, beginning_of, longest_input

SIZES = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 40}
DISTILBERT_SIZES = {"dim": 24, "n_layers": 1, "n_heads": 3, "hidden_dim": 40}
WITHOUT_LIMIT = SimpleNamespace(model_max_length=10**30)
# model_type, fields of its configuration beside 50 positions, and the longest input.
LEARNED = [
    pytest.param("bert", SIZES, 50, id="bert"),
    pytest.param("distilbert", DISTILBERT_SIZES, 50, id="distilbert"),
    pytest.param("roberta", {**SIZES, "pad_token_id": 1}, 48, id="roberta"),
    pytest.param("roberta", {**SIZES, "pad_token_id": 0}, 49, id="roberta, padding 0"),
    pytest.param("ibert", {**SIZES, "pad_token_id": 1}, 48, id="ibert"),
    pytest.param("mpnet", {**SIZES, "pad_token_id": 1}, 48, id="mpnet"),
    pytest.param("clozebert", {**SIZES, "pad_token_id": 0, "position_embedding_type": "absolute"}, 50, id="ours"),
    pytest.param(
        "clozebert",
        {**SIZES, "pad_token_id": 1, "position_embedding_type": "absolute", "position_rule": "non_pad"}
        | {"position_offset": 2},
        50,  # position_offset counts beside max_position_embeddings
        id="ours as roberta",
    ),
]
ROTARY = [
    pytest.param("modernbert", {**SIZES, "num_hidden_layers": 2, "pad_token_id": 0}, id="modernbert"),
    pytest.param("clozebert", {**SIZES, "pad_token_id": 0, "position_embedding_type": "rope"}, id="ours"),
]


def make_model(model_type: str, values: dict[str, Any]) -> Any:
    config = AutoConfig.for_model(model_type, vocab_size=31, max_position_embeddings=50, **values)
    return AutoModelForMaskedLM.from_config(config).eval()


@torch.no_grad()
def run(model: Any, length: int) -> torch.Tensor:
    ids = torch.full((1, length), 7)
    return model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits


@pytest.mark.parametrize(("model_type", "values", "longest"), LEARNED)
def test_one_token_more_does_not_run(model_type: str, values: dict[str, Any], longest: int) -> None:
    model = make_model(model_type, values)
    assert longest_input(model, WITHOUT_LIMIT) == longest
    assert run(model, longest).isfinite().all()
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        run(model, longest + 1)


@pytest.mark.parametrize(("model_type", "values"), ROTARY)
def test_rotary_positions_end_where_the_configuration_says(model_type: str, values: dict[str, Any]) -> None:
    model = make_model(model_type, values)
    assert longest_input(model, WITHOUT_LIMIT) == 50
    assert run(model, 51).isfinite().all(), "they run on, in positions that were never trained"


def test_the_tokenizer_may_state_less() -> None:
    model = make_model("bert", SIZES)
    assert longest_input(model, SimpleNamespace(model_max_length=20)) == 20
    nothing = torch.nn.Linear(2, 2)
    nothing.config = SimpleNamespace()  # type: ignore[assignment]
    assert longest_input(nothing, WITHOUT_LIMIT) == NO_LIMIT


@pytest.mark.parametrize(
    ("stated", "trained_on", "written"),
    [(None, 0, 50), (80, 0, 50), (20, 0, 20), (20, 20, 20), (20, 21, 50), (50, 50, 50), (10**30, 40, 50)],
)
def test_a_saved_tokenizer_states_what_the_model_takes(
    tmp_path: Path, stated: int | None, trained_on: int, written: int
) -> None:
    """A smaller number stays, unless the model was trained on longer rows: these would be cut."""
    tokenizer = make_tokenizer(9)
    if stated is not None:
        tokenizer.model_max_length = stated
    tokenizer.save_pretrained(tmp_path)
    announce_length(tmp_path, make_model("bert", SIZES), trained_on=trained_on)
    assert AutoTokenizer.from_pretrained(tmp_path).model_max_length == written


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_beginning_of_a_text_is_its_first_tokens(side: str) -> None:
    """A tokenizer that truncates on the left would give the last ones of a part."""
    words = [f"w{number}" for number in range(50)]
    tokenizer = make_tokenizer(50)
    tokenizer.truncation_side = side
    ids, end = beginning_of(tokenizer, " ".join(words), 7)
    first = tokenizer.convert_ids_to_tokens([token for token in ids if token not in tokenizer.all_special_ids])
    assert first == words[: len(first)]
    assert (len(ids), end) == (7, len(" ".join(first)))
    assert tokenizer.truncation_side == side
    assert tokenizer.backend_tokenizer.truncation is None, "it would be saved, and tokenizers would go by it"
    tokenizer.backend_tokenizer.enable_truncation(33, direction=side)
    before = tokenizer.backend_tokenizer.truncation
    beginning_of(tokenizer, "w1 w2", 3)
    assert tokenizer.backend_tokenizer.truncation == before
