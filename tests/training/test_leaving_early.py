"""A stop within a pass through the model: one process on a CPU leaves it at the next part of a layer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pretraining_helpers import model_config

from clozebert import ClozeBertForMaskedLM
from clozebert.corpus import BatchStream, Corpus, Masking, ValidationBatches
from clozebert.training.evaluation import EvaluationStoppedError, evaluate_masked_lm
from clozebert.training.prefetch import StepLoader
from clozebert.training.runtime.machine import make_accelerator
from clozebert.training.step import accumulate_gradient

LAYERS = 4


class StopAt:
    """A request that becomes true when it is looked at for the n-th time."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self) -> bool:
        self.left -= 1
        return self.left <= 0


@pytest.fixture
def model() -> ClozeBertForMaskedLM:
    torch.manual_seed(3)
    return ClozeBertForMaskedLM(model_config(num_hidden_layers=LAYERS, initializer_range=0.2, layer_types=None))


def gradient(model: ClozeBertForMaskedLM, prepared: Path, **more: Any) -> tuple[Any, list[torch.Tensor | None]]:
    """The loss of two micro-batches, and the gradient of a weight of each layer."""
    stream = BatchStream(
        Corpus(prepared / "corpus"), max_seq_length=40, global_batch_size=8, masking=Masking(rate=0.3), seed=5
    )
    batches, num_predicted = StepLoader(stream, 0, 1, 2)(2)
    accelerator = make_accelerator(mixed_precision="no", use_cpu=True)
    loss = accumulate_gradient(model, batches, num_predicted=num_predicted, accelerator=accelerator, **more)
    return loss, [layer.attention.o_proj.weight.grad for layer in model.model.layers]


def test_a_step_is_left_within_every_layer_forward_and_backward(model: ClozeBertForMaskedLM, prepared: Path) -> None:
    # Before a micro-batch, before attention and feed-forward of each layer, and on the way back when each is left.
    for count in range(1, 1 + 4 * LAYERS + 1):
        model.zero_grad()
        loss, gradients = gradient(model, prepared, should_stop=StopAt(count))
        assert loss is None
        back = max(0, count - 1 - 2 * LAYERS) // 2  # layers whose attention is left
        assert [found is not None for found in gradients] == [False] * (LAYERS - back) + [True] * back, count
        assert all(not module._forward_pre_hooks for module in model.modules())


def test_a_step_that_nobody_stops_is_the_same_to_the_bit(model: ClozeBertForMaskedLM, prepared: Path) -> None:
    expected, gradients = gradient(model, prepared)
    before = [found.clone() for found in gradients if found is not None]
    model.zero_grad()
    never = StopAt(10_000)
    loss, gradients = gradient(model, prepared, should_stop=never)
    assert torch.equal(loss, expected)
    assert len(before) == LAYERS
    assert all(torch.equal(one, other) for one, other in zip(before, gradients, strict=True))
    assert 10_000 - never.left == 2 * (1 + 4 * LAYERS)


def test_an_evaluation_is_left_within_a_layer(model: ClozeBertForMaskedLM, prepared: Path) -> None:
    options = {"max_seq_length": 40, "masking": Masking(rate=0.15), "seed": 5}
    batches = ValidationBatches(Corpus(prepared / "corpus", "validation"), batch_size=3, **options)
    reached: list[int] = []
    for index, layer in enumerate(model.model.layers):
        layer.register_forward_hook(lambda *_, index=index: reached.append(index))
    stop = StopAt(1 + 4 + 1)  # before the batch, in two layers, and in the third
    with pytest.raises(EvaluationStoppedError):
        evaluate_masked_lm(
            model,
            batches,
            accelerator=make_accelerator(mixed_precision="no", use_cpu=True),
            should_stop=stop,
        )
    assert reached == [0, 1]
    assert model.training
