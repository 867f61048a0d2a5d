"""Is a result in half precision as near to the truth as half precision gets? For kernels that another machine has.

The truth is float64 on the CPU. What half precision costs is measured beside it: the plain formula (padded rows under a
mask) under the CPU's autocast of the same type, ‖found − truth‖ / ‖truth‖. A kernel may make twice that error in the
logits and in the gradient as a whole, and four times that error in the gradient of one parameter.

Measured on an Intel CPU with AMX, the eight shapes of test_gpu.py: the plain formula's error is 0.0050 to 0.0071 in
bf16 and 0.0006 to 0.0008 in fp16. Tiles and eager attention make 0.95 to 1.08 times that as a whole, and at most 1.4
times (1.5 with other lengths) in one parameter. What a wrong formula makes stands in test_rounding.py.
"""

from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from encoder_cases import TINY, VOCABULARY, build, gradients, tiny_config

from clozebert import ClozeBertForMaskedLM
from clozebert.modeling import fast_paths
from clozebert.modeling.packed import Packed

LENGTHS = (70, 3, 130, 53)
AS_A_WHOLE, IN_ONE_PARAMETER = 2.0, 4.0
# As a GradScaler does: small gradients of queries and keys are below fp16's range. A power of two rounds nothing.
LOSS_SCALE = 1024.0


def make_batch(device: Any = "cpu", lengths: tuple[int, ...] = LENGTHS) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    tokens = sum(lengths)
    ids = torch.randint(4, VOCABULARY, (1, tokens), generator=generator)
    chosen = torch.randperm(tokens, generator=generator)[: tokens // 3].sort().values
    batch = {"input_ids": ids, "masked_positions": chosen, "labels": ids[0, chosen]}
    batch = {name: value.to(device) for name, value in batch.items()}
    return {**batch, "packed": Packed.from_lengths(lengths, device)}


def make_model(dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A masked-LM model whose matrices keep the size of what they multiply, at every width.

    With the weights of `build` scores grow with the width: at 1,024 attention is a choice of one token, and the
    gradient in bf16 is further from the truth than zero is.
    """
    values = {"hidden_size": 64, "positions": "rope", "max_position_embeddings": 512, **changes}
    model = build(ClozeBertForMaskedLM, tiny_config("sdpa", **values), dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_((TINY["hidden_size"] / values["hidden_size"]) ** 0.5)
    return model.to(dtype)


def logits_and_gradients(
    model: Any, batch: dict[str, Any], dtype: torch.dtype | None = None
) -> dict[str, torch.Tensor]:
    """The logits and each parameter's gradient, float64, on the CPU; `dtype`: of autocast."""
    with torch.autocast(batch["input_ids"].device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        outputs = model(**batch)
    found = {name: x.double().cpu() / LOSS_SCALE for name, x in gradients(outputs.loss * LOSS_SCALE, model).items()}
    return {"logits": outputs.logits.detach().double().cpu(), **found}


@dataclass
class Rounding:
    """The truth of a model and a batch, and how far the plain formula in half precision is from it."""

    truth: dict[str, torch.Tensor]
    usual: dict[str, float]

    @classmethod
    def of(cls, shape: dict[str, Any], dtype: torch.dtype, lengths: tuple[int, ...] = LENGTHS) -> "Rounding":
        with mock.patch.object(fast_paths, "_PLAIN", True):
            truth = logits_and_gradients(make_model(torch.float64, **shape), make_batch(lengths=lengths))
            found = logits_and_gradients(make_model(**shape), make_batch(lengths=lengths), dtype)
        return cls(truth, errors(found, truth))

    def ratios(self, found: dict[str, torch.Tensor]) -> dict[str, float]:
        """Errors over the usual ones: of the logits, of the gradient as a whole, and of each parameter's."""
        return {name: error / self.usual[name] for name, error in errors(found, self.truth).items()}

    def check(self, found: dict[str, torch.Tensor]) -> None:
        for name, ratio in self.ratios(found).items():
            limit = AS_A_WHOLE if name in ("logits", "gradient") else IN_ONE_PARAMETER
            assert ratio <= limit, f"{name}: {ratio:.2f} times the usual error of {self.usual[name]:.5f}"


def errors(found: dict[str, torch.Tensor], truth: dict[str, torch.Tensor]) -> dict[str, float]:
    """‖found − truth‖ / ‖truth‖; a parameter's gradient that is next to nothing counts as a thousandth of the whole."""
    names = [name for name in truth if name != "logits"]
    whole = torch.cat([truth[name].flatten() for name in names])
    found_whole = torch.cat([found[name].flatten() for name in names])
    result = {"logits": distance(found["logits"], truth["logits"]), "gradient": distance(found_whole, whole)}
    for name in names:
        result[name] = distance(found[name], truth[name], at_least=1e-3 * float(whole.norm()))
    return result


def distance(found: torch.Tensor, truth: torch.Tensor, *, at_least: float = 0.0) -> float:
    assert torch.isfinite(found).all()
    return float((found - truth).norm()) / max(float(truth.norm()), at_least)
