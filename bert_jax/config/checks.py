"""Checks that the values of a configuration fit together; standard library only.

They run before anything heavy is loaded. An error names key, value and remedy. Also here: mixtures of token stores as
an option spells them, STORE=0.7,STORE=0.3.
"""

import dataclasses
import itertools
import math
import os
import re
from collections.abc import Sequence
from typing import Literal

from bert_jax.config.objective import ReplacedTokens
from bert_jax.config.options import INT32, check_effects, check_kinds, check_numbers
from bert_jax.config.pretraining import (
    Config,
    MeshConfig,
    OptimizerConfig,
    PhaseConfig,
    ScheduleConfig,
    SinksConfig,
    check_faults,
    check_noise,
    config_of_phase,
    in_phase,
    num_predicted,
    schedule_length,
    traced_steps,
    warmup_steps,
)
from bert_jax.errors import UserError, need_cloud_storage, need_extra, need_no_negative, need_positive, need_share

_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_BUDGET = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([KMBT])")


@dataclasses.dataclass(frozen=True)
class MixturePart:
    """One store of a mixture."""

    path: str
    amount: float | None
    """Its weight among the sequences, or its budget in tokens. None: it follows from its size."""
    kind: Literal["weight", "tokens", "size"]


def resolve_mixtures(config: Config) -> tuple[tuple[MixturePart, ...], ...]:
    """Return the mixture of each phase; none is empty, or all are, if the run has one store (data.path).

    Raises:
      UserError: an option cannot be read, or two of them contradict each other.
    """
    data = config.data
    if not data.mixture:
        for index, phase in enumerate(config.phases):
            if phase.mixture:
                raise UserError(
                    f"phases.{index}.mixture={phase.mixture}, but data.mixture is empty; give data.mixture, which the "
                    "phases without a mixture of their own read"
                )
        return tuple(() for _ in config.phases)
    if data.path:
        raise UserError(
            f"data.path={data.path} and data.mixture={data.mixture}: give one of them; a store of a mixture is named "
            "in data.mixture"
        )
    found = []
    for index, phase in enumerate(config.phases):
        temperature = config_of_phase(config, index).data.mixture_temperature
        prefix = "" if phase.data.mixture_temperature is None else f"phases.{index}."
        option = f"{prefix}data.mixture_temperature"
        if not (math.isfinite(temperature) and temperature > 0):
            raise UserError(f"{option}={temperature} must be a positive number")
        text, name = (phase.mixture, f"phases.{index}.mixture") if phase.mixture else (data.mixture, "data.mixture")
        parts = _parsed(text, name)
        if parts[0].kind != "size" and temperature != 1:
            raise UserError(
                f"{option}={temperature}, but {name}={text} says how much of each store is read; leave one of them out"
            )
        found.append(parts)
    return tuple(found)


def training_paths(config: Config) -> tuple[str, ...]:
    """Return the stores that a run trains on, each once, in the order in which they are first named."""
    mixed = tuple(dict.fromkeys(part.path for parts in resolve_mixtures(config) for part in parts))
    return mixed or tuple(filter(None, [config.data.path]))


def _parsed(text: str, option: str) -> tuple[MixturePart, ...]:
    parts = tuple(_part(item.strip(), option) for item in text.split(",") if item.strip())
    if not parts:
        raise UserError(f"{option}={text!r} names no store; give STORE=WEIGHT,STORE=WEIGHT")
    paths = [part.path for part in parts]
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise UserError(f"{option}={text} names {twice[0]} twice; give each store once, with its whole weight")
    kinds = {part.kind for part in parts}
    if len(kinds) > 1:
        raise UserError(
            f"{option}={text}: give all stores a weight (STORE=0.7), all a budget in tokens (STORE=300M), or none of "
            "them anything (shares then follow from their sizes)"
        )
    if kinds != {"size"} and sum(part.amount or 0.0 for part in parts) <= 0:
        raise UserError(f"{option}={text}: the weights add up to nothing; give at least one store a positive weight")
    return parts


