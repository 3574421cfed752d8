"""What the kernels for TPUs alone have, interpreted; test_fused_attention.py has what all kernels of ours share."""

import functools
import math

import jax
import jax.extend
import pytest
from fused_attention import assert_equal, inputs, results
from processes import EXHAUSTIVE

from bert_jax.models.kernels import tpu

interpreted = functools.partial(tpu.attention, interpret=True)


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


def test_long_rows_are_computed_in_blocks_of_queries():
    """Of 256 queries here; the gradients of keys, values and the bias are summed over them."""
    assert_equal(tpu, (1, 1024, 2, 64), 0.1, "segments+bias")


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
        traced = functools.partial(results, interpreted, 0.0, padding=padding, given={}, window=window)
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
