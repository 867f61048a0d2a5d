"""Attention by the package of FlashAttention 4, in whose place stands its formula on a CPU."""

import sys
import types
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from clozebert import ClozeBertConfig
from clozebert.modeling.attention import ALL_ATTENTION_FUNCTIONS, Attention
from clozebert.modeling.packed import Packed
from clozebert.modeling.packed_attention import PackedPlan, varlen_attention
from clozebert.training.runtime.flash_attention import flash_attention
from clozebert.utils.errors import UserError

LENGTHS, HEADS, SIZE = (5, 1, 9), 4, 8


def by_document(q: Any, k: Any, v: Any, of_queries: Any, bounds: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The output [R, H, K], and the log of the sums [H, R], document by document in float64."""
    outs, logs = [], []
    groups = q.shape[1] // k.shape[1]
    for document in range(len(bounds) - 1):
        queries, keys = (slice(*x[document : document + 2].tolist()) for x in (of_queries, bounds))
        scores = torch.einsum("qhk,nhk->hqn", q[queries], k[keys].repeat_interleave(groups, 1)) / q.shape[2] ** 0.5
        outs.append(torch.einsum("hqn,nhk->qhk", scores.softmax(-1), v[keys].repeat_interleave(groups, 1)))
        logs.append(scores.logsumexp(-1))
    return torch.cat(outs), torch.cat(logs, dim=1)


class Package(types.ModuleType):
    """The two functions of the package that are called, with its names of arguments."""

    def _flash_attn_fwd(self, q: Any, k: Any, v: Any, *, cu_seqlens_q: Any, cu_seqlens_k: Any, **rest: Any) -> Any:
        assert rest == {"return_lse": True, "max_seqlen_q": max(LENGTHS), "max_seqlen_k": max(LENGTHS)}
        out, log = by_document(q.double(), k.double(), v.double(), cu_seqlens_q, cu_seqlens_k)
        return out.to(q.dtype), log.float(), None, None, None

    def _flash_attn_bwd(
        self, q: Any, k: Any, v: Any, out: Any, dout: Any, lse: Any, *, dq: Any, dk: Any, dv: Any,
        cu_seqlens_q: Any, cu_seqlens_k: Any, deterministic: bool, **rest: Any,
    ) -> Any:  # fmt: skip
        scale, groups = q.shape[2] ** -0.5, q.shape[1] // k.shape[1]
        for document in range(len(cu_seqlens_k) - 1):
            rows, keys = (slice(*x[document : document + 2].tolist()) for x in (cu_seqlens_q, cu_seqlens_k))
            queries, outputs, grads = (x[rows].double() for x in (q, out, dout))
            wide_k, wide_v = (x[keys].double().repeat_interleave(groups, 1) for x in (k, v))
            weights = (torch.einsum("qhk,nhk->hqn", queries, wide_k) * scale - lse[:, rows, None]).exp()
            of_weights = torch.einsum("qhk,nhk->hqn", grads, wide_v)
            of_scores = weights * (of_weights - (grads * outputs).sum(-1).T[..., None]) * scale
            dq[rows] = torch.einsum("hqn,nhk->qhk", of_scores, wide_k)
            wide = torch.einsum("hqn,qhk->nhk", of_scores, queries), torch.einsum("hqn,qhk->nhk", weights, grads)
            dk[keys], dv[keys] = (x.unflatten(1, (-1, groups)).sum(2) for x in wide)
        return dq, dk, dv


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, *, capability: tuple[int, int] = (9, 0)) -> torch.device:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    return torch.device("cuda")


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    for name in ("flash_attn", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", Package("flash_attn.cute.interface"))
    return on_a_gpu(monkeypatch)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("key_heads", [HEADS, 2])
def test_packed_documents_and_their_gradient(key_heads: int, compiled: bool, package: torch.device) -> None:
    torch.manual_seed(0)
    tokens, packed = sum(LENGTHS), Packed.from_lengths(LENGTHS, "cpu")
    # As they lie in the model: parts of one tensor.
    joined = torch.randn(1, tokens, HEADS + 2 * key_heads, SIZE, dtype=torch.float32, requires_grad=True)
    probe = torch.randn(1, tokens, HEADS, SIZE)

    def parts(x: torch.Tensor) -> list[torch.Tensor]:
        return [part.transpose(1, 2) for part in x.split([HEADS, key_heads, key_heads], dim=2)]

    def attend(x: torch.Tensor) -> torch.Tensor:
        return ALL_ATTENTION_FUNCTIONS["varlen"](None, *parts(x), PackedPlan(packed, None, "varlen"))[0]

    with flash_attention("FA4", package):
        found = (torch.compile(attend, backend="aot_eager", fullgraph=True) if compiled else attend)(joined)
        (gradient,) = torch.autograd.grad((found * probe).sum(), joined)
    q, k, v = (x.double() for x in parts(joined))
    rows = [
        F.scaled_dot_product_attention(*(x[:, :, begin:end] for x in (q, k, v)), enable_gqa=True)
        for begin, end in packed.cu_seq_lens.unfold(0, 2, 1).tolist()
    ]
    wanted = torch.cat(rows, dim=2).transpose(1, 2)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)
    (of_wanted,) = torch.autograd.grad((wanted * probe).sum(), joined)
    torch.testing.assert_close(gradient, of_wanted, rtol=1e-5, atol=1e-5)


def test_queries_of_some_tokens_read_the_keys_of_all(package: torch.device) -> None:
    torch.manual_seed(0)
    packed, read_R = Packed.from_lengths(LENGTHS, "cpu"), torch.tensor([0, 3, 6, 14])
    q, k, v = (torch.randn(1, HEADS, sum(LENGTHS), SIZE) for _ in range(3))
    plan = PackedPlan(packed, None, "varlen")
    some = PackedPlan(packed, None, "varlen", None, read_R, torch.tensor([0, 2, 2, 4], dtype=torch.int32))
    with flash_attention("FA4", package):
        attend = ALL_ATTENTION_FUNCTIONS["varlen"]
        whole = attend(None, q, k, v, plan)[0]
        torch.testing.assert_close(attend(None, q[:, :, read_R], k, v, some)[0], whole[:, read_R])


@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_uses_it_within_the_block_only(compiled: bool, package: torch.device) -> None:
    torch.manual_seed(0)
    layer = Attention(ClozeBertConfig(hidden_size=HEADS * SIZE, num_attention_heads=HEADS), 0)
    calls = []
    wanted = torch.ops.clozebert.flash_attention
    plan = PackedPlan(Packed.from_lengths(LENGTHS, "cpu"), None, "varlen")
    x = torch.randn(1, sum(LENGTHS), HEADS * SIZE)

    def count(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        calls.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph

    with flash_attention("FA4", package):
        out = torch.compile(layer, backend=count, fullgraph=True)(x, plan) if compiled else layer(x, plan)
    assert out[0].shape == x.shape
    assert not compiled or wanted in calls or wanted.default in calls
    assert ALL_ATTENTION_FUNCTIONS["varlen"] is varlen_attention


def test_layers_with_a_window_keep_pytorchs_kernel(package: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, seen = PackedPlan(Packed.from_lengths(LENGTHS, "cpu"), 2, "varlen"), []
    monkeypatch.setattr(
        "clozebert.training.runtime.flash_attention.varlen_attention", lambda *inputs, **kwargs: seen.append(inputs[4])
    )
    with flash_attention("FA4", package):
        ALL_ATTENTION_FUNCTIONS["varlen"](None, None, None, None, plan)
    assert seen == [plan]


def test_without_the_flag_nothing_changes(package: torch.device) -> None:
    with flash_attention(None, package):
        assert ALL_ATTENTION_FUNCTIONS["varlen"] is varlen_attention


@pytest.mark.parametrize("capability", [(8, 6), (12, 0)])
def test_another_gpu_is_refused(capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    device = on_a_gpu(monkeypatch, capability=capability)
    message = rf"capability 9\.0 or 10\.0, and this is {capability[0]}\.{capability[1]}"
    with pytest.raises(UserError, match=message), flash_attention("FA4", device):
        pytest.fail("the block must not begin")


def test_without_the_package_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    message = r"flash_attention='FA4': .* cannot be loaded .*; pip install flash-attn-4, or leave it out"
    with pytest.raises(UserError, match=message):
        flash_attention("FA4", on_a_gpu(monkeypatch)).__enter__()


def test_a_release_without_the_functions_is_refused(package: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", types.ModuleType("flash_attn.cute.interface"))
    with pytest.raises(UserError, match=r"cannot be loaded \(.*_flash_attn_fwd.*\)"):
        flash_attention("FA4", package).__enter__()
