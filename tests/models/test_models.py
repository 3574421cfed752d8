"""BERT: NumPy's and Google's numbers.

Those of PyTorch are in tests/formats/test_huggingface.py.
"""

import dataclasses
import importlib.util
import math
import pathlib
import re
import typing

import jax
import jax.numpy as jnp
import numpy as np
import numpy_bert
import pytest
import small_pretraining
from jax.sharding import NamedSharding, PartitionSpec
from model_variants import variant
from published_optimizers import PEAK, STEPS, bert_2018, published
from small_model import (
    BATCH,
    FLOAT32,
    LENGTH,
    SMALL,
    assert_trees_close,
    compiled,
    encode,
    encoder_gradient,
    loss_function,
    loss_of,
    make_batch,
    perturbed,
)

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import DisentangledConfig, ModelConfig, ObjectiveConfig
from bert_jax.config.checks import check
from bert_jax.config.options import differences, to_dict
from bert_jax.config.presets import google2018, model_config
from bert_jax.config.pretraining import ComputeConfig, Config, DataConfig, MaskingConfig, OptimizerConfig, PhaseConfig
from bert_jax.console import load_config
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.block import SelfAttention
from bert_jax.models.kernels.plain import AttentionMask, attention
from bert_jax.training.optimizers import optimizer
from bert_jax.training.state import abstract_state


def all_outputs(model, params, batch):
    def outputs(params):
        ids = (batch["input_ids"], batch["token_type_ids"], batch["attention_mask"])
        return model.apply(params, batch)._asdict() | model.encode(params, *ids, collect=True)._asdict()

    return compiled(outputs)(params)


@pytest.mark.parametrize("norm_position, activation", [("post", "gelu_tanh"), ("pre", "gelu_erf")])
def test_equals_a_float64_forward_pass_in_numpy(norm_position, activation):
    config = dataclasses.replace(SMALL, norm_position=norm_position, activation=activation)
    model, batch = BertForPreTraining(config, FLOAT32), make_batch()
    params = perturbed(model)
    expected = numpy_bert.forward(params, config, batch)
    actual = all_outputs(model, params, batch)
    assert len(actual["hidden_states"]) == config.num_layers + 1 and len(actual["attentions"]) == config.num_layers
    for name, value in expected.items():
        np.testing.assert_allclose(np.asarray(actual[name]), np.asarray(value), atol=5e-5, err_msg=name)


@pytest.mark.parametrize("norm_position", ["post", pytest.param("pre", marks=pytest.mark.slow)])
def test_gradient_equals_finite_differences_in_float64(norm_position):
    config = dataclasses.replace(SMALL, num_layers=2, norm_position=norm_position)
    model, batch = BertForPreTraining(config, FLOAT32), make_batch()
    params = perturbed(model)
    gradient = leaf_paths(compiled(jax.grad(loss_function(model, batch)))(params))
    wide = numpy_bert.as_float64(params)
    random = np.random.default_rng(1)
    for path, leaf in leaf_paths(wide).items():
        # The steepest element and two random ones of every parameter; a view, so that `wide` changes with it.
        flat, ours = leaf.reshape(-1), np.ravel(gradient[path])
        for index in (np.abs(ours).argmax(), *random.integers(0, flat.size, 2)):
            kept, step = flat[index], 1e-5
            flat[index] = kept + step
            above = numpy_bert.loss(wide, config, batch)
            flat[index] = kept - step
            slope = (above - numpy_bert.loss(wide, config, batch)) / (2 * step)
            flat[index] = kept
            assert ours[index] == pytest.approx(slope, rel=1e-3, abs=2e-6), path


