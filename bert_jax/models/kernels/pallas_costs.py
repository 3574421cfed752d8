"""What the Pallas kernels cost on a TPU, for plans: the compiler estimates no cycles of such kernels.

Basis: the instructions (VLIW bundles) that libtpu 0.0.51 schedules for v5e, counted in the final bundles that it writes
with LIBTPU_INIT_ARGS="--xla_jf_dump_to=DIR --xla_jf_dump_llo_text=true", for heads of 64 in bfloat16 with segments and
dropout of 0.1, on 2026-11-22. tests/models/test_kernel_choice.py (slow) counts them, with the start of each step of the
grid, which is not in this table. A bundle is issued each cycle. Stalls are not in it either; copies between chip and
memory run beside it. v5p has as many bundles (0.99 to 1.03 of these), v6e fewer (0.75 to 0.93). Never measured on a
TPU.
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


BUNDLES_WITHIN_REACH = {"forward": 161, "backward": 217, "backward_of_bias": 217}
"""The same where queries meet the keys in reach alone: libtpu 0.0.42.1 for v5e, on 2026-11-26, for 16 rows of 2,048 and
12 heads, 2 of them in a step, 256 queries, 512 keys and a window of 64; a tenth fewer with the 6 heads that a step then
has. Of the backward pass, what is done once for all queries of a row counts as often as it runs."""


def kernel_name(kernel: str, keys: int, within_reach: bool) -> str:
    """Return the name by which a compiled program shows a kernel whose queries meet so many keys."""
    return f"attention_{kernel}_{keys}{'_within_reach' * within_reach}"


def kernel_cycles(name: str, scores: int) -> int | None:
    """Return the cycles of one call for so many scores (rows × heads × queries × keys); None for another kernel.

    Args:
      name: text that has a `kernel_name` in it.
      scores: their number.
    """
    found = re.search(r"attention_(forward|backward|backward_of_bias)_(\d+)(_within_reach)?", name)
    if found is None:
        return None
    if found[3]:
        return scores // TILE**2 * BUNDLES_WITHIN_REACH[found[1]]
    table = BUNDLES[found[1]]
    nearest = min(table, key=lambda counted: abs(math.log(counted / int(found[2]))))
    return scores // TILE**2 * table[nearest]
