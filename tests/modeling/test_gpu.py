"""On a real GPU (`make gpu`): kernels against float64 on the CPU (rounding.py says how near), waits, graphs."""

import numpy as np
import pytest
import torch
from encoder_cases import MIXED_LAYERS, VOCABULARY, build, tiny_config
from rounding import LENGTHS, Rounding, logits_and_gradients, make_batch, make_model
from triton_cases import JOINED, WINDOWS, joined_error, joined_window_errors, window_errors

from clozebert import ClozeBertForSequenceClassification, encode_ids
from clozebert.finetuning.batches import PackedCollator, predict_logits
from clozebert.finetuning.windows import Window
from clozebert.modeling.attention import ALL_ATTENTION_FUNCTIONS
from clozebert.modeling.packed import Packed
from clozebert.modeling.packed_attention import PackedPlan
from clozebert.training.runtime.flash_attention import flash_attention
from clozebert.training.runtime.machine import compile_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_packed_documents_on_the_kernel(shape, dtype):
    found = logits_and_gradients(make_model(**shape).cuda(), make_batch("cuda"), dtype)
    Rounding.of(shape, dtype).check(found)


def test_texts_are_encoded_and_scored_as_on_a_cpu():
    config = tiny_config(num_labels=3, hidden_size=64, positions="rope", max_position_embeddings=512)
    model = build(ClozeBertForSequenceClassification, config, dtype=torch.float32)
    texts = [[5 + index % 7] * length for index, length in enumerate((30, 2, 2, 2, 17, 2))]
    windows = [Window(ids, None, index) for index, ids in enumerate(texts)]
    found = []
    for device in ("cpu", "cuda"):
        model.to(device)
        logits = predict_logits(model, windows, PackedCollator(per_token=False), batch_size=4)
        vectors = encode_ids(model.model, texts, tokens_per_batch=40)
        found.append((torch.tensor(np.stack(logits)), vectors.cpu()))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4, check_dtype=False)


# Measured on an H100: 0.0019 to 0.0026 in bf16, a quarter of a thousandth in fp16; with RoPE, which rounds queries and
# keys once more, interpreted on a CPU, 0.0005 in fp16.
@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 0.004), (torch.float16, 0.0005)], ids=str)
@pytest.mark.parametrize("case", WINDOWS, ids=str)
def test_attention_within_a_window_is_the_formula(case, dtype, most):
    pytest.importorskip("triton")
    assert max(window_errors(case, dtype, "cuda")) <= most
    assert max(joined_window_errors(case, dtype, "cuda")) <= 2 * most


@pytest.mark.parametrize("case", JOINED, ids=str)
def test_the_gradient_of_joined_heads_is_the_formula(case):
    pytest.importorskip("triton")
    assert joined_error(case, torch.float32, "cuda") <= 1e-6
    assert joined_error(case, torch.bfloat16, "cuda") <= 0.003


# Between the two kernels, measured on an H200: 0.00004 in the output, 0.00015 in the gradients.
def test_flash_attention_4_is_pytorchs_kernel():
    pytest.importorskip("flash_attn.cute.interface")
    torch.manual_seed(0)
    packed, read_R = Packed.from_lengths((300, 1, 150), "cuda"), torch.arange(0, 451, 3, device="cuda")
    read_bounds = torch.searchsorted(read_R, packed.cu_seq_lens.long(), out_int32=True)
    joined = torch.randn(1, 451, 3, 12, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    probe = torch.randn(1, 451, 12, 64, device="cuda", dtype=torch.bfloat16)
    found = []
    for version in (None, "FA4"):
        with flash_attention(version, joined.device):
            attend = ALL_ATTENTION_FUNCTIONS["varlen"]
            q, k, v = (x.transpose(1, 2) for x in joined.unbind(2))
            whole = attend(None, q, k, v, PackedPlan(packed, None, "varlen"))[0]
            some_plan = PackedPlan(packed, None, "varlen", None, read_R, read_bounds)
            some = attend(None, q[:, :, read_R], k, v, some_plan)[0]
            total = (whole * probe).sum() + (some * probe[:, read_R]).sum()
            found.append((whole, some, *torch.autograd.grad(total, joined)))
    for wanted, value in zip(*found, strict=True):
        assert (value - wanted).float().norm() <= 0.003 * wanted.float().norm()


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


@pytest.mark.parametrize("more", [{"qk_norm": True}, {"num_key_value_heads": 2, "mlp_type": "glu"}], ids=str)
def test_compiled_is_as_near_to_the_truth_and_compiles_nothing_after_the_second_step(more):
    torch._dynamo.reset()
    shape = {"layer_types": MIXED_LAYERS, "sliding_window": 16, **more}
    model = make_model(**shape).cuda()
    compile_model(model, torch.device("cuda"))
    before, counts = torch._dynamo.utils.counters["stats"]["unique_graphs"], []
    for lengths in (LENGTHS, (40, 200), (9, 8, 7, 150, 33), (256,)):
        found = logits_and_gradients(model, make_batch("cuda", lengths), torch.bfloat16)
        Rounding.of(shape, torch.bfloat16, lengths).check(found)
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"] - before)
    assert 0 < counts[1] == counts[-1]