def _part(item: str, option: str) -> MixturePart:
    path, equals, amount = (item, "", "") if "=" not in item else item.rpartition("=")
    if not path:
        raise UserError(f"{option}: {item!r} names no store; give STORE=WEIGHT")
    if not equals:
        return MixturePart(path, None, "size")
    if budget := _BUDGET.fullmatch(amount):
        return MixturePart(path, float(budget[1]) * _UNITS[budget[2]], "tokens")
    try:
        weight = float(amount)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight >= 0):
        raise UserError(
            f"{option}: {item!r} gives {path} the weight {amount!r}; give a number from 0 on (STORE=0.7), or a number "
            "of tokens with K, M, B or T (STORE=300M)"
        )
    return MixturePart(path, weight, "weight")


def need_divisible(prefix: str, name: str, batch_size: int, micro_batches: int) -> None:
    """Raise a UserError unless the batches of option `name` divide into micro-batches."""
    if batch_size % micro_batches:
        low = batch_size // micro_batches * micro_batches
        near = " or ".join(str(size) for size in (low, low + micro_batches) if size)
        raise UserError(
            f"{prefix}{name}={batch_size} is not divisible by {prefix}micro_batches={micro_batches}; nearest: {near}"
        )


def check(config: Config) -> Config:
    """Return `config` if its values fit together; raise a UserError that names key, value and remedy otherwise."""
    check_kinds(config)
    check_numbers(config)
    check_effects(config)
    _check_trained(config)
    check_optimizer(config.optimizer)
    check_schedule(config.schedule)
    need_positive(config.checkpoint, "checkpoint.", "every_steps", "keep_last", "local_every_steps")
    if "://" in config.checkpoint.local_path:
        raise UserError(
            f"checkpoint.local_path={config.checkpoint.local_path} must be a directory on each host's own disk; the "
            "--workdir may be on gs://"
        )
    need_positive(config.evaluation, "evaluation.", "sequences", "batch_size")
    need_no_negative(config.checkpoint, "checkpoint.", "keep_best", "keep_every_steps")
    need_no_negative(config.evaluation, "evaluation.", "every_steps", "samples")
    need_no_negative(config, "", "seed")
    _check_source(config)
    need_positive(config.data, "data.", "prefetch")
    need_positive(config, "", "log_every_steps")
    check_mesh(config.mesh)
    check_faults(config.faults)
    traced_steps(config.profile, config.total_steps)
    if not config.phases:
        raise UserError("phases is empty; a run needs at least one PhaseConfig")
    if config.total_steps > INT32[1]:
        raise UserError(f"the phases have {config.total_steps:,} steps together; a run has at most {INT32[1]:,}")
    seen = [_checked_changes(config, index) for index in range(len(config.phases))]
    resolve_mixtures(config)
    for index in range(len(config.phases)):
        _check_phase(config, index, seen)
    return config


def _check_trained(config: Config) -> None:
    """Raise a UserError if model, data, masks and objective do not fit together."""
    config.objective.check_model(config.model)
    config.model.check()
    _check_data(config)
    config.objective.check(config)


def _checked_changes(config: Config, index: int) -> Config:
    """Return the options as a phase sees them.

    Raises:
      UserError: what it replaces has no effect, does not fit, or needs arrays of its own.
    """
    if not (changes := config.phases[index].changes):
        return config
    objective = config.objective
    if name := changes.get("objective.name"):
        own = {
            "objective.distillation.teacher": objective.taught and objective.taught.teacher,
            "objective.name": objective.name if isinstance(objective, ReplacedTokens) or objective.word_arrays else "",
            "objective.mask_decoder": getattr(objective, "mask_decoder", False),
        }
        for option, value in own.items():
            if value and name != objective.name:
                raise UserError(
                    f"phases.{index}.objective.name={name} needs other arrays than {option}={value}, and all phases of "
                    "a run train the same ones; leave one of them out, or start another run from this one (init_from)"
                )
    if (window := changes.get("model.local_window", 0)) < 0:
        raise UserError(f"phases.{index}.model.local_window={window} must be a number of tokens, or 0 for none")
    seen = config_of_phase(config, index)
    if "model.rope_local_theta" in changes and seen.model.window is None:
        raise UserError(
            f"phases.{index}.model.rope_local_theta={changes['model.rope_local_theta']} is the base of rope in layers "
            "with a window, and the phase has none; give model.local_window too, or leave it out"
        )
    try:
        check_effects(seen, given=changes)
        _check_trained(seen)
    except UserError as error:
        raise in_phase(index, error) from None
    return seen


