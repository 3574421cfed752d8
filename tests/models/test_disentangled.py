"""DeBERTa's attention and convolution.

Its numbers are compared with those of transformers in tests/formats/test_model_types.py.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_variants import variant
from modern_models import CONVOLVED, FIRST, PUBLISHED_FIRST, PUBLISHED_THIRD, THIRD, rows
from processes import EXHAUSTIVE
from small_model import FLOAT32, assert_trees_close, compiled, encoder_gradient, perturbed

from bert_jax.config import ComputeConfig, Config, DataConfig, DisentangledConfig, MeshConfig, ModelConfig, PhaseConfig
from bert_jax.config.checks import check
from bert_jax.config.objective import MaskedWords
from bert_jax.config.options import to_dict
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.formats.stored import StoredModel
from bert_jax.models import costs
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.models.deberta import DisentangledAttention, RelativePositions, along_diagonals, neighbours, relative_rows
from bert_jax.models.kernels import plain as xla
from bert_jax.models.kernels.choice import attention_path
from bert_jax.models.kernels.plain import AttentionMask, Call
from bert_jax.models.layers import PackedTexts
from bert_jax.parameters import entries, total_size
from bert_jax.pretrained.initialization import with_layers
from bert_jax.training.optimizers import scale_by_depth, unfrozen_by_epoch

ONE_TERM = {
    name: dataclasses.replace(FIRST, disentangled=dataclasses.replace(FIRST.disentangled, terms=name))
    for name in ("c2p", "p2c")
}
MODELS = {"v1": FIRST, "v3": THIRD, **ONE_TERM}


def row_by_hand(distance: int, options: DisentangledConfig) -> int:
    """The row of the table for query minus key, from the text of the papers."""
    reach = options.reach
    if options.buckets is None:
        if distance <= -reach:
            return 0
        return 2 * reach - 1 if distance >= reach else distance + reach
    half = options.buckets // 2
    if abs(distance) <= half:
        return distance + reach
    grown = math.log(abs(distance) / half) / math.log((options.max_distance - 1) / half) * (half - 1)
    bucket = min(half + math.ceil(grown), reach)
    return min(max(reach + (bucket if distance > 0 else -bucket), 0), 2 * reach - 1)


@pytest.mark.parametrize(
    "max_distance, buckets", [(5, None), (1, None), (512, None), (512, 256), (12, 6), (33, 11), (6, 2)]
)
def test_rows_are_those_of_the_papers(max_distance, buckets):
    options = DisentangledConfig(max_distance=max_distance, buckets=buckets)
    for length in (1, 2, 7, 700):
        found = relative_rows(np.arange(1 - length, length), max_distance, buckets)
        assert found.tolist() == [row_by_hand(distance, options) for distance in range(1 - length, length)]
    assert np.all(np.diff(found) >= 0) and found[length - 1] == options.reach


def test_entries_are_read_along_the_diagonals():
    for length in (1, 2, 5, 8):
        scores = np.random.default_rng(length).standard_normal((2, 3, length, 2 * length - 1)).astype(np.float32)
        found = compiled(along_diagonals)(scores)
        for i in range(length):
            for j in range(length):
                np.testing.assert_array_equal(found[:, :, i, j], scores[:, :, i, j - i + length - 1])


def scores_by_hand(attention, relative, x: np.ndarray, options: DisentangledConfig) -> np.ndarray:
    """Scores [B, A, L, L] of the paper's equation 4, one pair of positions at a time, in float64."""

    def mapped(module, values):
        bias = 0 if module.bias is None else np.asarray(module.bias[...], np.float64)
        return np.einsum("...h,had->...ad", values, np.asarray(module.kernel[...], np.float64)) + bias

    table = np.asarray(relative.table[...], np.float64)
    if options.table_norm:
        normed = (table - table.mean(-1, keepdims=True)) / np.sqrt(table.var(-1, keepdims=True) + 1e-7)
        table = normed * np.asarray(relative.norm.scale[...]) + np.asarray(relative.norm.bias[...])
    query, key = mapped(attention.query, x), mapped(attention.key, x)
    own = not options.shared_projections
    position_key = mapped(attention.position_key if own else attention.key, table) if options.c2p else None
    position_query = mapped(attention.position_query if own else attention.query, table) if options.p2c else None
    batch, length, heads, size = query.shape
    found = np.zeros((batch, heads, length, length))
    for i in range(length):
        for j in range(length):
            row = row_by_hand(i - j, options)
            terms = query[:, i] * key[:, j]
            terms = terms + query[:, i] * position_key[row] if options.c2p else terms
            terms = terms + key[:, j] * position_query[row] if options.p2c else terms
            found[:, :, i, j] = terms.sum(-1) / math.sqrt(options.count * size)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_the_paper(name):
    config, random = MODELS[name], np.random.default_rng(3)
    draw = compiled(lambda key: (DisentangledAttention(config, key), RelativePositions(config, key)))
    attention, relative = draw(jax.random.key(0))
    for module in (attention.query, attention.key, attention.value, attention.position_key, attention.position_query):
        if module is not None:
            module.kernel.set_value(np.float32(random.standard_normal(module.kernel.shape) * 0.3))
        if module is not None and module.bias is not None:
            module.bias.set_value(np.float32(random.standard_normal(module.bias.shape)))
    relative.table.set_value(np.float32(random.standard_normal(relative.table.shape)))
    if relative.norm is not None:
        relative.norm.scale.set_value(np.float32(random.standard_normal(config.hidden_size)))
        relative.norm.bias.set_value(np.float32(random.standard_normal(config.hidden_size)))
    x = random.standard_normal((2, 17, config.hidden_size)).astype(np.float32)
    mask = AttentionMask(padding=np.ones((2, 17)))
    run = compiled(lambda attention, relative: attention(x, mask, None, xla.attention, True, relative)[1])
    weights = run(attention, relative)
    scores = scores_by_hand(attention, relative, x.astype(np.float64), config.disentangled)
    expected = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(weights, expected / expected.sum(-1, keepdims=True), atol=2e-5)


