"""Removal of layers: what adds nothing goes first, measures against NumPy, and bad input."""

import dataclasses

import jax
import numpy as np
import numpy_bert
import pytest
from loaded_model import loaded
from model_variants import variant
from pretrained_model import CONFIG, PARTS, TOKENIZER, random_texts, stored_model

from bert_jax.analysis import cka, draw_pruning, keep_layers, prune
from bert_jax.analysis.texts import mask_words, word_scores
from bert_jax.config import ModelConfig
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel

SMALL = dataclasses.replace(CONFIG, num_layers=3)


@pytest.fixture(scope="module")
def model() -> PretrainedModel:
    return loaded(stored_model(SMALL))


def with_redundant_layer(norm_position: str, layer: int) -> PretrainedModel:
    """A model in which one layer returns what it is given: both its branches add nothing.

    With post-norm that takes norms without scale and bias, because the norm of a normalized vector is that vector.
    """
    model = loaded(stored_model(dataclasses.replace(SMALL, norm_position=norm_position)))
    params = jax.tree.map(np.array, model.params)
    for branch, last in (("attention", "output"), ("feed_forward", "output")):
        for values in params["encoder"][branch][last].values():
            values[layer] = 0.0
    norms = (*params["encoder"].items(), ("embeddings_norm", params["embeddings"].get("norm", {})))
    for name, values in norms if norm_position == "post" else ():
        if name.endswith("norm"):
            values.update(scale=np.ones_like(values["scale"]), bias=np.zeros_like(values["bias"]))
    model.params = params
    return model


@pytest.mark.parametrize("norm_position, layer", [("pre", 0), ("post", 2)])
def test_a_layer_that_adds_nothing_goes_first(norm_position, layer):
    model = with_redundant_layer(norm_position, layer)
    result = prune(model, random_texts(24), 1, draws=1, batch_size=16, progress=False)
    guided = result.curves[0]
    assert guided.layers[1] == tuple(other for other in range(3) if other != layer)
    np.testing.assert_allclose(guided.similarity[:2], 1.0, atol=1e-5)
    np.testing.assert_allclose(guided.mlm_loss[1], guided.mlm_loss[0], rtol=1e-5)
    assert np.nanargmax(result.candidates[0]) == layer
    assert result.layers == guided.layers[-1] and len(result.layers) == 1


def test_orders_and_measures_of_a_removal(model):
    given = random_texts(30)
    result = prune(model, iter(given), 1, draws=2, batch_size=8, progress=False)
    assert [curve.order for curve in result.curves] == ["cka", "top", "random", "random"]
    assert result.curves[1].layers == ((0, 1, 2), (0, 1), (0,)) and result.depths == [3, 2, 1]
    for curve in result.curves:
        assert all(set(fewer) < set(more) for more, fewer in zip(curve.layers, curve.layers[1:], strict=False))
        kept = curve.layers[1]
        expected = cka(keep_layers(model, kept), given[::2], model, progress=False).matrix[-1, -1]
        np.testing.assert_allclose(curve.similarity[1], expected, rtol=1e-5)
        assert np.isnan(curve.score).all()
    gone = next(layer for layer in range(3) if layer not in result.curves[0].layers[1])
    assert result.candidates.shape == (2, 3) and result.candidates[0, gone] == result.candidates[0].max()
    assert np.isnan(result.candidates[1, gone]) and np.isfinite(result.candidates[1]).sum() == 2
    assert len(draw_pruning(result).axes) == 3


def test_losses_are_those_of_numpy_with_the_layers_that_are_kept(model):
    masked = mask_words(model, random_texts(9), seed=3)
    assert masked is not None
    arrays = masked.arrays
    params = jax.tree.map(np.array, jax.device_get(keep_layers(model, [2, 0]).params))
    rows = numpy_bert.forward(params, dataclasses.replace(SMALL, num_layers=2), arrays)
    logits = np.asarray(rows["mlm_logits"], np.float64)
    losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, arrays["masked_ids"][..., None], -1)[..., 0]
    used = arrays["masked_weights"] > 0
    found = word_scores(keep_layers(model, [2, 0]), masked, batch_size=4)  # the last batch is not full
    np.testing.assert_allclose(found.loss, losses[used].mean(), rtol=1e-5)
    assert found.accuracy == pytest.approx((logits.argmax(-1) == arrays["masked_ids"])[used].mean(), abs=1e-9)
    assert found.predictions == used.sum()


