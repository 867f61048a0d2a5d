"""Programs that follow the computation instead of running it: `torch.export`, `torch.compile`, `torch.jit.trace`."""

import shutil

import numpy as np
import pytest
import torch
from encoder_cases import (
    MIXED_LAYERS,
    build,
    for_model,
    gradients,
    random_ids,
    relative_error,
    same_gradients,
    tiny_config,
)
from often import often
from torch._dynamo.testing import CompileCounter

from clozebert import ClozeBertForMaskedLM

IDS = torch.as_tensor(random_ids(2, 9))
MASK = torch.ones_like(IDS)
MASK[1, 5:] = 0


def tiny(**changes):
    return build(ClozeBertForMaskedLM, tiny_config(**changes), dtype=torch.float32)


@pytest.mark.parametrize(
    ("implementation", "layer_types"),
    often([("sdpa", MIXED_LAYERS), ("sdpa", None), ("eager", MIXED_LAYERS)]),
)
def test_export_serves_other_batches_and_lengths(implementation, layer_types):
    model = tiny(implementation=implementation, layer_types=layer_types)
    rows, length = torch.export.Dim("rows", min=2, max=64), torch.export.Dim("length", min=2, max=40)
    program = torch.export.export(
        model,
        (IDS, MASK),
        dynamic_shapes={"input_ids": {0: rows, 1: length}, "attention_mask": {0: rows, 1: length}},
        strict=False,
    )
    ids = torch.as_tensor(random_ids(5, 23, seed=2))
    mask = torch.ones_like(ids)
    mask[2, 4:] = 0
    assert relative_error(program.module()(ids, mask).logits, model(ids, attention_mask=mask).logits) <= 1e-5


def test_a_graph_of_packed_rows_serves_other_documents():
    """No plan of the documents that were traced is in it."""
    model, ids = tiny(layer_types=MIXED_LAYERS).requires_grad_(False), IDS[:1]

    def states(cu_seq_lens):
        return model.model(ids, cu_seq_lens_q=cu_seq_lens, max_length_q=9).last_hidden_state

    traced = torch.jit.trace(states, torch.tensor([0, 2, 9], dtype=torch.int32), check_trace=False)
    for bounds in ([0, 6, 9], [0, 3, 4, 9]):
        others = torch.tensor(bounds, dtype=torch.int32)
        assert relative_error(traced(others), states(others)) <= 1e-5


@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["padded", "packed"])
def test_compile_meets_new_lengths_without_recompiling(packed):
    """The graphs after three lengths are the graphs after seven. The back end counts them and runs them as they are."""
    torch._dynamo.reset()
    counter, seen = CompileCounter(), []
    model = tiny(layer_types=MIXED_LAYERS)
    compiled = torch.compile(model, backend=counter)
    for length in (9, 12, 15, 20, 31, 33, 10):
        if packed:
            inputs = for_model({"cu_seq_lens": np.array([0, 4, length], np.int32)})
        else:
            inputs = {"attention_mask": (torch.arange(length) < torch.tensor([[length], [4], [7]])).long()}
        ids = torch.as_tensor(random_ids(1 if packed else 3, length))
        found, wanted = (run(ids, labels=ids, **inputs) for run in (compiled, model))
        assert found.loss.item() == pytest.approx(wanted.loss.item(), rel=1e-5)
        seen.append(counter.frame_count)
    assert seen[0] >= 1
    assert seen[2:] == [seen[2]] * 5
    torch._dynamo.reset()


@pytest.mark.slow
def test_compile_with_inductor_gives_the_same_gradients():
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        pytest.skip("inductor needs a C++ compiler")
    torch._dynamo.reset()
    model = tiny(layer_types=MIXED_LAYERS)
    wanted, found = (run(IDS, attention_mask=MASK, labels=IDS).loss for run in (model, torch.compile(model)))
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert same_gradients(gradients(found, model), gradients(wanted, model)) <= 1e-4
