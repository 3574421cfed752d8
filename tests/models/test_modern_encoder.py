"""RoPE, ALiBi, gated networks, other norms, no biases, alternating windows: alone, together and in other forms."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from model_variants import variant
from modern_models import BARE, MODERN, PUBLISHED, PUBLISHED_LARGE, rows
from numpy_bert import gelu
from processes import EXHAUSTIVE
from small_model import FLOAT32, SMALL, assert_trees_close, compiled, encoder_gradient, perturbed

from bert_jax.config import ComputeConfig, Config, DataConfig, HeadConfig, MeshConfig, ModelConfig, PhaseConfig
from bert_jax.config.checks import check
from bert_jax.config.presets import roberta_config
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.models import costs
from bert_jax.models.architecture import bert_architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.models.block import BiasTable, GatedFeedForward, alibi_bias, alibi_slopes, bucket_of_distance
from bert_jax.models.kernels.plain import AttentionMask
from bert_jax.models.layers import LayerNorm, PackedTexts, RmsNorm
from bert_jax.models.stack import repeating
from bert_jax.models.task import BertForTask
from bert_jax.parameters import entries, total_size
from bert_jax.training.optimizers import scale_by_depth


def closed_form(vocab: int, hidden: int, layers: int, wide: int) -> int:
    """Parameters of ModernBERT's encoder, counted by hand."""
    block = 4 * hidden * hidden + 3 * hidden * wide + 2 * hidden
    return vocab * hidden + hidden + layers * block - hidden + hidden


@pytest.mark.parametrize(
    "config, encoder, with_head",
    [(PUBLISHED, 149_014_272, 149_655_232), (PUBLISHED_LARGE, 394_781_696, 395_881_664)],
    ids=["base", "large"],
)
def test_published_parameter_counts(config, encoder, with_head):
    model = BertForPreTraining(config, FLOAT32, ("mlm",))
    made = jax.eval_shape(model.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(made)) == total_size(model.parameters) == with_head
    counts = costs.parameter_counts(bert_parameters(config))
    hand = closed_form(config.vocab_size, config.hidden_size, config.num_layers, config.feed_forward_size)
    assert counts.encoder_without_pooler == hand == encoder
    assert counts.encoder_without_pooler + counts.mlm_head == with_head
    assert counts.block * config.num_layers == counts.layers + config.hidden_size


def test_flops_count_the_pairs_that_see_each_other():
    """By the masks themselves, which are written out here."""
    for window, tokens, length in itertools.product((None, 1, 4, 30), (0, 1, 3), (1, 5, 11)):
        first = {} if window is None else {"global_tokens": tokens}
        config = variant(MODERN, local_window=window, **first)
        place = np.arange(length)
        near = np.abs(place[:, None] - place[None]) <= (length if window is None else window)
        near |= (place[:, None] < tokens) | (place[None] < tokens)
        seen = 2 * length * length + 3 * int(near.sum()) if window else 5 * length * length
        assert costs.seen_positions(config, length) == seen


def test_kernels_of_the_gate_are_in_the_flops():
    plain = dataclasses.replace(MODERN, feed_forward="plain")
    more = [costs.training_flops(config, bert_parameters(config), 16, 3).kernels for config in (MODERN, plain)]
    assert more[0] - more[1] == 3 * 2 * 16 * 5 * 24 * 20


def test_alibi_slopes_are_those_of_the_paper():
    np.testing.assert_allclose(alibi_slopes(8), [2.0**-k for k in range(1, 9)])
    np.testing.assert_allclose(alibi_slopes(12)[8:], [2 ** (-0.5 - k) for k in range(4)])
    bias = compiled(functools.partial(alibi_bias, 2))(np.arange(3)[None, :] - np.arange(3)[:, None])
    np.testing.assert_allclose(bias[1], -(2.0**-8) * np.array([[0, 1, 2], [1, 0, 1], [2, 1, 0]]))


def test_buckets_of_distances_are_those_of_the_paper():
    """Raffel et al. 2020, by the distances at which a bucket begins, of which none is the logarithm of a number."""
    begins = [*range(9), *(next(n for n in range(9, 99) if n * n >= 64 * 2**k) for k in range(1, 8))]
    assert begins[8:] == [8, 12, 16, 23, 32, 46, 64, 91]  # √2 times the one before
    distance = np.arange(-600, 601)
    expected = np.searchsorted(begins, np.abs(distance), "right") - 1 + 16 * (distance > 0)
    np.testing.assert_array_equal(bucket_of_distance(distance, 32, 128), expected)
    few = bucket_of_distance(np.arange(-3, 4), 4, 2)
    assert few.tolist() == [1, 1, 1, 0, 3, 3, 3]


