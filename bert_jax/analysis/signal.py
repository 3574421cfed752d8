"""A model before its first step: norms of states and gradients, position vectors, and costs, against theory.

Behind `bert-jax analyze init`. Depth growth: states and gradients by layer at initialization, with the norms after
each branch (BERT) and before it. Positions: how similar drawn, sinusoidal and learned vectors are. Costs: operations
and memory of a training step by length, from the compiler and from closed forms.

The norm of what multi-head attention adds at initialization does not depend on the number of heads. Every kernel has
independent entries of variance s². For the weights p of head h of A, which has D = H / A values, the context is W_V
(Σ_j p_j x_j), so each of its values has variance s² |Σ_j p_j x_j|². The output adds up D values of each of A heads
with weights of variance s², so the mean over the heads is left:

    E |attention(x)|² = H · s² · Σ_h D · s² |c_h|² = s⁴ H² · mean_h |c_h|²,   c_h = Σ_j p_j x_j.

Scores are q·k / √D, and q·k is a sum of D products (Vaswani et al. 2017, section 3.2.1, note 4), so their variance
over the keys, s⁴ |x|² |x_j - x̄|², does not depend on D either. It is small: the weights are nearly uniform (as Xiong
et al. 2020, section 3.3, assume), and c is the mean x̄ of the states. To first order in the scores, c gains Ĉ a for a
vector a with s⁴ |x|² in each direction, Ĉ = mean_j (x_j - x̄)(x_j - x̄)ᵀ, so

    E |c|² = |x̄|² + s⁴ |x|² tr Ĉ².
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from bert_jax.analysis import results
from bert_jax.analysis.layers import units
from bert_jax.analysis.widths import WidthChanges, draw_widths, models_of_widths, tell_widths, width_changes
from bert_jax.config import ComputeConfig, EncoderConfig, ModelConfig
from bert_jax.config.analyses import InitConfig
from bert_jax.config.options import to_dict
from bert_jax.config.presets import shipped_configs
from bert_jax.console import load_config
from bert_jax.devices.hardware import all_devices
from bert_jax.errors import UserError
from bert_jax.models.architecture import ACTIVATIONS, bert_architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.block import SelfAttention
from bert_jax.models.costs import activation_bytes, training_flops
from bert_jax.models.embeddings import TRUNCATED_STD, random_positions, sinusoidal_positions
from bert_jax.models.kernels import plain
from bert_jax.models.kernels.plain import AttentionMask
from bert_jax.objectives.masked_words import masked_word_sums
from bert_jax.pretrained.model import PretrainedModel, load
from bert_jax.progress import progress_bar


@dataclasses.dataclass(frozen=True)
class AttentionNorm:
    """Norms of the output of attention at initialization, by the number of heads."""

    heads: tuple[int, ...]
    """Numbers of heads."""
    measured: np.ndarray
    """float64 [heads]: root of the mean over draws and tokens of the squared Euclidean norm."""
    predicted: np.ndarray
    """float64 [heads]: the same of the law, for the states that were drawn."""
    ratio: np.ndarray
    """float64 [heads]: mean over draws of the squared norm that is measured, divided by that of the law."""
    standard_error: np.ndarray
    """float64 [heads]: of `ratio`, over the draws."""
    draws: int
    """Number of initializations for each number of heads."""
    length: int
    """Tokens that attend to each other."""


def attention_norm(
    config: ModelConfig, heads: tuple[int, ...], *, draws: int = 64, length: int = 64, seed: int = 0
) -> AttentionNorm:
    """Return the norms of freshly drawn attention over freshly drawn embeddings of different words.

    Args:
      config: sizes and initializer_range; its own number of heads and scaled_outputs do not matter.
      heads: numbers of heads, which divide the hidden size.
      draws: number of initializations for each of them.
      length: number of tokens.
      seed: of all draws.
    """
    small = dataclasses.replace(
        config, vocab_size=length, vocab_pad_multiple=1, hidden_dropout=0.0, scaled_outputs=False, zero_outputs=False
    )
    embeddings = bert_architecture(small, ComputeConfig(dtype="float32")).embeddings
    ids, mask = jnp.arange(length)[None], AttentionMask(padding=jnp.ones((1, length), jnp.int32))

    def norms(key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        table_key, attention_key = jax.random.split(key)
        states: Any = embeddings(table_key)(ids, jnp.zeros_like(ids), jnp.dtype("float32"), None)
        own = dataclasses.replace(small, num_heads=count, attention_dropout=0.0)
        output, _ = SelfAttention(own, attention_key)(states, mask, None, plain.attention, False)
        return jnp.mean(jnp.sum(output[0] ** 2, axis=-1)), law(states[0], config.initializer_range)

    found = []
    for count in heads:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), count), draws)
        found.append(jax.jit(lambda keys, count=count: jax.lax.map(lambda key: norms(key, count), keys))(keys))
    squares = np.asarray(found, np.float64)  # [heads, 2, draws]
    ratios = squares[:, 0] / squares[:, 1]
    error = ratios.std(axis=1, ddof=1) / np.sqrt(draws)
    measured, predicted = np.sqrt(squares.mean(axis=2)).T
    return AttentionNorm(tuple(heads), measured, predicted, ratios.mean(axis=1), error, draws, length)


def law(states: jax.Array, initializer_range: float) -> jax.Array:
    """Return the expected squared norm of the output of attention over states [L, H], see above."""
    length, size = states.shape
    variance = (TRUNCATED_STD * initializer_range) ** 2
    mean = states.mean(axis=0, keepdims=True)
    centred = states - mean
    spread = jnp.sum((centred @ centred.T) ** 2) / length**2  # tr Ĉ², from the smaller of both products
    score = variance**2 * jnp.mean(jnp.sum(states**2, axis=1)) * spread
    return variance**2 * size**2 * (jnp.sum(mean**2) + score)


SHARE = 0.15  # of the positions, at which random words are to be predicted
KINDS = ("post", "pre")
BATCH_SIZE = 4  # sequences of a draw


@dataclasses.dataclass(frozen=True)
class DepthGrowth:
    """Root mean squares of states and norms of gradients, by layer, for norm_position post and pre (rows 0 and 1)."""

    state: np.ndarray
    """float64 [2, N + 1]: root mean square of the values of the embeddings and of each layer's output, for pre before
    the final norm."""
    predicted_state: np.ndarray
    """float64 [N + 1]: that of pre by `predicted_growth`, from the embeddings that were drawn."""
    gradient: np.ndarray
    """float64 [2, N]: norm of the gradient of the loss of masked words in all parameters of each layer."""
    output_gradient: np.ndarray
    """float64 [2, N]: the same in the second kernel of the feed-forward network alone."""
    depths: tuple[int, ...]
    """Depths of the models of `last_gradient`."""
    last_gradient: np.ndarray
    """float64 [2, depths]: as `output_gradient`, of the last layer of models of these depths."""
    predicted_ratio: np.ndarray
    """float64 [depths]: post divided by pre of `last_gradient`, by the derivatives of the last norms, see below."""
    draws: int
    """Number of initializations, over which squares are averaged."""


def depth_growth(config: ModelConfig, *, draws: int = 4, length: int = 64, seed: int = 0) -> DepthGrowth:
    """Measure freshly drawn models of the depth of `config`, and of shallower ones, on random words.

    Layers have parameters of their own, whatever config.sharing says, and there is no dropout.

    With the norm last, the gradient at the last feed-forward network passes a norm that divides by the root mean square
    of x + f(x), which does not depend on the depth; with pre-norm, one that divides by that of the last state, which
    grows. The ratio of these two is `predicted_ratio` (Xiong et al. 2020, theorem 1, bounds both gradients so).
    """
    depths = tuple(sorted({depth for depth in (1, 2, 4, 8, 16, 24) if depth < config.num_layers} | {config.num_layers}))
    found = {
        (kind, depth): _measure(_fresh(config, kind, depth), draws, length, seed) for kind in KINDS for depth in depths
    }
    whole = [found[kind, config.num_layers] for kind in KINDS]
    after = {depth: found["pre", depth]["state"][-1] for depth in depths}
    start = found["pre", config.num_layers]["start"]
    branches = [_feed_forward(dataclasses.replace(config, num_layers=depth), 1.0) for depth in depths]
    return DepthGrowth(
        state=np.array([each["state"] for each in whole]),
        predicted_state=predicted_growth(config, length, *start),
        gradient=np.array([each["gradient"] for each in whole]),
        output_gradient=np.array([each["output"] for each in whole]),
        depths=depths,
        last_gradient=np.array([[found[kind, depth]["output"][-1] for depth in depths] for kind in KINDS]),
        predicted_ratio=np.array(
            [after[depth] / np.sqrt(1 + branch) for depth, branch in zip(depths, branches, strict=True)]
        ),
        draws=draws,
    )


def predicted_growth(config: ModelConfig, length: int, common: float, own: float) -> np.ndarray:
    """Return the root mean square of the states of a pre-norm model, float64 [N + 1], from the embeddings up.

    A state is followed by two mean squares of its values: of what all tokens have in common, and of what is each one's
    own. Attention adds to the first alone, because its weights are nearly uniform (see above). Of what the
    feed-forward network adds, the common part is its kernel at the correlation of two tokens (the expectation over
    wide layers of Poole et al. 2016, section 2).

    Args:
      config: sizes, initializer_range, scaled_outputs, activation and form of the feed-forward network.
      length: tokens of a sequence.
      common: mean square of the embeddings' common part.
      own: that of the rest.
    """
    growth, products = [common + own], _variance(config.initializer_range) * _variance(config.output_range)
    attention = products * config.hidden_size**2
    for _ in range(config.num_layers):
        total = common + own
        common += attention * (common + own / length) / total
        total = common + own
        alike = _feed_forward(config, common / total)
        common, own = common + alike, own + _feed_forward(config, 1.0) - alike
        growth.append(common + own)
    return np.sqrt(growth)


def _variance(initializer_range: float) -> float:
    return (TRUNCATED_STD * initializer_range) ** 2


def _feed_forward(config: ModelConfig, correlation: float) -> float:
    """Return the expected product of the outputs of two normalized states, of one value; the mean square at 1."""
    points, weights = np.polynomial.hermite_e.hermegauss(64)
    weights = weights / weights.sum()
    scale = np.sqrt(_variance(config.initializer_range) * config.hidden_size)
    function = jax.nn.silu if config.feed_forward == "swiglu" else ACTIVATIONS[config.activation]
    first, second = np.meshgrid(points, points, indexing="ij")
    other = correlation * first + np.sqrt(max(0.0, 1 - correlation**2)) * second
    values = [np.asarray(function(jnp.asarray(scale * each)), np.float64) for each in (first, other)]
    product = float(np.einsum("i,j,ij,ij->", weights, weights, *values))
    gate = 1.0 if config.feed_forward == "plain" else scale**2 * correlation
    return _variance(config.output_range) * config.feed_forward_size * product * gate


def _fresh(config: ModelConfig, kind: str, depth: int) -> BertForPreTraining:
    config = dataclasses.replace(
        config,
        num_layers=depth,
        norm_position=kind,
        first_attention_norm=True,
        sharing="none",
        scaling=None,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    return BertForPreTraining(config, ComputeConfig(dtype="float32", layers="scan"), parts=("mlm",))


def _measure(model: BertForPreTraining, draws: int, length: int, seed: int) -> dict[str, np.ndarray]:
    """Return roots of means of squares over the draws; "start" is the mean squares of both parts of the embeddings."""
    one = jax.jit(functools.partial(_one_draw, model, length))
    found = [one(key) for key in jax.random.split(jax.random.key(seed), draws)]
    means = {name: np.mean([np.asarray(each[name], np.float64) for each in found], axis=0) for name in found[0]}
    return {name: values if name == "start" else np.sqrt(values) for name, values in means.items()}


def _one_draw(model: BertForPreTraining, length: int, key: jax.Array) -> dict[str, jax.Array]:
    """Return mean squares of states, and squared norms of gradients, of one initialization and one random batch."""
    init_key, word_key, place_key, target_key = jax.random.split(key, 4)
    count, words = max(1, round(SHARE * length)), model.config.need_vocab_size()
    ids = jax.random.randint(word_key, (BATCH_SIZE, length), 0, words)
    orders = jax.random.uniform(place_key, (BATCH_SIZE, length))
    batch = {
        "masked_positions": jnp.argsort(orders, axis=1)[:, :count].astype(jnp.int32),
        "masked_ids": jax.random.randint(target_key, (BATCH_SIZE, count), 0, words),
    }

    def loss(params: Any) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        encoded = model.encode(params, ids, jnp.zeros_like(ids), jnp.ones_like(ids), collect=True)
        return _loss(model, params, batch, encoded), encoded.hidden_states or ()

    gradients, states = jax.grad(loss, has_aux=True)(model.init(init_key))
    layers = [jnp.sum(leaf.reshape(leaf.shape[0], -1) ** 2, axis=1) for leaf in jax.tree.leaves(gradients["encoder"])]
    output = gradients["encoder"]["feed_forward"]["output"]["kernel"]
    total = jnp.mean(states[0] ** 2)
    # A mean over L tokens still has the L-th part of what is each one's own.
    of_mean = jnp.mean(jnp.mean(states[0], axis=1) ** 2)
    common = (of_mean - total / length) / (1 - 1 / length)
    return {
        "state": jnp.stack([jnp.mean(state**2) for state in states]),
        "gradient": sum(layers, start=jnp.zeros(len(layers[0]))),
        "output": jnp.sum(output.reshape(len(output), -1) ** 2, axis=1),
        "start": jnp.stack([common, total - common]),
    }


def _loss(model: BertForPreTraining, params: Any, batch: dict[str, jax.Array], encoded: Any) -> jax.Array:
    """Return the mean loss of the masked words of a batch, all of which count."""
    weights = jnp.ones(batch["masked_ids"].shape)
    sums = masked_word_sums(model.mlm_logits(params, batch, encoded), batch["masked_ids"], weights)
    return jnp.asarray(sums.loss / sums.weight)


MOST = 128  # rows of a map; of longer tables, evenly spaced ones


@dataclasses.dataclass(frozen=True)
class PositionSimilarity:
    """Cosines between the rows of tables of P positions."""

    tables: tuple[str, ...]
    """random, sinusoidal, and learned if there is a model."""
    rows: tuple[int, ...]
    """The positions in the maps."""
    maps: tuple[np.ndarray, ...]
    """float64 [rows, rows] for each table: cosines."""
    by_distance: tuple[np.ndarray, ...]
    """float64 [P] for each table: mean cosine of two positions at a distance."""
    predicted: np.ndarray
    """float64 [P]: the same of sinusoids, mean over the wavelengths of cos(distance · frequency)."""
    root_mean_square: np.ndarray
    """float64 [tables]: of the values of each table."""


def position_similarity(config: EncoderConfig, learned: np.ndarray | None = None, seed: int = 0) -> PositionSimilarity:
    """Return the cosines in both starts of the position table of `config`, and in a learned one [P, H]."""
    key = jax.random.key(seed)
    starts = {"random": random_positions(config, key), "sinusoidal": sinusoidal_positions(config, key)}
    tables = {name: np.asarray(table, np.float64) for name, table in starts.items()}
    if learned is not None:
        tables["learned"] = learned
    first = config.first_position
    values = {name: np.asarray(table[first:], np.float64) for name, table in tables.items()}
    count = len(values["random"])
    rows = np.arange(count)[:: -(-count // MOST)]
    cosines = {name: _cosines(table) for name, table in values.items()}
    frequencies = 10_000.0 ** (-2 * (np.arange(config.word_size) // 2) / config.word_size)
    predicted = np.cos(np.arange(count)[:, None] * frequencies[None]).mean(axis=1)
    return PositionSimilarity(
        tables=tuple(values),
        rows=tuple(rows.tolist()),
        maps=tuple(matrix[np.ix_(rows, rows)] for matrix in cosines.values()),
        by_distance=tuple(
            np.array([np.diagonal(matrix, distance).mean() for distance in range(count)]) for matrix in cosines.values()
        ),
        predicted=predicted,
        root_mean_square=np.array([np.sqrt(np.mean(table**2)) for table in values.values()]),
    )


def _cosines(table: np.ndarray) -> np.ndarray:
    directions = units(table)
    return directions @ directions.T


@dataclasses.dataclass(frozen=True)
class StepCosts:
    """Costs per sequence of a forward and backward pass in float32 without dropout, by length."""

    lengths: tuple[int, ...]
    """Tokens of a sequence."""
    flops: np.ndarray
    """float64 [lengths]: operations that XLA states for the compiled program, everything included."""
    closed_flops: np.ndarray
    """float64 [lengths]: matrix products by `models.costs.training_flops`."""
    attention_flops: np.ndarray
    """float64 [lengths]: the part of `closed_flops` that is quadratic in the length."""
    bytes: np.ndarray
    """float64 [lengths]: temporary memory that XLA assigns to the program, in addition to parameters and gradients."""
    closed_bytes: np.ndarray
    """float64 [lengths]: what is kept for the backward pass, by `models.costs.activation_bytes`."""
    sequences: int
    """Sequences of the compiled step, by which its costs are divided."""


def step_costs(
    config: EncoderConfig, lengths: tuple[int, ...], *, sequences: int = 4, done: Callable[[], None] = lambda: None
) -> StepCosts:
    """Compile the step for every length, on the devices of this process, and return what it costs; nothing runs.

    `done` is called after every length, for a progress bar.
    """
    plain = dataclasses.replace(config, hidden_dropout=0.0, attention_dropout=0.0)
    # Unrolled, because XLA counts the body of a loop once.
    model = BertForPreTraining(plain, ComputeConfig(dtype="float32", layers="loop", products="plain"), parts=("mlm",))
    rows = []
    for length in lengths:
        predictions = max(1, round(SHARE * length))
        compiled = _compiled(model, length, predictions, sequences)
        closed = training_flops(plain, model.parameters, length, predictions)
        kept = activation_bytes(plain, length, predictions, "none", 4)
        costs: Any = compiled.cost_analysis()
        memory: Any = compiled.memory_analysis()
        stated = costs["flops"] / sequences, memory.temp_size_in_bytes / sequences
        rows.append((stated[0], closed.total, closed.attention, stated[1], kept.total))
        done()
    flops, products, quadratic, temporary, closed_bytes = np.array(rows, np.float64).T
    return StepCosts(tuple(lengths), flops, products, quadratic, temporary, closed_bytes, sequences)


def _compiled(model: BertForPreTraining, length: int, predictions: int, sequences: int) -> jax.stages.Compiled:
    def loss(params: Any, batch: Any) -> jax.Array:
        encoded = model.encode(params, *(batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")))
        return _loss(model, params, batch, encoded)

    sizes = dict.fromkeys(("input_ids", "token_type_ids", "attention_mask"), length)
    sizes |= dict.fromkeys(("masked_positions", "masked_ids"), predictions)
    batch = {name: jax.ShapeDtypeStruct((sequences, size), jnp.int32) for name, size in sizes.items()}
    params = jax.eval_shape(model.init, jax.random.key(0))
    return jax.jit(jax.value_and_grad(loss)).lower(params, batch).compile()


@dataclasses.dataclass(frozen=True)
class Initialisation:
    """Measures of a configuration before its first step."""

    norm: AttentionNorm
    """The norm of multi-head attention, by the number of heads."""
    growth: DepthGrowth
    """States and gradients by depth, for post-norm and pre-norm."""
    positions: PositionSimilarity | None
    """Similarity of positions; None for a model without a table of them."""
    costs: StepCosts
    """Operations and memory of a step, by length."""
    widths: WidthChanges | None
    """What the first steps change, by width; None if no widths are compared."""
    model: str
    """Path or name of the model."""


def init(
    model: PretrainedModel | EncoderConfig,
    *,
    heads: tuple[int, ...] = InitConfig.heads,
    lengths: tuple[int, ...] = InitConfig.lengths,
    draws: int = 64,
    length: int = 64,
    widths: tuple[int, ...] = InitConfig.widths,
    width_steps: int = InitConfig.width_steps,
    width_rate: float = InitConfig.width_rate,
    width_optimizer: Literal["adamw", "muon"] = "adamw",
    seed: int = 0,
    name: str = "",
    progress: bool = True,
) -> Initialisation:
    """Return how a model begins: norms of attention, growth by depth, positions, and what a step costs.

    With `widths` also what the first steps change, without and with model.scaling; all else is without it.

    Args:
      model: a configuration, or a model whose configuration is taken, and whose position table is compared with both
        starts. A configuration without a vocabulary size gets that of BERT.
      heads: numbers of heads; those that do not divide the hidden size are left out.
      lengths: tokens of a sequence for the costs; those beyond the positions of the model are left out.
      draws: number of initializations for each number of heads; a 16th of it, and at least 2, for states and gradients.
      length: tokens of a sequence in all other measurements.
      widths: hidden sizes that are compared in `widths.width_changes`, by steps of number, rate and optimizer
        `width_steps`, `width_rate` and `width_optimizer`; without any, nothing is.
      seed: of everything that is drawn.
      name: of the result; by default the path of the model.

    Raises:
      UserError: the model is not a Transformer with attention by content, or a value cannot work.
    """
    name = name or (model.path if isinstance(model, PretrainedModel) else "")
    config = _described(model.config if isinstance(model, PretrainedModel) else model, name)
    scaled = dataclasses.replace(config, vocab_size=config.assumed_vocab_size)
    config = dataclasses.replace(scaled, scaling=None)
    possible = _possible(config, heads, lengths, draws, length)
    if widths:
        models_of_widths(scaled, widths)  # which refuses before anything is measured
    learned = None
    if isinstance(model, PretrainedModel) and "position" in model.params["embeddings"]:
        learned = np.asarray(jax.device_get(model.params["embeddings"]["position"]["table"]), np.float64)
    total = 3 + len(possible[1]) + 2 * len(set(widths))
    with progress_bar("measurements", total, visible=progress) as move_to:
        norm = attention_norm(config, possible[0], draws=draws, length=length, seed=seed)
        move_to(1)
        growth = depth_growth(config, draws=max(2, draws // 16), length=length, seed=seed)
        move_to(2)
        positions = position_similarity(config, learned, seed) if config.position_table is not None else None
        moved = iter(range(3, total + 1))
        done = lambda: move_to(next(moved))
        done()
        costs = step_costs(config, possible[1], done=done)
        options: Any = {"steps": width_steps, "rate": width_rate, "rule": width_optimizer, "length": length}
        changes = width_changes(scaled, widths, **options, seed=seed, done=done) if widths else None
    return Initialisation(norm, growth, positions, costs, changes, name)


def _described(config: EncoderConfig, name: str) -> ModelConfig:
    """Return the configuration; raise a UserError if the theory does not describe the attention of this model."""
    if isinstance(config, ModelConfig) and config.disentangled is None:
        return config
    if config.attention_heads:
        kind = "attention whose scores depend on relative positions (XLNet, DeBERTa)"
    else:
        kind = f"no attention ({config.spelled})"
    raise UserError(
        f"{name or 'this model'} has {kind}, whose initialization this theory does not describe; give a BERT"
    )


def _possible(
    config: ModelConfig, heads: tuple[int, ...], lengths: tuple[int, ...], draws: int, length: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of heads that divide the hidden size, and the lengths that the model reads."""
    if draws < 2:
        raise UserError(f"draws={draws} must be at least 2, or there is no sampling error")
    if not 8 <= length <= config.longest_sequence:
        raise UserError(f"length={length} must be from 8 to the {config.longest_sequence} tokens that the model reads")
    for option, values, least in (("heads", heads, 1), ("lengths", lengths, 8)):
        if not values or min(values) < least:
            raise UserError(f"{option}={','.join(map(str, values))} must be numbers from {least} on, at least one")
    dividing = tuple(count for count in heads if config.hidden_size % count == 0)
    readable = tuple(each for each in lengths if each <= config.longest_sequence)
    if not dividing:
        raise UserError(f"heads={','.join(map(str, heads))}: none divides the hidden size of {config.hidden_size}")
    if not readable:
        raise UserError(
            f"lengths={','.join(map(str, lengths))}: the model reads {config.longest_sequence} tokens; give fewer"
        )
    return dividing, readable


