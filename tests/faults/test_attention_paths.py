"""Every path through attention against the NumPy reference of one document at a time: layouts, batch sizes, heads."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from often import often

TESTS = Path(__file__).resolve().parents[1]
if str(TESTS / "modeling") not in sys.path:
    sys.path.append(str(TESTS / "modeling"))

import reference  # noqa: E402
from encoder_cases import DOCUMENTS, MIXED_LAYERS, PAD, arrays, build, random_ids, relative_error, tiny_config  # noqa: E402

from clozebert import (  # noqa: E402
    ClozeBertForMaskedLM,
    ClozeBertForQuestionAnswering,
    ClozeBertForSequenceClassification,
    ClozeBertForTokenClassification,
    ClozeBertModel,
)
from clozebert.modeling import fast_paths  # noqa: E402

# A head, what the reference computes of it, and whether it gives one row for a document.
HEADS: dict[str, tuple[Any, Callable[..., np.ndarray], bool]] = {
    "none": (ClozeBertModel, reference.encode, False),
    "masked LM": (ClozeBertForMaskedLM, reference.masked_lm_logits, False),
    "sequence": (ClozeBertForSequenceClassification, reference.sequence_logits, True),
    "token": (ClozeBertForTokenClassification, reference.token_logits, False),
    "question answering": (ClozeBertForQuestionAnswering, reference.token_logits, False),
}
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def laid_out(documents: list[np.ndarray], layout: str) -> dict[str, torch.Tensor]:
    """Documents as one batch: padded on a side, or packed into one row."""
    if layout == "packed":
        bounds = torch.as_tensor(np.cumsum([0, *map(len, documents)]), dtype=torch.int32)
        longest = max(map(len, documents))
        given = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}
        return {"input_ids": torch.as_tensor(np.concatenate(documents))[None], **given}
    ids = np.full((len(documents), max(map(len, documents)) + 2), PAD)
    mask = np.zeros_like(ids)
    for row, document in enumerate(documents):
        where = slice(-len(document), None) if layout == "left" else slice(len(document))
        ids[row, where], mask[row, where] = document, 1
    return {"input_ids": torch.as_tensor(ids), "attention_mask": torch.as_tensor(mask)}


def answers(model: Any, inputs: dict[str, torch.Tensor], per_document: bool) -> np.ndarray:
    """What the head says of all documents, one after another, without padding."""
    with torch.no_grad():
        found = model(**inputs)
    if "start_logits" in found:
        rows = torch.stack([found.start_logits, found.end_logits], dim=-1)
    else:
        rows = found.logits if "logits" in found else found.last_hidden_state
    if not per_document:
        mask = inputs.get("attention_mask")
        rows = rows[0] if mask is None else rows[mask.bool()]
    return rows.double().numpy()


def largest_error(implementation: str, dtype: torch.dtype) -> tuple[float, int]:
    """Over all layouts, batch sizes and heads, relative to the largest number; and how many these are."""
    worst, cases = 0.0, 0
    for head, (model_class, compute, per_document) in HEADS.items():
        config = tiny_config(implementation, positions="rope", layer_types=MIXED_LAYERS, classifier_pooling="mean")
        config.num_labels = 2 if head == "question answering" else 5
        model = build(model_class, config, dtype=dtype)
        weights = arrays(model)
        for layout, batch_size in itertools.product(("right", "left", "packed"), (1, 2, 4)):
            documents = [random_ids(1, length, seed=length)[0] for length in DOCUMENTS[:batch_size]]
            alone = [compute(config, weights, input_ids=document[None]) for document in documents]
            wanted = np.concatenate([one if per_document else one[0] for one in alone])
            found = answers(model, laid_out(documents, layout), per_document)
            worst, cases = max(worst, relative_error(found, wanted)), cases + 1
    return worst, cases


@pytest.mark.parametrize("shortcuts", often([True, False]), ids=["shortcuts", "plain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("implementation", ["eager", "sdpa", pytest.param("flex_attention", marks=pytest.mark.faults)])
def test_all_paths_are_one_document_at_a_time(
    implementation: str,
    dtype: torch.dtype,
    shortcuts: bool,
    monkeypatch: pytest.MonkeyPatch,
    figure: Callable[[str, Any], None],
) -> None:
    monkeypatch.setattr(fast_paths, "_PLAIN", not shortcuts)
    worst, cases = largest_error(implementation, dtype)
    assert cases == 45
    assert worst <= TOLERANCE[dtype]
    name = f"{implementation}{'' if shortcuts else ' without shortcuts'}, {str(dtype).removeprefix('torch.')}"
    figure(f"attention: {name}", f"{worst:.1e}")
    print(name, f"{worst:.1e}")
