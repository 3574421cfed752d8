"""The runs of a speedrun: which recipe, rate, length and seed is due next, and the options of each.

What is due follows from the losses found so far and nothing else, so a speedrun that was killed continues where it
was, and processes that share a directory divide the work. For each arm: 1. the first seed looks for the target with the
middle rate, from a length just below that of the arm that is changed. 2. Where it finds it, but at that arm's length at
most (the reference: at length 1), it runs with every rate; the one with the lowest loss is kept. 3. From there each
seed looks for two neighbouring lengths on either side of the target. The operations to target are interpolated between
these two runs, in the logarithm of operations.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from bert_jax.config import (
    Config,
    EvaluationConfig,
    MaskedDiffusion,
    MaskedWords,
    MaskingConfig,
    PhaseConfig,
    config_of_phase,
    resolve_stages,
)
from bert_jax.config.checks import check
from bert_jax.config.finetuning import FinetuneConfig, check_finetune
from bert_jax.config.studies import Share, Speedrun, SpeedrunArm, SpeedrunConfig
from bert_jax.console import load_config, parse
from bert_jax.devices import sharding
from bert_jax.errors import UserError, at_least
from bert_jax.models.protocol import Model
from bert_jax.tasks.task_data import TaskData
from bert_jax.tools.study_plan import (
    Given,
    changed,
    check_afresh,
    check_not_given,
    check_tasks,
    described_learner,
    full_name,
    given_names,
    phase_models,
    pretraining_flops,
    tasks_below,
)
from bert_jax.training_data import open_corpus

USAGE = "bert-jax speedrun NAME"


@dataclasses.dataclass(frozen=True)
class Run:
    """One pre-training of a speedrun."""

    arm: str
    rate_factor: float
    """Factor of the arm's peak learning rates."""
    length: float
    """Operations, in those of the reference with the steps of its configuration."""
    seed: int

    @property
    def name(self) -> str:
        """Name in messages."""
        return f"{self.arm}, rate × {self.rate_factor:g}, length {self.length:.3g}, seed {self.seed}"

    @property
    def place(self) -> str:
        """Directory below runs/."""
        return os.path.join(self.arm, f"rate_{self.rate_factor:g}", f"length_{self.length:.4g}", f"seed_{self.seed}")


Losses = Mapping[Run, float]
"""The common loss at the end of each finished run; infinite for one that failed."""


@dataclasses.dataclass(frozen=True)
class Crossing:
    """Where the final loss of one seed comes down to the target: between two neighbouring lengths."""

    before: Run | None
    """The longest run that ends above the target; None if the shortest length reaches it."""
    after: Run | None
    """The run of the next length, which reaches the target; None if the longest length does not."""


@dataclasses.dataclass(frozen=True)
class Design:
    """What decides which runs are due."""

    arms: Mapping[str, str]
    """The arm that each one changes, by name; "" for the reference, which is the first."""
    own_rates: frozenset[str]
    """Arms that set a learning rate, so that their rates do not follow those of the arm that they change."""
    rate_factors: tuple[float, ...]
    lengths: tuple[float, ...]
    seeds: tuple[int, ...]
    scores: frozenset[str] = frozenset()
    """Arms of which each seed also runs at length 1, for the scores of tasks; the reference is one of them."""

    @property
    def reference(self) -> str:
        """Name of the first arm."""
        return next(iter(self.arms))

    @property
    def untrained(self) -> list[Run]:
        """Runs of one step that leaves the initial weights as they are, one per seed, if there are scores."""
        return [Run(self.reference, NO_RATE_FACTOR, 0.0, seed) for seed in self.seeds] if self.scores else []


NO_RATE_FACTOR = 1e-6
ALL_ARMS = "all"


