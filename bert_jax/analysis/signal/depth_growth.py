"""States and gradients by layer at initialization, with the norms after each branch (BERT) and before it."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.models.architecture import ACTIVATIONS
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.positions import TRUNCATED_STD
from bert_jax.objectives.masked_language_model import loss_sums

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
    own. Attention adds to the first alone, because its weights are nearly uniform (see attention_norm.py). Of what the
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
        sums = loss_sums(model.mlm_logits(params, batch, encoded), batch["masked_ids"], jnp.ones((BATCH_SIZE, count)))
        return jnp.asarray(sums.loss / sums.weight), encoded.hidden_states or ()

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
