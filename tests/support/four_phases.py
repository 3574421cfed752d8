"""A run whose four phases have other options each, and runs that have the options of one phase from the start."""

import dataclasses

from bert_jax.config import (
    Config,
    DataConfig,
    LeftToRight,
    MaskingConfig,
    PhaseData,
    PhaseMasking,
    PhaseModel,
    PhaseObjective,
    Rope,
    Window,
)


def four_phases(base: Config) -> tuple[Config, tuple[Config, ...]]:
    """Return the run, and one run for each of its phases: left to right, 30 % masked, without a window, unchanged.

    `base` has one phase, as long as each of the four; its model gets rotary positions and a window.
    """
    model = dataclasses.replace(base.model, positions=Rope(), window=Window(local_window=8))
    base, (phase,) = dataclasses.replace(base, model=model), base.phases
    phases = (
        dataclasses.replace(
            phase,
            objective=PhaseObjective(name="left_to_right"),
            model=PhaseModel(direction="left_to_right"),
            data=PhaseData(sentence_pairs="none"),
        ),
        dataclasses.replace(phase, masking=PhaseMasking(rate=0.3)),
        dataclasses.replace(phase, model=PhaseModel(local_window=0)),
        phase,
    )
    alone = (
        dataclasses.replace(
            base,
            objective=LeftToRight(),
            model=dataclasses.replace(model, direction="left_to_right"),
            data=DataConfig(sentence_pairs="none"),
        ),
        dataclasses.replace(base, masking=MaskingConfig(rate=0.3)),
        dataclasses.replace(base, model=dataclasses.replace(model, window=None)),
        base,
    )
    return dataclasses.replace(base, phases=phases), alone
