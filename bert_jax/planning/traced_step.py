"""The step of a phase, traced but not compiled, for devices that need not exist."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax.config import Config, Phase
from bert_jax.objectives.objective_choice import default_objective
from bert_jax.planning import gpu_compiler
from bert_jax.planning.topology import Topology
from bert_jax.pretrained.teacher import describe_teacher, stored_teacher
from bert_jax.training.learner import Learner


def described_devices(topology: Topology) -> Sequence[Any]:
    """Return the devices of `topology`: of accelerators descriptions that no program can run on, else virtual ones.

    Those are of the CPU, also for GPUs whose compiler is not installed. The environment must have been prepared
    (planning/compilation.py): libtpu looks for a real TPU otherwise, and the CPU has one device.
    """
    if topology.platform == "gpu" and gpu_compiler.plugin():
        assert topology.chip is not None
        return gpu_compiler.described_cards(topology.chip, topology.chips)
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
        teacher = stored_teacher(config)
        size = model.assumed_vocab_size if teacher is None else teacher.model.vocab_size
        model = dataclasses.replace(model, vocab_size=size)
    if compute.dtype == "auto":
        compute = dataclasses.replace(compute, dtype="float32" if topology.platform == "cpu" else "bfloat16")
    if compute.products == "auto":
        alone = topology.platform == "cpu" and topology.chips == 1
        form = "cpu" if alone else "tpu" if topology.platform == "tpu" else "plain"
        compute = dataclasses.replace(compute, products=form)
    if topology.slices > 1 and mesh.slice == 1:
        mesh = dataclasses.replace(mesh, slice=topology.slices)
    return dataclasses.replace(config, compute=compute, mesh=mesh, model=model)


def learner(config: Config, mesh: Mesh, memory_bytes: int | None = None) -> Learner:
    """Return what `pretrain` trains with these options on devices with so much memory.

    Raises:
      UserError: there is no such teacher, or the student cannot learn from it.
    """
    return Learner.of(config, mesh, default_objective, memory_bytes, describe_teacher(config, mesh))


def traced_step(what: Learner, phase: Phase) -> jax.stages.Lowered:
    """Return the very step that `pretrain` compiles for `phase`."""
    traced = what.train_step(phase).trace(what.abstract, what.abstract_batch(phase), *what.frozen)
    # JAX takes the platform of GPUs from this process, which has none.
    platforms = ("cuda",) if what.mesh.devices.flat[0].platform == "gpu" else None
    return traced.lower(lowering_platforms=platforms)
