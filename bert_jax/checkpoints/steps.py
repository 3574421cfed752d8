"""The saved steps of a run: their directories, which are kept, and the search for the newest usable one.

`Manager` is Orbax's checkpoint manager as `Checkpoints` uses it: retention, and temporary names that no earlier save
has used, among other safeguards for several hosts. `walk_back` tries steps from the newest to older ones, over one or
several tiers, until one can be used; every host makes the same walk. Damaged steps are set aside. The error messages
for a checkpoint that cannot be written, and for none that can be read, are here too.
"""

import dataclasses
import os
import re
import uuid
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import type_handlers

from bert_jax.checkpoints.record import (
    Damaged,
    check_fit,
    check_origin,
    check_unchanged,
    rank,
    read_arrays,
    read_record,
)
from bert_jax.config import CheckpointConfig
from bert_jax.devices.hardware import tells_of_memory
from bert_jax.devices.hosts import any_failure, from_first
from bert_jax.errors import UserError, first_lines
from bert_jax.files import is_remote

SMALLEST_SLICE = 1 << 20
"""Bytes that each copy of an array must have to write for the copies to share the work.

Every slice is a program to compile: the tests' smallest model has 112 on eight devices, which take three seconds.
"""
STEP_NAMES = ocp.path.step.standard_name_format(step_prefix="step", step_format_fixed_length=9)


class Manager(ocp.CheckpointManager):
    """Saves steps on request, in the background, into directories that appear with one rename.

    Args:
      directory: local or gs://; two managers in one program need directories with different names, or runs with
        different ids, or their barriers collide.
      run_id: id of the run, the same on every host; None outside of runs.
      ranks: rank of each step with a held-out loss, lower being better; the caller adds and removes entries.
      after_loss: whether an earlier manager of this process lost `directory` during a save. Its last writes, which
        Orbax does not await, may still arrive: they are kept out of new saves, and the next start removes them.
    """

    def __init__(
        self,
        directory: epath.Path,
        run_id: str | None,
        config: CheckpointConfig,
        ranks: dict[int, tuple[int, float]],
        after_loss: bool = False,
    ):
        is_local = not is_remote(directory)  # elsewhere Orbax needs no renaming, and has no such names
        options = ocp.CheckpointManagerOptions(
            step_name_format=STEP_NAMES,
            cleanup_tmp_directories=not after_loss,
            temporary_path_class=_fresh_names() if after_loss and is_local else None,
            enable_async_checkpointing=True,
            # In the background a directory that cannot be made leaves threads that wait for it ten minutes longer.
            async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
            lightweight_initialize=True,  # Orbax's own notes about each step are not needed, and may be damaged
            save_decision_policy=ocp.checkpoint_managers.FixedIntervalPolicy(1),
            preservation_policy=_LastAndBest(config.keep_last, config.keep_best, config.keep_every_steps, ranks),
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                barrier_sync_key_prefix=f"{run_id or 'no run'}/{directory.name}"
            ),
        )
        super().__init__(
            directory,
            options=options,
            item_handlers={
                "state": ocp.PyTreeCheckpointHandler(type_handler_registry=_handlers()),
                "record": ocp.JsonCheckpointHandler(),
            },
        )

    def reached_preemption(self, step: int) -> bool:
        """Return False: the training loop decides whether a preempted run saves (signals.py).

        Orbax would also query JAX's preemption service, from a background thread and with an outdated step number. The
        service records the number of the last call, whoever made it, so all hosts would agree on a step that the loop
        never reaches, and continue.
        """
        return False


def _handlers() -> type_handlers.TypeHandlerRegistry:
    return type_handlers.create_type_handler_registry(
        (jax.Array, type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=SMALLEST_SLICE)),
        (np.ndarray, type_handlers.NumpyHandler()),
        (np.number, type_handlers.ScalarHandler()),
    )


def _fresh_names() -> type[ocp.path.atomicity.AtomicRenameTemporaryPath]:
    """Return the way to write a directory and rename it when complete, under names that no earlier save has used."""
    suffix = f"{ocp.path.atomicity.TMP_DIR_SUFFIX}-{uuid.uuid4().hex}"

    class FreshTemporaryPath(ocp.path.atomicity.AtomicRenameTemporaryPath):
        @classmethod
        def from_final(cls, final_path: Any, **options: Any):
            return cls(final_path.parent / f"{final_path.name}{suffix}", final_path, **options)

    return FreshTemporaryPath


@dataclasses.dataclass
class _LastAndBest(ocp.checkpoint_managers.PreservationPolicy):
    """Keeps the newest `last` steps, the `best` steps with the lowest rank, and the multiples of `every`."""

    last: int
    best: int
    every: int
    ranks: dict[int, tuple[int, float]]

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        steps = sorted(checkpoint.step for checkpoint in checkpoints)
        measured = sorted((step for step in steps if step in self.ranks), key=lambda step: (self.ranks[step], step))
        for_good = [step for step in steps if self.every and step % self.every == 0]
        kept = {*steps[-self.last :], *measured[: self.best], *for_good}
        return [checkpoint.step in kept for checkpoint in checkpoints]


P = ParamSpec("P")
R = TypeVar("R")


@dataclasses.dataclass(frozen=True)
class Restored:
    """Contents of a checkpoint. `state` is the requested tree on the requested devices."""

    step: int
    state: Any
    position: dict[str, Any]
    config: dict[str, Any]
    metrics: dict[str, Any] | None


class Tier(Protocol):
    """A place where steps of one run are saved."""

    def steps(self) -> list[int]:
        """Return the steps that the first host sees there; every host asks."""
        ...

    def read(self, step: int, abstract: Any) -> Restored:
        """Return a step in the shape of `abstract`.

        Raises:
          Damaged: it cannot be used; raised on every host.
          UserError: it belongs to a different model.
        """
        ...


