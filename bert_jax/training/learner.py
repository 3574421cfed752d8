"""The compiled problem of pre-training: objectives, optimizer, mesh and state.

Every phase has a model and an objective of its own, which train the same arrays.
Other commands compile the very step that a run compiles. How its attention is computed decides what the backward pass
has to keep; where `compute.remat=auto` leaves the choice to the memory of a device, the fastest policy whose closed
form fits is taken. Where a phase, or the state alone, does not fit into the memory of a chip, the advice lists
changes that save memory, those that cost the least time first. By its `own_names` a run notices that it resumes with
another objective, architecture, optimizer, schedule or teacher.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax
from jax.sharding import Mesh

from bert_jax.config import AttentionConfig, ComputeConfig, EncoderConfig, OptimizerConfig, Phase
from bert_jax.data.examples import Layout
from bert_jax.devices import sharding
from bert_jax.devices.sharding import narrow_type
from bert_jax.errors import UserError
from bert_jax.models.architecture import bert_architecture, computation_dtype
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.costs import reads_alone, scans, scores_by_blocks, step_bytes
from bert_jax.models.electra import Electra
from bert_jax.models.kernels.choice import PLATFORMS, attention_path
from bert_jax.models.kernels.plain import Call
from bert_jax.models.protocol import HasGenerator, HasHead, HasLayers, Model
from bert_jax.objectives.distillation import Teacher
from bert_jax.objectives.objective import Objective, Term, main_term
from bert_jax.parameters import FLOAT32, total_size
from bert_jax.training.state import TrainState, state_shardings
from bert_jax.training.step import Frozen, make_train_step


def attention_of(
    model: AttentionConfig, compute: ComputeConfig, mesh: Mesh, rows: int, length: int, max_texts: int = 1
) -> str:
    """Return how attention is computed in training, for people.

    Args:
      model: what is trained.
      compute: how.
      mesh: the devices.
      rows: of a batch, over all devices.
      length: tokens of a row.
      max_texts: texts that a row has room for, each with global tokens of its own.
    """
    path, local = _paths(model, compute, mesh, rows, length, max_texts)
    path += "" if local == path else f", in local layers by {local}"
    if path.startswith("xla") or not reads_alone(model, compute):
        return path
    return f"{path}; where only some states of the last layer are read, that layer by xla"


def keeps_no_probabilities(model: EncoderConfig, compute: ComputeConfig, mesh: Mesh, rows: int, length: int) -> bool:
    """Return whether all layers compute attention in a kernel whose backward pass computes probabilities again."""
    if not isinstance(model, AttentionConfig):
        return False
    return set(_paths(model, compute, mesh, rows, length)) <= set(PLATFORMS)


def local_keys(
    model: EncoderConfig, compute: ComputeConfig, mesh: Mesh, rows: int, length: int, max_texts: int = 1
) -> int | None:
    """Return how many scores each position of a local layer has; None if there is no such layer."""
    if model.window is None:
        return None
    by_blocks = _paths(model, compute, mesh, rows, length, max_texts)[1] == "windowed"
    return scores_by_blocks(model.window.local_window, model.global_tokens * max_texts) if by_blocks else length


def _paths(
    model: AttentionConfig, compute: ComputeConfig, mesh: Mesh, rows: int, length: int, max_texts: int = 1
) -> tuple[str, str]:
    """Return how layers compute attention, and how layers that see only a window do."""
    call = Call(
        rows=rows,
        row_parts=sharding.batch_parts(mesh),
        length=length,
        heads=model.num_heads,
        head_parts=mesh.shape["tensor"],
        size=model.head_size,
        rate=model.attention_dropout,
        dtype=computation_dtype(compute),
        global_tokens=model.global_tokens * max_texts,
        others=frozenset() if model.relative_bias is None else frozenset({"bias"}),
    )
    platform, disentangled = mesh.devices.flat[0].platform, model.disentangled is not None or model.two_streams
    window = None if model.window is None else model.window.local_window
    calls = call, dataclasses.replace(call, window=window)
    path, local = (attention_path(compute, platform, each, disentangled) for each in calls)
    return path, local


USABLE = 0.9
"""Share of the memory for which `step_bytes` may plan; the rest is for the program and the gaps between arrays."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load:
    """Memory that a device needs during a step in addition to the model."""

    memory_bytes: int | None
    """Memory of the device; None if it is unknown, as of a processor."""
    moments: int
    """Values that the optimizer keeps per parameter."""
    sequence_length: int
    predictions: int
    """Positions of a sequence at which words are predicted."""
    rows: int
    """Sequences that are computed at a time."""
    split: int
    """Number of devices over which parameters, moments and gradients are split."""
    probabilities: bool = True
    """Whether the backward pass of attention reads its probabilities, rather than computing them again in a kernel."""
    local_keys: int | None = None
    """Scores that each position of a local layer has; None: see `activation_bytes`."""


