"""Our contestant in `bert-jax bench finetune`: the step of fine-tuning, or `encode`, in a process of its own."""

import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bert_jax.bench.peer.serving import peak_memory, serve
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.json_form import from_dict
from bert_jax.devices import sharding
from bert_jax.devices.compilation_cache import use_compilation_cache
from bert_jax.devices.hardware import hardware
from bert_jax.devices.memory_shortage import memory_advice
from bert_jax.devices.software import commit, versions
from bert_jax.errors import UserError
from bert_jax.finetuning.programs import first_state, fitting_head, make_programs
from bert_jax.finetuning.run_batches import placed_batch, training_batches
from bert_jax.finetuning.training import batch_advice
from bert_jax.formats.opening import open_stored
from bert_jax.models.kernels.choice import check_attention
from bert_jax.planning.advice import state_advice
from bert_jax.pretrained.loading import load
from bert_jax.tasks.task_data import read_task


def prepare(job: dict[str, Any]) -> tuple[Callable[[int], object], dict[str, Any]]:
    """Return a function that does so many units of the work that the job names, and facts about this process."""
    use_compilation_cache()
    config = from_dict(FinetuneConfig, job["config"])
    device = hardware()
    check_attention(config.compute, device.platform)
    work, facts = (training if job["work"] == "training" else encoding)(config, job)
    common = {"device": str(device), "versions": versions(), "commit": commit()}
    return work, common | facts | {"peak_memory_bytes": peak_memory()}


def training(config: FinetuneConfig, job: dict[str, Any]) -> tuple[Callable[[int], object], dict[str, Any]]:
    """Return a function that takes `steps_per_unit` steps for each unit, as `bert-jax finetune` takes them."""
    stored, mesh = open_stored(config.init_from), sharding.make_mesh(config.mesh, None)
    data = read_task(config, stored.model, stored.need_tokenizer())
    stored, _ = fitting_head(stored, data.head)
    programs = make_programs(config, stored.model, data.head, mesh)
    with memory_advice("the state", state_advice(mesh.shape)):
        state, _ = first_state(config, stored, programs, np.uint32(config.seed))
    features = data.train.features
    batches = training_batches(config, features, programs, batch_size=config.batch_size, seed=config.seed)
    rate, seed, done = np.float32(config.learning_rate), np.uint32(config.seed), 0

    @memory_advice("the step", batch_advice(config, programs, config.batch_size))
    def steps(numbers: Any) -> None:
        nonlocal state
        for number in numbers:
            state, _ = programs.train_step(state, placed_batch(batches.batch(number), mesh), rate, seed)
        jax.block_until_ready(state)

    def work(units: int) -> None:
        nonlocal done
        first, done = done, done + units * job["steps_per_unit"]
        steps(range(first, done))

    shapes: dict[tuple[int, ...], int] = {}  # a batch of each shape that is compiled
    positions = 0
    for number in range(batches.steps_per_epoch):
        shape = batches.batch(number)["input_ids"].shape
        shapes.setdefault(shape, number)
        positions += math.prod(shape)
    steps(shapes.values())
    return work, {"shapes": sorted(shapes), "token_share": float(batches.lengths.sum() / positions)}


def encoding(config: FinetuneConfig, job: dict[str, Any]) -> tuple[Callable[[int], object], dict[str, Any]]:
    """Return a function that encodes all texts once for each unit."""
    texts = json.loads(pathlib.Path(job["texts"]).read_text(encoding="utf-8"))
    model = load(config.init_from, compute=config.compute)

    def work(units: int) -> None:
        for _ in range(units):
            model.encode(texts, batch_size=config.batch_size, max_length=config.options.max_length, progress=False)

    work(1)
    return work, {"texts": len(texts)}


if __name__ == "__main__":
    serve(prepare, UserError)
