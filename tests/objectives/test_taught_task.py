"""A fine-tuned teacher's scores as targets of each kind of head, against the formulas in float64."""

import dataclasses

import jax
import numpy as np
import pytest
from pretrained_model import random_params
from scipy.special import log_softmax
from small_model import FLOAT32, SMALL, compiled

from bert_jax.config import HeadConfig
from bert_jax.config.objective import TaskDistillationConfig
from bert_jax.models.task import BertForTask
from bert_jax.objectives.distillation import TaughtTaskObjective
from bert_jax.objectives.objective import training_metrics
from bert_jax.objectives.tasks import TaskObjective

ROWS, LENGTH, CANDIDATES = 4, 9, 3
STUDENT = dataclasses.replace(SMALL, num_layers=1)
HEADS = {
    "classification": HeadConfig(labels=("a", "b", "c")),
    "regression": HeadConfig(kind="regression"),
    "choice": HeadConfig(kind="choice"),
    "span": HeadConfig(kind="span"),
    "tagging": HeadConfig(kind="tagging", labels=("O", "B-X", "I-X")),
}


def make_batch(kind):
    """The last row only fills the batch, the second one is short, and the third has no answer in it."""
    random = np.random.default_rng(2)
    shape = (ROWS, CANDIDATES, LENGTH) if kind == "choice" else (ROWS, LENGTH)
    real = np.broadcast_to(np.arange(LENGTH) < 9, shape).copy()
    real[1, ..., 6:] = False
    labels = {
        "classification": random.integers(0, 3, ROWS),
        "regression": random.standard_normal(ROWS).astype(np.float32),
        "choice": random.integers(0, CANDIDATES, ROWS),
        "span": np.array([[1, 3], [2, 4], [20, 21], [0, 0]]),
        "tagging": np.where(real & (np.arange(LENGTH) % 2 == 1), random.integers(0, 3, shape) << 2, -1),
    }[kind]
    batch = {
        "input_ids": random.integers(5, SMALL.vocab_size, shape).astype(np.int32),
        "token_type_ids": np.zeros(shape, np.int32),
        "attention_mask": real.astype(np.int32),
        "labels": labels.astype(np.float32 if kind == "regression" else np.int32),
        "weights": np.array([1, 1, 1, 0], np.float32),
    }
    return batch


def by_hand(kind, batch, ours, theirs, temperature):
    """Sum of the losses and of their weights."""
    if kind == "regression":
        return ((ours - theirs) ** 2)[:3].sum(), 3
    if kind == "span":
        rows = [
            (ours[row, :length, end], theirs[row, :length, end], 0.5)
            for row, length in enumerate(batch["attention_mask"][:3].sum(1))
            for end in (0, 1)
        ]
    elif kind == "tagging":
        rows = [(*each, 1) for each in zip(ours[:3][batch["labels"][:3] >= 0], theirs[:3][batch["labels"][:3] >= 0])]
    else:
        rows = [(ours[row], theirs[row], 1) for row in range(3)]
    total = 0.0
    for our, their, weight in rows:
        log_ours, log_theirs = log_softmax(our / temperature), log_softmax(their / temperature)
        total += weight * temperature**2 * (np.exp(log_theirs) * (log_theirs - log_ours)).sum()
    return total, sum(weight for *_, weight in rows)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind in ("regression", "span") else kind for kind in HEADS]
)
def test_the_scores_of_a_teacher_are_learned_beside_the_labels(kind):
    student, teacher = BertForTask(STUDENT, HEADS[kind], FLOAT32), BertForTask(SMALL, HEADS[kind], FLOAT32)
    params, theirs, batch = random_params(student, 1), random_params(teacher, 2), make_batch(kind)
    options = TaskDistillationConfig(teacher="there", temperature=3.0, share=0.25)
    objective = TaughtTaskObjective(student, teacher, options).reading(theirs)
    outputs = compiled(lambda p, t: (objective.sums(p, batch), student.apply(p, batch), teacher.apply(t, batch)))
    sums, ours, scores = outputs(params, theirs)
    expected, weight = by_hand(kind, batch, *(np.asarray(each, np.float64) for each in (ours, scores)), 3.0)
    assert float(sums["teacher"].loss) == pytest.approx(expected, rel=1e-5)
    denominators = objective.denominators(batch)
    assert float(sums["teacher"].weight) == float(denominators["teacher"]) == weight
    alone = TaskObjective(student)
    labels = alone.sums_of_scores(params, batch, ours)
    assert float(sums["labels"].loss) == pytest.approx(float(labels.loss), rel=1e-6)
    metrics = training_metrics(objective.terms, sums, denominators)
    mean = float(labels.loss) / float(alone.denominators(batch)[""])
    assert float(metrics["loss"]) == pytest.approx(0.75 * mean + 0.25 * expected / weight, rel=1e-5)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_sequences_that_share_a_row_are_taught_as_if_each_had_its_own(kind):
    student, teacher = BertForTask(STUDENT, HEADS[kind], FLOAT32), BertForTask(SMALL, HEADS[kind], FLOAT32)
    objective = TaughtTaskObjective(student, teacher, TaskDistillationConfig(teacher="there"))
    objective, params = objective.reading(random_params(teacher, 2)), random_params(student, 1)
    alone = make_batch(kind)
    shared = {name: alone[name].reshape(2, -1) for name in ("input_ids", "token_type_ids", "attention_mask")}
    shared["text_ids"] = np.repeat([[1, 2]], 2, 0).repeat(LENGTH, 1).astype(np.int32) * shared["attention_mask"]
    shared["text_starts"] = np.array([[0, LENGTH], [0, LENGTH]], np.int32)
    shared |= {name: alone[name].reshape(2, 2) for name in ("labels", "weights")}
    sums = [compiled(lambda p, b=batch: objective.sums(p, b)["teacher"])(params) for batch in (alone, shared)]
    assert float(sums[0].loss) == pytest.approx(float(sums[1].loss), rel=1e-5)
    assert float(sums[0].weight) == float(sums[1].weight) == 3


def test_a_student_equal_to_its_teacher_has_nothing_to_learn_from_it():
    model, batch = BertForTask(STUDENT, HEADS["classification"], FLOAT32), make_batch("classification")
    params = random_params(model, 1)
    options = TaskDistillationConfig(teacher="there", share=1.0)
    objective = TaughtTaskObjective(model, model, options).reading(params)
    loss = lambda p: objective.sums(p, batch)["teacher"].loss
    value, gradient = compiled(jax.value_and_grad(loss))(params)
    assert abs(float(value)) < 1e-5
    assert max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) < 1e-4