def remat_policy(model: Model, compute: ComputeConfig, load: Load) -> str:
    """Return compute.remat or, for auto, the fastest policy whose closed form fits; none where memory is unknown."""
    if compute.remat != "auto":
        return compute.remat
    if load.memory_bytes is None:
        return "none"
    # A loop over layers, unlike a scan, lets the compiler decide what to keep; compiled for v5e, it is faster than sel.
    policies = ("sel", "full") if scans(model.config, compute) else ("none", "sel", "full")
    memory = USABLE * load.memory_bytes
    return next((each for each in policies if needed_bytes(model, compute, load, each) < memory), policies[-1])


def needed_bytes(model: Model, compute: ComputeConfig, load: Load, remat: str) -> int:
    """Return the memory that a step takes on a device by closed form, with a policy other than auto."""
    value_bytes = FLOAT32 if compute.dtype == "float32" else FLOAT32 // 2
    row = load.sequence_length, load.predictions, value_bytes
    sizes = dataclasses.asdict(load)
    del sizes["memory_bytes"]
    return step_bytes(
        model.config,
        model.parameters,
        remat=remat,
        value_bytes=value_bytes,
        unrolled=not scans(model.config, compute),
        generator=model.generator.config if isinstance(model, HasGenerator) else None,
        layers=model.encoder_layers if isinstance(model, HasLayers) else None,
        head_bytes=model.head_bytes(*row) if isinstance(model, HasHead) else None,
        **sizes,
    )