BIASED = {"positions": "learned_bias", "bias_buckets": 8, "bias_max_distance": 6}


def test_a_learned_bias_is_a_number_of_each_head_and_distance():
    config = variant(SMALL, **BIASED)
    table = BiasTable(config, jax.random.key(0))
    found, values = compiled(lambda table: (table(9), table.table[...]))(table)
    place = np.arange(9)
    rows = bucket_of_distance(place[None] - place[:, None], 8, 6)
    np.testing.assert_array_equal(found[0], np.moveaxis(values[rows], 2, 0))
    assert rows[2, 1] == 1 and rows[1, 2] == 5  # the key before the query, and after it


def test_a_learned_bias_is_one_array_and_takes_the_same_memory_for_any_number_of_rows():
    mpnet = variant(roberta_config("base"), type_vocab_size=0, positions="learned_bias")
    assert mpnet.assumed_vocab_size == 30_527
    mpnet = dataclasses.replace(mpnet, vocab_size=30_527)
    counts = costs.parameter_counts(bert_parameters(mpnet))
    assert counts.pretraining == 109_518_527  # as transformers 5.24.0 counts those of MPNetForMaskedLM
    assert counts.layers == 12 * counts.block + 32 * 12
    given = {"moments": 2, "sequence_length": 16, "predictions": 3, "split": 1, "remat": "none"}
    plain, more = variant(mpnet, positions="learned"), []
    for number in (1, 5):
        sizes = [costs.step_bytes(each, bert_parameters(each), rows=number, **given) for each in (mpnet, plain)]
        more.append(sizes[0] - sizes[1])
    assert more == [(16 + 2 * 2) * 32 * 12 + 2 * 4 * 12 * 16 * 32] * 2


def test_norms_equal_their_formulas():
    x = np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)
    scale = np.arange(1.0, 6.0, dtype=np.float32)
    for norm, expected in (
        (RmsNorm(5, 1e-2), x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-2)),
        (LayerNorm(5, 1e-2, bias=False), (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-2)),
    ):
        norm.scale[...] = jnp.asarray(scale)
        assert nnx.to_pure_dict(nnx.state(norm, nnx.Param)).keys() == {"scale"}
        np.testing.assert_allclose(compiled(norm)(x), expected * scale, atol=1e-5)


def test_a_gated_network_multiplies_by_its_gate():
    x = np.random.default_rng(1).standard_normal((3, SMALL.hidden_size), np.float32)

    @compiled
    def run(key):
        network = GatedFeedForward(SMALL, key, gated=lambda gate, values: jax.nn.silu(gate) * values)
        return network(x), [each.kernel[...] for each in (network.gate, network.intermediate, network.output)]

    found, (gate_kernel, kernel, output) = run(jax.random.key(0))
    gate = x @ gate_kernel
    np.testing.assert_allclose(found, (gate / (1 + np.exp(-gate)) * (x @ kernel)) @ output, atol=1e-6)


def losses(config: ModelConfig, compute: ComputeConfig, params=None):
    """Parameters, loss and gradients, with dropout, of an encoder without heads."""
    return encoder_gradient(BertForPreTraining(config, compute, ()), rows(13, (13, 9)), params)


PATTERNS = {
    "left over": MODERN,
    "whole rounds": dataclasses.replace(MODERN, num_layers=7),
    "no pattern": dataclasses.replace(MODERN, num_layers=3),
    "one kind": variant(dataclasses.replace(MODERN, first_attention_norm=True), local_window=None),
}


GROUPED = dataclasses.replace(
    variant(BARE, positions="rope"), num_layers=2, num_heads=6, key_value_heads=2, embedding_norm=False
)