class Progress:
    """What the losses found so far say about a design.

    Args:
      design: what decides.
      losses: those found so far.
    """

    def __init__(self, design: Design, losses: Losses):
        self.design, self.losses = design, losses
        # An arm asks about the one that it changes, and this one about the next.
        self.trials = functools.cache(self._trials)
        self.rate_factor = functools.cache(self._rate_factor)
        self._way = functools.cache(self._walk)

    def wanted(self) -> list[Run]:
        """Return the runs that are due now, of earlier seeds first; none once everything is known."""
        due = dict.fromkeys(run for arm in self.design.arms for run in self._due(arm))
        due |= dict.fromkeys(run for run in self.design.untrained if run not in self.losses)
        return sorted(due, key=lambda run: run.seed)

    @functools.cached_property
    def target(self) -> float | None:
        """Mean loss of the reference at length 1; None while one of its seeds is missing, or if one has failed."""
        runs = self.whole(self.design.reference)
        if not runs or any(not math.isfinite(self.losses.get(run, math.inf)) for run in runs):
            return None
        return sum(self.losses[run] for run in runs) / len(runs)

    def whole(self, arm: str) -> list[Run]:
        """Return the runs of length 1 at the best rate, one per seed; [] while that rate is not known."""
        factor = self.rate_factor(arm)
        return [] if factor is None else [Run(arm, factor, 1.0, seed) for seed in self.design.seeds]

    def crossing(self, arm: str, seed: int) -> Crossing | None:
        """Return where a seed of an arm crosses the target; None while that is not known."""
        found = self._way(arm, seed)
        return found if isinstance(found, Crossing) else None

    def _trials(self, arm: str) -> tuple[Run, ...]:
        """Return the runs of the first seed among which the rate is chosen; () while their place is not known."""
        length = self._place(arm)
        return () if isinstance(length, Run) or length is None else tuple(self._first(arm, length).values())

    def _place(self, arm: str) -> float | Run | None:
        """Return the length at which the rates of an arm are tried, or the run that it depends on.

        It is where the middle rate comes down to the target, but no longer than where the arm that is changed does (the
        reference, and one that never does: 1). None while that is not known.
        """
        design, lengths, longest = self.design, self.design.lengths, 1.0
        if arm == design.reference:
            return longest
        if self.target is None:
            return None
        if (on := design.arms[arm]) != design.reference:
            if (crossing := self.crossing(on, design.seeds[0])) is None:
                return None
            longest = crossing.after.length if crossing.after else longest
        middle = design.rate_factors[len(design.rate_factors) // 2]
        runs = [self._first(arm, length)[middle] for length in lengths[: lengths.index(longest) + 1]]
        found = self._search(runs, max(0, len(runs) - 2), growth=2)
        return (found.after.length if found.after else longest) if isinstance(found, Crossing) else found

    def _first(self, arm: str, length: float) -> dict[float, Run]:
        """Return the runs of the first seed with each factor of the rates."""
        on = self.design.arms[arm]
        centre = 1.0 if not on or arm in self.design.own_rates else self.rate_factor(on) or 1.0
        return {factor: Run(arm, factor * centre, length, self.design.seeds[0]) for factor in self.design.rate_factors}

    def _rate_factor(self, arm: str) -> float | None:
        """Return the factor with the lowest loss among the `trials`; None while one is missing, or if all failed."""
        trials = self.trials(arm)
        if not trials or any(run not in self.losses for run in trials):
            return None
        best = min(trials, key=lambda run: self.losses[run])
        return best.rate_factor if math.isfinite(self.losses[best]) else None

    def _due(self, arm: str) -> list[Run]:
        if self.rate_factor(arm) is None:
            place = self._place(arm)
            return [run for run in ([place] if isinstance(place, Run) else self.trials(arm)) if run not in self.losses]
        due: list[Run] = []
        if arm in self.design.scores or (arm == self.design.reference and self.target is None):
            due += [run for run in self.whole(arm) if run not in self.losses]
        return due + [step for seed in self.design.seeds if isinstance(step := self._way(arm, seed), Run)]

    def _walk(self, arm: str, seed: int) -> Crossing | Run | None:
        """Return the crossing of a seed, or the next run of the way to it; None while the way has no beginning."""
        factor, lengths = self.rate_factor(arm), self.design.lengths
        if factor is None or self.target is None:
            return None
        start = self.trials(arm)[0].length
        if seed != self.design.seeds[0] and arm != self.design.reference:  # where the first seed has come to
            first = self.crossing(arm, self.design.seeds[0])
            if first is None:
                return None
            start = lengths[-1] if first.after is None else first.after.length
        return self._search([Run(arm, factor, length, seed) for length in lengths], lengths.index(start))

    def _search(self, runs: Sequence[Run], at: int, growth: int = 1) -> Crossing | Run:
        """Return where `runs`, which are of growing length, come down to the target, or the next one to know.

        Steps from `at` grow by this factor until a run lies on the other side, and halve from there.
        """
        if runs[at] not in self.losses:
            return runs[at]
        side, step = self._reached(runs[at]), 1
        way = -1 if side else 1
        while True:
            beside = min(max(at + way * step, 0), len(runs) - 1)
            if beside == at:
                return Crossing(None, runs[at]) if side else Crossing(runs[at], None)
            if runs[beside] not in self.losses:
                return runs[beside]
            if self._reached(runs[beside]) != side:
                break
            at, step = beside, growth * step
        before, after = sorted((at, beside))
        while after - before > 1:
            middle = (before + after) // 2
            if runs[middle] not in self.losses:
                return runs[middle]
            before, after = (before, middle) if self._reached(runs[middle]) else (middle, after)
        return Crossing(runs[before], runs[after])

    def _reached(self, run: Run) -> bool:
        return self.target is not None and self.losses[run] <= self.target


def crossing_share(before: float, after: float, target: float) -> float:
    """Return the share of the way from the loss `before` to the loss `after` at which the target lies."""
    return 1.0 if math.isinf(before) else (before - target) / (before - after)


def interpolated(before: float, after: float, share: float) -> float:
    """Return the number that lies at this share of the way between two positive ones, in their logarithms."""
    return before ** (1 - share) * after**share


@dataclasses.dataclass(frozen=True)
class Recipe:
    """An arm with everything that it takes from those that it changes."""

    arm: SpeedrunArm
    """Of those between it and the arm that it names, which do not take part, it has the changes too."""
    options: Mapping[str, Any]
    phases: tuple[Mapping[str, Any], ...]
    sets_rate: bool
    """Whether a learning rate is among its changes."""


def recipes(speedrun: Speedrun, names: tuple[str, ...]) -> dict[str, Recipe]:
    """Return the recipes of the reference and of these arms, of all if none is named, in their order.

    Raises:
      UserError: the speedrun has no such arm, or an arm sets what follows from the length.
    """
    first, *others = speedrun.arms
    found = {first.name: Recipe(first, {}, (), False)}
    if unknown := [name for name in names if name not in {arm.name for arm in speedrun.arms}]:
        known = ", ".join(arm.name for arm in speedrun.arms)
        raise UserError(f"arms={unknown[0]}: this speedrun has no such arm; it has {known}")
    kept = {first.name, *(names or (arm.name for arm in others))}
    for arm in others:
        own = {option.removeprefix("phases.0.") for option in arm.options}
        if "steps" in own:
            raise UserError(f"arm {arm.name}: steps follows from the length of a run; leave it out")
        changes = found[arm.on or first.name]
        sets_rate = "learning_rate" in own or any("learning_rate" in phase for phase in arm.phases)
        on = changes.arm.name
        if on not in kept:  # its own place is taken by the next one above that takes part
            on, sets_rate = changes.arm.on, sets_rate or changes.sets_rate
        options, phases = {**changes.options, **arm.options}, arm.phases or changes.phases
        found[arm.name] = Recipe(dataclasses.replace(arm, on=on), options, phases, sets_rate)
    return {name: recipe for name, recipe in found.items() if name in kept}


@dataclasses.dataclass(frozen=True)
class SpeedrunPlan:
    """A speedrun with the options of the command line."""

    speedrun: Speedrun
    workdir: str
    base: Config
    """The reference at length 1."""
    shares: Mapping[str, Share]
    """Numbers of steps that all arms share, by their full names."""
    recipes: Mapping[str, Recipe]
    design: Design
    tasks: Mapping[str, FinetuneConfig]
    devices: sharding.Devices = None
    """Those of the mesh; by default every device."""
    _steps: dict[tuple[str, float], int] = dataclasses.field(default_factory=dict)
    _configs: dict[tuple[str, int], Config] = dataclasses.field(default_factory=dict)

    def home(self, run: Run) -> str:
        """Return the directory of a run."""
        return os.path.join(self.workdir, "runs", run.place)

    def config(self, run: Run) -> Config:
        """Return the options of the pre-training of a run."""
        config = self.recipe_config(run.arm, self._steps_of(run.arm, run.length))
        phases = tuple(
            dataclasses.replace(phase, learning_rate=phase.learning_rate * run.rate_factor) for phase in config.phases
        )
        workdir = os.path.join(self.home(run), "pretraining")
        return dataclasses.replace(config, phases=phases, seed=run.seed, workdir=workdir)

    def task(self, run: Run, name: str) -> FinetuneConfig:
        """Return the options of a fine-tuning of what a run has pre-trained."""
        init_from, home = self.config(run).workdir, self.home(run)
        return dataclasses.replace(
            self.tasks[name], init_from=init_from, workdir=os.path.join(home, name), seed=run.seed
        )

    def model(self, run: Run) -> Model:
        """Return the model of the last phase of a run, with the vocabulary of its store."""
        return self.models[run.arm][-1]

    def tokens(self, run: Run) -> int:
        """Return the positions that a run reads, padding included."""
        return sum(stage.steps * stage.tokens_per_step for stage in resolve_stages(self.config(run)))

    def flops(self, run: Run) -> float:
        """Return the operations of a run."""
        return pretraining_flops(self.config(run), self.models[run.arm])

    def common(self, config: Config) -> Config:
        """Return the options by which the held-out texts of every arm are cut and masked."""
        length, given = self.speedrun.sequence_length, self.base.evaluation
        return dataclasses.replace(
            config,
            objective=MaskedWords(),
            masking=MaskingConfig(),
            data=dataclasses.replace(self.base.data, sentence_pairs="none", short_sequence_probability=0.0),
            phases=(PhaseConfig(sequence_length=length, batch_size=1),),
            evaluation=EvaluationConfig(sequences=self.speedrun.sequences, batch_size=given.batch_size),
        )

    def recipe_config(self, name: str, steps: int) -> Config:
        """Return the options of an arm in a run of so many steps."""
        if (name, steps) not in self._configs:
            self._configs[name, steps] = self._recipe_config(name, steps)
        return self._configs[name, steps]

    def _recipe_config(self, name: str, steps: int) -> Config:
        recipe = self.recipes[name]
        phases, options = recipe.phases or ({},), {}
        starts = [number for number, phase in enumerate(phases) if not number or phase.get("schedule") == "restart"]
        for option, value in {**self.shares, **recipe.options}.items():
            full = full_name(option)
            if full.startswith("phases.0."):
                short = full.removeprefix("phases.0.")
                having = starts if short == "warmup_steps" else range(len(phases))
                options |= {f"phases.{number}.{short}": value for number in having}
            else:
                options[full] = value
        for number, phase in enumerate(phases):
            options |= {f"phases.{number}.{option}": value for option, value in phase.items()}
        options = {key: value.steps(steps) if isinstance(value, Share) else value for key, value in options.items()}
        others = sum(options[f"phases.{number}.steps"] for number in range(len(phases) - 1))
        options[f"phases.{len(phases) - 1}.steps"] = steps - others
        (first,) = self.base.phases
        later = (dataclasses.replace(first, warmup_steps=None),) * (len(phases) - 1)
        try:
            return check(changed(dataclasses.replace(self.base, phases=(first, *later)), options))
        except UserError as error:
            raise UserError(f"arm {name}: {error}") from None

    @functools.cached_property
    def models(self) -> Mapping[str, tuple[Model, ...]]:
        """The models of each arm's phases, with the vocabulary of its store; nothing is compiled.

        Raises:
          UserError: an arm does not fit its store, or reads other texts than the others; the message names it.
        """
        found: dict[str, tuple[Model, ...]] = {}
        for name in self.recipes:
            config = self.recipe_config(name, self.base.total_steps)
            try:
                _check_common(config, self.base, self.speedrun.sequence_length)
                _, learner = described_learner(config, self.devices)
            except UserError as error:
                raise UserError(str(error) if f"arm {name}: " in str(error) else f"arm {name}: {error}") from None
            found[name] = phase_models(learner)
        return found

    @functools.cached_property
    def stores(self) -> Mapping[str, str | None]:
        """Fingerprints of the texts that all arms read."""
        return open_corpus(self.base).fingerprints()

    def check(self) -> None:
        """Describe every arm, and read the data of all tasks of those whose scores are asked for.

        Raises:
          UserError: as `models`, or data are not there, or do not fit an arm; the message names it.
        """
        read: dict[Hashable, TaskData] = {}
        for name, models in self.models.items():
            if name in self.design.scores:
                config = self.recipe_config(name, self.base.total_steps)
                config = dataclasses.replace(config, model=models[-1].config)
                try:
                    check_tasks(self.tasks, config, read, self.devices)
                except UserError as error:
                    raise UserError(f"arm {name}: {error}") from None

    def _steps_of(self, name: str, length: float) -> int:
        """Return the steps of an arm in a run of this length."""
        if (name, length) not in self._steps:
            flops = length * self._flops_of(self.design.reference, self.base.total_steps)
            steps = self.base.total_steps
            for _ in range(3):  # they grow nearly in proportion; only the rounding of shares is left to correct
                steps = max(1, round(steps * flops / self._flops_of(name, steps)))
            self._steps[name, length] = steps
        return self._steps[name, length]

    def _flops_of(self, name: str, steps: int) -> float:
        return pretraining_flops(self.recipe_config(name, steps), self.models[name])


def _check_common(config: Config, base: Config, length: int) -> None:
    """Raise a UserError if an arm trains on or is measured on other texts, or ends without predicting masked words."""
    for name in ("path", "mixture", "eval_path", "held_out"):
        own, common = getattr(config.data, name), getattr(base.data, name)
        if own != common:
            raise UserError(
                f"data.{name}={own}, where the reference has {common!r}: all arms read the same texts, and are "
                "measured on others that are the same"
            )
    objective = config_of_phase(config, len(config.phases) - 1).objective
    if not isinstance(objective, MaskedWords | MaskedDiffusion):
        raise UserError(
            f"objective.name={objective.name} does not predict masked words, whose loss is what the arms are "
            "compared by; give it a last phase that does"
        )
    if config.model.longest_sequence < length:
        raise UserError(
            f"model.max_position_embeddings={config.model.longest_sequence} is less than sequence_length={length} of "
            "the held-out texts"
        )
    if not (config.data.eval_path or config.data.held_out):
        raise UserError("data.held_out=0, so there are no held-out texts; give a share such as 0.01, or data.eval_path")


def scored_arms(arms: Sequence[str], chosen: Sequence[str]) -> frozenset[str]:
    """Return the arms whose scores are asked for, with the reference, which is the first; none if none are chosen.

    Raises:
      UserError: a name that is no arm.
    """
    if unknown := set(chosen).difference(arms, [ALL_ARMS]):
        raise UserError(
            f"scores={min(unknown)}: no such arm runs; give {ALL_ARMS}, or names among {', '.join(arms)} (arms=…)"
        )
    return frozenset(arms if ALL_ARMS in chosen else [*arms[:1], *chosen] if chosen else [])


def speedrun_plan(
    speedrun: Speedrun, options: SpeedrunConfig, given: Given, devices: sharding.Devices = None
) -> SpeedrunPlan:
    """Return the plan of a speedrun, whose options have been checked.

    Args:
      given: options of the command line that all arms take.
      devices: the devices of the mesh; by default every device.

    Raises:
      UserError: an unknown option or arm, a value that does not fit, or an option of the command line that is what the
        arms differ in.
    """
    seeds = speedrun.seeds if options.seeds is None else options.seeds
    at_least(1, seeds=seeds)
    found = recipes(speedrun, options.arms)
    for name, recipe in found.items():
        check_not_given(name, recipe.options, given.pretraining, full_name)
    config = load_config(speedrun.base)
    if len(config.phases) != 1:
        raise UserError(f"base={speedrun.base} has {len(config.phases)} phases; the reference must have one")
    plain = {name: value for name, value in speedrun.options.items() if not isinstance(value, Share)}
    base = check_afresh(parse(changed(config, plain), list(given.pretraining), USAGE, whole=False))
    fixed = set(map(full_name, given_names(given.pretraining)))
    shares = {full_name(name): value for name, value in speedrun.options.items() if isinstance(value, Share)}
    tasks = tasks_below(speedrun.tasks, given, options.task_data, USAGE)
    for task in tasks.values():
        check_finetune(dataclasses.replace(task, init_from="the pre-training", workdir="its own"))
    design = Design(
        arms={name: recipe.arm.on for name, recipe in found.items()},
        own_rates=frozenset(name for name, recipe in found.items() if recipe.sets_rate),
        rate_factors=speedrun.rate_factors,
        lengths=speedrun.lengths,
        seeds=tuple(base.seed + number for number in range(seeds)),
        scores=scored_arms(list(found), options.scores),
    )
    kept = {name: value for name, value in shares.items() if name not in fixed}
    plan = SpeedrunPlan(speedrun, options.workdir, base, kept, found, design, tasks, devices)
    for name in found:
        plan.recipe_config(name, base.total_steps)
    return plan
