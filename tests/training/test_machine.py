"""What a run chooses of its machine: the device, the seed of a step, whether to compile."""

import shutil
import sysconfig

import accelerate
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from pretraining_helpers import model_config, settings
from torch.nn.parallel import DistributedDataParallel

from clozebert import ClozeBertConfig, ClozeBertForMaskedLM
from clozebert.modeling import window_attention
from clozebert.training import PretrainingArguments, pretrain
from clozebert.training.runtime import machine
from clozebert.training.runtime.machine import make_accelerator
from clozebert.training.runtime.watchdog import SECONDS_TO_SAVE
from clozebert.utils.device import choose_precision, find_device, training_modes
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
    capability = [(8, 0)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability[0])
    monkeypatch.setattr(window_attention, "KERNELS", object())
    machine._say_not_compiled.cache_clear()
    assert machine.choose_compilation(None, cuda)
    assert not machine.choose_compilation(None, torch.device("cpu"))
    assert machine.choose_compilation(True, torch.device("cpu"))
    assert not machine.choose_compilation(False, cuda)
    capability[0] = (6, 1)
    assert not machine.choose_compilation(None, cuda)
    capability[0] = (8, 0)
    with monkeypatch.context() as without_compiler:  # Triton alone can launch nothing
        without_compiler.setattr(window_attention, "KERNELS", None)
        assert not any(machine.choose_compilation(None, cuda) for _ in range(2))
    assert caplog.text.count("needs Triton (pip install triton), a C compiler and Python's headers") == 1
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert not machine.choose_compilation(None, cuda)


@pytest.mark.parametrize(
    ("wanted", "norm_position", "precision", "on_cuda", "found"),
    [
        (None, "pre", "bf16", True, True),
        (None, "post", "bf16", True, False),
        (None, "pre", "fp16", True, False),
        (None, "pre", "no", True, False),
        (None, "pre", "bf16", False, False),
        (False, "pre", "bf16", True, False),
        (True, "pre", "bf16", False, True),
    ],
)
def test_a_residual_stream_in_bf16_is_the_default_on_cuda_alone(wanted, norm_position, precision, on_cuda, found):
    config = ClozeBertConfig(norm_position=norm_position)
    assert machine.choose_bf16_residual(wanted, config, precision=precision, on_cuda=on_cuda) is found


@pytest.mark.parametrize(
    ("found", "headers", "wanted"),
    [("gcc", True, True), ("clang", True, True), ("cc", True, False), (None, True, False), ("gcc", False, False)],
)
def test_triton_needs_a_compiler_that_it_looks_for_and_headers(found, headers, wanted, tmp_path, monkeypatch):
    """As for the Python of Debian and Ubuntu, whose own scheme may name a folder that is not there."""
    folders = {"posix_prefix": str(tmp_path), "posix_local": "/nowhere"}
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(sysconfig, "get_default_scheme", lambda: "posix_local")
    monkeypatch.setattr(sysconfig, "get_path", lambda name, scheme="posix_local": folders[scheme])
    monkeypatch.setattr(shutil, "which", lambda name: name if name == found else None)
    if headers:
        (tmp_path / "Python.h").touch()
    assert window_attention._can_compile_launchers() == wanted


@pytest.fixture
def alone_in_a_group():
    """A process group of this process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_several_processes_compile_the_graphs_of_one(alone_in_a_group):
    """PyTorch would cut a layer of 3 MB for DDP, after the first MB of its weights."""
    made = {}
    for distributed in (False, True):
        config = ClozeBertConfig(
            vocab_size=64, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=1024
        )
        model = ClozeBertForMaskedLM(config).train()
        graphs = made[distributed] = []
        torch._dynamo.reset()
        machine.compile_model(
            model, torch.device("cuda"), backend=lambda graph, _, graphs=graphs: graphs.append(graph) or graph.forward
        )
        trained = DistributedDataParallel(model, broadcast_buffers=False) if distributed else model
        ids = torch.arange(40)[None]
        trained(input_ids=ids, labels=ids).loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
    sizes = [[sum(node.op == "call_function" for node in graph.graph.nodes) for graph in made[key]] for key in made]
    assert sizes[0] == sizes[1]
    assert len(sizes[0]) >= 3


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


def test_an_accelerator_of_the_calling_program_keeps_its_precision(prepared, tmp_path):
    AcceleratorState._reset_state()
    mine = Accelerator(mixed_precision="bf16", cpu=True)
    flags = settings(prepared, output_dir=str(tmp_path / "o"), max_steps=1, warmup_steps=0)
    pretrain(PretrainingArguments(**flags), model_config())
    assert mine.mixed_precision == "bf16"
    with mine.autocast():
        assert torch.nn.Linear(4, 4)(torch.ones(2, 4)).dtype == torch.bfloat16
    AcceleratorState._reset_state()


def test_the_calling_program_may_make_an_accelerator_of_any_precision_afterwards():
    AcceleratorState._reset_state()
    with training_modes(torch.device("cpu")):
        make_accelerator(mixed_precision="no", use_cpu=True)
    assert Accelerator(mixed_precision="bf16", cpu=True).mixed_precision == "bf16"
    AcceleratorState._reset_state()
