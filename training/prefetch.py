"""Prefetches the batches of the loop (data loading), in a thread or in worker processes."""

import contextlib
import functools
import io
import itertools
import multiprocessing
import multiprocessing.connection
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from ..configuration import ClozeBertConfig
from ..modeling.losses import IGNORED_LABEL
from ..modeling.packed import RECURRING_SIZE, Packed
from ..modeling.packed_attention import prepare_attention
from ..utils.errors import UserError
from ..utils.interrupts import say_now
from ..utils.stop_request import STOP_SIGNALS

ModelInputs = dict[str, Any]
# Steps whose batches are prefetched.
_AHEAD = 3
_LOST = (
    "a data worker has ended, as for lack of memory: --resume_from_checkpoint latest continues, with fewer "
    "--dataloader_num_workers if it happens again. In a script of your own, the call needs "
    '`if __name__ == "__main__":` around it'
)


def model_inputs(batch: Any, *, plan_for: ClozeBertConfig | None = None, recurs: bool = False) -> ModelInputs:
    """A packed batch of `clozebert.corpus` as keyword arguments of `ClozeBertForMaskedLM`, on the CPU.

    Args:
        plan_for: a model's configuration; the plans of its attention for training on a CPU are then made here.
        recurs: pad the predicted tokens to a number that recurs, with labels that are ignored: oneDNN compiles a
            kernel for each shape, and keeps about a thousand.
    """
    packed = Packed.from_cu_seq_lens(
        torch.from_numpy(batch.cu_seq_lens),
        tokens=batch.input_ids.shape[1],
        max_length=int(batch.max_length),
        position_ids=torch.from_numpy(batch.position_ids),
    )
    masked_positions, labels = torch.from_numpy(batch.masked_positions), torch.from_numpy(batch.labels)
    if recurs and len(labels):
        missing = -len(labels) % RECURRING_SIZE
        masked_positions = torch.cat([masked_positions, masked_positions[-1:].expand(missing)])
        labels = torch.cat([labels, labels.new_full((missing,), IGNORED_LABEL)])
    if plan_for is not None:
        planned = packed.filled_up() if recurs else packed  # as the encoder will fill it up
        prepare_attention(planned, plan_for, read_positions=masked_positions)
    inputs = {
        "input_ids": torch.from_numpy(batch.input_ids),
        "packed": packed,
        "masked_positions": masked_positions,
        "labels": labels,
    }
    if batch.vocabulary is not None:
        inputs["sampled_ids"] = torch.from_numpy(batch.vocabulary.ids)
        inputs["sampled_log_rates"] = torch.from_numpy(batch.vocabulary.log_rates)
    return inputs


def inputs_maker(config: ClozeBertConfig, accelerator: Any) -> Callable[[Any], ModelInputs]:
    """`model_inputs` for training on this machine: on a CPU with plans and, in half precision, with recurring sizes."""
    on_cpu = accelerator.device.type == "cpu"
    recurs = on_cpu and accelerator.mixed_precision != "no"
    return functools.partial(model_inputs, plan_for=config if on_cpu else None, recurs=recurs)