def once_by_hand(config: ModelConfig) -> int:
    """Parameters that all layers share, or that are next to the first: the table of distances and the convolution."""
    hidden, norm = config.hidden_size, 2 * config.hidden_size
    table = 2 * config.disentangled.reach * hidden + (norm if config.disentangled.table_norm else 0)
    if config.convolution is None:
        return table
    return table + config.convolution.convolution_width * hidden * hidden + hidden + norm


def counted_by_hand(config: ModelConfig, maps: int, biases: int) -> int:
    """Parameters of an encoder with so many [H, H] maps and biases [H] in the attention of a layer."""
    hidden, wide, norm = config.hidden_size, config.feed_forward_size, 2 * config.hidden_size
    layer = maps * hidden * hidden + biases * hidden + 2 * hidden * wide + wide + hidden + 2 * norm
    return config.need_vocab_size() * hidden + norm + config.num_layers * layer + once_by_hand(config)


XLARGE = variant(dataclasses.replace(PUBLISHED_THIRD, hidden_size=1_536, num_heads=24), convolution_width=3)


@pytest.mark.parametrize(
    "config, maps, encoder, with_head",
    [
        pytest.param(PUBLISHED_FIRST, 6, 138_601_728, 139_244_121, id="v1"),
        pytest.param(PUBLISHED_THIRD, 4, 183_831_552, 184_551_780, id="v3"),
        pytest.param(dataclasses.replace(XLARGE, num_layers=24), 4, 884_593_152, 887_085_156, id="v2-xlarge"),
        pytest.param(dataclasses.replace(XLARGE, num_layers=48), 4, 1_564_549_632, 1_567_041_636, id="v2-xxlarge"),
    ],
)
def test_published_parameter_counts(config, maps, encoder, with_head):
    """Those of version 2 are the counts of `tests/oracles/count_deberta.py` with transformers 5.24.0."""
    model = BertForPreTraining(config, FLOAT32, ("mlm",))
    made = jax.eval_shape(model.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(made)) == total_size(model.parameters) == with_head
    counts = costs.parameter_counts(bert_parameters(config))
    assert counts.encoder_without_pooler == counted_by_hand(config, maps, biases=4) == encoder
    assert counts.encoder_without_pooler + counts.mlm_head == with_head
    assert counts.layers == config.num_layers * counts.block + once_by_hand(config)


def test_flops_count_a_product_for_each_term_and_no_map_of_the_table():
    plain = dataclasses.replace(FIRST, disentangled=None)
    with_terms, without = (costs.training_flops(config, bert_parameters(config), 16, 3) for config in (FIRST, plain))
    assert with_terms.kernels == without.kernels and with_terms.attention == 2 * without.attention


def test_the_mask_decoder_is_one_pass_more_and_a_table():
    """Of the two passes of the last layer one is in place of its own, and both have the same keys and values."""
    parts = {name: ("mlm", *more) for name, more in {"with": ("mask_decoder",), "without": ()}.items()}
    flops, counts = {}, {}
    for name, chosen in parts.items():
        table = bert_parameters(FIRST, chosen)
        flops[name], counts[name] = costs.training_flops(FIRST, table, 16, 3), costs.parameter_counts(table)
    assert counts["with"].pretraining - counts["without"].pretraining == 64 * 24 == counts["with"].mask_decoder
    pass_of_layer = 2 * 24 * 24 + 2 * 24 * 20  # queries and output; the feed-forward network
    assert flops["with"].kernels - flops["without"].kernels == 3 * 2 * 16 * pass_of_layer
    assert 3 * flops["with"].attention == 4 * flops["without"].attention


