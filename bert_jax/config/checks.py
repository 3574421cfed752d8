"""Checks that the values of a configuration fit together; standard library only.

They run before anything heavy is loaded. An error names key, value and remedy. Also here: ranges of option values,
and mixtures of token stores as an option spells them, STORE=0.7,STORE=0.3.
"""

import dataclasses
import itertools
import math
import re
from typing import Literal

from bert_jax.config.model import ModelConfig
from bert_jax.config.pretraining import (
    Config,
    MeshConfig,
    OptimizerConfig,
    PhaseConfig,
    ScheduleConfig,
    check_faults,
    check_noise,
    resolve_phases,
    traced_steps,
)
from bert_jax.errors import UserError

_NEEDED = {
    "layer": (("transformer",), "has no first layer to which it could be added"),
    "positions": (("learned", "rope", "alibi", "none"), "has two streams of states, for which there is no such form"),
    "norm_position": (("post",), "has no norm after a layer"),
    "direction": (("both",), "must not see the tokens after it"),
}
"""Option, the values that a convolution allows, and what is wrong with a model of another."""


def check_convolution(model: ModelConfig) -> None:
    """Raise a UserError if there can be no such convolution, or not in this model."""
    width, activation = model.convolution_width, model.convolution_activation
    if width == 0:
        if activation != ModelConfig.convolution_activation:
            raise UserError(
                f"model.convolution_activation={activation} has no effect without model.convolution_width; set that "
                "to 3, as in DeBERTa v2, or leave both out"
            )
        return
    widest = 2 * model.max_position_embeddings - 1
    if width < 0 or width % 2 == 0 or width > widest:
        raise UserError(
            f"model.convolution_width={width} must be odd, so that as many tokens are seen on the left as on the right,"
            f" and at most {widest}, which reaches across the longest sequence; DeBERTa v2 has 3, and 0 means none"
        )
    for name, (allowed, reason) in _NEEDED.items():
        if (value := getattr(model, name)) not in allowed:
            raise UserError(
                f"model.convolution_width={width} cannot be combined with model.{name}={value}, which {reason}; set "
                f"model.convolution_width=0, or model.{name}={allowed[0]}"
            )


def check_disentangled(model: ModelConfig) -> None:
    """Raise a UserError if disentangled attention cannot have these options, or another one of the model."""
    options = model.disentangled
    if options.terms == "none":
        changed = [name for name in vars(options) if getattr(options, name) != getattr(type(options), name)]
        if changed:
            raise UserError(
                f"model.disentangled.{changed[0]}={getattr(options, changed[0])} has no effect without "
                "model.disentangled.terms; set that to c2p+p2c, as in DeBERTa, or leave both out"
            )
        return
    if model.positions not in ("none", "learned"):
        raise UserError(
            f"model.positions={model.positions} cannot be combined with model.disentangled.terms="
            f"{options.terms}; set model.positions=none, as in DeBERTa, or learned"
        )
    if not model.use_bias:
        raise UserError(
            "model.use_bias=False cannot be combined with model.disentangled.terms, because no DeBERTa has that form; "
            "set model.use_bias=True"
        )
    if model.layer != "transformer":
        raise UserError(
            f"model.layer={model.layer} has no attention, so model.disentangled.terms={options.terms} cannot apply; "
            "set model.layer=transformer"
        )
    if options.max_distance < 1:
        raise UserError(f"model.disentangled.max_distance={options.max_distance} must be positive; DeBERTa has 512")
    if options.buckets is None:
        return
    if options.buckets < 2:
        raise UserError(
            f"model.disentangled.buckets={options.buckets} must be at least 2, since half of the buckets are one "
            "distance each; DeBERTa-v3 has 256, and None means a bucket for every distance"
        )
    if options.max_distance < options.buckets // 2 + 2:
        raise UserError(
            f"model.disentangled.max_distance={options.max_distance} leaves nothing for the wider half of "
            f"model.disentangled.buckets={options.buckets}; it must be at least {options.buckets // 2 + 2}"
        )


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
        if data.mixture_temperature != 1:
            raise UserError(f"data.mixture_temperature={data.mixture_temperature} has no effect without data.mixture")
        return tuple(() for _ in config.phases)
    if data.path:
        raise UserError(
            f"data.path={data.path} and data.mixture={data.mixture}: give one of them; a store of a mixture is named "
            "in data.mixture"
        )
    if not (math.isfinite(data.mixture_temperature) and data.mixture_temperature > 0):
        raise UserError(f"data.mixture_temperature={data.mixture_temperature} must be a positive number")
    common = _parsed(data.mixture, "data.mixture", data.mixture_temperature)
    return tuple(
        _parsed(phase.mixture, f"phases.{index}.mixture", data.mixture_temperature) if phase.mixture else common
        for index, phase in enumerate(config.phases)
    )