def _check_source(config: Config) -> None:
    """Raise a UserError about the model or the step to start from, without looking for it."""
    if config.branch_from:
        branch_point(config.branch_from)
    layers, taught = config.init_from_layers, config.objective.taught
    source = config.init_from or (taught and taught.teacher)
    if layers and config.init_from_depth != "same":
        raise UserError(
            f"init_from_layers={','.join(map(str, layers))} names the layers that init_from_depth="
            f"{config.init_from_depth} would choose; leave one of them out"
        )
    if layers and source and len(layers) != config.model.num_layers:
        raise UserError(
            f"init_from_layers={','.join(map(str, layers))} names {len(layers)} layers of {source}, but "
            f"model.num_layers={config.model.num_layers}; name one for each layer"
            + ("" if config.init_from else ", or, to start from random parameters, none: --init_from_layers=")
        )


def branch_point(text: str) -> tuple[str, int]:
    """Return the work directory and the step that `branch_from` names; raise a UserError if it names none."""
    if (found := run_and_step(text)) is None:
        raise UserError(
            f"branch_from={text} must be RUN:STEP, the work directory of a run and one of its steps, such as "
            "runs/trunk:60000"
        )
    return found


def run_and_step(text: str) -> tuple[str, int] | None:
    """Return the two parts of RUN:STEP, a work directory and one of its steps; None if `text` is something else."""
    run, _, step = text.rpartition(":")
    return (run, int(step)) if run and re.fullmatch(r"[0-9]{1,9}", step) else None


def run_of(workdir: str) -> str:
    """Return the work directory that `workdir` is, or of which it names a step, as RUN:STEP."""
    named = None if os.path.isdir(workdir) else run_and_step(workdir)
    return workdir if named is None else named[0]


def _check_data(config: Config) -> None:
    masking = config.masking
    need_share(config.data, "data.", "held_out", "short_sequence_probability", below_one=True)
    need_share(masking, "masking.", "rate", "mask_share", "random_share", "span_continue")
    if masking.rate == 0:
        raise UserError("masking.rate=0 leaves nothing to predict; BERT uses 0.15")
    if masking.mask_share + masking.random_share > 1 + 1e-9:
        raise UserError(
            f"masking.mask_share={masking.mask_share} and masking.random_share={masking.random_share} add up to "
            "more than 1; the paper has 0.8 and 0.1"
        )
    need_positive(masking, "masking.", "span_max_words", "ngram_max")
    if masking.static_masks < 0:
        raise UserError(f"masking.static_masks={masking.static_masks}: 0 for new masks every epoch, N for N fixed ones")
    check_noise(config.data.noise, "data.noise.")
    if config.data.noise.rate and not config.objective.masks_words:
        raise UserError(
            f"data.noise.rate={config.data.noise.rate} puts errors into words that are not predicted, but "
            f"objective.name={config.objective.name} predicts every word, or keeps no word unchanged; set "
            "data.noise.rate=0"
        )
    if config.data.copies < 0:
        raise UserError(f"data.copies={config.data.copies}: 0 for new examples every epoch, N for N epochs that repeat")
    if config.data.copies and masking.static_masks:
        raise UserError(
            f"data.copies={config.data.copies} and masking.static_masks={masking.static_masks} contradict each "
            "other: the first repeats several cuts of the text, the second has one; set one of them to 0"
        )
    need_no_negative(masking, "masking.", "loss_epsilon")


