"""The mesh: how parameters, optimizer moments and batches are laid out, placed and transferred.

The mesh alone determines the parallelism: `slice` and `data` split the batch; `fsdp` splits the batch and the storage
of parameters, gradients and moments; `tensor` splits heads, feed-forward width and vocabulary. The named axes of a
parameter (bert_jax/parameters.py) say how it is split. Whole parameters are gathered over `fsdp` once per step: at
BERT sizes they fit on a device, and only the moments have to be split.

`slice` is the outermost axis. It represents TPU slices, which only the network of the data centre connects. Each
slice holds the whole state, so that nothing but gradients and the sums of a few metrics crosses that network.

From a file, each device reads its own part of an array, and shared parts are read once. Batches travel to the devices
in as few bytes as hold their values, and are widened again inside the step.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.table import Table

from bert_jax.config import MeshConfig, Phase, PhaseConfig
from bert_jax.devices.hardware import all_devices
from bert_jax.errors import UserError
from bert_jax.parameters import FLOAT32, Parameter, ParameterTable

AXES = ("slice", "data", "fsdp", "tensor")
BATCH_AXES = ("slice", "data", "fsdp")
BATCH = P(BATCH_AXES)
Devices = Sequence[Any] | None  # of jax.Device, which jax does not declare as a type
"""What a mesh is made of; None: every device of every process."""

SPLIT = {"vocab": "tensor", "heads": "tensor", "intermediate": "tensor", "hidden": "fsdp", "embedding": "fsdp"}
"""Axis of a parameter → axis of the mesh. Of two axes with the same one the first gets it; all others are whole."""
LARGE = 2**16  # values
LEAST_IN_PAIRS = 16  # devices on the fsdp axis; with fewer, adding up in pairs would move more than it saves


def make_mesh(config: MeshConfig, devices: Devices = None) -> Mesh:
    """Return the mesh of all `devices` (default: every device of every process) with axes slice, data, fsdp, tensor.

    Raises:
      UserError: the sizes do not multiply to the number of devices, mesh.slice is not the number of TPU slices, or JAX
        finds no device.
    """
    devices = all_devices() if devices is None else devices
    sizes = {axis: getattr(config, axis) for axis in AXES}
    fixed = math.prod(size for size in sizes.values() if size != -1)
    product = len(devices) // fixed * fixed if -1 in sizes.values() else fixed
    if product != len(devices) or len(devices) < fixed:
        shown = " × ".join(f"{axis}={size}" for axis, size in sizes.items())
        raise UserError(
            f"mesh {shown} needs {'a multiple of ' if -1 in sizes.values() else ''}{fixed} devices, but there "
            f"are {len(devices)}; meshes that fit: {' or '.join(_mesh_fixes(sizes, len(devices)))}"
        )
    shape = [len(devices) // fixed if size == -1 else size for size in sizes.values()]
    types, slices = (AxisType.Auto,) * len(AXES), tpu_slices(devices)
    if slices == 1:
        return jax.make_mesh(shape, AXES, axis_types=types, devices=devices)
    if shape[0] != slices:
        raise UserError(
            f"the devices are those of {slices} TPU slices, but mesh.slice={config.slice}; set mesh.slice={slices}, so "
            "that only gradients cross the network between slices"
        )
    across = [slices if axis == "slice" else 1 for axis in AXES]
    return Mesh(mesh_utils.create_hybrid_device_mesh([1, *shape[1:]], across, devices), AXES, axis_types=types)


def tpu_slices(devices: Devices) -> int:
    """Return how many slices of TPUs the devices belong to; 1 for everything but TPUs."""
    return len({getattr(device, "slice_index", 0) for device in devices or () if device.platform == "tpu"}) or 1


def _mesh_fixes(sizes: dict[str, int], count: int) -> list[str]:
    """Return changes of a single axis that make the mesh fit `count` devices, else the mesh that always fits."""
    fixes = []
    for axis, size in sizes.items():
        if size == -1:
            continue
        rest = math.prod(other for name, other in sizes.items() if name != axis and other != -1)
        fits = [
            n for n in range(1, count + 1) if (count % (n * rest) == 0 if -1 in sizes.values() else n * rest == count)
        ]
        if fits:
            fixes.append(f"mesh.{axis}={min(fits, key=lambda n: abs(n - size))}")
    return fixes or ["mesh.slice=1 mesh.data=-1 mesh.fsdp=1 mesh.tensor=1"]


def check_batch(stages: Sequence[Phase], phases: Sequence[PhaseConfig], mesh: Mesh) -> None:
    """Raise a UserError if a batch cannot be split evenly over devices and micro-batches.

    Args:
      stages: the resolved stages of the run.
      phases: its options.
      mesh: the devices.
    """
    for phase in stages:
        unit = batch_parts(mesh) * phase.micro_batches
        if phase.batch_size % unit:
            axes = " × ".join(
                f"{axis}={mesh.shape[axis]}" for axis in BATCH_AXES if mesh.shape[axis] > 1 or axis == "data"
            )
            down, up = phase.batch_size // unit * unit, -(-phase.batch_size // unit) * unit
            options = phases[phase.index]
            given = f"batch_size={phase.batch_size}"
            if phase.batch_size != options.batch_size:
                given = f"ramp_batch_sizes={','.join(map(str, options.ramp_batch_sizes))}: {phase.batch_size}"
            raise UserError(
                f"phases.{phase.index}.{given} is not divisible by {unit} "
                f"(mesh {axes} × phases.{phase.index}.micro_batches={phase.micro_batches}); "
                f"nearest: {f'{down} or ' if down else ''}{up}"
            )


def partition_spec(mesh: Mesh, parameter: Parameter) -> tuple[P, list[str]]:
    """Return the spec of an array by SPLIT, and remarks on what is left whole that one would expect to be split.

    These are axes that the mesh does not divide, and arrays of more than LARGE values without an axis that is split.
    """
    others = [
        axis.name
        for place, axis in enumerate(parameter.axes)
        if place != parameter.layer_axis and axis.name != "every_layer"
    ]
    if others in (["hidden"], ["embedding"]):
        return P(), []  # norms and biases: too small to be worth gathering
    axes, remarks = [], []
    for name, _ in parameter.axes:
        axis = SPLIT.get(name)
        axes.append(None if axis in axes else axis)
    if not any(axes):
        splits = mesh.shape["fsdp"] * mesh.shape["tensor"] > 1
        return P(), [f"no axis that is split ({', '.join(SPLIT)})"] if splits and parameter.size > LARGE else []
    for place, (axis, size) in enumerate(zip(axes, parameter.shape, strict=True)):
        if axis is not None and size % mesh.shape[axis]:
            remarks.append(f"{size} is not divisible by {axis}={mesh.shape[axis]}: whole on every device")
            axes[place] = None
    return P(*axes), remarks


def shardings(mesh: Mesh, entries: Any) -> Any:
    """Return the NamedShardings for a tree of Parameter, which `entries` and `state_entries` make from arrays."""
    return jax.tree.map(lambda parameter: NamedSharding(mesh, partition_spec(mesh, parameter)[0]), entries)


def under(mesh: Mesh, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, which JAX traces, with `mesh` as the mesh in use: for kernels that XLA cannot split itself."""

    @functools.wraps(function)
    def traced(*arguments: Any, **options: Any):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return function(*arguments, **options)

    return traced


