"""Our contestant in `bert-jax bench finetune`: the step of fine-tuning, or `encode`, in a process of its own."""

import json
import pathlib
from typing import Any

import jax
import numpy as np

from bert_jax.bench.peer.serving import Refusal, peak_memory, serve
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.json_form import from_dict
from bert_jax.data.sequences.batching import TrainingBatches
from bert_jax.devices import sharding
from bert_jax.devices.compilation_cache import use_compilation_cache
from bert_jax.devices.hardware import hardware
from bert_jax.devices.software import commit, versions
from bert_jax.errors import UserError
from bert_jax.finetuning.programs import first_state, fitting_head, make_programs
from bert_jax.formats.opening import open_stored
from bert_jax.pretrained.loading import load
from bert_jax.tasks.task_data import read_task


def prepare(job: dict[str, Any]):
    """Return a function that does so many units of the work that the job names, and facts about this process."""
    use_compilation_cache()
    config = from_dict(FinetuneConfig, job["config"])
    try:
        work, facts = (training if job["work"] == "training" else encoding)(config, job)
    except UserError as error:
        raise Refusal(error) from None
    common = {"device": str(hardware()), "versions": versions(), "commit": commit()}
    return work, common | facts | {"peak_memory_bytes": peak_memory()}


def training(config: FinetuneConfig, job: dict[str, Any]):
    """Return a function that takes `steps_per_unit` steps for each unit, as `bert-jax finetune` takes them."""
    stored, mesh = open_stored(config.init_from), sharding.make_mesh(config.mesh, None)
    data = read_task(config, stored.model, stored.need_tokenizer())
    stored, _ = fitting_head(stored, data.head)
    programs = make_programs(config, stored.model, data.head, mesh)
    state, _ = first_state(config, stored, programs, np.uint32(config.seed))
    multiple = sharding.batch_parts(mesh) * config.micro_batches
    batches = TrainingBatches(
        data.train.features, config.batch_size, window=config.bucket_window, seed=config.seed, multiple=multiple
    )
    rate, seed, done = np.float32(config.learning_rate), np.uint32(config.seed), 0

    def steps(numbers) -> None:
        nonlocal state
        for number in numbers:
            batch = sharding.to_global(mesh, batches.batch(number), batches.rows)
            state, _ = programs.train_step(state, batch, rate, seed)
        jax.block_until_ready(state)

    def work(units: int) -> None:
        nonlocal done
        first, done = done, done + units * job["steps_per_unit"]
        steps(range(first, done))

    lengths: dict[int, int] = {}  # a batch of each length that is compiled
    for number in range(batches.steps_per_epoch):
        lengths.setdefault(batches.batch(number)["input_ids"].shape[-1], number)
    steps(lengths.values())
    return work, {"lengths": sorted(lengths)}


def encoding(config: FinetuneConfig, job: dict[str, Any]):
    """Return a function that encodes all texts once for each unit."""
    texts = json.loads(pathlib.Path(job["texts"]).read_text(encoding="utf-8"))
    model = load(config.init_from, compute=config.compute)

    def work(units: int) -> None:
        for _ in range(units):
            model.encode(texts, batch_size=config.batch_size, max_length=config.options.max_length, progress=False)

    work(1)
    return work, {"texts": len(texts)}


if __name__ == "__main__":
    serve(prepare)