def _check_phase(config: Config, index: int, views: Sequence[Config]) -> None:
    """Raise a UserError if a value of a phase does not fit; `views` are the options as each phase sees them."""
    prefix, phase, seen = f"phases.{index}.", config.phases[index], views[index]
    need_positive(phase, prefix, "steps", "sequence_length", "batch_size", "micro_batches", "learning_rate")
    seen.objective.check_phase(phase, prefix)
    if phase.sequence_length > config.model.longest_sequence:
        unused = "" if config.model.padding_id is None else f" less {config.model.padding_id + 1}, for padding_id"
        raise UserError(
            f"{prefix}sequence_length={phase.sequence_length} is longer than "
            f"model.max_position_embeddings={config.model.max_position_embeddings}{unused}; raise the latter or "
            "shorten the sequences"
        )
    if seen.model.window is not None:
        window, pairs = seen.model.window, zip(config.phases, views, strict=True)
        window.check_length(max(each.sequence_length for each, view in pairs if view.model.window == window))
    if phase.sequence_length < 8:
        raise UserError(
            f"{prefix}sequence_length={phase.sequence_length} is too short for [CLS] A [SEP] B [SEP]; the minimum is 8"
        )
    need_divisible(prefix, "batch_size", phase.batch_size, phase.micro_batches)
    _check_ramp(prefix, phase)
    if phase.max_predictions is not None and not 0 < phase.max_predictions <= phase.sequence_length:
        raise UserError(
            f"{prefix}max_predictions={phase.max_predictions} must be between 1 and "
            f"{prefix}sequence_length={phase.sequence_length}"
        )
    if (phase.warmup_steps or 0) < 0:
        raise UserError(f"{prefix}warmup_steps={phase.warmup_steps} must not be negative")
    if index == 0 and phase.moments == "reset":
        raise UserError("phases.0.moments=reset: there are no moments yet at the start of the first phase")
    if index == 0 and phase.schedule == "restart":
        raise UserError(
            "phases.0.schedule=restart: there is no schedule yet at the start of the first phase; leave it out"
        )
    if index and phase.schedule == "continue" and phase.warmup_steps is not None:
        raise UserError(
            f"{prefix}warmup_steps={phase.warmup_steps} has no effect, since the phase continues a schedule; leave it "
            f"out, or give {prefix}schedule=restart"
        )
    if index == 0 or phase.schedule == "restart":
        _check_warmup(
            prefix, warmup_steps(config, index), config.schedule.cooldown_steps, schedule_length(config, index)
        )


def _check_warmup(prefix: str, warmup: int, cooldown: int, length: int) -> None:
    """Raise a UserError if a schedule of `length` steps is over before its warm-up and its cooldown are."""
    if warmup + cooldown <= length:
        return
    if not cooldown:
        raise UserError(
            f"{prefix}warmup_steps={warmup} does not fit into the {length} steps of its schedule; lower it, for "
            f"example to {max(1, length // 100)}"
        )
    raise UserError(
        f"{prefix}warmup_steps={warmup} and schedule.cooldown_steps={cooldown} do not fit into the {length} steps of "
        f"the schedule; lower them, for example to {length // 100} and {max(1, length // 10)}"
    )


def _check_ramp(prefix: str, phase: PhaseConfig) -> None:
    sizes, steps = phase.ramp_batch_sizes, phase.ramp_steps
    given = f"{prefix}ramp_batch_sizes={','.join(map(str, sizes))}"
    if bool(sizes) != bool(steps) or not len(sizes) <= steps <= phase.steps:
        raise UserError(
            f"{given} with {prefix}ramp_steps={steps}: give batch sizes and a number of steps for them all, from "
            f"{max(1, len(sizes))} to the {phase.steps} of the phase, or neither with --{prefix}ramp_batch_sizes= "
            f"--{prefix}ramp_steps=0"
        )
    if wrong := [size for size in sizes if size < 1 or size % phase.micro_batches]:
        raise UserError(f"{given}: {wrong[0]} is no positive multiple of {prefix}micro_batches={phase.micro_batches}")


def check_new(config: Config) -> None:
    """Raise a UserError about what a new run may not have, and one that resumes may.

    With elastic_batch the batch of a run may have become smaller, and earlier versions took any max_predictions.
    """
    for index, phase in enumerate(config.phases):
        _check_growth(f"phases.{index}.", phase)
        _check_room(f"phases.{index}.", phase, config_of_phase(config, index))