def draw_initialisation(result: Initialisation) -> Figure:
    """Return six panels: norm of attention, states, gradients, the last gradient, operations, memory."""
    figure, drawn = results.panels((13.0, 7.4), f"{results.short_path(result.model)} before its first step", 2, 3)
    _norms(drawn[0, 0], result.norm)
    _growth(drawn[0, 1], drawn[0, 2], drawn[1, 0], result.growth)
    _costs(drawn[1, 1], drawn[1, 2], result.costs)
    return figure


def draw_positions(result: PositionSimilarity, name: str = "") -> Figure:
    """Return a map of cosines for each table, and the mean cosine by distance."""
    count = len(result.tables)
    heading = f"{results.short_path(name)}: position tables" if name else "Position tables"
    figure, (*maps, distances) = results.panels((3.6 * (count + 1), 3.6), heading, 1, count + 1)
    for axes, kind, matrix in zip(maps, result.tables, result.maps, strict=True):
        ends = (result.rows[0], result.rows[-1])
        axes.imshow(matrix, cmap="RdBu_r", vmin=-1.0, vmax=1.0, origin="lower", extent=(*ends, *ends))
        axes.set_title(kind, loc="left")
        axes.set_xlabel("position")
    figure.colorbar(maps[0].images[0], ax=maps[-1], label="cosine", shrink=0.8)
    for kind, values in zip(result.tables, result.by_distance, strict=True):
        distances.plot(values, label=kind)
    distances.plot(result.predicted, color="black", linestyle=":", label="sinusoids, closed form")
    results.framed(distances, "Mean cosine by distance", "distance", legend=8)
    return figure


