"""What is said where memory runs out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import Config, PhaseConfig, resolve_phases
from bert_jax.devices.hardware import memory_advice, memory_error, shortage_of
from bert_jax.errors import UserError
from bert_jax.training.learner import phase_advice, state_advice
from bert_jax.training.state import created

MESH = {"slice": 1, "data": 4, "fsdp": 1, "tensor": 1}


def test_an_allocation_that_fails_is_answered_with_what_helps():
    """The message is that of this machine's own allocator."""
    (phase,) = resolve_phases(Config(phases=(PhaseConfig(batch_size=64),)))
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(jax.jit(lambda: jnp.ones((1 << 46,)) * 2.0)())
    answer = memory_error(raised.value, "phase 0", phase_advice(phase, MESH, "none"))
    assert isinstance(answer, UserError) and "\n" not in str(answer)
    assert str(answer).startswith("phase 0 does not fit into the memory of a device (")
    for option in (
        "--compute.remat=sel or full",
        "--mesh.fsdp=4",
        "--phases.0.micro_batches=2",
        "--phases.0.batch_size",
    ):
        assert option in str(answer)


def test_a_computation_that_a_cpu_had_begun_is_answered_too():
    said = "INTERNAL: Error dispatching computation: Out of memory allocating 70368744178432 bytes."
    answer = memory_error(RuntimeError(said), "the step", ["less"])
    assert isinstance(answer, UserError) and f"({said}); what helps: less" in str(answer)


def test_a_state_that_does_not_fit_is_an_error_and_not_waited_for():
    """Reading `small`, which has its memory, would not return."""
    initialize = jax.jit(lambda seed: {"small": jnp.zeros(()), "large": jnp.ones((1 << 42,)) * seed})
    with pytest.raises(jax.errors.JaxRuntimeError, match="Out of memory"):
        created(initialize, np.float32(1))


def test_what_helps_a_state_is_that_it_is_split_or_smaller():
    assert state_advice(MESH)[0].startswith("--mesh.data=1 --mesh.fsdp=4: ") and "a smaller model" in state_advice(MESH)
    assert state_advice({**MESH, "data": 1, "fsdp": 4})[0] == "a smaller model"
    assert not any("batch" in remedy for remedy in state_advice(MESH))


def test_the_figures_of_the_tpu_compiler_are_in_the_answer():
    said = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 18.92G of 15.75G hbm. Exceeded by 3.17G."
    answer = memory_error(RuntimeError(said), "phase 1", ["less"])
    assert "(the program needs 18.92 GiB, 15.75 GiB are there); what helps: less" in str(answer)


def test_other_errors_stay_what_they_are():
    error = RuntimeError("INTERNAL: something else")
    assert memory_error(error, "phase 0", []) is error


def test_only_a_lack_of_memory_is_answered_within_a_block():
    with (
        pytest.raises(UserError, match=r"^a batch of 9 texts does not .* what helps: fewer$"),
        memory_advice("a batch of 9 texts", ["fewer"]),
    ):
        jax.block_until_ready(jax.jit(lambda: jnp.ones((1 << 46,)) * 2.0)())
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), memory_advice("a batch", []):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")


@pytest.mark.parametrize(
    "message, needed, available",
    [
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (50.43G) exceeds available HBM (15.75G). HLO module: jit_train_step.",
            50.43,
            15.75,
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 18.90G of 15.75G hbm. Exceeded hbm "
            "capacity by 3.15G.",
            18.9,
            15.75,
        ),
    ],
)
def test_what_is_missing(message, needed, available):
    shortage = shortage_of(message)
    assert shortage.needed == int(needed * 2**30) and shortage.available == int(available * 2**30)


def test_an_unknown_message_is_shown():
    assert shortage_of("RESOURCE_EXHAUSTED: something new\nand more").what == "RESOURCE_EXHAUSTED: something new"
