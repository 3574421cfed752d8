#!/usr/bin/env python3
"""Count the instructions of attention kernels on a TPU v5e: ours, and JAX's splash and flash attention.

    PYTHONPATH=build/libtpu python scripts/count_kernel_instructions.py 128 512 [--kernels pallas splash …]

Each number is a length. Every kernel is compiled, forward and backward, for a row of 12 heads of 64 with segments, in
bfloat16, by the TPU compiler (`make build/libtpu/.installed`); no TPU is needed. The compiler writes down which
instructions (VLIW bundles) it schedules for a step of a kernel's grid, one cycle each. Printed are those of all steps,
divided by the number of blocks of 128 queries and 128 keys of a head. Stalls are not counted, and neither are the
transposes around splash and flash attention, which want heads before positions. `pallas_dropout` drops a tenth; less
what the start of a step takes, it is the basis of `BUNDLES` in models/kernels/pallas_costs.py.
"""

import argparse
import dataclasses
import math
import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from bert_jax.planning.compilation import WITHOUT_A_TPU

os.environ.update(WITHOUT_A_TPU, JAX_PLATFORMS="cpu")

import jax
import jax.extend
import jax.numpy as jnp
from jax.experimental import topologies
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu import splash_attention as splash

from bert_jax.models.kernels import pallas
from bert_jax.models.kernels.contract import AttentionMask

HEADS, SIZE, TILE = 12, 64, 128
OF_A_KERNEL = re.compile(r"^\s*(\d+)\.00 scheduled bundles \(100\.00%\): .* custom-call\(", re.M)
"""What libtpu 0.0.42 writes about a kernel: all instructions are of one operation, a call."""
LONGEST_BLOCK = 512  # of splash and flash attention, whose own default is 128


def ours(query: jax.Array, key: jax.Array, value: jax.Array, numbers: jax.Array) -> jax.Array:
    return pallas.attention(query, key, value, AttentionMask(padding=numbers, segments=numbers))[0]


def ours_with_dropout(query: jax.Array, key: jax.Array, value: jax.Array, numbers: jax.Array) -> jax.Array:
    mask = AttentionMask(padding=numbers, segments=numbers)
    return pallas.attention(query, key, value, mask, jax.random.key(0), 0.1)[0]


def of_splash(query: jax.Array, key: jax.Array, value: jax.Array, numbers: jax.Array) -> jax.Array:
    length = query.shape[1]
    block = min(LONGEST_BLOCK, length)
    sizes = splash.BlockSizes(*[block] * 6, use_fused_bwd_kernel=True)
    mask = splash.MultiHeadMask([splash.FullMask((length, length))] * HEADS)
    attend = splash.make_splash_mha_single_device(mask, block_sizes=sizes)
    return jax.vmap(attend)(*map(_heads_first, (query, key, value)), splash.SegmentIds(numbers, numbers))


def of_flash(query: jax.Array, key: jax.Array, value: jax.Array, numbers: jax.Array) -> jax.Array:
    block = min(LONGEST_BLOCK, query.shape[1])
    names = [each.name for each in dataclasses.fields(flash.BlockSizes)]
    sizes = flash.BlockSizes(**dict.fromkeys(names, block) | {"block_b": 1})
    inputs = map(_heads_first, (query, key, value))
    return flash.flash_attention(*inputs, segment_ids=flash.SegmentIds(numbers, numbers), block_sizes=sizes)


def _heads_first(x: jax.Array) -> jax.Array:
    return jnp.swapaxes(x, 1, 2)


KERNELS = {"pallas": ours, "pallas_dropout": ours_with_dropout, "splash": of_splash, "flash": of_flash}


def main() -> None:
    """Print a line for each length and kernel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lengths", nargs="+", type=int, help="Tokens of a row.")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS), help="Kernels to count.")
    options = parser.parse_args()
    print("length  kernel          forward  backward", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        # Read when the first program is compiled.
        os.environ["LIBTPU_INIT_ARGS"] = f"--xla_jf_dump_to={directory} --xla_jf_dump_llo_text=true"
        for length in options.lengths:
            for name in options.kernels:
                forward, backward = instructions(KERNELS[name], length, pathlib.Path(directory))
                print(f"{length:6}  {name:14} {forward:8.0f} {backward:9.0f}", flush=True)


def instructions(attend: Callable[..., jax.Array], length: int, directory: pathlib.Path) -> tuple[float, float]:
    """Return the instructions of the forward and of the backward kernels for 128 queries and 128 keys of a head."""

    def layer(query: Any, key: Any, value: Any, numbers: Any, gradient: Any):
        output, backward = jax.vjp(lambda *inputs: attend(*inputs, numbers), query, key, value)
        return output, backward(gradient.reshape(output.shape))

    x = jax.ShapeDtypeStruct((1, length, HEADS, SIZE), jnp.bfloat16)
    numbers = jax.ShapeDtypeStruct((1, length), jnp.int32)
    before = set(directory.iterdir())
    chip = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices[0]
    place = jax.sharding.SingleDeviceSharding(chip)
    traced = jax.jit(layer, in_shardings=place, out_shardings=place).trace(x, x, x, numbers, x)
    traced.lower().compile()
    written = sorted(set(directory.glob("*schedule-analysis_final_bundles.txt")) - before)
    scheduled = [int(found[1]) for file in written if (found := OF_A_KERNEL.search(file.read_text()))]
    tiles = HEADS * (length / TILE) ** 2
    grids = _grids(traced.jaxpr.jaxpr)
    forward, *backward = (steps * count / tiles for steps, count in zip(grids, scheduled, strict=True))
    return forward, sum(backward)


def _grids(jaxpr: jax.extend.core.Jaxpr) -> Iterator[int]:
    """Yield the steps of the grid of every kernel, in the order in which the kernels run."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            yield math.prod(equation.params["grid_mapping"].grid)
            continue
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from _grids(inner)


if __name__ == "__main__":
    main()
