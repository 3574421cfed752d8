"""Orbax's checkpoint manager as `Checkpoints` uses it: which steps to keep, and what several hosts must not confuse."""

import dataclasses
import uuid
from typing import Any

import orbax.checkpoint as ocp
from etils import epath

from bert_jax.config import CheckpointConfig
from bert_jax.files import is_remote

STEP_NAMES = ocp.path.step.standard_name_format(step_prefix="step", step_format_fixed_length=9)


class Manager(ocp.CheckpointManager):
    """Saves steps on request, in the background, into directories that appear with one rename.

    Args:
      directory: local or gs://; two managers in one program need directories with different names, or their barriers
        collide.
      ranks: rank of each step with a held-out loss, lower being better; the caller adds and removes entries.
      after_loss: whether an earlier manager of this process lost `directory` during a save. Its last writes, which
        Orbax does not await, may still arrive: they are kept out of new saves, and the next start removes them.
    """

    def __init__(
        self,
        directory: epath.Path,
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
            lightweight_initialize=True,  # Orbax's own notes about each step are not needed, and may be damaged
            save_decision_policy=ocp.checkpoint_managers.FixedIntervalPolicy(1),
            preservation_policy=_LastAndBest(config.keep_last, config.keep_best, ranks),
            multiprocessing_options=ocp.options.MultiprocessingOptions(barrier_sync_key_prefix=directory.name),
        )
        super().__init__(
            directory,
            options=options,
            item_handlers={"state": ocp.PyTreeCheckpointHandler(), "record": ocp.JsonCheckpointHandler()},
        )

    def reached_preemption(self, step: int) -> bool:
        """Return False: the training loop decides whether a preempted run saves (signals.py).

        Orbax would also query JAX's preemption service, from a background thread and with an outdated step number. The
        service records the number of the last call, whoever made it, so all hosts would agree on a step that the loop
        never reaches, and continue.
        """
        return False


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
    """Keeps the newest `last` steps and the `best` steps with the lowest rank."""

    last: int
    best: int
    ranks: dict[int, tuple[int, float]]

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        steps = sorted(checkpoint.step for checkpoint in checkpoints)
        measured = sorted((step for step in steps if step in self.ranks), key=lambda step: (self.ranks[step], step))
        kept = {*steps[-self.last :], *measured[: self.best]}
        return [checkpoint.step in kept for checkpoint in checkpoints]
