"""BERT's hidden states as fixed features of a two-layer BiLSTM tagger (Devlin et al. 2018, section 5.3 and table 7).

The encoder is not trained: no gradient passes into the hidden states, and they are computed without dropout.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.models.pooling import combine, layers_read
from bert_jax.models.layers import dropout, like, truncated_normal

LAYERS = 2
Params = dict


def init(key: jax.Array, head: HeadConfig, config: ModelConfig) -> Params:
    """Fresh parameters of the whole head, S = head.lstm_size and I inputs of a layer.

    layer_0, layer_1: forward and backward, each kernel [I, 4·S], recurrent [S, 4·S], bias [4·S]; kernel [2·S, C], bias [C]; for
    weighted features also mix: weights [layers] (before their softmax) and scale [].

    Raises:
      UserError: the features need more layers than the encoder has.
    """
    size, inputs = head.lstm_size, config.hidden_size * (4 if head.features == "concat_last_four" else 1)
    keys = jax.random.split(key, 2 * LAYERS + 1)
    params: Params = {
        "kernel": truncated_normal(keys[0], (2 * size, head.outputs), config.initializer_range),
        "bias": jnp.zeros(head.outputs),
    }
    for layer in range(LAYERS):
        pair = keys[1 + 2 * layer : 3 + 2 * layer]
        params[f"layer_{layer}"] = {name: _init_lstm(k, inputs, size) for name, k in zip(("forward", "backward"), pair)}
        inputs = 2 * size
    if head.features.startswith("weighted"):
        count = 4 if head.features == "weighted_last_four" else config.num_layers
        layers_read(head.features, config.num_layers, range(count))
        params["mix"] = {"weights": jnp.zeros(count), "scale": jnp.ones(())}
    elif head.features != "embeddings":
        layers_read(head.features, config.num_layers)
    return params


def apply(
    params: Params,
    hidden_states: Sequence[jax.Array],
    mask: jax.Array,
    head: HeadConfig,
    dropout_key: jax.Array | None = None,
) -> jax.Array:
    """Scores [B, L, C] float32.

    Args:
        params: from `init`.
        hidden_states: (N + 1) × [B, L, H], embeddings first.
        mask: [B, L], 1 for real tokens, which are on the left.
        head: features and dropout are read; dropout falls on the features and on what each layer of the BiLSTM gives.
        dropout_key: None for no dropout.
    """
    keys = (None,) * (LAYERS + 1) if dropout_key is None else jax.random.split(dropout_key, LAYERS + 1)
    x = dropout(features(params, hidden_states, head.features), head.dropout, keys[0])
    for layer in range(LAYERS):
        both = params[f"layer_{layer}"]
        x = jnp.concatenate([lstm(both["forward"], x, mask), lstm(both["backward"], x, mask, reverse=True)], axis=-1)
        x = dropout(x, head.dropout, keys[layer + 1])
    scores = jnp.tensordot(x, params["kernel"], axes=1)
    return scores + like(params["bias"], scores)


def features(params: Params, hidden_states: Sequence[jax.Array], name: str) -> jax.Array:
    """The input of the BiLSTM, [B, L, I] float32: layers put together as `name` says, with the weights learned for it.

    Weights are scale · softmax(weights), as ELMo's are (Peters et al. 2018, equation 1).
    """
    states = [jax.lax.stop_gradient(state).astype(jnp.float32) for state in hidden_states]
    if name == "embeddings":
        return states[0]
    mix = params.get("mix")
    return combine(states, name, None if mix is None else mix["scale"] * jax.nn.softmax(mix["weights"]))


def lstm(params: Params, x: jax.Array, mask: jax.Array, reverse: bool = False) -> jax.Array:
    """Long short-term memory over x [B, L, I], to [B, L, S] (Hochreiter & Schmidhuber 1997; Gers et al. 2000).

    With `reverse` it runs from the last real token to the first. Padding leaves the state as it was.
    """
    size = params["recurrent"].shape[0]
    given = jnp.tensordot(x, params["kernel"], axes=1)
    given = given + like(params["bias"], given)

    def step(state, token):
        hidden, cell = state
        gates, real = token
        into, forget, new, out = jnp.split(gates + hidden @ params["recurrent"], 4, axis=-1)
        cell_now = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(into) * jnp.tanh(new)
        hidden_now = jax.nn.sigmoid(out) * jnp.tanh(cell_now)
        state = jnp.where(real, hidden_now, hidden), jnp.where(real, cell_now, cell)
        return state, state[0]

    zeros = jnp.zeros((x.shape[0], size), given.dtype)
    tokens = (jnp.moveaxis(given, 1, 0), jnp.moveaxis(mask > 0, 1, 0)[:, :, None])
    _, outputs = jax.lax.scan(step, (zeros, zeros), tokens, reverse=reverse)
    return jnp.moveaxis(outputs, 0, 1)


def _init_lstm(key: jax.Array, inputs: int, size: int) -> Params:
    """Gates in the order input, forget, new, output; the forget gate starts open (Jozefowicz et al. 2015)."""
    kernel_key, recurrent_key = jax.random.split(key)
    orthogonal = jax.vmap(lambda k: jax.nn.initializers.orthogonal()(k, (size, size)))(
        jax.random.split(recurrent_key, 4)
    )
    return {
        "kernel": jax.nn.initializers.glorot_uniform()(kernel_key, (inputs, 4 * size)),
        "recurrent": jnp.concatenate(list(orthogonal), axis=1),
        "bias": jnp.concatenate([jnp.zeros(size), jnp.ones(size), jnp.zeros(2 * size)]),
    }
