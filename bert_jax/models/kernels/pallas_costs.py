"""What the Pallas kernels cost on a TPU, for plans: the compiler estimates no cycles of such kernels.

Basis: the instructions (VLIW bundles) that libtpu 0.0.51 schedules for v5e, counted in the final bundles that it writes
with LIBTPU_INIT_ARGS="--xla_jf_dump_to=DIR --xla_jf_dump_llo_text=true", for heads of 64 in bfloat16 with segments and
dropout of 0.1, on 2026-11-22. A bundle is issued each cycle. Stalls and the start of each step of the grid are not in
it; copies between chip and memory run beside it. v5p has as many bundles (0.99 to 1.03 of these), v6e fewer (0.75 to
0.93). Never measured on a TPU.
"""

import math
import re

TILE = 128  # queries and keys
BUNDLES = {
    "forward": {128: 193, 256: 150, 512: 117, 1024: 138, 2048: 151},
    "backward": {128: 236, 256: 175, 512: 174, 1024: 183, 2048: 179},
    "backward_of_bias": {128: 236, 256: 175, 512: 174, 1024: 183, 2048: 179},
}
"""{kernel: {keys that a query meets: bundles for 128 queries and 128 keys of one head}}; more keys cost as much as
2048, and the last kernel, which was not counted, at most as much as the one before."""


def kernel_name(kernel: str, keys: int) -> str:
    """Return the name by which a compiled program shows a kernel whose queries meet so many keys."""
    return f"attention_{kernel}_{keys}"


def kernel_cycles(name: str, scores: int) -> int | None:
    """Return the cycles of one call for so many scores (rows × heads × queries × keys); None for another kernel.

    Args:
      name: text that has a `kernel_name` in it.
      scores: their number.
    """
    found = re.search(r"attention_(forward|backward|backward_of_bias)_(\d+)", name)
    if found is None:
        return None
    table = BUNDLES[found[1]]
    nearest = min(table, key=lambda counted: abs(math.log(counted / int(found[2]))))
    return scores // TILE**2 * table[nearest]
