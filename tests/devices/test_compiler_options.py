"""Options of the compiler: which steps get them, and a compiler that does not know one."""

import logging
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import ComputeConfig
from bert_jax.devices.compilation import OVERLAP, compile_with, step_options
from bert_jax.training import run
from bert_jax.training.run import PhaseSteps


def mesh_of(platform: str, count: int) -> types.SimpleNamespace:
    return types.SimpleNamespace(size=count, devices=np.array([types.SimpleNamespace(platform=platform)] * count))


def test_several_tpus_sum_beside_the_backward_pass_unless_they_should_not():
    found = {
        (platform, count): bool(step_options(ComputeConfig(), mesh_of(platform, count)))
        for platform in ("cpu", "gpu", "tpu")
        for count in (1, 4)
    }
    assert [key for key, given in found.items() if given] == [("tpu", 4)]
    assert step_options(ComputeConfig(overlap=False), mesh_of("tpu", 4)) == {}


def test_options_reach_the_compiler(tmp_path):
    lowered = jax.jit(lambda x: jnp.sin(x) + 1).lower(jnp.ones(3))
    compile_with(lowered, {"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_text": True})
    assert any("after_optimizations" in file.name for file in tmp_path.iterdir())


def test_a_compiler_without_them_compiles_without_them_and_says_so(caplog):
    lowered = jax.jit(lambda x: x + 1).lower(jnp.ones(3))
    with caplog.at_level(logging.WARNING):
        made = compile_with(lowered, {"xla_tpu_no_such_option": True})
    np.testing.assert_array_equal(made(jnp.ones(3)), 2)
    assert "'xla_tpu_no_such_option'" in caplog.text and "--compute.overlap=False" in caplog.text


def test_the_steps_of_a_run_are_compiled_with_them(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "step_options", lambda compute, mesh: {"xla_dump_to": str(tmp_path)})
    lowered = jax.jit(lambda state, batch: state + batch["x"])
    learner = types.SimpleNamespace(
        config=types.SimpleNamespace(compute=ComputeConfig()), mesh=None, frozen=(), train_step=lambda phase: lowered
    )
    step = PhaseSteps(learner).of(types.SimpleNamespace(index=0, batch_size=1))
    np.testing.assert_array_equal(step(jnp.ones(3), {"x": jnp.ones(3)}), 2)
    assert list(tmp_path.iterdir())


def test_every_other_failure_is_raised():
    def compile_(**_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 3 GiB")

    with pytest.raises(jax.errors.JaxRuntimeError, match="3 GiB"):
        compile_with(types.SimpleNamespace(compile=compile_), OVERLAP)