@dataclass
class StepLoader:
    """Maps a step to this process' micro-batches, as the model's keyword arguments, and their number of predictions.

    `micro_batches`: of a full global batch; a smaller one has fewer of the same size. `make_inputs`: see
    `inputs_maker`. `pins`: whether to pin the batches in memory, so that copies to CUDA are asynchronous.
    """

    stream: Any
    rank: int
    world_size: int
    micro_batches: int
    make_inputs: Callable[[Any], ModelInputs] = model_inputs
    pins: bool = False

    def __call__(self, step: int) -> tuple[list[ModelInputs], int]:
        size = self.stream.batch_size
        micro_batches = -(-self.micro_batches * size.at(step) // size.rows)
        batches = [
            self.stream.batch(
                step,
                rank=self.rank,
                world_size=self.world_size,
                micro_batch=micro_batch,
                micro_batches=micro_batches,
            )
            for micro_batch in range(micro_batches)
        ]
        num_predicted = sum(len(batch.labels) for batch in batches)
        inputs = [self.make_inputs(batch) for batch in batches]
        return [pin(one) for one in inputs] if self.pins else inputs, num_predicted


def count_predicted(inputs: ModelInputs) -> int:
    """How many tokens a micro-batch predicts, without the padding of its labels."""
    return int((inputs["labels"] != IGNORED_LABEL).sum())


def pin(inputs: ModelInputs) -> ModelInputs:
    return {key: value.pin_memory() for key, value in inputs.items()}


def to_device(inputs: ModelInputs, device: torch.device) -> ModelInputs:
    """Copy to an accelerator, asynchronously from pinned memory; on the CPU nothing is copied."""
    if device.type == "cpu":
        return inputs
    return {key: value.to(device, non_blocking=device.type == "cuda") for key, value in inputs.items()}


def prefetch(
    load: Callable[[int], Any], start: int, stop: int, *, workers: int = 0, timeout: int = 0
) -> Generator[Any, None, None]:
    """Yield `load(start), …, load(stop - 1)` in this order, prefetched.

    Without workers, `load` runs in a thread of this process; so it does in a process of a pool, which may have none of
    its own. An error in `load` is raised when its step is due.

    Args:
        timeout: seconds after which a worker process that makes no batch is an error; 0: never.

    Raises:
        UserError: a worker process has ended, or made no batch in time.
    """
    if workers == 0 or multiprocessing.current_process().daemon:
        return _from_thread(load, start, stop)
    return _from_processes(load, start, stop, workers, timeout)


def _from_thread(load: Callable[[int], Any], start: int, stop: int) -> Generator[Any, None, None]:
    steps = iter(range(start, stop))
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
    try:
        _limit_to_one_thread(pool)
        ahead = deque(pool.submit(load, step) for step in itertools.islice(steps, _AHEAD))
        while ahead:
            loaded = ahead.popleft().result()
            ahead.extend(pool.submit(load, step) for step in itertools.islice(steps, 1))
            yield loaded
    finally:
        pool.shutdown(cancel_futures=True)


def _limit_to_one_thread(pool: ThreadPoolExecutor) -> None:
    """Limit what the thread of the pool computes to one core, as in DataLoader's workers.

    OpenMP keeps a team of threads for each thread that computes on several cores. With two teams there are more threads
    than cores, and the threads of the model's team then sleep between operations: a step took 1.5 times as long
    (docs/LOG.md).
    """
    threads = torch.get_num_threads()

    def limit() -> None:
        torch.get_num_threads()  # gives this thread the process' number, once
        torch.set_num_threads(1)

    pool.submit(limit).result()
    # OpenMP's number is set per thread. MKL's, and that of future threads, are set for the process: restore them.
    torch.set_num_threads(threads)


class _Steps(Dataset):
    """A map-style dataset whose items are whole steps."""

    def __init__(self, load: Callable[[int], Any], start: int, stop: int):
        self.load, self.start, self.stop = load, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: int) -> Any:
        return self.load(self.start + index)


def _from_processes(
    load: Callable[[int], Any], start: int, stop: int, workers: int, timeout: int
) -> Generator[Any, None, None]:
    others = set(multiprocessing.active_children())
    # Its own generator: the loader draws a seed, which must not change the model's random numbers.
    loader = DataLoader(
        _Steps(load, start, stop),
        batch_size=None,
        num_workers=workers,
        worker_init_fn=_ignore_signals,
        generator=torch.Generator().manual_seed(0),
        collate_fn=_as_one_tensor,
    )
    with _keeping_handler():
        steps = iter(loader)
    processes = [child for child in multiprocessing.active_children() if child not in others]
    for _ in range(start, stop):
        try:
            with _killing_late(processes, timeout):
                loaded = next(steps)
        except Exception as error:
            # The error of a lost worker is of any kind. The worker may end a moment later than its connection.
            is_lost = multiprocessing.connection.wait([process.sentinel for process in processes], timeout=1.0)
            for process in processes:  # they ignore signals, so the end of the program would wait for those that live
                process.kill()
            if not is_lost:
                raise
            raise UserError(_LOST) from error
        yield pickle.loads(loaded.numpy())


@contextlib.contextmanager
def _killing_late(processes: list[Any], seconds: int) -> Iterator[None]:
    """Kill processes for which the caller has waited too long: one that hangs may have sent half of a batch.

    Only seconds in which this process ran itself count: a terminal's Ctrl-Z stops all of them.
    """
    arrived = threading.Event()

    def watch() -> None:
        if any(arrived.wait(1.0) for _ in range(seconds)):
            return
        say_now(f"a data worker made no batch for {seconds} seconds (ddp_timeout), and is ended")
        for process in processes:
            process.kill()

    if seconds:
        threading.Thread(target=watch, name="late batches", daemon=True).start()
    try:
        yield
    finally:
        arrived.set()


@contextlib.contextmanager
def _keeping_handler() -> Iterator[None]:
    """Keep the handler of SIGCHLD: with torch's own, the end of a worker is an error wherever the run happens to be.

    Without it, the error comes where the next batch is waited for.
    """
    number = getattr(signal, "SIGCHLD", None)  # Windows has none
    before = None if number is None else signal.getsignal(number)
    yield
    if number is not None and signal.getsignal(number) is not before:
        signal.signal(number, before)


def _ignore_signals(worker: int) -> None:
    """Ignore signals to the whole process group: the main process handles them, and still needs its workers."""
    signal.set_wakeup_fd(-1)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays. torch's own way takes longer."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype is not torch.bfloat16:  # NumPy has no bfloat16
            return torch.from_numpy, (value.numpy(),)
        return NotImplemented


def _as_one_tensor(item: Any) -> torch.Tensor:
    """A step as one tensor, as each tensor that a worker sends holds an open file, of which a process may have few."""
    written = io.BytesIO()
    _Pickler(written, protocol=5).dump(item)
    return torch.frombuffer(written.getbuffer(), dtype=torch.uint8)
