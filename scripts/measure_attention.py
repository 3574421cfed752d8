"""Predict what one self-attention layer costs on a TPU v5e, by plain JAX and by the Pallas kernels.

    PYTHONPATH=build/libtpu python scripts/measure_attention.py 16x512x12x64 64x128x12x64

Each argument is ROWS x TOKENS x HEADS x WIDTH. The layer with its projections, forward and backward, with dropout 0.1
in bfloat16, is compiled by the TPU compiler (`make build/libtpu/.installed`); no TPU is needed. Two times are printed,
as in docs/planning.md: the sum of the compiler's cycles, to which those of the kernels are added (see
models/kernels/pallas_costs.py), and a roofline.
"""

import os
import sys

from bert_jax.planning.compilation import WITHOUT_A_TPU

os.environ.update(WITHOUT_A_TPU, JAX_PLATFORMS="cpu")

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental import topologies

from bert_jax.config import ModelConfig
from bert_jax.devices.hardware import peak_flops
from bert_jax.models.attention import SelfAttention
from bert_jax.models.kernels import pallas, xla
from bert_jax.models.kernels.contract import AttentionKernel, AttentionMask
from bert_jax.planning.hlo import parse_program
from bert_jax.planning.roofline import work_of
from bert_jax.planning.topology import TPUS

V5E = TPUS["v5e"]


def compiled(rows: int, tokens: int, heads: int, width: int, attend: AttentionKernel) -> jax.stages.Compiled:
    """Compile a layer and its gradient for one v5e chip."""
    config = ModelConfig(hidden_size=heads * width, num_heads=heads, max_position_embeddings=tokens)
    make = lambda: SelfAttention(config, jax.random.key(0))
    graph, params = nnx.graphdef(jax.eval_shape(make)), nnx.to_pure_dict(nnx.state(jax.eval_shape(make)))

    def layer(params, x, padding, key, gradient):
        def output(params, x):
            return nnx.merge(graph, params)(x, AttentionMask(padding=padding), key, attend, False)[0]

        found, backward = jax.vjp(output, params, x)
        return found, backward(gradient)

    chip = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices[0]
    place = jax.sharding.SingleDeviceSharding(chip)
    x = jax.ShapeDtypeStruct((rows, tokens, heads * width), jnp.bfloat16)
    padding = jax.ShapeDtypeStruct((rows, tokens), jnp.int32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return jax.jit(layer, in_shardings=place, out_shardings=place).lower(params, x, padding, key, x).compile()


def main(shapes: list[str]) -> None:
    peak, clock = peak_flops(V5E.kind), V5E.clock
    assert peak is not None and clock is not None, "both are known of every TPU"
    print("shape           kernel   cycles µs  roofline µs  temporaries MiB")
    for shape in shapes:
        for name, attend in (("xla", xla.attention), ("pallas", pallas.attention)):
            rows, tokens, heads, width = (int(size) for size in shape.split("x"))
            program = compiled(rows, tokens, heads, width, attend)
            work = work_of(parse_program(program.as_text()), peak, V5E.memory_bandwidth)
            temporaries = program.memory_analysis().temp_size_in_bytes / 2**20
            cycles = 1e6 * work.cycles / clock
            print(
                f"{shape:15} {name:8} {cycles:9.0f} {1e6 * work.roofline_seconds:12.0f} {temporaries:16.0f}", flush=True
            )


if __name__ == "__main__":
    main(sys.argv[1:])
