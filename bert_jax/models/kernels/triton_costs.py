"""The operations of the Triton kernels, for plans: a compiled program does not say what is in them."""

import math
import re

PRODUCTS = {"forward": 2, "backward": 7}
"""Of queries × keys × size of a head. Backward, scores and the gradients of weights are computed twice: for the sums
over queries and for those over keys."""


def kernel_name(kernel: str, met: int) -> str:
    """Return the name by which a compiled program shows a kernel in which queries of a row meet so many keys in all."""
    return f"attention_{kernel}_{met}"


def attention_flops(name: str, shape: tuple[int, ...]) -> int:
    """Return the operations of one call, a multiply-add counting as two; 0 for any other kernel.

    The gradient of a bias, which no model here learns, is not counted.

    Args:
      name: text that has a `kernel_name` in it.
      shape: of the first result, [B, L, A, D].
    """
    found = re.search(r"attention_(forward|backward)_(\d+)", name)
    if found is None or len(shape) != 4:
        return 0
    batch, _, heads, size = shape
    return 2 * PRODUCTS[found[1]] * int(found[2]) * math.prod((batch, heads, size))
