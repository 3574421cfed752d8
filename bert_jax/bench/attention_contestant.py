"""A contestant in `bert-jax bench attention`: one kernel at one length, forward and backward, in its own process."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.bench.peer.serving import peak_memory, serve
from bert_jax.config import ComputeConfig
from bert_jax.config.json_form import from_dict
from bert_jax.devices.compilation_cache import use_compilation_cache
from bert_jax.devices.hardware import hardware
from bert_jax.devices.memory_shortage import memory_advice
from bert_jax.devices.software import commit, versions
from bert_jax.errors import UserError
from bert_jax.models.architecture import attention_in_jax
from bert_jax.models.kernels.choice import Shape, attention_kernel, attention_path, check_attention
from bert_jax.models.kernels.contract import AttentionMask

FITS = memory_advice(
    "attention", ("shorter --lengths", "fewer --tokens or --heads", "--dtype=bfloat16", "another one of --kernels")
)


@FITS
def prepare(job: dict[str, Any]) -> tuple[Callable[[int], object], dict[str, Any]]:
    """Return a function that computes attention and its gradients so many times, and facts about this process."""
    use_compilation_cache()
    compute, device = from_dict(ComputeConfig, job["compute"]), hardware()
    check_attention(compute, device.platform)
    dtype, rate = jnp.dtype(job["dtype"]), job["dropout"]
    batch, length, heads, size = job["shape"]
    window, first = job["window"], job["global_tokens"]
    shape = Shape(
        batch=batch,
        length=length,
        heads=heads,
        size=size,
        rate=rate,
        dtype=dtype,
        window=window,
        global_tokens=first,
    )
    kernel, random = attention_kernel(compute, attention_in_jax(compute)), np.random.default_rng(0)
    query, key, value = (jnp.asarray(random.standard_normal(job["shape"]), dtype) for _ in range(3))
    text = length - round(length * job["padding"])
    padding = jnp.broadcast_to((jnp.arange(length) < text).astype(jnp.int32), (batch, length))
    mask = AttentionMask(
        padding=padding, window=window, global_positions=jnp.arange(first, dtype=jnp.int32)[None] if first else None
    )

    def loss(inputs: Any, seed: int):
        query, key, value = inputs
        found, _ = kernel(query, key, value, mask, jax.random.key(seed) if rate else None, rate)
        return jnp.sum(found.astype(jnp.float32) ** 2)

    inputs, done = (query, key, value), 0
    step = jax.jit(jax.grad(loss)).lower(inputs, np.uint32(0)).compile()

    @FITS
    def work(units: int) -> None:
        nonlocal done
        gradients = None
        for _ in range(units):
            gradients = step(inputs, np.uint32(done))
            done += 1
        jax.block_until_ready(gradients)

    work(1)
    facts = {
        "path": attention_path(compute, device.platform, shape),
        "device": str(device),
        "peak_memory_bytes": peak_memory(),
        "temporary_bytes": None if (needed := step.memory_analysis()) is None else needed.temp_size_in_bytes,
        "versions": versions(),
        "commit": commit(),
    }
    return work, facts


if __name__ == "__main__":
    serve(prepare, UserError)
