"""Our contestant in `bert-jax bench step`: the step of pre-training on batches from a file, in its own process."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bert_jax.bench.peer.serving import Refusal, peak_memory, serve
from bert_jax.config import Config, resolve_phases
from bert_jax.config.json_form import from_dict
from bert_jax.devices import sharding
from bert_jax.devices.compilation_cache import use_compilation_cache
from bert_jax.devices.hardware import hardware, idle_accelerator
from bert_jax.devices.software import commit, versions
from bert_jax.errors import UserError
from bert_jax.objectives.objective_choice import default_objective
from bert_jax.training.learner import Learner
from bert_jax.training.state import create_state


def prepare(job: dict[str, Any]) -> tuple[Callable[[int], object], dict[str, Any]]:
    """Return a function that takes so many training steps, and facts about this process."""
    check_platform(job["platform"])
    use_compilation_cache()
    config = from_dict(Config, job["config"])
    (phase,) = resolve_phases(config)
    with np.load(job["batches"], allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    count = len(arrays["input_ids"])
    batches = [{name: array[number] for name, array in arrays.items()} for number in range(count)]
    try:
        mesh = sharding.make_mesh(config.mesh, None)
        sharding.check_batch(config, mesh)
        learner = Learner.of(config, mesh, default_objective, hardware().memory_bytes)
    except UserError as error:
        raise Refusal(error) from None
    place = lambda number: sharding.to_global(mesh, batches[number % count], phase.batch_size)
    state, done = create_state(learner.objective.model, learner.optimizer, mesh, config.seed), 0
    wall, cpu = time.perf_counter(), time.process_time()
    step = learner.train_step(phase).lower(state, place(0)).compile()
    compiling = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    state, metrics = step(state, place(0))
    first_loss = float(metrics["loss"])

    def work(units: int) -> None:
        nonlocal state, done
        for _ in range(units):
            state, _ = step(state, place(done))
            done += 1
        jax.block_until_ready(state)

    platform = jax.default_backend()
    facts = {
        "platform": platform,
        "dtype": "float32" if config.compute.dtype == "auto" and platform == "cpu" else config.compute.dtype,
        "first_loss": first_loss,
        "compile_seconds": compiling,
        "peak_memory_bytes": peak_memory(),
        "device": str(hardware()),
        "idle_accelerator": idle_accelerator(),
        "versions": versions(),
        "commit": commit(),
    }
    return work, facts


def check_platform(platform: str) -> None:
    """Raise a Refusal unless JAX computes on `platform`; auto is any."""
    try:
        found = jax.default_backend()
    except RuntimeError as error:
        raise Refusal(f"platform={platform}: {error}") from None
    if platform not in ("auto", found):
        raise Refusal(
            f"platform={platform}, but JAX computes on {found} here; install jax with support for {platform} on a "
            "machine that has one, or leave --platform out"
        )


if __name__ == "__main__":
    serve(prepare)
