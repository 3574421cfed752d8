"""Run bert_jax as one contestant of a benchmark, in its own process: `python -m bert_jax.tools.bench.contestants step`.

Each function prepares the work of one benchmark and imports what that takes, since what a process has loaded counts in
its memory. `load` and `answer` are no contestants but programs that one starts: `… contestants load MODEL`.
"""

import functools
import json
import math
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bert_jax.config import (
    ComputeConfig,
    Config,
    EmbeddingConfig,
    Phase,
    PrepareConfig,
    resolve_phases,
    resolve_stages,
)
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.options import from_dict
from bert_jax.config.tasks import VectorOptions
from bert_jax.errors import UserError
from bert_jax.tools.bench.peer.serving import TEXT, Prepared, peak_memory, print_answering, print_loading, serve

if TYPE_CHECKING:
    from bert_jax.devices.hardware import Hardware
    from bert_jax.models.kernels.plain import Call
    from bert_jax.training.learner import Learner
    from bert_jax.training.state import TrainState


BEGAN = time.perf_counter()  # before the imports, which `load` measures


EXAMINED = 8  # batches by which `data` tells the share of tokens


def main(words: list[str]) -> None:
    """Be the contestant that the first word names, or load a model, or answer with one."""
    if words[0] in LOADING:
        try:
            LOADING[words[0]](words[1])
        except UserError as error:
            sys.exit(str(error))
    else:
        serve(KINDS[words[0]], UserError)


def step(job: dict[str, Any]) -> Prepared:
    """Prepare steps of pre-training on batches from a file."""
    import jax
    import numpy as np

    from bert_jax.devices import sharding
    from bert_jax.devices.hardware import idle_accelerator, memory_advice
    from bert_jax.models.architecture import computation_dtype
    from bert_jax.models.kernels.choice import check_attention
    from bert_jax.pretraining import make_learner
    from bert_jax.training.learner import attention_of, phase_advice

    device = _device()
    _check_platform(job["platform"], device.platform)
    config = from_dict(Config, job["config"])
    (phase,) = resolve_phases(config)
    with np.load(job["batches"], allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    count = len(arrays["input_ids"])
    batches = [{name: array[number] for name, array in arrays.items()} for number in range(count)]
    place = lambda number: sharding.to_global(mesh, batches[number % count], phase.batch_size)
    wall, cpu = time.perf_counter(), time.process_time()
    mesh = sharding.make_mesh(config.mesh, None)
    sharding.check_batch(resolve_stages(config), config.phases, mesh)
    check_attention(config.compute, device.platform)
    learner = make_learner(config, mesh, memory_bytes=device.memory_bytes)
    fits = memory_advice("the step", phase_advice(phase, mesh.shape, learner.remat(phase)))
    take, state, first_loss = fits(first_step)(learner, phase, place)
    compiling, done = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}, 0

    @fits
    def work(units: int) -> None:
        nonlocal state, done
        for _ in range(units):
            state, _ = take(state, place(done))
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
        "idle_accelerator": idle_accelerator(),
    }
    return work, facts | _facts(device)


def first_step(
    learner: "Learner", phase: Phase, place: Callable[[int], dict[str, Any]]
) -> tuple[Callable[..., Any], "TrainState", float]:
    """Return the compiled step, the state after the first one, and its loss."""
    from bert_jax.devices.compilation import compile_with, step_options
    from bert_jax.devices.hardware import memory_advice
    from bert_jax.training.learner import state_advice
    from bert_jax.training.state import create_state

    with memory_advice("the state", state_advice(learner.mesh.shape)):
        state = create_state(learner.objective.model, learner.optimizer, learner.mesh, learner.seed)
    lowered = learner.train_step(phase).lower(state, place(0))
    compiled = compile_with(lowered, step_options(learner.network.compute, learner.mesh))
    state, metrics = compiled(state, place(0))
    return compiled, state, float(metrics["loss"])


def _check_platform(platform: str, found: str) -> None:
    """Raise a UserError unless JAX, which computes on `found`, does so on `platform`; auto is any."""
    if platform not in ("auto", found):
        raise UserError(
            f"platform={platform}, but JAX computes on {found} here; install jax with support for {platform} on a "
            "machine that has one, or leave --platform out"
        )


