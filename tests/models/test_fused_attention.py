"""Fused attention: cuDNN's, Pallas' and Triton's kernels, and their gradients.

Every fused kernel of attention, interpreted: the path of the device, dropout included, against plain attention. What
the kernels for TPUs alone have, interpreted; test_fused_attention.py has what all kernels of ours share. What the
kernels for GPUs alone have, interpreted; test_fused_attention.py has what all kernels of ours share.
"""

import dataclasses
import functools
import math
import os
import subprocess
import sys

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from command_lines import ROOT
from fused_attention import KEY, assert_equal, inputs, restrictions, results
from jax._src.mesh import AbstractDevice
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
        *(("", 0.1), ("segments+window+bias", 0.1)),
        # In the core tests each restriction is also alone, or with one other, in what follows, and without dropout.
        *(pytest.param(names, 0.1, marks=pytest.mark.slow) for names in ("segments", "window", "bias")),
        *(
            pytest.param(names, 0.0, marks=pytest.mark.slow)
            for names in ("", "segments", "window", "bias", "segments+window+bias")
        ),
    ],
)
def test_values_and_gradients_equal_plain_attention(module, names, rate):
    assert_equal(module, (2, 128, 4, 64), rate, names)


@pytest.mark.parametrize("names", [pytest.param("segments", marks=pytest.mark.slow), "window+bias"])
def test_in_bfloat16_they_agree_to_its_rounding(module, names):
    assert_equal(module, (2, 128, 4, 64), 0.1, names, jnp.bfloat16)


@pytest.mark.parametrize(
    "rows, heads", [(2, 1), *(pytest.param(*shape, marks=pytest.mark.slow) for shape in ((2, 4), (1, 1)))]
)
def test_a_bias_may_be_shared_by_rows_and_heads(module, rows, heads):
    """Its gradient is then their sum. That of the other tests is shared by rows."""
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


interpreted_of_pallas = functools.partial(tpu.attention, interpret=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        (1, 640, 2, 64),
        (2, 128, 8, 32),
        (1, 128, 1, 256),
        *([(1, 384, 2, 64), (1, 256, 1, 128), (1, 128, 16, 8), (3, 128, 6, 64)] if EXHAUSTIVE else []),
    ],
    ids=lambda shape: "x".join(map(str, shape)),
)
def test_every_width_of_heads_and_any_number_of_them(shape):
    assert_equal(tpu, shape, 0.3, "segments")


@pytest.mark.slow
def test_long_rows_are_computed_in_blocks_of_queries():
    """Blocks of 256 here, over which the gradients of keys, values and the bias are summed.

    In the core tests a window shows the same.
    """
    assert_equal(tpu, (1, 1024, 2, 64), 0.1, "segments+bias")


@pytest.mark.parametrize(
    "length, window, names, rate",
    [
        (640, 128, "segments", 0.1),  # 128 queries, 384 keys
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (1024, 17, "segments+bias", 0.1),  # blocks of 256 queries meet 512 keys
                (640, 129, "", 0.0),  # 640 keys, which are all
                (1024, 300, "", 0.1),  # 128 queries, 896 keys
                (768, 12, "bias", 0.0),  # 384 queries, 640 keys
            )
        ),
    ],
)
def test_within_a_window_only_the_keys_in_reach_are_computed(length, window, names, rate):
    """Values, gradients and dropped elements are those of the masked full matrix."""
    assert_equal(tpu, (1, length, 4, 64), rate, names, window=window)


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
        traced = functools.partial(results, interpreted_of_pallas, 0.0, padding=padding, given={}, window=window)
        return products(jax.make_jaxpr(traced)(*arrays).jaxpr)

    assert work(1024, None) == 4 * work(512, None)
    assert work(4096, 64) == 4 * work(1024, 64) and work(1024, 64) == work(1024, None) // 2  # 512 keys of 1,024


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
    assert words in (tpu.obstacle(*shape) or "")


@pytest.mark.parametrize(
    "shape, names, window",
    [
        ((1, 48, 2, 16), "segments", None),  # blocks of 16
        ((3, 96, 1, 128), "bias", None),  # of 32
        ((1, 512, 2, 64), "segments", 17),  # a block of 64 meets three
        pytest.param((1, 320, 2, 32), "bias", 64, marks=pytest.mark.slow),
        pytest.param((1, 320, 2, 32), "", 65, marks=pytest.mark.slow),
        pytest.param((1, 320, 2, 32), "", 318, marks=pytest.mark.slow),
    ],
)
def test_every_length_and_width_and_a_window_that_is_known(shape, names, window):
    """Values, gradients and dropped elements are those of the masked full matrix."""
    assert_equal(gpu, shape, 0.1, names, window=window)


