"""Products of matrices, tables of words, gates of heads, and norms."""

import copy
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_variants import variant
from numpy_bert import gelu
from pretrained_model import SMALL as GATES_SMALL
from pretrained_model import loaded, stored_model
from small_model import FLOAT32, SMALL, compiled, make_batch, perturbed
from task_models import families, model_of

from bert_jax.config import ComputeConfig, Config, MeshConfig
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.models.architecture import ACTIVATIONS
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.embeddings import BLOCK, look_up, word_logits, word_losses
from bert_jax.models.kernels.plain import CPU, PLAIN, attention
from bert_jax.models.layers import (
    cpu_product,
    fused_layer_norm,
    in_float32,
    plain_bias,
    plain_layer_norm,
    plain_product,
    product_bias,
    steady_product,
    steady_rows,
    tpu_product,
    wide_bias,
    wide_einsum,
)
from bert_jax.objectives.masked_words import PretrainingObjective, masked_word_sums
from bert_jax.tools.planning.compiler import resolved
from bert_jax.tools.planning.topology import find_topology

ONE_LAYER = dataclasses.replace(SMALL, num_layers=1)
PADDED = dataclasses.replace(ONE_LAYER, vocab_pad_multiple=16)
ROUNDING = 2.0**-8  # of bfloat16: the largest relative change of a value that is rounded to the nearest


def random_arrays(*shapes, seed=0):
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


def in_float64(x):
    """The values of x as bfloat16, in float64."""
    return np.asarray(x).astype(jnp.bfloat16).astype(float)


def test_the_gradient_of_a_wide_product_has_operands_of_its_type():
    """In bfloat16 the given gradient is rounded before both products, and they after; float32 is as without it."""
    x, table, gradient = random_arrays((2, 3, 8), (5, 8), (2, 3, 5))
    equation, narrow = "bmh,vh->bmv", [each.astype(jnp.bfloat16) for each in (x, table)]

    def with_gradients(product):
        """The compiled function of two arrays that returns their product and what `gradient` is of each."""

        def run(*operands):
            found, backward = jax.vjp(lambda *operands: product(equation, *operands), *operands)
            return found, *backward(gradient)

        return compiled(run)

    logits, of_x, of_table = with_gradients(wide_einsum)(*narrow)
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits, np.einsum(equation, in_float64(x), in_float64(table)), rtol=1e-5, atol=1e-5)
    for found, back, other in ((of_x, "bmv,vh->bmh", table), (of_table, "bmv,bmh->vh", x)):
        sums = (np.einsum(back, each, in_float64(other)) for each in (in_float64(gradient), gradient))
        of_rounded, of_given = map(in_float64, sums)
        np.testing.assert_array_equal(np.float64(found), of_rounded)
        assert np.any(of_given != of_rounded)
    _, *plain = with_gradients(jnp.einsum)(x, table)
    _, *wide = with_gradients(wide_einsum)(x, table)
    for found, expected in zip(wide, plain, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("dtype", "rounded"), [(jnp.float32, 0.0), (jnp.bfloat16, ROUNDING)])
@pytest.mark.parametrize(
    ("axes", "outputs"), [(1, (4, 6)), (1, (4, 9)), (2, (24,)), (2, (48,))], ids=["narrower", "wider"] * 2
)
def test_products_and_their_gradients_equal_numpy(axes, outputs, dtype, rounded):
    inputs = {1: (32,), 2: (8, 4)}[axes]
    x, kernel, gradient = (
        array.astype(dtype) for array in random_arrays((3, 40, *inputs), (*inputs, *outputs), (3, 40, *outputs))
    )

    @compiled
    def product(x, kernel, gradient):
        y, transpose = jax.vjp(lambda x, kernel: cpu_product(x, kernel, axes), x, kernel)
        return y, *transpose(gradient)

    y, of_x, of_kernel = product(x, kernel.astype(np.float32), gradient)
    rows, flat, cotangent = (
        np.asarray(array, float).reshape(shape)
        for array, shape in ((x, (120, 32)), (kernel, (32, -1)), (gradient, (120, -1)))
    )
    assert (y.dtype, of_x.dtype, of_kernel.dtype) == (dtype, dtype, jnp.float32)
    # Sums are float32, and only what continues as bfloat16 is rounded; the kernel's gradient is not.
    for found, expected, rounding in (
        (y, rows @ flat, rounded),
        (of_x, cotangent @ flat.T, rounded),
        (of_kernel, rows.T @ cotangent, 0.0),
    ):
        error = np.abs(np.asarray(found, float).reshape(expected.shape) - expected)
        assert (error <= rounding * np.abs(expected) + 1e-5 * np.abs(expected).max()).all()


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("fsdp", [1, 4])
def test_over_split_states_kernels_are_matrices_with_equal_products(axes, fsdp):
    shapes = {1: ((8, 5, 32), (32, 4, 6)), 2: ((8, 5, 8, 4), (8, 4, 24))}[axes]
    x, kernel = random_arrays(*shapes)
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=fsdp, tensor=4 // fsdp))
    squares = lambda product: jax.grad(lambda x, k: jnp.sum(product(x, k, axes) ** 2), (0, 1))
    found = jax.jit(sharding.under(mesh, squares(tpu_product)))
    for got, want in zip(found(x, kernel), compiled(squares(plain_product))(x, kernel), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)
    matrices = str(jax.make_jaxpr(sharding.under(mesh, lambda x, k: tpu_product(x, k, axes)))(x, kernel))
    assert ("[32,24] = reshape" in matrices) == (fsdp > 1)


