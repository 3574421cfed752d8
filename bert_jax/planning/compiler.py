"""The process in which a step is compiled: a request on stdin, what happens as lines of JSON on stdout."""

import json
import math
import os
import pathlib
import re
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any

import jax
import jaxlib

from bert_jax.config import Config, Phase, resolve_phases
from bert_jax.config.json_form import from_dict
from bert_jax.devices import sharding
from bert_jax.devices.compiler_options import compile_with, step_options
from bert_jax.devices.memory_shortage import DOES_NOT_FIT
from bert_jax.errors import UserError
from bert_jax.models.kernels.choice import check_attention
from bert_jax.models.protocol import Model
from bert_jax.planning import gpu_compiler
from bert_jax.planning.program_store import CompiledProgram, load_program, program_key, store_program
from bert_jax.planning.topology import Topology, find_topology
from bert_jax.planning.traced_step import described_devices, learner, traced_step

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
    sharding.check_batch(config, mesh)
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
        teacher_flops=0 if what.teacher is None else _forward_flops(what.teacher.model, phase),
        whole_parameters=_values_over_fsdp(state.params),
        whole_teacher=_values_over_fsdp(what.frozen),
        parameter_shapes=[list(leaf.shape) for leaf in jax.tree.leaves((state.params, what.frozen))],
    )
    if topology.platform == "gpu":
        if not gpu_compiler.plugin():
            return
        gpu_compiler.check(config.compute)
    lowered = traced_step(what, phase)
    versions = (jax.__version__, jaxlib.version.__version__, compiler_version(topology), os.environ["XLA_FLAGS"])
    options = [os.environ.get("LIBTPU_INIT_ARGS")]
    flags: Mapping[str, Any] = step_options(config.compute, mesh)
    if topology.platform == "gpu" and topology.chip:
        flags = gpu_compiler.FLAGS
        options += [gpu_compiler.target_config(topology.chip)]
    options += [str(dict(flags)) if flags else None]
    key = program_key(lowered.as_text(), FORM, topology.name, *versions, *filter(None, options))
    if load_program(key) is None:
        _say(stage="compiling")
        store_program(key, compiled(lowered, flags))
    _say(key=key)


def compiler_version(topology: Topology) -> str:
    """Return the name and version of the compiler for `topology`."""
    if topology.platform == "gpu":
        return gpu_compiler.version()
    if topology.platform != "tpu":
        return f"XLA of jaxlib {jaxlib.version.__version__}"
    import importlib.metadata

    return f"libtpu {importlib.metadata.version('libtpu')}"


def compiled(lowered: jax.stages.Lowered, flags: Mapping[str, Any]) -> CompiledProgram:
    """Compile a traced step; a program that does not fit into memory is an answer, every other failure is raised.

    Args:
      lowered: the step.
      flags: options of the compiler.
    """
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
    """Return what the compiler has written of the largest program; there are small ones beside the step on the CPU."""
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


def _forward_flops(model: Model, phase: Phase) -> int:
    """Return the operations of one sequence in a model that is not trained: a third of those of training."""
    return model.training_flops(phase.sequence_length, phase.max_predictions) // 3


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
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
