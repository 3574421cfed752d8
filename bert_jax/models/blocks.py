"""The Transformer block of BERT."""

import dataclasses
from collections.abc import Callable

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from bert_jax.config import ModelConfig
from bert_jax.models.attention import SelfAttention
from bert_jax.models.convolution import Convolution
from bert_jax.models.disentangled import DisentangledAttention, RelativePositions
from bert_jax.models.kernels.contract import AttentionKernel, AttentionMask
from bert_jax.models.kernels.gated import gated
from bert_jax.models.layers import dropout
from bert_jax.models.norms import Norm, make_norm
from bert_jax.models.relative_positions import Rotary


class Block(nnx.Module):
    """Attention and a feed-forward network, each inside a residual connection with dropout.

    post (BERT): x = norm(x + f(x)).  pre: x = x + f(norm(x)).  `feed_forward` makes the network from a key, and so does
    `convolution` what follows the first layer, if anything does.
    """

    def __init__(
        self,
        config: ModelConfig,
        key: jax.Array,
        feed_forward: Callable[[jax.Array], Callable[[jax.Array], jax.Array]],
        convolution: Callable[[jax.Array], Convolution] | None = None,
    ):
        attention_key, feed_forward_key = jax.random.split(key)
        self.rate: float = config.hidden_dropout
        self.pre_norm: bool = config.norm_position == "pre"
        disentangled = config.disentangled.terms != "none"
        self.relative: RelativePositions | None = (
            RelativePositions(config, jax.random.fold_in(key, 0)) if disentangled else None
        )
        attention = DisentangledAttention if disentangled else SelfAttention
        self.attention: Callable[..., tuple[jax.Array, jax.Array | None]] = attention(config, attention_key)
        self.attention_norm: Norm = make_norm(config, config.hidden_size)
        self.feed_forward: Callable[[jax.Array], jax.Array] = feed_forward(feed_forward_key)
        self.feed_forward_norm: Norm = make_norm(config, config.hidden_size)
        self.convolution: Convolution | None = None if convolution is None else convolution(jax.random.fold_in(key, 2))

    def __call__(
        self,
        x: jax.Array,
        mask: AttentionMask,
        dropout_key: jax.Array | None,
        attend: AttentionKernel,
        collect: bool,
        *,
        window: int | None = None,
        rotary: Rotary | None = None,
        attention_norm: bool = True,
        convolved: bool = False,
        queries: jax.Array | None = None,
        head_gates: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Map x [B, L, H] to (x [B, L, H], attention probabilities [B, A, L, L] if `collect`, else None).

        Args:
          x: states of the layer below.
          mask: who sees whom.
          dropout_key: None for no dropout.
          attend: the attention kernel.
          collect: whether to return the probabilities.
          window: tokens to either side that this layer sees; None: those of `mask`.
          rotary: how this layer turns queries and keys.
          attention_norm: with pre-norm, whether this layer has one before its attention.
          convolved: whether the convolution follows, for which x are the embeddings.
          queries: [B, M, H], the states that go through the layer in place of x, which gives keys and values only;
            mask.queries are their positions. With disentangled attention and post-norm, [B, L, H] of all positions.
          head_gates: [A], factors of what each head adds; None: nothing is multiplied.
        """
        keys = (None,) * 3 if dropout_key is None else jax.random.split(dropout_key, 3)
        mask = mask if window is None else dataclasses.replace(mask, window=window)
        norm = self.attention_norm if self.pre_norm and attention_norm else lambda states: states
        y, more = norm(x), {} if queries is None else {"queries": norm(queries)}
        positions = rotary if self.relative is None else self.relative
        attend = gated(attend, head_gates)
        y, weights = self.attention(y, mask, keys[0], attend, collect, positions, **more)
        entered = x
        rows = mask.queries, x.shape[1]
        x = x if queries is None else queries
        x = checkpoint_name(x + dropout(y, self.rate, keys[1], *rows), "attention_sum")
        x = x if self.pre_norm else self.attention_norm(x)
        y = self.feed_forward(self.feed_forward_norm(x) if self.pre_norm else x)
        x = checkpoint_name(x + dropout(y, self.rate, keys[2], *rows), "feed_forward_sum")
        x = x if self.pre_norm else self.feed_forward_norm(x)
        if convolved:
            assert self.convolution is not None, "asked for where there is one"
            key = None if dropout_key is None else jax.random.fold_in(dropout_key, 3)  # none of the three above
            x = self.convolution(entered, x, mask, key)
        return x, weights