def mixture_paths(config: Config) -> tuple[str, ...]:
    """Return the stores of all phases, each once, in the order in which they are first named; () without a mixture."""
    return tuple(dict.fromkeys(part.path for parts in resolve_mixtures(config) for part in parts))


def training_paths(config: Config) -> tuple[str, ...]:
    """Return the stores that a run trains on; () if none is given."""
    return mixture_paths(config) or ((config.data.path,) if config.data.path else ())


def _parsed(text: str, option: str, temperature: float) -> tuple[MixturePart, ...]:
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
    if kinds != {"size"} and temperature != 1:
        raise UserError(
            f"data.mixture_temperature={temperature}, but {option}={text} says how much of each store is read; leave "
            "one of them out"
        )
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


_FORM = {
    "norm_position": "post",
    "direction": "both",
    "local_window": None,
    "embedding_size": None,
    "padding_id": None,
    "task_transform": False,
    "use_bias": True,
}
"""Options that XLNet has one value of."""


def _check_xlnet(model: ModelConfig) -> None:
    """Raise a UserError if an XLNet would have an option that is not XLNet's."""
    for name, value in _FORM.items():
        if getattr(model, name) != value:
            raise UserError(
                f"model.{name}={getattr(model, name)} is not for model.positions=xlnet, which has {value}; leave it out"
            )
    if model.hidden_size % 2:
        raise UserError(
            f"model.hidden_size={model.hidden_size} is odd, but model.positions=xlnet encodes distances by as many "
            "sines as cosines; make it even"
        )


_WITHOUT_EFFECT = {
    "positions": ("none", "learned"),
    "feed_forward": ("plain",),
    "local_window": (None,),
    "first_attention_norm": (True,),
    "scaled_outputs": (False,),
    "sharing": ("none", "all"),
}
"""Options about attention and feed-forward networks, with the values that a recurrent layer allows."""


def check_recurrent(config: Config) -> None:
    """Raise a UserError if an option belongs to Transformer layers, or two directions cannot share the width."""
    model = config.model
    for name, allowed in _WITHOUT_EFFECT.items():
        if (value := getattr(model, name)) not in allowed:
            raise UserError(
                f"model.{name}={value} belongs to Transformer layers, but model.layer=lstm; set model.{name}="
                f"{' or '.join(map(str, allowed))}"
            )
    if model.direction == "both" and model.hidden_size % 2:
        raise UserError(
            f"model.hidden_size={model.hidden_size} cannot be divided between the two directions of model.layer=lstm; "
            "make it even"
        )


_WITHOUT_LAYERS = {
    "num_layers": 0,
    "positions": "none",
    "type_vocab_size": 0,
    "pair_head": False,
    "embedding_size": None,
    "norm_position": "post",
    "scaled_outputs": False,
    "sharing": "none",
    "local_window": None,
    "direction": "both",
    "feed_forward": "plain",
}
"""Options that a model without layers needs."""


def _check_without_layers(model: ModelConfig) -> None:
    """Raise a UserError if a model without layers would have an option of layers."""
    for name, needed in _WITHOUT_LAYERS.items():
        if getattr(model, name) != needed:
            raise UserError(
                f"model.{name}={getattr(model, name)} has no effect in a model without layers (model.layer=none); set "
                f"model.{name}={needed}"
            )


