"""Every fused kernel of attention, interpreted: the path of the device, dropout included, against plain attention."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused_attention import KEY, assert_equal, inputs, restrictions, results
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from processes import EXHAUSTIVE
from small_model import compiled

from bert_jax.config import ComputeConfig, MeshConfig, ModelConfig
from bert_jax.devices import sharding
from bert_jax.models.architecture import bert_architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.kernels import gpu, tpu
from bert_jax.models.kernels.plain import AttentionMask, attention


@pytest.fixture(params=[tpu, gpu], ids=["pallas", "triton"])
def module(request):
    return request.param


@pytest.fixture
def interpreted(module):
    return functools.partial(module.attention, interpret=True)


@pytest.mark.parametrize(
    "names, rate",
    [
        *((names, 0.1) for names in ("", "segments", "segments+window+bias")),
        *((names, 0.0) for names in ("", "segments+window+bias")),
        # In the core tests each restriction is also alone, or with one other, in what follows.
        *(pytest.param(names, 0.1, marks=pytest.mark.slow) for names in ("window", "bias")),
        *(pytest.param(names, 0.0, marks=pytest.mark.slow) for names in ("segments", "window", "bias")),
    ],
)
def test_values_and_gradients_equal_plain_attention(module, names, rate):
    assert_equal(module, (2, 128, 4, 64), rate, names)


@pytest.mark.parametrize("names", ["segments", "window+bias"])
def test_in_bfloat16_they_agree_to_its_rounding(module, names):
    assert_equal(module, (2, 128, 4, 64), 0.1, names, jnp.bfloat16)


@pytest.mark.parametrize("rows, heads", [(2, 4), (2, 1), (1, 1)])
def test_a_bias_may_be_shared_by_rows_and_heads(module, rows, heads):
    """Its gradient is then their sum."""
    bias = np.random.default_rng(2).standard_normal((rows, heads, 128, 128)).astype(np.float32)
    assert_equal(module, (2, 128, 4, 64), 0.1, bias=bias)


def test_a_bias_of_distances_is_the_full_matrix_of_it(interpreted):
    query, key, value, gradient, padding = inputs(2, 128, 4, 64)
    rising = lambda distance: 0.05 * distance[None].astype(np.float32)  # unlike ALiBi's, not the same on both sides
    full = np.broadcast_to(rising(np.arange(128)[None, :] - np.arange(128)[:, None])[None], (1, 4, 128, 128))
    roads = (interpreted, {"distance_bias": rising}), (attention, {"bias": full}), (attention, {})
    found, expected, without = compiled(
        lambda *qkv: [road(*qkv, AttentionMask(padding=padding, **given))[0] for road, given in roads]
    )(query, key, value)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert not np.allclose(expected, without, atol=0.1)


def test_a_row_without_a_key_to_attend_to_attends_as_if_unmasked(interpreted):
    query, key, value, gradient, padding = inputs(2, 128, 2, 64)
    padding[1] = 0
    mask = AttentionMask(padding=padding)
    both = compiled(lambda *qkv: [each(*qkv, mask)[0] for each in (interpreted, attention)])(query, key, value)
    # Near -10000, where these scores are, float32 has steps of 0.001.
    np.testing.assert_allclose(both[0], both[1], atol=5e-3)


MESHES = [MeshConfig(data=2, fsdp=2, tensor=2)]
if EXHAUSTIVE:
    MESHES += [MeshConfig(data=8), MeshConfig(data=1, fsdp=8), MeshConfig(slice=2)]


@pytest.mark.slow
@pytest.mark.parametrize("config", MESHES, ids=lambda mesh: f"{mesh.slice}x{mesh.data}x{mesh.fsdp}x{mesh.tensor}")
def test_eight_devices_compute_what_one_does(interpreted, config):
    """Each its own rows and heads, with the same dropout; a gradient of a shared bias is summed over all of them."""
    shape = (8, 128, 4, 64)
    arrays, given = inputs(*shape), restrictions("segments+bias", *shape[:3])
    expected = jax.jit(functools.partial(results, attention, 0.1))(*arrays, given)
    mesh = sharding.make_mesh(config)
    rows, heads = sharding.batch_sharding(mesh), NamedSharding(mesh, P(sharding.BATCH_AXES, None, "tensor"))
    of_bias = NamedSharding(mesh, P(None, "tensor"))
    places = (*(heads,) * 4, rows, {"segments": rows, "bias": of_bias})
    outputs = {"output": heads, "query": heads, "key": heads, "value": heads, "bias": of_bias}
    function = sharding.under(mesh, functools.partial(results, interpreted, 0.1))
    program = jax.jit(function, in_shardings=places, out_shardings=outputs).lower(*arrays, given).compile()
    found = program(*jax.device_put((*arrays, given), places))
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=1e-5, err_msg=name)
    text = program.as_text()
    assert "all-gather" not in text and "all-to-all" not in text and "[8,128,4,64]" not in text


def test_what_has_an_obstacle_or_is_collected_is_computed_by_plain_attention(module):
    kernel = dataclasses.replace(module.KERNEL, otherwise=attention)
    query, key, value, _, padding = inputs(2, 100, 4, 64)
    mask = AttentionMask(padding=padding)
    # Outside interpret mode a kernel would fail on this CPU.
    roads = (kernel, attention)
    found, expected = compiled(lambda *qkv: [each(*qkv, mask)[0] for each in roads])(query, key, value)
    np.testing.assert_array_equal(found, expected)
    query, key, value, _, padding = inputs(2, 128, 4, 64)
    collect = lambda *qkv: kernel(*qkv, AttentionMask(padding=padding), collect=True)[1]
    weights = compiled(collect)(query, key, value)
    assert weights is not None and weights.shape == (2, 4, 128, 128)
    mesh = sharding.make_mesh(MeshConfig(data=8))
    apart = sharding.under(mesh, lambda *qkv: kernel(*qkv, AttentionMask(padding=padding))[0])
    assert jax.jit(apart)(query, key, value).shape == query.shape  # two rows cannot be split over eight devices


def model_loss(attend=None):
    """Loss and gradients of a model, by its parameters, with every kind of dropout; with another kernel if given."""
    config = ModelConfig(
        vocab_size=60,
        hidden_size=128,
        num_layers=2,
        num_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        attention_dropout=0.2,
        hidden_dropout=0.2,
    )

    def architecture(*given):
        usual = bert_architecture(*given)
        return dataclasses.replace(usual, stack=dataclasses.replace(usual.stack, attend=attend or usual.stack.attend))

    compute = ComputeConfig(dtype="float32", layers="scan")
    model = BertForPreTraining(config, compute, parts=(), architecture=architecture)
    ids = np.random.default_rng(0).integers(5, 60, (2, 128)).astype(np.int32)
    ones = np.ones_like(ids)

    def loss(params):
        output = model.encode(params, ids, 0 * ones, ones, dropout_key=KEY)
        return jnp.mean(jnp.sin(3 * output.last_hidden_state))

    return model, jax.jit(jax.value_and_grad(loss))


@pytest.fixture(scope="module")
def plain_model():
    """Fresh parameters, and the loss and gradients of the model without a fused kernel."""
    model, plain = model_loss()
    params = jax.jit(model.init)(jax.random.key(0))
    return params, plain(params)


def test_a_model_with_the_kernel_is_the_model_without_it(module, interpreted, plain_model):
    params, plain = plain_model
    fused = model_loss(dataclasses.replace(module.KERNEL, function=interpreted))[1](params)
    np.testing.assert_allclose(fused[0], plain[0], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), fused[1], plain[1])