@pytest.mark.parametrize("outputs", [1, 2, 3, 8, 20])
def test_a_row_of_a_product_has_the_same_bits_whatever_rows_are_beside_it(outputs):
    """From 64 rows on; without more outputs, one fails on every processor, and 2 to 8 on those without AVX-512."""
    x, kernel = random_arrays((256, 128), (128, outputs))
    product = compiled(steady_rows()(lambda x, kernel: steady_product(x, kernel, 1)))
    whole = product(x, kernel)
    np.testing.assert_allclose(whole, x.astype(float) @ kernel, rtol=1e-4, atol=1e-4)
    for rows in (64, 128, *([2, 4] if outputs == 1 else [])):
        np.testing.assert_array_equal(product(x[:rows], kernel), whole[:rows])


@pytest.mark.parametrize("size", [16, pytest.param(4, id="narrower than there are predictions")])
@pytest.mark.parametrize("block", [7, pytest.param(20, marks=pytest.mark.slow), 50, 53, 100])
def test_word_losses_and_their_gradients_equal_numpy(block, size):
    words, rows = 53, 60
    x, table, bias, factor = random_arrays((9, size), (rows, size), (rows,), (9,))
    labels = np.array([0, 1, 6, 7, 19, 20, 49, 50, 52], np.int32)  # edges of blocks among them

    @compiled
    def losses_and_gradients(*given):
        found, transpose = jax.vjp(lambda *given: word_losses(*given, labels, words, block), *given)
        return found, transpose(type(found)(factor, np.zeros(9, jax.dtypes.float0)))

    found, gradients = losses_and_gradients(x, table, bias)

    logits = x.astype(float) @ table[:words].astype(float).T + bias[:words]
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    one_hot = np.eye(words)[labels]
    np.testing.assert_allclose(found.losses, -np.log(shares[np.arange(9), labels]), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found.correct, logits.argmax(1) == labels)
    wrong = np.pad((shares - one_hot) * factor[:, None], ((0, 0), (0, rows - words)))
    expected = (wrong @ table, wrong.T @ x, wrong.sum(0))
    for got, want in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block", [4, 10, 100])
def test_of_several_most_likely_words_the_first_counts_as_in_the_plain_loss(block):
    x, table = np.ones((10, 3), np.float32), np.zeros((10, 3), np.float32)
    bias = np.array([0, 1, 0, 2, 2, 1, 0, 2, 0, 1], np.float32)
    labels = np.arange(10, dtype=np.int32)
    found = compiled(lambda *given: word_losses(*given, 10, block))(x, table, bias, labels)
    assert np.flatnonzero(found.correct).tolist() == [3]
    plain = compiled(masked_word_sums)(np.broadcast_to(bias, (1, 10, 10)), labels[None], np.ones((1, 10), np.float32))
    assert float(plain.correct) == 1 and float(plain.loss) == pytest.approx(float(found.losses.sum()), rel=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e4])
def test_word_losses_of_large_and_small_logits_stay_finite(scale):
    x, table = random_arrays((4, 8), (30, 8))
    bias, labels = np.zeros(30, np.float32), np.arange(4, dtype=np.int32)
    losses = lambda x: word_losses(x, table * scale, bias, labels, 30, 16).losses.sum()
    value, gradient = compiled(jax.value_and_grad(losses))(x)
    assert np.isfinite(value) and np.isfinite(gradient).all()


