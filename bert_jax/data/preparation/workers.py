"""Applies a function to a stream of tasks in several processes; a bounded number is in progress."""

import collections
import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

Task = TypeVar("Task", bound=tuple[Any, ...])
Result = TypeVar("Result")

_function: Callable[..., Any]  # one per worker process


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    tasks: Iterable[Task], make: Callable[..., Callable[..., Result]], arguments: tuple[Any, ...], workers: int
) -> Iterator[tuple[Task, Result]]:
    """Yield every task with its result, in order; a single worker is this process.

    Args:
      tasks: the arguments of each call.
      make: what each worker calls with `arguments` to get the function that it applies to tasks.
      arguments: those of `make`.
      workers: number of processes.
    """
    if workers == 1:
        function = make(*arguments)
        for task in tasks:
            yield task, function(*task)
        return
    pool = concurrent.futures.ProcessPoolExecutor(  # spawn: the parent may hold threads (TensorFlow, tokenizers)
        workers, multiprocessing.get_context("spawn"), _start_worker, (make, arguments)
    )
    under_way: collections.deque[Any] = collections.deque()
    try:
        for task in tasks:
            under_way.append((task, pool.submit(_call, *task)))
            if len(under_way) > 2 * workers:
                task, future = under_way.popleft()
                yield task, future.result()
        for task, future in under_way:
            yield task, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker(make: Callable[..., Callable[..., Any]], arguments: tuple[Any, ...]) -> None:
    global _function
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers itself
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _function = make(*arguments)


def _end_with_parent() -> None:
    """End a worker whose parent was killed by SIGKILL, which would otherwise wait for work forever."""
    if parent := multiprocessing.parent_process():
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _call(*task: Any) -> Any:
    return _function(*task)