def test_masks_hide_fifteen_percent_of_the_words_whatever_comes_with_them(model):
    given = random_texts(12)
    masked = mask_words(model, given, seed=1)
    assert masked is not None
    for row, text in enumerate(given):
        ids = [TOKENIZER.cls_id, *TOKENIZER.encode(text), TOKENIZER.sep_id]
        hidden = np.flatnonzero(masked.arrays["input_ids"][row] == TOKENIZER.mask_id)
        used = masked.arrays["masked_weights"][row] > 0
        assert sorted(masked.arrays["masked_positions"][row][used]) == hidden.tolist()
        assert len(hidden) == max(1, round(0.15 * (len(ids) - 2))) and 0 not in hidden and len(ids) - 1 not in hidden
        restored = masked.arrays["input_ids"][row].copy()
        restored[masked.arrays["masked_positions"][row][used]] = masked.arrays["masked_ids"][row][used]
        assert restored[: len(ids)].tolist() == ids
    alone = mask_words(model, given[:3], seed=1)
    assert alone is not None and len(alone) == 3
    width = alone.arrays["input_ids"].shape[1]
    np.testing.assert_array_equal(alone.arrays["input_ids"], masked.arrays["input_ids"][:3, :width])


def test_a_score_is_measured_once_for_every_set_of_layers(model):
    seen = []

    def score(pruned: PretrainedModel) -> float:
        seen.append(np.asarray(pruned.params["encoder"]["attention"]["query"]["bias"]).tobytes())
        return float(pruned.config.num_layers)

    result = prune(model, random_texts(10), 1, draws=3, score=score, score_name="layers", progress=False)
    assert len(seen) == len(set(seen)) == len({layers for curve in result.curves for layers in curve.layers})
    for curve in result.curves:
        np.testing.assert_array_equal(curve.score, [3, 2, 1])
    assert result.score_name == "layers"


def test_a_model_without_a_head_for_words_is_pruned_by_cka_alone():
    bare = loaded(stored_model(dataclasses.replace(SMALL, num_layers=2), ("pooler",)))
    result = prune(bare, random_texts(8), 1, draws=0, progress=False)
    assert np.isnan(result.curves[0].mlm_accuracy).all() and np.isfinite(result.curves[0].similarity).all()
    assert result.predictions == 0 and len(draw_pruning(result).axes) == 2


def shaped(**changes) -> PretrainedModel:
    return loaded(stored_model(variant(SMALL, **changes), PARTS))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"sharing": "all"}, "its layers share parameters"),
        ({"local_window": 4, "global_every": 2}, "one layer in 2 sees the whole sequence"),
        ({"norm_position": "pre", "first_attention_norm": False}, "its first layer differs from the others"),
        ({"convolution_width": 3}, "a convolution is added to its first layer"),
    ],
    ids=["shared", "windows", "first", "convolution"],
)
def test_layers_that_are_not_interchangeable_are_refused(config: dict, message: str):
    assert dataclasses.replace(ModelConfig(), **config) != ModelConfig()
    with pytest.raises(UserError, match=message):
        prune(shaped(**config), random_texts(8), 1)
    with pytest.raises(UserError, match=message):
        keep_layers(shaped(**config), [0])


def test_bad_input_is_one_clear_error(model):
    for depth in (0, -1, 3, 7):
        with pytest.raises(UserError, match=f"depth={depth} must be at least 1 and below the 3 layers"):
            prune(model, random_texts(8), depth)
    with pytest.raises(UserError, match="at least 8 texts.*not 7"):
        prune(model, random_texts(7), 1)
    with pytest.raises(UserError, match="at least 8 texts.*not 1"):
        prune(model, "one text", 1)
    with pytest.raises(UserError, match="draws=-1"):
        prune(model, random_texts(8), 1, draws=-1)
    with pytest.raises(UserError, match="vectors='max'"):
        prune(model, random_texts(8), 1, vectors="max")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="has the layers 0 to 2, and no layer 3"):
        keep_layers(model, [0, 3])
    with pytest.raises(UserError, match="leaves no layer"):
        keep_layers(model, [])