def test_heads_that_share_keys_and_values_are_those_with_copies_of_them():
    """Three heads of queries to each: a gradient of what they share is the sum of those of the copies."""
    batch, grouped = rows(13, (13, 9)), BertForPreTraining(GROUPED, FLOAT32, ())
    every = BertForPreTraining(dataclasses.replace(GROUPED, key_value_heads=None), FLOAT32, ())
    params = perturbed(grouped)
    attention = params["encoder"]["attention"]
    copied = {name: {"kernel": np.repeat(attention[name]["kernel"], 3, axis=2)} for name in ("key", "value")}
    whole = params | {"encoder": params["encoder"] | {"attention": attention | copied}}
    sizes = [total_size(model.parameters) for model in (grouped, every)]
    assert sizes[1] - sizes[0] == 2 * 2 * 24 * 16 and "norm" not in params["embeddings"]
    assert [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (params, whole)] == sizes

    def of(model, params):
        states = model.encode(params, *batch).last_hidden_state
        return jnp.sum(jnp.sin(states) * batch[2][:, :, None]), states

    found, expected = (
        compiled(jax.value_and_grad(functools.partial(of, model), has_aux=True))(tree)
        for model, tree in ((grouped, params), (every, whole))
    )
    np.testing.assert_allclose(found[0][1], expected[0][1], atol=2e-5)
    for name in ("key", "value"):
        own, copies = (gradient["encoder"]["attention"][name]["kernel"] for _, gradient in (found, expected))
        np.testing.assert_allclose(own, np.asarray(copies).reshape(2, 24, 2, 3, 4).sum(3), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("head", ["affine", pytest.param("linear", marks=pytest.mark.slow)])
def test_words_are_predicted_with_a_table_of_their_own(head):
    """By the losses of blocks of words as by the logits; 61 words in 64 rows of the table."""
    config = dataclasses.replace(GROUPED, word_head=head, vocab_pad_multiple=64)
    model, (ids, types, mask) = BertForPreTraining(config, FLOAT32, ("mlm",)), rows(13, (13, 9))
    batch = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    batch |= {"masked_positions": np.int32([[1, 5], [0, 7]]), "masked_ids": np.int32([[4, 60], [9, 2]])}
    params, biased = perturbed(model), head == "affine"
    assert set(params["mlm"]) == ({"table", "bias"} if biased else {"table"})
    assert params["mlm"]["table"].shape == (64, 24) and not model.shares_word_table

    def of(params):
        encoded = model.encode(params, ids, types, mask)
        logits, blocks = model.mlm_logits(params, batch, encoded), model.word_losses(params, batch, encoded)
        return jnp.sum(blocks.losses), (encoded.last_hidden_state, logits, blocks.losses)

    (_, (states, logits, losses)), gradient = compiled(jax.value_and_grad(of, has_aux=True))(params)
    read = np.take_along_axis(np.asarray(states), batch["masked_positions"][:, :, None], axis=1)
    expected = read @ np.asarray(params["mlm"]["table"]).T + (np.asarray(params["mlm"]["bias"]) if biased else 0)
    np.testing.assert_allclose(logits[..., :61], expected[..., :61], atol=2e-5)
    assert (np.asarray(logits)[..., 61:] < -1e8).all()
    own = np.take_along_axis(expected, batch["masked_ids"][:, :, None], 2)[:, :, 0]
    np.testing.assert_allclose(losses, np.log(np.exp(expected[..., :61]).sum(-1)) - own, atol=2e-5)
    assert np.abs(gradient["mlm"]["table"]).max() > 0 and not np.abs(gradient["mlm"]["table"][61:]).any()
    seen = np.unique(ids)  # the word table learns from its look-up alone
    assert not np.abs(np.delete(np.asarray(gradient["embeddings"]["word"]["table"]), seen, axis=0)).any()


def test_the_layers_that_a_scan_goes_over():
    found = {name: repeating(bert_architecture(config, FLOAT32).stack) for name, config in PATTERNS.items()}
    assert found == {"left over": (0, 5, 1), "whole rounds": (1, 3, 2), "no pattern": (1, 1, 2), "one kind": (0, 1, 5)}
    assert repeating(bert_architecture(PUBLISHED, FLOAT32).stack) == (1, 3, 7)
    assert repeating(bert_architecture(PUBLISHED_LARGE, FLOAT32).stack) == (1, 3, 9)


def assert_same_sums(found: np.ndarray, wanted: np.ndarray) -> None:
    """Sums in another order, through seven layers, err by the size of their largest terms: 5e-6 of it was seen."""
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=max(2e-5, 1e-5 * float(np.abs(wanted).max())))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, remats",
    [
        ("left over", ("none", "sel", "full")),
        *([("whole rounds", ("sel",)), ("no pattern", ("none", "full"))] if EXHAUSTIVE else []),
    ],
)
def test_scan_and_loop_and_what_they_compute_again_give_one_model(name, remats):
    params, loss, slopes = losses(PATTERNS[name], ComputeConfig(dtype="float32", layers="loop"))
    for remat in remats:
        other = ComputeConfig(dtype="float32", layers="scan", remat=remat)
        _, found, gradient = losses(PATTERNS[name], other, params)
        assert float(found) == pytest.approx(float(loss), rel=1e-5)
        jax.tree.map(assert_same_sums, gradient, slopes)
    assert slopes["encoder"]["attention_norm"]["scale"].shape[0] == PATTERNS[name].num_layers - 1
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(slopes))


