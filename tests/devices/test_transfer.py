"""Batches in few bytes: narrow on the way, the same values inside the step."""

import jax
import numpy as np
import pytest

from bert_jax.devices.sharding import narrow_type, narrowed, widened


@pytest.mark.parametrize(
    "dtype, bound, expected",
    [
        (np.int32, 30_522, np.int16),
        (np.int32, 2**15, np.int16),
        (np.int32, 2**15 + 1, np.uint16),
        (np.int32, 2**16, np.uint16),
        (np.int32, 2**16 + 1, np.int32),
        (np.float32, 10, np.float32),
        (np.int8, 10, np.int8),
    ],
)
def test_the_first_type_that_holds_the_values(dtype, bound, expected):
    assert narrow_type(dtype, bound) == expected


@pytest.mark.parametrize("bound", [100, 40_000, 70_000])
def test_values_arrive_as_they_left(bound):
    ids = np.array([[0, 1, bound - 1]], np.int32)
    weights = np.array([[0.5, 1.0, np.pi]], np.float32)
    sent = narrowed({"ids": ids, "weights": weights}, bound)
    assert sent["weights"] is weights and sent["ids"].dtype == narrow_type(np.int32, bound)
    received = jax.jit(widened)(jax.device_put(sent))
    assert received["ids"].dtype == np.int32 and received["weights"].dtype == np.float32
    np.testing.assert_array_equal(received["ids"], ids)
    np.testing.assert_array_equal(received["weights"], weights)


@pytest.mark.parametrize("value, bound", [(2**15, 100), (-1, 40_000), (2**16, 50_000)])
def test_a_value_that_does_not_fit_is_refused(value, bound):
    with pytest.raises(ValueError, match="ids has values that u?int16 does not hold"):
        narrowed({"ids": np.array([0, value], np.int32)}, bound)
