"""Losses of vectors: those of sentence-transformers, what is no negative, and batches computed in parts."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_bert
from flax.traverse_util import unflatten_dict
from pretrained_model import random_params
from processes import EXHAUSTIVE
from small_model import compiled
from task_models import MODEL

from bert_jax.config import ComputeConfig, EmbeddingConfig, HeadConfig, MeshConfig, ModelConfig
from bert_jax.config.heads import TokenVectors, WordVector
from bert_jax.config.tasks import VectorOptions
from bert_jax.config.vectors import (
    Angle,
    Cosent,
    CosineRegression,
    InfoNce,
    KlDivergence,
    MarginMse,
    SparsityConfig,
    Triplet,
)
from bert_jax.devices import sharding
from bert_jax.models.task import BertForTask
from bert_jax.objectives.objective import mean_loss
from bert_jax.objectives.vectors import Texts, VectorObjective, nested_sums

ORACLE = pathlib.Path(__file__).parents[1] / "oracles" / "vectors_oracle.npz"
NESTED = VectorOptions(dims=(4, 7), dim_weights=(0.5, 1.0))
CASES = {  # as in tests/oracles/make_vectors_oracle.py: options, number of texts, what is taken in addition
    "info_nce": (InfoNce(), 2, None),
    "info_nce_negatives": (InfoNce(), 4, None),
    "info_nce_dot": (InfoNce(scale=1.0, similarity="dot"), 3, None),
    "info_nce_symmetric": (InfoNce(symmetric=True), 3, None),
    "cosent": (Cosent(), 2, "scores"),
    "angle": (Angle(), 2, "scores"),
    "cosine": (CosineRegression(highest=4.0), 2, "scores"),
    "triplet_euclidean": (Triplet(), 3, None),
    "triplet_manhattan": (Triplet(distance="manhattan", margin=1.0), 3, None),
    "triplet_cosine": (Triplet(distance="cosine", margin=0.5), 3, None),
    "margin_mse": (MarginMse(), 4, "teacher"),
    "margin_mse_cosine": (MarginMse(similarity="cosine"), 3, "teacher"),
    "kl": (KlDivergence(temperature=2.0), 4, "teacher"),
    "nested": (None, 4, None),
}


@pytest.fixture
def float64(monkeypatch):
    """Type of whatever is traced in the test: wherever the code says float32, which would hide smaller differences.

    Tests assert that results have it. Nothing that is traced here is reused: JAX keeps traces with x64 apart.
    """
    monkeypatch.setattr(jnp, "float32", jnp.float64)
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def recorded() -> dict[str, np.ndarray]:
    with np.load(ORACLE) as file:
        return dict(file)


def mean_of_case(name: str, vectors: jax.Array, recorded, filling: int = 0) -> jax.Array:
    """Return the loss of a case, of examples of which the last ones only fill the batch."""
    loss, texts, takes = CASES[name]
    options = dataclasses.replace(NESTED, dims=(4, vectors.shape[-1])) if loss is None else VectorOptions(loss=loss)
    batch = {"weights": np.array([1.0] * (len(vectors) - filling) + [0.0] * filling)}
    if takes is not None:
        labels = recorded[takes].astype(np.float64)
        labels = np.concatenate([labels, np.zeros_like(labels[:filling])])
        batch["labels"] = labels[:, : texts - 1] if takes == "teacher" else labels
    sums = nested_sums(Texts(vectors[:, :texts]), batch, options)
    return sums.loss / sums.weight


def assert_recorded(name: str, loss, gradient, recorded, kind: str = "") -> None:
    assert loss.dtype == gradient.dtype == np.float64
    assert float(loss) == pytest.approx(float(recorded[f"{name}{kind}_loss"]), rel=1e-9), name
    expected = recorded[f"{name}{kind}_gradient"]
    closeness = 1e-9 if expected.dtype == np.float64 else 1e-7  # it is rounded to float32
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=closeness * np.abs(expected).max(), err_msg=name)


def test_losses_and_gradients_are_those_of_sentence_transformers(recorded, float64):
    """Two examples more that only fill the batch change neither."""
    filled = np.concatenate([recorded["vectors"].astype(np.float64), np.ones((2, 4, 7))])
    cases = lambda x: {name: jax.value_and_grad(lambda v: mean_of_case(name, v, recorded, 2))(x) for name in CASES}
    for name, (loss, gradient) in compiled(cases)(filled).items():
        assert_recorded(name, loss, gradient[:6], recorded)
        assert not np.any(gradient[6:]), name


def test_all_parameters_of_a_model_get_the_gradients_of_sentence_transformers(recorded, float64):
    """By one forward pass of a BERT in float64, and the backward pass of every loss."""
    sizes = random_bert.sizes("smallest")
    shape = ModelConfig(**sizes, activation="gelu_erf", hidden_dropout=0.0, attention_dropout=0.0)
    model = BertForTask(shape, HeadConfig(kind="vectors"), ComputeConfig(dtype="float64", layers="scan"))
    rows = {name: recorded[name] for name in ("input_ids", "attention_mask")}
    rows["token_type_ids"] = np.zeros_like(rows["input_ids"])
    drawn = {path: value.astype(np.float64) for path, value in random_bert.draw_parameters(sizes).items()}
    paths = [path for path in drawn if path.startswith(("embeddings", "encoder"))]

    def losses(values):
        params = unflatten_dict(dict(zip(paths, values, strict=True)), sep="/")
        vectors = model.apply(params, rows)
        found = jnp.stack([mean_of_case(name, vectors, recorded) for name in CASES])
        return found, found

    gradients, values = compiled(jax.jacrev(losses, has_aux=True))([drawn[path] for path in paths])
    gradients = np.concatenate([each.reshape(len(CASES), -1) for each in gradients], axis=1)
    for name, loss, gradient in zip(CASES, values, gradients, strict=True):
        assert_recorded(name, loss, gradient, recorded, "_model")


WORDS = WordVector()
TOKENS = TokenVectors(size=7)
FORMS = {  # as in tests/oracles/make_vectors_oracle.py: form, loss, number of texts
    "tokens_info_nce": (TOKENS, InfoNce(), 4),
    "tokens_info_nce_scaled": (TOKENS, InfoNce(scale=3.0), 2),
    "tokens_margin_mse": (TOKENS, MarginMse(), 4),
    "tokens_kl": (TOKENS, KlDivergence(temperature=2.0), 4),
    "words_info_nce": (WORDS, InfoNce(), 4),
    "words_margin_mse": (WORDS, MarginMse(), 4),
    "words_kl": (WORDS, KlDivergence(temperature=2.0), 4),
}


class Given:
    """A model whose vectors are its parameters."""

    def apply(self, params, rows, dropout_key):
        return params


@pytest.mark.parametrize(
    "names", [("words_margin_mse", "tokens_info_nce"), pytest.param(tuple(FORMS), marks=pytest.mark.slow)]
)
def test_forms_have_the_losses_and_gradients_of_sentence_transformers(names):
    """MaxSim over the tokens that count, and SpladeLoss; two examples that only fill the batch change neither."""
    with np.load(ORACLE.with_name("vector_forms_oracle.npz")) as file:
        oracle = dict(file)
    filling = lambda values: np.concatenate([values, np.ones((2, *values.shape[1:]), values.dtype)])
    weights = np.array([1] * 6 + [0] * 2, np.float32)
    sparsity = SparsityConfig(query_weight=0.5, document_weight=0.3)

    def one(name: str, vectors: jax.Array) -> jax.Array:
        form, loss, texts = FORMS[name]
        objective = VectorObjective(Given(), VectorOptions(form=form, loss=loss, sparsity=sparsity))
        batch = {"input_ids": np.zeros((32, 1)), "weights": weights, "ramp": np.ones(8, np.float32)}
        batch |= {"places": np.arange(32).reshape(8, 4)[:, :texts], "labels": filling(oracle["teacher"])}
        if form is TOKENS:
            batch["compared"] = jnp.asarray(filling(oracle["compared"]).reshape(32, -1))
        sums = objective.sums(vectors.reshape(32, *vectors.shape[2:]), batch)
        return mean_loss(objective.terms, sums, objective.denominators(batch))

    given = {name: jnp.asarray(filling(oracle[name.split("_")[0]])) for name in names}
    every = lambda given: {name: jax.value_and_grad(lambda v: one(name, v))(given[name]) for name in names}
    for name, (loss, gradient) in compiled(every)(given).items():
        assert float(loss) == pytest.approx(float(oracle[f"{name}_loss"]), rel=1e-6), name
        largest = np.abs(oracle[f"{name}_gradient"]).max()
        np.testing.assert_allclose(gradient[:6], oracle[f"{name}_gradient"], atol=1e-6 * largest, err_msg=name)
        assert not np.any(gradient[6:]), name


def test_equal_texts_are_no_negatives():
    """Of six examples, 0 and 1 have one positive, 2 and 3 one anchor, and the negative of 4 is the positive of 5."""
    numbers = np.array([[0, 10, 20], [1, 10, 21], [2, 12, 22], [2, 13, 23], [4, 14, 15], [5, 15, 25]], np.int32)
    vectors = np.random.default_rng(0).standard_normal((6, 3, 5)).astype(np.float32)
    batch = {"weights": np.ones(6, np.float32), "numbers": numbers}
    options = VectorOptions(loss=InfoNce(similarity="dot", scale=1.0, symmetric=True))
    sums = compiled(lambda vectors: nested_sums(Texts(vectors), batch, options))(vectors)
    expected = 0.0
    wide = vectors.astype(np.float64)
    for row in range(6):
        negatives = [
            wide[other, place]
            for other in range(6)
            for place in (1, 2)
            if (other, place) != (row, 1)
            and numbers[other, place] not in numbers[row, :2]
            and not (place == 1 and numbers[other, 0] == numbers[row, 0])
        ]
        assert len(negatives) == {0: 10, 1: 10, 2: 10, 3: 10, 4: 11, 5: 10}[row]
        anchors = [
            wide[other, 0]
            for other in range(6)
            if other != row and numbers[row, 1] not in numbers[other, :2] and numbers[other, 0] != numbers[row, 0]
        ]
        own = wide[row, 0] @ wide[row, 1]
        both = [
            np.log(np.exp(own) + sum(np.exp(wide[row, 0] @ each) for each in negatives)),
            np.log(np.exp(own) + sum(np.exp(wide[row, 1] @ each) for each in anchors)),
        ]
        expected += np.mean(both) - own
    assert float(sums.loss) == pytest.approx(expected, rel=1e-5)


ROWS, SLOTS, LENGTH, EXAMPLES = 16, 2, 12, 16
EXACT = ComputeConfig(dtype="float32", layers="scan")


def shared_batch() -> dict[str, np.ndarray]:
    """Rows of two texts each, which are anchor and positive of one example, but in other rows."""
    random = np.random.default_rng(1)
    ids = np.repeat([[1, 2]], ROWS, axis=0).repeat(LENGTH // 2, axis=1)
    places = np.arange(2 * EXAMPLES).reshape(EXAMPLES, 2)
    places[:, 1] = np.roll(places[:, 1], 3)
    batch = {
        "input_ids": random.integers(1, MODEL.vocab_size, (ROWS, LENGTH)),
        "token_type_ids": np.zeros((ROWS, LENGTH)),
        "attention_mask": np.ones((ROWS, LENGTH)),
        "text_ids": ids,
        "text_starts": np.repeat([[0, LENGTH // 2]], ROWS, axis=0),
        "places": places,
        "numbers": np.arange(2 * EXAMPLES).reshape(EXAMPLES, 2),
    }
    whole = {name: np.asarray(values, np.int32) for name, values in batch.items()}
    return whole | {"weights": (np.arange(EXAMPLES) < EXAMPLES - 3).astype(np.float32)}


def objective_in(parts: int) -> VectorObjective:
    model = dataclasses.replace(MODEL, hidden_dropout=0.3, attention_dropout=0.3)
    vectors = BertForTask(model, HeadConfig(kind="vectors"), EXACT, embedding=EmbeddingConfig(normalize=True))
    return VectorObjective(vectors, VectorOptions(), parts)


def value_and_gradient(parts: int, batch):
    objective = objective_in(parts)

    def loss(params):
        sums = objective.sums(params, batch, jax.random.key(7))
        return mean_loss(objective.terms, sums, objective.denominators(batch))

    return jax.value_and_grad(loss)


def assert_equal_gradients(found, expected, tolerance: float = 1e-6) -> None:
    """Apart from sums in another order, by default those of float32."""
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=tolerance)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected[1]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest), found[1], expected[1])


@pytest.mark.parametrize("counts", [(1, 4), pytest.param((1, 2, 8, 16), marks=pytest.mark.slow)])
def test_parts_of_a_batch_give_the_loss_and_gradient_of_the_whole(counts):
    """With dropout, whose elements are those of the whole batch."""
    batch, params = shared_batch(), random_params(objective_in(1).model)
    several = compiled(lambda params: [value_and_gradient(parts, batch)(params) for parts in counts])(params)
    whole, *parts = several
    assert float(whole[0]) > 0.5  # there is something to learn
    for each in parts:
        assert_equal_gradients(each, whole)


@pytest.mark.slow
@pytest.mark.parametrize("form", [TokenVectors(size=5), WordVector()])
def test_parts_and_devices_give_what_the_whole_does_of_other_forms(form, float64):
    """Texts in rows of their own, some of whose tokens are not seen or do not count; on one device and on four.

    In float64, as vectors of tokens are divided by their norms, and the highest of near products may be another.
    """
    own = ("places", "numbers", "weights")
    batch = {name: values for name, values in shared_batch().items() if name in own}
    random = np.random.default_rng(2)
    batch["input_ids"] = random.integers(1, MODEL.vocab_size, (2 * EXAMPLES, LENGTH)).astype(np.int32)
    batch["token_type_ids"] = np.zeros_like(batch["input_ids"])
    for name in ("attention_mask", "compared"):
        batch[name] = (random.random((2 * EXAMPLES, LENGTH)) < 0.8).astype(np.int32)
        batch[name][:, 0] = 1
    if isinstance(form, WordVector):
        batch = {name: values for name, values in batch.items() if name != "compared"}
        batch["ramp"] = np.full(EXAMPLES, 0.25)
    model = dataclasses.replace(MODEL, hidden_dropout=0.3, attention_dropout=0.3)
    exact = dataclasses.replace(EXACT, dtype="float64")
    task = BertForTask(model, HeadConfig(kind="vectors"), exact, embedding=EmbeddingConfig(form=form))
    options = VectorOptions(form=form, sparsity=SparsityConfig(query_weight=0.1, document_weight=0.2))
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), random_params(task))

    def found(parts: int, batch):
        objective = VectorObjective(task, options, parts)

        def loss(params):
            sums = objective.sums(params, batch, jax.random.key(7))
            return mean_loss(objective.terms, sums, objective.denominators(batch))

        return jax.value_and_grad(loss)

    expected = compiled(found(1, batch))(params)
    parts = compiled(found(4, batch))(params)
    assert expected[0].dtype == np.float64
    assert_equal_gradients(parts, expected, 1e-12)
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:4])
    placed = {name: jax.device_put(values, sharding.batch_sharding(mesh)) for name, values in batch.items()}
    function = lambda params, batch: found(2, batch)(params)
    on_four = compiled(sharding.under(mesh, function))(jax.device_put(params, sharding.replicated(mesh)), placed)
    assert_equal_gradients(on_four, expected, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [8, *([2] if EXHAUSTIVE else [])])
def test_devices_give_the_loss_and_gradient_of_one(devices):
    """Each meets the texts of all: the batch is global."""
    batch, params = shared_batch(), random_params(objective_in(1).model)
    expected = compiled(value_and_gradient(1, batch))(params)
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:devices])
    where = sharding.batch_sharding(mesh)
    placed = {name: jax.device_put(values, where) for name, values in batch.items()}
    for parts in (1, 2):
        function = lambda params, batch, parts=parts: value_and_gradient(parts, batch)(params)
        found = compiled(sharding.under(mesh, function))(jax.device_put(params, sharding.replicated(mesh)), placed)
        assert_equal_gradients(found, expected)


@pytest.mark.slow
def test_parts_of_a_batch_need_less_memory():
    """Of eight parts, each of which keeps what its rows need, the step keeps less than half of what one would."""
    batch = shared_batch()
    rows = 32 * ROWS
    batch = {name: np.concatenate([values] * (rows // ROWS)) for name, values in batch.items()}
    batch["places"] = np.arange(2 * rows, dtype=np.int32).reshape(-1, 2)
    batch["numbers"] = batch["places"]
    params = random_params(objective_in(1).model)

    def kept(parts: int) -> int:
        program = jax.jit(value_and_gradient(parts, batch)).lower(params).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert kept(8) < 0.5 * kept(1)