def test_a_step_needs_the_memory_of_all_distances_of_a_layer_and_of_one_pass_more():
    given = {"moments": 2, "sequence_length": 16, "predictions": 3, "rows": 5, "split": 1, "remat": "none"}
    plain = dataclasses.replace(FIRST, disentangled=None)
    table = bert_parameters(FIRST, ("mlm", "mask_decoder"))
    found = costs.step_bytes(FIRST, table, **given) - costs.step_bytes(plain, table, **given)
    kept = costs.activation_bytes(FIRST, 16, 3)
    assert found == 5 * 2 * 4 * 3 * 16 * 32
    without = costs.step_bytes(plain, bert_parameters(FIRST), **given)
    more = costs.step_bytes(plain, table, **given) - without
    assert more == 5 * (kept.linear + kept.quadratic) // 3 + (16 + 2 + 2) * 64 * 24


def test_a_decoded_text_in_a_packed_row_is_as_if_alone():
    model = BertForPreTraining(FIRST, FLOAT32, ("mlm", "mask_decoder"))
    params, (ids, types, _) = perturbed(model), rows(20, (20,))
    numbers = np.repeat([1, 2, 0], [11, 7, 2])[None]
    texts = PackedTexts(np.int32(numbers), np.int32([[0, 11]]))
    mask = np.int32(numbers > 0)
    packed = compiled(lambda p: model.encode(p, ids, types, mask, texts=texts).decoded)(params)
    alone = compiled(lambda p, ids: model.encode(p, ids, ids * 0, ids * 0 + 1).decoded)(params, ids[:, 11:18])
    np.testing.assert_allclose(packed[:, 11:18], alone, atol=2e-5)


def test_the_backward_pass_keeps_no_array_of_all_distances():
    """Beside what it keeps of BERT: per layer and term, the mapped positions [2L - 1, A, D], for all rows together."""
    kept, batch = {}, rows(13, (13, 9))
    for name, config in {
        "with": FIRST,
        "without": dataclasses.replace(FIRST, disentangled=DisentangledConfig()),
    }.items():
        model = BertForPreTraining(config, FLOAT32, ())

        def backward(params, model=model):
            return jax.vjp(lambda p: model.encode(p, *batch).last_hidden_state, params)[1]

        kept[name] = [leaf.shape for leaf in jax.tree.leaves(jax.eval_shape(backward, perturbed(model)))]
    square, positions = (2, 3, 13, 13), (25, 3, 8)
    assert kept["with"].count(square) == kept["without"].count(square) > 0
    assert [shape for shape in kept["with"] if 25 in shape and len(shape) > 2] == 6 * [positions]
    assert not any({26, 2 * 13 * 13, 13 * 25} & set(shape) for shape in kept["with"])


def test_attention_is_announced_as_it_is_computed():
    call = Call(rows=8, length=512, heads=12, size=64, rate=0.1, dtype=jnp.dtype("bfloat16"))
    assert attention_path(ComputeConfig(), "cpu", call, disentangled=True) == "xla"
    assert attention_path(ComputeConfig(), "tpu", call, disentangled=True).startswith(
        "xla, not pallas: scores have a bias that depends"
    )
    with pytest.raises(UserError, match=r"compute.attention=pallas does not support model.disentangled.terms=c2p\+p2c"):
        BertForPreTraining(FIRST, ComputeConfig(attention="pallas")).parameters


def checked(model: ModelConfig, **changes) -> None:
    phases = (PhaseConfig(steps=1, sequence_length=16, batch_size=2, learning_rate=1e-3),)
    check(Config(model=model, data=DataConfig(sentence_pairs="none"), phases=phases, **changes))


TERMS = to_dict(DisentangledConfig())


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"disentangled": {"terms": "none", "buckets": 8}}, "buckets=8 needs model.disentangled.terms, but .*=none"),
        ({"disentangled": TERMS | {"max_distance": 0}}, "model.disentangled.max_distance=0 must be positive"),
        ({"disentangled": TERMS | {"buckets": 1}}, "model.disentangled.buckets=1 must be at least 2"),
        (
            {"disentangled": TERMS | {"buckets": 8, "max_distance": 5}},
            "max_distance=5 leaves nothing for the wider half .* at least 6",
        ),
        ({"positions": "rope"}, "model.positions=rope cannot be combined"),
        ({"use_bias": False}, "model.use_bias=False"),
    ],
)
def test_options_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        checked(variant(FIRST, **changes))


