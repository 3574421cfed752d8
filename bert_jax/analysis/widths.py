"""What the first steps change in models of several widths: the coordinate check of μP (Yang et al. 2022).

Behind `bert-jax analyze init`. A model is drawn at each width and takes some steps on one batch of random words, at one
learning rate: with the initial values and rates of its options as they are, and with those that `model.scaling` makes
of them (arXiv 2203.03466, appendix D.1). What should not depend on the width is by how much activations change. If that
grows, the rate is too high for a wider model sooner or later, and the best one falls with the width; if it shrinks, a
part of a wide model stays as it was drawn.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from rich.table import Table

from bert_jax.analysis import results
from bert_jax.config import ComputeConfig, ModelConfig, OptimizerConfig, Scaling
from bert_jax.config.analyses import InitConfig
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.objectives.masked_words import masked_word_sums
from bert_jax.training.optimizers import clip_by_global_norm, optimizer

KINDS = ("standard", "scaled")
LEVEL = "xla_backend_optimization_level"
MOST_WORDS = 512  # of the vocabulary, which no width concerns
BATCH_SIZE, SHARE = 4, 0.15  # sequences, and the share of their positions at which random words are to be predicted
FLAT = 0.2
"""Slope up to which a change is said not to depend on the width: a factor of 1.15 for twice the width."""


@dataclasses.dataclass(frozen=True)
class WidthChanges:
    """Root mean squares of the changes of activations, by width, without (row 0) and with model.scaling (row 1)."""

    widths: tuple[int, ...]
    """Hidden sizes."""
    names: tuple[str, ...]
    """The activations: emb, the embeddings; the numbers of the layers, for their outputs; words, for the logits."""
    change: np.ndarray
    """float64 [2, activations, widths]: root mean square of what the steps add to the values."""
    slope: np.ndarray
    """float64 [2, activations]: exponent of the width in that, by least squares of logarithms."""
    steps: int
    """Number of steps."""
    rate: float
    """Learning rate of each of them."""
    rule: str
    """Name of the optimizer."""


def width_changes(
    config: ModelConfig,
    widths: tuple[int, ...],
    *,
    steps: int = InitConfig.width_steps,
    rate: float = InitConfig.width_rate,
    rule: Literal["adamw", "muon"] = "adamw",
    length: int = 64,
    seed: int = 0,
    done: Callable[[], None] = lambda: None,
) -> WidthChanges:
    """Train models of several widths for some steps on one batch of random words, without and with model.scaling.

    The base of the scaling is the narrowest, with which both kinds are therefore the same. Heads keep their size, and a
    wider model has more of them; only if model.scaling.base_head_size is set, they keep their number.

    Args:
      config: the form of the model, its depth, and the size of its heads.
      widths: two or more hidden sizes.
      steps: number of steps.
      rate: learning rate of each; there is no warm-up and no weight decay.
      rule: the optimizer.
      length: tokens of a sequence.
      seed: of parameters and words.
      done: called after every model, for a progress bar.

    Raises:
      UserError: the heads do not divide a width, or there is nothing to compare.
    """
    possible = tuple(sorted(set(widths)))
    if len(possible) < 2 or steps < 1 or not rate > 0:
        raise UserError(
            f"widths={','.join(map(str, widths))} with {steps} steps at a rate of {rate}: a slope needs two widths, at "
            "least one step, and a rate above 0"
        )
    models = models_of_widths(config, possible)
    found = np.zeros((2, len(possible), config.num_layers + 2))
    for row, column in np.ndindex(2, len(possible)):
        # What is narrowest is the base itself.
        same = row == 1 and column == 0
        network = BertForPreTraining(
            models[row][column], ComputeConfig(dtype="float32", layers="scan", products="plain"), parts=("mlm",)
        )
        found[row, column] = found[0, 0] if same else _changes(network, steps, rate, rule, length, seed)
        done()
    change = found.transpose(0, 2, 1)
    places = np.log2(np.array(possible, np.float64))
    slope = np.array([[np.polyfit(places, np.log2(values), 1)[0] for values in rows] for rows in change])
    names = (*results.layer_names(config.num_layers + 1), "words")
    return WidthChanges(possible, names, change, slope, steps, rate, rule)


def models_of_widths(config: ModelConfig, widths: tuple[int, ...]) -> list[list[ModelConfig]]:
    """Return for each of `KINDS` the models of these widths; raise a UserError if the heads do not divide one."""
    return [[_of_width(config, width, min(widths), kind) for width in widths] for kind in KINDS]


def _of_width(config: ModelConfig, width: int, base: int, kind: str) -> ModelConfig:
    """Return the model of a width, whose other sizes are the same multiples of it."""
    given = config.scaling
    same_number = given is not None and given.base_head_size is not None
    heads = config.num_heads if same_number else max(1, width // config.head_size)
    if width % heads or (width % config.head_size and not same_number):
        raise UserError(
            f"widths={width} is no multiple of "
            + (f"the {heads} heads" if same_number else f"heads of {config.head_size} features")
            + "; give widths that are, or none"
        )
    scaling = Scaling(base_hidden_size=base, base_head_size=base // heads if same_number else None)
    in_proportion = lambda size: None if size is None else max(1, size * width // config.hidden_size)
    keys = config.key_value_heads
    found = dataclasses.replace(
        config,
        hidden_size=width,
        num_heads=heads,
        key_value_heads=None if keys is None else math.gcd(heads, max(1, keys * heads // config.num_heads)),
        intermediate_size=in_proportion(config.intermediate_size),
        embedding_size=in_proportion(config.embedding_size),
        vocab_size=min(config.assumed_vocab_size, MOST_WORDS),
        vocab_pad_multiple=1,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        scaling=scaling if kind == "scaled" else None,
    )
    found.check()
    return found


def _changes(network: BertForPreTraining, steps: int, rate: float, rule: str, length: int, seed: int) -> np.ndarray:
    """Return float64 [activations]: the root mean square of what the steps change in each."""
    words, predictions = network.config.need_vocab_size(), max(1, round(SHARE * length))
    direction = optimizer(OptimizerConfig(name=rule, weight_decay=0.0), network.parameters)  # pyright: ignore[reportArgumentType]
    inputs = [jnp.zeros((BATCH_SIZE, length), jnp.int32), jnp.ones((BATCH_SIZE, length), jnp.int32)]

    def loss(params: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        encoded = network.encode(params, batch["input_ids"], *inputs, collect=True)
        logits = network.mlm_logits(params, batch, encoded)
        sums = masked_word_sums(logits, batch["masked_ids"], jnp.ones(batch["masked_ids"].shape))
        return jnp.asarray(sums.loss / sums.weight), (*(encoded.hidden_states or ()), logits)

    # On a CPU, the compiler takes longer than what it compiles.
    @functools.partial(jax.jit, compiler_options={LEVEL: 0} if jax.default_backend() == "cpu" else None)
    def changes(key: jax.Array) -> list[jax.Array]:
        init_key, word_key, place_key, target_key = jax.random.split(key, 4)
        places = jnp.argsort(jax.random.uniform(place_key, (BATCH_SIZE, length)), axis=1)[:, :predictions]
        batch = {
            "input_ids": jax.random.randint(word_key, (BATCH_SIZE, length), 0, words),
            "masked_positions": places.astype(jnp.int32),
            "masked_ids": jax.random.randint(target_key, (BATCH_SIZE, predictions), 0, words),
        }

        def step(state: Any, _: None) -> tuple[Any, tuple[jax.Array, ...]]:
            params, moments = state
            gradients, activations = jax.grad(loss, has_aux=True)(params, batch)
            directions, moments = direction.update(clip_by_global_norm(gradients, 1.0)[0], moments, params)
            return (jax.tree.map(lambda value, way: value - rate * way, params, directions), moments), activations

        params = network.init(init_key)
        # The activations of each step are those before it, so one step more shows what the last of them changed.
        _, activations = jax.lax.scan(step, (params, direction.init(params)), length=steps + 1)
        return [jnp.sqrt(jnp.mean((each[-1] - each[0]) ** 2)) for each in activations]

    return np.array([float(value) for value in changes(jax.random.key(seed))])


def draw_widths(result: WidthChanges) -> Figure:
    """Return two panels, without and with model.scaling: the change of each activation by width."""
    heading = f"Change of activations after {result.steps} steps of {result.rule} at {result.rate:g}"
    figure, drawn = results.panels((9.0, 3.8), heading, 1, 2, sharey=True)
    for axes, kind, rows, slopes in zip(drawn, KINDS, result.change, result.slope, strict=True):
        for name, values, slope in zip(result.names, rows, slopes, strict=True):
            axes.plot(result.widths, values, marker="o", label=f"{name} ({slope:+.2f})")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(result.widths, list(map(str, result.widths)))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
        title = "initial values and rates as they are" if kind == "standard" else "model.scaling"
        results.framed(axes, title, "width", legend=8)
    return figure


def tell_widths(result: WidthChanges) -> Iterator[Table | str]:
    """Yield a table of changes for each kind, and a line that says what grows or shrinks with the width."""
    after = f"after {result.steps} steps of {result.rule} at {result.rate:g}"
    for kind, rows, slopes in zip(KINDS, result.change, result.slope, strict=True):
        columns: list[tuple[str, str, Any]] = [("width", "", result.names)]
        columns += [(str(width), ".3f", rows[:, place]) for place, width in enumerate(result.widths)]
        yield results.columns_table([*columns, ("slope", "+.2f", slopes)], f"change {after}, {kind}")
    for kind, slopes in zip(KINDS, result.slope, strict=True):
        grow = [name for name, slope in zip(result.names, slopes, strict=True) if slope > FLAT]
        shrink = [name for name, slope in zip(result.names, slopes, strict=True) if slope < -FLAT]
        parts = [f"{', '.join(names)} {verb}" for names, verb in ((grow, "grow"), (shrink, "shrink")) if names]
        said = " and ".join(parts) + " with the width" if parts else f"no change depends on the width (±{FLAT})"
        yield f"{kind}: {said}; slopes from {slopes.min():+.2f} to {slopes.max():+.2f}"
