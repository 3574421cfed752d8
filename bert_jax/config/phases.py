"""The phases of a run, with all values that `PhaseConfig` leaves open."""

import dataclasses
import itertools
import math

from bert_jax.config.options import Config, DataConfig, PhaseConfig

PACKED_FROM = 256
"""Sequence length from which data.packing=auto packs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """A resolved phase. Steps are those of the whole run, counted from 0."""

    index: int
    begin: int
    steps: int
    sequence_length: int
    batch_size: int
    micro_batches: int
    max_predictions: int
    """Maximum number of masked positions per sequence."""
    learning_rate: float
    """Peak learning rate, by which the phase scales the shape of its schedule."""
    schedule_begin: int
    """Step at which its schedule begins: that of the phase, or of the earlier one that it continues."""
    schedule_length: int
    """Number of steps of that schedule, over all phases that share it."""
    warmup_steps: int
    """Number of steps of linear warm-up at the start of that schedule."""
    resets_moments: bool
    """Whether the optimizer's moments and its step count start from 0 at `begin`."""
    packed: bool
    """Whether a row of its training batches holds several texts (data.packing)."""
    data_seed: int
    """Seed of the order, pairs and masks of its training examples. Each phase has its own, because with the same
    sequence length as the previous phase it would otherwise begin with the same pairs and masks."""

    @property
    def end(self) -> int:
        """Step at which the phase is over and the next one begins."""
        return self.begin + self.steps

    @property
    def max_texts(self) -> int:
        """Most texts of a row: one per 32 tokens and at least four if rows are packed, else one."""
        return max(4, self.sequence_length // 32) if self.packed else 1

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.sequence_length


def resolve_phases(config: Config) -> tuple[Phase, ...]:
    """Return the phases of a run, in order."""
    phases, begin, first, schedule_begin = [], 0, 0, 0
    for index, phase in enumerate(config.phases):
        if phase.schedule == "restart":
            first, schedule_begin = index, begin
        phases.append(
            Phase(
                index=index,
                begin=begin,
                steps=phase.steps,
                sequence_length=phase.sequence_length,
                batch_size=phase.batch_size,
                micro_batches=phase.micro_batches,
                max_predictions=max_predictions(phase, config),
                learning_rate=phase.learning_rate,
                schedule_begin=schedule_begin,
                schedule_length=schedule_length(config, first),
                warmup_steps=warmup_steps(config, first),
                resets_moments=phase.moments == "reset",
                packed=is_packed(phase.sequence_length, config.data),
                data_seed=config.seed + (index << 32),
            )
        )
        begin += phase.steps
    return tuple(phases)


def resolve_stages(config: Config) -> tuple[Phase, ...]:
    """Return the phases of a run, in order, with those whose batch grows divided where its size changes.

    The stages of a phase have its index, and so its examples: each continues where the one before stopped.
    """
    return tuple(stage for phase in resolve_phases(config) for stage in _stages(phase, config.phases[phase.index]))


def _stages(phase: Phase, options: PhaseConfig) -> list[Phase]:
    sizes = (*options.ramp_batch_sizes, phase.batch_size)
    ends = [options.ramp_steps * (number + 1) // len(sizes[1:]) for number in range(len(sizes) - 1)]
    places = itertools.pairwise([0, *ends, phase.steps])
    return [
        dataclasses.replace(
            phase,
            begin=phase.begin + begin,
            steps=end - begin,
            batch_size=size,
            resets_moments=phase.resets_moments and begin == 0,
        )
        for size, (begin, end) in zip(sizes, places, strict=True)
        if end > begin
    ]


def is_packed(sequence_length: int, data: DataConfig) -> bool:
    """Return whether training rows of that length hold several texts."""
    return data.packing == "on" or (data.packing == "auto" and sequence_length >= PACKED_FROM)


def schedule_length(config: Config, first: int) -> int:
    """Return the number of steps of the schedule that begins with phase `first` and ends where a phase restarts it."""
    length = config.phases[first].steps
    for phase in config.phases[first + 1 :]:
        if phase.schedule == "restart":
            break
        length += phase.steps
    return length


def warmup_steps(config: Config, first: int) -> int:
    """Return the number of warm-up steps of the schedule that begins with phase `first`."""
    given = config.phases[first].warmup_steps
    return schedule_length(config, first) // 100 if given is None else given


def max_predictions(phase: PhaseConfig, config: Config) -> int:
    """Return the width of the masked-position arrays.

    It is the phase's own, or about rate × length as the original advises (20 at length 128, 77 at 512); one less
    than the length for objectives that predict every token from its neighbours, and the length for those that predict
    the neighbours of each.
    """
    if config.objective.predicts_neighbours:
        return phase.sequence_length
    if config.objective.predicts_all:
        return phase.sequence_length - 1
    if phase.max_predictions is not None:
        return phase.max_predictions
    return min(phase.sequence_length, max(1, math.ceil(phase.sequence_length * config.masking.rate)))