@pytest.mark.parametrize("num_heads", [1, pytest.param(4, marks=pytest.mark.slow), 16])
def test_size_of_attention_output_does_not_depend_on_the_number_of_heads(num_heads):
    """E‖y‖² = d² σ_x² σ_V² / m with uniform attention over m positions, before the output projection."""
    size, length, rows, sigma_x = 64, 10, 400, 1.5
    config = ModelConfig(vocab_size=8, hidden_size=size, num_heads=num_heads, initializer_range=0.05)
    x = sigma_x * np.random.default_rng(1).standard_normal((rows, length, size), np.float32)
    mask = AttentionMask(padding=np.ones((rows, length), np.int32))

    @compiled
    def attended(key):
        uniform = jnp.zeros((rows, length, num_heads, config.head_size))
        return attention(uniform, uniform, SelfAttention(config, key).value(x), mask)[0]

    y = attended(jax.random.key(0))
    sigma_v = 0.8796 * config.initializer_range
    expected = size**2 * sigma_x**2 * sigma_v**2 / length
    # 400 independent rows of 64 values and 4096 kernel entries: about 2 % of spread.
    assert float(np.mean(np.sum(np.square(y), axis=(2, 3)))) == pytest.approx(expected, rel=0.08)


def test_initial_values():
    config = ModelConfig(vocab_size=2_000, hidden_size=128, num_layers=2, num_heads=2)
    params = leaf_paths(jax.device_get(compiled(BertForPreTraining(config).init)(jax.random.key(7))))
    for path, value in params.items():
        assert value.dtype == np.float32, path
        if path.endswith("bias"):
            assert not np.any(value), path
        elif path.endswith("scale"):
            assert np.all(value == 1), path
        else:
            # Normal cut at two deviations and not rescaled, so 0.8796 × 0.02 is left.
            assert np.abs(value).max() <= 2 * 0.02 + 1e-9, path
            slack = 4 / math.sqrt(2 * value.size)
            assert float(np.std(value)) == pytest.approx(0.8796 * 0.02, rel=slack + 1e-3), path
            assert abs(float(np.mean(value))) < 5 * 0.0176 / math.sqrt(value.size), path
    draws = [
        value[layer].ravel()[:64]
        for path, value in params.items()
        if path.startswith("encoder") and "kernel" in path
        for layer in (0, 1)
    ]
    draws += [
        value.ravel()[:64]
        for path, value in params.items()
        if not path.startswith("encoder") and path.endswith(("kernel", "table"))
    ]
    assert np.abs(np.triu(np.corrcoef(np.stack(draws)), 1)).max() < 0.6  # no two parameters are drawn from one key


@pytest.mark.parametrize(
    "form", ["post", *(pytest.param(form, marks=pytest.mark.slow) for form in ("geglu", "deberta")), "xlnet"]
)
def test_outputs_of_branches_may_begin_smaller_by_the_number_of_branches_or_at_zero(form):
    """By the closed form 0.8796 · 0.02 / √(2 · layers), and value by value; every other array begins as it did."""
    forms = {
        "post": SMALL,
        "geglu": dataclasses.replace(SMALL, norm_position="pre", feed_forward="geglu", sharing="all"),
        "deberta": variant(
            dataclasses.replace(SMALL, disentangled=DisentangledConfig(terms="c2p+p2c")), positions="none"
        ),
        "xlnet": variant(dataclasses.replace(SMALL, type_vocab_size=0, pair_head=False), positions="xlnet"),
    }
    config = dataclasses.replace(forms[form], num_layers=8)
    configs = config, *(dataclasses.replace(config, **{name: True}) for name in ("scaled_outputs", "zero_outputs"))
    models = [BertForPreTraining(each, parts=("mlm",)) for each in configs]
    found = compiled(lambda key: [model.init(key) for model in models])(jax.random.key(7))
    equal, scaled, zero = map(leaf_paths, jax.device_get(found))
    outputs = [f"encoder/{branch}/output/kernel" for branch in ("attention", "feed_forward")]
    for path, value in scaled.items():
        np.testing.assert_allclose(value, equal[path] / 4 if path in outputs else equal[path], rtol=1e-6, err_msg=path)
    for path, value in zero.items():
        np.testing.assert_array_equal(value, 0 * equal[path] if path in outputs else equal[path], err_msg=path)
    for path in outputs:
        slack = 4 / math.sqrt(2 * scaled[path].size)
        assert float(np.std(scaled[path])) == pytest.approx(0.8796 * 0.02 / 4, rel=slack), path