def test_collected_layers_are_those_of_the_loop():
    batch, config = rows(13, (13, 9)), PATTERNS["whole rounds"]
    params = perturbed(BertForPreTraining(config, FLOAT32, ()))
    found = []
    for layers in ("loop", "scan"):
        model = BertForPreTraining(config, ComputeConfig(dtype="float32", layers=layers), ())
        found.append(compiled(functools.partial(model.encode, collect=True))(params, *batch))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5), *found)
    far = np.abs(np.arange(13)[:, None] - np.arange(13)[None]) > 2
    reach = [np.asarray(weights)[0, :, far].max() > 0 for weights in found[0].attentions]
    assert reach == [True, False, False, True, False, False, True]


def test_a_single_layer_is_the_first_of_several():
    """Which has no norm before its attention, so that the model has no such array at all."""
    one, two = (dataclasses.replace(MODERN, num_layers=layers) for layers in (1, 2))
    batch, params = rows(13, (13, 9)), perturbed(BertForPreTraining(two, FLOAT32, ()))
    lower = {name: part for name, part in params["encoder"].items() if name != "attention_norm"}
    alone = params | {"encoder": jax.tree.map(lambda leaf: leaf[:1], lower)}
    expected = compiled(functools.partial(BertForPreTraining(two, FLOAT32, ()).encode, collect=True))(params, *batch)
    for layers in ("loop", "scan"):
        model = BertForPreTraining(one, ComputeConfig(dtype="float32", layers=layers), ())
        found = compiled(functools.partial(model.encode, collect=True))(alone, *batch)
        np.testing.assert_allclose(found.hidden_states[1], expected.hidden_states[1], atol=1e-6)
        np.testing.assert_allclose(found.attentions[0], expected.attentions[0], atol=1e-6)
    assert jax.tree.structure(alone) == jax.tree.structure(jax.eval_shape(model.init, jax.random.key(0)))
    counts = costs.parameter_counts(bert_parameters(one))
    hand = closed_form(one.vocab_size, one.hidden_size, 1, one.feed_forward_size)
    assert counts.encoder_without_pooler == hand and counts.block == counts.layers
    assert costs.training_flops(one, bert_parameters(one), 16, 3).kernels > 0


ROPE = pytest.param({"positions": "rope"}, marks=pytest.mark.slow)  # in the core: those of test_architecture.py


@pytest.mark.parametrize("options", [ROPE, {"positions": "alibi"}, BIASED], ids=str)
def test_a_text_in_a_packed_row_is_as_if_alone(options):
    config = variant(MODERN, **options)
    model = BertForPreTraining(config, FLOAT32, ())
    params, (ids, types, mask) = perturbed(model), rows(14, (14, 14))
    texts = PackedTexts(np.repeat([[1, 2]], [5, 9], axis=1).repeat(2, 0), np.array([[0, 5], [0, 5]]))
    encode = compiled(model.encode)
    packed = encode(params, ids, types, mask, texts=texts).last_hidden_state
    for start, end in ((0, 5), (5, 14)):
        alone = encode(params, ids[:, start:end], types[:, start:end], mask[:, start:end]).last_hidden_state
        np.testing.assert_allclose(packed[:, start:end], alone, atol=2e-5)


def test_a_learned_bias_scanned_on_a_mesh_is_that_of_a_loop():
    """Heads are split over tensor, and so are the numbers that belong to them."""
    config, batch = variant(SMALL, num_heads=2, type_vocab_size=0, **BIASED), rows(13, (13, 9, 2, 5))
    params, loss, slopes = encoder_gradient(BertForPreTraining(config, FLOAT32, ()), batch)
    learns = np.any(slopes["encoder"]["relative_bias"]["table"], axis=(0, 2))
    assert learns.tolist() == [True] * 4 + [False] + [True] * 3  # no key after the query is as far as 0
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    scanned = BertForPreTraining(config, ComputeConfig(dtype="float32", layers="scan", remat="sel"), ())
    split = jax.device_put(params, sharding.shardings(mesh, entries(scanned.parameters, params)))
    table = split["encoder"]["relative_bias"]["table"]
    assert table.sharding.shard_shape(table.shape) == (1, 8, 1)
    shared = tuple(jax.device_put(values, sharding.batch_sharding(mesh)) for values in batch)
    _, found, gradient = encoder_gradient(scanned, shared, split)
    assert float(found) == pytest.approx(float(loss), rel=1e-5)
    assert_trees_close(gradient, slopes, rtol=2e-4, atol=2e-5)