@pytest.mark.parametrize(
    "own, other, names, rate, window",
    [
        (128, 32, "segments+bias", 0.1, None),
        (32, 128, "", 0.0, 65),
        pytest.param(32, 128, "segments+bias", 0.1, None, marks=pytest.mark.slow),
        pytest.param(128, 32, "", 0.0, 65, marks=pytest.mark.slow),
    ],
)
def test_blocks_of_two_sizes(monkeypatch, own, other, names, rate, window):
    """Of other sizes backward than forward; 320 places are five blocks of 64, or ten of 32."""
    tilings = {"forward": gpu.Tiling(own, other), "backward": gpu.Tiling(other, own)}
    monkeypatch.setattr(gpu, "tiling", lambda kernel, length, size: tilings[kernel])
    assert_equal(gpu, (1, 320, 2, 32), rate, names, window=window)


@pytest.mark.parametrize("own, other", [(64, 64), (128, 32), (16, 64)])
@pytest.mark.parametrize("reach", [None, 1, 64, 65, 1022])
def test_only_blocks_in_reach_of_a_window_are_met(reach, own, other):
    """Of 16 blocks of 64 places each, by 65 places a block sees two blocks to either side."""
    blocks = gpu.Blocks(length=1024, size=64, threshold=0, reach=reach, tiling=gpu.Tiling(own, other))
    places = np.arange(1024)
    seen = np.abs(places[:, None] - places) <= (1024 if reach is None else reach)
    of_blocks = seen.reshape(1024 // own, own, 1024 // other, other).any(axis=(1, 3))
    assert blocks.count == len(of_blocks) and blocks.pairs == of_blocks.sum() * own * other
    for number in range(blocks.count):
        met = list(range(*blocks.met(number)))
        assert np.flatnonzero(of_blocks[number]).tolist() == met
        assert list(range(*map(int, blocks.met(jnp.int32(number))))) == met


@pytest.mark.parametrize(
    "shape, words",
    [
        ((2, 100, 4, 64), "length 100 is not a multiple of 16 up to 32768"),
        ((2, 2**16, 4, 64), "length 65536"),
        ((2, 128, 4, 48), "heads of size 48 are not 16, 32, 64 or 128 wide"),
    ],
)
def test_what_has_an_obstacle_to_triton_is_explained(shape, words):
    assert words in (gpu.obstacle(*shape) or "")


def test_it_is_lowered_for_cuda_without_transposes():
    """One kernel forward and one backward; without a bias that is learned, none for its gradient."""
    card = AbstractDevice(device_kind="NVIDIA H200", num_cores=1, platform="gpu")
    mesh = jax.sharding.AbstractMesh((1,), ("data",), abstract_device=card)

    def gradients(query, key, value, gradient, padding, segments, random):
        def output(*qkv):
            mask = AttentionMask(padding=padding, segments=segments, window=64)
            return gpu.attention(*qkv, mask, random, 0.1)[0]

        return jax.vjp(output, query, key, value)[1](gradient)

    x, rows = jax.ShapeDtypeStruct((2, 128, 4, 64), jnp.bfloat16), jax.ShapeDtypeStruct((2, 128), np.int32)
    random = jax.eval_shape(functools.partial(jax.random.key, 0))
    with jax.sharding.use_abstract_mesh(mesh):
        text = jax.jit(gradients).trace(x, x, x, x, rows, rows, random).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.custom_call @__gpu$xla.gpu.triton") == 2
    assert "stablehlo.transpose" not in text and "128x128" not in text


ON_A_GPU = """
import jax, jax.numpy as jnp
from fused_attention import assert_equal
from bert_jax.models.kernels import gpu as triton
for names, rate in (("", 0.0), ("segments+window+bias", 0.1)):
    assert_equal(triton, (2, 256, 4, 64), rate, names, jnp.bfloat16, interpret=False)
"""


@pytest.mark.slow
def test_a_gpu_computes_what_plain_attention_does():
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests/support")])
    environment = os.environ | {"JAX_PLATFORMS": "cuda", "PYTHONPATH": paths}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    python = functools.partial(subprocess.run, env=environment, **output)
    if python([sys.executable, "-c", "import jax; jax.devices()"]).returncode:
        pytest.skip("JAX finds no NVIDIA GPU here")
    found = python([sys.executable, "-c", ON_A_GPU])
    assert found.returncode == 0, found.stdout