def data(job: dict[str, Any]) -> Prepared:
    """Prepare batches as the loop of pre-training gets them from its loader."""
    import numpy as np

    from bert_jax.config.checks import check_loader
    from bert_jax.data.pipeline import batches
    from bert_jax.training_data import open_corpus

    config = from_dict(Config, job["config"])
    (phase,) = resolve_phases(config)
    check_loader(config.data.loader)
    (examples,) = open_corpus(config).training
    rows, position = np.arange(phase.batch_size), 0
    first = [examples.batch(number * phase.batch_size + rows) for number in range(EXAMINED)]
    tokens = float(np.mean([np.count_nonzero(batch["attention_mask"]) for batch in first]))

    def work(units: int) -> None:
        nonlocal position
        loader, prefetch = config.data.loader, config.data.prefetch
        for _ in batches(examples, position, phase.batch_size, rows, units, loader=loader, prefetch=prefetch):
            pass
        position += units * phase.batch_size

    return work, {"sequences": phase.batch_size, "tokens": tokens, "token_share": tokens / phase.tokens_per_step}


def prepare(job: dict[str, Any]) -> Prepared:
    """Prepare the whole command `bert-jax prepare` with one worker, or its tokenizer alone."""
    from bert_jax.data.preparation.prepare import run_prepare
    from bert_jax.files import lines_of, read_text
    from bert_jax.tokenization.tokenizer import load_tokenizer

    config = from_dict(PrepareConfig, job["config"])
    tokenizer = load_tokenizer(config.vocab, config.lowercase)
    lines = lines_of(read_text(config.input))

    def tokenize(units: int) -> None:
        for _ in range(units):
            for begin in range(0, len(lines), job["lines"]):
                tokenizer.encode_batch(lines[begin : begin + job["lines"]])

    def whole(units: int) -> None:
        for _ in range(units):
            place = tempfile.mkdtemp(dir=job["directory"])
            run_prepare(from_dict(PrepareConfig, {**job["config"], "output": f"{place}/store"}))
            shutil.rmtree(place)

    return (whole if job["whole"] else tokenize), {"peak_memory_bytes": peak_memory()}


def finetune(job: dict[str, Any]) -> Prepared:
    """Prepare steps of fine-tuning, or the encoding of texts as states or as vectors, whichever the job names."""
    from bert_jax.models.kernels.choice import check_attention

    config, device = from_dict(FinetuneConfig, job["config"]), _device()
    check_attention(config.compute, device.platform)
    work, facts = (training if job["work"] == "training" else encoding)(config, job)
    return work, facts | _facts(device)


def training(config: FinetuneConfig, job: dict[str, Any]) -> Prepared:
    """Prepare `steps_per_unit` steps for each unit, as `bert-jax finetune` takes them."""
    import jax
    import numpy as np

    from bert_jax.devices import sharding
    from bert_jax.devices.hardware import memory_advice
    from bert_jax.finetuning.programs import first_state, fitting_head, make_programs, task_loss
    from bert_jax.finetuning.run import batch_advice, placed_batch, training_batches, with_packing
    from bert_jax.formats.opening import open_stored
    from bert_jax.tasks.task_data import read_task
    from bert_jax.training.learner import state_advice

    stored, mesh = open_stored(config.init_from), sharding.make_mesh(config.mesh, None)
    task = read_task(config, stored.model, stored.need_tokenizer())
    stored, _ = fitting_head(stored, task.head)
    loss = task_loss(config.loss, task.head, task.train.features)
    features = task.train.features
    programs = make_programs(
        config,
        stored.model,
        task.head,
        mesh,
        unread=stored.unread,
        loss=loss,
        stored=stored,
        sequences=features.per_example,
    )
    with memory_advice("the state", state_advice(mesh.shape)):
        state, _ = first_state(config, stored, programs, np.uint32(config.seed))
    config = with_packing(config, features, programs)
    batches = training_batches(config, features, programs)
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


def encoding(config: FinetuneConfig, job: dict[str, Any]) -> Prepared:
    """Prepare the encoding of all texts, once for each unit: the states of all tokens, or a vector per text."""
    from bert_jax.pretrained.model import load

    texts = json.loads(pathlib.Path(job["texts"]).read_text(encoding="utf-8"))
    model = load(config.init_from, compute=config.compute)
    form = config.options.embedding if isinstance(config.options, VectorOptions) else EmbeddingConfig()
    embed = functools.partial(model.embed, pooling=form.pooling, normalize=form.normalize)
    function = model.encode if job["work"] == "encoding" else embed
    encode = functools.partial(function, batch_size=config.batch_size, max_length=config.max_length, progress=False)

    def work(units: int) -> None:
        for _ in range(units):
            encode(texts)

    work(1)
    return work, {"texts": len(texts)}


