"""Checks that the values of a configuration fit together, before anything is compiled.

Errors name key, value and remedy.
"""

import dataclasses
import itertools
import math

from bert_jax.config import Config, MeshConfig, OptimizerConfig, PhaseConfig, ScheduleConfig, resolve_phases
from bert_jax.config.faults import check_faults
from bert_jax.config.mixtures import resolve_mixtures
from bert_jax.config.model_checks import check_model
from bert_jax.config.noise import check_noise
from bert_jax.config.objective_checks import check_objective
from bert_jax.config.ranges import need_divisible, need_positive, need_share
from bert_jax.config.watching import traced_steps
from bert_jax.errors import UserError


def check(config: Config) -> Config:
    """Return `config` if its values fit together; raise a UserError that names key, value and remedy otherwise."""
    check_model(config)
    _check_data(config)
    check_objective(config)
    check_optimizer(config.optimizer)
    check_schedule(config.schedule)
    need_positive(config.checkpoint, "checkpoint.", "every_steps", "keep_last", "local_every_steps")
    if "://" in config.checkpoint.local_path:
        raise UserError(
            f"checkpoint.local_path={config.checkpoint.local_path} must be a directory on each host's own disk; the "
            "--workdir may be on gs://"
        )
    need_positive(config.evaluation, "evaluation.", "sequences", "batch_size")
    for name, value in (
        ("checkpoint.keep_best", config.checkpoint.keep_best),
        ("evaluation.every_steps", config.evaluation.every_steps),
        ("evaluation.samples", config.evaluation.samples),
        ("seed", config.seed),
    ):
        if value < 0:
            raise UserError(f"{name}={value} must not be negative")
    _check_source(config)
    need_positive(config.data, "data.", "prefetch")
    need_positive(config, "", "log_every_steps")
    check_mesh(config.mesh)
    check_faults(config.faults)
    traced_steps(config.profile, config.total_steps)
    if not config.phases:
        raise UserError("phases is empty; a run needs at least one PhaseConfig")
    resolve_mixtures(config)
    for index, phase in enumerate(config.phases):
        _check_phase(config, index, phase)
    return config


def _check_source(config: Config) -> None:
    """Raise a UserError if the model to start from has to give another number of layers than there are."""
    layers, source = config.init_from_layers, config.init_from or config.objective.distillation.teacher
    if layers and source and len(layers) != config.model.num_layers:
        raise UserError(
            f"init_from_layers={','.join(map(str, layers))} names {len(layers)} layers of {source}, but "
            f"model.num_layers={config.model.num_layers}; name one for each layer"
            + ("" if config.init_from else ", or, to start from random parameters, none: --init_from_layers=")
        )


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
    if not 0 <= masking.loss_epsilon < math.inf:
        raise UserError(f"masking.loss_epsilon={masking.loss_epsilon} must be 0 or a positive number")


def _check_phase(config: Config, index: int, phase: PhaseConfig) -> None:
    prefix = f"phases.{index}."
    need_positive(phase, prefix, "steps", "sequence_length", "batch_size", "micro_batches", "learning_rate")
    if phase.sequence_length > config.model.longest_sequence:
        unused = "" if config.model.padding_id is None else f" less {config.model.padding_id + 1}, for padding_id"
        raise UserError(
            f"{prefix}sequence_length={phase.sequence_length} is longer than "
            f"model.max_position_embeddings={config.model.max_position_embeddings}{unused}; raise the latter or "
            "shorten the sequences"
        )
    window, longest = config.model.local_window, max(each.sequence_length for each in config.phases)
    if window is not None and window >= longest - 1:
        raise UserError(
            f"model.local_window={window} tokens to either side reach from one end of the longest sequences to the "
            f"other (sequence_length={longest}), so it restricts nothing; set it to {longest - 2} at most, or to None"
        )
    if config.model.global_tokens >= longest:
        raise UserError(
            f"model.global_tokens={config.model.global_tokens} are all tokens of the longest sequences "
            f"(sequence_length={longest}), so a window restricts nothing; give fewer, such as 1"
        )
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
    if index == 0 or phase.schedule == "restart":
        resolved = resolve_phases(config)[index]
        length, warmup = resolved.schedule_length, resolved.warmup_steps
        _check_warmup(prefix, warmup, config.schedule.cooldown_steps, length)


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


def check_ramps(config: Config) -> None:
    """Raise a UserError if the batch of a new run does not grow; with elastic_batch that of a resumed one may not."""
    for index, phase in enumerate(config.phases):
        prefix = f"phases.{index}."
        for smaller, larger in itertools.pairwise((*phase.ramp_batch_sizes, phase.batch_size)):
            if smaller >= larger:
                raise UserError(
                    f"{prefix}ramp_batch_sizes={','.join(map(str, phase.ramp_batch_sizes))} must grow up to {prefix}"
                    f"batch_size={phase.batch_size}, but {smaller} comes before {larger}; give ascending sizes, or "
                    f"none with --{prefix}ramp_batch_sizes= --{prefix}ramp_steps=0"
                )


def check_optimizer(optimizer: OptimizerConfig) -> None:
    """Raise a UserError if a value is out of range."""
    need_positive(optimizer, "optimizer.", "epsilon")
    need_share(optimizer, "optimizer.", "beta1", "beta2", "momentum", "ema_decay", below_one=True)
    for name in ("weight_decay", "clip_norm"):
        if not 0 <= getattr(optimizer, name) < math.inf:
            raise UserError(f"optimizer.{name}={getattr(optimizer, name)} must be 0 or a positive number")
    if optimizer.momentum != OptimizerConfig.momentum and optimizer.name != "muon":
        raise UserError(
            f"optimizer.momentum={optimizer.momentum} belongs to optimizer.name=muon, not to {optimizer.name}, whose "
            "decay rates are beta1 and beta2; leave it out"
        )


def check_schedule(schedule: ScheduleConfig) -> None:
    """Raise a UserError if a value is out of range or belongs to a different shape of the decay."""
    need_share(schedule, "schedule.", "final_fraction")
    need_positive(schedule, "schedule.", "power")
    if schedule.power != 1 and schedule.name != "polynomial":
        raise UserError(
            f"schedule.power={schedule.power} belongs to schedule.name=polynomial, not to {schedule.name}; leave it out"
        )
    if schedule.cooldown_steps < 0:
        raise UserError(f"schedule.cooldown_steps={schedule.cooldown_steps} must not be negative")
    if schedule.cooldown != "linear" and not schedule.cooldown_steps:
        raise UserError(
            f"schedule.cooldown={schedule.cooldown} is the shape of a cooldown, and schedule.cooldown_steps=0 has none"
        )
    if schedule.cooldown_steps and schedule.name != "constant":
        raise UserError(
            f"schedule.cooldown_steps={schedule.cooldown_steps} belongs to schedule.name=constant, not to "
            f"{schedule.name}"
        )


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
