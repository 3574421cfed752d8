"""Architectures defined outside the package from its pieces: layers that differ, layers that share, other kernels."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpy_bert
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P
from local_block import LocalBlock
from small_model import (
    FLOAT32,
    LENGTH,
    SMALL,
    assert_trees_close,
    compiled,
    encode,
    encoder_gradient,
    loss_function,
    make_batch,
    perturbed,
)

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import ComputeConfig, HeadConfig, MeshConfig, ModelConfig, OptimizerConfig
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.models.architecture import Architecture, bert_architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.block import Block, FeedForward
from bert_jax.models.embeddings import Embeddings
from bert_jax.models.kernels import plain
from bert_jax.models.kernels.plain import AttentionMask
from bert_jax.models.layers import Linear, gelu_tanh
from bert_jax.models.stack import Stack
from bert_jax.models.task import BertForTask
from bert_jax.parameters import Axis, linear, table
from bert_jax.training.optimizers import optimizer, scale_by_depth
from bert_jax.training.state import abstract_state

DEEP = dataclasses.replace(SMALL, num_layers=3)
LOOP = ComputeConfig(dtype="float32", layers="loop")
SCAN, SCAN_AGAIN = (ComputeConfig(dtype="float32", layers="scan", remat=remat) for remat in ("none", "full"))


def with_stack(config: ModelConfig, compute: ComputeConfig, **changes) -> Architecture:
    usual = bert_architecture(config, compute)
    return dataclasses.replace(usual, stack=dataclasses.replace(usual.stack, **changes))


WINDOWS = np.array([LENGTH, 2, 1])


def local(config: ModelConfig, compute: ComputeConfig) -> Architecture:
    block = functools.partial(
        LocalBlock, config, feed_forward=functools.partial(FeedForward, config, activation=gelu_tanh)
    )
    return with_stack(config, compute, block=block, layer_inputs={"window": WINDOWS[: config.num_layers]})


def shared(config: ModelConfig, compute: ComputeConfig) -> Architecture:
    """The first layer and the last have the same parameters."""
    return with_stack(config, compute, sharing=(0, 1, 0))


def all_shared(config: ModelConfig, compute: ComputeConfig) -> Architecture:
    return with_stack(config, compute, sharing=(0,) * config.num_layers)


def test_a_window_per_layer_equals_numpy():
    model, batch = BertForPreTraining(DEEP, FLOAT32, architecture=local), make_batch()
    params = perturbed(model)
    distance = np.abs(np.arange(LENGTH)[:, None] - np.arange(LENGTH)[None, :])
    allowed = [batch["attention_mask"][:, None, :] * (distance <= window) for window in WINDOWS]
    expected = numpy_bert.forward(params, DEEP, batch, allowed)
    output = encode(model, params, batch, collect=True)
    seen = np.stack(allowed).any(-1)  # a position of padding may see nothing, and what it holds is of no use
    for ours, theirs, rows in zip(output.hidden_states[1:], expected["hidden_states"][1:], seen, strict=True):
        np.testing.assert_allclose(np.asarray(ours)[rows], theirs[rows], atol=5e-5)
    for ours, theirs, rows in zip(output.attentions, expected["attentions"], seen, strict=True):
        np.testing.assert_allclose(np.moveaxis(ours, 1, 2)[rows], np.moveaxis(theirs, 1, 2)[rows], atol=5e-5)
    assert not np.allclose(expected["last_hidden_state"], numpy_bert.forward(params, DEEP, batch)["last_hidden_state"])


def loss_and_gradient(architecture, compute: ComputeConfig, params=None, config: ModelConfig = DEEP):
    """Parameters, and a loss and its gradient with dropout, of an encoder without heads, which compiles faster."""
    batch = make_batch()
    inputs = batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]
    return encoder_gradient(BertForPreTraining(config, compute, (), architecture), inputs, params)


@pytest.mark.parametrize(
    "own, other_way", [("attention", SCAN), pytest.param("feed_forward", SCAN_AGAIN, marks=pytest.mark.slow)]
)
def test_layers_that_share_a_part_are_layers_with_equal_parts_and_summed_gradients(own, other_way):
    """The gradient of a shared array is the sum of those of its copies in a model that shares nothing."""
    common = {"attention": "feed_forward", "feed_forward": "attention"}[own]
    config = dataclasses.replace(DEEP, sharing=common)
    params, loss, gradient = loss_and_gradient(bert_architecture, LOOP, config=config)
    one_set = {name: leaf.shape[0] == 1 for name, leaf in leaf_paths(params["encoder"]).items()}
    assert one_set == {name: name.startswith(common) for name in one_set}
    copies = jax.tree.map(lambda leaf: jnp.repeat(leaf, 3 // leaf.shape[0], axis=0), params["encoder"])
    _, expected_loss, expected = loss_and_gradient(bert_architecture, LOOP, params | {"encoder": copies})
    expected |= {
        "encoder": jax.tree.map(
            lambda leaf, ours: leaf if ours.shape == leaf.shape else leaf.sum(0, keepdims=True),
            jax.device_get(expected["encoder"]),
            params["encoder"],
        )
    }
    for _, found, slopes in ((params, loss, gradient), loss_and_gradient(bert_architecture, other_way, config=config)):
        assert float(found) == pytest.approx(float(expected_loss), rel=1e-5)
        assert_trees_close(slopes, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    "architecture, sharing, other_way",
    [(shared, (0, 1, 0), SCAN_AGAIN), pytest.param(all_shared, (0, 0, 0), SCAN, marks=pytest.mark.slow)],
)
def test_shared_layers_are_layers_with_equal_parameters_and_summed_gradients(architecture, sharing, other_way):
    params, loss, gradient = loss_and_gradient(architecture, LOOP)
    sets = range(max(sharing) + 1)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(params["encoder"])} == {len(sets)}
    copies = params | {"encoder": jax.tree.map(lambda leaf: leaf[np.array(sharing)], params["encoder"])}
    _, expected_loss, expected = loss_and_gradient(bert_architecture, LOOP, copies)
    expected |= {
        "encoder": jax.tree.map(
            lambda leaf: np.stack([leaf[np.array(sharing) == index].sum(0) for index in sets]),
            jax.device_get(expected["encoder"]),
        )
    }
    for _, found, slopes in ((params, loss, gradient), loss_and_gradient(architecture, other_way)):
        assert float(found) == pytest.approx(float(expected_loss), rel=1e-5)
        assert_trees_close(slopes, expected, rtol=1e-4, atol=2e-5)


def test_a_window_per_layer_is_one_model_scanned_and_unrolled():
    _, loss, gradient = loss_and_gradient(local, LOOP)
    for compute in (SCAN, SCAN_AGAIN):
        _, found, slopes = loss_and_gradient(local, compute)
        assert float(found) == pytest.approx(float(loss), rel=1e-5)
        assert_trees_close(slopes, gradient, rtol=1e-4, atol=2e-5)


class GatedFeedForward(nnx.Module):
    """GELU(x · gate) ⊙ (x · intermediate) · output (Shazeer 2020)."""

    def __init__(self, config: ModelConfig, key: jax.Array):
        hidden, wide, std = (config.hidden_size,), (config.feed_forward_size,), config.initializer_range
        gate_key, intermediate_key, output_key = jax.random.split(key, 3)
        self.gate = Linear(hidden, wide, std, gate_key)
        self.intermediate = Linear(hidden, wide, std, intermediate_key)
        self.output = Linear(wide, hidden, std, output_key)

    def __call__(self, x):
        return self.output(jax.nn.gelu(self.gate(x)) * self.intermediate(x))


def rotated(x: jax.Array, base: jax.Array) -> jax.Array:
    """Rotary positions (Su et al. 2021) of x [B, L, A, D]."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * base ** (-jnp.arange(half) / half)[None]
    sine, cosine = jnp.sin(angle)[None, :, None], jnp.cos(angle)[None, :, None]
    return jnp.concatenate(
        [x[..., :half] * cosine - x[..., half:] * sine, x[..., half:] * cosine + x[..., :half] * sine], -1
    )


