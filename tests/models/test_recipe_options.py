"""Norms of queries and keys, capped logits, the z-loss, squared ReLU, vectors of words in values: torch's and NumPy's.

The numbers of torch are in recipe_oracle.npz, with what made them.
"""

import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import numpy_bert
import pytest
from described_models import shapes, trained
from family_runs import MESHES, on_mesh
from flax import nnx
from model_variants import variant
from modern_models import rows
from small_model import FLOAT32, SMALL, compiled, perturbed
from small_pretraining import assert_resumed_exactly, run_config
from small_pretraining import rows as logged

import bert_jax
from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import (
    ComputeConfig,
    Config,
    DataConfig,
    DisentangledConfig,
    GeneratorConfig,
    LeftToRight,
    MaskedWords,
    PhaseConfig,
    ReplacedTokens,
)
from bert_jax.config.checks import check
from bert_jax.errors import UserError
from bert_jax.formats.model_types import obstacles, type_to_write
from bert_jax.formats.stored import StoredModel
from bert_jax.models import costs
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.models.block import Rotary, SelfAttention
from bert_jax.models.embeddings import capped, word_losses
from bert_jax.models.kernels import plain
from bert_jax.models.kernels.plain import AttentionMask
from bert_jax.models.layers import PackedTexts
from bert_jax.objectives.masked_words import PretrainingObjective, masked_word_losses
from bert_jax.objectives.objective import mean_loss
from bert_jax.pretrained.initialization import with_layers
from bert_jax.pretraining import pretrain

ORACLE = pathlib.Path(__file__).parents[1] / "oracles" / "recipe_oracle.npz"


@functools.cache
def recorded(part: str) -> dict[str, np.ndarray]:
    with np.load(ORACLE) as file:
        return {name.removeprefix(f"{part}/"): file[name] for name in file.files if name.startswith(f"{part}/")}