@functools.cache
def gradients_of(dtype, products, config):
    """Gradient of the loss of pre-training with dropout, and its sums."""
    model = BertForPreTraining(config, ComputeConfig(dtype=dtype, products=products))
    objective, batch = PretrainingObjective(model), make_batch(config)

    def loss(params):
        sums = objective.sums(params, batch, jax.random.key(3))
        return sum(term.loss / term.weight for term in sums.values()), sums

    return compiled(jax.grad(loss, has_aux=True))(perturbed(model))


def distance(one, other):
    """Norm of the difference of two trees, relative to that of the other."""
    norm = lambda tree: np.sqrt(sum(np.square(np.asarray(leaf, float)).sum() for leaf in jax.tree.leaves(tree)))
    return norm(jax.tree.map(lambda a, b: np.asarray(a, float) - np.asarray(b, float), one, other)) / norm(other)


@pytest.mark.parametrize(
    "shapes", [((7, 300, 5, 4), (5, 4)), ((7, 300, 20), (20,)), ((900, 20), (20,)), ((20,), (20,))]
)
@pytest.mark.parametrize("add_bias", [product_bias, wide_bias])
def test_gradients_of_biases_are_float32_sums_of_what_was_given(add_bias, shapes):
    """Sums of thousands of values in bfloat16 would be wrong in the second digit; ones must not round what they sum."""
    gradient, bias = random_arrays(*shapes)
    gradient = (gradient + 1).astype(jnp.bfloat16)

    @compiled
    def sums(gradient, bias):
        y, transpose = jax.vjp(add_bias, jnp.zeros_like(gradient), bias)
        return y, *transpose(gradient)

    y, of_y, of_bias = sums(gradient, bias)
    expected = in_float64(gradient).reshape(-1, *bias.shape).sum(0)
    assert (y.dtype, of_y.dtype, of_bias.dtype) == (jnp.bfloat16, jnp.bfloat16, jnp.float32)
    np.testing.assert_array_equal(of_y, gradient)
    np.testing.assert_allclose(of_bias, expected, rtol=1e-6)
    np.testing.assert_array_equal(y, np.broadcast_to(bias.astype(jnp.bfloat16), y.shape))


def exact_activation(name, x):
    """Values and derivatives in float64, the latter as central differences."""
    relu = lambda x: np.maximum(x, 0)
    others = {"relu": relu, "relu_squared": lambda x: relu(x) ** 2, "tanh": np.tanh}
    function = others.get(name, lambda x: gelu(x, name))
    return function(x), (function(x + 1e-5) - function(x - 1e-5)) / 2e-5


@pytest.mark.parametrize("name", sorted(set(ACTIVATIONS) - {"silu"}))
def test_activations_of_bfloat16_and_their_gradients_are_rounded_once(name):
    # Further out, 1 + tanh and 1 + erf lose their digits in float32 too.
    x, gradient = (np.clip(array, -3, 3).astype(jnp.bfloat16) for array in random_arrays(999, 999))

    @compiled
    def activated(x, gradient):
        y, pull_back = jax.vjp(in_float32(ACTIVATIONS[name]), x)
        return y, *pull_back(gradient)

    y, of_x = activated(x, gradient)
    value, derivative = exact_activation(name, in_float64(x))
    assert y.dtype == of_x.dtype == jnp.bfloat16
    np.testing.assert_allclose(in_float64(y), value, rtol=1.001 * ROUNDING, atol=1e-6)
    np.testing.assert_allclose(in_float64(of_x), in_float64(gradient) * derivative, rtol=1.001 * ROUNDING, atol=1e-6)


@pytest.mark.parametrize("padded", [pytest.param(1, marks=pytest.mark.slow), 16])
def test_in_float32_the_model_and_its_gradient_are_those_of_the_plain_road(padded):
    config = dataclasses.replace(PADDED, vocab_pad_multiple=padded)
    plain, *others = (gradients_of("float32", products, config) for products in ("plain", "cpu", "tpu", "gpu"))
    for gradients, sums in others:
        assert distance(gradients, plain[0]) < 1e-6
        for name, expected in plain[1].items():
            np.testing.assert_allclose(sums[name], expected, rtol=1e-6)


def test_in_bfloat16_the_gradient_runs_and_is_as_near_to_float32_as_the_plain_one():
    # XLA has refused such products at run time when something was fused into them ("Unsupported element type for
    # DotThunk::Execute"), so this is the whole backward pass, with dropout.
    exact, plain, cpu, gpu = (
        gradients_of(*form, PADDED)[0]
        for form in (("float32", "plain"), ("bfloat16", "plain"), ("bfloat16", "cpu"), ("bfloat16", "gpu"))
    )
    assert distance(plain, exact) < 0.05  # nine roundings of 2⁻⁹ or so on the way through the layers
    assert max(distance(cpu, exact), distance(gpu, exact)) < 1.2 * distance(plain, exact)


