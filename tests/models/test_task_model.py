"""Task heads against the float64 NumPy model and published parameter counts; their losses against NumPy and SciPy."""

import dataclasses
import math

import jax
import numpy as np
import numpy_bert
import pytest
from scipy.special import log_softmax
from small_model import FLOAT32, compiled, perturbed

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.task import BertForTask
from bert_jax.objectives import tasks

SMALL = ModelConfig(
    vocab_size=31, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=24, max_position_embeddings=16
)
HEADS = {
    "classification": HeadConfig(labels=("no", "yes", "perhaps"), dropout=0.3),
    "regression": HeadConfig(kind="regression"),
    "span": HeadConfig(kind="span"),
    "choice": HeadConfig(kind="choice"),
    "tagging": HeadConfig(kind="tagging", labels=("O", "B", "I", "X"), crf=True),
}


def make_batch(shape):
    """Random ids with padding at the end of the later rows."""
    random = np.random.default_rng(0)
    lengths = np.resize([shape[-1], shape[-1] - 3, shape[-1] - 5], shape[:-1])[..., None]
    column = np.broadcast_to(np.arange(shape[-1]), shape)
    return {
        "input_ids": random.integers(0, SMALL.vocab_size, shape).astype(np.int32),
        "token_type_ids": ((column >= 4) & (column < lengths)).astype(np.int32),
        "attention_mask": (column < lengths).astype(np.int32),
    }


@pytest.mark.parametrize("kind", HEADS)
def test_scores_equal_the_numpy_model_with_an_affine_map_on_it(kind):
    model = BertForTask(SMALL, HEADS[kind], FLOAT32)
    shape = (3, 2, 9) if kind == "choice" else (3, 9)
    batch = make_batch(shape)
    params = perturbed(model)
    # The NumPy model computes the pre-training heads as well; what they hold does not matter here.
    rest = perturbed(BertForPreTraining(SMALL))
    flat = {name: value.reshape(-1, shape[-1]) for name, value in batch.items()}
    flat["masked_positions"] = np.zeros((math.prod(shape[:-1]), 1), int)
    below = numpy_bert.forward(rest | {k: v for k, v in params.items() if k not in ("head", "crf")}, SMALL, flat)
    read = below["last_hidden_state"] if kind in ("span", "tagging") else below["pooled"]
    expected = read @ params["head"]["kernel"].astype(np.float64) + params["head"]["bias"]
    ours = np.asarray(jax.jit(model.apply)(params, batch))
    assert ours.dtype == np.float32
    shapes = {"classification": (3, 3), "regression": (3,), "choice": (3, 2), "span": (3, 9, 2), "tagging": (3, 9, 4)}
    np.testing.assert_allclose(ours, expected.reshape(shapes[kind]), atol=2e-5)


@pytest.mark.parametrize(
    "head, expected",
    [
        (HeadConfig(labels=("0", "1")), 109_483_778),
        (HeadConfig(labels=("a", "b", "c")), 109_484_547),
        (HeadConfig(kind="span"), 108_893_186),
    ],
)
def test_parameter_counts_of_the_published_classes_of_base(head, expected):
    """Of BertForSequenceClassification with 2 and 3 labels and BertForQuestionAnswering (which has no pooler)."""
    shapes = jax.eval_shape(BertForTask(ModelConfig(vocab_size=30_522), head).init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == expected


def test_fresh_parameters_are_the_encoder_s_with_the_head_and_an_indifferent_crf():
    init = BertForTask(SMALL, HEADS["tagging"]).init
    paths = leaf_paths(jax.eval_shape(init, jax.random.key(0)))
    assert not any(path.startswith(("pooler", "mlm", "next_sentence")) for path in paths)
    assert {path: leaf.shape for path, leaf in paths.items() if path.startswith(("head", "crf"))} == {
        "head/kernel": (16, 4),
        "head/bias": (4,),
        "crf/transitions": (4, 4),
        "crf/start": (4,),
        "crf/end": (4,),
    }
    head, crf = jax.jit(lambda key: [init(key)[part] for part in ("head", "crf")])(jax.random.key(0))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(crf)) and 0.01 < np.std(head["kernel"]) < 0.03


