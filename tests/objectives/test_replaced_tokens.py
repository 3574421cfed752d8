"""Replaced-token detection: the loss of a fixed sample, who trains whom, and what the generator draws."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import recorded_models as drawn
import safetensors.numpy
from small_model import FLOAT32, compiled, loss_and_gradient, perturbed

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import Config, ReplacedTokens
from bert_jax.config.objective import GeneratorConfig
from bert_jax.formats.huggingface import open_huggingface
from bert_jax.formats.opening import place
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import is_shareable
from bert_jax.objectives import replaced_tokens
from bert_jax.objectives.objective import Sums
from bert_jax.objectives.replaced_tokens import sampled_words, with_words
from bert_jax.parameters import check_complete, entries
from bert_jax.pretraining import default_objective

ORACLE = drawn.recorded("replaced_tokens")
SHAPES = json.loads(str(ORACLE["shapes"]))


def opened(directory: pathlib.Path, part: str, state: dict[str, np.ndarray]):
    """The model of the transformers directory with these arrays, and the arrays under our paths."""
    directory.mkdir()
    safetensors.numpy.save_file(state, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(drawn.PARTS[part]))
    stored = open_huggingface(directory)
    return stored.model, jax.tree.map(np.asarray, place(stored))


def both(directory: pathlib.Path, state, embeddings: str):
    """One tree of the arrays of both parts, `state(part)`, as a run has them; and the model of the discriminator."""
    directory.mkdir()
    _, generator = opened(directory / "generator", "generator", state("generator"))
    model, tree = opened(directory / "discriminator", "discriminator", state("discriminator"))
    if embeddings == "shared":
        own = {name: module for name, module in generator["embeddings"].items() if name == "projection"}
        generator["embeddings"] = own
    if embeddings == "disentangled":
        for module in tree["embeddings"].values():
            if "table" in module:
                module["delta"] = module.pop("table")
    return model, {**tree, "generator": generator}


def objective_of(model, embeddings: str):
    generator = drawn.PARTS["generator"]
    options = GeneratorConfig(
        hidden_size=generator["hidden_size"],
        num_heads=generator["num_attention_heads"],
        intermediate_size=generator["intermediate_size"],
        embeddings=embeddings,
    )
    config = Config(model=model, objective=ReplacedTokens(generator=options))
    return default_objective(BertForPreTraining(model, FLOAT32), config)


def parameters(embeddings: str):
    """The arrays of a part as the oracle drew them: shared ones are the discriminator's, differences have their own."""

    def state(part: str) -> dict[str, np.ndarray]:
        def source(name: str) -> str:
            if embeddings == "shared" and name.startswith(drawn.SHARED):
                return "discriminator"
            table = name.endswith("_embeddings.weight")
            return "difference" if embeddings == "disentangled" and table and part == "discriminator" else part

        return {name: drawn.value(name, tuple(shape), source(name)) for name, shape in SHAPES[part].items()}

    return state


@pytest.mark.parametrize("embeddings", ["shared", pytest.param("own", marks=pytest.mark.slow), "disentangled"])
def test_loss_and_gradients_of_a_fixed_sample_are_those_of_transformers(tmp_path, monkeypatch, embeddings):
    """The gradients of shared tables are those of both losses; of disentangled ones, each part's are its own."""
    model, params = both(tmp_path / "values", parameters(embeddings), embeddings)
    gradients = lambda part: {name: ORACLE[f"{embeddings}/gradients/{part}/{name}"] for name in SHAPES[part]}
    _, expected = both(tmp_path / "gradients", gradients, embeddings)
    objective, batch = objective_of(model, embeddings), drawn.masked_batch()
    check_complete(objective.model.parameters, params)
    entries(objective.model.parameters, params)
    monkeypatch.setattr(replaced_tokens, "sampled_words", lambda logits, batch: jnp.asarray(drawn.sample()))

    (loss, sums), found = loss_and_gradient(objective)(params, batch)
    means = {name: float(ORACLE[f"{embeddings}/{name}_loss"]) for name in ("mlm", "replaced_tokens")}
    assert {name: float(each.loss / each.weight) for name, each in sums.items()} == pytest.approx(means, rel=1e-5)
    assert float(loss) == pytest.approx(means["mlm"] + 50 * means["replaced_tokens"], rel=1e-5)
    found, expected = leaf_paths(found), leaf_paths(expected)
    assert found.keys() == expected.keys()
    for path, values in expected.items():
        # A key's bias adds the same to all scores of a query, which softmax ignores: what both sides have is rounding.
        scale = 0.1 if path.endswith("attention/key/bias") else np.abs(values).max()
        np.testing.assert_allclose(found[path], values, atol=1e-4 * scale, rtol=0, err_msg=path)