def test_normed_queries_and_keys_and_their_gradients_are_those_of_torch():
    """Before rotary positions, with two heads of queries to each of keys."""
    config = variant(SMALL, num_heads=4, key_value_heads=2, norm_position="pre", use_bias=False, positions="rope")
    config = dataclasses.replace(config, layer_norm_epsilon=1e-5, query_key_norm=True)
    given = recorded("attention")
    structure = nnx.graphdef(nnx.eval_shape(lambda: SelfAttention(config, jax.random.key(0))))
    mask = AttentionMask(padding=np.ones((2, 5)))
    places = {name: {"kernel": given[name]} for name in ("query", "key", "value", "output")}
    places |= {f"{name}_norm": {"scale": given[f"{name}_scale"]} for name in ("query", "key")}

    def result(places, x):
        module = nnx.merge(structure, places)
        found, _ = module(x, mask, None, plain.attention, False, Rotary(config.positions))
        return jnp.sum(jnp.sin(found)), found

    run = compiled(jax.value_and_grad(result, argnums=(0, 1), has_aux=True))
    (_, found), (gradients, of_x) = run(places, given["x"])
    np.testing.assert_allclose(found, given["result"], rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(of_x, given["gradient/x"], rtol=1e-3, atol=5e-5)
    for name, gradient in gradients.items():
        expected = given[f"gradient/{name.replace('_norm', '_scale')}"]
        (value,) = gradient.values()
        np.testing.assert_allclose(value, expected, rtol=1e-3, atol=5e-5, err_msg=name)


def test_the_z_loss_of_capped_logits_and_its_gradients_are_those_of_torch():
    """By blocks of four words, as on a CPU, and from all logits."""
    given = recorded("words")

    def by_blocks(x, table, bias):
        return word_losses(x, table, bias, given["labels"].astype(np.int32), 11, 4, 1.5, log_sums=True)

    def whole(x, table, bias):
        logits = capped(x @ table.T + bias[None], 1.5)
        found = masked_word_losses(logits[None], given["labels"].astype(np.int32)[None])
        return jax.tree.map(lambda each: each[0], found)

    def loss(road, arrays):
        found = road(**arrays)
        loss, square = jnp.mean(found.losses), jnp.mean(jnp.square(found.log_sums))
        return loss + 0.1 * square, (loss, square)

    arrays = {name: given[name] for name in ("x", "table", "bias")}
    both = [jax.value_and_grad(functools.partial(loss, road), has_aux=True) for road in (by_blocks, whole)]
    for (_, values), gradients in compiled(lambda arrays: [road(arrays) for road in both])(arrays):
        np.testing.assert_allclose(values, (given["loss"], given["square"]), rtol=1e-5)
        for name, gradient in gradients.items():
            np.testing.assert_allclose(gradient, given[f"gradient/{name}"], rtol=1e-4, atol=2e-6, err_msg=name)


RECIPE = variant(
    dataclasses.replace(SMALL, num_layers=3, type_vocab_size=0, pair_head=False, layer_norm_epsilon=1e-5),
    **{"positions": "none", "activation": "relu_squared", "logit_cap": 2.0, "value_embeddings": "ends"},
)


def states_in_numpy(params, ids, allowed):
    """Post-norm layers whose values get the vectors of words by a longer state: behind it, which word it is."""
    params, epsilon = numpy_bert.as_float64(params), RECIPE.layer_norm_epsilon
    factors = params["embeddings"]["value"]["scale"]
    factors = factors if len(factors) == 3 else (factors[0], 0.0, factors[1])
    embeddings, one_hot = params["embeddings"], np.eye(RECIPE.vocab_size)[ids]
    x = numpy_bert.norm(embeddings["word"]["table"][ids], embeddings["norm"], epsilon)
    vectors = embeddings["value"]["table"].reshape(RECIPE.vocab_size, RECIPE.num_heads, -1)
    for number, factor in enumerate(factors):
        layer = numpy_bert.select(params["encoder"], number)
        attention = dict(layer["attention"])
        for name, more in (("query", 0 * vectors), ("key", 0 * vectors), ("value", factor * vectors)):
            attention[name] = attention[name] | {"kernel": np.concatenate([attention[name]["kernel"], more])}
        y, _ = numpy_bert.self_attention(np.concatenate([x, one_hot], axis=2), attention, allowed)
        x = numpy_bert.norm(x + y, layer["attention_norm"], epsilon)
        wide = np.maximum(numpy_bert.dense(x, layer["feed_forward"]["intermediate"]), 0) ** 2
        y = numpy_bert.dense(wide, layer["feed_forward"]["output"])
        x = numpy_bert.norm(x + y, layer["feed_forward_norm"], epsilon)
    return x


@pytest.mark.parametrize("layers", ["ends", pytest.param("all", marks=pytest.mark.slow)])
def test_vectors_of_words_squared_relu_and_the_terms_of_a_loss_are_those_of_numpy(layers):
    """Of rows of two texts, by a scan and by a loop that computes the last layer where it is read."""
    ids, types, mask = rows(9, (9, 9))
    texts = PackedTexts(np.int32([[1] * 4 + [2] * 5] * 2), np.int32([[0, 4]] * 2))
    batch = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    batch |= {"text_ids": texts.ids, "text_starts": texts.starts, "masked_ids": np.int32([[7, 60], [5, 9]])}
    batch |= {"masked_positions": np.int32([[1, 6], [2, 8]]), "masked_weights": np.float32([[1, 1], [1, 0]])}
    ways = [ComputeConfig(dtype="float32", layers=how) for how in ("scan", "loop")]
    config = dataclasses.replace(RECIPE, value_embeddings=layers)
    models = [BertForPreTraining(config, how, ("mlm",)) for how in ways]
    params = perturbed(models[0])
    assert params["embeddings"]["value"]["scale"].shape == ({"ends": 2, "all": 3}[layers],)
    assert params["embeddings"]["value"]["table"].shape == (61, 24)

    def scan(params):
        objective = PretrainingObjective(models[0], MaskedWords(z_loss_weight=0.25))
        sums = objective.sums(params, batch)
        return mean_loss(objective.terms, sums, objective.denominators(batch)), sums

    def loop(params):
        read = models[1].read(params, ids, types, mask, batch["masked_positions"], texts=texts)
        return models[1].mlm_logits(params, batch, read)

    allowed = (texts.ids[:, :, None] == texts.ids[:, None]).astype(float)
    states = states_in_numpy(params, ids, allowed)
    read, p = states[np.arange(2)[:, None], batch["masked_positions"]], numpy_bert.as_float64(params)
    dense = np.maximum(numpy_bert.dense(read, p["mlm"]["dense"]), 0) ** 2
    normed = numpy_bert.norm(dense, p["mlm"]["norm"], 1e-5)
    logits = 2 * np.tanh((normed @ p["embeddings"]["word"]["table"].T + p["mlm"]["bias"]) / 2)
    log_sums = np.log(np.exp(logits).sum(-1))
    losses = log_sums - np.take_along_axis(logits, batch["masked_ids"][:, :, None], 2)[:, :, 0]
    weights = batch["masked_weights"]
    run = compiled(lambda params: (loop(params), jax.value_and_grad(scan, has_aux=True)(params)))
    found, ((loss, sums), gradient) = run(params)
    np.testing.assert_allclose(found, logits, atol=3e-5)
    assert float(sums["mlm"].loss) == pytest.approx((weights * losses).sum(), rel=1e-5)
    assert float(sums["z"].loss) == pytest.approx((weights * log_sums**2).sum(), rel=1e-5)
    assert float(loss) == pytest.approx((weights * (losses + 0.25 * log_sums**2)).sum() / 3, rel=1e-5)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient["embeddings"]))