def need_positive(part: object, prefix: str, *names: str) -> None:
    """Raise a UserError unless the options `names` of `part`, which errors begin with `prefix`, are positive."""
    for name in names:
        value = getattr(part, name)
        if not 0 < value < math.inf:
            raise UserError(f"{prefix}{name}={value} must be positive")


def need_divisible(prefix: str, name: str, batch_size: int, micro_batches: int) -> None:
    """Raise a UserError unless the batches of option `name` divide into micro-batches."""
    if batch_size % micro_batches:
        low = batch_size // micro_batches * micro_batches
        near = " or ".join(str(size) for size in (low, low + micro_batches) if size)
        raise UserError(
            f"{prefix}{name}={batch_size} is not divisible by {prefix}micro_batches={micro_batches}; nearest: {near}"
        )


def need_share(part: object, prefix: str, *names: str, below_one: bool = False) -> None:
    """Raise a UserError unless the options `names` of `part` are between 0 and 1, which `below_one` excludes."""
    for name in names:
        value = getattr(part, name)
        if not 0 <= value <= 1 or (below_one and value == 1):
            raise UserError(
                f"{prefix}{name}={value} must be between 0 and 1" + (", 1 not included" if below_one else "")
            )


def check_model(config: Config) -> None:
    """Raise a UserError if the model cannot be built, or is not one for the objective."""
    model = config.model
    config.objective.check_model(model)
    if model.layer == "none":
        _check_without_layers(model)
    need_positive(
        model,
        "model.",
        "hidden_size",
        "num_heads",
        "max_position_embeddings",
        "rope_theta",
        "rope_scale",
        "vocab_pad_multiple",
        "layer_norm_epsilon",
        "initializer_range",
    )
    if model.layer != "none":
        need_positive(model, "model.", "num_layers")
    if model.vocab_size is not None and model.vocab_size < 6:
        raise UserError(
            f"model.vocab_size={model.vocab_size} leaves no room for words in addition to the five special tokens"
        )
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
    if model.padding_id is not None and not 0 <= model.padding_id < model.max_position_embeddings - 1:
        raise UserError(
            f"model.padding_id={model.padding_id} must be an id, 0 or more, and leave positions of the "
            f"{model.max_position_embeddings} in model.max_position_embeddings; RoBERTa has 1 and 514"
        )
    need_share(model, "model.", "hidden_dropout", "attention_dropout", "recurrent_dropout", below_one=True)
    _check_positions(config)
    check_disentangled(model)
    check_convolution(model)
    if model.is_xlnet:
        _check_xlnet(model)
    if model.layer == "lstm":
        check_recurrent(config)
    elif model.recurrent_dropout:
        raise UserError(
            f"model.recurrent_dropout={model.recurrent_dropout} drops weights of recurrent layers, but model.layer="
            f"{model.layer} has none; leave it out, or set model.layer=lstm"
        )


def _check_positions(config: Config) -> None:
    """Check how tokens see each other: positions inside attention, windows, global tokens."""
    model = config.model
    for name in ("type_vocab_size", "global_every", "global_tokens"):
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
            f"model.first_attention_norm=False makes the first layer different, but with model.sharing="
            f"{model.sharing} layers share parameters; set model.sharing=none"
        )
    if model.local_window is None and model.global_tokens:
        raise UserError(
            f"model.global_tokens={model.global_tokens} needs model.local_window: without it every token sees "
            "everything"
        )
    if model.local_window is None and not model.global_every:
        raise UserError(
            "model.global_every=0 makes all layers local, but without model.local_window none is; set "
            "model.local_window too, or leave it out"
        )
    if model.local_window is None:
        return
    if not 0 < model.local_window < model.max_position_embeddings:
        raise UserError(
            f"model.local_window={model.local_window} must be between 1 and model.max_position_embeddings - 1 = "
            f"{model.max_position_embeddings - 1}; for a window that restricts nothing, set model.local_window=None"
        )


def check(config: Config) -> Config:
    """Return `config` if its values fit together; raise a UserError that names key, value and remedy otherwise."""
    check_model(config)
    _check_data(config)
    config.objective.check(config)
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
    layers, taught = config.init_from_layers, config.objective.taught
    source = config.init_from or (taught and taught.teacher)
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
