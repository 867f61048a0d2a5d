"""What a run chooses of its machine: the device, the seed of a step, whether to compile."""

import accelerate
import pytest
import torch

from clozebert.training.runtime import machine
from clozebert.training.runtime.machine import make_accelerator
from clozebert.training.runtime.watchdog import SECONDS_TO_SAVE
from clozebert.utils.device import choose_precision, find_device
from clozebert.utils.errors import UserError


@pytest.mark.parametrize("seed", [0, 42, 281_000_000, 1_234_567_890, 2**63])
def test_any_seed_gives_each_step_and_process_dropout_of_its_own(seed):
    found = set()
    for step, rank in ((0, 0), (1, 0), (0, 1), (100_000, 7)):
        machine.seed_step(seed, step, rank)
        found.add(torch.rand(1).item())
    assert len(found) == 4


def test_small_seeds_are_what_they_were():
    machine.seed_step(42, 7, 3)
    found = torch.rand(3)
    torch.manual_seed((42 * 1_000_003 + 7) * 65_537 + 3)
    assert torch.equal(found, torch.rand(3))


@pytest.mark.parametrize(
    ("cuda", "mps", "use_cpu", "wanted"),
    [
        (True, False, False, "cuda"),
        (False, True, False, "mps"),
        (False, False, False, "cpu"),
        (True, True, True, "cpu"),
    ],
)
def test_the_device_is_the_accelerator_that_there_is(cuda, mps, use_cpu, wanted, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert find_device(use_cpu=use_cpu).type == wanted


def test_bf16_that_a_gpu_only_emulates_is_refused(monkeypatch):
    """As on a T4 or V100, of which PyTorch says that they support bf16 by emulation."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    gpu = torch.device("cuda")
    assert choose_precision("auto", gpu) == "no"
    with pytest.raises(UserError, match="mixed_precision='bf16': this GPU does not support it"):
        choose_precision("bf16", gpu)


def test_compiled_by_default_on_cuda_where_it_can_be(monkeypatch, caplog):
    cuda = torch.device("cuda")
    capability, triton = [(8, 0)], [object()]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability[0])
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: triton[0])
    assert machine.choose_compilation(None, cuda)
    assert not machine.choose_compilation(None, torch.device("cpu"))
    assert machine.choose_compilation(True, torch.device("cpu"))
    assert not machine.choose_compilation(False, cuda)
    capability[0] = (6, 1)
    assert not machine.choose_compilation(None, cuda)
    capability[0], triton[0] = (8, 0), None
    assert not machine.choose_compilation(None, cuda)
    assert "needs Triton" in caplog.text
    triton[0] = object()
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert not machine.choose_compilation(None, cuda)


def test_the_process_group_outwaits_the_watchdog_of_a_process_that_saves(monkeypatch):
    """Else a slow save ends the run in all processes that wait for it."""
    given = {}
    monkeypatch.setattr(accelerate, "Accelerator", lambda **options: given.update(options) or accelerate.PartialState())
    make_accelerator(mixed_precision="no", use_cpu=True, timeout=60)
    (group,) = (one for one in given["kwargs_handlers"] if isinstance(one, accelerate.InitProcessGroupKwargs))
    assert group.timeout.total_seconds() > 60 + SECONDS_TO_SAVE


def test_a_number_of_the_environment_does_not_divide_the_gradient(monkeypatch):
    """A launcher may set it for its own loop; ours accumulates by itself."""
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    assert make_accelerator(mixed_precision="no", use_cpu=True).gradient_accumulation_steps == 1