def test_the_arrays_and_the_costs_of_the_options():
    """Four layers, three heads of queries to one of keys, each count by hand."""
    without = dataclasses.replace(RECIPE, norm_position="pre", num_layers=4, key_value_heads=1, value_embeddings="none")
    whole = dataclasses.replace(without, value_embeddings="all", query_key_norm=True, zero_outputs=True)
    model = BertForPreTraining(whole, FLOAT32, ("mlm",))
    made = leaf_paths(jax.eval_shape(model.init, jax.random.key(0)))
    tables = [bert_parameters(each, ("mlm",)) for each in (without, whole)]
    assert {path: leaf.shape for path, leaf in made.items()} == {path: each.shape for path, each in tables[1].items()}
    counts = [costs.parameter_counts(each) for each in tables]
    assert counts[1].embeddings - counts[0].embeddings == 61 * 8 + 4 and counts[1].block - counts[0].block == 2 * 8
    flops = [costs.training_flops(each, table, 16, 3) for each, table in zip((without, whole), tables, strict=True)]
    assert flops[0] == flops[1]  # a look-up and norms are no products
    kept = [costs.activation_bytes(each, 16, 3, "full") for each in (without, whole)]
    assert kept[1].total - kept[0].total == 16 * 8 * 2  # the vectors of the words, in bfloat16
    kept = [costs.activation_bytes(each, 16, 3, "sel").linear for each in (without, whole)]
    assert kept[1] - kept[0] == 16 * 4 * 4 * (3 + 1)  # a variance of each head of queries and of keys


@pytest.mark.parametrize(
    "embeddings", ["disentangled", *(pytest.param(each, marks=pytest.mark.slow) for each in ("shared", "own"))]
)
def test_a_generator_has_vectors_of_its_own_for_its_values(embeddings):
    """As wide as they are, whatever tables it shares."""
    model = variant(SMALL, pair_head=False, value_embeddings="all", num_layers=1)
    objective = ReplacedTokens(generator=GeneratorConfig(hidden_size=8, embeddings=embeddings))
    both = trained(Config(model=model, objective=objective))
    made = {path: leaf.shape for path, leaf in leaf_paths(shapes(both)).items()}
    assert made == {path: entry.shape for path, entry in both.parameters.items()}
    tables = [made[f"{part}embeddings/value/table"] for part in ("", "generator/")]
    assert tables == [(61, 24), (61, 8)]


@pytest.mark.parametrize("form", ["pre", pytest.param("post", marks=pytest.mark.slow)])
def test_with_zero_outputs_the_first_states_are_those_of_the_embeddings(form):
    config = dataclasses.replace(SMALL, num_layers=1, norm_position=form, zero_outputs=True)
    model = BertForPreTraining(config, FLOAT32, ())
    batch = rows(9, (9, 6))

    @compiled
    def states(key):
        found = model.encode(model.init(key), *batch, collect=True)
        return found.hidden_states, found.last_hidden_state

    hidden, last = states(jax.random.key(0))
    for state in hidden[1:]:
        np.testing.assert_allclose(state, hidden[0], atol=1e-5)  # post-norm: normalized twice
    expected = (hidden[0] - hidden[0].mean(-1, keepdims=True)) / hidden[0].std(-1, keepdims=True)
    np.testing.assert_allclose(last, expected, atol=1e-4)


def run(objective=None, **model) -> Config:
    given = {} if objective is None else {"objective": objective}
    data = DataConfig(sentence_pairs="none")
    return Config(model=variant(SMALL, **model), data=data, phases=(PhaseConfig(sequence_length=20),), **given)


