"""A layer of LSTMs in place of the Transformer block: the encoders of ELMo and ULMFiT."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.models.bilstm import Lstm
from bert_jax.models.kernels.contract import AttentionKernel, AttentionMask
from bert_jax.models.layers import dropout


class RecurrentBlock(nnx.Module):
    """x + dropout(LSTM(x)), from left to right; or one LSTM per direction, each on its half of the features.

    So the first half of every state depends on the tokens up to its own, and the second half on those from its own on
    (Peters et al. 2018, section 3.1, with a residual connection around every layer). Of several texts in a row, each
    begins with a state of zeros, from either side.
    """

    def __init__(self, config: ModelConfig, key: jax.Array):
        size = config.direction_size
        forward_key, backward_key = jax.random.split(key)
        self.rate: float = config.hidden_dropout
        self.recurrent_rate: float = config.recurrent_dropout
        self.forward: Lstm = Lstm(size, size, forward_key)
        self.backward: Lstm | None = Lstm(size, size, backward_key) if config.two_directions else None

    def __call__(
        self,
        x: jax.Array,
        mask: AttentionMask,
        dropout_key: jax.Array | None,
        attend: AttentionKernel,
        collect: bool,
    ) -> tuple[jax.Array, None]:
        """Map x [B, L, H] to (x [B, L, H], None); there are no attention probabilities to collect."""
        del attend, collect
        given = x.astype(jnp.float32)
        keys = [None if dropout_key is None else jax.random.fold_in(dropout_key, each) for each in (1, 2)]
        forward, backward = (
            {"segments": mask.segments, "recurrent_rate": self.recurrent_rate, "recurrent_key": key} for key in keys
        )
        if self.backward is None:
            y = self.forward(given, mask.padding, **forward)
        else:
            left, right = jnp.split(given, 2, axis=-1)
            y = jnp.concatenate(
                [
                    self.forward(left, mask.padding, **forward),
                    self.backward(right, mask.padding, reverse=True, **backward),
                ],
                axis=-1,
            )
        return x + dropout(y.astype(x.dtype), self.rate, dropout_key), None
