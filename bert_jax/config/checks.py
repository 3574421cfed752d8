"""Checks that the values of a configuration fit together; standard library only.

They run before anything heavy is loaded. An error names key, value and remedy. Also here: mixtures of token stores as
an option spells them, STORE=0.7,STORE=0.3.
"""

import dataclasses
import itertools
import math
import re
from typing import Literal

from bert_jax.config.json_form import check_effects, need_positive, need_share
from bert_jax.config.model import ModelConfig, Rope, WordVectorsConfig
from bert_jax.config.objective import (
    GeneratorConfig,
    ObjectiveConfig,
    StaticVectorsConfig,
    check_distillation,
    generator_model,
)
from bert_jax.config.pretraining import (
    Config,
    MaskingConfig,
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


def check_generator(config: Config) -> None:
    """Raise a UserError if generator and discriminator cannot be trained, or if there are none to train."""
    objective, default = config.objective, ObjectiveConfig()
    if objective.name != "replaced_tokens":
        for name in ("generator", "replaced_tokens_weight"):
            if getattr(objective, name) != getattr(default, name):
                raise UserError(
                    f"objective.{name} belongs to objective.name=replaced_tokens, not to {objective.name}; set that "
                    "name or leave the option out"
                )
        return
    for name, consequence in (
        ("mlm_weight", "the generator would never learn"),
        ("replaced_tokens_weight", "the discriminator would never learn"),
    ):
        if not getattr(objective, name):
            raise UserError(
                f"objective.{name}=0 with objective.name=replaced_tokens: {consequence}; the paper's weights are "
                "mlm_weight=1 and replaced_tokens_weight=50"
            )
    for name in ("sentence_pair_weight", "span_boundary_weight"):
        if getattr(objective, name) != getattr(default, name):
            raise UserError(
                f"objective.{name}={getattr(objective, name):g} has no effect with objective.name=replaced_tokens; "
                "leave it out"
            )
    if config.data.has_pair_labels or config.model.pair_head:
        raise UserError(
            f"objective.name=replaced_tokens has no second objective, but data.sentence_pairs="
            f"{config.data.sentence_pairs} and model.pair_head={config.model.pair_head}; set "
            "data.sentence_pairs=adjacent (or none) and model.pair_head=False"
        )
    _check_sizes(config, objective.generator)


def _check_sizes(config: Config, generator: GeneratorConfig) -> None:
    for name in ("hidden_size", "num_layers", "num_heads", "intermediate_size"):
        if (value := getattr(generator, name)) is not None and value < 1:
            raise UserError(f"objective.generator.{name}={value} must be positive")
    model = generator_model(config.model, generator)
    if model.hidden_size > config.model.hidden_size:
        raise UserError(
            f"objective.generator.hidden_size={model.hidden_size} is wider than the discriminator, "
            f"model.hidden_size={config.model.hidden_size}; the paper takes a quarter to a half of it"
        )
    if isinstance(model, ModelConfig) and model.hidden_size % model.num_heads:
        raise UserError(
            f"the generator's width of {model.hidden_size} is not divisible by its {model.attention_heads} heads; set "
            "objective.generator.hidden_size or objective.generator.num_heads so that it is"
        )
    if config.objective.mask_decoder and model.num_layers < 2:
        raise UserError(
            "objective.mask_decoder=True passes through the last of several layers again, but "
            f"objective.generator.num_layers={model.num_layers}; give it two or leave the decoder out"
        )
    if isinstance(model, ModelConfig) and isinstance(model.positions, Rope) and model.head_size % 2:
        raise UserError(
            f"model.positions=rope turns features in pairs, but the generator has heads of {model.head_size}; set "
            "objective.generator.num_heads so that they are even"
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


def check_permutation(config: Config) -> None:
    """Raise a UserError if model and objective are not both XLNet's, or an option would be ignored."""
    model, objective = config.model, config.objective
    if (objective.name == "permutation") != model.two_streams:
        raise UserError(
            f"{model.spelled} and objective.name={objective.name}: the tokens of a permutation are "
            "predicted by XLNet's second stream of states, and nothing else trains it; set model.positions=xlnet and "
            "objective.name=permutation, or neither"
        )
    if objective.longest_span < 1:
        raise UserError(f"objective.longest_span={objective.longest_span} must be positive; the paper's is 5")
    if objective.name != "permutation":
        if objective.longest_span != ObjectiveConfig.longest_span:
            raise UserError(
                f"objective.longest_span={objective.longest_span} belongs to objective.name=permutation, not to "
                f"{objective.name}; set that name or leave the option out"
            )
        return
    why = "objective.name=permutation predicts tokens that it leaves as they are"
    for name, value in vars(config.masking).items():
        if name not in ("rate", "static_masks") and value != getattr(MaskingConfig, name):
            raise UserError(
                f"{why}, in spans of up to objective.longest_span, so masking.{name}={value} has no effect; leave it "
                "out"
            )
    if config.data.sentence_pairs != "none":
        raise UserError(
            f"{why} and reads single texts, but data.sentence_pairs={config.data.sentence_pairs}; set "
            "data.sentence_pairs=none"
        )
    for name, alone in (("mlm_weight", 1), ("sentence_pair_weight", 1), ("span_boundary_weight", 0)):
        if getattr(objective, name) != alone:
            raise UserError(
                f"{why}, which is its only loss, so objective.{name}={getattr(objective, name):g} has no effect; "
                "leave it out"
            )


def check_objective(config: Config) -> None:
    """Raise a UserError if the objective cannot be trained with the other options."""
    values = dataclasses.asdict(config.objective)
    weights = {name: value for name, value in values.items() if name.endswith("_weight")}
    for name, weight in weights.items():
        if not 0 <= weight < math.inf:
            default = getattr(ObjectiveConfig, name)
            raise UserError(f"objective.{name}={weight} must be 0 or a positive number; the default is {default:g}")
    check_generator(config)
    pairs = config.data.sentence_pairs
    others = weights["span_boundary_weight"] or (config.data.has_pair_labels and weights["sentence_pair_weight"])
    if not weights["mlm_weight"] and not others:
        raise UserError(
            f"objective.mlm_weight=0 leaves nothing to learn: objective.sentence_pair_weight="
            f"{weights['sentence_pair_weight']:g}, data.sentence_pairs={pairs}; the paper's weights are 1"
        )
    if config.objective.distillation.teacher:
        _check_taught(config)
    if config.objective.predicts_all:
        _check_neighbours(config)
    if config.objective.predicts_neighbours:
        _check_alone(config, f"objective.name={config.objective.name} predicts the neighbours of each word")
    _check_directions(config.objective)
    check_permutation(config)
    if config.objective.mask_decoder:
        _check_mask_decoder(config)
    if pairs != "none":
        _check_pairs(config)


def _check_pairs(config: Config) -> None:
    """Raise a UserError if the model cannot read pairs, which its objective allows, or not learn from their labels."""
    model, labelled = config.model, config.data.has_pair_labels
    needed = {"type_vocab_size": max(2, model.type_vocab_size)} | ({"pair_head": True} if labelled else {})
    if wrong := [name for name, value in needed.items() if getattr(model, name) != value]:
        raise UserError(
            f"data.sentence_pairs={config.data.sentence_pairs} needs two segments"
            f"{' and a head for pairs' if labelled else ''}, but "
            f"{' and '.join(f'model.{name}={getattr(model, name)}' for name in wrong)}; set "
            f"{' and '.join(f'model.{name}={needed[name]}' for name in wrong)}, or data.sentence_pairs=none"
        )


def _check_mask_decoder(config: Config) -> None:
    """Raise a UserError if the model has no layer that the enhanced mask decoder could pass through again."""
    model = config.model
    for name, value, fitting in (
        ("model.disentangled.terms", "none", model.disentangled is not None),
        ("model.positions", "learned", model.position_table is None),
        ("model.norm_position", model.norm_position, model.norm_position == "post"),
        ("model.num_layers", model.num_layers, model.num_layers > 1),
        ("objective.name", config.objective.name, config.objective.masks_words),
    ):
        if not fitting:
            raise UserError(
                f"objective.mask_decoder=True cannot be combined with {name}={value}: masked words are predicted by "
                "further passes of the last of several layers of a DeBERTa (terms=c2p+p2c, positions=none, "
                "norm_position=post), whose input has no absolute positions; leave it out"
            )


def _check_taught(config: Config) -> None:
    """Raise a UserError if what is learned from a teacher cannot go with the objective."""
    objective = config.objective
    check_distillation(objective.distillation)
    if objective.name != "masked_words":
        raise UserError(
            f"objective.distillation.teacher={objective.distillation.teacher} teaches masked words, but "
            f"objective.name={objective.name}; set objective.name=masked_words"
        )


def _check_neighbours(config: Config) -> None:
    """Raise a UserError if a token could see what it has to predict, or an option would be ignored."""
    name, model = config.objective.name, config.model
    why = f"objective.name={name} predicts each token from those on one side of it"
    if name == "left_to_right" and model.direction != "left_to_right":
        raise UserError(
            f"{why}, but with model.direction={model.direction} it would see the answer; set "
            "model.direction=left_to_right"
        )
    if name == "two_directions" and not model.two_directions:
        raise UserError(
            f"{why}, but with {model.spelled}, model.direction={model.direction} it would see the answer; "
            "set model.layer=lstm and model.direction=both, whose two directions are kept apart"
        )
    _check_alone(config, why)


def _check_directions(objective: ObjectiveConfig) -> None:
    """Raise a UserError if the weights of the two directions leave nothing to learn, or there is only one loss."""
    weights = {name: getattr(objective, name) for name in ("next_word_weight", "previous_word_weight")}
    if objective.name == "two_directions" and not any(weights.values()):
        raise UserError(
            "objective.next_word_weight=0 and objective.previous_word_weight=0 leave nothing to learn; the paper's "
            "weights are 1"
        )
    for name, weight in weights.items():
        if objective.name != "two_directions" and weight != 1:
            raise UserError(
                f"objective.{name}={weight:g} belongs to objective.name=two_directions, not to {objective.name}; set "
                "that name or leave the option out"
            )


def _check_alone(config: Config, why: str) -> None:
    """Raise a UserError if there are pairs, or options of masked words; `why` begins the message."""
    if config.data.sentence_pairs != "none":
        raise UserError(
            f"{why} and reads single texts, but data.sentence_pairs={config.data.sentence_pairs}; set "
            "data.sentence_pairs=none"
        )
    for weight, alone in (("mlm_weight", 1), ("sentence_pair_weight", 1), ("span_boundary_weight", 0)):
        if getattr(config.objective, weight) != alone:
            raise UserError(
                f"{why} and masks none, so objective.{weight}={getattr(config.objective, weight):g} has no effect; "
                "leave it out"
            )
    for name, value in vars(config.masking).items():
        if name != "static_masks" and value != getattr(MaskingConfig, name):
            raise UserError(f"{why} and masks none, so masking.{name}={value} does not apply; leave it out")
    for index, phase in enumerate(config.phases):
        if phase.max_predictions is not None:
            raise UserError(
                f"{why}, all of them, so phases.{index}.max_predictions={phase.max_predictions} has no effect; leave "
                "it out"
            )


def check_static_vectors(config: Config) -> None:
    """Raise a UserError if only one of model and objective is for static vectors, or an option does not fit them."""
    model, objective, options = config.model, config.objective, config.objective.static_vectors
    if not objective.predicts_neighbours:
        if isinstance(model, WordVectorsConfig):
            raise UserError(
                f"model.layer=none gives a word the same vector everywhere, which objective.name={objective.name} "
                "cannot learn from; set objective.name=skip_gram or glove"
            )
        if options != type(options)():
            raise UserError(
                "objective.static_vectors has no effect without objective.name=skip_gram or glove; leave it out"
            )
        return
    if not isinstance(model, WordVectorsConfig):
        raise UserError(
            f"objective.name={objective.name} learns one vector per word, but with {model.spelled} it would "
            "see the neighbours that it has to predict; set model.layer=none"
        )
    _check_names(objective.name, options)
    for name in ("window", "negatives"):
        if getattr(options, name) < 1:
            raise UserError(
                f"objective.static_vectors.{name}={getattr(options, name)} must be positive; the paper's is 5"
            )
    if not 0 <= options.subsampling < 1:
        raise UserError(
            f"objective.static_vectors.subsampling={options.subsampling} must be a share of the text, from 0 to below "
            "1; the paper's is 1e-5"
        )
    if not (0 < options.maximum_count < math.inf and 0 <= options.count_power <= 1):
        raise UserError(
            f"objective.static_vectors.maximum_count={options.maximum_count:g} must be positive and count_power="
            f"{options.count_power:g} from 0 to 1; the paper's are 100 and 0.75"
        )
    for phase in resolve_phases(config):
        if phase.sequence_length <= options.window:
            raise UserError(
                f"objective.static_vectors.window={options.window} is not shorter than the rows of "
                f"phases.{phase.index}.sequence_length={phase.sequence_length}; make it smaller, or the rows longer"
            )


_OF_ONE = {"skip_gram": ("negatives", "subsampling"), "glove": ("counts", "maximum_count", "count_power")}
"""Options that only one of the objectives has."""


def _check_names(name: str, options: StaticVectorsConfig) -> None:
    """Raise a UserError if an option is for the other objective."""
    for other, names in _OF_ONE.items():
        for option in names:
            if other != name and getattr(options, option) != getattr(StaticVectorsConfig(), option):
                raise UserError(
                    f"objective.static_vectors.{option}={getattr(options, option)} has no effect with objective.name="
                    f"{name}; leave it out, or set objective.name={other}"
                )


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
    check_effects(config)
    check_static_vectors(config)
    config.model.check()
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
    if config.model.window is not None:
        config.model.window.check_length(max(each.sequence_length for each in config.phases))
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


def check_schedule(schedule: ScheduleConfig) -> None:
    """Raise a UserError if a value is out of range."""
    need_share(schedule, "schedule.", "final_fraction")
    need_positive(schedule, "schedule.", "power")
    if schedule.cooldown_steps < 0:
        raise UserError(f"schedule.cooldown_steps={schedule.cooldown_steps} must not be negative")


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
