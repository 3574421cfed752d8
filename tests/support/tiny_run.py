"""A tiny training run on any mesh, its configuration and batches."""

import dataclasses
import functools

import jax
import numpy as np

from bert_jax.config import ComputeConfig, Config, MeshConfig, ModelConfig, PhaseConfig
from bert_jax.devices import sharding
from bert_jax.models.bert import BertForPreTraining
from bert_jax.objectives.choice import default_objective
from bert_jax.training.optimizers import learning_rate, optimizer
from bert_jax.training.state import abstract_state, state_shardings
from bert_jax.training.step import make_train_step

BATCH, LENGTH, MASKED, VOCABULARY = 16, 12, 4, 64
SINGLE = None  # in place of a mesh: the first device alone
CUBE = MeshConfig(data=2, fsdp=2, tensor=2)


def tiny(dropout: float = 0.2, micro_batches: int = 1, layers: str = "scan") -> tuple[BertForPreTraining, Config]:
    model = ModelConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_layers=2,
        num_heads=4,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        hidden_dropout=dropout,
        attention_dropout=dropout,
    )
    phase = PhaseConfig(
        steps=100,
        warmup_steps=2,
        sequence_length=LENGTH,
        batch_size=BATCH,
        learning_rate=0.01,
        micro_batches=micro_batches,
    )
    config = Config(model=model, phases=(phase,), compute=ComputeConfig(dtype="float32", layers=layers), seed=5)
    return BertForPreTraining(model, config.compute), config


def batch(step: int, pairs: bool = True) -> dict[str, np.ndarray]:
    """Rows with very different numbers of predictions, so that a mean of means would show."""
    random = np.random.default_rng(step)
    lengths = random.integers(LENGTH // 2, LENGTH + 1, BATCH)
    weights = (np.arange(MASKED) < random.integers(0, MASKED + 1, BATCH)[:, None]).astype(np.float32)
    arrays = {
        "input_ids": random.integers(5, VOCABULARY, (BATCH, LENGTH)),
        "masked_weights": weights,
        "token_type_ids": np.broadcast_to(np.arange(LENGTH) > LENGTH // 2, (BATCH, LENGTH)),
        "attention_mask": np.arange(LENGTH) < lengths[:, None],
        "masked_positions": random.integers(0, LENGTH // 2, (BATCH, MASKED)) * (weights > 0),
        "masked_ids": random.integers(5, VOCABULARY, (BATCH, MASKED)) * (weights > 0),
    }
    if pairs:
        arrays["next_sentence_labels"] = random.integers(0, 2, BATCH)
    return {name: array.astype(array.dtype if name == "masked_weights" else np.int32) for name, array in arrays.items()}


@functools.cache
def compiled(model, config, mesh: MeshConfig | None):
    """(mesh, shardings of the state, train step): tests that ask for the same one share its compilation."""
    mesh = sharding.make_mesh(mesh or MeshConfig(), None if mesh else jax.devices()[:1])
    tx = optimizer(config.optimizer, model.parameters)
    shardings = state_shardings(abstract_state(model, tx, mesh))
    step = make_train_step(
        default_objective(model, config),
        tx,
        mesh,
        shardings,
        clip_norm=config.optimizer.clip_norm,
        micro_batches=config.phases[0].micro_batches,
        schedule=functools.partial(learning_rate, config),
        seed=config.seed,
    )
    return mesh, shardings, step


@functools.cache
def initial_parameters(model) -> dict:
    """Large, biases too: dropout then matters, and no gradient vanishes by symmetry."""
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: (0.3 * random.normal(size=leaf.shape)).astype(np.float32),
        jax.eval_shape(lambda: model.init(jax.random.key(0))),
    )


class Run:
    """A tiny training run on one mesh; every mesh starts from the same parameters."""

    def __init__(self, model, config, mesh: MeshConfig | None):
        self.mesh, self.shardings, self.step = compiled(model, config, mesh)
        abstract = abstract_state(model, optimizer(config.optimizer, model.parameters), self.mesh)
        state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), abstract)
        self.state = jax.device_put(dataclasses.replace(state, params=initial_parameters(model)), self.shardings)

    def __call__(self, arrays: dict[str, np.ndarray]) -> dict[str, float]:
        self.state, metrics = self.step(self.state, sharding.to_global(self.mesh, arrays, BATCH))
        return {name: float(jax.device_get(value)) for name, value in metrics.items()}


def losses(model, config, mesh, steps: int = 4) -> tuple[list[dict], dict]:
    run = Run(model, config, mesh)
    history = [run(batch(step)) for step in range(steps)]
    return history, jax.device_get(run.state.params)