def test_initial_values_are_the_same_for_any_mesh_and_vocabulary_padding():
    model = BertForPreTraining(dataclasses.replace(SMALL, vocab_size=64))
    plain = compiled(model.init)(jax.random.key(3))
    mesh = jax.make_mesh((4, 2), ("fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    spec = {
        "embeddings/word/table": PartitionSpec("fsdp", None),
        "encoder/attention/output/kernel": PartitionSpec(None, None, "fsdp"),
        "encoder/feed_forward/intermediate/kernel": PartitionSpec(None, "tensor", "fsdp"),
    }
    paths = leaf_paths(plain)
    shardings = jax.tree.unflatten(
        jax.tree.structure(plain), [NamedSharding(mesh, spec.get(path, PartitionSpec())) for path in paths]
    )
    sharded = compiled(model.init, out_shardings=shardings)(jax.random.key(3))
    assert_trees_close(sharded, plain, rtol=0, atol=0)
    padded_model = BertForPreTraining(dataclasses.replace(model.config, vocab_pad_multiple=60))
    padded = compiled(lambda key: padded_model.init(key)["embeddings"])(jax.random.key(3))
    np.testing.assert_array_equal(padded["word"]["table"][:64], plain["embeddings"]["word"]["table"])


def test_sinusoidal_positions_are_those_of_the_formula():
    config = variant(SMALL, position_init="sinusoidal")
    init = compiled(lambda key: BertForPreTraining(config).init(key)["embeddings"]["position"]["table"])
    table = np.asarray(init(jax.random.key(0)))
    expected = [
        [f(position / 10_000 ** (2 * i / 24)) for i in range(12) for f in (math.sin, math.cos)]
        for position in range(20)
    ]
    scale = table[0, 1]  # cos 0
    np.testing.assert_allclose(table / scale, expected, atol=1e-5)
    assert np.sqrt(np.mean(table**2)) == pytest.approx(0.8796 * 0.02, rel=1e-3)


@pytest.fixture(scope="module")
def plain_road():
    """Inputs, parameters, and loss and gradient with dropout of the loop without remat."""
    batch = make_batch()
    inputs = batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]
    return inputs, *encoder_gradient(BertForPreTraining(SMALL, dataclasses.replace(FLOAT32, layers="loop"), ()), inputs)


@pytest.mark.parametrize(
    "layers, remat",
    [
        pytest.param("loop", "sel", marks=pytest.mark.slow),
        ("loop", "full"),
        pytest.param("scan", "none", marks=pytest.mark.slow),
        ("scan", "sel"),
        pytest.param("scan", "dots", marks=pytest.mark.slow),
        pytest.param("scan", "full", marks=pytest.mark.slow),
    ],
)
def test_scan_loop_and_remat_are_one_model(plain_road, layers, remat):
    inputs, params, loss, gradient = plain_road
    model = BertForPreTraining(SMALL, ComputeConfig(dtype="float32", layers=layers, remat=remat), ())
    _, other_loss, other_gradient = encoder_gradient(model, inputs, params)
    assert float(other_loss) == pytest.approx(float(loss), rel=1e-6)
    assert_trees_close(other_gradient, gradient, rtol=1e-4, atol=1e-6)


def test_auto_unrolls_twelve_layers_and_scans_more():
    def has_scan(num_layers):
        model = BertForPreTraining(dataclasses.replace(SMALL, num_layers=num_layers))
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        return "scan[" in str(jax.make_jaxpr(lambda p: model.apply(p, make_batch()))(shapes))

    assert (has_scan(12), has_scan(13)) == (False, True)


