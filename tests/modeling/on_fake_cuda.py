# ruff: noqa: E402
"""What a CUDA device would be given: forward and backward passes over fake tensors of it, as JSON for test_on_cuda.py.

    python on_fake_cuda.py

A process of its own, and one for all: the fake device must be there before torch (benchmarks/fake_cuda.py).
"""

import contextlib
import gc
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))

import fake_cuda
import fake_inductor

fake_cuda.install()

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.nn import functional as F
from transformers import masking_utils

from clozebert import ClozeBertConfig, ClozeBertForMaskedLM, ClozeBertForSequenceClassification
from clozebert.configuration import list_recipes
from clozebert.modeling import window_attention
from clozebert.modeling.packed import Packed
from clozebert.training.run_settings import make_config, split_settings
from clozebert.training.runtime.machine import choose_bf16_residual
from clozebert.training.step import accumulate_gradient

ATTENTION_OF_ROWS = F.scaled_dot_product_attention
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "no": None}
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "qk_norm": {"qk_norm": True},
    "windows": {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8},
    "gqa": {"num_key_value_heads": 1},
    "dropout": {"attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1},
}
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
PRODUCTS = ("aten::mm", "aten::addmm")  # no others: PyTorch chooses its attention by asking a real device


def configuration(recipe: str, layers: int = 2, **changes: Any) -> ClozeBertConfig:
    """The recipe's model, of a few layers; where it has windows, every third one is without."""
    _, model = split_settings(recipe, {})
    has_windows = make_config(dict(model)).layer_types is not None
    kinds = ["sliding_attention" if layer % 3 else "full_attention" for layer in range(layers)]
    return make_config({**model, "num_hidden_layers": layers, "layer_types": kinds if has_windows else None, **changes})


def batch(documents: int = 3, tokens: int = 96, predicted: int = 20, longest: int = 40) -> dict[str, Any]:
    """A packed training batch as the loop gives it."""
    numbers = {"dtype": torch.long, "device": "cuda"}
    packed = Packed(
        torch.zeros(documents + 1, dtype=torch.int32, device="cuda"), longest, torch.zeros(1, tokens, **numbers)
    )
    return {
        "input_ids": torch.zeros(1, tokens, **numbers),
        "packed": packed,
        "masked_positions": torch.zeros(predicted, **numbers),
        "labels": torch.zeros(predicted, **numbers),
        "num_items_in_batch": torch.zeros((), device="cuda"),
        "loss_only": True,
    }


def make(model_class: Any, config: ClozeBertConfig) -> Any:
    with torch.device("cuda"):
        return model_class(config).train()


def make_trained(config: ClozeBertConfig, precision: str) -> Any:
    """A masked LM as a run sets it up."""
    model = make(ClozeBertForMaskedLM, config)
    if choose_bf16_residual(None, config, precision=precision, on_cuda=True):
        model.model.residual_dtype = torch.bfloat16
    return model


def seen(calls: list[fake_cuda.Call]) -> dict[str, Any]:
    """What the kernels were given."""
    attention = [
        {
            "types": [str(x.dtype).removeprefix("torch.") for x in call.tensors()],
            "shapes": [list(x.shape) for x in call.tensors()],
            "numbers": [x for x in call.args if isinstance(x, (bool, int, float, list)) and not _has_tensors(x)],
        }
        for call in calls
        if call.name == "torch_attn::_varlen_attn"
    ]
    products = {str(x.dtype).removeprefix("torch.") for call in calls if call.name in PRODUCTS for x in call.tensors()}
    logits = [
        {"type": str(x.dtype).removeprefix("torch."), "shape": list(x.shape)}
        for call in calls
        for x in call.results()
        if call.name in PRODUCTS
    ]
    devices = {x.device.type for call in calls for x in call.tensors() if x.dim() > 0}
    return {
        "attention": attention,
        "products": sorted(products),
        "results": logits,
        "waits": fake_cuda.waits(calls),
        "devices": sorted(devices),
    }


def _has_tensors(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(one, torch.Tensor) for one in value)