def _norms(axes: Axes, norm: AttentionNorm) -> None:
    places = np.arange(len(norm.heads))
    axes.errorbar(places, norm.ratio, yerr=2 * norm.standard_error, fmt="o", capsize=4, label="measured ± 2 errors")
    axes.axhline(1.0, color="black", linestyle=":", label="law")
    axes.set_xticks(places, list(map(str, norm.heads)))
    results.framed(axes, "Squared norm of attention / law", "heads", legend=9)


def _growth(states: Axes, gradients: Axes, last: Axes, growth: DepthGrowth) -> None:
    names = results.layer_names(growth.state.shape[1])
    for kind, values, gradient, ending in zip(KINDS, growth.state, growth.gradient, growth.last_gradient, strict=True):
        states.plot(values, marker="o", label=f"{kind}-norm")
        gradients.plot(range(1, len(names)), gradient, marker="o", label=f"{kind}-norm")
        last.plot(growth.depths, ending, marker="o", label=f"{kind}-norm")
    states.plot(growth.predicted_state, color="black", linestyle=":", label="pre-norm, theory")
    last.plot(
        growth.depths,
        growth.last_gradient[0] / growth.predicted_ratio,
        color="black",
        linestyle=":",
        label="pre-norm, from post by theory",
    )
    results.framed(states, "Root mean square of states", "layer", legend=9)
    results.framed(gradients, "Gradient norm by layer", "layer", legend=9)
    results.framed(last, "Gradient of the last layer's output kernel", "depth of the model", legend=9)
    states.set_xticks(range(len(names)), names)
    gradients.set_xticks(range(1, len(names)), names[1:])
    last.set_xticks(growth.depths)
    gradients.set_ylim(bottom=0)
    last.set_ylim(bottom=0)