@pytest.mark.parametrize("layers", ["scan", pytest.param("loop", marks=pytest.mark.slow)])
def test_collecting_changes_nothing(layers):
    model, batch = BertForPreTraining(SMALL, ComputeConfig(dtype="float32", layers=layers)), make_batch()
    params = perturbed(model)
    fast, collected = encode(model, params, batch), encode(model, params, batch, collect=True)
    assert fast.hidden_states is None and fast.attentions is None
    np.testing.assert_allclose(collected.last_hidden_state, fast.last_hidden_state, atol=1e-6)
    np.testing.assert_allclose(collected.pooled, fast.pooled, atol=1e-6)
    np.testing.assert_array_equal(collected.hidden_states[-1], collected.last_hidden_state)
    for maps in collected.attentions:
        assert maps.shape == (BATCH, SMALL.num_heads, LENGTH, LENGTH) and maps.dtype == jnp.float32
        np.testing.assert_allclose(np.sum(maps, axis=-1), 1, rtol=1e-5)
        assert not np.any(np.where(batch["attention_mask"][:, None, None, :], 0, maps))  # padding gets exactly nothing


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
def test_row_of_padding_gives_finite_values_and_touches_no_other_row(dtype):
    model, batch = BertForPreTraining(SMALL, ComputeConfig(dtype=dtype)), make_batch()
    params = perturbed(model)
    empty = batch | {"attention_mask": batch["attention_mask"] * np.array([[1], [0], [1]], np.int32)}
    gradient = compiled(jax.grad(loss_function(model, empty)))(params, jax.random.key(0))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))
    before, after = (encode(model, params, b).last_hidden_state for b in (batch, empty))
    assert np.all(np.isfinite(after))
    np.testing.assert_array_equal(np.asarray(before)[[0, 2]], np.asarray(after)[[0, 2]])


def test_bfloat16_is_close_to_float32():
    config = ModelConfig(vocab_size=500, hidden_size=64, num_layers=2, num_heads=4, max_position_embeddings=16)
    batch = make_batch(config)
    narrow, wide = (
        BertForPreTraining(config, ComputeConfig(dtype=dtype, layers="scan")) for dtype in ("bfloat16", "float32")
    )
    params = perturbed(wide, spread=0.02)

    def run(model):
        def loss(params):
            output = model.apply(params, batch, jax.random.key(1))
            return loss_of(output, batch), output

        return compiled(jax.grad(loss, has_aux=True))(params)

    gradients, outputs = zip(*map(run, (narrow, wide)))
    assert all(x.dtype == jnp.float32 for output in outputs for x in output)
    inputs = batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]
    assert jax.eval_shape(narrow.encode, params, *inputs).last_hidden_state.dtype == jnp.bfloat16
    np.testing.assert_allclose(outputs[0].mlm_logits, outputs[1].mlm_logits, atol=2e-2)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(gradients[0]))
    size, difference = (
        math.sqrt(sum(float(np.sum(np.square(leaf))) for leaf in jax.tree.leaves(tree)))
        for tree in (gradients[1], jax.tree.map(np.subtract, *gradients))
    )
    assert 0 < difference < 0.02 * size


def test_auto_dtype_is_float32_on_cpu():
    assert BertForPreTraining(SMALL).dtype == jnp.float32 and jax.default_backend() == "cpu"