# Models that differ in these numbers alone have the same operators.
NUMBERS = {
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
    "max_position_embeddings", "sliding_window", "layer_types", "norm_eps", "pad_token_id", "bos_token_id",
    "eos_token_id", "cls_token_id", "sep_token_id",
}  # fmt: skip


def recipes_by_program() -> list[list[str]]:
    """The recipes, together where their models differ in `NUMBERS` alone."""
    found: dict[str, list[str]] = {}
    for recipe in list_recipes():
        settings = configuration(recipe, **WITHOUT_DROPOUT).to_dict()
        rest = {name: value for name, value in settings.items() if name not in NUMBERS}
        has_windows = settings["layer_types"] is not None
        found.setdefault(json.dumps([rest, has_windows], sort_keys=True, default=str), []).append(recipe)
    return list(found.values())


def cases() -> list[tuple[str, str, str, tuple[int, int]]]:
    """Recipe, precision, variant, capability: a quarter of all combinations, in which every two of the four stand.

    Of recipes with the same operators the first stands there; the others follow, and have one step each.
    """
    precisions, capabilities = ("bf16", "fp16"), ((7, 5), (8, 0))
    firsts, others = zip(*((first, rest) for first, *rest in recipes_by_program()), strict=True)
    found = [
        (recipe, precisions[(i + j) % 2], variant, capabilities[(i // 2 + j) % 2])
        for (i, recipe), (j, variant) in itertools.product(enumerate(firsts), enumerate(VARIANTS))
    ]
    return found + [(recipe, "bf16", "as it is", (8, 0)) for recipe in itertools.chain.from_iterable(others)]


def kernels() -> list[dict[str, Any]]:
    """A training step over a packed batch for each of `cases`, and one without half precision."""
    found = []
    for recipe, precision, variant, capability in [*cases(), ("modernbert-base", "no", "as it is", (8, 0))]:
        config = configuration(recipe, **VARIANTS[variant])
        rows: list[list[Any]] = []  # what PyTorch's other attention is given

        def noted(*args: Any, rows: list[list[Any]] = rows, **kwargs: Any) -> Any:
            tensors = [*args, kwargs["attn_mask"]]
            rows.append([[str(x.dtype).removeprefix("torch."), list(x.shape)] for x in tensors])
            return ATTENTION_OF_ROWS(*args, **kwargs)

        with fake_cuda.device(capability) as calls, mock.patch.object(F, ATTENTION_OF_ROWS.__name__, noted):
            model = make_trained(config, precision)
            inputs = batch()
            calls.clear()
            with fake_cuda.autocast(PRECISIONS[precision]):
                outputs = model(**inputs)
            assert outputs.logits is None
            forward = len(calls)
            outputs.loss.backward()
            facts = {"forward": seen(calls[:forward]), "backward": seen(calls[forward:]), "rows": rows}
            absent = [name for name, x in model.named_parameters() if x.grad is None]
        found.append(
            {
                "recipe": recipe, "precision": precision, "variant": variant, "capability": list(capability),
                "dropout": config.attention_probs_dropout_prob, "heads": config.num_attention_heads,
                "key_heads": config.num_key_value_heads or config.num_attention_heads,
                "head_size": config.hidden_size // config.num_attention_heads, "window": config.sliding_window,
                "windowed": [config.attention_type(layer) == "sliding_attention" for layer in range(2)],
                "vocabulary": config.vocab_size, "without_gradient": absent, **facts,
            }
        )  # fmt: skip
    return found


def loop(**changes: Any) -> list[str]:
    """The waits of a step's two micro-batches, as the training loop runs them, up to the norm of the gradient."""
    accelerator: Any = SimpleNamespace(
        device=torch.device("cuda"), num_processes=1, no_sync=contextlib.nullcontext, backward=torch.Tensor.backward
    )
    with fake_cuda.device() as calls:
        model = make_trained(configuration("modernbert-base", **changes), "bf16")
        inputs = {name: x for name, x in batch().items() if name not in ("num_items_in_batch", "loss_only")}
        calls.clear()
        with fake_cuda.autocast(torch.bfloat16):
            accumulate_gradient(model, [inputs] * 2, num_predicted=40, accelerator=accelerator)
        assert len(calls) > 100
        return fake_cuda.waits(calls)


def residual_stream() -> dict[str, Any]:
    """By its type that is asked for: the types between the layers, forward and backward, and the waits of a step."""
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        with fake_cuda.device() as calls:
            model = make(ClozeBertForMaskedLM, configuration("modernbert-base"))
            model.model.residual_dtype = dtype
            between: list[torch.Tensor] = []
            for layer in model.model.layers:
                layer.register_forward_hook(lambda module, inputs, output, seen=between: seen.extend([*inputs, output]))
                layer.register_full_backward_hook(lambda module, grads, of, seen=between: seen.extend([*grads, *of]))
            inputs = batch()
            calls.clear()
            with fake_cuda.autocast(torch.bfloat16):
                loss = model(**inputs).loss
            loss.backward()
            types = {str(x.dtype).removeprefix("torch.") for x in between if x is not None}
            name = str(dtype).removeprefix("torch.")
            found[name] = {"types": sorted(types), "states": len(between), "waits": fake_cuda.waits(calls)}
    return found


def doors() -> dict[str, Any]:
    """The other ways in: how often a forward pass would wait for the device."""
    config = configuration("modernbert-base")
    found = {}
    for name, more in {
        "padded rows": lambda: {"attention_mask": torch.zeros(2, 48, dtype=torch.long, device="cuda")},
        "whole rows": dict,
        "boundaries with max_length": lambda: {
            "cu_seq_lens_q": torch.zeros(4, dtype=torch.int32, device="cuda"), "max_length_q": 40,
        },
        "boundaries alone": lambda: {"cu_seq_lens_q": torch.zeros(4, dtype=torch.int32, device="cuda")},
    }.items():  # fmt: skip
        # transformers takes fake tensors for a traced program's, and then looks at no value.
        looks = mock.patch.object(masking_utils, "is_tracing", return_value=False)
        with fake_cuda.device() as calls, looks:
            model = make(ClozeBertForSequenceClassification, config)
            rows = 2 if name in ("padded rows", "whole rows") else 1
            inputs = {"input_ids": torch.zeros(rows, 96 // rows, dtype=torch.long, device="cuda"), **more()}
            calls.clear()
            with fake_cuda.autocast(torch.bfloat16), torch.no_grad():
                try:
                    rows = list(model(**inputs).logits.shape)
                except DataDependentOutputException:
                    rows = None  # a value was asked for, and a fake tensor has none
            found[name] = {"waits": fake_cuda.waits(calls), "rows": rows}
    return found


def windows() -> list[list[Any]]:
    """What our own kernels of windowed layers are given, where Triton is: names, types and shapes, and the waits."""
    found = []
    config = configuration("modernbert-base", num_key_value_heads=4)
    for dtype in (torch.bfloat16, torch.float16):
        with fake_cuda.device() as calls, mock.patch.object(window_attention, "KERNELS", object()):
            model = make(ClozeBertForMaskedLM, config)
            inputs = batch()
            calls.clear()
            with fake_cuda.autocast(dtype):
                loss = model(**inputs).loss
            loss.backward()
            for call in calls:
                if call.name.startswith("clozebert::"):
                    given = [[str(x.dtype).removeprefix("torch."), list(x.shape)] for x in call.tensors()]
                    found.append([call.name, given, fake_cuda.waits(calls)])
    return found


def compiled_operators() -> list[list[Any]]:
    """Our operators in the graphs of a compiled step with `--flash_attention FA4`: names, types and shapes.

    Queries, keys and values of windowed layers are joined there.
    """
    from torch._dynamo.backends.common import aot_autograd

    from clozebert.training.runtime import machine
    from clozebert.training.runtime.flash_attention import flash_attention

    found = []

    def note(graph: Any, inputs: Any) -> Any:
        for node in graph.graph.nodes:
            name = node.target.name() if hasattr(node.target, "_schema") else ""
            if name.startswith("clozebert::"):
                tensors = [source.meta["val"] for source in node.all_input_nodes]
                found.append([name, [[str(x.dtype).removeprefix("torch."), list(x.shape)] for x in tensors]])
        return graph.forward

    torch._dynamo.reset()
    for name in ("flash_attn", "flash_attn.cute", "flash_attn.cute.interface"):
        sys.modules[name] = ModuleType(name)
    # Fake tensors reach neither.
    vars(sys.modules["flash_attn.cute.interface"]).update(_flash_attn_fwd=None, _flash_attn_bwd=None)
    with (
        fake_cuda.device((9, 0), records=False),
        mock.patch.object(window_attention, "KERNELS", object()),
        flash_attention("FA4", torch.device("cuda")),
    ):
        model = make(ClozeBertForMaskedLM, configuration("modernbert-base", num_key_value_heads=4))
        backend = aot_autograd(fw_compiler=note, bw_compiler=note)
        machine.compile_model(model, torch.device("cuda"), backend=backend, dynamic=False)
        with fake_cuda.autocast(torch.bfloat16):
            loss = model(**batch()).loss
        loss.backward()
    return found


def inductor_kernels() -> list[dict[str, Any]]:
    """What torch.compile runs on an H100 for a full and a windowed layer of ModernBERT-base.

    For each graph: the operators, and how many kernels beside them move a bf16 tensor [tokens, hidden size] or more.
    """
    from clozebert.training.runtime import machine

    made: list[fake_inductor.Graph] = []
    tokens, capability = 48 * 1024, (9, 0)
    torch._dynamo.reset()
    with fake_cuda.device(capability, records=False), mock.patch.object(window_attention, "KERNELS", object()):
        model = make(ClozeBertForMaskedLM, configuration("modernbert-base", layers=5))
        machine.compile_model(model, torch.device("cuda"), backend=fake_inductor.backend(made.append, capability))
        with fake_cuda.autocast(torch.bfloat16):
            loss = model(**batch(48, tokens, tokens // 4, 1024)).loss
        loss.backward()
    large = 2 * tokens * model.config.hidden_size
    return [
        {
            "backward": graph.is_backward, "runs": graph.runs,
            "operators": [kernel.operator for kernel in graph.kernels if kernel.operator is not None],
            "large": sum(kernel.operator is None and kernel.bytes >= large for kernel in graph.kernels),
        }
        for graph in made
    ]  # fmt: skip


def graphs(programs: list[list[str]]) -> dict[str, Any]:
    """Training steps over batches with other boundaries, compiled as a run compiles: how many graphs there are.

    For the first recipe of each program.
    """
    from clozebert.training.runtime import machine

    found = {}
    for recipe, *others in programs:
        made: list[int] = []
        torch._dynamo.reset()

        def backend(graph: Any, inputs: Any, made: list[int] = made) -> Any:
            made.append(sum(node.target is F.linear for node in graph.graph.nodes))
            return graph.forward

        config = configuration(recipe, layers=4, **WITHOUT_DROPOUT)
        counts = []
        torch._dynamo.utils.counters.clear()
        with fake_cuda.device(records=False):
            model = make(ClozeBertForMaskedLM, config)
            machine.compile_model(model, torch.device("cuda"), backend=backend)
            for step in range(10):
                inputs = batch(3 + 4 * step, 101 + 14 * step, 20 + 2 * step, 40 - 3 * step)
                with fake_cuda.autocast(torch.bfloat16):
                    loss = model(**inputs).loss
                loss.backward()
                counts.append(len(made))
        breaks = {str(key): value for key, value in torch._dynamo.utils.counters["graph_break"].items()}
        found[recipe] = {"same": others, "layers": 4, "graphs": counts, "matmuls": made, "breaks": breaks}
    return found


PARTS: dict[str, Callable[[], Any]] = {
    "programs": recipes_by_program,
    "kernels": kernels,
    "loop": lambda: {"as it is": loop(), "dynamic RoPE": loop(rope_parameters=DYNAMIC)},
    "doors": doors,
    "windows": windows,
    "compiled operators": compiled_operators,
    "residual": residual_stream,
    "graphs": lambda: graphs(recipes_by_program()),
    "inductor": inductor_kernels,
}

if __name__ == "__main__":
    gc.freeze()  # what is imported is no garbage
    print(json.dumps({part: PARTS[part]() for part in sys.argv[1:]}))
