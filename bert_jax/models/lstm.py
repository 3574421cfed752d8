"""LSTMs: the layers of ELMo and ULMFiT in place of the Transformer block, and the BiLSTM head on hidden states.

The head takes hidden states as fixed features of a two-layer BiLSTM (Devlin et al. 2018, section 5.3 and table 7).
Its encoder is not trained: no gradient passes into the hidden states, and they are computed without dropout. With
head.train_encoder it is trained, which gives the BiLSTM on a left-to-right model of the paper's table 5.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import EncoderConfig, HeadConfig, RecurrentConfig
from bert_jax.config.heads import LayersRead
from bert_jax.models.bert_parameters import POOLED, mixed_layers
from bert_jax.models.kernels.plain import AttentionKernel, AttentionMask
from bert_jax.models.layers import PackedTexts, affine, dropout, truncated_normal
from bert_jax.models.pooling import combine, layers_read, pool


def orthogonal(key: jax.Array, size: int) -> jax.Array:
    """Return a random orthogonal matrix [size, size], float32: Gram-Schmidt on the columns of a normal one.

    It is that of `jax.nn.initializers.orthogonal` up to rounding. That one calls LAPACK, whose batches wait in JAX 0.10
    for threads of the pool that they run on: on a CPU mesh with as many devices as threads, for ever.
    """
    drawn = jax.random.normal(key, (size, size))
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)

    def with_column(number: jax.Array, columns: jax.Array) -> jax.Array:
        column = jax.lax.dynamic_index_in_dim(drawn, number, axis=1, keepdims=False)
        for _ in range(2):  # once would leave the rounding errors of the long vector in the short one
            column = column - product(columns, product(columns.T, column))
        return columns.at[:, number].set(column / jnp.linalg.norm(column))

    return jax.lax.fori_loop(0, size, with_column, jnp.zeros_like(drawn))


class Lstm(nnx.Module):
    """Long short-term memory of I inputs and S states (Hochreiter & Schmidhuber 1997; Gers et al. 2000).

    kernel [I, 4·S], recurrent [S, 4·S] and bias [4·S] hold the gates in the order input, forget, new, output; the
    forget gate starts open (Jozefowicz et al. 2015).
    """

    def __init__(self, inputs: int, size: int, key: jax.Array):
        kernel_key, recurrent_key = jax.random.split(key)
        gates = jax.vmap(lambda gate_key: orthogonal(gate_key, size))(jax.random.split(recurrent_key, 4))
        self.kernel: nnx.Param[jax.Array] = nnx.Param(
            jax.nn.initializers.glorot_uniform()(kernel_key, (inputs, 4 * size))
        )
        self.recurrent: nnx.Param[jax.Array] = nnx.Param(jnp.concatenate(list(gates), axis=1))
        self.bias: nnx.Param[jax.Array] = nnx.Param(
            jnp.concatenate([jnp.zeros(size), jnp.ones(size), jnp.zeros(2 * size)])
        )

    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array,
        reverse: bool = False,
        segments: jax.Array | None = None,
        recurrent_rate: float = 0.0,
        recurrent_key: jax.Array | None = None,
    ) -> jax.Array:
        """Map x [B, L, I] to [B, L, S]; mask [B, L] is 1 for real tokens. Padding leaves the state as it was.

        With `reverse` it runs from the last real token to the first. With `segments`, integers [B, L], the state begins
        anew wherever the number changes. With `recurrent_key`, elements of the recurrent kernel are dropped, the same
        for all rows and tokens (DropConnect, Merity et al. 2018, section 2).
        """
        recurrent = dropout(self.recurrent[...], recurrent_rate, recurrent_key)
        given = affine(x, self.kernel[...], self.bias[...])

        def step(state: Any, token: Any):
            gates, real, *begins = token
            hidden, cell = (jnp.where(begins[0], 0.0, each) for each in state) if begins else state
            into, forget, new, out = jnp.split(gates + hidden @ recurrent, 4, axis=-1)
            cell_now = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(into) * jnp.tanh(new)
            hidden_now = jax.nn.sigmoid(out) * jnp.tanh(cell_now)
            state = jnp.where(real, hidden_now, hidden), jnp.where(real, cell_now, cell)
            return state, state[0]

        zeros = jnp.zeros((x.shape[0], recurrent.shape[0]), given.dtype)
        tokens = (jnp.moveaxis(given, 1, 0), jnp.moveaxis(mask > 0, 1, 0)[:, :, None])
        if segments is not None:
            begins = segments != jnp.roll(segments, -1 if reverse else 1, axis=1)
            tokens += (jnp.moveaxis(begins, 1, 0)[:, :, None],)
        _, outputs = jax.lax.scan(step, (zeros, zeros), tokens, reverse=reverse)
        return jnp.moveaxis(outputs, 0, 1)


class BiLstm(nnx.Module):
    """One LSTM in each direction, their outputs side by side."""

    def __init__(self, inputs: int, size: int, forward_key: jax.Array, backward_key: jax.Array):
        self.forward: Lstm = Lstm(inputs, size, forward_key)
        self.backward: Lstm = Lstm(inputs, size, backward_key)

    def __call__(self, x: jax.Array, mask: jax.Array, segments: jax.Array | None = None) -> jax.Array:
        """Map x [B, L, I] to [B, L, 2·S]; see `Lstm` for `segments`."""
        forward = self.forward(x, mask, segments=segments)
        return jnp.concatenate([forward, self.backward(x, mask, reverse=True, segments=segments)], axis=-1)


class LayerMix(nnx.Module):
    """Weights of several layers, scale · softmax(weights), as in ELMo (Peters et al. 2018, equation 1)."""

    def __init__(self, count: int):
        self.weights: nnx.Param[jax.Array] = nnx.Param(jnp.zeros(count))
        self.scale: nnx.Param[jax.Array] = nnx.Param(jnp.ones(()))

    def __call__(self) -> jax.Array:
        """Return the weights [count]."""
        return self.scale[...] * jax.nn.softmax(self.weights[...])


def check_features(config: EncoderConfig, head: HeadConfig) -> None:
    """Raise a UserError if the features of a head need more layers than the encoder has."""
    if head.features not in ("", "embeddings", "weighted_with_embeddings"):
        count = mixed_layers(config, head)
        layers_read(head.features, config.num_layers, range(count) if count else None)


class BiLstmHead(nnx.Module):
    """Two BiLSTMs of width S = head.lstm_size on hidden states, and an affine map to C outputs.

    kernel [2·S, C], bias [C]. Where a text has one answer, the map reads the maximum over its tokens, as the sentence
    encoders of GLUE's baselines do (Wang et al. 2018).

    Raises:
      UserError: the features need more layers than the encoder has.
    """

    def __init__(self, config: EncoderConfig, head: HeadConfig, key: jax.Array):
        size, inputs = head.lstm_size, config.hidden_size * (4 if head.features == "concat_last_four" else 1)
        keys = jax.random.split(key, 5)
        self.kernel: nnx.Param[jax.Array] = nnx.Param(
            truncated_normal(keys[0], (2 * size, head.outputs), config.initializer_range)
        )
        self.bias: nnx.Param[jax.Array] = nnx.Param(jnp.zeros(head.outputs))
        self.features: LayersRead = head.features
        self.pooled: bool = head.kind in POOLED
        self.rate: float = head.dropout
        self.train_encoder: bool = head.train_encoder
        self.layer_0: BiLstm = BiLstm(inputs, size, keys[1], keys[2])
        self.layer_1: BiLstm = BiLstm(2 * size, size, keys[3], keys[4])
        check_features(config, head)
        count = mixed_layers(config, head)
        self.mix: LayerMix | None = LayerMix(count) if count else None

    def __call__(
        self,
        hidden_states: Sequence[jax.Array],
        mask: jax.Array,
        texts: PackedTexts | None = None,
        dropout_key: jax.Array | None = None,
    ) -> jax.Array:
        """Return scores float32: [B, L, C] of every token; of texts with one answer [B, C], in shared rows [B, T, C].

        Args:
          hidden_states: (N + 1) × [B, L, H], embeddings first.
          mask: [B, L], 1 for real tokens, which are on the left.
          texts: of rows of several texts, each of which is read as if it were alone.
          dropout_key: None for no dropout; otherwise it is applied to the features and the output of each BiLSTM.
        """
        segments = None if texts is None else texts.ids
        keys = (None,) * 3 if dropout_key is None else jax.random.split(dropout_key, 3)
        x = dropout(self.inputs(hidden_states), self.rate, keys[0])
        x = dropout(self.layer_0(x, mask, segments), self.rate, keys[1])
        x = self.layer_1(x, mask, segments)
        if self.pooled:
            x = pool(x, mask, "max", texts)
        x = dropout(x, self.rate, keys[2])
        return affine(x, self.kernel[...], self.bias[...])

    def inputs(self, hidden_states: Sequence[jax.Array]) -> jax.Array:
        """Return the features of every token, [B, L, I] float32: the layers combined as HeadConfig.features says."""
        read = (lambda state: state) if self.train_encoder else jax.lax.stop_gradient
        states = [read(state).astype(jnp.float32) for state in hidden_states]
        if self.features in ("", "embeddings"):
            return states[0]
        if self.features == "weighted_with_embeddings":
            assert self.mix is not None, "it has weights"
            return jnp.tensordot(self.mix(), jnp.stack(states), 1)
        return combine(states, self.features, None if self.mix is None else self.mix())


class RecurrentBlock(nnx.Module):
    """x + dropout(LSTM(x)), from left to right; or one LSTM per direction, each on its half of the features.

    So the first half of every state depends on the tokens up to its own, and the second half on those from its own on
    (Peters et al. 2018, section 3.1, with a residual connection around every layer). Of several texts in a row, each
    begins with a state of zeros, from either side.
    """

    def __init__(self, config: RecurrentConfig, key: jax.Array):
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