def attention(job: dict[str, Any]) -> Prepared:
    """Prepare one kernel at one length, forward and backward."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from bert_jax.devices.hardware import memory_advice
    from bert_jax.models.kernels.choice import attention_path, check_attention
    from bert_jax.models.kernels.plain import Call

    compute, device = from_dict(ComputeConfig, job["compute"]), _device()
    check_attention(compute, device.platform)
    batch, length, heads, size = job["shape"]
    call = Call(
        rows=batch,
        length=length,
        heads=heads,
        size=size,
        rate=job["dropout"],
        dtype=jnp.dtype(job["dtype"]),
        window=job["window"],
        global_tokens=job["global_tokens"],
    )
    shorter = ("shorter --lengths", "fewer --tokens or --heads", "--dtype=bfloat16", "another one of --kernels")
    fits, done = memory_advice("attention", shorter), 0
    gradients, arrays = fits(_attention_gradients)(compute, call, job["padding"])

    @fits
    def work(units: int) -> None:
        nonlocal done
        found = None
        for _ in range(units):
            found = gradients(arrays, np.uint32(done))
            done += 1
        jax.block_until_ready(found)

    work(1)
    needed = gradients.memory_analysis()
    facts = {
        "path": attention_path(compute, device.platform, call),
        "temporary_bytes": None if needed is None else needed.temp_size_in_bytes,
    }
    return work, facts | _facts(device)


def _attention_gradients(compute: ComputeConfig, call: "Call", padding: float) -> tuple[Any, tuple[Any, ...]]:
    """Return the compiled gradients of a kernel, of three arrays and a seed, and arrays: query, key and value."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from bert_jax.models.architecture import attention_in_jax
    from bert_jax.models.kernels.choice import attention_kernel
    from bert_jax.models.kernels.plain import AttentionMask

    kernel, random = attention_kernel(compute, attention_in_jax(compute)), np.random.default_rng(0)
    batch, length, first = call.rows, call.length, call.global_tokens
    sizes = (batch, length, call.heads, call.size)
    query, key, value = (jnp.asarray(random.standard_normal(sizes), call.dtype) for _ in range(3))
    text = length - round(length * padding)
    mask = AttentionMask(
        padding=jnp.broadcast_to((jnp.arange(length) < text).astype(jnp.int32), (batch, length)),
        window=call.window,
        global_positions=jnp.arange(first, dtype=jnp.int32)[None] if first else None,
    )

    def loss(inputs: Any, seed: int):
        query, key, value = inputs
        found, _ = kernel(query, key, value, mask, jax.random.key(seed) if call.rate else None, call.rate)
        return jnp.sum(found.astype(jnp.float32) ** 2)

    inputs = (query, key, value)
    return jax.jit(jax.grad(loss)).lower(inputs, np.uint32(0)).compile(), inputs


def load_once(path: str) -> None:
    """Load the model in `path` with `bert_jax.load`, read every parameter once, and print what that took."""
    import jax
    import numpy as np

    from bert_jax.devices.hardware import all_devices
    from bert_jax.pretrained.model import load

    all_devices()
    print_loading(
        BEGAN,
        lambda: jax.block_until_ready(load(path).params),
        lambda params: sum(float(np.asarray(leaf).sum()) for leaf in jax.tree.leaves(params)),
    )


def answer_once(path: str) -> None:
    """Load the model in `path` with `bert_jax.load`, make the vector of one text, and print what that took."""
    from bert_jax.pretrained.model import load

    print_answering(BEGAN, lambda: load(path), lambda model: model.embed([TEXT]))


def _device() -> "Hardware":
    """Return the device of this process, which finds compiled programs where commands do."""
    from bert_jax.devices.compilation import use_compilation_cache
    from bert_jax.devices.hardware import hardware

    use_compilation_cache()
    return hardware()


def _facts(device: "Hardware") -> dict[str, Any]:
    """Return the facts about every process that computes with JAX."""
    from bert_jax.devices.hosts import commit, versions

    return {
        "device": str(device),
        "peak_memory_bytes": peak_memory(),
        "versions": versions(),
        "commit": commit(),
    }


LOADING = {"load": load_once, "answer": answer_once}
KINDS = {"step": step, "data": data, "prepare": prepare, "finetune": finetune, "attention": attention}

if __name__ == "__main__":
    main(sys.argv[1:])
