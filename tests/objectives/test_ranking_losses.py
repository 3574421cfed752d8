"""Losses of rankings: those of sentence-transformers' cross-encoders, and what they make of groups without a choice."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_model import compiled

from bert_jax.config.ranking import BinaryLoss, LambdaLoss, ListNet, MarginLoss, SoftmaxLoss
from bert_jax.objectives.ranking import ranking_sums

ORACLE = pathlib.Path(__file__).parents[1] / "oracles" / "ranking_losses_oracle.npz"
CASES = {  # as in tests/oracles/make_ranking_losses_oracle.py
    "binary": BinaryLoss(highest=3.0),
    "binary_weighted": BinaryLoss(highest=3.0, positive_weight=2.5),
    "softmax": SoftmaxLoss(),
    "softmax_sigmoid": SoftmaxLoss(scale=10.0, activation="sigmoid"),
    "listnet": ListNet(),
    "lambda_none": LambdaLoss(weighting="none"),
    "lambda_ndcg1": LambdaLoss(weighting="ndcg1"),
    "lambda_ndcg2": LambdaLoss(weighting="ndcg2"),
    "lambda_lambdarank": LambdaLoss(weighting="lambdarank"),
    "lambda_ndcg2++": LambdaLoss(mu=7.0),
    "lambda_top": LambdaLoss(top=2, sigma=1.5),
    "margin_mse": MarginLoss(),
}
BATCH, MOST = 6, 7


def in_groups(values: np.ndarray, sizes: np.ndarray, fill: float) -> np.ndarray:
    """Return values of groups of these sizes as an array with two groups and two places too many."""
    found = np.full((BATCH, MOST), fill, np.float32)
    found[np.arange(MOST) < np.append(sizes, [0, 0])[:, None]] = values
    return found


def test_losses_and_gradients_are_those_of_sentence_transformers():
    """Groups have 2 to 5 documents; what fills them and the batch changes neither loss nor gradient."""
    with np.load(ORACLE) as file:
        oracle = dict(file)
    sizes = oracle["sizes"]
    members = in_groups(np.ones_like(oracle["scores"]), sizes, 0)
    labels = {name: in_groups(oracle[name], sizes, 3) for name in ("grades", "teacher")}

    def one(name: str, scores: jax.Array) -> jax.Array:
        taken = labels["teacher" if name == "margin_mse" else "grades"]
        sums = ranking_sums(scores, {"labels": jnp.asarray(taken), "members": jnp.asarray(members)}, CASES[name])
        return sums.loss / sums.weight

    found = compiled(lambda scores: {name: jax.value_and_grad(lambda s: one(name, s))(scores) for name in CASES})(
        in_groups(oracle["scores"], sizes, 9)
    )
    for name, (loss, gradient) in found.items():
        assert float(loss) == pytest.approx(float(oracle[f"{name}_loss"]), rel=1e-6), name
        largest = np.abs(oracle[f"{name}_gradient"]).max()
        np.testing.assert_allclose(
            np.asarray(gradient)[members > 0], oracle[f"{name}_gradient"], atol=1e-6 * largest, err_msg=name
        )
        assert not np.any(np.asarray(gradient)[members == 0]), name


def test_a_query_whose_documents_are_all_alike_does_not_count():
    """Nor does it make a slope that is no number."""
    labels = jnp.array([[1.0, 0, 0], [0, 0, 0], [2, 2, 2]])
    losses = {"softmax": SoftmaxLoss(), "lambda": LambdaLoss()}

    def mean(scores: jax.Array, name: str) -> jax.Array:
        groups = len(scores)
        batch = {"labels": labels[:groups], "members": jnp.ones((groups, 3))}
        sums = ranking_sums(scores, batch, losses[name])
        return sums.loss / sums.weight

    def both(scores: jax.Array):
        return {
            name: [jax.value_and_grad(lambda s, name=name: mean(s, name))(given) for given in (scores, scores[:1])]
            for name in losses
        }

    for (loss, slope), (alone, slope_alone) in compiled(both)(
        jnp.array([[0.5, -1, 2], [1, 2, 0], [0, 0.1, 0.7]])
    ).values():
        assert float(loss) == pytest.approx(float(alone))
        np.testing.assert_allclose(slope, np.pad(slope_alone, ((0, 2), (0, 0))), atol=1e-7)