def _costs(operations: Axes, memory: Axes, costs: StepCosts) -> None:
    for axes, measured, closed, title in (
        (operations, costs.flops, costs.closed_flops, "Operations per sequence"),
        (memory, costs.bytes, costs.closed_bytes, "Bytes per sequence"),
    ):
        axes.plot(costs.lengths, measured, "o", label="XLA")
        axes.plot(costs.lengths, closed, color="black", linestyle=":", label="closed form")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(costs.lengths, list(map(str, costs.lengths)))
        if axes is operations:
            axes.plot(costs.lengths, costs.attention_flops, color="#8a8a8a", linewidth=1.0, label="its quadratic part")
        results.framed(axes, title, "tokens", legend=9)


def run_init(path: str, options: InitConfig) -> None:
    """Print and draw how a model begins, or what was computed before."""
    all_devices()  # as `load` does, but for a configuration alone
    model = _model(path)
    config = to_dict(model) if isinstance(model, EncoderConfig) else results.model_fingerprint(model)
    compute = results.call_with(init, options, model, name=path)
    positions = lambda result: None if result.positions is None else draw_positions(result.positions, path)
    widths = lambda result: None if result.widths is None else draw_widths(result.widths)
    draw = {"init": draw_initialisation, "positions": positions, "widths": widths}
    results.Analysis("init", Initialisation, _tables, draw).run(options, {"model": config}, compute)


