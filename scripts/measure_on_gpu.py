"""Measure one NVIDIA GPU in a few minutes: steps, kernels and losses, next to torch, to the CPU and to predictions.

    python scripts/measure_on_gpu.py DIRECTORY --store=STORE --seconds=420

writes DIRECTORY/measured.json again after every measurement, so that a run that is cut off keeps what it has, and says
what it does. Everything is traced first and compiled in all threads at once, while torch compiles in processes of its
own; then, with nothing else running, our step and torch's take turns. On an H200 with 16 cores, eleven steps, torch at
three shapes and twelve families took 205 s, most of it for compiling and for tuning products on the card; what is not
compiled after half of the time is left out. So name steps with --only, and set
XLA_FLAGS=--xla_gpu_enable_triton_gemm=false, which leaves less to be tuned.

`--losses` computes the first losses of every family on the CPU, with which those of a GPU are compared:

    JAX_PLATFORMS=cpu python scripts/measure_on_gpu.py docs/gpu --losses
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import gc
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from train_on_gpu import RECIPE

from bert_jax.config import ComputeConfig, Config, resolve_phases
from bert_jax.console import load_config
from bert_jax.devices import sharding
from bert_jax.devices.compilation import compile_with, step_options
from bert_jax.devices.hardware import hardware
from bert_jax.devices.hosts import commit, versions
from bert_jax.models.architecture import attention_in_jax
from bert_jax.models.kernels import gpu, plain
from bert_jax.models.kernels.choice import attention_kernel
from bert_jax.models.kernels.gpu import Tiling
from bert_jax.pretraining import make_learner
from bert_jax.tools.bench.step import BatchFiles, peer_job, with_vocabulary
from bert_jax.tools.bench.turns import Contestant, Waiting, load_average, machine, peer_program, varied
from bert_jax.training.learner import Learner, attention_of
from bert_jax.training.state import initializer

ROOT = pathlib.Path(__file__).resolve().parents[1]
ALONE = "--compute.remat=none --compute.layers=loop --data.packing=off"
LONG = "--model.max_position_embeddings=8192 --ramp_batch_sizes= --ramp_steps=0 --model.vocab_size=50368"
AS_TORCH = "--optimizer.name=adamw --optimizer.clip_norm=1"  # which has no StableAdamW
WITHOUT = "--model.attention_dropout=0"
SHAPES = {
    "base/128": ("bert_base", f"{ALONE} --sequence_length=128 --max_predictions=20 --batch_size=256"),
    "base/512": ("bert_base", f"{ALONE} --sequence_length=512 --max_predictions=77 --batch_size=64"),
    "large/128": ("bert_large", f"{ALONE} --sequence_length=128 --max_predictions=20 --batch_size=128"),
    "large/512": ("bert_large", f"{ALONE} --sequence_length=512 --max_predictions=77 --batch_size=32"),
    "modernbert/1024": ("modernbert_base", f"{ALONE} {LONG} {AS_TORCH} --batch_size=16"),
    "modernbert/8192": (
        "modernbert_base",
        f"{ALONE} {LONG} {AS_TORCH} --batch_size=2 --sequence_length=8192 --max_predictions=2458",
    ),
    "small/128": ("modernbert_mini", f"{' '.join(RECIPE)} --evaluation.batch_size=256 --data.sentence_pairs=none"),
}
"""What is computed, by name: a shipped configuration and its options. The first phase is measured."""
KERNELS = {
    "triton": "--compute.attention=triton",
    "xla": "--compute.attention=xla",
    "triton, no attention dropout": f"--compute.attention=triton {WITHOUT}",
    "xla, no attention dropout": f"--compute.attention=xla {WITHOUT}",
    "cudnn, no attention dropout": f"--compute.attention=cudnn {WITHOUT}",
}
FAMILIES = (
    "bert_mini roberta_mini albert_mini electra_mini deberta_mini deberta_v3_mini modernbert_mini spanbert_mini "
    "xlnet_mini gpt_mini elmo_mini ulmfit_mini"
).split()
SMALL = "--compute.dtype=float32 --batch_size=8 --model.vocab_size=4096 --data.packing=off"
TOLERANCE = 1e-5  # relative, of losses in float32 with exact products; an H200 was within 2.3e-7
TURNS, TURN_SECONDS = 3, 0.5
PROFILED = 3  # steps under the profiler
LENGTHS = (128, 512, 2048, 8192)
FORWARD = (
    (64, 64, 4, 2),
    (64, 64, 4, 3),
    (128, 64, 4, 2),
    (128, 64, 4, 3),
    (128, 64, 8, 2),
    (128, 64, 8, 3),
    (128, 128, 8, 2),
    (128, 128, 4, 2),
    (64, 128, 4, 2),
    (128, 32, 4, 3),
)
"""Sizes of triton's blocks to try: positions of both kinds of blocks, warps and stages."""
BACKWARD = (
    (64, 64, 4, 2),
    (64, 64, 8, 2),
    (64, 64, 4, 1),
    (64, 64, 4, 3),
    (128, 64, 8, 2),
    (128, 64, 4, 2),
    (128, 128, 8, 2),
    (128, 32, 4, 3),
    (64, 128, 8, 2),
    (64, 32, 4, 3),
    (32, 64, 4, 2),
)
TILED = ((128, 0.1), (512, 0.1), (8192, 0.0))
"""Lengths and rates of dropout for which they are tried."""
ALL_COMMANDS = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,WHILE,DYNAMIC_SLICE_FUSION"
FLAGS = {
    "Triton's products too": (("xla_gpu_enable_triton_gemm", "True"),),
    "merged products": (("xla_gpu_dot_merger_threshold_mb", "32"),),
    "no command buffers": (("xla_gpu_enable_command_buffer", ""),),
    "all command buffers": (("xla_gpu_enable_command_buffer", ALL_COMMANDS),),
}
"""Options of XLA to try."""
TOKENS, HEADS, SIZE = 32_768, 12, 64  # of a batch and of a head
REHEARSAL = "--rehearsal" in sys.argv  # of everything, small enough for a processor
TINY = (
    "--model.num_layers=2 --model.hidden_size=128 --model.num_heads=2 --model.intermediate_size=128 "
    "--model.vocab_size=1000 --batch_size=2"
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A training step to measure."""

    shape: str
    """One of SHAPES."""
    kernel: str
    """One of KERNELS."""
    further: str = ""
    """What else is different, for people."""
    words: str = ""
    """The options that make it so."""
    flags: tuple[tuple[str, str], ...] = ()
    """Options of XLA."""

    @property
    def name(self) -> str:
        return ", ".join(part for part in (self.shape, self.kernel, self.further) if part)

    @functools.cached_property
    def config(self) -> Config:
        name, words = SHAPES[self.shape]
        return configured(name, f"{words} {TINY if REHEARSAL else ''} {KERNELS[self.kernel]} {self.words}")


def cases(store: str) -> list[Case]:
    """Return the steps, those that tell the most first; packed ones where there is a token store."""
    found = [Case(shape, kernel) for shape in ("base/128", "base/512") for kernel in KERNELS]
    found += [Case(shape, kernel) for shape in ("large/512", "large/128") for kernel in ("triton", "xla")]
    found += [Case("large/512", "cudnn, no attention dropout")]
    # ModernBERT has no attention dropout.
    triton, xla, cudnn = (name for name in KERNELS if "no attention" in name)
    found += [Case(shape, kernel) for shape in ("modernbert/8192", "modernbert/1024") for kernel in (triton, cudnn)]
    found += [Case("modernbert/1024", xla)]
    if store:
        packed = f"--data.packing=on --data.sentence_pairs=none --data.path={store} --model.vocab_size=None"
        found += [Case("base/512", kernel, "packed", packed) for kernel in ("triton", "xla")]
        found.append(Case("small/128", "triton", "packed", packed))
    found += [Case("base/128", "triton", name, flags=flags) for name, flags in FLAGS.items()]
    found += [
        Case(shape, "triton", "plain products", "--compute.products=plain", FLAGS["merged products"])
        for shape in ("base/128", "base/512")
    ]
    return found + [Case(shape, "triton", "scan", "--compute.layers=scan") for shape in ("large/512", "base/128")]


def configured(name: str, words: str) -> Config:
    """Return a shipped configuration, cut to its first phase, with options."""
    config = load_config(name)
    return with_vocabulary(varied(dataclasses.replace(config, phases=config.phases[:1]), words)[0])


class Record:
    """What has been found so far, in a file that is always whole."""

    def __init__(self, path: pathlib.Path, seconds: float):
        self.path, self.began, self.seconds = path, time.monotonic(), seconds
        self.values: dict[str, Any] = {}

    def left(self) -> float:
        return self.seconds - (time.monotonic() - self.began)

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    def keep(self, part: str, name: str, found: Any) -> None:
        """Write one finding."""
        self.values.setdefault(part, {})[name] = found
        self.path.write_text(json.dumps(self.values, indent=1) + "\n", encoding="utf-8")

    def attempt(self, part: str, name: str, work: Callable[[], Any]) -> Any:
        """Keep what `work` finds, or why it failed: nothing that fails may end the rest."""
        try:
            found = work()
        except Exception as error:
            self.say(f"{part}: {name}: {type(error).__name__}: {error}"[:400])
            found = {"failed": f"{type(error).__name__}: {error}"[:1000], "where": traceback.format_exc()[-600:]}
        self.keep(part, name, found)
        return found


@dataclasses.dataclass
class Prepared:
    """A step and its first state, being compiled."""

    config: Config
    learner: Learner
    step: concurrent.futures.Future[Any]
    start: concurrent.futures.Future[Any]

    @classmethod
    def of(
        cls, config: Config, pool: concurrent.futures.Executor, starts: dict[Any, Any], flags: Any = ()
    ) -> "Prepared":
        """Trace here and compile in `pool`; steps of one model share the program that makes its state."""
        device, mesh = hardware(), sharding.make_mesh(config.mesh, None)
        learner = make_learner(config, mesh, memory_bytes=device.memory_bytes)
        phase = resolve_phases(config)[0]
        lowered = learner.train_step(phase).lower(learner.abstract, learner.abstract_batch(phase))
        options = {**step_options(config.compute, mesh), **dict(flags)}
        step = pool.submit(timed, functools.partial(compile_with, lowered, options))
        model = learner.objective.model
        key = str(jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), learner.abstract))
        if key not in starts:
            make = initializer(model, learner.optimizer, mesh).lower(np.uint32(config.seed))
            starts[key] = pool.submit(timed, make.compile)
        return cls(config, learner, step, starts[key])

    def begin(self, batches: list[dict[str, np.ndarray]]) -> "Running":
        (step, seconds), (start, _) = self.step.result(), self.start.result()
        mesh, phase = self.learner.mesh, resolve_phases(self.config)[0]
        types = {name: array.dtype for name, array in self.learner.abstract_batch(phase).items()}
        placed = [
            sharding.to_global(mesh, {name: batch[name].astype(types[name]) for name in types}, phase.batch_size)
            for batch in batches
        ]
        return Running(step, start(np.uint32(self.config.seed)), placed, seconds)


@dataclasses.dataclass
class Running:
    """Steps that are taken, with the batches on the device."""

    step: Any
    state: Any
    batches: list[Any]
    compile_seconds: float
    done: int = 0

    def take(self, units: int) -> Any:
        """Take steps and wait for them; return the metrics of the last."""
        metrics = None
        for _ in range(units):
            self.state, metrics = self.step(self.state, self.batches[self.done % len(self.batches)])
            self.done += 1
        jax.block_until_ready((self.state, metrics))
        return metrics

    def turn(self, units: int) -> float:
        """Return the seconds of a step."""
        began = time.perf_counter()
        self.take(units)
        return (time.perf_counter() - began) / units


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def has_result(future: concurrent.futures.Future[Any]) -> bool:
    return future.done() and not future.cancelled()


def units_of(seconds: float) -> int:
    return max(2, math.ceil(TURN_SECONDS / max(seconds, 1e-6)))


def stored(path: str) -> list[dict[str, np.ndarray]]:
    """Return the batches in a file of BatchFiles."""
    with np.load(path, allow_pickle=False) as arrays:
        whole = {name: arrays[name] for name in arrays.files}
    return [{name: array[number] for name, array in whole.items()} for number in range(len(whole["input_ids"]))]


def measure_case(record: Record, case: Case, prepared: Prepared, path: str, peer: Waiting | None) -> dict[str, Any]:
    """Return the figures of a step, in turns with torch's where there is one."""
    running = prepared.begin(stored(path))
    first = float(running.take(1)["loss"])
    running.take(3)
    units = units_of(running.turn(2))
    running.turn(units)
    their_units = units_of(peer.turn(3).wall / 3) if peer else 0
    if peer:
        peer.turn(their_units)
    own, theirs = [], []
    for _ in range(TURNS):
        own.append(running.turn(units))
        if peer:
            theirs.append(peer.turn(their_units).wall / their_units)
    (phase,), model = resolve_phases(case.config), prepared.learner.objective.model
    flops = model.training_flops(phase.sequence_length, phase.max_predictions) * phase.batch_size
    needed, peak = running.step.memory_analysis(), hardware().peak_flops or math.nan
    seconds = statistics.median(own)
    found = {
        "seconds_per_step": own,
        "compile_seconds": running.compile_seconds,
        "flops": flops,
        "tokens_per_second": phase.batch_size * phase.sequence_length / seconds,
        "mfu": flops / seconds / peak,
        "first_loss": first,
        "attention": attention_of(
            case.config.model,
            case.config.compute,
            prepared.learner.mesh,
            phase.batch_size,
            phase.sequence_length,
            phase.max_texts,
        ),
        "argument_bytes": needed.argument_size_in_bytes,
        "temporary_bytes": needed.temp_size_in_bytes,
        "memory_stats": jax.local_devices()[0].memory_stats(),
    }
    if theirs:
        found |= {
            "torch_seconds_per_step": theirs,
            "torch_mfu": flops / statistics.median(theirs) / peak,
            "faster_than_torch": statistics.median(b / a for a, b in zip(own, theirs, strict=True)),
        }
    record.attempt("profiles", case.name, functools.partial(kernel_times, running))
    record.say(
        f"{case.name}: {1e3 * seconds:.2f} ms, MFU {found['mfu']:.1%}"
        + (f", torch {1e3 * statistics.median(theirs):.2f} ms" if theirs else "")
    )
    return found


def kernel_times(running: Running) -> dict[str, Any]:
    """Return the name, the milliseconds per step and the calls per step of what takes the most time on the GPU."""
    spent, calls, planes = Counter(), Counter(), []
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            running.take(PROFILED)
        for file in pathlib.Path(directory).rglob("*.xplane.pb"):
            for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
                planes.append(plane.name)
                for line in plane.lines if "GPU" in plane.name else ():
                    for event in line.events if line.name.startswith("Stream") else ():
                        spent[event.name] += event.duration_ns / 1e6 / PROFILED
                        calls[event.name] += 1
    top = [(name, round(spent[name], 4), round(calls[name] / PROFILED)) for name, _ in spent.most_common(70)]
    return {
        "milliseconds": sum(spent.values()),
        "launches": sum(calls.values()) / PROFILED,
        "top": top,
        "planes": planes,
    }


def first_losses(prepared: Prepared) -> dict[str, list[float]]:
    """Return the metrics of two steps that every family has."""
    with tempfile.TemporaryDirectory() as directory:
        file = BatchFiles(pathlib.Path(directory), 0.1).of(prepared.config)
        running = prepared.begin(stored(file.path))
    metrics = [running.take(1), running.take(1)]
    return {name: [float(each[name]) for each in metrics] for name in ("loss", "grad_norm") if name in metrics[0]}


def small(family: str) -> Config:
    """Return a family's mini as its losses are compared: without a chance for a shorter type to differ."""
    return configured(family, SMALL)


def compared(found: dict[str, list[float]], expected: dict[str, list[float]]) -> dict[str, Any]:
    """Return what was found with its largest relative distance from what a CPU computes."""
    error = max(
        abs(a - b) / max(abs(b), 1e-9) for name in expected for a, b in zip(found[name], expected[name], strict=True)
    )
    return {**found, "relative_error": error, "agrees": error < TOLERANCE}


@dataclasses.dataclass(frozen=True)
class Attention:
    """Attention of full rows to measure, forward and backward."""

    kernel: str
    """xla, triton, cudnn, or cudnn by lengths."""
    length: int
    rows: int
    rate: float
    """Share of the probabilities that is dropped."""
    tiling: Tiling | None = None
    """Of triton's kernel for the pass, in place of its own."""
    backward: bool = True
    """Whether gradients are computed, or the output alone."""

    @property
    def name(self) -> str:
        others = [f"{self.rows} × {self.length}", f"dropout {self.rate}"]
        if self.tiling is not None:
            others.append(", ".join(f"{key} {value}" for key, value in dataclasses.asdict(self.tiling).items()))
        return ", ".join([self.kernel, *others, "" if self.backward else "forward"]).strip(", ")

    def lowered(self) -> Any:
        """Return the traced gradients of query, key and value, and the output."""
        compute = ComputeConfig() if self.kernel == "cudnn by lengths" else ComputeConfig(attention=self.kernel)
        form = attention_kernel(compute, attention_in_jax(compute))
        own = gpu.tiling
        tried = "backward" if self.backward else "forward"
        if self.tiling is not None:
            gpu.tiling = lambda kernel, *sizes: self.tiling if kernel == tried else own(kernel, *sizes)
        try:
            chosen = by_lengths if self.kernel == "cudnn by lengths" else form
            return attention_program(chosen, self.rate, self.length, self.rows, self.backward)
        finally:
            gpu.tiling = own


def attentions() -> list[Attention]:
    """Return the kernels to compare, then the sizes of blocks that triton could have."""
    tokens = 512 if REHEARSAL else TOKENS
    kinds = [("triton", 0.1), ("xla", 0.1), ("triton", 0.0), ("xla", 0.0), ("cudnn", 0.0), ("cudnn by lengths", 0.0)]
    found = [
        Attention(kernel, length, tokens // length, rate)
        for length in LENGTHS[: 2 if REHEARSAL else None]
        for kernel, rate in [*kinds, ("cudnn by lengths", 0.1)]
        if length <= 2048 or kernel != "xla"
    ]
    for length, rate in TILED if not REHEARSAL else ():
        for backward, sizes in ((False, FORWARD), (True, BACKWARD)):
            found += [Attention("triton", length, tokens // length, rate, Tiling(*each), backward) for each in sizes]
    return found


def by_lengths(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: plain.AttentionMask,
    dropout_key: jax.Array | None,
    rate: float,
) -> tuple[jax.Array, None]:
    """Compute attention by cuDNN with the number of tokens of a row in place of a bias, and with its own dropout."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    lengths = jnp.sum(mask.padding, axis=1, dtype=jnp.int32)
    lengths = jnp.broadcast_to(lengths, query.shape[:1])
    output = cudnn.dot_product_attention(
        query,
        key,
        value,
        q_seqlen=lengths,
        kv_seqlen=lengths,
        scale=query.shape[-1] ** -0.5,
        seed=1 if dropout_key is not None else 42,
        dropout_rate=rate,
        mask_type=cudnn.MaskType.PADDING,
    )
    return output[0] if isinstance(output, tuple) else output, None


def attention_program(
    form: Any, rate: float, length: int, rows: int, backward: bool = True, dtype: Any = jnp.bfloat16
) -> Any:
    """Return the traced gradients of query, key and value, and the output; or the output alone."""

    def output(inputs: Any, padding: jax.Array, seed: jax.Array) -> jax.Array:
        key = jax.random.key(seed) if rate else None
        return form(*inputs[:3], plain.AttentionMask(padding=padding), key, rate)[0]

    def loss(inputs: Any, padding: jax.Array, seed: jax.Array) -> Any:
        found = output(inputs, padding, seed)
        return jnp.sum(found.astype(jnp.float32) * inputs[3].astype(jnp.float32)), found

    inputs = (jax.ShapeDtypeStruct((rows, length, HEADS, SIZE), dtype),) * 4
    others = jax.ShapeDtypeStruct((rows, length), jnp.int32), jax.ShapeDtypeStruct((), jnp.uint32)
    return jax.jit(jax.grad(loss, has_aux=True) if backward else output).lower(inputs, *others)


def attention_inputs(rows: int, length: int, tokens: int, dtype: Any = jnp.bfloat16) -> tuple[Any, ...]:
    random = np.random.default_rng(0)
    arrays = tuple(
        jnp.asarray(random.standard_normal((rows, length, HEADS, SIZE), np.float32), dtype) for _ in range(4)
    )
    return arrays, jnp.asarray(np.broadcast_to(np.arange(length) < tokens, (rows, length)), jnp.int32), np.uint32(0)


def attention_seconds(compiled: Any, arguments: Any) -> dict[str, Any]:
    """Return the seconds of a call, and the memory that the program needs."""
    run = lambda units: jax.block_until_ready([compiled(*arguments) for _ in range(units)][-1])
    run(2)
    _, once = timed(lambda: run(4))
    units = max(4, math.ceil(0.1 / (once / 4)))
    taken = [timed(lambda: run(units))[1] / units for _ in range(3)]
    return {"seconds": taken, "temporary_bytes": compiled.memory_analysis().temp_size_in_bytes}


def distance(found: Any, expected: Any) -> list[float]:
    """Return ‖found − expected‖ ÷ ‖expected‖ of each array of two trees."""
    norm = lambda array: float(np.linalg.norm(np.asarray(array, np.float64)))
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return [norm(np.asarray(a, np.float64) - np.asarray(b, np.float64)) / norm(b) for a, b in pairs]


def ceilings() -> dict[str, float]:
    """Return what the card does at most: FLOP/s of a large bfloat16 product, bytes/s of a copy."""
    side = 256 if REHEARSAL else 8192
    random = jax.random.normal(jax.random.key(0), (side, side), jnp.bfloat16)
    product = jax.jit(lambda a: a @ a).lower(random).compile()
    large = jnp.ones((2**14 * side,), jnp.float32)
    add = jax.jit(lambda a: a + 1).lower(large).compile()
    found = {}
    for name, run, argument, amount in (
        ("product_flops_per_second", product, random, 2 * side**3),
        ("copy_bytes_per_second", add, large, 2 * large.nbytes),
    ):
        jax.block_until_ready([run(argument) for _ in range(2)][-1])
        taken = []
        for _ in range(10):
            _, seconds = timed(lambda run=run, argument=argument: jax.block_until_ready(run(argument)))
            taken.append(seconds)
        found[name] = amount / statistics.median(taken)
    return found


def start_torch(record: Record, path: str, config: Config, python: str) -> Waiting:
    """Start torch's tuned step on the same batches; it gets ready by itself."""
    facts = {"device": str(hardware()), "dtype": "bfloat16"}
    job = peer_job(config, facts) | {"batches": path, "role": "tuned", "compile": True, "threads": 2}
    record.say("torch starts")
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "TORCHINDUCTOR_COMPILE_THREADS": "4"}
    return Waiting(Contestant("torch", peer_program(python, "step"), job, environment, is_peer=True))


def ready(record: Record, name: str, peer: Waiting, seconds: float) -> Waiting | None:
    """Return torch once it is ready; None, and why in the record, if it fails or takes too long."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(peer.get_ready)
        try:
            future.result(timeout=max(1.0, seconds))
        except Exception as error:
            record.keep("torch", name, {"failed": f"{type(error).__name__}: {error}"[:600]})
            record.say(f"torch, {name}: {type(error).__name__}: {error}"[:300])
            peer.close()
            return None
    record.keep("torch", name, peer.facts)
    return peer


def measure(record: Record, options: argparse.Namespace) -> None:
    """Measure everything that there is time for."""
    device = hardware()
    record.keep("run", "device", str(device))
    record.keep("run", "versions", versions() | {"commit": commit()})
    record.keep("run", "date", time.strftime("%Y-%m-%d", time.gmtime()))
    record.keep("run", "machine", machine() | {"load": load_average()})
    record.attempt("run", "nvidia-smi", lambda: subprocess.run(["nvidia-smi"], capture_output=True, text=True).stdout)
    record.say(str(device))
    wanted = [case for case in cases(options.store) if not options.only or case.name in options.only]
    directory = pathlib.Path(tempfile.mkdtemp())
    files = BatchFiles(directory, 0.0)
    paths = {case.name: files.of(case.config).path for case in wanted}
    shapes = list(dict.fromkeys(case.shape for case in wanted))
    peers: dict[str, Waiting] = {}
    if options.peer_python:
        for shape in (shape for shape in shapes if shape in (options.peer_shapes or shapes)):
            case = next(case for case in wanted if case.shape == shape)
            peers[shape] = start_torch(record, paths[case.name], case.config, options.peer_python)
    pool = concurrent.futures.ThreadPoolExecutor(options.threads)
    steps, starts = {}, {}
    for case in wanted:
        found = record.attempt("traced", case.name, lambda case=case: hold(steps, case, pool, starts))
        record.say(f"traced {case.name}: {found}")
        if record.left() < options.seconds * 0.6:
            record.say("the rest is not traced: it takes too long")
            break
    kernels: dict[Attention, concurrent.futures.Future[Any]] = {}
    for each in attentions() if options.kernels else ():
        record.attempt("traced kernels", each.name, functools.partial(hold_kernel, kernels, each, pool))
    families = trace_families(record, pool) if options.families else {}
    record.say("everything is traced")
    waiting = [*kernels.values()]
    waiting += [each for one in (*steps.values(), *families.values()) for each in (one.step, one.start)]
    _, late = concurrent.futures.wait(waiting, timeout=max(1.0, record.left() - options.seconds / 2))
    # Whatever is compiled is tuned on the card, which would disturb the measurement.
    running = [each for each in late if not each.cancel()]
    record.say(f"compiled, but for {len(late) - len(running)} programs; {len(running)} more are waited for")
    concurrent.futures.wait(running)
    started = {shape: ready(record, shape, peer, record.left() / 3) for shape, peer in peers.items()}
    record.attempt("run", "ceilings", ceilings)
    measure_steps(record, wanted, steps, paths, started)
    measure_kernels(record, {each: future for each, future in kernels.items() if has_result(future)})
    measure_families(record, families)


def hold(steps: dict[str, Prepared], case: Case, pool: Any, starts: dict[Any, Any]) -> str:
    steps[case.name] = Prepared.of(case.config, pool, starts, case.flags)
    return "compiling"


def measure_steps(
    record: Record,
    wanted: list[Case],
    steps: dict[str, Prepared],
    paths: dict[str, str],
    peers: dict[str, Waiting | None],
) -> None:
    """Measure each step; torch takes turns with the first of each shape, and is gone after it."""
    measured = set()
    for case in wanted:
        if case.name not in steps or not has_result(steps[case.name].step):
            continue
        peer = None if case.shape in measured else peers.get(case.shape)
        measured.add(case.shape)
        work = functools.partial(measure_case, record, case, steps[case.name], paths[case.name], peer)
        record.attempt("steps", case.name, work)
        if peer is not None:
            peer.close()
        gc.collect()
        if record.left() < 20:
            record.say("no time is left")
            return


def hold_kernel(kernels: dict[Attention, Any], each: Attention, pool: concurrent.futures.Executor) -> None:
    kernels[each] = pool.submit(timed, each.lowered().compile)


def measure_kernels(record: Record, kernels: dict[Attention, concurrent.futures.Future[Any]]) -> None:
    """Measure the kernels, and compare them with attention in plain JAX in float32."""
    for each, future in kernels.items():
        if record.left() < 15:
            return
        arguments = attention_inputs(each.rows, each.length, each.length)
        work = functools.partial(lambda future, arguments: attention_seconds(future.result()[0], arguments), future)
        record.attempt("kernels", each.name, functools.partial(work, arguments))
    for each in (each for each in kernels if each.tiling is None and each.length in (128, 512)):
        if record.left() > 15:
            # cuDNN drops others, and the same in every step.
            few = dataclasses.replace(each, rows=2)
            if not (each.rate and each.kernel.startswith("cudnn")):
                record.attempt("errors of kernels", few.name, functools.partial(kernel_errors, few))


def kernel_errors(each: Attention) -> list[float]:
    """Return the distances of a kernel's gradients and output from plain attention in float32, padding left out."""
    arguments = attention_inputs(each.rows, each.length, each.length - 37)
    with jax.default_matmul_precision("highest"):
        exact = attention_program(plain.attention, each.rate, each.length, each.rows, dtype=jnp.float32).compile()
    wide = jax.tree.map(lambda array: array.astype(jnp.float32), arguments[0])
    found, expected = each.lowered().compile()(*arguments), exact(wide, *arguments[1:])
    seen = np.asarray(arguments[1], bool)
    cut = lambda tree: [np.asarray(leaf, np.float32)[seen] for leaf in jax.tree.leaves(tree)]
    return distance(cut((found[0][:3], found[1])), cut((expected[0][:3], expected[1])))


def trace_families(record: Record, pool: concurrent.futures.Executor) -> dict[str, Prepared]:
    """Trace two steps of every family's mini, with exact products."""
    jax.config.update("jax_default_matmul_precision", "highest")
    prepared = {}
    for family in FAMILIES:
        work = lambda family=family: str(prepared.setdefault(family, Prepared.of(small(family), pool, {})).config.seed)
        record.attempt("traced families", family, work)
    jax.config.update("jax_default_matmul_precision", None)
    return prepared


def measure_families(record: Record, prepared: dict[str, Prepared]) -> None:
    """Take two steps of every family's mini, and compare them with those of a CPU."""
    expected = json.loads((ROOT / "docs" / "gpu" / "losses.json").read_text(encoding="utf-8"))
    for family, one in prepared.items():
        if record.left() < 5 or not has_result(one.step):
            continue
        found = record.attempt("families", family, lambda one=one, f=family: compared(first_losses(one), expected[f]))
        record.say(f"{family}: {found.get('relative_error', found)}")


def losses(directory: pathlib.Path) -> None:
    """Write the first losses of all families, computed on the CPU."""
    jax.config.update("jax_default_matmul_precision", "highest")
    found = {}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for family in FAMILIES:
            found[family] = first_losses(Prepared.of(small(family), pool, {}))
            print(family, found[family], flush=True)
    (directory / "losses.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--losses", action="store_true", help="only write losses.json, on the CPU")
    parser.add_argument("--seconds", type=float, default=420, help="after which nothing more is begun")
    parser.add_argument("--store", default="", help="token store for packed rows")
    parser.add_argument("--only", nargs="*", default=[], help="steps by their names; none: all")
    parser.add_argument("--peer_python", default="", help="Python with torch and transformers; none: no torch")
    parser.add_argument("--peer_shapes", nargs="*", default=[], help="shapes that torch computes; none: all")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="that compile at once")
    parser.add_argument("--rehearsal", action="store_true", help="everything tiny, for a processor")
    parser.add_argument("--kernels", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--families", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    if options.losses:
        losses(options.directory)
        return
    record = Record(options.directory / "measured.json", options.seconds)
    measure(record, options)
    record.say("done")
    os._exit(0)  # threads may still be compiling what no time was left for


if __name__ == "__main__":
    sys.exit(main())