@dataclasses.dataclass(frozen=True)
class Learner:
    """Model, objective and optimizer of a run, and the placement of their state on the devices."""

    networks: tuple[BertForPreTraining, ...]
    """The model that the objective of each phase is made of: the parts of BERT's pre-training, and how they are
    computed."""
    make_objective: Callable[[BertForPreTraining, int], Objective]
    """Makes the objective of the phase with a number."""
    is_given: bool
    """Whether the objective was given in Python, and does not follow from the options."""
    objectives: tuple[Objective, ...]
    """That of each phase."""
    notes: tuple[tuple[str, ...], ...]
    """What each phase changes and starts afresh, in words."""
    layout: Callable[[Phase], Layout]
    """Describes the batches of a phase."""
    rule: OptimizerConfig
    """The options of the optimizer, of which clip_norm holds for any."""
    optimizer: optax.GradientTransformation
    schedule: Callable[[jax.Array], jax.Array]
    """Maps the step to the learning rate."""
    stages: tuple[Phase, ...]
    """The phases of the run, in order, those whose batch grows divided where its size changes."""
    seed: int
    mesh: jax.sharding.Mesh
    abstract: TrainState
    memory_bytes: int | None
    """Memory of a device, by which compute.remat=auto is decided; None if it is unknown, as of a processor."""
    teacher: Teacher[BertForPreTraining] | None
    """Model that the objective learns from, if any."""
    given: dict[str, str]
    """Names of the optimizer and the schedule, if they were given in Python."""

    @property
    def network(self) -> BertForPreTraining:
        """The model of the first phase, whose arrays and computation are those of all."""
        return self.networks[0]

    @property
    def objective(self) -> Objective:
        """The objective of the first phase; all train the arrays of its model."""
        return self.objectives[0]

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms of all phases, each once."""
        found: dict[str, Term] = {}
        for term in [each for objective in self.objectives for each in objective.terms]:
            if term.name not in found or not found[term.name].weight:
                found[term.name] = term
        return tuple(found.values())

    @property
    def main(self) -> tuple[str, ...]:
        """Name of the held-out loss by which the best steps of each phase are kept."""
        return tuple(main_term(objective.terms).loss for objective in self.objectives)

    @property
    def shardings(self) -> TrainState:
        return state_shardings(self.abstract)

    @property
    def own_names(self) -> dict[str, str]:
        """Names that a resumed run must share with the earlier start; see `own_names`."""
        names = own_names(self.objective, self.is_given) | self.given
        return names if self.teacher is None else names | {"teacher": self.teacher.fingerprint}

    @property
    def frozen(self) -> Frozen:
        """Arrays that the steps and the evaluation read in addition to the state."""
        return () if self.teacher is None else (self.teacher.params,)

    def remat(self, phase: Phase) -> str:
        """Return the remat policy of a phase: compute.remat or, for auto, the fastest that fits."""
        return remat_policy(self._model(phase), self.network.compute, self._load(phase))

    def needed_bytes(self, phase: Phase) -> int:
        """Return the memory that a step of a phase takes on a device, by the closed form that `remat` goes by."""
        model, compute, load = self._model(phase), self.network.compute, self._load(phase)
        return needed_bytes(model, compute, load, remat_policy(model, compute, load)) + self._teacher_bytes

    def _model(self, phase: Phase) -> Model:
        return self.objectives[phase.index].model

    def _load(self, phase: Phase) -> Load:
        rows, length = phase.batch_size // phase.micro_batches, phase.sequence_length
        where = self.networks[phase.index].config, self.network.compute, self.mesh, rows, length
        return Load(
            memory_bytes=None if self.memory_bytes is None else self.memory_bytes - self._teacher_bytes,
            moments=self._moments,
            sequence_length=length,
            predictions=phase.max_predictions,
            rows=rows // sharding.batch_parts(self.mesh),
            split=self._split,
            probabilities=not keeps_no_probabilities(*where),
            local_keys=local_keys(*where, phase.max_texts),
        )

    @property
    def _moments(self) -> int:
        """Number of values that the optimizer keeps per parameter; of one from outside, rounded up."""
        if "optimizer" not in self.given:
            return self.rule.moments
        kept = sum(leaf.size for leaf in jax.tree.leaves(self.abstract.optimizer_state) if leaf.ndim)
        return math.ceil(kept / total_size(self.objective.model.parameters))

    @property
    def _split(self) -> int:
        """Number of devices over which parameters are split."""
        return self.mesh.shape["fsdp"] * self.mesh.shape["tensor"]

    @property
    def _teacher_bytes(self) -> int:
        """Bytes of a teacher on a device: its own part, and the whole of it in the type of the products."""
        size = 0 if self.teacher is None else total_size(self.teacher.model.parameters)
        return FLOAT32 * size // self._split + FLOAT32 // 2 * size

    def objective_of(self, phase: Phase) -> Objective:
        """Return the objective of a phase as its steps compute it, with `remat`."""
        network = self.networks[phase.index]
        compute = dataclasses.replace(network.compute, remat=self.remat(phase))
        if compute == network.compute:
            return self.objectives[phase.index]
        return self.make_objective(dataclasses.replace(network, compute=compute), phase.index)

    def value_bound(self, phase: Phase) -> int:
        """Return a number that every integer in a batch of `phase` is below: all are ids, places in a row, or flags."""
        return max(self.network.config.assumed_vocab_size, phase.sequence_length + 1)

    def abstract_batch(self, phase: Phase) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the arrays of a global batch of `phase` as the step takes them, without contents."""
        where, bound = sharding.batch_sharding(self.mesh), self.value_bound(phase)
        return {
            name: jax.ShapeDtypeStruct((phase.batch_size, *shape), narrow_type(dtype, bound), sharding=where)
            for name, (shape, dtype) in self.layout(phase).items()
        }

    def train_step(self, phase: Phase) -> jax.stages.Wrapped:
        """Return the step of `phase`, see `make_train_step`; it is compiled when it is first called or lowered."""
        return make_train_step(
            self.objective_of(phase),
            self.optimizer,
            self.mesh,
            self.shardings,
            clip_norm=self.rule.clip_norm,
            micro_batches=phase.micro_batches,
            schedule=self.schedule,
            seed=self.seed,
            frozen=self.frozen,
        )