def test_dropout_reaches_what_the_head_reads():
    config = dataclasses.replace(SMALL, hidden_dropout=0.0, attention_dropout=0.0)
    batch = make_batch((3, 9))
    model = BertForTask(config, HEADS["classification"], FLOAT32)
    params = perturbed(model)
    apply = jax.jit(model.apply)
    plain, dropped, again, other = (
        np.asarray(apply(params, batch, key)) for key in (None, *map(jax.random.key, (0, 0, 1)))
    )
    np.testing.assert_array_equal(dropped, again)
    assert np.abs(dropped - plain).max() > 1e-3 and np.abs(dropped - other).max() > 1e-3


@pytest.mark.parametrize("head, message", [(HeadConfig(), "labels"), (HeadConfig(kind="span", crf=True), "tagging")])
def test_a_head_that_cannot_be_is_refused(head, message):
    with pytest.raises(UserError, match=message):
        BertForTask(SMALL, head)


def logits_of(*shape):
    return (3 * np.random.default_rng(2).standard_normal(shape)).astype(np.float32)


WEIGHTS = np.array([1, 1, 1, 0], np.float32)  # the last row only fills the batch


def test_classification_loss_is_the_mean_cross_entropy_of_the_real_rows():
    logits, labels = logits_of(4, 3), np.array([2, 0, 1, 1], np.int32)
    sums = compiled(tasks.classification_sums)(logits, labels, WEIGHTS)
    expected = -log_softmax(logits.astype(float), axis=1)[np.arange(3), labels[:3]]
    np.testing.assert_allclose(sums.loss / sums.weight, expected.mean(), rtol=1e-6)
    assert sums.correct == (logits[:3].argmax(1) == labels[:3]).sum() and sums.weight == 3


def test_regression_loss_is_the_mean_squared_error_of_the_real_rows():
    predictions, labels = logits_of(4), np.array([0.5, 2.0, 5.0, 99.0], np.float32)
    sums = compiled(tasks.regression_sums)(predictions, labels, WEIGHTS)
    np.testing.assert_allclose(sums.loss / sums.weight, np.square(predictions - labels)[:3].mean(), rtol=1e-6)


def test_span_loss_is_the_mean_of_both_ends_and_knows_no_padding():
    logits, mask = logits_of(4, 7, 2), np.array([[1] * 7, [1] * 5 + [0] * 2, [1] * 6 + [0], [1] * 7], np.int32)
    labels = np.array(
        [[2, 4], [0, 0], [5, 6], [1, 1]], np.int32
    )  # the third answer ends beyond its window's six tokens
    sums = compiled(tasks.span_sums)(logits, labels, mask, WEIGHTS)
    ends = [
        -log_softmax(logits[row, : mask[row].sum(), end].astype(float))[labels[row, end]]
        for row, end in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0))
    ]
    np.testing.assert_allclose(sums.loss / sums.weight, np.mean(ends), rtol=1e-6)
    wider = ((0, 0), (0, 3))
    longer = compiled(tasks.span_sums)(np.pad(logits, (*wider, (0, 0))), labels, np.pad(mask, wider), WEIGHTS)
    np.testing.assert_allclose(longer, sums, rtol=1e-6)


def test_tagging_loss_is_the_mean_over_first_pieces_of_the_real_rows():
    logits = logits_of(4, 5, 3)
    labels = np.array([[-1, 2, -1, 0, -1], [-1, 1, 1, -1, -1], [-1] * 5, [0] * 5], np.int32)
    sums = compiled(tasks.tagging_sums)(logits, labels, WEIGHTS)
    where = [(0, 1), (0, 3), (1, 1), (1, 2)]
    np.testing.assert_allclose(
        sums.loss / sums.weight,
        np.mean([-log_softmax(logits[at].astype(float))[labels[at]] for at in where]),
        rtol=1e-6,
    )
    assert sums.weight == 4 and sums.correct == sum(logits[at].argmax() == labels[at] for at in where)
