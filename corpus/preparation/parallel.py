"""A parallel map over processes: results in order, and a bounded number of tasks under way."""

import multiprocessing.connection
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from ...utils.processes import LostProcessError

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_TASKS_PER_PROCESS = 4
_MOST_ON_WINDOWS = 61  # processes of a pool: it waits for all at once, and Windows for no more


def ordered_map(
    function: Callable[[_Task], _Result],
    tasks: Iterable[_Task],
    *,
    num_processes: int,
    initializer: Callable[..., Any],
    initargs: tuple[Any, ...] = (),
) -> Iterator[_Result]:
    """`map(function, tasks)` in `num_processes` processes, or in this process if that is 1.

    Tasks are taken from the iterator as results are consumed, so memory stays bounded.

    Raises:
        LostProcessError: a process was killed, or could not start.
    """
    # A worker of a pool may not have processes of its own.
    if num_processes == 1 or multiprocessing.current_process().daemon:
        initializer(*initargs)
        yield from map(function, tasks)
        return
    # spawn: forking a process that runs threads (tokenizers, arrow) can deadlock the child.
    context = multiprocessing.get_context("spawn")
    if sys.platform == "win32":
        num_processes = min(num_processes, _MOST_ON_WINDOWS)
    executor = ProcessPoolExecutor(
        num_processes, mp_context=context, initializer=_begin, initargs=(initializer, *initargs)
    )
    waiting: deque[Future[_Result]] = deque()
    try:
        for task in tasks:
            waiting.append(executor.submit(function, task))
            if len(waiting) >= _TASKS_PER_PROCESS * num_processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        if sys.version_info < (3, 11):
            # Else a task that is half written into the pipe of an ended process is waited for without end.
            executor._call_queue._reader.close()  # type: ignore[attr-defined,unused-ignore]
        raise LostProcessError(
            "a process ended before its work was done. In a script of your own, the call needs "
            '`if __name__ == "__main__":` around it. If the memory was used up, give a smaller num_processes'
        ) from None
    finally:
        executor.shutdown(cancel_futures=True)


def _begin(initializer: Callable[..., Any], *initargs: Any) -> None:
    """Begin a process of a pool, which ends when the one that started it has ended, killed perhaps."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    initializer(*initargs)
