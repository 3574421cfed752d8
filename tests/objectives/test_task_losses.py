"""Losses of classifiers of texts: torch's figures and closed forms, the weights of classes, and what a run says."""

import dataclasses
import types

import jax
import numpy as np
import pytest
from oracles import make_task_losses_oracle as oracle
from small_model import compiled

from bert_jax.config import HeadConfig
from bert_jax.config.finetuning import FinetuneConfig, check_finetune, task_defaults
from bert_jax.config.objective import TaskDistillationConfig, TaskLossConfig
from bert_jax.config.options import from_record, to_dict
from bert_jax.config.tasks import SentenceOptions, TextDataConfig
from bert_jax.data.sequences import Features
from bert_jax.errors import UserError
from bert_jax.finetuning.loop import from_arguments
from bert_jax.finetuning.plan import prior_loss
from bert_jax.finetuning.programs import average, balanced_weights, task_loss
from bert_jax.objectives.distillation import TaughtTaskObjective
from bert_jax.objectives.tasks import TaskLoss, classification_sums, multilabel_sums

GIVEN, FIGURES = oracle.drawn(), dict(np.load(oracle.PATH))
LOSSES = {
    "plain": TaskLoss(),
    "weights": TaskLoss(oracle.CLASS_WEIGHTS),
    "smoothing": TaskLoss(label_smoothing=oracle.SMOOTHING),
    "both": TaskLoss(oracle.CLASS_WEIGHTS, oracle.SMOOTHING),
    "focal": TaskLoss(oracle.CLASS_WEIGHTS, focal_gamma=2.0),
}
ROWS = np.append(np.ones(12, np.float32), np.zeros(2, np.float32))  # the last two only fill the batch
LOGITS = np.concatenate([GIVEN["logits"], np.full((2, 4), 9.0, np.float32)])


def mean(sums) -> jax.Array:
    return sums.loss / sums.weight


@pytest.fixture(scope="module")
def found():
    """Loss and gradient of every case, by one program."""
    labels = np.append(GIVEN["labels"], [1, 2]).astype(np.int32)
    sets = np.concatenate([GIVEN["sets"], np.ones((2, 4), np.float32)])

    def cases(logits):
        single = {
            f"single_{name}": jax.value_and_grad(lambda x, own=loss: mean(classification_sums(x, labels, ROWS, own)))
            for name, loss in LOSSES.items()
        }
        several = {
            f"several_{name}": jax.value_and_grad(lambda x, own=loss: mean(multilabel_sums(x, sets, ROWS, own)))
            for name, loss in LOSSES.items()
        }
        return {name: function(logits) for name, function in (single | several).items()}

    return compiled(cases)(LOGITS)


@pytest.mark.parametrize(
    "name", [*(f"single_{each}" for each in oracle.SINGLE), *(f"several_{each}" for each in oracle.SEVERAL)]
)
def test_losses_and_gradients_are_those_of_torch(found, name):
    loss, gradient = found[name]
    assert loss == pytest.approx(float(FIGURES[name]), rel=1e-6)
    np.testing.assert_allclose(gradient[:12], FIGURES[f"{name}_gradient"], rtol=0, atol=1e-6)
    assert not gradient[12:].any()


def test_the_focal_loss_is_that_of_the_paper(found):
    """By its definition in float64: (1 - p)^γ, times the weight of the class, over the sum of the weights."""
    logits, labels, sets = GIVEN["logits"].astype(np.float64), GIVEN["labels"], GIVEN["sets"]
    weights = np.array(oracle.CLASS_WEIGHTS)
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    right = shares[np.arange(12), labels]
    expected = np.sum(weights[labels] * (1 - right) ** 2 * -np.log(right)) / weights[labels].sum()
    assert found["single_focal"][0] == pytest.approx(expected, rel=1e-5)
    present = 1 / (1 + np.exp(-logits))
    cells = sets * weights * (1 - present) ** 2 * -np.log(present) + (1 - sets) * present**2 * -np.log(1 - present)
    assert found["several_focal"][0] == pytest.approx(cells.mean(), rel=1e-5)
    smoothed = sets * (1 - oracle.SMOOTHING) + oracle.SMOOTHING / 2
    cells = smoothed * -np.log(present) + (1 - smoothed) * -np.log(1 - present)
    assert found["several_smoothing"][0] == pytest.approx(cells.mean(), rel=1e-6)


