"""Saving the state of a run, even if its work directory was deleted or renamed since the last save."""

from collections.abc import Callable
from typing import Any, Protocol

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.workdir import WorkDirectory
from bert_jax.devices.watchdog import Watchdog
from bert_jax.training.events import Events
from bert_jax.training.metrics import Metrics, Rates


class Reporter(Protocol):
    def finish(self) -> None:
        """Write the metrics of earlier steps that are still pending."""


class Saver:
    """Saves the states of one run, and first writes its directory again if that was lost.

    Args:
      workdir: the work directory of the run.
      states: where the states are saved.
      others: whatever else the run writes below `workdir`.
      reporter: finishes the metrics of earlier steps before a save.
      rates: paused during a save.
      watchdog: told that a save takes long.
      config: the resolved configuration, saved in every checkpoint.
      position: returns the position of the run after a step, once `reporter` has finished.
    """

    def __init__(
        self,
        workdir: WorkDirectory,
        states: Checkpoints,
        others: tuple[Checkpoints | Metrics | Events, ...],
        reporter: Reporter,
        rates: Rates,
        watchdog: Watchdog,
        config: dict[str, Any],
        position: Callable[[int], dict[str, Any]],
    ):
        self._workdir, self._states, self._others = workdir, states, others
        self._reporter, self._rates, self._watchdog = reporter, rates, watchdog
        self._config, self._position = config, position

    def secure(self) -> None:
        """Write the directory again if it was deleted, renamed or replaced.

        Every host must call this before anything is saved.

        Raises:
          UserError: another run or process has the directory now.
        """
        if self._workdir.secure():
            for written in (self._states, *self._others):
                written.reload()

    def save(self, step: int, state: Any, metrics: dict[str, float] | None = None) -> None:
        """Write the state after `step` steps and the held-out metrics of that step, in the background.

        Raises:
          UserError: this save or the previous one could not be written.
        """
        self._reporter.finish()
        self._watchdog.begin("save")
        self.secure()
        with self._rates.paused("checkpoint"):
            self._states.save(step, state, position=self._position(step), config=self._config, metrics=metrics)

    def save_locally(self, step: int, state: Any) -> None:
        """Write the state after `step` steps to the local disks of the hosts, if they are used, in the background."""
        if self._states.local is not None:
            self._reporter.finish()
            with self._rates.paused("checkpoint"):
                self._states.local.save(step, state, position=self._position(step), config=self._config)

    def save_for_good(self, step: int, state: Any, metrics: dict[str, float] | None = None) -> None:
        """Save as `save` does, and wait until the state is written."""
        for _ in range(2):  # the second save notices if the directory was lost during the first
            self.save(step, state, metrics)
            with self._rates.paused("checkpoint"):
                self._states.wait()