@pytest.mark.parametrize("layers", [1, 3])
def test_a_scan_over_layers_that_are_one_needs_nothing_that_differs(layers):
    """Without dropout there is not even a key per layer to scan over."""
    config, ids = (
        dataclasses.replace(DEEP, num_layers=layers, sharing="all"),
        np.arange(12, dtype=np.int32).reshape(2, 6),
    )
    states = []
    for compute in (ComputeConfig(dtype="float32", layers="scan"), ComputeConfig(dtype="float32", layers="loop")):
        model = BertForPreTraining(config, compute, ())
        encoded = compiled(functools.partial(model.encode, collect=True))(perturbed(model), ids, 0 * ids, 0 * ids + 1)
        states.append(np.stack(encoded.hidden_states))
    np.testing.assert_allclose(states[0], states[1], atol=1e-5)


class RotaryBlock(Block):
    """BERT's block with rotary positions of a base that each layer is given: a kernel around the kernel."""

    def __call__(self, x, mask, dropout_key, attend, collect, base):
        def rotary(query, key, *rest):
            return attend(rotated(query, base), rotated(key, base), *rest)

        return super().__call__(x, mask, dropout_key, rotary, collect)


def modern(config: ModelConfig, compute: ComputeConfig) -> Architecture:
    """GeGLU, rotary positions with two bases, and no table of positions."""
    block = functools.partial(RotaryBlock, config, feed_forward=functools.partial(GatedFeedForward, config))
    bases = {"base": np.resize(np.array([160_000.0, 10_000.0], np.float32), config.num_layers)}
    usual = with_stack(config, compute, block=block, layer_inputs=bases)
    layer, hidden = Axis("layer", config.num_layers), Axis("hidden", config.hidden_size)
    gate = linear("encoder/feed_forward/gate", (hidden,), (Axis("intermediate", config.feed_forward_size),), (layer,))
    kept = [entry for path, entry in usual.parameters.items() if path != "embeddings/position/table"]
    return dataclasses.replace(
        usual,
        embeddings=functools.partial(Embeddings, config, positions=None),
        parameters=table([*kept, *gate]),
    )