def test_an_answer_that_is_sure_keeps_a_finite_gradient():
    """1 - p is 0 in float32, and a power of it below 1 would have an infinite slope."""
    logits, loss = np.array([[200.0, 0.0], [-200.0, 0.0]], np.float32), TaskLoss(focal_gamma=0.5)
    labels, rows = np.zeros(2, np.int32), np.ones(2, np.float32)
    sets = np.array([[1, 0], [1, 0]], np.float32)
    gradients = compiled(
        lambda x: (
            jax.grad(lambda x: mean(classification_sums(x, labels, rows, loss)))(x),
            jax.grad(lambda x: mean(multilabel_sums(x, sets, rows, loss)))(x),
        )
    )(logits)
    assert all(np.isfinite(each).all() and each[1].any() for each in gradients)


SEVERAL, SINGLE = HeadConfig(kind="multilabel", labels=("a", "b")), HeadConfig(labels=("a", "b", "c"))


def features(labels) -> Features:
    ids = [np.ones(3, np.int32)] * len(labels)
    return Features(ids, ids, np.asarray(labels), np.arange(len(labels)), 8)


def test_balanced_weights_make_the_classes_count_the_same():
    labels = np.array([0] * 6 + [1] * 3 + [2])
    weights = balanced_weights(SINGLE, labels)
    np.testing.assert_allclose(weights * np.bincount(labels), 10 / 3)
    sets = np.array([[1, 0], [1, 0], [1, 1], [0, 0]], np.float32)
    np.testing.assert_allclose(balanced_weights(SEVERAL, sets), [1 / 3, 3])
    assert task_loss(TaskLossConfig(class_weights=("balanced",)), SEVERAL, features(sets)).class_weights == (1 / 3, 3.0)
    named = task_loss(TaskLossConfig(class_weights=("c=2.5", "a=0.5")), SINGLE, features(labels))
    assert named == TaskLoss((0.5, 1.0, 2.5)) and task_loss(TaskLossConfig(), SINGLE, features(labels)) == TaskLoss()
    with pytest.raises(UserError, match="loss.class_weights has 'aa', but the classes are a, b, c; perhaps 'a'"):
        task_loss(TaskLossConfig(class_weights=("aa=2",)), SINGLE, features(labels))


@pytest.mark.parametrize(
    "given, expected",
    [
        ({"class_weights": "balanced"}, ("balanced",)),
        ({"class_weights": {"a": 2, "b, c": 0.5}}, ("a=2", "b, c=0.5")),
        ({"loss": {"class_weights": {"a": 2}}}, ("a=2",)),
        ({"class_weights": "a=2,b=1"}, ("a=2", "b=1")),
        ({"class_weights": ["a=2"]}, ("a=2",)),
    ],
)
def test_weights_are_given_from_python_as_a_dict_too(given, expected):
    config, _ = from_arguments("text", {"train": "a.tsv", "dev": "b.tsv"}, {"init_from": "m", **given})
    assert config.loss == TaskLossConfig(class_weights=expected)


@pytest.mark.parametrize("loss", [TaskLoss(), TaskLoss((1.0, 3.0, 0.5)), TaskLoss((1.0, 3.0, 0.5), 0.2)])
def test_the_loss_without_reading_is_the_least_that_one_answer_for_all_can_have(loss):
    """By the loss itself, at many logits that are the same for every text."""
    labels = np.array([0] * 6 + [1] * 3 + [2], np.int32)
    sets = (np.eye(3)[labels] + [0, 0, 1] > 0.5).astype(np.float32)
    rows, random = np.ones(10, np.float32), np.random.default_rng(0)
    tried = random.normal(0, 1.5, (4000, 1, 3)).astype(np.float32) + np.zeros((1, 10, 1), np.float32)
    single, several = compiled(
        lambda all_logits: (
            jax.vmap(lambda x: mean(classification_sums(x, labels, rows, loss)))(all_logits),
            jax.vmap(lambda x: mean(multilabel_sums(x, sets, rows, loss)))(all_logits),
        )
    )(tried)
    least = prior_loss(SINGLE, features(labels), loss)
    assert least <= single.min() + 1e-5 and single.min() < least + 0.02
    least = prior_loss(dataclasses.replace(SEVERAL, labels=("a", "b", "c")), features(sets), loss)
    assert least <= several.min() + 1e-5 and several.min() < least + 0.1
    assert prior_loss(SINGLE, features(labels), TaskLoss(focal_gamma=2.0)) is None