def walk_back(tiers: Sequence[Tier], abstract: Any) -> tuple[Restored | None, list[dict[int, str]]]:
    """Return the newest good step, that of the last tier if several have it, and the refused steps of each tier.

    Raises:
      UserError: the newest readable step belongs to a different model.
    """
    refused: list[dict[int, str]] = [{} for _ in tiers]
    found = from_first([(step, number) for number, tier in enumerate(tiers) for step in tier.steps()])
    for step, number in sorted(found, reverse=True):
        try:
            return tiers[number].read(step, abstract), refused
        except Damaged as damage:
            refused[number][step] = str(damage)
    return None, refused


def together(read: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
    """Return `read(…)`, in which hosts do not meet.

    Raises:
      Damaged: it has failed on one of the hosts; raised on all of them, so that they go back to an older step together.
    """
    value, problem = attempt(read, *args, **options)
    if problem is not None:
        raise Damaged(problem)
    return value


def attempt(read: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, str | None]:
    """Return (value, None) or (None, reason), the same on every host, so that all go back to an older step together."""
    value, problem = None, None
    try:
        value = read(*args, **options)
    except UserError:
        raise
    except Exception as error:  # damaged files provoke anything, from KeyError to TensorStore's ValueError
        if isinstance(error, jax.errors.JaxRuntimeError) and tells_of_memory(error):  # of a device, not of the files
            raise
        problem = reason(error)
    return value, any_failure(problem)


def reason(error: Exception) -> str:
    """Return what an error says, in one line."""
    if isinstance(error, Damaged):
        return str(error)
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__


def write_error(directory: epath.Path, step: int, error: Exception, latest: int | None) -> UserError:
    """Return the error of a save that has failed; `latest` is the newest step that a start can resume from."""
    kept = "nothing was saved before" if latest is None else f"the newest good one is step {latest}"
    return UserError(
        f"saving the checkpoint of step {step} to {directory} failed: {_system_s_words(error)}; {kept}. "
        "Check free space and permissions, then start the same command again to resume from there"
    )


def all_refused(directory: epath.Path, refused: dict[int, str]) -> UserError:
    """Return the error of a directory in which each step was refused, for the reasons given."""
    reasons = first_lines([f"step {step}: {problem}" for step, problem in refused.items()])
    return UserError(
        f"none of the {len(refused)} checkpoints in {directory} can be used ({reasons}). "
        "Restore the directory from a copy, or start a new run with another --workdir"
    )


def _system_s_words(error: Exception) -> str:
    """Return why a file was not written: the operating system's words, which TensorStore puts after long paths."""
    code = getattr(error, "errno", None) or next(iter(re.findall(r"os_error_code='(\d+)'", str(error))), None)
    return reason(error) if code is None else os.strerror(int(code))


def need_plain_path(path: str | os.PathLike[str]) -> None:
    """Raise a UserError about a directory whose checkpoints could not be read again.

    The library that writes them finds their parts by a pattern, which its name would be part of.
    """
    if found := next((each for each in os.fspath(path) if each in "*?["), ""):
        raise UserError(
            f"{os.fspath(path)} has {found} in its name, where checkpoints cannot be kept; give another name"
        )


class StepDirectories:
    """The step directories below one directory (local or gs://).

    `run_id`: id in every step of the run; a step with a different id is damaged for it.
    """

    def __init__(self, directory: str | os.PathLike[str], run_id: str | None = None):
        place = os.fspath(directory)
        self.directory: epath.Path = epath.Path(place if is_remote(place) else os.path.abspath(place))
        self.run_id: str | None = run_id

    def committed(self) -> set[int]:
        """Return the committed steps; a save in progress or a failed one is not among them."""
        return {found.step for found in STEP_NAMES.find_all(self.directory)} if self.directory.is_dir() else set()

    def path(self, step: int) -> epath.Path:
        """Return the directory of a step, whether there is one or not."""
        return self.directory / STEP_NAMES.build_name(step)

    def read(self, step: int, abstract: Any) -> Restored:
        """Return one step in the shape of `abstract`, whose leaves have shardings; see `steps.Tier`."""
        content = together(self._record, step)
        check_fit(content, abstract, f"checkpoint of step {step} in {self.directory}")
        state = together(read_arrays, self.path(step) / "state", abstract)
        check_unchanged(content, state)
        return Restored(step, state, content["position"], content["config"], content["metrics"])

    def rank(self, step: int, best_metric: str | Sequence[str]) -> tuple[int, float] | None:
        """Return phase and loss by which steps are compared; None if the record of this one has none or is damaged."""
        try:
            return rank(self._record(step), best_metric)
        except Exception:  # a damaged record is reported by restore
            return None

    def set_aside(self, step: int) -> None:
        """Rename a refused step, so that the run can save it again; it is kept, as the fault may be temporary."""
        source = self.path(step)
        target = source.parent / f"damaged_{source.name}"
        if target.exists():
            target.rmtree()
        source.rename(target)

    def _record(self, step: int) -> dict[str, Any]:
        content = read_record(self.path(step) / "record")
        check_origin(content, step, self.run_id)
        return content


def unusable_step(path: str, step: int, steps: StepDirectories, problem: str) -> UserError:
    """Return the error about a step that cannot be used, which lists the others."""
    others = sorted(steps.committed() - {step})
    shown = ", ".join(map(str, others[-20:])) if others else "none"
    more = f" (the last 20 of {len(others)})" if len(others) > 20 else ""
    return UserError(
        f"step {step} of {path} {problem}; other steps there: {shown}{more}. A run keeps those that its "
        "checkpoint.keep_last, keep_best and keep_every_steps say"
    )