def _model(path: str) -> PretrainedModel | EncoderConfig:
    """Return the model in a directory, or the sizes in a configuration: the name of a shipped one, or a file."""
    named = path in shipped_configs() or path.endswith((".py", ".json"))
    return load_config(path).model if named and not epath.Path(path).is_dir() else load(path)


def _tables(result: Initialisation) -> Iterator[Table | str]:
    norm, growth, costs = result.norm, result.growth, result.costs
    ratios = map("{:.3f} ± {:.3f}".format, norm.ratio, norm.standard_error)
    columns = [("heads", "", norm.heads), ("norm", ".4f", norm.measured), ("law", ".4f", norm.predicted)]
    yield results.columns_table([*columns, ("squared, measured / law", "", ratios)], "norm of attention")
    states = zip(("state, post", "pre", "pre, theory"), (*growth.state, growth.predicted_state), strict=True)
    gradients = [["", *map("{:.4f}".format, values)] for values in growth.gradient]
    columns = [
        ("layer", "", results.layer_names(len(growth.predicted_state))),
        *((name, ".3f", each) for name, each in states),
    ]
    columns += [("gradient, post", "", gradients[0]), ("pre", "", gradients[1])]
    yield results.columns_table(columns, "growth by depth")
    post, pre = growth.last_gradient
    columns = [("depth", "", growth.depths), ("post", ".4f", post), ("pre", ".4f", pre)]
    columns += [("post / pre", ".3f", post / pre), ("theory", ".3f", growth.predicted_ratio)]
    yield results.columns_table(columns, "gradient of the last output kernel")
    columns = [("tokens", "", costs.lengths), ("GFLOP, XLA", ".3f", costs.flops / 1e9)]
    columns += [("closed form", ".3f", costs.closed_flops / 1e9), ("MB, XLA", ".2f", costs.bytes / 1e6)]
    yield results.columns_table([*columns, ("closed form", ".2f", costs.closed_bytes / 1e6)], "a step, per sequence")
    if result.widths is not None:
        yield from tell_widths(result.widths)
