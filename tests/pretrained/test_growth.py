"""Models that grow from smaller ones: what they compute, and which entries they are made of."""

import dataclasses

import jax
import numpy as np
import numpy_bert
import pytest
from family_runs import MESHES, assert_same_losses
from flax.traverse_util import flatten_dict, unflatten_dict
from model_variants import variant
from modern_models import FIRST, MODERN, PUBLISHED, PUBLISHED_LARGE, THIRD
from pretrained_model import TOKENIZER, every_array, stored_model
from processes import EXHAUSTIVE
from small_model import FLOAT32, compiled, make_batch
from small_pretraining import MODEL, nothing_held_out, pretrain, rows, run_config

from bert_jax.config import Config, MeshConfig, ModelConfig, PhaseConfig
from bert_jax.config.options import with_options
from bert_jax.devices import sharding
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.formats.stored import StoredModel, check_fit
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.parameters import entries
from bert_jax.pretrained.growth import grown
from bert_jax.pretrained.initialization import check_architecture, initialize

SMALL = ModelConfig(
    vocab_size=TOKENIZER.vocab_size,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    intermediate_size=20,
    max_position_embeddings=20,
)
PRE = dataclasses.replace(SMALL, norm_position="pre")
DOUBLE = {"hidden_size": 32, "num_heads": 4, "intermediate_size": 50}
DEEPER = {"num_layers": 5}


def large(small: ModelConfig, **sizes) -> ModelConfig:
    return dataclasses.replace(small, **sizes)


def tree_of(stored) -> dict:
    return unflatten_dict(every_array(stored), sep="/")


@pytest.mark.parametrize(
    "small, sizes, how",
    [
        (SMALL, DOUBLE, ("same", "duplicate")),
        (PRE, DEEPER, ("identity", "same")),
        (PRE, {**DOUBLE, **DEEPER, "hidden_size": 48, "num_heads": 6}, ("identity", "duplicate")),
    ],
    ids=["twice as wide, norms behind", "deeper", "deeper and three times as wide"],
)
def test_what_is_exact_computes_the_same(small, sizes, how):
    """In float64, by another implementation: what is left is the rounding of the shares to float32."""
    stored, batch = stored_model(small), make_batch(small)
    result = grown(stored, large(small, **sizes), *how)
    check_fit(result)
    check_architecture(result, large(small, **sizes))
    wanted = numpy_bert.forward(tree_of(stored), small, batch)
    found = numpy_bert.forward(tree_of(result), result.model, batch)
    for name in ("mlm_logits", "next_sentence_logits"):
        assert np.abs(found[name] - wanted[name]).max() < 1e-6, name
        assert np.abs(wanted[name]).max() > 0.3, name


def test_copies_do_not_learn_the_same():
    """Features that are copies have other shares in each output, so their gradients are not proportional."""
    result = every_array(grown(stored_model(SMALL), large(SMALL, **DOUBLE), "same", "duplicate"))
    kernel = result["encoder/feed_forward/intermediate/kernel"]
    shares = kernel[:, :16] / (kernel[:, :16] + kernel[:, 16:])
    assert set(np.unique(np.round(shares, 4))) == {np.float32(0.3333), np.float32(0.6667)}
    assert (np.ptp(shares, axis=2) > 0.3).all() and (np.ptp(shares, axis=1) < 0.01).all()


