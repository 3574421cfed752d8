"""What a step asks of XLA's compiler beyond its defaults."""

from collections.abc import Mapping
from typing import Any

import jax
from absl import logging
from jax.sharding import Mesh

from bert_jax.config import ComputeConfig

OVERLAP = {
    "xla_enable_async_all_reduce": True,
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": True,
    "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
    "xla_tpu_enable_async_collective_fusion_while_loops": True,
    "xla_tpu_overlap_compute_collective_tc": True,
    # By default all sums are merged into one, which waits for the last gradient.
    "xla_jf_crs_combiner_threshold_in_bytes": str(2**20),
}
"""On TPUs, sums over chips that run in one fusion with a product (docs/planning.md, "Sums over chips")."""
UNKNOWN = "No such compile option"


def step_options(compute: ComputeConfig, mesh: Mesh) -> Mapping[str, bool | str]:
    """Return the options of the compiler for a training step on the devices of `mesh`."""
    overlapping = compute.overlap and mesh.size > 1 and mesh.devices.flat[0].platform == "tpu"
    return OVERLAP if overlapping else {}


def compile_with(
    lowered: jax.stages.Lowered, options: Mapping[str, Any], fallback: Mapping[str, Any] | None = None
) -> Any:
    """Compile a traced function with `options`, or with `fallback` and a warning if this compiler lacks one of them."""
    if not options:
        return lowered.compile()
    try:
        return lowered.compile(compiler_options=dict(options))
    except jax.errors.JaxRuntimeError as error:
        if UNKNOWN not in str(error):
            raise
        logging.warning(
            "gradients are summed over chips after the backward pass, not during it, because this compiler does not "
            "know an option (%s); --compute.overlap=False silences this warning",
            " ".join(str(error).split())[:200],
        )
        return lowered.compile(compiler_options=dict(fallback or {}) or None)