def test_padded_vocabulary_changes_nothing():
    batch = make_batch()
    model = BertForPreTraining(dataclasses.replace(SMALL, vocab_pad_multiple=32), FLOAT32)
    params = perturbed(model)
    assert params["embeddings"]["word"]["table"].shape[0] == 64
    real = jax.tree.map(np.copy, params)
    real["embeddings"]["word"]["table"] = real["embeddings"]["word"]["table"][:61]
    real["mlm"]["bias"] = real["mlm"]["bias"][:61]
    plain = BertForPreTraining(SMALL, FLOAT32)

    @compiled
    def padded(params):
        return model.apply(params, batch).mlm_logits, *jax.value_and_grad(loss_function(model, batch))(params)

    padded_logits, padded_loss, gradient = padded(params)
    unpadded = compiled(lambda params: (plain.apply(params, batch).mlm_logits, loss_function(plain, batch)(params)))
    logits, loss = unpadded(real)
    np.testing.assert_allclose(padded_logits[..., :61], logits, atol=1e-6)
    assert np.all(padded_logits[..., 61:] == -1e9)
    assert float(padded_loss) == pytest.approx(float(loss), rel=1e-6)
    assert not np.any(gradient["embeddings"]["word"]["table"][61:]) and not np.any(gradient["mlm"]["bias"][61:])


@pytest.mark.slow
def test_runs_without_implicit_transfers():
    model = BertForPreTraining(SMALL)
    batch, key = jax.device_put(make_batch()), jax.random.key(0)
    with jax.transfer_guard("disallow"):
        params = jax.jit(model.init)(key)
        loss = jax.jit(lambda p, b, k: loss_function(model, b)(p, k))(params, batch, key)
    assert float(loss) == pytest.approx(math.log(61) + math.log(2), abs=0.2)  # nothing learned yet


def test_refuses_what_it_cannot_run():
    with pytest.raises(UserError, match="model.vocab_size=None"):
        BertForPreTraining(ModelConfig())
    model, long = BertForPreTraining(SMALL), np.zeros((1, 21), np.int32)
    params = jax.eval_shape(model.init, jax.random.key(0))
    with pytest.raises(UserError, match="21 tokens.*max_position_embeddings=20"):
        jax.eval_shape(lambda p: model.encode(p, long, long, long), params)


PARTS = [
    *(("mlm",), ("next_sentence", "pooler")),
    *(pytest.param(parts, marks=pytest.mark.slow) for parts in ((), ("pooler", "mlm", "next_sentence"))),
]


@pytest.fixture(scope="module")
def everything():
    """Parameters and outputs of a model with all parts."""
    model = BertForPreTraining(SMALL, FLOAT32)
    params = compiled(model.init)(jax.random.key(3))
    return params, compiled(model.apply)(params, make_batch())


@pytest.mark.parametrize("parts", PARTS, ids=lambda parts: "+".join(parts) or "bare")
def test_a_model_has_exactly_the_parts_asked_for(parts, everything):
    model, batch, (all_params, expected) = BertForPreTraining(SMALL, FLOAT32, parts), make_batch(), everything
    params = compiled(model.init)(jax.random.key(3))
    assert set(params) == {"embeddings", "encoder", *parts}
    assert jax.tree.all(jax.tree.map(np.array_equal, params, {name: all_params[name] for name in params}))
    inputs = batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]
    assert (jax.eval_shape(model.encode, params, *inputs).pooled is None) == ("pooler" not in parts)
    for needed, name in ((("mlm",), "mlm_logits"), (("pooler", "next_sentence"), "next_sentence_logits")):
        if missing := [part for part in needed if part not in parts]:
            with pytest.raises(UserError, match=f"has no {' and no '.join(missing)} "):
                getattr(model, name)(params, batch)
            with pytest.raises(UserError, match=missing[0]):
                model.apply(params, batch)
        else:
            np.testing.assert_allclose(
                compiled(getattr(model, name))(params, batch), getattr(expected, name), atol=1e-5
            )


def test_an_unknown_part_is_refused():
    with pytest.raises(UserError, match="unknown part 'head'"):
        BertForPreTraining(SMALL, parts=("pooler", "head"))


ROOT = pathlib.Path(__file__).parents[2]
ROWS, GOOGLE_LENGTH, MASKED, WORDS = 4, 8, 3, 24
CONFIG = google2018(
    Config(
        model=ModelConfig(
            vocab_size=WORDS,
            hidden_size=8,
            num_layers=2,
            num_heads=2,
            max_position_embeddings=GOOGLE_LENGTH + 4,
            hidden_dropout=0.0,
            attention_dropout=0.0,
        ),
        phases=(
            PhaseConfig(
                steps=STEPS, warmup_steps=5, sequence_length=GOOGLE_LENGTH, batch_size=ROWS, learning_rate=PEAK
            ),
        ),
    )
)


