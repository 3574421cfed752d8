"""A teacher in the compiled step: an argument that is neither trained nor consumed."""

import dataclasses

import jax
import numpy as np
import pytest
from pretrained_model import random_params
from small_model import FLOAT32, SMALL, make_batch

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import Config, DataConfig, MaskedWords, MeshConfig, PhaseConfig, resolve_phases
from bert_jax.config.objective import DistillationConfig
from bert_jax.devices import sharding
from bert_jax.models.bert import BertForPreTraining
from bert_jax.objectives.choice import default_objective
from bert_jax.objectives.distillation import Teacher
from bert_jax.parameters import entries
from bert_jax.training.learner import Learner
from bert_jax.training.state import create_state

ONE_LAYER = dataclasses.replace(SMALL, num_layers=1)


def learner_on(mesh, arrays):
    teacher_model = BertForPreTraining(ONE_LAYER, FLOAT32, ("mlm",))
    where = sharding.shardings(mesh, entries(teacher_model.parameters, arrays))
    teacher = Teacher(teacher_model, jax.device_put(arrays, where), "fingerprint")
    config = Config(
        model=ONE_LAYER,
        compute=FLOAT32,
        data=DataConfig(sentence_pairs="none"),
        objective=MaskedWords(distillation=DistillationConfig(teacher="there")),
        phases=(PhaseConfig(steps=4, sequence_length=14, batch_size=3, max_predictions=4),),
    )
    return Learner.of(config, mesh, default_objective, None, teacher)


@pytest.fixture(scope="module")
def arrays():
    return random_params(BertForPreTraining(ONE_LAYER, FLOAT32, ("mlm",)), seed=4)


def test_a_teacher_is_neither_trained_nor_consumed(arrays):
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    learner = learner_on(mesh, arrays)
    (phase,) = resolve_phases(learner.config)
    state = create_state(learner.objective.model, learner.optimizer, mesh, 0)
    assert not [path for path in leaf_paths(state) if "teacher" in path]
    batch = {name: values for name, values in make_batch().items() if not name.startswith("next_sentence")}
    batch = sharding.to_global(mesh, batch, 3)
    step = learner.train_step(phase).lower(state, batch, *learner.frozen).compile()
    found = []
    for _ in range(2):
        state, metrics = step(state, batch, *learner.frozen)
        found.append(float(metrics["soft_targets_loss"]))
    assert found[0] != found[1] > 0
    for path, values in leaf_paths(learner.teacher.params).items():
        assert np.asarray(values).tobytes() == leaf_paths(arrays)[path].tobytes()


def test_a_teacher_is_an_argument_and_no_constant_of_the_program(arrays):
    learner = learner_on(sharding.make_mesh(MeshConfig(), jax.devices()[:1]), arrays)
    (phase,) = resolve_phases(learner.config)
    arguments = learner.abstract, learner.abstract_batch(phase), *learner.frozen
    text = learner.train_step(phase).lower(*arguments).as_text()
    assert text.split("func.func public @main(")[1].split("->")[0].count("%arg") == len(jax.tree.leaves(arguments))
