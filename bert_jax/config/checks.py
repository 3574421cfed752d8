"""Checks that the values of a configuration fit together, before anything is compiled.

Errors name key, value and remedy.
"""

import dataclasses
import math
from typing import Any

from bert_jax.config import Config, MeshConfig, OptimizerConfig, PhaseConfig, ScheduleConfig, resolve_phases
from bert_jax.config.disentangled_checks import check_disentangled
from bert_jax.config.faults import check_faults
from bert_jax.config.mixtures import resolve_mixtures
from bert_jax.config.noise import check_noise
from bert_jax.config.objective_checks import check_objective
from bert_jax.config.recurrent_checks import check_recurrent
from bert_jax.config.static_vectors_checks import check_static_vectors
from bert_jax.config.watching import traced_steps
from bert_jax.errors import UserError


def check(config: Config) -> Config:
    """Return `config` if its values fit together; raise a UserError that names key, value and remedy otherwise."""
    _check_model(config)
    _check_data(config)
    check_objective(config)
    check_optimizer(config.optimizer)
    check_schedule(config.schedule)
    _positive(config.checkpoint, "checkpoint.", "every_steps", "keep_last", "local_every_steps")
    if "://" in config.checkpoint.local_path:
        raise UserError(
            f"checkpoint.local_path={config.checkpoint.local_path} must be a directory on each host's own disk; the "
            "--workdir may be on gs://"
        )
    _positive(config.evaluation, "evaluation.", "sequences", "batch_size")
    for name, value in (
        ("checkpoint.keep_best", config.checkpoint.keep_best),
        ("evaluation.every_steps", config.evaluation.every_steps),
        ("evaluation.samples", config.evaluation.samples),
        ("seed", config.seed),
    ):
        if value < 0:
            raise UserError(f"{name}={value} must not be negative")
    _positive(config.data, "data.", "prefetch")
    _positive(config, "", "log_every_steps")
    check_mesh(config.mesh)
    check_faults(config.faults)
    traced_steps(config.profile, config.total_steps)
    if not config.phases:
        raise UserError("phases is empty; a run needs at least one PhaseConfig")
    resolve_mixtures(config)
    for index, phase in enumerate(config.phases):
        _check_phase(config, index, phase)
    return config


def _check_model(config: Config) -> None:
    model = config.model
    _positive(
        model,
        "model.",
        "hidden_size",
        "num_heads",
        "max_position_embeddings",
        "rope_theta",
        "rope_scale",
        "global_every",
        "vocab_pad_multiple",
        "layer_norm_epsilon",
        "initializer_range",
    )
    if model.layer != "none":
        _positive(model, "model.", "num_layers")
    if model.vocab_size is not None and model.vocab_size < 6:
        raise UserError(f"model.vocab_size={model.vocab_size} leaves no room for words beside the five special tokens")
    if model.hidden_size % model.num_heads:
        fits = [h for h in range(1, model.hidden_size + 1) if model.hidden_size % h == 0]
        near = sorted(fits, key=lambda h: abs(h - model.num_heads))[:3]
        raise UserError(
            f"model.hidden_size={model.hidden_size} is not divisible by model.num_heads={model.num_heads}; "
            f"numbers of heads that fit: {', '.join(map(str, sorted(near)))}"
        )
    for name in ("intermediate_size", "embedding_size"):
        if (value := getattr(model, name)) is not None and value < 1:
            raise UserError(f"model.{name}={value} must be positive")
    if config.data.sentence_pairs != "none" and model.type_vocab_size < 2:
        raise UserError(
            f"model.type_vocab_size={model.type_vocab_size} but data.sentence_pairs={config.data.sentence_pairs!r} "
            "needs two segments: set model.type_vocab_size=2 or data.sentence_pairs=none"
        )
    if config.data.sentence_pairs != "none" and not model.pair_head:
        raise UserError(
            f"model.pair_head=False but data.sentence_pairs={config.data.sentence_pairs!r} needs that head: set "
            "model.pair_head=True or data.sentence_pairs=none"
        )
    if model.padding_id is not None and not 0 <= model.padding_id < model.max_position_embeddings - 1:
        raise UserError(
            f"model.padding_id={model.padding_id} must be an id, 0 or more, and leave positions of the "
            f"{model.max_position_embeddings} in model.max_position_embeddings; RoBERTa has 1 and 514"
        )
    _share(model, "model.", "hidden_dropout", "attention_dropout", below_one=True)
    _check_positions(config)
    check_disentangled(model)
    if model.layer == "lstm":
        check_recurrent(config)
    check_static_vectors(config)


def _check_positions(config: Config) -> None:
    """Check how tokens see each other: positions inside attention, windows, global tokens."""
    model = config.model
    for name in ("type_vocab_size", "global_tokens"):
        if getattr(model, name) < 0:
            raise UserError(f"model.{name}={getattr(model, name)} must not be negative")
    if model.positions == "rope" and model.head_size % 2:
        raise UserError(
            f"model.positions=rope turns features in pairs, but model.hidden_size={model.hidden_size} with "
            f"model.num_heads={model.num_heads} makes heads of {model.head_size}; choose a number of heads that makes "
            "them even"
        )
    if model.rope_local_theta is not None and not 0 < model.rope_local_theta < math.inf:
        raise UserError(f"model.rope_local_theta={model.rope_local_theta} must be positive, or None for rope_theta")
    if not model.first_attention_norm and model.norm_position != "pre":
        raise UserError(
            "model.first_attention_norm=False belongs to model.norm_position=pre, not to "
            f"{model.norm_position}, which has no norm before an attention"
        )
    if not model.first_attention_norm and model.sharing != "none":
        raise UserError(
            f"model.first_attention_norm=False makes a first layer of its own, but with model.sharing={model.sharing} "
            "layers share parameters; set model.sharing=none"
        )
    if model.local_window is None and model.global_tokens:
        raise UserError(
            f"model.global_tokens={model.global_tokens} needs model.local_window: without it every token sees "
            "everything"
        )
    if model.local_window is None:
        return
    if not 0 < model.local_window < model.max_position_embeddings:
        raise UserError(
            f"model.local_window={model.local_window} must be between 1 and model.max_position_embeddings - 1 = "
            f"{model.max_position_embeddings - 1}; a longer window restricts nothing, which is model.local_window=None"
        )
    if model.global_tokens and any(phase.packed for phase in resolve_phases(config)):
        raise UserError(
            f"model.global_tokens={model.global_tokens} are at the start of a row, and packed rows hold several texts; "
            "set data.packing=off"
        )


