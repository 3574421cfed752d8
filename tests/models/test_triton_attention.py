"""What the kernels for GPUs alone have, interpreted; test_fused_attention.py has what all kernels of ours share."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command_lines import ROOT
from fused_attention import assert_equal

from bert_jax.models.kernels import gpu
from bert_jax.models.kernels.plain import AttentionMask


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
    "reach, met", [(None, 16 * 16), (1, 16 * 3 - 2), (64, 16 * 3 - 2), (65, 16 * 5 - 6), (1022, 16 * 16)]
)
def test_only_blocks_in_reach_of_a_window_are_met(reach, met):
    """Of 16 blocks of 64 places each; by 65 places a block of 64 sees two blocks to either side."""
    blocks = gpu.Blocks(length=1024, size=64, together=64, threshold=0, reach=reach)
    assert blocks.pairs == met * 64 * 64
    places = np.arange(1024)
    seen = np.abs(places[:, None] - places) <= (1024 if reach is None else reach)
    of_blocks = seen.reshape(16, 64, 16, 64).any(axis=(1, 3))
    for number in range(16):
        first, last = map(int, blocks.met(number))
        assert np.flatnonzero(of_blocks[number]).tolist() == list(range(first, last))


@pytest.mark.parametrize(
    "shape, words",
    [
        ((2, 100, 4, 64), "length 100 is not a multiple of 16 up to 32768"),
        ((2, 2**16, 4, 64), "length 65536"),
        ((2, 128, 4, 48), "heads of size 48 are not 16, 32, 64 or 128 wide"),
    ],
)
def test_what_has_an_obstacle_is_explained(shape, words):
    assert words in (gpu.obstacle(*shape) or "")


def test_it_is_lowered_for_cuda_without_transposes():
    """One kernel forward and one backward; without a bias that is learned, none for its gradient."""

    def gradients(query, key, value, gradient, padding, segments, random):
        def output(*qkv):
            mask = AttentionMask(padding=padding, segments=segments, window=64)
            return gpu.attention(*qkv, mask, random, 0.1)[0]

        return jax.vjp(output, query, key, value)[1](gradient)

    x, rows = jax.ShapeDtypeStruct((2, 128, 4, 64), jnp.bfloat16), jax.ShapeDtypeStruct((2, 128), np.int32)
    random = jax.eval_shape(functools.partial(jax.random.key, 0))
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