def test_global_tokens_see_and_are_seen_through_a_window():
    mask = AttentionMask(padding=np.ones((1, 6)), window=1, global_positions=np.int32([[0, 1, 6]]))  # 6: none
    seen = compiled(mask.adder)()[0, 0] == 0
    expected = np.abs(np.arange(6)[:, None] - np.arange(6)[None]) <= 1
    expected[:2], expected[:, :2] = True, True
    np.testing.assert_array_equal(seen, expected)


def test_the_head_of_a_task_reads_the_first_position_or_the_mean_of_the_real_ones():
    ids, types, mask = rows(9, (9, 4))
    batch = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    for pooling in ("cls", "mean"):
        model = BertForTask(MODERN, HeadConfig(labels=("a", "b"), pooling=pooling), FLOAT32)
        params = perturbed(model)
        assert "pooler" not in params and params["head"].keys() == {"dense", "norm", "kernel", "bias"}
        states = np.asarray(compiled(model.encode)(params, ids, types, mask).last_hidden_state)
        read = states[:, 0] if pooling == "cls" else np.stack([states[0].mean(0), states[1, :4].mean(0)])
        dense = gelu(read @ params["head"]["dense"]["kernel"], "gelu_erf")
        normed = (dense - dense.mean(-1, keepdims=True)) / np.sqrt(dense.var(-1, keepdims=True) + 1e-5)
        expected = normed * params["head"]["norm"]["scale"] @ params["head"]["kernel"] + params["head"]["bias"]
        np.testing.assert_allclose(compiled(model.apply)(params, batch), expected, atol=2e-5)


def test_layer_decay_knows_the_layers_of_the_norms():
    table = BertForPreTraining(MODERN, FLOAT32, ()).parameters
    path = "encoder/attention_norm/scale"
    scaled = scale_by_depth(0.5, 5, {path: table[path]})
    ones = {"encoder": {"attention_norm": {"scale": np.ones((4, 24), np.float32)}}}
    update = compiled(lambda ones: scaled.update(ones, scaled.init(ones), ones)[0])
    found = update(ones)["encoder"]["attention_norm"]["scale"]
    np.testing.assert_allclose(found[:, 0], [0.125, 0.25, 0.5, 1.0])


def test_where_every_layer_is_local_a_token_sees_one_window_further_per_layer():
    config = variant(dataclasses.replace(MODERN, num_layers=3), local_window=2, global_every=0)
    model = BertForPreTraining(config, FLOAT32)
    params, length = perturbed(model), 96  # from here on computed by blocks
    ids = np.random.default_rng(0).integers(5, config.vocab_size, (1, length)).astype(np.int32)
    other = ids.copy()
    other[0, 10] = 5 + (ids[0, 10] - 4) % (config.vocab_size - 5)
    encode = compiled(model.encode)
    states = [encode(params, each, 0 * each, np.ones_like(each)).last_hidden_state for each in (ids, other)]
    changed = np.flatnonzero(np.abs(states[0] - states[1]).max(axis=2)[0] > 1e-6)
    np.testing.assert_array_equal(changed, np.arange(10 - 3 * 2, 10 + 3 * 2 + 1))


def run(**model) -> Config:
    data = DataConfig(sentence_pairs="none")
    return Config(model=variant(MODERN, **model), data=data, phases=(PhaseConfig(sequence_length=64),))