def test_a_device_reads_its_own_part():
    result = grown(stored_model(PRE), large(PRE, **DOUBLE, **DEEPER), "identity", "duplicate")
    for path, values in every_array(result).items():
        for axis, size in enumerate(values.shape):
            index = [slice(None)] * values.ndim
            index[axis] = slice(size // 2, size)
            np.testing.assert_array_equal(result.arrays[path].read(tuple(index)), values[tuple(index)], err_msg=path)


def around_the_middle(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The array in the middle of a larger one that it fills periodically, as NumPy pads."""
    missing = [new - old for new, old in zip(shape, values.shape, strict=True)]
    return np.pad(values, [(each // 2, each - each // 2) for each in missing], mode="wrap")


@pytest.mark.parametrize(
    "small, sizes",
    [
        (SMALL, {"hidden_size": 24, "num_heads": 3, "intermediate_size": 33}),
        (SMALL, {"hidden_size": 56, "num_heads": 7, "intermediate_size": 70}),  # more than twice on each side
        (dataclasses.replace(PRE, word_head="affine", embedding_norm=False), {"hidden_size": 24, "num_heads": 3}),
    ],
    ids=["half as much again", "many times", "a word table for each end"],
)
def test_weights_are_tiled_around_the_middle(small, sizes):
    stored = stored_model(small, parts=("mlm",))
    result = grown(stored, large(small, **sizes), "same", "tile")
    check_fit(result)
    found, before = every_array(result), every_array(stored)
    assert found.keys() == before.keys()
    for path, values in found.items():
        np.testing.assert_array_equal(values, around_the_middle(before[path], values.shape), err_msg=path)
    part = result.arrays["encoder/attention/query/kernel"]
    index = (slice(1, 2), slice(3, 9), slice(1, 3), slice(None))
    np.testing.assert_array_equal(part.read(index), found["encoder/attention/query/kernel"][index])


def test_layers_are_stacked_or_spread():
    before = every_array(stored := stored_model(SMALL))
    path = "encoder/feed_forward/output/kernel"
    for how, layers in (("stack", [0, 1, 0, 1, 0]), ("spread", [0, 0, 1, 1, 1])):
        after = every_array(grown(stored, large(SMALL, num_layers=5), how, "same"))
        np.testing.assert_array_equal(after[path], before[path][layers])
    published = [round(layer * 22 / 28) for layer in range(28)]  # ModernBERT-large of base
    small = dataclasses.replace(PRE, num_layers=22)
    after = every_array(grown(stored := stored_model(small), large(small, num_layers=28), "spread", "same"))
    np.testing.assert_array_equal(after[path], every_array(stored)[path][published])


@pytest.mark.parametrize(
    "layers, how, places",
    [("all", "spread", [0, 0, 1, 1, 1]), ("all", "identity", [0, 1, 0, 1, 0]), ("ends", "spread", [0, 1])],
)
def test_factors_of_vectors_of_words_are_those_of_the_copied_layers(layers, how, places):
    small, path = large(PRE, value_embeddings=layers), "embeddings/value/scale"
    before = every_array(stored := stored_model(small))[path]
    result = grown(stored, large(small, num_layers=5), how, "same")
    check_fit(result)
    np.testing.assert_array_equal(every_array(result)[path], before[places])


def test_a_copy_of_a_first_layer_without_a_norm_gets_one():
    small = dataclasses.replace(PRE, first_attention_norm=False)
    before = every_array(stored := stored_model(small))["encoder/attention_norm/scale"]
    after = every_array(grown(stored, large(small, num_layers=4), "stack", "same"))["encoder/attention_norm/scale"]
    np.testing.assert_array_equal(after, [before[0], np.ones(16), before[0]])  # of layers 1, 0 and 1


def test_modernbert_large_starts_from_base():
    """The sizes of both: nothing but what the larger one has, in its shapes; no value is read."""

    def unread(index):
        raise AssertionError(index)

    parameters = bert_parameters(PUBLISHED, ("mlm",))
    arrays = {path: StoredArray(each.shape, np.dtype(np.float32), unread) for path, each in parameters.items()}
    base = StoredModel("test", "base", PUBLISHED, arrays, TOKENIZER)
    result = grown(base, PUBLISHED_LARGE, "spread", "tile")
    check_architecture(result, PUBLISHED_LARGE)
    shapes = {path: array.shape for path, array in result.arrays.items()}
    assert shapes == {path: each.shape for path, each in bert_parameters(PUBLISHED_LARGE, ("mlm",)).items()}


def test_the_report_says_of_each_array_where_it_came_from():
    model = BertForPreTraining(large(PRE, **DOUBLE, **DEEPER))
    result = grown(stored_model(PRE), model.config, "identity", "duplicate")
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    fresh = jax.tree.map(lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype)), shapes)
    params, report = initialize(result, model.parameters, TOKENIZER, fresh)
    assert not report.fresh and set(report.resized) | set(report.loaded) == set(model.parameters)
    _, remark = report.resized["encoder/attention/output/kernel"]
    assert remark == (
        "layers 0,1,0,1,0, outputs of 2 to 4 zero; heads 2 → 4 × hidden 16 → 32: duplicated, inputs in shares"
    )
    kernel = flatten_dict(params, sep="/")["encoder/attention/output/kernel"]
    assert not np.asarray(kernel[2:]).any() and np.asarray(kernel[:2]).all()


@pytest.mark.parametrize("depth", ["identity", "stack", "spread"])
@pytest.mark.parametrize("width", ["duplicate", "tile"])
def test_on_a_mesh_each_device_makes_its_own_part_of_the_same_arrays(depth, width):
    model = BertForPreTraining(large(PRE, **DOUBLE, **DEEPER))
    result = grown(stored_model(PRE), model.config, depth, width)
    shapes = jax.eval_shape(model.init, jax.random.key(0))

    def made(mesh: MeshConfig):
        devices = jax.devices()[: mesh.data * mesh.fsdp * mesh.tensor]
        where = sharding.shardings(sharding.make_mesh(mesh, devices), entries(model.parameters, shapes))
        zeros = jax.tree.map(lambda leaf, place: jax.device_put(np.zeros(leaf.shape, leaf.dtype), place), shapes, where)
        return flatten_dict(initialize(result, model.parameters, TOKENIZER, zeros)[0], sep="/")

    whole = made(MeshConfig(data=1))
    for mesh in MESHES:
        parts = made(mesh)
        assert any(not leaf.is_fully_replicated for leaf in parts.values()) == (mesh.fsdp * mesh.tensor > 1)
        for path, values in whole.items():
            np.testing.assert_array_equal(parts[path], values, err_msg=f"{path} on {mesh}")


@pytest.mark.parametrize(
    "small, sizes, how, message",
    [
        (SMALL, DEEPER, ("identity", "same"), "norm_position=pre.*init_from_depth=stack or spread start close"),
        (
            large(PRE, value_embeddings="ends"),
            DEEPER,
            ("identity", "same"),
            "layer 1 adds vectors of words .* 5 layers",
        ),
        (SMALL, {"num_layers": 2}, ("stack", "same"), "model.num_layers=2"),
        (SMALL, {"hidden_size": 24, "num_heads": 3}, ("same", "duplicate"), "no multiple; give 16 or 32"),
        (SMALL, {"hidden_size": 32}, ("same", "tile"), "have 8 features .* 16; give --model.num_heads=4"),
        (SMALL, {"hidden_size": 8, "num_heads": 1}, ("same", "tile"), "hidden_size of somewhere is 16 and .* 8"),
        (variant(SMALL, positions="alibi"), DOUBLE, ("same", "duplicate"), "alibi.*init_from_width=tile"),
        (SMALL, {**DOUBLE, "embedding_size": 8}, ("same", "tile"), "embedding_size=None"),
    ],
)
def test_what_cannot_grow_is_told_what_is_possible(small, sizes, how, message):
    with pytest.raises(UserError, match=message):
        grown(stored_model(small), large(small, **sizes), *how)


def test_a_larger_configuration_is_told_of_growing():
    with pytest.raises(UserError, match="to grow it, --init_from_depth or --init_from_width"):
        check_architecture(stored_model(SMALL), large(SMALL, **DOUBLE))


GROUPED = variant(MODERN, num_heads=4, key_value_heads=2, hidden_size=16, num_layers=4, norm="rms_norm", norm_bias=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "small, sizes, how",
    [
        (MODERN, {"hidden_size": 48, "num_heads": 6, "intermediate_size": 33}, ("same", "duplicate")),
        (MODERN, {"num_layers": 9}, ("identity", "same")),
        (GROUPED, {"hidden_size": 32, "num_heads": 8, "key_value_heads": 4}, ("same", "duplicate")),
        (FIRST, {"hidden_size": 48, "num_heads": 6}, ("same", "duplicate")),
        (THIRD, {"hidden_size": 72, "num_heads": 9}, ("same", "duplicate")),
    ],
    ids=["ModernBERT, wider", "ModernBERT, deeper", "grouped queries", "DeBERTa", "DeBERTa v3"],
)
def test_relatives_compute_the_same(small, sizes, how):
    """Logits of up to 5 in float32, each product of which rounds on both sides."""
    small = variant(small, vocab_size=TOKENIZER.vocab_size)
    stored = stored_model(small, parts=("mlm",))
    result = grown(stored, large(small, **sizes), *how)
    check_fit(result)
    batch = {name: np.asarray(value) for name, value in make_batch(small).items()}
    batch["token_type_ids"] = np.zeros_like(batch["token_type_ids"])

    def logits(config, tree):
        model = BertForPreTraining(config, FLOAT32, parts=("mlm",))
        return compiled(model.mlm_logits)(tree, batch)

    wanted, found = logits(small, tree_of(stored)), logits(result.model, tree_of(result))
    assert np.abs(wanted).max() > 0.3
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def word_losses(config: Config) -> list[float]:
    return [row["mlm_loss"] for row in rows(config.workdir)]


@pytest.fixture(scope="module")
def small(small_store, tmp_path_factory):
    """A small model's run, and the losses of one that only goes on from its end."""
    place = tmp_path_factory.mktemp("growth")
    phase = PhaseConfig(steps=60, sequence_length=32, batch_size=16, learning_rate=5e-3, warmup_steps=5)
    model = dataclasses.replace(MODEL, norm_position="pre", hidden_dropout=0.0, attention_dropout=0.0)
    config = run_config(small_store, place / "small", model=model, phases=(phase,), data=nothing_held_out(small_store))
    pretrain(config)
    same = with_options(config, {"init_from": config.workdir, "workdir": str(place / "same"), "phases.0.steps": 6})
    pretrain(same)
    return config, word_losses(same)


STACK = {"init_from_depth": "stack", "model.num_layers": 4}
DUPLICATE = {"init_from_width": "duplicate", "model.hidden_size": 64, "model.num_heads": 4}


@pytest.mark.slow
@pytest.mark.parametrize(
    "growth",
    [
        {"init_from_depth": "identity", "model.num_layers": 4},
        {"init_from_width": "tile", "model.hidden_size": 48, "model.num_heads": 3},
        *([STACK, DUPLICATE] if EXHAUSTIVE else []),
    ],
)
def test_a_grown_model_goes_on_learning(small, tmp_path, growth):
    """It begins far below a fresh one, where it is exact at the loss of its source, and learns further."""
    source, losses = small
    config = with_options(
        source, {**growth, "init_from": source.workdir, "workdir": str(tmp_path / "large"), "phases.0.steps": 30}
    )
    pretrain(config)
    before, after = word_losses(source), word_losses(config)
    assert after[0] < before[0] - 0.5
    if {"identity", "duplicate"} & set(growth.values()):
        # Exact; the first update is made at a rate of zero, so two steps tell of the parameters at the start.
        np.testing.assert_allclose(after[:2], losses[:2], atol=2e-5)
    assert np.mean(after[-5:]) < np.mean(after[:5])


@pytest.mark.slow
def test_a_grown_model_has_the_losses_of_one_device_on_meshes(finished, tmp_path):
    """In both sizes: each device makes its own part of the arrays."""
    growth = {"init_from_depth": "stack", "model.num_layers": 4, "init_from_width": "duplicate"}
    growth |= {"model.hidden_size": 64, "model.num_heads": 4, "init_from": finished[0].workdir}
    steps = {"phases.0.steps": 3, "phases.0.warmup_steps": 0, "data.held_out": 0.0}
    config = with_options(finished[0], growth | steps | {"workdir": str(tmp_path / "large")})
    pretrain(config)
    assert_same_losses(config, MESHES[:2], tmp_path, rtol=2e-6)