def _check_growth(prefix: str, phase: PhaseConfig) -> None:
    """Raise a UserError if the batch does not grow."""
    for smaller, larger in itertools.pairwise((*phase.ramp_batch_sizes, phase.batch_size)):
        if smaller >= larger:
            raise UserError(
                f"{prefix}ramp_batch_sizes={','.join(map(str, phase.ramp_batch_sizes))} must grow up to {prefix}"
                f"batch_size={phase.batch_size}, but {smaller} comes before {larger}; give ascending sizes, or "
                f"none with --{prefix}ramp_batch_sizes= --{prefix}ramp_steps=0"
            )


MOST_LEFT_OUT = 0.02
"""Share of the predictions of a full row for which there may be no room."""


def _check_room(prefix: str, phase: PhaseConfig, seen: Config) -> None:
    """Raise a UserError if a full row has more predicted tokens than it has room for, which would lower the rate.

    The published runs of MLPerf have room for 76 at length 512, where the rate of 0.15 predicts 77. That is as good as
    all of them; of few predictions none may be left out.
    """
    rate, length, room = seen.masking.rate, phase.sequence_length, phase.max_predictions
    wanted = num_predicted(length, rate)
    if room is not None and room < (1 - MOST_LEFT_OUT) * wanted:
        name = f"{prefix}masking.rate" if phase.masking.rate is not None else "masking.rate"
        raise UserError(
            f"{prefix}max_predictions={room} cannot hold the {wanted} tokens that {name}={rate} predicts in a row of "
            f"{length}; raise it to {wanted}, lower the rate, or leave max_predictions out"
        )


def check_optimizer(optimizer: OptimizerConfig) -> None:
    """Raise a UserError if a value is out of range."""
    need_positive(optimizer, "optimizer.", "epsilon")
    need_share(optimizer, "optimizer.", "beta1", "beta2", "momentum", "ema_decay", below_one=True)
    need_no_negative(optimizer, "optimizer.", "weight_decay", "clip_norm", "momentum_warmup_steps")


def check_schedule(schedule: ScheduleConfig) -> None:
    """Raise a UserError if a value is out of range."""
    need_share(schedule, "schedule.", "final_fraction")
    need_positive(schedule, "schedule.", "power")
    need_no_negative(schedule, "schedule.", "cooldown_steps")


def check_mesh(mesh: MeshConfig) -> None:
    """Raise a UserError if no number of devices can fit."""
    sizes = dataclasses.asdict(mesh)
    for name, size in sizes.items():
        if size == 0 or size < -1:
            raise UserError(
                f"mesh.{name}={size} must be a positive number, or -1 for all devices that the other axes leave"
            )
    open_axes = [f"mesh.{name}=-1" for name, size in sizes.items() if size == -1]
    if len(open_axes) > 1:
        raise UserError(f"{' and '.join(open_axes)}: only one axis may be -1; give all but one of them a number")


def check_given(config: Config) -> None:
    """Raise a UserError if a run of pre-training lacks a path or a library."""
    for name, value, meaning in (
        ("data.path", any(training_paths(config)), "the token store that bert-jax prepare wrote"),
        ("workdir", config.workdir, "a directory for checkpoints and metrics"),
    ):
        if not value:
            raise UserError(f"--{name} is missing: give {meaning}")
    for path in (config.workdir, *training_paths(config), config.data.eval_path):
        need_cloud_storage(path)
    check_loader(config.data.loader)
    check_trackers(config.sinks)


def check_loader(loader: str) -> None:
    """Raise a UserError if `loader` (data.loader) needs a library that is not installed."""
    if loader == "tf.data":
        need_extra("tensorflow", "tensorflow", "data.loader=tf.data", "data.loader=plain makes the same batches")


def check_trackers(sinks: SinksConfig) -> None:
    """Raise a UserError if a service is asked for whose package is not installed."""
    for library in ("wandb", "mlflow"):
        if getattr(sinks, library):
            need_extra(library, library, f"sinks.{library}")