def gathered(tree: Any) -> Any:
    """Return the shardings in `tree` without the fsdp axis: those of whole parameters during computation."""

    def one(sharding: Any):
        return NamedSharding(sharding.mesh, P(*(None if axis == "fsdp" else axis for axis in sharding.spec)))

    return jax.tree.map(one, tree)


def split_coarsely(where: NamedSharding) -> NamedSharding:
    """Return `where` with every fsdp shard twice as large, on a mesh of the same devices in pairs.

    Of a sum over all chips of a square slice whose parts they keep, the compiler for TPUs makes a sum of whole arrays,
    which moves twice as much. Asked for coarse shards first, it scatters the sum over every other chip, and then adds
    what the two of a pair have, which is little.
    """
    mesh, devices = where.mesh, where.mesh.shape["fsdp"]
    if "fsdp" not in where.spec or devices < LEAST_IN_PAIRS or devices % 2:
        return where
    axes = [(name, size) for name, size in mesh.shape.items() if name != "fsdp"]
    axes[AXES.index("fsdp") : AXES.index("fsdp")] = [("fsdp", devices // 2), ("pair", 2)]
    names, sizes = zip(*axes, strict=True)
    assert isinstance(mesh, Mesh), "shardings of a state are on devices"
    in_pairs = Mesh(mesh.devices.reshape(sizes), names, axis_types=(AxisType.Auto,) * len(names))
    return NamedSharding(in_pairs, where.spec)


def gather(tree: Any, shardings: Any) -> Any:
    """Return the arrays with `shardings` whole over fsdp, gathered in pairs of chips first where those are used.

    Of a gather over all chips of a cube (v5p:4x4x4), the compiler for TPUs makes a sum of whole arrays that are zero
    outside a chip's own shard, which moves twice as much. In two steps a chip sends the same as in a single gather.
    """
    in_pairs = jax.lax.with_sharding_constraint(tree, jax.tree.map(split_coarsely, shardings))
    return jax.lax.with_sharding_constraint(in_pairs, gathered(shardings))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of every array [batch, …]; the tensor axis holds copies."""
    return NamedSharding(mesh, BATCH)


def batch_parts(mesh: Mesh) -> int:
    """Return the number of parts that a batch is split into: one for each device, but for copies on the tensor axis."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def host_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """Return the rows of the global batch that this process must load: int64, ascending.

    They are taken from the sharding and not from the process index, so they are right for any mesh and any order of
    devices; two processes that share a copy (tensor axis across hosts) get the same rows.
    """
    parts = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    spans = sorted({part[0].indices(batch_size)[:2] for part in parts if part is not None})
    return np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in spans])


def to_global(mesh: Mesh, host_batch: dict[str, np.ndarray], batch_size: int) -> dict[str, jax.Array]:
    """Return global arrays [batch_size, …] from this process's rows, which are those of `host_rows` in that order."""
    sharding = batch_sharding(mesh)
    return {
        name: jax.make_array_from_process_local_data(sharding, rows, (batch_size, *rows.shape[1:]))
        for name, rows in host_batch.items()
    }


def on_every_device(mesh: Mesh, value: np.ndarray | np.generic) -> jax.Array:
    """Return `value` as an array that every device holds whole; every process must give the same."""
    return jax.make_array_from_callback(value.shape, replicated(mesh), lambda _: np.asarray(value))


def table(mesh: Mesh, parameters: ParameterTable) -> Table:
    """Return the shape, partition, MiB per device (float32) and remarks for each parameter."""
    title = "mesh " + " × ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    result = Table(title=title)
    result.add_column("array", no_wrap=True)  # a truncated path identifies nothing; the other columns wrap
    for column in ("shape", "partition", "MiB per device", "remark"):
        result.add_column(column, overflow="fold")
    total = 0
    for parameter in sorted(parameters.values(), key=lambda each: each.path.split("/")):
        (spec, remarks), shape = partition_spec(mesh, parameter), parameter.shape
        size = math.prod(NamedSharding(mesh, spec).shard_shape(shape)) * FLOAT32
        total += size
        parts = ", ".join(axis or "-" for axis in spec) if any(spec) else "whole"
        result.add_row(parameter.path, " × ".join(map(str, shape)), parts, f"{size / 2**20:.2f}", "; ".join(remarks))
    result.add_section()
    result.add_row("total", "", "", f"{total / 2**20:.2f}", "")
    return result


NARROW = (np.int16, np.uint16)
"""Types in which int32 values cross the bus, the first that holds them."""


def narrow_type(dtype: np.typing.DTypeLike, bound: int) -> np.dtype:
    """Return the type in which values of `dtype` that are below `bound` cross the bus; floats stay as they are."""
    if np.dtype(dtype) == np.int32:
        for narrow in NARROW:
            if bound <= np.iinfo(narrow).max + 1:
                return np.dtype(narrow)
    return np.dtype(dtype)


def narrowed(batch: dict[str, np.ndarray], bound: int) -> dict[str, np.ndarray]:
    """Return the batch in the types of `narrow_type`.

    Raises:
      ValueError: a value is not below `bound`, or is negative where the type has no sign.
    """
    result = {}
    for name, values in batch.items():
        result[name] = values.astype(narrow_type(values.dtype, bound), copy=False)
        if result[name] is not values and not np.array_equal(result[name], values):
            raise ValueError(f"{name} has values that {result[name].dtype} does not hold, though all are below {bound}")
    return result


def widened(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return the batch with int32 in place of narrower integers, as models and objectives take it."""
    return {name: x.astype(jnp.int32) if x.dtype in NARROW else x for name, x in batch.items()}
