"""The kernels for TPUs, interpreted: the path of the device, dropout included, against attention in plain JAX.

Both get the same dropout, element by element. What differs is the order of sums, and in bfloat16 that the kernels
divide by the sum of exponentials after the product with the values.
"""

import dataclasses
import functools
import math

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.config import ComputeConfig, MeshConfig, ModelConfig
from bert_jax.devices import sharding
from bert_jax.models.architecture import bert_architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.kernels import pallas, xla
from bert_jax.models.kernels.contract import AttentionMask

KEY = jax.random.key(3)
interpreted = functools.partial(pallas.attention, interpret=True)


def inputs(batch: int, length: int, heads: int, size: int, dtype=np.float32) -> tuple:
    """query, key, value and the gradient of the output [B, L, A, D]; the last row ends in padding."""
    random = np.random.default_rng(0)
    arrays = [jnp.asarray(random.standard_normal((batch, length, heads, size)), dtype) for _ in range(4)]
    padding = np.ones((batch, length), np.int32)
    padding[-1, length - 9 :] = 0
    return *arrays, padding


def restrictions(names: str, batch: int, length: int, heads: int) -> dict:
    random = np.random.default_rng(1)
    given = {
        "segments": np.sort(random.integers(1, 4, (batch, length)), 1).astype(np.int32),
        "window": np.int32(17),
        "bias": random.standard_normal((1, heads, length, length)).astype(np.float32),
    }
    return {name: given[name] for name in names.split("+") if name}


def results(
    attention, rate, query, key, value, gradient, padding, given, window: int | None = None
) -> dict[str, jax.Array]:
    """The output, and the gradients of queries, keys, values and the bias."""

    def output(query, key, value, bias):
        # A window is a number that is known here, or one of the arrays that are given.
        restricting = {"window": window} | given | ({} if bias is None else {"bias": bias})
        mask = AttentionMask(padding=padding, **restricting)
        return attention(query, key, value, mask, KEY if rate else None, rate)[0]

    found, backward = jax.vjp(output, query, key, value, given.get("bias"))
    gradients = dict(zip(("query", "key", "value", "bias"), backward(gradient), strict=True))
    return {"output": found} | {name: x for name, x in gradients.items() if x is not None}


def assert_equal(shape: tuple, rate: float, names: str = "", dtype=np.float32, window=None, **given) -> None:
    """Compare both; the tolerance is some roundings of the largest number that is rounded."""
    *arrays, padding = inputs(*shape, dtype)
    given = given or restrictions(names, *shape[:3])
    assert pallas.obstacle(*shape) is None
    both = [
        jax.jit(functools.partial(results, attention, rate, window=window))(*arrays, padding, given)
        for attention in (interpreted, xla.attention)
    ]
    for name, expected in both[1].items():
        found, expected = (np.asarray(each[name], np.float32) for each in both)
        rounding = 2**-8 if dtype == jnp.bfloat16 else 2**-23
        assert np.abs(found - expected).max() < 16 * rounding * max(1, np.abs(expected).max()), name
        assert np.abs(expected).max() > 0.1, name


@pytest.mark.parametrize(
    "names, rate",
    [
        *((names, 0.1) for names in ("", "segments", "window", "bias", "segments+window+bias")),
        *((names, 0.0) for names in ("", "segments+window+bias")),
        *(pytest.param(names, 0.0, marks=pytest.mark.slow) for names in ("segments", "window", "bias")),
    ],
)
def test_values_and_gradients_equal_plain_attention(names, rate):
    assert_equal((2, 128, 4, 64), rate, names)


@pytest.mark.parametrize("names", ["segments", "window+bias"])
def test_in_bfloat16_they_agree_to_its_rounding(names):
    assert_equal((2, 128, 4, 64), 0.1, names, jnp.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        (1, 384, 2, 64),
        (1, 640, 2, 64),
        (2, 128, 8, 32),
        (1, 256, 1, 128),
        (1, 128, 1, 256),
        (1, 128, 16, 8),
        (3, 128, 6, 64),
    ],
    ids=lambda shape: "x".join(map(str, shape)),
)
def test_every_width_of_heads_and_any_number_of_them(shape):
    assert_equal(shape, 0.3, "segments")


def test_long_rows_are_computed_in_blocks_of_queries():
    """Of 256 queries here; the gradients of keys, values and the bias are summed over them."""
    assert_equal((1, 1024, 2, 64), 0.1, "segments+bias")


@pytest.mark.parametrize(
    "length, window, names, rate",
    [
        (1024, 17, "segments+bias", 0.1),  # blocks of 256 queries meet 512 keys
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (640, 128, "segments", 0.1),  # 128 queries, 384 keys
                (640, 129, "", 0.0),  # 640 keys, which are all
                (1024, 300, "", 0.1),  # 128 queries, 896 keys
                (768, 12, "bias", 0.0),  # 384 queries, 640 keys
            )
        ),
    ],
)
def test_within_a_window_only_the_keys_in_reach_are_computed(length, window, names, rate):
    """Values, gradients and dropped elements are those of the masked full matrix."""
    assert_equal((1, length, 4, 64), rate, names, window=window)


