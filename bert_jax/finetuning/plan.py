"""The runs that a command asks for, and the learning rate of each step of a run."""

import dataclasses
import itertools

import numpy as np

from bert_jax.config import ScheduleConfig
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.watching import traced_steps
from bert_jax.data.sequences.batching import steps_per_epoch
from bert_jax.errors import UserError
from bert_jax.optim.schedules import shape


@dataclasses.dataclass(frozen=True)
class Run:
    """One training from the checkpoint to the last epoch."""

    batch_size: int
    learning_rate: float
    epochs: int
    seed: int

    @property
    def setting(self) -> str:
        """Name of what runs with different seeds have in common."""
        return f"batch{self.batch_size}_rate{self.learning_rate:g}_epochs{self.epochs}"

    @property
    def name(self) -> str:
        """Name of its directory below runs/."""
        return f"{self.setting}_seed{self.seed}"


def plan(config: FinetuneConfig) -> list[Run]:
    """Return every seed of every setting; the first seed of all settings comes first."""
    settings = [(config.batch_size, config.learning_rate, config.epochs)]
    if config.grid:
        settings = list(itertools.product(config.grid_batch_sizes, config.grid_learning_rates, config.grid_epochs))
    return [Run(*setting, seed) for seed in range(config.seed, config.seed + config.seeds) for setting in settings]


def check_length(config: FinetuneConfig, sequences: int) -> None:
    """Raise UserError if the shortest run on that many sequences is too short for what the options want of its steps.

    These are warm-up and cooldown, and the steps to trace.
    """
    cooldown = config.schedule.cooldown_steps
    steps, run = min(
        ((run.epochs * steps_per_epoch(sequences, run.batch_size), run) for run in plan(config)),
        key=lambda pair: pair[0],
    )
    if cooldown and _warmup_steps(config.warmup_share, steps) + cooldown > steps:
        raise UserError(
            f"schedule.cooldown_steps={cooldown} and warmup_share={config.warmup_share} do not fit into the {steps} "
            f"steps of {run.name}; lower the former, for example to {max(1, steps // 10)}"
        )
    traced_steps(config.profile, steps)


def learning_rates(run: Run, schedule: ScheduleConfig, warmup_share: float, steps: int) -> np.ndarray:
    """Return the learning rate of the update from each step to the next, float32 [steps]."""
    warmup = _warmup_steps(warmup_share, steps)
    return np.float32(run.learning_rate) * np.asarray(shape(schedule, np.arange(steps), steps, warmup))


def _warmup_steps(share: float, steps: int) -> int:
    """Return the number of warm-up steps, rounded down as in the original's run_classifier.py."""
    return int(share * steps)