@pytest.mark.parametrize(
    "changes, value",
    [
        (dict(disentangled={"terms": "none"}), "model.disentangled.terms=none"),
        (dict(positions="learned"), "model.positions=learned"),
        (dict(norm_position="pre"), "model.norm_position=pre"),
        (dict(num_layers=1), "model.num_layers=1"),
    ],
)
def test_a_mask_decoder_needs_the_layers_of_deberta(changes, value):
    with pytest.raises(UserError, match=f"objective.mask_decoder=True cannot be combined with {value}"):
        checked(variant(FIRST, **changes), objective=MaskedWords(mask_decoder=True))


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


@pytest.mark.parametrize("config", [CONVOLVED, pytest.param(PLAIN, marks=pytest.mark.slow)], ids=["deberta", "bert"])
def test_a_convolved_text_in_a_packed_row_is_computed_as_if_alone(config):
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
    compute = ComputeConfig(dtype="float32", layers="loop")
    return encoder_gradient(BertForPreTraining(config, compute, ()), rows(13, (13, 9)))


FURTHER = (
    (FIRST, {}, "none"),
    (CONVOLVED, {}, "none"),
    (CONVOLVED, {"num_layers": 1}, "none"),
    (CONVOLVED, {"num_layers": 1}, "sel"),
    (CONVOLVED, {"num_layers": 2, "sharing": "all"}, "none"),
)


@pytest.mark.parametrize(
    "model, changes, remat",
    [
        pytest.param(CONVOLVED, {}, "sel", marks=pytest.mark.slow),  # of BERT's layers a sibling is quick
        pytest.param(FIRST, {}, "full", marks=pytest.mark.slow),
        pytest.param(THIRD, {}, "sel", marks=pytest.mark.slow),
        pytest.param(CONVOLVED, {"num_layers": 2, "sharing": "all"}, "sel", marks=pytest.mark.slow),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in FURTHER if EXHAUSTIVE),
    ],
)
def test_a_scan_and_what_it_computes_again_give_the_same_model(model, changes, remat):
    config = dataclasses.replace(model, hidden_dropout=0.2, **changes)
    params, loss, slopes = unrolled(config)
    compute = ComputeConfig(dtype="float32", layers="scan", remat=remat)
    _, found, gradient = encoder_gradient(BertForPreTraining(config, compute, ()), rows(13, (13, 9)), params)
    assert float(found) == pytest.approx(float(loss), rel=1e-5)
    assert_trees_close(gradient, slopes, rtol=2e-4, atol=2e-5)
    assert slopes["encoder"]["relative"]["table"].shape == (1, 2 * model.disentangled.reach, 24)
    assert all(np.any(leaf) for leaf in jax.tree.leaves(slopes["encoder"].get("convolution", {})))


def test_the_same_on_a_mesh():
    """Parameters split over fsdp and tensor, rows over data and fsdp."""
    config = dataclasses.replace(CONVOLVED, hidden_size=24, num_layers=1, num_heads=2, vocab_size=64)
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


def test_flops_count_the_convolution_once():
    with_it, without = (costs.training_flops(config, bert_parameters(config), 16, 3) for config in (CONVOLVED, THIRD))
    assert with_it.kernels - without.kernels == 3 * 2 * 16 * 3 * 24 * 24
    assert (with_it.attention, with_it.heads) == (without.attention, without.heads)


@pytest.mark.parametrize(
    "remat", ["none", *(pytest.param(remat, marks=pytest.mark.slow) for remat in ("sel", "dots")), "full"]
)
@pytest.mark.parametrize("dtype, value_bytes", [pytest.param("float32", 4, marks=pytest.mark.slow), ("bfloat16", 2)])
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
    message = r"init_from_layers=0,2 needs .* somewhere has .*model.convolution_width=3; take"
    with pytest.raises(UserError, match=message):
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
        ({"positions": "xlnet"}, "convolution_width=5 belongs to another model.positions, not to .*xlnet"),
        ({"layer": "lstm"}, "convolution_width=5 belongs to model.layer=transformer, not to model.layer=lstm"),
        ({"direction": "left_to_right"}, "convolution_width=5 cannot be combined with model.direction=left_to_right"),
    ],
)
def test_a_convolution_that_does_not_fit_is_refused(changes, message):
    checked(PLAIN)
    with pytest.raises(UserError, match=message):
        checked(variant(PLAIN, **{"convolution_width": 5, **changes}))
