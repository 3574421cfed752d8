"""Saving the state of a run, also where its work directory was deleted or renamed since the last save."""

from collections.abc import Callable
from typing import Protocol

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.workdir import WorkDirectory
from bert_jax.training.metrics import Metrics, Rates


class Reporter(Protocol):
    def finish(self) -> None:
        """Write what is still out of the steps before."""


class Saver:
    """Saves the states of one run, and writes its directory again first if that was lost.

    Args:
      states: where they go.
      others: what else the run writes below `workdir`.
      rates: paused during a save.
      config: the resolved configuration, of every checkpoint.
      position: where the run stands after a step, once `reporter` has finished.
    """

    def __init__(
        self,
        workdir: WorkDirectory,
        states: Checkpoints,
        others: tuple[Checkpoints | Metrics, ...],
        reporter: Reporter,
        rates: Rates,
        config: dict,
        position: Callable[[int], dict],
    ):
        self._workdir, self._states, self._others = workdir, states, others
        self._reporter, self._rates, self._config, self._position = reporter, rates, config, position

    def secure(self) -> None:
        """Write the directory again if it was deleted, renamed or replaced; called on every host before anything is saved.

        Raises:
          UserError: another run or process has the directory now.
        """
        if self._workdir.secure():
            for written in (self._states, *self._others):
                written.reload()

    def save(self, step: int, state, metrics: dict[str, float] | None = None) -> None:
        """Write, in the background, the state after `step` steps and the held-out metrics of that step.

        Raises:
          UserError: this save or the previous one could not be written.
        """
        self._reporter.finish()
        self.secure()
        with self._rates.paused():
            self._states.save(step, state, position=self._position(step), config=self._config, metrics=metrics)

    def save_for_good(self, step: int, state, metrics: dict[str, float] | None = None) -> None:
        """Do as `save`, and wait until the state is there."""
        for _ in range(2):  # a directory that is lost while it is written to is noticed by the next save
            self.save(step, state, metrics)
            self._states.wait()