@pytest.mark.parametrize(
    "model, message",
    [
        ({"num_heads": 8, "hidden_size": 24}, "makes heads of 3; .* even"),
        ({"local_window": 64}, r"local_window=64 must be between 1 and .* = 63; .*local_window=None"),
        ({"local_window": 80, "max_position_embeddings": 128}, "=80 .* reach from one end .*_length=64.*62 at most"),
        ({"local_window": 63, "max_position_embeddings": 128}, "local_window=63 .* so it restricts nothing"),
        ({"local_window": 0}, "local_window=0 must be between 1"),
        ({"global_tokens": 64}, r"global_tokens=64 are all tokens .*\(sequence_length=64\).* fewer"),
        ({"local_window": None, "global_tokens": 1}, "global_tokens=1 needs model.local_window"),
        (
            {"local_window": None, "global_every": 0},
            "global_every=0 needs model.local_window, but model.local_window=None; set that too",
        ),
        ({"norm_position": "post"}, "first_attention_norm=False belongs to model.norm_position=pre, not to post"),
        ({"global_every": -1}, "global_every=-1 must be 0 or a positive number"),
        ({"rope_local_theta": -1.0}, r"rope_local_theta=-1.0 must be positive, from 1e-30 to 1e\+30"),
        ({"rope_theta": 1e-300}, r"rope_theta=1e-300 must be positive, from 1e-30"),  # 0 in float32
        ({"type_vocab_size": -1}, "type_vocab_size=-1 must be 0 or a positive number"),
        ({"key_value_heads": 2}, "num_heads=3 is not divisible by model.key_value_heads=2; give a divisor"),
        ({"key_value_heads": 0}, "key_value_heads=0 must be"),
        (BIASED | {"bias_buckets": 12, "bias_max_distance": 3}, "bias_max_distance=3 leaves nothing .* at least 4"),
        (BIASED | {"bias_buckets": 2}, "bias_buckets=2 must be even and at least 4"),
        (BIASED | {"bias_buckets": 7}, "bias_buckets=7 must be even"),
        (BIASED | {"padding_id": 64}, "padding_id=64 must be an id, .* and leave positions of the 64"),
        ({"rope_scaling": "yarn", "rope_scale": 2.0}, "yarn depends on model.rope_trained_length"),
        ({"rope_trained_length": 9}, "rope_trained_length=9 belongs to model.rope_scaling=dynamic or yarn"),
        ({"rope_scaling": "dynamic", "rope_trained_length": 9, "rope_scale": 0.5}, "rope_scale=0.5 must be at least 1"),
        (
            {"rope_scaling": "yarn", "rope_trained_length": 9, "rope_beta_fast": 0.5},
            "rope_beta_fast=0.5 at least model.rope_beta_slow=1.0",
        ),
    ],
)
def test_bad_options_are_one_line(model, message):
    with pytest.raises(UserError, match=message):
        check(run(**model))


def test_the_widest_window_that_is_taken_is_the_first_that_restricts_something():
    for window, hidden in ((62, 2), (63, 0)):  # of 64 tokens the first and the last do not see each other
        adder = compiled(AttentionMask(padding=np.ones((1, 64)), window=window).adder)()
        assert np.count_nonzero(adder) == hidden
    check(run(local_window=62, max_position_embeddings=128))


@pytest.mark.parametrize(
    "kernel, tokens",
    [("auto", 6), *(pytest.param(*case, marks=pytest.mark.slow) for case in (("auto", 1), ("xla", 1), ("xla", 6)))],
)
def test_every_text_of_a_row_has_global_tokens(tokens, kernel):
    """Of four texts in a row, the last as long as the window asks for blocks; six are more than the first one has."""
    config = variant(dataclasses.replace(MODERN, max_position_embeddings=128), local_window=2, global_tokens=tokens)
    model = BertForPreTraining(config, ComputeConfig(dtype="float32", attention=kernel), ())
    params, (ids, types, mask) = perturbed(model), rows(128, (128, 128))
    sizes = np.array([4, 9, 14, 101])
    starts = np.cumsum(sizes) - sizes
    numbers = np.repeat(np.arange(1, 5), sizes)[None].repeat(2, 0)
    texts = PackedTexts(numbers.astype(np.int32), starts[None].repeat(2, 0).astype(np.int32))
    # Each text alone, with padding behind the shorter ones, in one batch.
    alone = np.zeros((4, 2, 101), np.int32)
    for text, start, size in zip(alone, starts, sizes, strict=True):
        text[:, :size] = ids[:, start : start + size]
    alone = alone.reshape(8, 101)
    real = (np.arange(101) < np.repeat(sizes, 2)[:, None]).astype(np.int32)

    @compiled
    def states(params):
        packed = model.encode(params, ids, types, mask, texts=texts)
        return packed.last_hidden_state, model.encode(params, alone, 0 * alone, real).last_hidden_state

    packed, alone = states(params)
    for number, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        expected = alone[2 * number : 2 * number + 2, :size]
        np.testing.assert_allclose(packed[:, start : start + size], expected, atol=2e-5)
