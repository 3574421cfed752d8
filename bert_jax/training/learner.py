"""What pre-training trains, from the configuration alone, so that other commands compile the very step that it runs."""

import dataclasses
import functools

import jax
import optax

from bert_jax.config import Config, Phase
from bert_jax.models.bert import BertForPreTraining
from bert_jax.objectives.bert_pretraining import MakeObjective
from bert_jax.objectives.objective import Objective, main_term
from bert_jax.optim.optimizers import optimizer as make_optimizer
from bert_jax.optim.schedules import learning_rate
from bert_jax.training.state import TrainState, abstract_state, state_shardings
from bert_jax.training.step import make_train_step


@dataclasses.dataclass(frozen=True)
class Learner:
    """What is trained, and how its state is placed on the devices."""

    objective: Objective
    optimizer: optax.GradientTransformation
    mesh: jax.sharding.Mesh
    abstract: TrainState
    main: str
    """Name of the held-out loss by which the best steps are kept."""

    @classmethod
    def of(cls, config: Config, mesh: jax.sharding.Mesh, make_objective: MakeObjective) -> "Learner":
        """Return what `config` trains on the devices of `mesh`; no array is made.

        Raises:
          UserError: the model's table of parameters and what it initializes differ.
        """
        objective = make_objective(BertForPreTraining(config.model, config.compute), config)
        optimizer = make_optimizer(config.optimizer, objective.model.parameters)
        main = main_term(objective.terms).loss
        return cls(objective, optimizer, mesh, abstract_state(objective.model, optimizer, mesh), main)

    @property
    def shardings(self) -> TrainState:
        return state_shardings(self.abstract)

    def train_step(self, config: Config, phase: Phase):
        """Return the step of `phase`, see `make_train_step`; it is compiled when it is first called or lowered."""
        return make_train_step(
            self.objective,
            self.optimizer,
            self.mesh,
            self.shardings,
            clip_norm=config.optimizer.clip_norm,
            micro_batches=phase.micro_batches,
            schedule=functools.partial(learning_rate, config),
            seed=config.seed,
        )