def test_a_teacher_of_several_labels_is_compared_label_by_label():
    """T² KL(teacher ‖ student) of each label's two probabilities in float64, a mean over labels and texts."""
    options, random = TaskDistillationConfig(teacher="there", temperature=2.0), np.random.default_rng(3)
    objective = TaughtTaskObjective(types.SimpleNamespace(head=SEVERAL), None, options)  # only the head is asked for
    ours, theirs = random.normal(0, 2, (2, 5, 2)).astype(np.float32)
    weights = np.float32([1, 1, 1, 1, 0])
    sums = objective._teacher_sums({"weights": weights, "labels": None}, ours, theirs)
    student, teacher = (1 / (1 + np.exp(-np.float64(each) / 2)) for each in (ours, theirs))
    cells = teacher * np.log(teacher / student) + (1 - teacher) * np.log((1 - teacher) / (1 - student))
    assert float(sums.loss / sums.weight) == pytest.approx(4 * cells[:4].mean(), rel=1e-5) and sums.weight == 4


def test_an_ensemble_has_the_mean_probability_of_each_label():
    logits = [[np.float32(row) for row in rows] for rows in ([[0.0, 2.0], [-30, 60]], [[1.0, -4.0], [-20, 60]])]
    shares = 1 / (1 + np.exp(-np.array(logits, np.float64)))
    found = np.array(average(SEVERAL, logits), np.float64)
    np.testing.assert_allclose(1 / (1 + np.exp(-found)), shares.mean(0), rtol=1e-5)
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    "task, changes, message",
    [
        ("sst2", {"loss": TaskLossConfig(label_smoothing=1.0)}, "loss.label_smoothing=1.0 must be from 0 to below 1"),
        ("sst2", {"loss": TaskLossConfig(focal_gamma=-1.0)}, "loss.focal_gamma=-1.0 must be from 0"),
        ("sst2", {"loss": TaskLossConfig(focal_gamma=2.0, label_smoothing=0.1)}, "leave one of them out"),
        ("sst2", {"loss": TaskLossConfig(class_weights=("a",))}, "loss.class_weights has 'a'; expected balanced, or"),
        ("sst2", {"loss": TaskLossConfig(class_weights=("a=-1",))}, "loss.class_weights has 'a=-1'"),
        ("sst2", {"loss": TaskLossConfig(class_weights=("a=1", "a=2"))}, "names 'a' twice"),
        ("stsb", {"loss": TaskLossConfig(label_smoothing=0.1)}, "loss.label_smoothing=0.1 is for classes, but stsb"),
        ("ner", {"loss": TaskLossConfig(label_smoothing=0.1)}, "loss.label_smoothing=0.1 belongs to task="),
        ("text", {"data": TextDataConfig(dir="c", several_labels=True, regression=True)}, "leave one of them out"),
        ("text", {"data": TextDataConfig(dir="c", label_separator=";")}, "label_separator=; has no effect without"),
        (
            "text",
            {"options": SentenceOptions(thresholds=(0.4,))},
            "task=text with --data.several_labels=true.; leave it out",
        ),
        ("sst2", {"patience": 2}, "patience=2 ends a run .*; give --select=best too"),
        ("sst2", {"patience": -1, "select": "best"}, "patience=-1 must be 0"),
        ("sst2", {"evaluate_every_steps": 0}, "evaluate_every_steps=0 must be positive"),
    ],
)
def test_options_that_cannot_be_are_named(task, changes, message):
    base = task_defaults(task)
    base = dataclasses.replace(base, init_from="a", workdir="b", data=dataclasses.replace(base.data, dir="c"))
    assert check_finetune(base) is base
    with pytest.raises(UserError, match=message):
        check_finetune(dataclasses.replace(base, **changes))


def test_a_record_of_the_first_version_is_read_as_the_plain_loss():
    record = to_dict(task_defaults("text"))
    for name in ("loss", "patience", "select_by", "evaluate_every_steps"):
        del record[name]
    for group, name in (("data", "several_labels"), ("data", "label_separator"), ("options", "thresholds")):
        del record[group][name]
    assert from_record(FinetuneConfig, record, "config.json") == task_defaults("text")