def batch(step: int) -> dict[str, np.ndarray]:
    """Few predictions, so that 1e-5 in the denominator shows in the loss; none on odd steps, which are below 1."""
    random = np.random.default_rng(step)
    weights = np.arange(MASKED) < np.array([[1], [step % 3], [0], [0]]) * (step % 2 == 0)
    arrays = {
        "input_ids": random.integers(5, WORDS, (ROWS, GOOGLE_LENGTH)),
        "token_type_ids": np.arange(GOOGLE_LENGTH) > random.integers(2, 6, (ROWS, 1)),
        "attention_mask": np.arange(GOOGLE_LENGTH) < random.integers(5, GOOGLE_LENGTH + 1, (ROWS, 1)),
        "masked_positions": weights * random.integers(1, 5, (ROWS, MASKED)),
        "masked_ids": weights * random.integers(5, WORDS, (ROWS, MASKED)),
        "next_sentence_labels": np.zeros(ROWS),
    }
    return {n: array.astype(np.int32) for n, array in arrays.items()} | {"masked_weights": weights.astype(np.float32)}


def initial_parameters(model: BertForPreTraining) -> dict:
    """Large, so that no gradient is small beside its rounding; scales around 1."""
    random, shapes = np.random.default_rng(0), jax.eval_shape(model.init, jax.random.key(0))
    draw = lambda path, leaf: (0.3 * random.normal(size=leaf.shape) + (path[-1].key == "scale")).astype(np.float32)
    return jax.tree.map_with_path(draw, shapes)


def differentiable_loss():
    """numpy_bert.loss with jax.numpy in NumPy's place: the same independent transcription, but with a gradient."""
    spec = importlib.util.spec_from_file_location("numpy_bert_with_gradient", numpy_bert.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.np = jax.numpy
    return jax.jit(
        jax.value_and_grad(lambda params, batch: module.loss(params, CONFIG.model, batch, weight_epsilon=1e-5))
    )


@pytest.fixture(scope="module")
def by_hand():
    """Parameters after 50 steps and the loss of each, in float64."""
    losses, function = [], differentiable_loss()

    def gradients_at(step, params):
        loss, gradients = function(params, batch(step))
        losses.append(float(loss))
        return [np.asarray(leaf) for leaf in jax.tree.leaves(gradients)]

    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):  # the transcription is NumPy, which promotes
        return published(bert_2018, initial_parameters(BertForPreTraining(CONFIG.model)), gradients_at), losses


