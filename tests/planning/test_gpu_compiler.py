"""The real compiler for NVIDIA GPUs on the real step and on our kernels, without a GPU.

It is that of JAX's plugin, which `make build/cuda/.installed` puts beside the environment.
"""

import dataclasses
import importlib
import os
import pathlib
import subprocess
import sys

import pytest
from processes import EXHAUSTIVE

from bert_jax.config import ComputeConfig, Config, PhaseConfig
from bert_jax.config.presets import model_config
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.models.costs import state_bytes
from bert_jax.tools.planning.compiler import plugin, resolved
from bert_jax.tools.planning.plan import plan_phase
from bert_jax.tools.planning.topology import MEMORY_SHARES, find_topology
from bert_jax.training.learner import USABLE

BESIDE = pathlib.Path(__file__).resolve().parents[2] / "build/cuda"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("kept_plans")]


@pytest.fixture(autouse=True)
def compiler(monkeypatch):
    """Have the plugin on the path of this process, which does not import it, and of those that it starts."""
    if BESIDE.is_dir():
        monkeypatch.syspath_prepend(str(BESIDE))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(BESIDE), os.environ.get("PYTHONPATH")])))
        importlib.invalidate_caches()
    if plugin() is None:
        pytest.skip("make build/cuda/.installed brings the compiler")


def planned(attention: str, rows: int = 8):
    topology = find_topology("gpu:h100:4")
    phases = (PhaseConfig(sequence_length=128, batch_size=rows * topology.chips),)
    model = dataclasses.replace(model_config("tiny"), attention_dropout=0.0 if attention == "cudnn" else 0.1)
    config = Config(model=model, compute=ComputeConfig(attention=attention), phases=phases)
    config = resolved(config, topology)
    return config, plan_phase(config, topology, 0, lambda stage: None)


@pytest.mark.parametrize("attention", ["triton", "cudnn", *(["xla"] if EXHAUSTIVE else [])])
def test_a_step_compiles_for_four_cards_and_agrees_with_the_closed_forms(attention):
    config, plan = planned(attention)
    state = state_bytes(bert_parameters(config.model), moments=2)
    assert plan.compiled and plan.fits and plan.memory is not None and plan.work is not None
    assert plan.memory.parameters == state.parameters and plan.memory.moments - state.moments == 4
    assert 0.5 * plan.closed_form_bytes < plan.memory.total < plan.closed_form_bytes / USABLE
    # Of the one layer that is computed as a whole, Triton's backward kernel has seven products in place of four: scores
    # are computed again twice, and the gradients of weights once; cuDNN computes scores again once.
    again = {"xla": 0, "triton": 3, "cudnn": 1}[attention] * 2 * (8 * 128 * 128 * 128)
    assert 0 <= again < 0.02 * plan.flops
    assert plan.work.flops - again == pytest.approx(plan.flops, rel=0.003)
    # Every gradient is summed once, in the type of the products.
    assert sum(each.moved for each in plan.collectives) == pytest.approx(plan.needed.within_slice, rel=0.03)
    assert plan.optimistic is not None and plan.pessimistic is not None
    assert plan.pessimistic.utilization < plan.optimistic.utilization < 1


def test_a_step_that_does_not_fit_says_so(monkeypatch):
    """The compiler itself takes any size."""
    monkeypatch.setenv(MEMORY_SHARES[0], "0.001")
    plan = planned("xla")[1]
    assert not plan.fits and plan.shortage is not None and plan.shortage.available == 80 * 10**6 < plan.shortage.needed


COMPILE = r"""
import dataclasses, sys
import jax
import jax.numpy as jnp
from bert_jax.config import MeshConfig
from bert_jax.devices import sharding
from bert_jax.models.kernels import gpu as triton
from bert_jax.models.kernels.plain import AttentionMask
from bert_jax.models.stack import REMAT_POLICIES
from bert_jax.tools.planning import compiler as gpu_compiler
from bert_jax.tools.planning.topology import GPUS

mesh = sharding.make_mesh(MeshConfig(), list(gpu_compiler.described_cards(GPUS[sys.argv[1]], 1)))
place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
for batch, length, heads, size, dtype, restricted in eval_shapes:
    def gradients(query, key, value, padding, segments, window, bias, random):
        def loss(query, key, value, bias):
            mask = AttentionMask(padding=padding, segments=segments)
            if restricted:
                given = {"window": window, "bias": bias} if restricted == "arrays" else {"window": restricted}
                mask = dataclasses.replace(mask, **given)
            return jnp.sum(triton.attention(query, key, value, mask, random, 0.1)[0].astype(jnp.float32))
        saved = jax.checkpoint(loss, policy=REMAT_POLICIES["sel"])
        return jax.grad(saved, (0, 1, 2, 3))(query, key, value, bias)
    of = lambda shape, dtype: jax.ShapeDtypeStruct(shape, dtype)
    x, rows = of((batch, length, heads, size), jnp.dtype(dtype)), of((batch, length), jnp.int32)
    arguments = (x, x, x, rows, rows, of((), jnp.int32), of((1, heads, length, length), jnp.float32),
                 jax.eval_shape(lambda: jax.random.key(0)))
    traced = jax.jit(sharding.under(mesh, gradients), in_shardings=place, out_shardings=place).trace(*arguments)
    program = traced.lower(lowering_platforms=("cuda",)).compile(compiler_options=gpu_compiler.FLAGS)
    calls = program.as_text().count('custom_call_target="__gpu$xla.gpu.triton"')
    print(batch, length, heads, size, dtype, "kernels", calls)
"""
SHAPES = (
    *((16, 512, 12, 64, "bfloat16", None), (2, 128, 4, 32, "bfloat16", "arrays"), (1, 8192, 2, 64, "bfloat16", 64)),
    *((2, 48, 2, 16, "float32", None), (2, 256, 2, 128, "bfloat16", None), (2, 128, 2, 128, "float32", "arrays")),
)


@pytest.mark.parametrize("card", ["h100", *(["a100"] if EXHAUSTIVE else [])])
def test_kernels_compile(card):
    """By Triton and by the assembler for GPUs, in a process of its own.

    Forward, once though all is recomputed that is not named, and backward; for the gradient of a bias one more.
    """
    script = COMPILE.replace("eval_shapes", repr(SHAPES))
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script, card], env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [
        f"{batch} {length} {heads} {size} {dtype} kernels {2 + (restricted == 'arrays')}"
        for batch, length, heads, size, dtype, restricted in SHAPES
    ]
