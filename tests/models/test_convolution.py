"""The convolution beside the first layer: position by position, in packed rows, its costs, its depth, what it refuses.

Its numbers are compared with those of transformers in tests/formats/test_deberta.py.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deberta_model import CONVOLVED, PUBLISHED_THIRD, THIRD
from model_variants import variant
from modern_model import rows
from small_model import FLOAT32, assert_trees_close, compiled, encoder_gradient, perturbed

from bert_jax.config import ComputeConfig, Config, DataConfig, DisentangledConfig, MeshConfig, ModelConfig, PhaseConfig
from bert_jax.config.checks import check
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.formats.stored import StoredModel
from bert_jax.models import costs
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.models.deberta import neighbours
from bert_jax.models.kernels.plain import AttentionMask
from bert_jax.models.layers import PackedTexts
from bert_jax.parameters import entries, total_size
from bert_jax.pretrained.initialization import with_layers
from bert_jax.training.optimizers import scale_by_depth, unfrozen_by_epoch

PLAIN = variant(dataclasses.replace(CONVOLVED, disentangled=DisentangledConfig()), convolution_width=5)
"""The same beside the first layer of a BERT."""


@pytest.mark.parametrize("width", [1, 3, 7])
def test_what_is_around_a_token_ends_where_its_text_ends(width):
    x = np.random.default_rng(0).standard_normal((2, 9, 4)).astype(np.float32)
    texts = np.array([[1, 1, 1, 1, 2, 2, 3, 0, 0], [1, 1, 0, 1, 1, 1, 1, 1, 1]], np.int32)  # the second with a hole
    found = compiled(lambda x: neighbours(x, AttentionMask(padding=texts > 0, segments=texts), width))(x)
    for row, position in np.argwhere(texts > 0):
        for place in range(width):
            there = position + place - width // 2
            seen = 0 <= there < 9 and texts[row, there] == texts[row, position]
            np.testing.assert_array_equal(found[row, position, place], x[row, there] if seen else np.zeros(4))


@pytest.mark.parametrize("config", [CONVOLVED, PLAIN], ids=["deberta", "bert"])
def test_a_text_in_a_packed_row_is_computed_as_if_alone(config):
    model = BertForPreTraining(config, FLOAT32, ())
    params, (ids, types, _) = perturbed(model), rows(20, (20,))
    numbers = np.repeat([1, 2, 3, 0], [10, 7, 1, 2])[None]
    texts = PackedTexts(jnp.asarray(numbers), jnp.asarray([[0, 10, 17]]))
    mask = (numbers > 0).astype(np.int32)
    packed = compiled(lambda p: model.encode(p, ids, types, mask, texts=texts).last_hidden_state)(params)
    encode = compiled(lambda p, ids, mask: model.encode(p, ids, ids * 0, mask).last_hidden_state)
    for start, end in ((0, 10), (10, 17), (17, 18)):
        padded = np.zeros((1, 12), np.int32)
        padded[:, : end - start] = ids[:, start:end]
        real = (np.arange(12) < end - start).astype(np.int32)[None]
        np.testing.assert_allclose(packed[:, start:end], encode(params, padded, real)[:, : end - start], atol=2e-5)


@functools.cache
def unrolled(config: ModelConfig):
    """Parameters, loss and gradients with dropout, on one device."""
    return encoder_gradient(
        BertForPreTraining(config, ComputeConfig(dtype="float32", layers="loop"), ()), rows(13, (13, 9))
    )


@pytest.mark.parametrize("remat", ["none", pytest.param("sel", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "changes", [{}, {"num_layers": 2, "sharing": "all"}, pytest.param({"num_layers": 1}, marks=pytest.mark.slow)]
)
def test_a_scan_and_what_it_computes_again_give_the_same_model(changes, remat):
    config = dataclasses.replace(CONVOLVED, hidden_dropout=0.2, **changes)
    params, loss, slopes = unrolled(config)
    compute = ComputeConfig(dtype="float32", layers="scan", remat=remat)
    _, found, gradient = encoder_gradient(BertForPreTraining(config, compute, ()), rows(13, (13, 9)), params)
    assert float(found) == pytest.approx(float(loss), rel=1e-5)
    assert_trees_close(gradient, slopes, rtol=2e-4, atol=2e-5)
    assert all(np.any(leaf) for leaf in jax.tree.leaves(slopes["encoder"]["convolution"]))


def test_the_same_on_a_mesh():
    """Parameters split over fsdp and tensor, rows over data and fsdp."""
    config = dataclasses.replace(CONVOLVED, hidden_size=24, num_layers=2, num_heads=2, vocab_size=64)
    model, mesh = BertForPreTraining(config, FLOAT32, ()), sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    batch = rows(13, (13, 9, 2, 5))
    params, loss, slopes = encoder_gradient(model, batch)
    split = jax.device_put(params, sharding.shardings(mesh, entries(model.parameters, params)))
    kernel = split["encoder"]["convolution"]["dense"]["kernel"]
    assert kernel.sharding.shard_shape(kernel.shape) == (1, 3, 12, 24)
    shared = tuple(jax.device_put(values, sharding.batch_sharding(mesh)) for values in batch)
    _, found, gradient = encoder_gradient(model, shared, split)
    assert float(found) == pytest.approx(float(loss), rel=1e-5)
    assert_trees_close(gradient, slopes, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    "layers, encoder, with_head", [(24, 884_593_152, 887_085_156), (48, 1_564_549_632, 1_567_041_636)]
)
def test_published_parameter_counts(layers, encoder, with_head):
    """v2-xlarge and v2-xxlarge; their counts are those of `tests/oracles/count_deberta.py` with transformers 5.24.0."""
    config = variant(
        dataclasses.replace(PUBLISHED_THIRD, hidden_size=1_536, num_layers=layers, num_heads=24), convolution_width=3
    )
    model = BertForPreTraining(config, FLOAT32, ("mlm",))
    made = jax.eval_shape(model.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(made)) == total_size(model.parameters) == with_head
    counts = costs.parameter_counts(bert_parameters(config))
    assert counts.encoder_without_pooler == encoder
    table, convolution = (2 * 256 + 2) * 1_536, (3 * 1_536 + 3) * 1_536
    assert counts.layers == layers * counts.block + table + convolution


def test_flops_count_the_convolution_once():
    with_it, without = (costs.training_flops(config, bert_parameters(config), 16, 3) for config in (CONVOLVED, THIRD))
    assert with_it.kernels - without.kernels == 3 * 2 * 16 * 3 * 24 * 24
    assert (with_it.attention, with_it.heads) == (without.attention, without.heads)


@pytest.mark.parametrize("remat", ["none", "sel", "dots", "full"])
@pytest.mark.parametrize("dtype, value_bytes", [("float32", 4), ("bfloat16", 2)])
def test_the_memory_is_what_differentiation_keeps(remat, dtype, value_bytes):
    """Beside what it keeps of the same model without a convolution, and beside a bit per token."""
    kept, expected, batch = [], [], rows(13, (13, 9))
    for config in (dataclasses.replace(each, hidden_size=96, num_layers=1) for each in (THIRD, CONVOLVED)):
        model = BertForPreTraining(config, ComputeConfig(dtype=dtype, layers="loop", remat=remat), ())
        params = jax.eval_shape(model.init, jax.random.key(0))

        def backward(params, model=model):
            return jax.vjp(lambda p: model.encode(p, *batch, jax.random.key(0)).last_hidden_state, params)[1]

        own = {shape for leaf in jax.tree.leaves(params) for shape in (leaf.shape, leaf.shape[1:])}
        leaves = [leaf for leaf in jax.tree.leaves(jax.eval_shape(backward, params)) if leaf.dtype != bool]
        kept.append(sum(leaf.size * leaf.dtype.itemsize for leaf in leaves if leaf.shape not in own))
        expected.append(2 * costs.activation_bytes(config, 13, 0, remat, value_bytes).total)
    assert np.diff(kept) == pytest.approx(np.diff(expected), rel=0.03)
    assert np.diff(expected) > 0 or remat == "full"


def test_it_learns_and_thaws_with_the_first_layer():
    parameters = bert_parameters(CONVOLVED, ())
    ones = jax.tree.map(np.ones_like, perturbed(BertForPreTraining(CONVOLVED, FLOAT32, ())))
    by_depth, thawing = scale_by_depth(0.5, 3, parameters), unfrozen_by_epoch(3, parameters)
    encoder = compiled(lambda ones: by_depth.update(ones, by_depth.init(ones))[0]["encoder"])(ones)
    assert (
        np.unique(encoder["convolution"]["dense"]["kernel"]) == encoder["attention"]["query"]["bias"][0, 0, 0] == 0.25
    )
    thawed = compiled(lambda ones, epoch: thawing.update(ones, thawing.init(ones), epoch=epoch)[0]["encoder"])
    for epoch in range(5):
        encoder = thawed(ones, epoch)
        first, last = (encoder["attention"]["query"]["bias"][layer, 0, 0] for layer in (0, 2))
        assert np.unique(encoder["convolution"]["norm"]["scale"]) == first == (epoch >= 3) and last == (epoch >= 1)


def test_a_student_does_not_start_from_some_of_its_layers():
    stored = StoredModel(kind="bert_jax", path="somewhere", model=CONVOLVED, arrays={})
    with pytest.raises(
        UserError, match=r"init_from_layers=0,2 needs .* somewhere has .*model.convolution_width=3; take"
    ):
        with_layers(stored, (0, 2), dataclasses.replace(THIRD, num_layers=2))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"convolution_width": 4}, "model.convolution_width=4 must be odd, .* and at most 127"),
        ({"convolution_width": -3}, "model.convolution_width=-3 must be odd"),
        ({"convolution_width": 129}, "model.convolution_width=129 must be odd, .* and at most 127"),
        (
            {"convolution_width": 0, "convolution_activation": "gelu_erf"},
            "model.convolution_activation=gelu_erf needs model.convolution_width, but model.convolution_width=0",
        ),
        ({"norm_position": "pre"}, "convolution_width=5 cannot be combined with model.norm_position=pre"),
        (
            {"positions": "xlnet"},
            "convolution_width=5 belongs to another model.positions, not to .*xlnet",
        ),
        ({"layer": "lstm"}, "convolution_width=5 belongs to model.layer=transformer, not to model.layer=lstm"),
        ({"direction": "left_to_right"}, "convolution_width=5 cannot be combined with model.direction=left_to_right"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(changes, message):
    phases = (PhaseConfig(steps=1, sequence_length=16, batch_size=2, learning_rate=1e-3),)
    config = Config(model=PLAIN, data=DataConfig(sentence_pairs="none"), phases=phases)
    check(config)
    with pytest.raises(UserError, match=message) as raised:
        check(dataclasses.replace(config, model=variant(PLAIN, **{"convolution_width": 5, **changes})))
    assert "\n" not in str(raised.value)
