"""Compilation of a training step ahead of time, in a process of its own, for machines that need not exist.

libtpu reads its environment when it is loaded and keeps a lock file until the process ends, the CPU gets its virtual
devices when jax starts, and a compilation cannot be interrupted: all of that stays in the child, which ends when its
parent does. It gets a request on stdin and reports as lines of JSON on stdout. The child never starts a TPU backend,
it only asks for descriptions of the chips.

The compiler for NVIDIA GPUs is in JAX's plugin and needs no card, only a description of one. The answers are stored
on disk, so that the same program is not compiled again for a later plan.
"""

import contextlib
import dataclasses
import gzip
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jaxlib
from jax.sharding import Mesh

from bert_jax.config import ComputeConfig, Config, Phase, resolve_phases, resolve_stages
from bert_jax.config.options import from_dict, to_dict
from bert_jax.devices import sharding
from bert_jax.devices.compilation import compile_with, step_options
from bert_jax.devices.hardware import DOES_NOT_FIT
from bert_jax.errors import UserError, need_extra
from bert_jax.files import cache_directory, parse_object, read_bytes, write_atomically
from bert_jax.models.costs import scans
from bert_jax.models.kernels.choice import check_attention
from bert_jax.pretrained.teacher import describe_teacher, stored_teacher
from bert_jax.pretraining import make_learner
from bert_jax.tools.planning.topology import Chip, Topology, find_topology
from bert_jax.training.learner import Learner

PLUGINS = ("cuda13", "cuda12")
"""Either of them has the compiler; the first one that is installed is used."""
FLAGS = {"xla_gpu_enable_triton_gemm": False}
"""On a card, XLA tries its own kernels for products and cuBLAS, and takes the faster one. Here it cannot try, and some
of its kernels need settings that are found in this way; so all products are cuBLAS's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Multiprocessors:
    """Facts about a card that the compiler needs in addition to its memory."""

    count: int
    compute_capability: int
    """Major version; the minor version of those here is 0."""
    lanes: int
    """Operations of float32 in one cycle of a multiprocessor."""
    clock_ghz: float
    shared_memory: int
    """Bytes on each multiprocessor; one block of threads gets all but 1,024 of them."""
    cache: int
    """Bytes of the second level, for all."""


_HOPPER = Multiprocessors(
    count=132, compute_capability=9, lanes=128, clock_ghz=1.98, shared_memory=228 * 2**10, cache=50 * 2**20
)
# NVIDIA's papers on the architectures A100 and H100, in the SXM form.
CARDS = {
    "a100": Multiprocessors(
        count=108, compute_capability=8, lanes=64, clock_ghz=1.41, shared_memory=164 * 2**10, cache=40 * 2**20
    ),
    "h100": _HOPPER,
    "h200": _HOPPER,
}


def plugin() -> str | None:
    """Return the name of the plugin that has the compiler, without importing it, or None if there is none."""
    for name in PLUGINS:
        try:
            if importlib.util.find_spec(f"jax_plugins.xla_{name}"):
                return name
        except ModuleNotFoundError:  # jax_plugins
            return None
    return None


CUDNN = (9, 10)
"""Major and minor version of cuDNN in the description of a card."""


def take_cudnn_to_be_there() -> None:
    """Have JAX, in this process, write calls of cuDNN without asking the card for it.

    The compiler leaves such a call as it is; on a card, cuDNN then chooses an algorithm and the room that it works in.
    """
    from jax._src.cudnn import fused_attention_stablehlo

    fused_attention_stablehlo.check_cudnn_version = lambda: CUDNN[0] * 10_000 + CUDNN[1] * 100


def described_cards(chip: Chip, count: int) -> Any:
    """Return descriptions of `count` cards in one host, for which programs can be compiled and not run.

    Raises:
      UserError: the plugin does not fit JAX.
    """
    from jax import __version__
    from jax.experimental import topologies

    options: dict[str, Any] = {"target_config": target_config(chip), "topology": f"1x1x{count}"}
    try:
        return topologies.get_topology_desc(platform="cuda", **options).devices
    except NotImplementedError:  # JAX has said why on stderr, and continues without the plugin
        raise UserError(
            f"jax {__version__} cannot use the plugin with the compiler for GPUs; install the same version of "
            "jax-cuda13-plugin and jax-cuda13-pjrt (docs/planning.md)"
        ) from None


def target_config(chip: Chip) -> str:
    """Return the description of a card for XLA: a GpuTargetConfigProto as text."""
    card = CARDS[chip.name]
    return f"""gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: {card.shared_memory}
  shared_memory_per_block_optin: {card.shared_memory - 1024}
  core_count: {card.count} fpus_per_core: {card.lanes} clock_rate_ghz: {card.clock_ghz}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {int(chip.memory_bandwidth)} l2_cache_size: {card.cache} device_memory_size: {chip.memory_bytes}
  cuda_compute_capability {{ major: {card.compute_capability} minor: 0 }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: {CUDNN[0]} minor: {CUDNN[1]} }}
