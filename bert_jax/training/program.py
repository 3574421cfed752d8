"""A jitted function compiled ahead of its first call: beside other work, and so that a signal can end the wait."""

import concurrent.futures
import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from bert_jax.devices.compiler_options import compile_with
from bert_jax.devices.signals import COMPILING, StopSignals
from bert_jax.training.events import Events
from bert_jax.training.frozen import Frozen
from bert_jax.training.metrics import Rates


class Program:
    """A jitted function of (state or parameters, batch, …), compiled once per shape and type of the batch.

    Args:
      function: from `jax.jit`; only the shapes and types of the batch may differ between two calls.
      frozen: arrays that it takes after the arguments of every call (training/frozen.py).
      options: of the compiler (devices/compiler_options.py).
    """

    def __init__(self, function: Any, frozen: Frozen = (), options: Mapping[str, bool | str] | None = None):
        self._function, self._frozen, self._options = function, frozen, options or {}
        self.compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}
        """Compiled functions by the shapes and types of the batch's arrays."""
        self._begun: dict[tuple[Any, ...], concurrent.futures.Future[Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        self.prepare(*arguments)
        return self.compiled[_shapes(arguments)](*arguments, *self._frozen)

    def begin(self, *arguments: Any) -> None:
        """Compile in a thread, for arguments of these shapes, types and shardings; `prepare` waits for what is left.

        Args:
          *arguments: arrays, or ShapeDtypeStructs with the shardings of the arrays to come.
        """
        shapes = _shapes(arguments)
        if shapes in self.compiled or shapes in self._begun:
            return
        executor = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix=COMPILING)
        self._begun[shapes] = executor.submit(lambda: self._compilation(*arguments)())
        executor.shutdown(wait=False)

    def prepare(
        self,
        *arguments: Any,
        signals: StopSignals | None = None,
        rates: Rates | None = None,
        events: Events | None = None,
    ) -> None:
        """Compile for arguments of these shapes if that has not been done yet.

        Args:
          signals: may end the wait.
          rates: paused during the compilation. The steps under way are waited for first, so that they are counted.
          events: where the seconds of waiting for the compilation are noted.

        Raises:
          Stopped: raised by `signals`.
        """
        shapes = _shapes(arguments)
        if shapes in self.compiled:
            return
        jax.block_until_ready(arguments)
        with contextlib.ExitStack() as measured:
            if rates is not None:
                measured.enter_context(rates.paused("compile"))
            if events is not None:
                measured.enter_context(events.timed("compiled", events.step))
            begun = self._begun.pop(shapes, None)
            compile_ = self._compilation(*arguments) if begun is None else begun.result
            self.compiled[shapes] = compile_() if signals is None else signals.wait(compile_)

    def _compilation(self, *arguments: Any) -> Callable[[], Callable[..., Any]]:
        """Trace the function, and return what compiles it."""
        return functools.partial(compile_with, self._function.lower(*arguments, *self._frozen), self._options)


def _shapes(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    _, batch, *_ = arguments
    return tuple((name, values.shape, values.dtype) for name, values in sorted(batch.items()))