@pytest.mark.parametrize("feed_forward, kept", [("plain", ["before", "after"]), ("geglu", ["gate", "values", "both"])])
def test_on_a_gpu_a_feed_forward_network_keeps_what_its_products_read_and_give(feed_forward, kept):
    """Tanh, and whatever else an activation function computes, is computed again."""
    config = dataclasses.replace(ONE_LAYER, feed_forward=feed_forward, intermediate_size=37, activation="gelu_tanh")
    found = {}
    for products in ("plain", "gpu"):
        model = BertForPreTraining(config, ComputeConfig(dtype="bfloat16", products=products), ())
        ids = np.ones((3, 16), np.int32)
        encode = lambda params, model=model, ids=ids: model.encode(params, ids, 0 * ids, ids).last_hidden_state
        backward = lambda params, encode=encode: jax.vjp(encode, params)[1]
        leaves = jax.tree.leaves(jax.eval_shape(backward, jax.eval_shape(model.init, jax.random.key(0))))
        found[products] = [leaf.shape for leaf in leaves].count((3, 16, 37))
    assert found["gpu"] == len(kept) < found["plain"]


def test_auto_is_the_form_of_the_device_and_that_of_cpus_on_a_single_one_only(monkeypatch):
    chosen = lambda **compute: BertForPreTraining(SMALL, ComputeConfig(**compute))._pieces
    assert jax.device_count() > 1
    assert chosen().product is plain_product and chosen().word_block is None
    assert chosen().layer_norm is plain_layer_norm
    assert chosen(products="cpu").product is cpu_product and chosen(products="cpu").word_block == BLOCK
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    assert chosen().product is cpu_product
    assert chosen(dtype="float32").add_bias is plain_bias and chosen(dtype="bfloat16").add_bias is product_bias
    assert chosen(products="plain").product is plain_product
    in_jax = lambda **compute: chosen(attention="xla", **compute).stack.attend.function
    assert in_jax(dtype="float32") is attention
    assert in_jax(dtype="bfloat16").keywords == {"products": CPU}
    assert in_jax(dtype="bfloat16", products="plain") is attention
    assert chosen(dtype="bfloat16").stack.attend.function.args[1].keywords == {"products": CPU}
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert chosen().product is plain_product and chosen().add_bias is wide_bias
    assert chosen().layer_norm is fused_layer_norm
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert chosen().product is tpu_product and chosen().add_bias is product_bias
    assert chosen().layer_norm is fused_layer_norm


@pytest.mark.parametrize(
    ("topology", "products"), [("v5e:2x2", "tpu"), ("gpu:h200:1", "gpu"), ("cpu:1", "cpu"), ("cpu:2", "plain")]
)
def test_a_plan_compiles_the_form_of_the_machine_that_is_planned_for(topology, products):
    assert resolved(Config(compute=FLOAT32), find_topology(topology)).compute.products == products


BATCH, QUERIES, KEYS, HEADS, SIZE = 2, 5, 7, 3, 4


def arrays(*shapes: tuple[int, ...], dtype=np.float32) -> list[jax.Array]:
    return [jnp.asarray(array, dtype) for array in random_arrays(*shapes)]


def close(found: jax.Array, expected: np.ndarray, rounding: float) -> bool:
    """Whether only the result was rounded, beside sums of float32."""
    error = np.abs(np.asarray(found, float) - expected)
    return bool((error <= rounding * np.abs(expected) + 1e-5 * np.abs(expected).max()).all())


@pytest.mark.parametrize(("dtype", "rounding"), [(jnp.float32, 0.0), (jnp.bfloat16, ROUNDING)])
def test_scores_and_their_gradients_equal_numpy(dtype, rounding):
    query, key = arrays((BATCH, QUERIES, HEADS, SIZE), (BATCH, KEYS, HEADS, SIZE), dtype=dtype)
    (gradient,) = arrays((BATCH, HEADS, QUERIES, KEYS))
    scores, transpose = jax.vjp(CPU.scores, query, key)
    of_query, of_key = jax.jit(transpose)(gradient)
    assert (scores.dtype, of_query.dtype, of_key.dtype) == (jnp.float32, dtype, dtype)
    q, k, g = (np.asarray(array, float) for array in (query, key, gradient.astype(dtype)))
    assert close(scores, np.einsum("bqad,bkad->baqk", q, k), 0.0)
    assert close(of_query, np.einsum("baqk,bkad->bqad", g, k), rounding)
    assert close(of_key, np.einsum("baqk,bqad->bkad", g, q), rounding)


