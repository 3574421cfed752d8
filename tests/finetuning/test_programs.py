"""The step of fine-tuning: micro-batches that change no loss, and memory that is saved by computing again."""

import dataclasses

import jax
import numpy as np
import pytest
from pretrained_model import random_params
from task_batches import HEADS, MODEL, ROWS, make_batch

from bert_jax.config import ComputeConfig, MeshConfig
from bert_jax.config.finetuning import FinetuneConfig, TaskDataConfig, check_finetune
from bert_jax.console import load_config
from bert_jax.data.sequences import Features
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.finetuning.programs import make_programs
from bert_jax.finetuning.run import training_batches
from bert_jax.models.task import BertForTask
from bert_jax.objectives.distillation import Teacher
from bert_jax.objectives.tasks import TaskObjective
from bert_jax.training.optimizers import optimizer
from bert_jax.training.state import abstract_state, state_shardings
from bert_jax.training.step import make_shared_train_step


def train(kind: str, micro_batches: int) -> tuple[list[dict], dict]:
    config = FinetuneConfig(micro_batches=micro_batches, dropout=0.0, compute=ComputeConfig(dtype="float32"))
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:2])
    programs = make_programs(config, MODEL, HEADS[kind], mesh)
    state, history = programs.fresh_state(np.uint32(0)), []
    rate, seed = (sharding.on_every_device(mesh, value) for value in (np.float32(1e-3), np.uint32(0)))
    for step in range(3):
        batch = sharding.to_global(mesh, make_batch(kind, step), ROWS)
        state, values = programs.train_step(state, batch, rate, seed)
        history.append({name: float(value) for name, value in values.items()})
    return history, jax.device_get(state.params)


@pytest.mark.parametrize("kind", ["classification", pytest.param("tagging", marks=pytest.mark.slow)])
def test_micro_batches_give_the_losses_of_the_whole_batch(kind):
    (whole, params), (parts, parts_params) = train(kind, 1), train(kind, 4)
    for found, expected in zip(parts, whole, strict=True):
        assert found == pytest.approx(expected, rel=1e-5)
    assert ("accuracy" in whole[0]) == (kind == "classification")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), parts_params, params)


@pytest.mark.parametrize("dropout, expected", [(None, (0.1, 0.5)), (0.0, (0.0, 0.0)), (0.3, (0.3, 0.3))])
def test_dropout_is_that_of_recurrent_layers_too(dropout, expected):
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    config, head = FinetuneConfig(dropout=dropout), HEADS["classification"]
    recurrent = load_config("ulmfit_mini").model
    recurrent = dataclasses.replace(recurrent, vocab_size=41, hidden_dropout=0.1)
    found = make_programs(config, recurrent, head, mesh).model.config
    assert (found.hidden_dropout, found.recurrent_dropout) == expected
    attends = make_programs(config, MODEL, head, mesh).model.config
    rate = MODEL.attention_dropout if dropout is None else dropout
    assert attends.attention_dropout == rate and not hasattr(attends, "recurrent_dropout")


@pytest.mark.parametrize(
    "remat", ["sel", *(pytest.param(name, marks=pytest.mark.slow) for name in ("auto", "none", "dots", "full"))]
)
def test_remat_reaches_the_step_of_fine_tuning(remat):
    config = FinetuneConfig(compute=ComputeConfig(dtype="float32", remat=remat))
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    programs = make_programs(config, MODEL, HEADS["classification"], mesh)
    transformation = optimizer(config.optimizer, programs.model.parameters)
    state = abstract_state(programs.model, transformation, mesh)
    shardings = state_shardings(state)
    step = make_shared_train_step(TaskObjective(programs.model), transformation, mesh, shardings, clip_norm=1.0)
    program = str(jax.make_jaxpr(step)(state, make_batch("classification", 0), np.float32(0), np.uint32(0)))
    assert ("remat" in program or "checkpoint" in program) == (remat not in ("auto", "none"))


@pytest.mark.parametrize(
    "options, said",
    [
        (
            {"batch_size": 30, "micro_batches": 4},
            "batch_size=30 is not divisible by micro_batches=4; nearest: 28 or 32",
        ),
        ({"batch_size": 2, "micro_batches": 4}, "batch_size=2 is not divisible by micro_batches=4; nearest: 4"),
        (
            {"grid": True, "grid_batch_sizes": (16, 20), "micro_batches": 8},
            "grid_batch_sizes=20 is not divisible by micro_batches=8; nearest: 16 or 24",
        ),
        ({"micro_batches": 0}, "micro_batches=0 must be positive"),
    ],
)
def test_batches_that_cannot_be_divided_are_refused(options, said):
    given = {"task": "mrpc", "init_from": "model", "workdir": "work", "data": TaskDataConfig(dir="data")}
    with pytest.raises(UserError, match=said):
        check_finetune(FinetuneConfig(**given, **options))
    check_finetune(FinetuneConfig(**given, batch_size=32, micro_batches=4))


def test_shared_rows_are_as_long_as_model_and_teacher_can_read():
    """Texts of 10, 5 and 3 tokens, in turn, which rows of 18 hold without padding."""
    config = FinetuneConfig(packing=True, batch_size=8, bucket_window=1)
    ids = [np.ones(length, np.int32) for length in (10, 5, 3) * 8]
    features = Features(ids, ids, np.zeros(len(ids), np.int32), np.arange(len(ids)), 12)
    model, head = dataclasses.replace(MODEL, max_position_embeddings=40), HEADS["classification"]
    mesh, found = sharding.make_mesh(MeshConfig(), jax.devices()[:1]), []
    for positions in (None, 40, 12):
        teacher = None
        if positions:
            network = BertForTask(dataclasses.replace(model, max_position_embeddings=positions), head)
            params = jax.device_put(random_params(network), sharding.replicated(mesh))
            teacher = Teacher(network, params, "fingerprint")
        programs = make_programs(config, model, head, mesh, teacher)
        found.append(training_batches(config, features, programs, batch_size=8, seed=0).length)
    assert found == [18, 18, 12]
