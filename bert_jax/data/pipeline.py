"""Batches prepared ahead of the device, by tf.data or by a thread, with identical arrays."""

import collections
import concurrent.futures
import contextlib
import math
import os
from collections.abc import Callable, Generator, Iterable
from typing import Any

import numpy as np

from bert_jax.config.checks import check_loader
from bert_jax.data.examples import Batch, StoreExamples
from bert_jax.data.mixtures import Mixture, check_epoch

_THREADS = 2  # the work is NumPy, partly under Python's lock, so more threads would only wait for each other
_NUMBERS_AT_ONCE = 1 << 20  # entries of the batches that are made together: about 15 ms of work
_MOST_AT_ONCE = 8  # batches, so that a first step of few rows does not wait until hundreds have been placed


def batches(
    examples: StoreExamples | Mixture,
    first_position: int,
    batch_size: int,
    rows: np.ndarray,
    num_batches: int,
    loader: str = "auto",
    prefetch: int = 4,
    place: Callable[[Batch], Any] = lambda batch: batch,
) -> Generator[Any, None, None]:
    """Yield `num_batches` batches of the examples from `first_position` on.

    They are made and placed in threads, so that the next ones are on their way to the devices during a step. Small
    batches are made several at once, because most of the time of a single one passes between calls of NumPy.

    Args:
      first_position: number of examples seen before, which is all that a checkpoint has to keep.
      batch_size: number of examples of the global batch.
      rows: int64 [B], the rows of the global batch that this host makes.
      loader: "tf.data", "plain", or "auto" for plain.
      prefetch: number of batches to prepare ahead, at least.
      place: brings a batch to the devices; by default it stays as it is.

    Raises:
      UserError: an epoch has fewer examples than `batch_size`, or TensorFlow is requested but missing. An error in
        making a batch is raised unchanged by the call that asks for that batch.
    """
    check_epoch(examples, batch_size)
    check_loader(loader)
    rows = np.asarray(rows, np.int64)

    def make(number: int) -> Batch:
        return examples.batch(first_position + number * batch_size + rows)

    if loader != "tf.data":
        size = len(rows) * sum(math.prod(shape) for shape, _ in examples.layout.values())
        at_once = max(1, min(_NUMBERS_AT_ONCE // size, _MOST_AT_ONCE, num_batches))

        def make_some(number: int) -> Iterable[Any]:
            numbers = np.arange(number * at_once, min((number + 1) * at_once, num_batches))
            try:
                some = examples.batch((first_position + numbers[:, None] * batch_size + rows).ravel())
            except Exception:  # one of them fails, which has to wait until the others have been used
                return (place(make(each)) for each in numbers.tolist())
            return [place(batch) for batch in _divided(some, len(numbers))]

        groups = ahead(make_some, -(-num_batches // at_once), max(_THREADS, prefetch // at_once), _THREADS)
        return _each(groups)
    shapes = {name: ((len(rows), *shape), dtype) for name, (shape, dtype) in examples.layout.items()}
    return _ahead_of(_tf_batches(make, shapes, num_batches, prefetch), place, num_batches)


def _divided(batch: Batch, number: int) -> list[Batch]:
    """Return a batch as `number` batches of consecutive rows."""
    parts = {name: np.split(values, number) for name, values in batch.items()}
    return [{name: values[each] for name, values in parts.items()} for each in range(number)]


def _each(groups: Generator[Iterable[Any], None, None]) -> Generator[Any, None, None]:
    """Yield what is in the groups, which are closed when this is."""
    with contextlib.closing(groups):
        for group in groups:
            yield from group


def ahead(make: Callable[[int], Any], num_batches: int, prefetch: int, threads: int = 1) -> Generator[Any, None, None]:
    """Yield make(0), make(1), … in this order, up to `prefetch` of them made ahead in threads."""
    worker = concurrent.futures.ThreadPoolExecutor(max_workers=threads, thread_name_prefix="batches")
    try:
        pending = collections.deque(worker.submit(make, number) for number in range(min(prefetch, num_batches)))
        for number in range(num_batches):
            batch = pending.popleft().result()
            if number + prefetch < num_batches:
                pending.append(worker.submit(make, number + prefetch))
            yield batch
    finally:
        worker.shutdown(wait=True, cancel_futures=True)


def _ahead_of(
    made: Generator[Batch, None, None], place: Callable[[Batch], Any], num_batches: int
) -> Generator[Any, None, None]:
    """Yield the batches `made`, placed in a thread: one waits on the devices and one is on its way."""
    with contextlib.closing(made), contextlib.closing(ahead(lambda _: place(next(made)), num_batches, 2)) as placed:
        yield from placed


def _tf_batches(
    make: Callable[[int], Batch], shapes: dict[str, tuple[Any, ...]], num_batches: int, prefetch: int
) -> Generator[Batch, None, None]:
    tf = _tensorflow()
    failures = {}

    def arrays(number: Any):
        try:
            batch = make(int(number))
            return [batch[name] for name in shapes]
        except Exception as failure:  # TensorFlow would turn it into a status code and a message
            failures[int(number)] = failure
            raise

    def tensors(number: Any):
        values = tf.numpy_function(
            arrays, [number], [tf.as_dtype(dtype) for _, dtype in shapes.values()], stateful=False
        )
        return {
            name: tf.ensure_shape(value, shape)
            for value, (name, (shape, _)) in zip(values, shapes.items(), strict=True)
        }

    options = tf.data.Options()
    options.threading.private_threadpool_size = _THREADS
    options.threading.max_intra_op_parallelism = 1
    dataset = tf.data.Dataset.range(num_batches)
    dataset = dataset.map(tensors, num_parallel_calls=_THREADS, deterministic=True)
    dataset = dataset.prefetch(prefetch).with_options(options)
    iterator = dataset.as_numpy_iterator()
    for number in range(num_batches):
        try:
            batch = next(iterator)
        except tf.errors.OpError:
            if number in failures:
                raise failures[number] from None
            raise
        yield batch  # pyright: ignore[reportReturnType] (as_numpy_iterator's type knows arrays only)


def _tensorflow():
    # The pipeline does not need it, and TensorFlow announces it in long lines.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    import tensorflow as tf

    try:
        tf.config.set_visible_devices([], "GPU")  # TensorFlow would otherwise take the memory that the model needs
    except RuntimeError:
        pass  # the surrounding program has initialized it already and made its own choice
    return tf