@pytest.mark.parametrize(("dtype", "rounding"), [(jnp.float32, 0.0), (jnp.bfloat16, ROUNDING)])
def test_contexts_and_their_gradients_equal_numpy(dtype, rounding):
    (weights,) = arrays((BATCH, HEADS, QUERIES, KEYS))
    value, gradient = arrays((BATCH, KEYS, HEADS, SIZE), (BATCH, QUERIES, HEADS, SIZE), dtype=dtype)
    context, transpose = jax.vjp(CPU.context, weights, value)
    of_weights, of_value = jax.jit(transpose)(gradient)
    assert (context.dtype, of_weights.dtype, of_value.dtype) == (dtype, jnp.float32, dtype)
    w, v, g = (np.asarray(array, float) for array in (weights.astype(dtype), value, gradient))
    assert close(context, np.einsum("baqk,bkad->bqad", w, v), rounding)
    assert close(of_weights, np.einsum("bqad,bkad->baqk", g, v), 0.0)
    assert close(of_value, np.einsum("baqk,bqad->bkad", w, g), rounding)


@pytest.mark.parametrize("name", ["scores", "context"])
def test_both_forms_are_the_same_for_each_row_of_a_batch(name):
    first = (BATCH, QUERIES, HEADS, SIZE) if name == "scores" else (BATCH, HEADS, QUERIES, KEYS)
    one, other = arrays(first, (BATCH, KEYS, HEADS, SIZE))
    plain, cpu = (getattr(form, name) for form in (PLAIN, CPU))
    expected = jax.vmap(plain)(one[:, None], other[:, None])
    np.testing.assert_allclose(jax.jit(jax.vmap(cpu))(one[:, None], other[:, None]), expected, rtol=1e-5, atol=1e-5)


def batch_of(model) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    ids = random.integers(5, 20, (2, 9)).astype(np.int32)
    return {
        "input_ids": ids,
        "token_type_ids": np.zeros_like(ids),
        "attention_mask": (np.arange(9) < np.array([[9], [6]])).astype(np.int32),
        "masked_positions": np.array([[1, 4], [2, 5]], np.int32),
        "masked_ids": np.array([[7, 8], [9, 6]], np.int32),
    }


@pytest.mark.parametrize("family", families())
def test_a_gate_of_zero_is_a_head_whose_output_projection_is_zero(family):
    model = model_of(family)
    batch, whole = batch_of(model), None
    logits = model.mlm_logits({name: values for name, values in batch.items() if name != "masked_ids"})
    own = np.take_along_axis(logits, batch["masked_ids"][..., None], axis=-1)[..., 0]
    whole = np.log(np.exp(logits.astype(np.float64)).sum(axis=-1)) - own
    np.testing.assert_allclose(model.mlm_losses(batch), whole, atol=1e-5)
    gates = np.ones((2, 4))
    gates[1, 2] = 0.0
    if family == "albert":  # one output projection serves both layers
        gates[0, 2] = 0.0
    found = model.mlm_losses(batch, gates)
    params = copy.deepcopy(model.params)
    kernel = np.array(params["encoder"]["attention"]["output"]["kernel"])
    kernel[-1, 2] = 0.0
    params["encoder"]["attention"]["output"]["kernel"] = kernel
    model.params = params
    np.testing.assert_allclose(found, model.mlm_losses(batch), atol=1e-5)
    assert np.abs(found - whole).max() > 1e-3


def test_gates_of_another_shape_or_without_heads_are_one_line():
    with pytest.raises(UserError, match=r"head_gates has shape \(2,\) and must have .* \(2, 4\)"):
        model_of("bert").mlm_losses({}, np.ones(2))
    recurrent = loaded(stored_model(variant(dataclasses.replace(GATES_SMALL, direction="left_to_right"), layer="lstm")))
    with pytest.raises(UserError, match="recurrent .* have no heads"):
        recurrent.mlm_losses(batch_of(recurrent))


VOCABULARY, HIDDEN, ROWS, LENGTH = 11, 6, 8, 5


