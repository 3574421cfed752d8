"""Our contestant in `bert-jax bench step`: the step of pre-training on batches from a file, in its own process."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bert_jax.bench.peer.serving import peak_memory, serve
from bert_jax.config import Config, Phase, resolve_phases
from bert_jax.config.json_form import from_dict
from bert_jax.devices import sharding
from bert_jax.devices.compilation_cache import use_compilation_cache
from bert_jax.devices.compiler_options import compile_with, step_options
from bert_jax.devices.hardware import hardware, idle_accelerator
from bert_jax.devices.memory_shortage import memory_advice
from bert_jax.devices.software import commit, versions
from bert_jax.errors import UserError
from bert_jax.models.architecture import computation_dtype
from bert_jax.models.kernels.choice import check_attention
from bert_jax.objectives.objective_choice import default_objective
from bert_jax.planning.advice import phase_advice, state_advice
from bert_jax.training.attention_used import attention_of
from bert_jax.training.learner import Learner
from bert_jax.training.state import TrainState, create_state


def prepare(job: dict[str, Any]) -> tuple[Callable[[int], object], dict[str, Any]]:
    """Return a function that takes so many training steps, and facts about this process."""
    use_compilation_cache()
    device = hardware()
    check_platform(job["platform"], device.platform)
    config = from_dict(Config, job["config"])
    (phase,) = resolve_phases(config)
    with np.load(job["batches"], allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    count = len(arrays["input_ids"])
    batches = [{name: array[number] for name, array in arrays.items()} for number in range(count)]
    place = lambda number: sharding.to_global(mesh, batches[number % count], phase.batch_size)
    wall, cpu = time.perf_counter(), time.process_time()
    mesh = sharding.make_mesh(config.mesh, None)
    sharding.check_batch(config, mesh)
    check_attention(config.compute, device.platform)
    learner = Learner.of(config, mesh, default_objective, device.memory_bytes)
    fits = memory_advice("the step", phase_advice(phase, mesh.shape, learner.remat(phase)))
    step, state, first_loss = fits(first_step)(learner, phase, place)
    compiling, done = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}, 0

    @fits
    def work(units: int) -> None:
        nonlocal state, done
        for _ in range(units):
            state, _ = step(state, place(done))
            done += 1
        jax.block_until_ready(state)

    facts = {
        "platform": device.platform,
        "dtype": computation_dtype(config.compute).name,
        "attention": attention_of(
            config.model, config.compute, mesh, phase.batch_size, phase.sequence_length, phase.max_texts
        ),
        "remat": learner.remat(phase),
        "packed": phase.packed,
        "first_loss": first_loss,
        "compile_seconds": compiling,
        "peak_memory_bytes": peak_memory(),
        "device": str(device),
        "idle_accelerator": idle_accelerator(),
        "versions": versions(),
        "commit": commit(),
    }
    return work, facts


def first_step(
    learner: Learner, phase: Phase, place: Callable[[int], dict[str, jax.Array]]
) -> tuple[Callable[..., Any], TrainState, float]:
    """Return the compiled step, the state after the first one, and its loss."""
    with memory_advice("the state", state_advice(learner.mesh.shape)):
        state = create_state(learner.objective.model, learner.optimizer, learner.mesh, learner.config.seed)
    lowered = learner.train_step(phase).lower(state, place(0))
    step = compile_with(lowered, step_options(learner.config.compute, learner.mesh))
    state, metrics = step(state, place(0))
    return step, state, float(metrics["loss"])


def check_platform(platform: str, found: str) -> None:
    """Raise a UserError unless JAX, which computes on `found`, does so on `platform`; auto is any."""
    if platform not in ("auto", found):
        raise UserError(
            f"platform={platform}, but JAX computes on {found} here; install jax with support for {platform} on a "
            "machine that has one, or leave --platform out"
        )


if __name__ == "__main__":
    serve(prepare, UserError)