EVEN = dataclasses.replace(DEEP, hidden_size=24, num_heads=3, norm_position="pre")


@pytest.mark.parametrize("layers", ["scan", "loop"])
def test_with_rotary_positions_a_text_in_a_packed_row_is_as_if_alone(layers):
    """Only distances count and segments separate texts, so a text's states do not depend on its place in the row."""
    model = BertForPreTraining(EVEN, ComputeConfig(dtype="float32", layers=layers), (), modern)
    params = perturbed(model)
    assert "position" not in params["embeddings"] and "gate" in params["encoder"]["feed_forward"]
    ids = np.random.default_rng(2).integers(0, 61, (2, 12)).astype(np.int32)
    ones, segments = np.ones_like(ids), np.repeat(np.array([[1, 2]], np.int32), [5, 7], axis=1).repeat(2, axis=0)
    run = compiled(functools.partial(model.encode, collect=True))
    packed = run(params, ids, 0 * ids, AttentionMask(padding=ones, segments=segments))
    alone = run(params, ids[:, 5:], 0 * ids[:, 5:], AttentionMask(padding=ones[:, 5:]))
    np.testing.assert_allclose(packed.last_hidden_state[:, 5:], alone.last_hidden_state, atol=1e-4)
    np.testing.assert_allclose(packed.attentions[1][:, :, 5:, 5:], alone.attentions[1], atol=1e-5)
    together = run(params, ids, 0 * ids, ones)
    assert np.abs(together.last_hidden_state[:, 5:] - alone.last_hidden_state).max() > 0.01


