"""The norm of what multi-head attention adds at initialization, and why it does not depend on the number of heads.

Every kernel has independent entries of variance s². For the weights p of head h of A, which has D = H / A values, the
context is W_V (Σ_j p_j x_j), so each of its values has variance s² |Σ_j p_j x_j|². The output adds up D values of each
of A heads with weights of variance s², so the mean over the heads is left:

    E |attention(x)|² = H · s² · Σ_h D · s² |c_h|² = s⁴ H² · mean_h |c_h|²,   c_h = Σ_j p_j x_j.

Scores are q·k / √D, and q·k is a sum of D products (Vaswani et al. 2017, section 3.2.1, note 4), so their variance over
the keys, s⁴ |x|² |x_j - x̄|², does not depend on D either. It is small: the weights are nearly uniform (Xiong et al.
2020, section 3.3, take them to be), and c is the mean x̄ of the states. To first order in the scores, c gains Ĉ a for a
vector a with s⁴ |x|² in each direction, Ĉ = mean_j (x_j - x̄)(x_j - x̄)ᵀ, so

    E |c|² = |x̄|² + s⁴ |x|² tr Ĉ².
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.models.architecture import bert_architecture
from bert_jax.models.attention import SelfAttention
from bert_jax.models.kernels import xla
from bert_jax.models.kernels.contract import AttentionMask
from bert_jax.models.positions import TRUNCATED_STD


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
        config, vocab_size=length, vocab_pad_multiple=1, hidden_dropout=0.0, scaled_outputs=False
    )
    embeddings = bert_architecture(small, ComputeConfig(dtype="float32")).embeddings
    ids, mask = jnp.arange(length)[None], AttentionMask(padding=jnp.ones((1, length), jnp.int32))

    def norms(key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        table_key, attention_key = jax.random.split(key)
        states: Any = embeddings(table_key)(ids, jnp.zeros_like(ids), jnp.dtype("float32"), None)
        own = dataclasses.replace(small, num_heads=count, attention_dropout=0.0)
        output, _ = SelfAttention(own, attention_key)(states, mask, None, xla.attention, False)
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
