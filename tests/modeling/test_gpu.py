"""On a real GPU (`make gpu`): kernels against float32 on the CPU, waits, graphs. None has run this yet."""

import pytest
import torch
from encoder_cases import MIXED_LAYERS, VOCABULARY, build, gradients, tiny_config

from clozebert import ClozeBertForMaskedLM
from clozebert.modeling.packed import Packed
from clozebert.training.machine import compile_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

LENGTHS = (70, 3, 130, 53)
SHAPES = {
    "as it is": {},
    "windows": {"layer_types": MIXED_LAYERS, "sliding_window": 16},
    "gqa": {"num_key_value_heads": 2},
    "qk_norm": {"qk_norm": True},
    "heads of 40": {"hidden_size": 160},
    "heads of 128": {"hidden_size": 512},
    "heads of 256": {"hidden_size": 1024},
    "attention dropout, in evaluation": {"attention_probs_dropout_prob": 0.1},
}
# A guess from half precision on a CPU, to be replaced by what is measured: relative to the largest value.
TOLERANCE = {torch.bfloat16: 0.05, torch.float16: 0.01}


def make_batch(device="cpu", lengths=LENGTHS):
    generator = torch.Generator().manual_seed(0)
    tokens = sum(lengths)
    ids = torch.randint(4, VOCABULARY, (1, tokens), generator=generator)
    chosen = torch.randperm(tokens, generator=generator)[: tokens // 3].sort().values
    batch = {"input_ids": ids, "masked_positions": chosen, "labels": ids[0, chosen]}
    batch = {name: value.to(device) for name, value in batch.items()}
    return {**batch, "packed": Packed.from_lengths(lengths, device)}


def make_model(**changes):
    values = {"hidden_size": 64, "positions": "rope", "max_position_embeddings": 512, **changes}
    return build(ClozeBertForMaskedLM, tiny_config("sdpa", **values), dtype=torch.float32)


def loss_and_gradients(model, batch, dtype=None):
    kind = batch["input_ids"].device.type
    with torch.autocast(kind, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        outputs = model(**batch)
    return outputs.logits.float().cpu(), {n: g.float().cpu() for n, g in gradients(outputs.loss, model).items()}


def assert_close(found, wanted, tolerance):
    (logits, grads), (expected, expected_grads) = found, wanted
    assert (logits - expected).abs().max() <= tolerance * expected.abs().max()
    scale = max(value.abs().max() for value in expected_grads.values())
    for name, value in expected_grads.items():
        assert (grads[name] - value).abs().max() <= tolerance * scale, name


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_packed_documents_on_the_kernel(shape, dtype):
    model = make_model(**shape)
    wanted = loss_and_gradients(model, make_batch())
    assert_close(loss_and_gradients(model.cuda(), make_batch("cuda"), dtype), wanted, TOLERANCE[dtype])


@pytest.mark.parametrize("shape", [{}, {"layer_types": MIXED_LAYERS, "sliding_window": 16}], ids=["full", "windows"])
def test_padded_rows_against_eager(shape):
    model = make_model(**shape).cuda()
    ids = torch.randint(4, VOCABULARY, (3, 140), device="cuda")
    mask = (torch.arange(140, device="cuda") < torch.tensor([[140], [70], [5]], device="cuda")).long()
    found = {}
    for implementation in ("sdpa", "eager"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found[implementation] = model(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(found["sdpa"], found["eager"], rtol=1e-3, atol=1e-3)


def test_a_training_step_never_waits_for_the_device():
    model, batch = make_model().cuda().train(), make_batch("cuda")
    items = torch.tensor(80.0, device="cuda")
    for mode in ("default", "error"):  # the first step may load kernels
        torch.cuda.set_sync_debug_mode(mode)
        try:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(**batch, num_items_in_batch=items, loss_only=True).loss
            loss.backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_compiled_is_eager_and_compiles_nothing_after_the_second_step():
    torch._dynamo.reset()
    model = make_model(layer_types=MIXED_LAYERS, sliding_window=16, qk_norm=True).cuda()
    batches = [make_batch("cuda", lengths) for lengths in (LENGTHS, (40, 200), (9, 8, 7, 150, 33), (256,))]
    expected = [loss_and_gradients(model, batch, torch.bfloat16) for batch in batches]
    compile_model(model, torch.device("cuda"))
    counts = []
    for batch, wanted in zip(batches, expected, strict=True):
        assert_close(loss_and_gradients(model, batch, torch.bfloat16), wanted, 0.05)
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert counts[1] == counts[-1]
