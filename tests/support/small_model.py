"""A small model, a batch for it and its loss."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.objectives import masked_words
from bert_jax.objectives.objective import mean_loss

SMALL = ModelConfig(
    vocab_size=61, hidden_size=24, num_layers=2, num_heads=3, intermediate_size=40, max_position_embeddings=20
)
FLOAT32 = ComputeConfig(dtype="float32")
BATCH, LENGTH, PREDICTIONS = 3, 14, 4


def make_batch(config=SMALL, seed=0):
    """Random batch with padding at the end of the later rows, two segments and one unused prediction slot."""
    random = np.random.default_rng(seed)
    lengths = np.array([LENGTH, 11, 9])[:, None]
    column = np.arange(LENGTH)[None, :]
    weights = np.ones((BATCH, PREDICTIONS), np.float32)
    weights[1, -1] = 0
    batch = dict(
        input_ids=random.integers(0, config.vocab_size, (BATCH, LENGTH)),
        token_type_ids=(column >= 5) & (column < lengths),
        attention_mask=column < lengths,
        masked_positions=random.integers(1, 9, (BATCH, PREDICTIONS)),
        masked_ids=random.integers(0, config.vocab_size, (BATCH, PREDICTIONS)),
        next_sentence_labels=np.array([0, 1, 0]),
    )
    return {name: value.astype(np.int32) for name, value in batch.items()} | {"masked_weights": weights}


def compiled(function, **options):
    """jax.jit for programs that run once: the values are the same, LLVM takes half the time.

    What it returns are arrays of NumPy: each index or comparison of a test would be a program more to compile.
    """
    run = jax.jit(function, compiler_options={"xla_backend_optimization_level": 0}, **options)
    return lambda *arguments, **named: jax.device_get(run(*arguments, **named))


def perturbed(model, seed: int = 0, spread: float = 0.2):
    """Parameters with no bias of zero, no scale of one and no uniform attention, so that each shows in the outputs.

    Their shapes are those of the model's table, whose own `init` is slow to trace (test_architecture.py compares).
    """
    random, tree = np.random.default_rng(seed), unflatten_dict(dict(model.parameters), sep="/")
    return jax.tree.map_with_path(
        lambda path, parameter: np.asarray(
            spread * random.standard_normal(parameter.shape) + (path[-1].key == "scale"), np.float32
        ),
        tree,
    )


def loss_function(model, batch):
    return lambda params, dropout_key=None: loss_of(model.apply(params, batch, dropout_key), batch)


def loss_of(output, batch):
    words = masked_words.masked_word_sums(output.mlm_logits, batch["masked_ids"], batch["masked_weights"])
    pairs = masked_words.sentence_pair_sums(output.next_sentence_logits, batch["next_sentence_labels"])
    return words.loss / words.weight + pairs.loss / pairs.weight


def loss_and_gradient(objective):
    """The compiled function of parameters and batch that returns (the loss, its sums) and the gradient."""

    def loss(params, batch):
        sums = objective.sums(params, batch)
        return mean_loss(objective.terms, sums, objective.denominators(batch)), sums

    return compiled(jax.value_and_grad(loss, has_aux=True))


def encoder_gradient(model, inputs, params=None, **more):
    """Parameters, or those given, and a loss of the last states with dropout and its gradient.

    Of an encoder without heads, which compiles faster.
    """
    params = params or perturbed(model)
    return params, *_gradient(model)(params, inputs, more)


@functools.cache
def _gradient(model):
    def loss(params, inputs, more):
        output = model.encode(params, *inputs, dropout_key=jax.random.key(5), **more)
        return jnp.sum(jnp.sin(output.last_hidden_state))

    return compiled(jax.value_and_grad(loss))


def assert_trees_close(actual, expected, rtol, atol):
    """Compare two trees of arrays leaf by leaf."""
    actual, expected = leaf_paths(actual), leaf_paths(expected)
    assert actual.keys() == expected.keys()
    for path in expected:
        np.testing.assert_allclose(actual[path], expected[path], rtol=rtol, atol=atol, err_msg=path)


def encode(model, params, batch, dropout_key=None, collect=False):
    inputs = (batch["input_ids"], batch["token_type_ids"], batch["attention_mask"])
    return _encoder(model, collect)(params, inputs, dropout_key)


@functools.cache
def _encoder(model, collect: bool):
    return compiled(lambda p, x, key: model.encode(p, *x, dropout_key=key, collect=collect))