@pytest.fixture(scope="module")
def drawn():
    random = np.random.default_rng(0)
    table = random.normal(size=(VOCABULARY, HIDDEN)).astype(np.float32)
    ids = random.integers(0, VOCABULARY, (ROWS, LENGTH)).astype(np.int32)
    return table, ids, random.normal(size=(ROWS, LENGTH, VOCABULARY)).astype(np.float32)


def both_uses(table, ids, weights):
    """A function of both uses, and both results."""
    rows = look_up(table, ids)
    logits = word_logits(rows, table)
    return jnp.sum(jnp.tanh(logits) * weights), (rows, logits)


@pytest.mark.parametrize("parts", [1, 2, 8])
def test_copies_give_the_values_of_the_table_and_their_gradients_add_up_to_its(drawn, parts):
    table, ids, weights = drawn
    function = jax.jit(jax.value_and_grad(both_uses, has_aux=True))
    (expected, values), gradient = function(table, ids, weights)
    copies = np.broadcast_to(table, (parts, *table.shape))
    (found, copied_values), gradients = function(copies, ids, weights)
    assert float(found) == pytest.approx(float(expected), rel=1e-6)
    for one, other in zip(copied_values, values, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(values[0], table[ids])
    np.testing.assert_allclose(values[1], table[ids] @ table.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.sum(gradients, axis=0), gradient, rtol=1e-4, atol=1e-5)
    for part in range(parts):  # each copy serves its own rows alone
        own = slice(part * ROWS // parts, (part + 1) * ROWS // parts)
        alone = function(table, ids[own], weights[own])[1]
        np.testing.assert_allclose(gradients[part], alone, rtol=1e-4, atol=1e-5)


def test_an_id_beyond_the_table_gives_nan_from_a_copy_too(drawn):
    table = np.broadcast_to(drawn[0], (2, VOCABULARY, HIDDEN))
    found = jax.jit(look_up)(table, np.array([[0], [VOCABULARY]], np.int32))
    assert np.all(np.isfinite(found[0])) and np.all(np.isnan(found[1]))


EPSILON = 1e-12


def arrays_of_norms(dtype: str, offset: float = 0.0):
    """Return x [5, 7, 768], scale and bias [768], and the gradient of the result."""
    random = np.random.default_rng(0)
    x, gradient = random.normal(size=(2, 5, 7, 768)) * np.geomspace(0.01, 100, 7)[:, None]
    x = x + offset * np.std(x, axis=-1, keepdims=True)
    scale, bias = random.normal(size=(2, 768)).astype(np.float32)
    return jnp.asarray(x, dtype), scale, bias, jnp.asarray(gradient, dtype)


def exact(x, scale, bias, gradient):
    """Return the norm and its gradients in float64, by the derivative of each result by each input of its row."""
    x, gradient = np.asarray(x, np.float64), np.asarray(gradient, np.float64)
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
    normed, size = centred / deviation, x.shape[-1]
    derivative = np.eye(size) - 1 / size - normed[..., :, None] * normed[..., None, :] / size
    of_x = np.einsum("blh,blhi->bli", gradient * scale / deviation, derivative)
    return normed * scale + bias, of_x, (gradient * normed).sum((0, 1)), gradient.sum((0, 1))


def distance_of_norms(found, expected) -> float:
    return np.linalg.norm(np.asarray(found, np.float64) - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("dtype", "offset", "bound"), [("float32", 0, 1e-6), ("bfloat16", 0, 3e-3), ("bfloat16", 50, 3e-3)]
)
def test_norm_and_gradients_are_those_of_float64(dtype, offset, bound):
    x, scale, bias, gradient = arrays_of_norms(dtype, offset)

    @compiled
    def normed(gradient, *given):
        found, transpose = jax.vjp(lambda *given: fused_layer_norm(*given, EPSILON), *given)
        return found, *transpose(gradient)

    found = normed(gradient, x, scale, bias)
    for each, expected in zip(found, exact(x, scale, bias, gradient), strict=True):
        assert distance_of_norms(each, expected) < bound
    assert [each.dtype for each in found] == [x.dtype, x.dtype, jnp.float32, jnp.float32]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_bias_and_of_constant_rows_it_is_the_plain_norm(dtype):
    x, scale, _, _ = arrays_of_norms(dtype)
    x = x.at[0].set(x[0, :, :1])
    fused, plain = (form(x, scale, None, 1e-5).astype(jnp.float32) for form in (fused_layer_norm, plain_layer_norm))
    np.testing.assert_allclose(fused, plain, atol=0.02 if dtype == "bfloat16" else 1e-5, rtol=0.01)