TERMS = {"disentangled": DisentangledConfig(terms="c2p"), "positions": "none"}


@pytest.mark.parametrize(
    "options, message",
    [
        (
            TERMS | {"query_key_norm": True},
            "query_key_norm=True normalizes one .*terms=c2p adds .*; set model.query_key_norm=False",
        ),
        (TERMS | {"value_embeddings": "all"}, "value_embeddings=all cannot be .*set model.value_embeddings=none"),
        ({"scaled_outputs": True, "zero_outputs": True}, "scaled_outputs=True .*zero_outputs=True .*; set one"),
        ({"activation": "relu_squared", "feed_forward": "geglu"}, "relu_squared belongs to plain .*feed_forward=geglu"),
        ({"logit_cap": 0.0}, "logit_cap=0.0 must be positive"),
        ({"objective": MaskedWords(z_loss_weight=-1.0)}, "z_loss_weight=-1.0 must be 0 or"),
        ({"objective": MaskedWords(z_loss_weight=1e-4, mlm_weight=0.0, sentence_pair_weight=0.0)}, "nothing to learn"),
        (
            {"objective": LeftToRight(z_loss_weight=-1.0), "direction": "left_to_right", "pair_head": False},
            "z_loss_weight=-1.0 must be 0 or",
        ),
    ],
)
def test_bad_options_are_one_line(options, message):
    with pytest.raises(UserError, match=message):
        check(run(**options))


@pytest.mark.parametrize("name, value", [("query_key_norm", True), ("value_embeddings", "ends"), ("logit_cap", 30.0)])
def test_transformers_has_no_such_model_and_it_is_said_which_option(name, value):
    model = dataclasses.replace(SMALL, **{name: value})
    assert type_to_write(model) is None and f"none has model.{name}={value}" in obstacles(model)


def test_layers_that_read_words_are_no_start_for_fewer():
    stored = StoredModel("bert_jax", "there", dataclasses.replace(SMALL, value_embeddings="all"), {}, None)
    with pytest.raises(UserError, match="init_from_layers=0 needs layers that can be anywhere, .*value_embeddings=all"):
        with_layers(stored, (0,), SMALL)


def test_transformers_has_bert_with_squared_relu():
    kind = type_to_write(dataclasses.replace(SMALL, activation="relu_squared", zero_outputs=True))
    assert kind is not None and kind.name == "bert"


WHOLE = {"query_key_norm": True, "value_embeddings": "ends", "logit_cap": 20.0, "zero_outputs": True}


@pytest.mark.slow
def test_the_same_on_any_mesh(small_store, tmp_path):
    """All options at once, with a z-loss and polar express; the run is resumed exactly, and opened."""
    model = variant(
        dataclasses.replace(SMALL, vocab_size=None, hidden_size=32, num_heads=4, num_layers=3, pair_head=False),
        **WHOLE | {"positions": "rope", "norm_position": "pre", "activation": "relu_squared", "local_window": 4},
    )
    config = run_config(small_store, tmp_path / "run")
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(model, key_value_heads=2, max_position_embeddings=64),
        objective=MaskedWords(z_loss_weight=0.1),
        optimizer=dataclasses.replace(
            config.optimizer, name="muon", orthogonalization="polar_express", momentum_warmup_steps=4
        ),
        data=dataclasses.replace(config.data, sentence_pairs="none", path=str(small_store)),
        phases=(PhaseConfig(steps=6, sequence_length=48, batch_size=8, learning_rate=1e-3, warmup_steps=2),),
    )
    pretrain(config, devices=jax.devices()[:1])
    whole = logged(config.workdir)
    assert_resumed_exactly(config, (6,))
    layer = bert_jax.load(config.workdir).layers[0]
    with pytest.raises(UserError, match=r"layers\[0\] adds vectors of words to its values .*use model.encode"):
        layer(np.zeros((1, 3, 32), np.float32), np.ones((1, 3), np.int32))
    for row in whole:
        assert row["z_loss"] > 0 and row["loss"] == pytest.approx(row["mlm_loss"] + 0.1 * row["z_loss"])
    for mesh in MESHES:
        split = on_mesh(config, mesh, tmp_path)
        pretrain(split, devices=jax.devices()[:8])
        losses = [[row["loss"] for row in found] for found in (whole, logged(split.workdir))]
        np.testing.assert_allclose(losses[1], losses[0], rtol=2e-6, err_msg=str(mesh))
