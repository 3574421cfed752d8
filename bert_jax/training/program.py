"""A jitted function compiled ahead of its first call, so that a signal can end the wait and no rate counts it."""

import contextlib
from collections.abc import Callable

import jax

from bert_jax.devices.signals import StopSignals
from bert_jax.training.events import Events
from bert_jax.training.metrics import Rates


class Program:
    """A jitted function of (state or parameters, batch, …), compiled once per shape of the batch.

    Args:
      function: from `jax.jit`; only the shapes of the batch may differ between two calls.
    """

    def __init__(self, function):
        self._function = function
        self.compiled: dict[tuple, Callable] = {}
        """Compiled functions by the shapes of the batch's arrays."""

    def __call__(self, *arguments):
        self.prepare(*arguments)
        return self.compiled[_shapes(arguments)](*arguments)

    def prepare(
        self,
        *arguments,
        signals: StopSignals | None = None,
        rates: Rates | None = None,
        events: Events | None = None,
    ) -> None:
        """Compile for arguments of these shapes if that has not been done yet.

        Args:
          signals: may end the wait.
          rates: paused during the compilation. The steps under way are waited for first, so that they are counted.
          events: where the compilation is noted.

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
            compile_ = self._function.lower(*arguments).compile
            self.compiled[shapes] = compile_() if signals is None else signals.wait(compile_)


def _shapes(arguments: tuple) -> tuple:
    _, batch, *_ = arguments
    return tuple(values.shape for values in batch.values())
