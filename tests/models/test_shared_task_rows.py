"""Heads of sentence tasks on rows that several texts share, against the same texts one per row, for every architecture.

Both are float32 without dropout. Places and rows without a text take part, and must change nothing.
"""

import dataclasses

import jax
import numpy as np
import pytest
from model_variants import variant
from processes import EXHAUSTIVE
from small_model import FLOAT32, compiled, perturbed

from bert_jax.config import HeadConfig
from bert_jax.config.objective import TaskDistillationConfig
from bert_jax.console import load_config
from bert_jax.data.sequences import Features, filled, padded, shared_rows
from bert_jax.models.task import BertForTask
from bert_jax.objectives.distillation import TaughtTaskObjective
from bert_jax.objectives.objective import mean_loss
from bert_jax.objectives.tasks import TaskObjective

TEXTS, LONGEST, PLACES = 11, 13, 5
CLASSES = HeadConfig(labels=("a", "b", "c"))
CASES = {
    "bert_mini": CLASSES,
    "albert_mini": CLASSES,
    "roberta_mini": CLASSES,
    "spanbert_mini": CLASSES,
    "distilbert_mini": CLASSES,
    "electra_mini": CLASSES,
    "mosaicbert_base": CLASSES,
    "neobert": CLASSES,
    "deberta_mini": CLASSES,
    "deberta_v3_mini": CLASSES,
    "xlnet_mini": CLASSES,
    "gpt_mini": CLASSES,
    "elmo_mini": CLASSES,
    "ulmfit_mini": CLASSES,
    "glove_mini": CLASSES,
    "modernbert_mini": CLASSES,
    "modernbert_mini, mean": dataclasses.replace(CLASSES, pooling="mean"),
    "modernbert_mini, number": HeadConfig(kind="regression"),
    "modernbert_mini, global": CLASSES,
    "modernbert_mini, scan": CLASSES,
    "bert_mini, features": dataclasses.replace(CLASSES, features="weighted_with_embeddings", lstm_size=7),
    "modernbert_mini, features": dataclasses.replace(CLASSES, features="last", lstm_size=7, train_encoder=True),
}
CORE = ("modernbert_mini", "modernbert_mini, mean", "bert_mini, features")
MECHANISMS = {
    "roberta_mini": "positions that begin behind a padding id",
    "mosaicbert_base": "distances in place of positions",
    "deberta_v3_mini": "disentangled attention",
    "xlnet_mini": "relative positions, and a summary at the end",
    "gpt_mini": "left to right",
    "elmo_mini": "recurrent in both directions",
    "glove_mini": "no layers",
    "modernbert_mini, number": "a number in place of classes",
    "modernbert_mini, global": "global tokens",
    "modernbert_mini, scan": "layers in a scan",
}
"""What some cases alone show; the others are composed of the same."""


def model_of(case: str) -> BertForTask:
    """The form of the preset in small."""
    preset, _, way = case.partition(", ")
    form = load_config(preset).model
    model = dataclasses.replace(
        form,
        vocab_size=41,
        hidden_size=16,
        num_layers=min(3, form.num_layers),
        num_heads=2,
        intermediate_size=24,
        embedding_size=form.embedding_size and 8,
        max_position_embeddings=64,
    )
    if form.window is not None:
        model = variant(model, local_window=3, global_every=2, global_tokens=2 if way == "global" else 0)
    compute = dataclasses.replace(FLOAT32, layers="scan") if way == "scan" else FLOAT32
    return BertForTask(model, CASES[case], compute)


def batches(model: BertForTask):
    """The same texts alone and in shared rows, and the row and place of each there."""
    random = np.random.default_rng(2)
    lengths = random.integers(3, LONGEST + 1, TEXTS)
    ids = [random.integers(2, 41, length).astype(np.int32) for length in lengths]
    second = model.config.type_vocab_size > 1
    types = [(second * (np.arange(length) > length // 2)).astype(np.int32) for length in lengths]
    labels = random.integers(0, 3, TEXTS) if model.head.labels else random.normal(size=TEXTS)
    features = Features(ids, types, labels.astype(np.int32 if model.head.labels else np.float32), np.arange(TEXTS), 16)
    row, start = shared_rows(lengths, 24, PLACES)
    place = np.array([np.sum(row[:number] == row[number]) for number in range(TEXTS)])
    assert place.max() > 1
    shape = (int(row.max()) + 2, 24)  # the last row has no text
    return (
        padded(features, np.arange(TEXTS), TEXTS),
        filled(features, np.arange(TEXTS), row, start, shape, PLACES),
        (row, place),
    )


@pytest.mark.parametrize(
    "case",
    [
        *CORE,
        *(pytest.param(case, marks=pytest.mark.slow, id=f"{case}: {shows}") for case, shows in MECHANISMS.items()),
        *(
            pytest.param(case, marks=pytest.mark.slow)
            for case in CASES
            if EXHAUSTIVE and case not in {*CORE, *MECHANISMS}
        ),
    ],
)
def test_scores_losses_and_gradients_are_those_of_the_texts_alone(case):
    model = model_of(case)
    objective = TaskObjective(model)

    def loss(params, batch):
        scores = model.apply(params, batch)
        sums = {objective.terms[0].name: objective.sums_of_scores(params, batch, scores)}
        return mean_loss(objective.terms, sums, objective.denominators(batch)), scores

    params, measured = perturbed(model), compiled(jax.value_and_grad(loss, has_aux=True))
    alone, shared, place = batches(model)
    (expected, scores), gradients = measured(params, alone)
    (found, in_places), shared_gradients = measured(params, shared)
    assert in_places.shape[:2] == shared["weights"].shape
    np.testing.assert_allclose(in_places[place], scores, atol=5e-5)
    assert np.std(scores, axis=0).min() > 1e-3  # texts differ, so that one read in place of another shows
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=5e-6), shared_gradients, gradients)


@pytest.mark.slow
def test_a_teacher_with_another_kind_of_head_reads_shared_rows_too():
    student, teacher = model_of("bert_mini"), model_of("modernbert_mini, mean")
    options = TaskDistillationConfig(teacher="there", temperature=2.0)
    objective = TaughtTaskObjective(student, teacher, options, perturbed(teacher, 1))
    params, measured = perturbed(student), compiled(objective.sums)
    alone, shared, _ = batches(student)
    expected, found = measured(params, alone), measured(params, shared)
    assert expected.keys() == found.keys() == {"labels", "teacher"}
    for name, sums in expected.items():
        np.testing.assert_allclose(found[name].loss, sums.loss, rtol=1e-5)
        np.testing.assert_allclose(found[name].weight, sums.weight)