def products(jaxpr, times: int = 1) -> int:
    """Multiplications of all products in a program, those of a kernel as often as its grid has steps."""
    found = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            found += times * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)
        grid = equation.params["grid_mapping"].grid if equation.primitive.name == "pallas_call" else ()
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            found += products(inner, times * math.prod(grid))
    return found


def test_the_work_within_a_window_grows_with_the_length_alone():
    def work(length: int, window: int | None) -> int:
        *arrays, padding = inputs(1, length, 2, 64)
        traced = functools.partial(results, interpreted, 0.0, padding=padding, given={}, window=window)
        return products(jax.make_jaxpr(traced)(*arrays).jaxpr)

    assert work(1024, None) == 4 * work(512, None)
    assert work(4096, 64) == 4 * work(1024, 64) and work(1024, 64) == work(1024, None) // 2  # 512 keys of 1,024


@pytest.mark.parametrize("rows, heads", [(2, 4), (2, 1), (1, 1)])
def test_a_bias_may_be_shared_by_rows_and_heads(rows, heads):
    """Its gradient is then their sum."""
    bias = np.random.default_rng(2).standard_normal((rows, heads, 128, 128)).astype(np.float32)
    assert_equal((2, 128, 4, 64), 0.1, bias=bias)


def test_a_row_without_a_key_to_attend_to_attends_as_if_unmasked():
    query, key, value, gradient, padding = inputs(2, 128, 2, 64)
    padding[1] = 0
    both = [
        results(each, 0.0, query, key, value, gradient, padding, {})["output"] for each in (interpreted, xla.attention)
    ]
    # Near -10000, where these scores are, float32 has steps of 0.001.
    np.testing.assert_allclose(both[0], both[1], atol=5e-3)


MESHES = [MeshConfig(data=8), MeshConfig(data=1, fsdp=8), MeshConfig(data=2, fsdp=2, tensor=2), MeshConfig(slice=2)]


@pytest.mark.slow
@pytest.mark.parametrize("config", MESHES, ids=lambda mesh: f"{mesh.slice}x{mesh.data}x{mesh.fsdp}x{mesh.tensor}")
def test_eight_devices_compute_what_one_does(config):
    """Each its own rows and heads, with the same dropout; a gradient of a shared bias is summed over all of them."""
    shape = (8, 128, 4, 64)
    arrays, given = inputs(*shape), restrictions("segments+bias", *shape[:3])
    expected = jax.jit(functools.partial(results, xla.attention, 0.1))(*arrays, given)
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


@pytest.mark.parametrize(
    "shape, words",
    [
        ((2, 100, 4, 64), "length 100 is not a multiple of 128"),
        ((2, 16384, 4, 64), "length 16384"),
        ((2, 128, 4, 48), "heads of size 48 neither divide 128"),
        ((2, 128, 3, 64), "3 heads of size 64 on a device are 192 wide"),
        ((4096, 128, 64, 64), "4096 rows × 64 heads"),
    ],
)
def test_what_has_an_obstacle_is_explained(shape, words):
    assert words in (pallas.obstacle(*shape) or "")


def test_what_has_an_obstacle_or_is_collected_is_computed_by_xla():
    query, key, value, _, padding = inputs(2, 100, 4, 64)
    mask = AttentionMask(padding=padding)
    # Outside interpret mode a kernel would fail on this CPU.
    assert (pallas.attention(query, key, value, mask)[0] == xla.attention(query, key, value, mask)[0]).all()
    query, key, value, _, padding = inputs(2, 128, 4, 64)
    _, weights = pallas.attention(query, key, value, AttentionMask(padding=padding), collect=True)
    assert weights is not None and weights.shape == (2, 4, 128, 128)
    mesh = sharding.make_mesh(MeshConfig(data=8))
    apart = sharding.under(mesh, lambda *qkv: pallas.attention(*qkv, AttentionMask(padding=padding))[0])
    assert jax.jit(apart)(query, key, value).shape == query.shape  # two rows cannot be split over eight devices


def test_a_model_with_the_kernel_is_the_model_without_it():
    """Loss and gradients with every kind of dropout."""
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
    compute = ComputeConfig(dtype="float32", layers="scan")

    def architecture(*given):
        usual = bert_architecture(*given)
        return dataclasses.replace(usual, stack=dataclasses.replace(usual.stack, attend=interpreted))

    models = BertForPreTraining(config, compute), BertForPreTraining(config, compute, architecture=architecture)
    params = jax.jit(models[0].init)(jax.random.key(0))
    ids = np.random.default_rng(0).integers(5, 60, (2, 128)).astype(np.int32)
    ones = np.ones_like(ids)

    def loss(model, params):
        output = model.encode(params, ids, 0 * ones, ones, dropout_key=KEY)
        return jnp.mean(jnp.sin(3 * output.last_hidden_state))

    plain, fused = (jax.jit(jax.value_and_grad(functools.partial(loss, model)))(params) for model in models)
    np.testing.assert_allclose(fused[0], plain[0], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), fused[1], plain[1])