def own_names(objective: Objective, is_given: bool) -> dict[str, str]:
    """Return the names of an objective, with its terms, and of the architecture of its model, as run.json has them.

    BERT's architecture is left out. Equal names can still be different formulas: one that was edited, or that has other
    arguments.

    Args:
      is_given: whether the objective was given in Python; the name of one that follows from the options is left out.
    """
    names, model = {}, objective.model
    if is_given:
        terms = ", ".join(term.name or term.loss for term in objective.terms)
        names["objective"] = f"{qualified(type(objective))} ({terms})"
    if isinstance(model, BertForPreTraining | Electra) and type(model).__module__.startswith("bert_jax."):
        architecture = model.architecture
    else:  # also a class that somebody has derived from ours
        architecture = type(model)
    if architecture is not bert_architecture:
        names["architecture"] = qualified(architecture)
    return names


def qualified(named: Any) -> str:
    """Return the module and the name of a function or a class, or of the class of anything else."""
    while isinstance(named, functools.partial):
        named = named.func
    if not hasattr(named, "__qualname__"):
        named = type(named)
    return f"{named.__module__}.{named.__qualname__}"


def check_own_names(path: os.PathLike[str], saved: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Raise a UserError if the run in `path` has another objective, architecture, optimizer, schedule or teacher.

    `saved` has those of its run.json, which lacks the ones that are the default.
    """
    for name in ("architecture", "objective", "optimizer", "schedule", "teacher"):
        before, now = saved.get(name), identity.get(name)
        if before != now and name == "teacher":
            raise UserError(
                f"{path} holds a run with {_taught(before)}, but this start has {_taught(now)}. Resume with the "
                "teacher whose arrays have that fingerprint (objective.distillation.teacher, wherever it is now), or "
                "start this one in another --workdir"
            )
        if before != now:
            given = "objective" if name == "architecture" else name
            raise UserError(
                f"{path} holds a run with {_shown(name, before)}, but this start has {_shown(name, now)}. Resume with "
                f"the same one (the {given} that pretrain is given in Python), or start this one in another --workdir"
            )


def _taught(fingerprint: str | None) -> str:
    return "no teacher" if fingerprint is None else f"the teacher {fingerprint:.12}…"


def _shown(name: str, value: str | None) -> str:
    return f"the default {name}" if value is None else f"the {name} {value}"


STRONGER = {"none": ("sel", "full"), "sel": ("full",), "dots": ("full",), "full": ()}
"""For each policy of compute.remat, those that keep less."""


def advice(*, remat: str, mesh: Mapping[str, int], batch_size: int, micro_batches: int, where: str = "") -> list[str]:
    """Return changes that save memory; those that cost the least time come first.

    Args:
      remat: the policy under which the step does not fit.
      mesh: sizes of its axes.
      batch_size: sequences of a step on all devices.
      micro_batches: parts in which they are computed.
      where: prefix of the names of these two options, such as "phases.0.".
    """
    found = []
    if remedies := STRONGER[remat]:
        found.append(
            f"--compute.remat={' or '.join(remedies)}: the backward pass computes again what it would have to keep"
        )
    found += _split(mesh)
    per_device = batch_size // (mesh["slice"] * mesh["data"] * mesh["fsdp"])
    micro = next((n for n in range(micro_batches + 1, per_device + 1) if per_device % n == 0), None)
    if micro is not None:
        found.append(
            f"--{where}micro_batches={micro}: the same batch in {micro} parts, so that the activations of one part are "
            "kept at a time"
        )
        found.append(f"--{where}batch_size={batch_size // micro}: a smaller batch, which trains differently")
    return [*found, "chips with more memory, or more chips with the same batch"]


def state_advice(mesh: Mapping[str, int]) -> list[str]:
    """Return changes by which parameters and moments fit, whatever the batch is."""
    return [*_split(mesh), "a smaller model", "chips with more memory, or more of them with a larger --mesh.fsdp"]


def _split(mesh: Mapping[str, int]) -> list[str]:
    """Return the options that split the state over the chips that hold copies of it; none if there are no copies."""
    chips = mesh["data"] * mesh["fsdp"]
    if mesh["fsdp"] == chips:
        return []
    return [f"--mesh.data=1 --mesh.fsdp={chips}: parameters and moments are split over {chips} chips"]


def phase_advice(phase: Phase, mesh: Mapping[str, int], remat: str) -> list[str]:
    """Return `advice` for a phase of pre-training."""
    return advice(
        remat=remat,
        mesh=mesh,
        batch_size=phase.batch_size,
        micro_batches=phase.micro_batches,
        where=f"phases.{phase.index}.",
    )
