"""The layout of parameters, optimizer moments and batches on the devices.

The mesh alone determines the parallelism: `data` splits the batch; `fsdp` splits the batch and the storage of
parameters, gradients and moments; `tensor` splits heads, feed-forward width and vocabulary. One table maps paths to
axes. Whole parameters are gathered over `fsdp` once per step: at BERT sizes they fit on a device, and only the moments
have to be split.
"""

import math
import re
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from rich.table import Table

from bert_jax.config import Config, MeshConfig
from bert_jax.errors import UserError

AXES = ("data", "fsdp", "tensor")
BATCH = P(("data", "fsdp"))

# First match wins. Optimizer moments match too, because their paths end like those of their parameters.
RULES = (
    (r"embeddings/word/table$", P("tensor", "fsdp")),  # [vocabulary, hidden]
    (r"embeddings/(position|token_type)/table$", P(None, "fsdp")),  # [positions or types, hidden]
    (r"attention/(query|key|value)/kernel$", P(None, "fsdp", "tensor", None)),  # [layer, hidden, heads, head]
    (r"attention/(query|key|value)/bias$", P(None, "tensor", None)),  # [layer, heads, head]
    (r"attention/output/kernel$", P(None, "tensor", None, "fsdp")),  # [layer, heads, head, hidden]
    (r"feed_forward/intermediate/kernel$", P(None, "fsdp", "tensor")),  # [layer, hidden, intermediate]
    (r"feed_forward/intermediate/bias$", P(None, "tensor")),  # [layer, intermediate]
    (r"feed_forward/output/kernel$", P(None, "tensor", "fsdp")),  # [layer, intermediate, hidden]
    (r"(pooler|mlm/dense|next_sentence)/kernel$", P("fsdp", None)),  # [hidden, out]
    (r"mlm/bias$", P("tensor")),  # [vocabulary]
    (r"", P()),  # norms, the other biases, counters
)


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Return the mesh of all `devices` (default: every device of every process) with axes data, fsdp, tensor.

    Raises:
        UserError: the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = {axis: getattr(config, axis) for axis in AXES}
    fixed = math.prod(size for size in sizes.values() if size != -1)
    product = len(devices) // fixed * fixed if -1 in sizes.values() else fixed
    if product != len(devices) or len(devices) < fixed:
        shown = " × ".join(f"{axis}={size}" for axis, size in sizes.items())
        raise UserError(
            f"mesh {shown} needs {'a multiple of ' if -1 in sizes.values() else ''}{fixed} devices but there are "
            f"{len(devices)}; what fits: {' or '.join(_mesh_fixes(sizes, len(devices)))}"
        )
    shape = [len(devices) // fixed if size == -1 else size for size in sizes.values()]
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


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
    return fixes or ["mesh.data=-1 mesh.fsdp=1 mesh.tensor=1"]


def check_batch(config: Config, mesh: Mesh) -> None:
    """Raise a UserError if a phase's batch cannot be split evenly over devices and micro-batches."""
    for index, phase in enumerate(config.phases):
        data, fsdp = mesh.shape["data"], mesh.shape["fsdp"]
        unit = data * fsdp * phase.micro_batches
        if phase.batch_size % unit:
            down, up = phase.batch_size // unit * unit, -(-phase.batch_size // unit) * unit
            raise UserError(
                f"phases.{index}.batch_size={phase.batch_size} is not divisible by {unit} "
                f"(mesh data={data} × fsdp={fsdp} × phases.{index}.micro_batches={phase.micro_batches}); "
                f"nearest: {f'{down} or ' if down else ''}{up}"
            )


def partition_spec(mesh: Mesh, path: str, shape: tuple[int, ...]) -> tuple[P, list[str]]:
    """Return the spec of the array at `path` by RULES, and a remark for each dimension that is left whole."""
    rule = next(spec for pattern, spec in RULES if re.search(pattern, path))
    axes, remarks = [], []
    for axis, size in zip(rule, shape):
        if axis is not None and size % mesh.shape[axis]:
            remarks.append(f"{size} is not divisible by {axis}={mesh.shape[axis]}: whole on every device")
            axis = None
        axes.append(axis)
    return P(*axes), remarks


def shardings(mesh: Mesh, tree):
    """Return the NamedShardings for a tree of arrays or ShapeDtypeStructs (parameters, moments or a train state)."""

    def one(path, leaf):
        return NamedSharding(mesh, partition_spec(mesh, _name(path), leaf.shape)[0])

    return jax.tree.map_with_path(one, tree)


def gathered(tree):
    """Return the shardings in `tree` without the fsdp axis: those of whole parameters during computation."""

    def one(sharding):
        return NamedSharding(sharding.mesh, P(*(None if axis == "fsdp" else axis for axis in sharding.spec)))

    return jax.tree.map(one, tree)


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of every array [batch, …]; the tensor axis holds copies."""
    return NamedSharding(mesh, BATCH)


def host_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """Return the rows of the global batch that this process must load: int64, ascending.

    They are taken from the sharding and not from the process index, so they are right for any mesh and any order of
    devices; two processes that share a copy (tensor axis across hosts) get the same rows.
    """
    slices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    spans = sorted({rows.indices(batch_size)[:2] for (rows,) in slices})
    return np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in spans])


def to_global(mesh: Mesh, host_batch: dict[str, np.ndarray], batch_size: int) -> dict[str, jax.Array]:
    """Return global arrays [batch_size, …] from this process's rows, which are those of `host_rows` in that order."""
    sharding = batch_sharding(mesh)
    return {
        name: jax.make_array_from_process_local_data(sharding, rows, (batch_size, *rows.shape[1:]))
        for name, rows in host_batch.items()
    }


def table(mesh: Mesh, tree) -> Table:
    """Return the shape, partition, MiB per device and remarks for each array of `tree`."""
    title = "mesh " + " × ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    result = Table(title=title)
    result.add_column("array", no_wrap=True)  # a truncated path identifies nothing; the other columns wrap
    for column in ("shape", "partition", "MiB per device", "remark"):
        result.add_column(column, overflow="fold")
    total = 0
    for path, leaf in jax.tree.leaves_with_path(tree):
        spec, remarks = partition_spec(mesh, _name(path), leaf.shape)
        size = math.prod(NamedSharding(mesh, spec).shard_shape(leaf.shape)) * leaf.dtype.itemsize
        total += size
        parts = ", ".join(axis or "-" for axis in spec) if any(spec) else "whole"
        result.add_row(_name(path), " × ".join(map(str, leaf.shape)), parts, f"{size / 2**20:.2f}", "; ".join(remarks))
    result.add_section()
    result.add_row("total", "", "", f"{total / 2**20:.2f}", "")
    return result


def _name(path) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