def test_the_generator_learns_of_the_discriminators_loss_by_shared_tables_alone(tmp_path):
    model, params = both(tmp_path / "values", parameters("shared"), "shared")
    objective, batch = objective_of(model, "shared"), drawn.masked_batch()

    @compiled
    def gradients(params):
        loss_of = lambda name: lambda params: objective.sums(params, batch)[name].loss
        return [jax.grad(loss_of(name))(params) for name in ("mlm", "replaced_tokens")]

    every = {path for path in objective.model.parameters if "attention/key/bias" not in path}  # which has no effect
    leaves = [leaf_paths(tree) for tree in gradients(params)]
    of_words, of_tokens = ({path for path in every if np.any(of_path[path])} for of_path in leaves)
    own = {path for path in every if path.startswith("generator/")}
    shared = {path for path in every if is_shareable(path)}
    assert of_words == own | shared and of_tokens == every - own


def test_a_word_that_is_the_original_counts_as_original():
    batch = drawn.masked_batch()
    written, labels = compiled(replaced_tokens.replaced)(batch, drawn.sample())
    expected = np.zeros_like(labels)
    for row, slot in np.argwhere(batch["masked_weights"] > 0):
        place = batch["masked_positions"][row, slot]
        assert written["input_ids"][row, place] == drawn.sample()[row, slot]
        expected[row, place] = slot != 1  # the second of each row is the original
    assert expected.sum() == 5
    np.testing.assert_array_equal(labels, expected)
    changed = np.asarray(written["input_ids"]) != batch["input_ids"]
    assert not np.any(changed[:, 0]) and not np.any(changed[batch["attention_mask"] == 0])


def test_unused_slots_write_nothing():
    ids = np.arange(8, dtype=np.int32).reshape(2, 4)
    places, weights = np.array([[2, 0], [0, 0]], np.int32), np.array([[1, 0], [0, 0]], np.float32)
    written = compiled(with_words)(ids, places, weights, np.full((2, 2), 9, np.int32))
    np.testing.assert_array_equal(written, [[0, 1, 9, 3], [4, 5, 6, 7]])


def test_the_loss_of_the_discriminator_is_the_formula():
    random = np.random.default_rng(0)
    logits, labels = 4 * random.standard_normal((3, 7)), random.random((3, 7)) < 0.4
    mask = np.arange(7) < np.array([[7], [3], [5]])
    probability = 1 / (1 + np.exp(-logits))
    losses = -np.log(np.where(labels, probability, 1 - probability))
    found = compiled(replaced_tokens.loss_sums)(logits.astype(np.float32), labels, mask.astype(np.int32))
    right = (logits > 0) == labels
    assert Sums(*map(float, found)) == pytest.approx((losses[mask].sum(), 15, right[mask].sum()), rel=1e-6)


def rows_of(count: int, length: int = 8, slots: int = 4):
    random = np.random.default_rng(1)
    return {
        "input_ids": random.integers(0, 1_000, (count, length)).astype(np.int32),
        "attention_mask": np.ones((count, length), np.int32),
        "masked_positions": np.tile(np.arange(slots, dtype=np.int32), (count, 1)),
    }


def test_words_are_drawn_from_the_softmax():
    """20,000 draws against the probabilities: Pearson's statistic, whose 1 - 1e-6 quantile of 5 degrees is 36.0."""
    logits = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.045, 0.005], np.float32))
    batch = rows_of(5_000)
    found = compiled(sampled_words)(np.broadcast_to(logits, (5_000, 4, 6)), batch)
    for counts in [np.bincount(np.ravel(found), minlength=6), *(np.bincount(of, minlength=6) for of in found.T)]:
        expected = counts.sum() * np.exp(logits)
        assert ((counts - expected) ** 2 / expected).sum() < 36.0
    together = np.bincount(6 * found[:, 0] + found[:, 1], minlength=36)[[0, 1, 6, 7]]
    expected = 5_000 * np.exp(logits[[0, 0, 1, 1]] + logits[[0, 1, 0, 1]])
    assert ((together - expected) ** 2 / expected).sum() < 33.4  # 4 degrees: places of a row are independent


def test_a_row_draws_the_same_words_wherever_it_is():
    """In another batch, at another place of it, behind more padding; but not with another word or at another place."""
    batch, logits = rows_of(6), np.zeros((6, 4, 500), np.float32)
    draw = compiled(sampled_words)
    found = draw(logits, batch)
    turned = {name: array[::-1] for name, array in batch.items()}
    np.testing.assert_array_equal(draw(logits, turned), found[::-1])
    padded = batch | {name: np.pad(batch[name], ((0, 0), (0, 5))) for name in ("input_ids", "attention_mask")}
    np.testing.assert_array_equal(draw(logits, padded), found)
    other = batch | {"input_ids": batch["input_ids"] + np.eye(6, 8, dtype=np.int32)[:, ::-1]}
    assert np.mean(draw(logits, other) == found) < 0.2
    assert len(np.unique(found)) > 20


def test_padded_rows_of_the_vocabulary_are_never_drawn(tmp_path):
    model, _ = both(tmp_path / "values", parameters("own"), "own")
    model = dataclasses.replace(model, vocab_pad_multiple=64)
    electra, batch = objective_of(model, "own").model, drawn.masked_batch()

    @compiled
    def draw(params):
        logits = electra.mlm_logits(params, batch)
        return logits, sampled_words(logits, batch)

    logits, words = draw(perturbed(electra))
    assert logits.shape[-1] == 64 and np.max(words) < 53
