"""Checkpoints of a run with Orbax: written atomically, verified when read, with fallback to older steps.

A step directory appears with one rename and holds two items: `state` (the arrays) and `record` (record.py). In
addition to Orbax's guarantees, changed bytes are noticed, a damaged newest step is replaced by an older good one, a
failed background save is reported at the next step, and an error about a model that does not fit names its
parameters.
"""

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging
from etils import epath

from bert_jax.checkpoints.local_tier import LocalTier
from bert_jax.checkpoints.record import make_record, rank, sealed
from bert_jax.checkpoints.steps import (
    Manager,
    Restored,
    StepDirectories,
    all_refused,
    need_plain_path,
    walk_back,
    write_error,
)
from bert_jax.config import CheckpointConfig
from bert_jax.devices.hosts import from_first
from bert_jax.errors import UserError

WRITE_ERRORS = (OSError, ValueError, RuntimeError)  # TensorStore reports a full disk as ValueError


class Checkpoints:
    """The checkpoints below one directory (local or gs://): one writer, and any number of readers (read_only=True).

    Several writers in one program need directories with different names, or runs with different ids.

    Args:
      best_metric: name of the held-out loss that determines the best steps of the latest phase, or that of each phase;
        empty: there are none.
      run_id: id in every step of the run, None outside of runs; a step with a different one is not restored.
      lost: returns whether the directory was deleted or renamed, which is no error of a save; `reload` follows before
        the next.
      committed: called with the step and the seconds since `save`, once it is known that a step has been written.
      local: more frequent saves of the same run on the local disks of the hosts.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        config: CheckpointConfig = CheckpointConfig(),
        read_only: bool = False,
        run_id: str | None = None,
        lost: Callable[[], bool] = lambda: False,
        best_metric: str | tuple[str, ...] = "",
        committed: Callable[[int, float], None] = lambda step, seconds: None,
        local: LocalTier | None = None,
    ):
        self._places = StepDirectories(directory, run_id)
        self.directory: epath.Path = self._places.directory
        self.run_id: str | None = run_id
        self.local: LocalTier | None = local
        self._config = config
        self._lost, self._best_metric, self._committed = lost, best_metric, committed
        self._pending: int | None = None
        self._saved: int | None = None
        self._manager: Manager | None = None
        if read_only:
            return
        need_plain_path(self.directory)
        ranks = {step: self._places.rank(step, best_metric) for step in self.steps()}
        self._ranks = {step: found for step, found in ranks.items() if found is not None}
        self._manager = self._open()

    def _open(self, after_loss: bool = False) -> Manager:
        try:
            return Manager(self.directory, self.run_id, self._config, self._ranks, after_loss)
        except OSError as error:
            raise UserError(
                f"cannot write checkpoints below {self.directory}: {error}; give another --workdir"
            ) from error

    def steps(self) -> list[int]:
        """Return the committed steps in ascending order; a save in progress or a failed one is not among them."""
        found = self._places.committed()
        # A network file system may not yet show one host what another host has committed.
        return sorted(found if self._saved is None else found | {self._saved})

    def steps_anywhere(self) -> list[int]:
        """Return the steps that the first host sees here, and those of the local saves; every host asks."""
        return sorted({*from_first(self.steps()), *([] if self.local is None else self.local.steps())})

    def directories(self) -> list[epath.Path]:
        """Return the directories of the committed steps, in ascending order."""
        return [self._places.path(step) for step in self.steps()]

    def latest_step(self) -> int | None:
        """Return the newest step, here or among the local saves of this host; None if there is none."""
        near = None if self.local is None else self.local.newest()
        return max([*self.steps(), *([] if near is None else [near])], default=None)

    def save(
        self,
        step: int,
        state: Any,
        *,
        position: dict[str, Any],
        config: dict[str, Any],
        metrics: dict[str, Any] | None = None,
    ) -> bool:
        """Copy `state` and write it in the background; return False if this step already exists.

        Args:
          state: any pytree of arrays; may be donated or changed as soon as this returns.
          position: position in the data stream, e.g. {"examples_seen": n, "phase": i}.

        Raises:
          UserError: the previous save or this one could not be written.
        """
        self.wait()
        if self._manager is None and self._lost():
            raise UserError(
                f"{self.directory} was deleted or renamed while it was being written; start the same command again"
            )
        if self._manager is None:
            raise RuntimeError("this Checkpoints is read-only, closed, or ended by a failed save")
        if step in self.steps():
            return False
        self._begun = time.monotonic()
        content = make_record(step, state, position, config, metrics, self.run_id)
        if (found := rank(content, self._best_metric)) is not None:
            self._ranks[step] = found
        try:
            self._manager.save(
                step,
                force=True,
                args=ocp.args.Composite(state=ocp.args.PyTreeSave(state), record=ocp.args.JsonSave(sealed(content))),
            )
        except OSError as error:
            raise write_error(self.directory, step, error, self.latest_step()) from error
        self._pending = step
        return True

    def poll(self) -> None:
        """Report background saves that are done, and raise a UserError if a checkpoint could not be written.

        It is cheap enough to call at every step.
        """
        if self.local is not None:
            self.local.poll()
        if self._pending is not None and self._manager and not self._manager.is_saving_in_progress():
            self.wait()

    def wait(self) -> None:
        """Block until the save in progress is committed; raise a UserError if it failed."""
        step, self._pending = self._pending, None
        if step is None or self._manager is None:
            return
        try:
            self._manager.wait_until_finished()  # check_for_errors() does not report failed writes (Orbax 0.12.8)
        except WRITE_ERRORS as error:
            self._ranks.pop(step, None)
            self._manager = None  # every later call, even close(), would raise the same error again
            if self._lost():
                return
            raise write_error(self.directory, step, error, self.latest_step()) from error
        self._saved = step
        self._committed(step, time.monotonic() - self._begun)

    def reload(self) -> None:
        """Forget the steps that no longer exist because the directory was deleted or renamed."""
        newest = self._saved if self._pending is None else self._pending
        # A save in progress was lost with the directory; the next one follows immediately.
        with contextlib.suppress(UserError):
            self.wait()
        self._saved = None
        if self._manager is None:
            self._manager = self._open(after_loss=True)
        # Part of the files of a step that exists all the same may be where the directory is now.
        if newest is not None and from_first(newest in self.steps()):
            self._set_aside({newest: "the directory was lost during its save"})
        self._manager.reload()

    def discard_after(self, step: int) -> None:
        """Delete later steps: a run that goes back takes them again, and would otherwise resume from the old ones."""
        self.wait()
        if self._manager is None:
            raise RuntimeError("this Checkpoints is read-only, closed, or ended by a failed save")
        for later in from_first([found for found in self.steps() if found > step]):
            if jax.process_index() == 0:
                self._places.path(later).rmtree()
            self._ranks.pop(later, None)
        self._saved = None
        if self.local is not None:
            self.local.discard_after(step)
        from_first(None)  # the others wait
        self._manager.reload()

    def finish(self) -> None:
        """Remove the local saves: the last step of the run has been written here."""
        self.wait()
        if self.local is not None:
            self.local.clear()

    def close(self) -> None:
        """Wait for the save in progress and close the writers; raise a UserError if it failed."""
        try:
            self.wait()
            if self._manager is not None:
                self._manager.close()
                self._manager = None
        finally:
            if self.local is not None:
                self.local.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def restore(self, abstract_state: Any) -> Restored | None:
        """Return the newest good step in the shape of `abstract_state`, whose leaves have shardings, or None.

        A local save is used rather than a checkpoint of the same step.
        `formats.own.open_checkpoint` reads the parameters alone.

        Raises:
          UserError: the newest readable step belongs to a different model, or every step is damaged or of a different
            run.
        """
        self.wait()
        tiers = (self,) if self.local is None else (self, self.local)
        restored, refused = walk_back(tiers, jax.tree.map(_placed, abstract_state))
        self._refuse(refused[0], restored)
        if self.local is not None:
            self.local.settle(refused[1], restored)
        return restored

    def read(self, step: int, abstract: Any) -> Restored:
        """Return one step in the shape of `abstract`, whose leaves have shardings; see `steps.Tier`."""
        return self._places.read(step, abstract)

    def _refuse(self, refused: dict[int, str], restored: Restored | None) -> None:
        """Report the steps that could not be used, and make room for saving them again."""
        if refused and restored is None:
            raise all_refused(self.directory, refused)
        for step, problem in refused.items():
            used = restored.step if restored else 0
            logging.warning(
                "checkpoint of step %d in %s cannot be used (%s); step %d is used", step, self.directory, problem, used
            )
        self._set_aside(refused)

    def _set_aside(self, refused: dict[int, str]) -> None:
        """Make room for saving refused steps again."""
        if self._manager is None or not refused:
            return
        if jax.process_index() == 0:
            for step in refused:
                self._places.set_aside(step)
        for step in refused:
            self._ranks.pop(step, None)
        self._saved = None
        from_first(None)  # the others wait
        self._manager.reload()


def _placed(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
