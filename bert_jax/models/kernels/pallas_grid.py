"""How the Pallas kernels of attention are run: their grid, and which block of each array a step of it gets."""

import functools
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.models.kernels.pallas_blocks import Blocks
from bert_jax.models.kernels.pallas_costs import kernel_name

VMEM_BYTES = 60 * 2**20  # of 64 MiB on v5p, 128 on v5e and v6e
ORDER = ("words", "reach", "query", "key", "value", "key_numbers", "query_numbers", "bias", "logarithms", "gradient")
"""Inputs as `pallas_blocks` takes them; "output" comes last."""


def run(
    kernel: Any,
    blocks: Blocks,
    interpret: bool,
    arrays: dict[str, jax.Array],
    outputs: dict[str, Any],
    products: int,
    scratch: Any = (),
) -> list[jax.Array]:
    """Run a kernel over its grid: rows, groups of heads and blocks of queries, or that of `backward_of_bias`."""
    steps, place = (blocks.batch, blocks.heads // blocks.together, blocks.length // blocks.queries), _same_place
    if "bias_gradient" in outputs:
        rows, heads = outputs["bias_gradient"].shape[:2]
        steps = (rows, heads, steps[2], blocks.batch // rows, blocks.heads // heads)
        place = functools.partial(_place_of_one_head, blocks)
    arrays = {name: arrays[name] for name in (*ORDER, "output") if name in arrays}
    scores = blocks.batch * blocks.heads * blocks.length * blocks.keys
    call = pl.pallas_call(
        functools.partial(kernel, blocks),
        grid=steps,
        in_specs=[_spec(blocks, name, array.shape, place) for name, array in arrays.items()],
        out_specs=[_spec(blocks, name, array.shape, place) for name, array in outputs.items()],
        out_shape=[jax.ShapeDtypeStruct(array.shape, array.dtype) for array in outputs.values()],
        scratch_shapes=scratch,
        cost_estimate=pl.CostEstimate(
            flops=2 * products * scores * blocks.size,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*arrays.values(), *outputs.values())),
            transcendentals=scores,
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel") + ("arbitrary",) * (len(steps) - 2),
            vmem_limit_bytes=VMEM_BYTES,
        ),
        interpret=interpret,
        name=kernel_name(kernel.__name__, blocks.keys, within_reach=blocks.reach is not None),
    )
    return call(*(array.reshape(-1) if name == "words" else array for name, array in arrays.items()))


def _same_place(row: Any, step: Any, part: Any) -> tuple[Any, ...]:
    return row, step, part


def _place_of_one_head(blocks: Blocks, i: Any, j: Any, part: Any, row: Any, head: Any) -> tuple[Any, ...]:
    return i + row, blocks.group_of(j + head), part


def _spec(blocks: Blocks, name: str, shape: tuple[int, ...], place: Any) -> pl.BlockSpec:
    """Return which block of the array `name` a step gets; `place` gives its row, group of heads and part of queries."""
    if name in ("words", "reach"):
        return pl.BlockSpec(memory_space=pltpu.SMEM)
    length, together, queries = blocks.length, blocks.together, blocks.queries
    if name == "bias_gradient":
        return pl.BlockSpec((1, 1, length, queries), lambda i, j, part, row, head: (i, j, 0, part))
    block, index = {
        "query": ((1, queries, together * blocks.size), lambda row, step, part: (row, part, step)),
        "key": ((1, length, together * blocks.size), lambda row, step, part: (row, 0, step)),
        "key_numbers": ((1, length, 1), lambda row, step, part: (row, 0, 0)),
        "query_numbers": ((1, 1, queries), lambda row, step, part: (row, 0, part)),
        "logarithms": ((1, together, 1, queries), lambda row, step, part: (row, step, 0, part)),
        "bias": (
            (1, together if shape[1] > 1 else 1, length, queries),
            lambda row, step, part: (row if shape[0] > 1 else 0, step if shape[1] > 1 else 0, 0, part),
        ),
    }[{"value": "key", "gradient": "query", "output": "query"}.get(name, name)]
    return pl.BlockSpec(block, lambda *step: index(*place(*step)))