def _check_data(config: Config) -> None:
    masking = config.masking
    _share(config.data, "data.", "held_out", "short_sequence_probability", below_one=True)
    _share(masking, "masking.", "rate", "mask_share", "random_share", "span_continue")
    if masking.rate == 0:
        raise UserError("masking.rate=0 leaves nothing to predict; BERT uses 0.15")
    if masking.mask_share + masking.random_share > 1 + 1e-9:
        raise UserError(
            f"masking.mask_share={masking.mask_share} and masking.random_share={masking.random_share} add up to "
            "more than 1; the paper has 0.8 and 0.1"
        )
    _positive(masking, "masking.", "span_max_words", "ngram_max")
    if masking.static_masks < 0:
        raise UserError(f"masking.static_masks={masking.static_masks}: 0 for new masks every epoch, N for N fixed ones")
    check_noise(config.data.noise, "data.noise.")
    if config.data.noise.rate and config.objective.name not in ("masked_words", "replaced_tokens"):
        raise UserError(
            f"data.noise.rate={config.data.noise.rate} puts errors into words that are not predicted, but "
            f"objective.name={config.objective.name} predicts all or leaves none whole; set data.noise.rate=0"
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
    _positive(phase, prefix, "steps", "sequence_length", "batch_size", "micro_batches", "learning_rate")
    if phase.sequence_length > config.model.longest_sequence:
        unused = "" if config.model.padding_id is None else f" less {config.model.padding_id + 1}, for padding_id"
        raise UserError(
            f"{prefix}sequence_length={phase.sequence_length} is longer than "
            f"model.max_position_embeddings={config.model.max_position_embeddings}{unused}; raise the latter or "
            "shorten the sequences"
        )
    if phase.sequence_length < 8:
        raise UserError(
            f"{prefix}sequence_length={phase.sequence_length} is too short for [CLS] A [SEP] B [SEP]; the minimum is 8"
        )
    if phase.batch_size % phase.micro_batches:
        low = phase.batch_size // phase.micro_batches * phase.micro_batches
        near = " or ".join(str(n) for n in (low, low + phase.micro_batches) if n)
        raise UserError(
            f"{prefix}batch_size={phase.batch_size} is not divisible by {prefix}micro_batches={phase.micro_batches}; "
            f"nearest: {near}"
        )
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
        if warmup + config.schedule.cooldown_steps > length:
            raise UserError(
                f"{prefix}warmup_steps={warmup} (and schedule.cooldown_steps="
                f"{config.schedule.cooldown_steps}) do not fit into the {length} steps of its schedule; lower it, "
                f"for example to {max(1, length // 100)}"
            )


def _check_ramp(prefix: str, phase: PhaseConfig) -> None:
    sizes, steps = phase.ramp_batch_sizes, phase.ramp_steps
    if bool(sizes) != bool(steps) or not len(sizes) <= steps <= phase.steps:
        raise UserError(
            f"{prefix}ramp_batch_sizes={sizes} with {prefix}ramp_steps={steps}: give batch sizes and a number of steps "
            f"for them all, from {len(sizes)} to the {phase.steps} of the phase, or neither"
        )
    if wrong := [size for size in sizes if size < 1 or size % phase.micro_batches]:
        raise UserError(
            f"{prefix}ramp_batch_sizes={sizes}: {wrong[0]} is no positive multiple of {prefix}micro_batches="
            f"{phase.micro_batches}"
        )


def check_optimizer(optimizer: OptimizerConfig) -> None:
    """Raise a UserError if a value is out of range."""
    _positive(optimizer, "optimizer.", "epsilon")
    _share(optimizer, "optimizer.", "beta1", "beta2", "momentum", "ema_decay", below_one=True)
    for name in ("weight_decay", "clip_norm"):
        if not 0 <= getattr(optimizer, name) < math.inf:
            raise UserError(f"optimizer.{name}={getattr(optimizer, name)} must be 0 or a positive number")


def check_schedule(schedule: ScheduleConfig) -> None:
    """Raise a UserError if a value is out of range or belongs to a different shape of the decay."""
    _share(schedule, "schedule.", "final_fraction")
    _positive(schedule, "schedule.", "power")
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
    if list(sizes.values()).count(-1) > 1:
        raise UserError(f"mesh {sizes}: only one axis may be -1")


def _positive(part: Any, prefix: str, *names: str) -> None:
    for name in names:
        value = getattr(part, name)
        if not 0 < value < math.inf:
            raise UserError(f"{prefix}{name}={value} must be positive")


def _share(part: Any, prefix: str, *names: str, below_one: bool = False) -> None:
    for name in names:
        value = getattr(part, name)
        if not 0 <= value <= 1 or (below_one and value == 1):
            raise UserError(
                f"{prefix}{name}={value} must be between 0 and 1" + (", 1 not included" if below_one else "")
            )
