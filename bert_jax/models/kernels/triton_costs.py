"""The operations of the Triton kernels, for plans: a compiled program does not say what is in them."""

import math
import re
from collections.abc import Sequence
from typing import Any

PRODUCTS = {"forward": 2, "backward": 7}
"""Of queries × keys × size of a head. Backward, scores and the gradients of weights are computed twice: for the sums
over queries and for those over keys."""


def kernel_name(kernel: str, pairs: int) -> str:
    """Return the name by which a compiled program shows a kernel in which so many pairs of query and key meet in a row.

    It is unlike the names of the kernels for TPUs, whose number has another meaning.
    """
    return f"triton_{kernel}_{pairs}"


def attention_flops(name: str, results: Sequence[Any]) -> int:
    """Return the operations of one call, a multiply-add counting as two; 0 for any other kernel.

    The gradient of a bias, which no model here learns, is not counted.

    Args:
      name: text that has a `kernel_name` in it.
      results: the first is [B, L, A, D].
    """
    found = re.search(r"triton_(forward|backward)_(\d+)", name)
    if found is None:
        return 0
    batch, _, heads, size = results[0].dims
    return 2 * PRODUCTS[found[1]] * int(found[2]) * math.prod((batch, heads, size))