@pytest.mark.slow
def test_an_architecture_from_outside_learns():
    model, batch = BertForPreTraining(EVEN, FLOAT32, architecture=modern), make_batch()
    step = compiled(jax.value_and_grad(loss_function(model, batch)))
    params, losses = compiled(model.init)(jax.random.key(0)), []
    for index in range(4):
        loss, gradient = step(params, jax.random.key(index))
        assert all(np.any(leaf) for leaf in jax.tree.leaves(gradient))
        params = jax.tree.map(lambda leaf, slope: leaf - 0.1 * slope, params, gradient)
        losses.append(float(loss))
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("architecture", [local, shared, all_shared, modern])
def test_an_architecture_from_outside_is_partitioned_by_its_table(architecture):
    """The same rules as by hand: hidden over fsdp, feed-forward width and heads over tensor, layers whole."""
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    for model in (
        BertForPreTraining(EVEN, FLOAT32, architecture=architecture),
        BertForTask(EVEN, HeadConfig(kind="span"), FLOAT32, architecture),
    ):
        lamb = optimizer(OptimizerConfig(name="lamb"), model.parameters)
        state = abstract_state(model, lamb, mesh)
        shapes = {path: leaf.shape for path, leaf in leaf_paths(state.params).items()}
        assert {path: parameter.shape for path, parameter in model.parameters.items()} == shapes
        specs = {path: leaf.sharding.spec for path, leaf in leaf_paths(state.params).items()}
        wide = [path for path in specs if path.endswith(("intermediate/kernel", "gate/kernel"))]
        assert len(wide) == (2 if architecture is modern else 1)
        assert all(specs[path] == P(None, "fsdp", "tensor") for path in wide)


def test_layers_that_share_parameters_have_no_depth():
    model = BertForPreTraining(DEEP, FLOAT32, architecture=shared)
    with pytest.raises(UserError, match=r"layer_decay=0.9 .* 3 layers, but encoder/.* is \[2, "):
        scale_by_depth(0.9, 3, model.parameters)


def test_a_task_model_takes_an_architecture():
    batch = {name: make_batch()[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
    model = BertForTask(DEEP, HeadConfig(kind="span"), FLOAT32, shared)
    params = perturbed(model)
    plain = BertForTask(DEEP, HeadConfig(kind="span"), FLOAT32)
    copies = params | {"encoder": jax.tree.map(lambda leaf: leaf[np.array([0, 1, 0])], params["encoder"])}
    np.testing.assert_allclose(compiled(model.apply)(params, batch), compiled(plain.apply)(copies, batch), atol=1e-6)


def test_the_kernel_of_the_architecture_computes_every_layer():
    """A kernel that reads all real positions alike is attention without queries."""

    def uniform(query, key, value, mask, dropout_key=None, rate=0.0, collect=False):
        shares = (mask.padding / mask.padding.sum(1, keepdims=True))[:, :, None, None]
        return jnp.broadcast_to((shares * value).sum(1, keepdims=True), value.shape), None

    def without_queries(query, *given):
        return plain.attention(0 * query, *given)

    kernel = plain.Kernel(uniform, supports=(), otherwise=without_queries)
    batch = make_batch()
    model = BertForPreTraining(DEEP, FLOAT32, architecture=lambda *given: with_stack(*given, attend=kernel))
    params = perturbed(model)
    output, collected = encode(model, params, batch), encode(model, params, batch, collect=True)
    query = jax.tree.map(np.zeros_like, params["encoder"]["attention"]["query"])
    attention = params["encoder"]["attention"] | {"query": query}
    expected = numpy_bert.forward(params | {"encoder": params["encoder"] | {"attention": attention}}, DEEP, batch)
    np.testing.assert_allclose(output.last_hidden_state, expected["last_hidden_state"], atol=5e-5)
    np.testing.assert_allclose(collected.last_hidden_state, expected["last_hidden_state"], atol=5e-5)
    np.testing.assert_allclose(collected.attentions, expected["attentions"], atol=1e-6)


def test_a_stack_wants_one_entry_per_layer():
    given = {
        "block": functools.partial(Block, DEEP),
        "num_layers": 3,
        "attend": plain.Kernel(plain.attention, plain.EVERYTHING),
        "scan": True,
    }
    with pytest.raises(UserError, match=r"sharing=\(0, 1\).* 3 layers"):
        Stack(**given, sharing=(0, 1))
    with pytest.raises(UserError, match="'window'.* has 2 entries .* 3 layers"):
        Stack(**given, layer_inputs={"window": np.array([1, 2])})
