"""What pre-training trains, from the configuration alone, so that other commands compile the very step that it runs."""

import dataclasses
import functools

import jax
import optax

from bert_jax.config import Config, Phase
from bert_jax.data.examples.batch_layout import batch_layout
from bert_jax.devices import sharding
from bert_jax.devices.transfer import narrow_type
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import pretraining_parts
from bert_jax.models.parameters import FLOAT32, total_size
from bert_jax.objectives.distillation import Teacher
from bert_jax.objectives.identity import own_names
from bert_jax.objectives.objective import Objective, main_term
from bert_jax.objectives.objective_choice import MakeObjective, default_objective
from bert_jax.optim.averaging import averaged
from bert_jax.optim.optimizers import optimizer as make_optimizer
from bert_jax.optim.schedules import learning_rate
from bert_jax.training.attention_used import keeps_no_probabilities, local_keys
from bert_jax.training.frozen import Frozen
from bert_jax.training.recomputation import Load, needed_bytes, remat_policy
from bert_jax.training.state import TrainState, abstract_state, state_shardings
from bert_jax.training.step import make_train_step


@dataclasses.dataclass(frozen=True)
class Learner:
    """What is trained, and how its state is placed on the devices."""

    config: Config
    make_objective: MakeObjective
    objective: Objective
    optimizer: optax.GradientTransformation
    mesh: jax.sharding.Mesh
    abstract: TrainState
    main: str
    """Name of the held-out loss by which the best steps are kept."""
    memory_bytes: int | None
    """Memory of a device, by which compute.remat=auto is decided; None if it is unknown, as of a processor."""
    teacher: Teacher[BertForPreTraining] | None = None
    """What the objective learns from, if it is a model."""

    @classmethod
    def of(
        cls,
        config: Config,
        mesh: jax.sharding.Mesh,
        make_objective: MakeObjective,
        memory_bytes: int | None = None,
        teacher: Teacher[BertForPreTraining] | None = None,
    ) -> "Learner":
        """Return what `config` trains on the devices of `mesh`, which have `memory_bytes` each; no array is made.

        With a `teacher`, whose arrays are on the devices already or described only, the objective is that of learning
        from it, whatever `make_objective` is.

        Raises:
          UserError: the model's table of parameters and what it initializes differ.
        """
        if teacher is not None:
            make_objective = functools.partial(default_objective, teacher=teacher.model)
        objective = make_objective(_model(config, teacher), config)
        update_rule = make_optimizer(config.optimizer, objective.model.parameters)
        optimizer = averaged(update_rule, config.optimizer.ema_decay)
        main = main_term(objective.terms).loss
        abstract = abstract_state(objective.model, optimizer, mesh)
        return cls(config, make_objective, objective, optimizer, mesh, abstract, main, memory_bytes, teacher)

    @property
    def shardings(self) -> TrainState:
        return state_shardings(self.abstract)

    @property
    def own_names(self) -> dict[str, str]:
        """What a resumed run must have in common with the earlier start; see `objectives.identity.own_names`."""
        is_given = self.teacher is None and self.make_objective is not default_objective
        names = own_names(self.objective, is_given)
        return names if self.teacher is None else names | {"teacher": self.teacher.fingerprint}

    @property
    def frozen(self) -> Frozen:
        """Arrays that the steps and the evaluation read beside the state."""
        return () if self.teacher is None else (self.teacher.params,)

    def remat(self, phase: Phase) -> str:
        """Return the remat policy of a phase: compute.remat or, for auto, the fastest that fits."""
        return remat_policy(self.objective.model, self.config.compute, self._load(phase))

    def needed_bytes(self, phase: Phase) -> int:
        """Return the memory that a step of a phase takes on a device, by the closed form that `remat` goes by."""
        model, compute, load = self.objective.model, self.config.compute, self._load(phase)
        return needed_bytes(model, compute, load, remat_policy(model, compute, load)) + self._teacher_bytes

    def _load(self, phase: Phase) -> Load:
        config, mesh, rows = self.config, self.mesh, phase.batch_size // phase.micro_batches
        return Load(
            memory_bytes=None if self.memory_bytes is None else self.memory_bytes - self._teacher_bytes,
            moments=config.optimizer.moments,
            sequence_length=phase.sequence_length,
            predictions=phase.max_predictions,
            rows=rows // sharding.batch_parts(mesh),
            split=self._split,
            probabilities=not keeps_no_probabilities(config.model, config.compute, mesh, rows, phase.sequence_length),
            local_keys=local_keys(config.model, config.compute, mesh, rows, phase.sequence_length, phase.max_texts),
        )

    @property
    def _split(self) -> int:
        """Number of devices over which parameters are split."""
        return self.mesh.shape["fsdp"] * self.mesh.shape["tensor"]

    @property
    def _teacher_bytes(self) -> int:
        """What a teacher takes on a device: it is there, and whole in the type of the products."""
        size = 0 if self.teacher is None else total_size(self.teacher.model.parameters)
        return FLOAT32 * size // self._split + FLOAT32 // 2 * size

    def objective_of(self, phase: Phase) -> Objective:
        """Return `objective` as the steps of a phase compute it, with `remat`."""
        compute = dataclasses.replace(self.config.compute, remat=self.remat(phase))
        if compute == self.config.compute:
            return self.objective
        config = dataclasses.replace(self.config, compute=compute)
        return self.make_objective(_model(config, self.teacher), config)

    def value_bound(self, phase: Phase) -> int:
        """Return a number that every integer in a batch of `phase` is below: all are ids, places in a row, or flags."""
        return max(self.config.model.assumed_vocab_size, phase.sequence_length + 1)

    def abstract_batch(self, phase: Phase) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the arrays of a global batch of `phase` as the step takes them, without contents."""
        where, bound = sharding.batch_sharding(self.mesh), self.value_bound(phase)
        return {
            name: jax.ShapeDtypeStruct((phase.batch_size, *shape), narrow_type(dtype, bound), sharding=where)
            for name, (shape, dtype) in batch_layout(phase, self.config).items()
        }

    def train_step(self, phase: Phase) -> jax.stages.Wrapped:
        """Return the step of `phase`, see `make_train_step`; it is compiled when it is first called or lowered."""
        return make_train_step(
            self.objective_of(phase),
            self.optimizer,
            self.mesh,
            self.shardings,
            clip_norm=self.config.optimizer.clip_norm,
            micro_batches=phase.micro_batches,
            schedule=functools.partial(learning_rate, self.config),
            seed=self.config.seed,
            frozen=self.frozen,
        )


def _model(config: Config, teacher: Teacher[BertForPreTraining] | None) -> BertForPreTraining:
    """Return the model that an objective is made of."""
    model, size = config.model, None
    if teacher is not None:
        size = config.objective.distillation.teacher_size(model.hidden_size, teacher.model.config.hidden_size)
    parts = pretraining_parts(model, config.objective)
    return BertForPreTraining(model, config.compute, parts, teacher_size=size)