def test_fifty_steps_are_those_of_the_original(by_hand):
    """Forward, loss, gradient, clipping, moments, decay and schedule at once, on the compiled step that trains."""
    model = BertForPreTraining(CONFIG.model, CONFIG.compute)
    transformation = optimizer(CONFIG.optimizer, model.parameters)
    mesh, shardings, step = small_pretraining.compiled(model, CONFIG, small_pretraining.SINGLE)
    abstract = abstract_state(model, transformation, mesh)
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), abstract)
    state = jax.device_put(dataclasses.replace(state, params=initial_parameters(model)), shardings)
    history = []
    for number in range(STEPS):
        state, metrics = step(state, sharding.to_global(mesh, batch(number), ROWS))
        history.append(jax.device_get(metrics))
    expected, losses = by_hand
    norms = [metrics["grad_norm"] for metrics in history]
    assert min(norms) < 1 < max(norms)  # clipping acts on some steps and not on others
    np.testing.assert_allclose([metrics["loss"] for metrics in history], losses, rtol=2e-6, atol=2e-7)
    for (path, value), wanted in zip(jax.tree.leaves_with_path(state.params), jax.tree.leaves(expected), strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        # The gradient of the key bias is zero in theory: what rounding leaves of it is divided by epsilon.
        np.testing.assert_allclose(value, wanted, atol=1e-3 if name.endswith("key/bias") else 1e-5, err_msg=name)


def test_the_mode_sets_what_the_original_had_fixed_and_keeps_its_arguments():
    changed = dataclasses.replace(
        model_config("tiny"), activation="gelu_erf", norm_position="pre", vocab_pad_multiple=128
    )
    phases = PhaseConfig(steps=90), PhaseConfig(steps=10, schedule="restart", moments="reset", learning_rate=3e-4)
    data = DataConfig(path="store", sentence_pairs="sop")
    masking = MaskingConfig(unit="span", static_masks=3)
    optimizer = OptimizerConfig(name="lamb", clip_norm=0.5)
    given = Config(model=changed, data=data, phases=phases, seed=3, masking=masking, optimizer=optimizer)
    plain = Config(
        model=model_config("tiny"),
        data=DataConfig(path="store"),
        seed=3,
        phases=(PhaseConfig(steps=90), PhaseConfig(steps=10, learning_rate=3e-4)),
    )
    assert check(google2018(given)) == google2018(plain)


ARGUMENTS = {  # what its commands took, and what its checkpoints named
    "model": {
        *("vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size", "hidden_dropout"),
        *("attention_dropout", "initializer_range", "max_position_embeddings", "type_vocab_size"),
    },
    "masking": set(),
    "objective": set(),
    "optimizer": set(),
    "schedule": set(),
}


def another(value, annotation):
    """A different value of an option of this type; of a group of options one whose first option differs, or kind."""
    if kinds := [kind for kind in typing.get_args(annotation) if dataclasses.is_dataclass(kind)]:
        return next(kind for kind in kinds if not isinstance(value, kind))()
    if dataclasses.is_dataclass(value):
        name, types = dataclasses.fields(value)[0].name, typing.get_type_hints(type(value))
        return dataclasses.replace(value, **{name: another(getattr(value, name), types[name])})
    if choices := [choice for choice in typing.get_args(annotation) if isinstance(choice, str) and choice != value]:
        return choices[0]
    return not value if isinstance(value, bool) else (value or 0) + 1


@pytest.mark.parametrize("group", ARGUMENTS)
def test_nothing_else_that_decides_what_is_learned_is_left_open(group):
    config, part = google2018(Config()), getattr(Config(), group)
    types = typing.get_type_hints(type(part))
    for name in {field.name for field in dataclasses.fields(part)} - ARGUMENTS[group]:
        changed = dataclasses.replace(part, **{name: another(getattr(part, name), types[name])})
        assert google2018(dataclasses.replace(Config(), **{group: changed})) == config, f"{group}.{name}"


def test_nor_is_another_objective():
    for kind in typing.get_args(ObjectiveConfig):
        assert google2018(dataclasses.replace(Config(), objective=kind())) == google2018(Config())


def documented() -> list[str]:
    """Option rows of the table in docs/google2018.md as `config diff` prints them."""
    page = (ROOT / "docs/google2018.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9_.]+)`[^|]*\|[^|]*\| `([^`]*)` \| `([^`]*)` \|", page, re.M)
    return sorted(f"{option}: {default} → {original}" for option, default, original in rows)


def test_the_table_in_the_docs_is_the_difference_of_the_options():
    assert documented() == differences(to_dict(Config()), to_dict(google2018(Config())))


def test_the_configuration_files_differ_in_these_options_only():
    ours, theirs = (load_config(str(ROOT / f"configs/{name}.py")) for name in ("bert_base", "bert_base_google2018"))
    optimizer_row = "optimizer.name: adamw → adamw_bert"  # bert_base.py, the published recipe, has it already
    assert differences(to_dict(ours), to_dict(check(theirs))) == [row for row in documented() if row != optimizer_row]
    assert theirs == google2018(ours)