runtime_version {{ major: {13 if plugin() == "cuda13" else 12} minor: 0 }}
device_description_str: "{chip.kind}"
"""


MOST_BYTES = 1 << 29  # of all programs; those that have not been used for longest go first
LONGEST = 1 << 28  # bytes of one program when it is unpacked


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledProgram:
    """The answer of the compiler."""

    text: str
    """The optimized and scheduled program; empty if there is none, because it did not fit."""
    buffers: str
    """Which value has which place in memory (buffer-assignment); empty if the compiler has not said."""
    live_ranges: str
    """From which instruction to which each value is kept; empty if the compiler has not said."""
    memory: dict[str, int]
    """Bytes on one device: argument, output, alias, temp, generated_code; empty if it did not fit."""
    failure: str
    """Message of the compiler if the program needs more memory than there is; else empty."""
    resharding_warnings: int
    """How often the compiler said that it copies a whole array to move it between devices."""
    seconds: float
    """How long the compilation took by the clock."""
    cpu_seconds: float
    """Seconds of all processors that it took."""


def program_key(text: str, *circumstances: str) -> str:
    """Return the name of the traced program `text` compiled under `circumstances`: versions, options, machine."""
    return hashlib.sha256("\0".join((text, *circumstances)).encode()).hexdigest()


def load_program(key: str) -> CompiledProgram | None:
    """Return the stored program; None if there is no complete one."""
    file = _directory() / f"{key}.json.gz"
    try:
        unpacker = zlib.decompressobj(wbits=31)
        contents = unpacker.decompress(read_bytes(file), LONGEST)
        if not unpacker.eof:
            return None
        program = _program(parse_object(contents))
        os.utime(file)
    except (OSError, ValueError, zlib.error):
        return None
    return program


def store_program(key: str, program: CompiledProgram) -> None:
    """Store a program and remove the oldest if there are too many; a disk that cannot be written is not an error."""
    try:
        _directory().mkdir(mode=0o700, parents=True, exist_ok=True)
        packed = gzip.compress(json.dumps(dataclasses.asdict(program)).encode(), compresslevel=6)
        write_atomically(_directory() / f"{key}.json.gz", packed)
        files = sorted(_directory().glob("*.json.gz"), key=lambda file: file.stat().st_mtime, reverse=True)
        total = 0
        for file in files:
            total += file.stat().st_size
            if total > MOST_BYTES:
                file.unlink(missing_ok=True)
    except OSError:
        pass


def _directory() -> pathlib.Path:
    return cache_directory() / "plans"


def _program(values: dict[str, Any]) -> CompiledProgram:
    """Return the program in `values`; ValueError if they are not those of one."""
    fields = {field.name: field.type for field in dataclasses.fields(CompiledProgram)}
    kinds = {str: str, int: int, float: (int, float), dict[str, int]: dict}
    if values.keys() != fields.keys() or any(not isinstance(values[name], kinds[fields[name]]) for name in fields):
        raise ValueError("is not a stored program")
    if any(not isinstance(size, int) for size in values["memory"].values()):
        raise ValueError("has sizes that are not numbers")
    return CompiledProgram(**values)


# Without these libtpu asks the metadata server of Google Cloud where it is, and waits minutes for an answer.
WITHOUT_A_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # another process may be compiling, or training on the chips of this machine
    "TPU_STDERR_LOG_LEVEL": "2",
    "TPU_MIN_LOG_LEVEL": "2",
}
OF_THIS_MACHINE = ("TPU_", "MEGASCALE_", "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "CLOUD_TPU_")


class CompilerFailure(UserError):
    """Raised when the compiler has crashed, which other options may avoid."""


def check_compiler(topology: Topology) -> None:
    """Raise a UserError if the compiler for `topology` is not installed."""
    if topology.platform == "tpu":
        need_extra("libtpu", "plan", f"planning for {topology.name}", "it needs no TPU")


def compile_phase(
    config: Config, topology: Topology, phase: int, stage: Callable[[str], None]
) -> tuple[CompiledProgram | None, dict[str, Any]]:
    """Compile the step of a phase for `topology`, or take it from those compiled before.

    Args:
      stage: called with a few words on what the child is doing.

    Returns:
      The program (None for GPUs whose compiler is not installed), and what is known without it: bytes on each device.

    Raises:
      UserError: the options do not fit the machine, or the program cannot be stored.
      CompilerFailure: the compiler has crashed.
    """
    request = {"config": to_dict(config), "topology": topology.name, "phase": phase}
    facts: dict[str, Any] = {}
    with _child(request, topology) as lines:
        for line in lines:
            if "stage" in line:
                stage(line["stage"])
            else:
                facts |= line
    if "error" in facts:
        raise UserError(facts["error"])
    if "key" not in facts:
        return None, facts
    program = load_program(facts["key"])
    if program is None:
        raise UserError(
            f"the compiled program could not be written to {cache_directory()}; make room there, or set XDG_CACHE_HOME"
        )
    return program, facts


@contextlib.contextmanager
def _child(request: dict[str, Any], topology: Topology) -> Iterator[Iterator[dict[str, Any]]]:
    """Yield what a child says about `request`, line by line; it is dead when the block ends, however that ends."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
        child = subprocess.Popen(
            [sys.executable, "-m", "bert_jax.tools.planning.compiler"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=printed,
            text=True,
            env=_environment(topology),
            start_new_session=True,  # Ctrl-C reaches the parent alone, which ends the child
        )
        assert child.stdin is not None and child.stdout is not None
        try:
            with child.stdin, child.stdout:
                child.stdin.write(json.dumps(request) + "\n")
                child.stdin.flush()
                yield (json.loads(line) for line in child.stdout)
                status = child.wait()
        finally:
            child.kill()
            child.wait()
        if status < 0:
            raise CompilerFailure(_crash(topology, signal.Signals(-status)))
        if status:
            printed.seek(0)
            raise RuntimeError(f"the process that compiles has failed: {printed.read()[-2000:].strip()}")


def _crash(topology: Topology, number: signal.Signals) -> str:
    if number == signal.SIGKILL:
        return f"the compiler for {topology.name} was killed, as a machine does that runs out of memory; free some"
    return (
        f"the compiler for {topology.name} has crashed ({number.name}), which is a fault of the compiler; another "
        "--batch_size, --mesh or --compute.layers gives it another program"
    )


def _environment(topology: Topology) -> dict[str, str]:
    """Return this process's environment without what belongs to a job of several hosts, prepared for `topology`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_THIS_MACHINE)}
    flags = kept.pop("XLA_FLAGS", "").split()
    flags = [flag for flag in flags if not flag.startswith("--xla_force_host_platform_device_count")]
    if topology.platform != "tpu":
        flags.append(f"--xla_force_host_platform_device_count={topology.chips}")
    return kept | WITHOUT_A_TPU | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(flags)}


def described_devices(topology: Topology) -> Sequence[Any]:
    """Return the devices of `topology`: of accelerators descriptions that no program can run on, else virtual ones.

    Those are of the CPU, also for GPUs whose compiler is not installed. The environment must have been prepared
    (tools/planning/compiler.py): libtpu looks for a real TPU otherwise, and the CPU has one device.
    """
    if topology.platform == "gpu" and plugin():
        assert topology.chip is not None
        return described_cards(topology.chip, topology.chips)
    if topology.platform != "tpu":
        return jax.devices("cpu")[: topology.chips]
    from jax.experimental import topologies

    assert topology.chip is not None
    options: dict[str, Any] = {"num_slices": topology.slices} if topology.slices > 1 else {}
    if topology.chip.name == "v4":
        options["chip_config_name"] = "megacore"  # a device is a chip with both of its cores, as on a real v4
    if topology.shape == "1x1":
        options["chips_per_host_bounds"] = (1, 1, 1)
    name = f"{topology.chip.name}:{topology.shape}"
    return topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices


def resolved(config: Config, topology: Topology) -> Config:
    """Return `config` with what a run on `topology` would choose by itself.

    The data type and the form of products are those of the machine, not of this one; mesh.slice is the number of slices
    unless it is given; the vocabulary, which a run takes from its token store, is that of the teacher or, without one,
    of the published models of its form unless it is given. (The attention kernel looks at the mesh in use.)

    Raises:
      UserError: there is no such teacher.
    """
    compute, mesh, model = config.compute, config.mesh, config.model
    if model.vocab_size is None:
        taught = config.objective.taught
        size = model.assumed_vocab_size if taught is None else stored_teacher(taught).model.vocab_size
        model = dataclasses.replace(model, vocab_size=size)
    if compute.dtype == "auto":
        compute = dataclasses.replace(compute, dtype="float32" if topology.platform == "cpu" else "bfloat16")
    if compute.products == "auto":
        form = "plain" if topology.platform == "cpu" and topology.chips > 1 else topology.platform
        compute = dataclasses.replace(compute, products=form)
    if topology.slices > 1 and mesh.slice == 1:
        mesh = dataclasses.replace(mesh, slice=topology.slices)
    return dataclasses.replace(config, compute=compute, mesh=mesh, model=model)


def learner(config: Config, mesh: Mesh, memory_bytes: int | None = None) -> Learner:
    """Return what `pretrain` trains with these options on devices with so much memory.

    Raises:
      UserError: there is no such teacher, or the student cannot learn from it.
    """
    taught, phases = config.objective.taught, resolve_phases(config)
    teacher = describe_teacher(taught, config.model, config.data, phases, config.compute, mesh)
    return make_learner(config, mesh, memory_bytes=memory_bytes, teacher=teacher)


def traced_step(what: Learner, phase: Phase) -> jax.stages.Lowered:
    """Return the very step that `pretrain` compiles for `phase`."""
    traced = what.train_step(phase).trace(what.abstract, what.abstract_batch(phase), *what.frozen)
    # JAX takes the platform of GPUs from this process, which has none.
    platforms = ("cuda",) if what.mesh.devices.flat[0].platform == "gpu" else None
    return traced.lower(lowering_platforms=platforms)


SECONDS, SECONDS_OF_A_LAYER = 45, 40
"""Processor time of libtpu for the step of a phase, and for each layer that it sees: all of them in a loop, one in a
scan. What was measured lies within FACTOR of their sum, either way: 46 to 117 s for a scan, 223 for 2 unrolled layers
of the width of base, 411 for base and 570 for large (docs/speed.md), and 639 and 1,745 on AVX2, halves of plans of two
phases; more on busy machines."""
FACTOR = 2


def expected_minutes(config: Config, topology: Topology, programs: int = 1) -> tuple[float, float] | None:
    """Return the fewest and the most minutes of processor time that so many new programs take; None: few or unknown."""
    if topology.platform != "tpu":
        return None
    seen = 1 if scans(config.model, config.compute) else config.model.num_layers
    minutes = programs * (SECONDS + SECONDS_OF_A_LAYER * seen) / 60
    return minutes / FACTOR, minutes * FACTOR


def in_minutes(ends: tuple[float, float]) -> str:
    """Return "4 to 18 minutes of processor time"."""
    return f"{max(1, round(ends[0]))} to {math.ceil(ends[1])} minutes of processor time"


SAID_EVERY = 60.0  # seconds, by the clock


@contextlib.contextmanager
def _said_again_and_again(config: Config, topology: Topology) -> Iterator[None]:
    """Say during the block that something is compiled, and how much of the expected time it has taken."""
    ends, began, over = expected_minutes(config, topology), time.process_time(), threading.Event()

    def say() -> None:
        while not over.wait(SAID_EVERY):
            expected = f" of {in_minutes(ends)}" if ends else " minutes of processor time"
            _say(stage=f"compiling, {(time.process_time() - began) / 60:.1f}{expected}")

    _say(stage=f"compiling, {in_minutes(ends)}" if ends else "compiling")
    speaker = threading.Thread(target=say, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        over.set()
        speaker.join()


FORM = "1"  # of what is stored; a new one makes old entries unreachable
RESHARDING = re.compile(rb"[Ii]nvoluntary full rematerialization")


def main() -> None:
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    try:
        _answer(request)
    except UserError as error:
        _say(error=str(error))


def _answer(request: dict[str, Any]) -> None:
    config, topology = from_dict(Config, request["config"]), find_topology(request["topology"])
    phase = resolve_phases(config)[request["phase"]]
    _say(stage="tracing")
    mesh = sharding.make_mesh(config.mesh, list(described_devices(topology)))
    sharding.check_batch(resolve_stages(config), config.phases, mesh)
    check_attention(config.compute, topology.platform)
    what = learner(config, mesh, topology.chip and topology.chip.memory_bytes)
    state, batch = what.abstract, what.abstract_batch(phase)
    _say(
        mesh=dict(mesh.shape),
        remat=what.remat(phase),
        needed_bytes=what.needed_bytes(phase),
        parameters=_bytes_on_a_device(state.params),
        moments=_bytes_on_a_device(state.optimizer_state),
        batch=_bytes_on_a_device(batch),
        teacher=_bytes_on_a_device(what.frozen),
        # A third of those of training, because a teacher only computes forward.
        teacher_flops=0
        if what.teacher is None
        else what.teacher.model.training_flops(phase.sequence_length, phase.max_predictions) // 3,
        whole_parameters=_values_over_fsdp(state.params),
        whole_teacher=_values_over_fsdp(what.frozen),
        parameter_shapes=[list(leaf.shape) for leaf in jax.tree.leaves((state.params, what.frozen))],
    )
    if topology.platform == "gpu":
        if not plugin():
            return
        take_cudnn_to_be_there()
    lowered = traced_step(what, phase)
    versions = (jax.__version__, jaxlib.version.__version__, compiler_version(topology), os.environ["XLA_FLAGS"])
    options = [os.environ.get("LIBTPU_INIT_ARGS")]
    flags = compiler_options(config.compute, mesh, topology)
    if topology.platform == "gpu" and topology.chip:
        options += [target_config(topology.chip)]
    options += [str(dict(flags)) if flags else None]
    key = program_key(lowered.as_text(), FORM, topology.name, *versions, *filter(None, options))
    if load_program(key) is None:
        with _said_again_and_again(config, topology):
            program = compiled(lowered, flags)
        store_program(key, program)
    _say(key=key)


def compiler_options(compute: ComputeConfig, mesh: Mesh, topology: Topology) -> Mapping[str, Any]:
    """Return the options of a run's training step there, and `FLAGS` for a card."""
    return {**step_options(compute, mesh), **(FLAGS if topology.platform == "gpu" and topology.chip else {})}


def compiler_version(topology: Topology) -> str:
    """Return the name and version of the compiler for `topology`."""
    if topology.platform == "cpu":
        return f"XLA of jaxlib {jaxlib.version.__version__}"
    package = "libtpu" if topology.platform == "tpu" else f"jax-{plugin()}-plugin"
    return f"{package} {importlib.metadata.version(package)}"


def compiled(lowered: jax.stages.Lowered, flags: Mapping[str, Any]) -> CompiledProgram:
    """Compile a traced step; a program that does not fit into memory is an answer, every other failure is raised."""
    with tempfile.TemporaryDirectory() as dump, tempfile.TemporaryFile() as printed:
        began, spent = time.monotonic(), time.process_time()
        kept = os.dup(2)
        os.dup2(printed.fileno(), 2)
        executable, failure = None, ""
        try:
            # The text comes from the dump, because that of an executable cannot be read back for v5p and v6e.
            dumping = {"xla_dump_to": dump, "xla_dump_hlo_as_text": True}
            executable = compile_with(lowered, {**dumping, **flags}, fallback=dumping)
        except jax.errors.JaxRuntimeError as error:
            if DOES_NOT_FIT not in str(error):
                raise
            failure = str(error)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        printed.seek(0)
        return CompiledProgram(
            # Of a TPU, code generation adds the estimated cycles.
            text=_dumped(dump, "after_codegen.txt") or _dumped(dump, "after_optimizations.txt"),
            buffers=_dumped(dump, "after_optimizations-buffer-assignment.txt"),
            live_ranges=_dumped(dump, "after_optimizations-live-range.txt"),
            memory=_memory(executable),
            failure=failure,
            resharding_warnings=len(RESHARDING.findall(printed.read())),
            seconds=time.monotonic() - began,
            cpu_seconds=time.process_time() - spent,
        )


def _dumped(directory: str, ending: str) -> str:
    """Return the compiler's file on the largest program; on the CPU there are small programs next to the step."""
    files = [file for file in pathlib.Path(directory).iterdir() if file.name.endswith(ending)]
    return max(files, key=lambda file: file.stat().st_size).read_text(errors="replace") if files else ""


def _memory(executable: jax.stages.Compiled | None) -> dict[str, int]:
    if executable is None:
        return {}
    analysis = executable.memory_analysis()
    parts = ("argument", "output", "alias", "temp", "generated_code")
    return {part: int(getattr(analysis, f"{part}_size_in_bytes")) for part in parts}


def _bytes_on_a_device(tree: Any) -> int:
    """Return the bytes of the arrays in `tree` on each device, without the padding of their layout."""
    return sum(leaf.dtype.itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in jax.tree.leaves(tree))


def _values_over_fsdp(params: Any) -> int:
    """Return how many values each device has of all parameters when they are gathered over fsdp."""
    whole = sharding.gathered(jax.tree.map(lambda leaf: leaf.sharding, params))
    return sum(
        math.prod(where.shard_shape(leaf.shape))
        for leaf, where in zip(jax.tree.leaves(params), jax.tree.leaves(whole), strict=True)
    )


def _end_with_the_parent() -> None:
    """Wait until the parent closes the pipe or dies, then end at once, in the middle of a compilation too."""
    sys.stdin.read()
    os._exit(1)


def _say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")  # at once, since two threads may say something
    sys.stdout.flush()


if __name__ == "__main__":
    main()
