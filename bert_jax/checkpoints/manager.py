"""Orbax's checkpoint manager as `Checkpoints` uses it: which steps stay, and what several hosts must not mix up."""

import dataclasses

import orbax.checkpoint as ocp
from etils import epath

from bert_jax.config import CheckpointConfig

STEP_NAMES = ocp.path.step.standard_name_format(step_prefix="step", step_format_fixed_length=9)


class Manager(ocp.CheckpointManager):
    """Saves what it is told to, in the background, into directories that appear with one rename.

    Args:
      directory: local or gs://; hosts take the barriers of two managers for one another's unless these have other names.
      ranks: of the steps with a held-out loss, lower is better; the caller adds to it and takes away.
    """

    def __init__(self, directory: epath.Path, config: CheckpointConfig, ranks: dict[int, tuple[int, float]]):
        options = ocp.CheckpointManagerOptions(
            step_name_format=STEP_NAMES,
            cleanup_tmp_directories=True,
            enable_async_checkpointing=True,
            lightweight_initialize=True,  # what Orbax notes about each step is not needed, and may be damaged
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
        """False: whether a preempted run saves is for the training loop to decide (signals.py).

        Orbax would ask JAX's preemption service, with a step, from its background thread with one that is long past. The
        service takes the number of the last call, whoever made it, so that all hosts would agree on one that the loop never
        comes to, and go on.
        """
        return False


@dataclasses.dataclass
class _LastAndBest(ocp.checkpoint_managers.PreservationPolicy):
    """Keeps the newest `last` steps and the `best` ones of lowest rank."""

    last: int
    best: int
    ranks: dict[int, tuple[int, float]]

    def should_preserve(self, checkpoints, *, context) -> list[bool]:
        steps = sorted(checkpoint.step for checkpoint in checkpoints)
        measured = sorted((step for step in steps if step in self.ranks), key=lambda step: (self.ranks[step], step))
        kept = {*steps[-self.last :], *measured[: self.best]}
        return [checkpoint.step in kept for checkpoint in checkpoints]
