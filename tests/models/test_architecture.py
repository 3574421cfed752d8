"""Models of configurations: parts, parameters, and rules on parameters."""

import dataclasses
import functools
import importlib
import itertools
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import numpy_bert
import optax
import pytest
from described_models import HEADS, LABELS, MODELS, detection, shapes, trained
from described_models import SMALL as RULES_SMALL
from flax import nnx
from flax.traverse_util import unflatten_dict
from jax.sharding import PartitionSpec as P
from local_block import LocalBlock
from small_model import (
    FLOAT32,
    LENGTH,
    SMALL,
    assert_trees_close,
    compiled,
    encode,
    encoder_gradient,
    loss_function,
    make_batch,
    perturbed,
)

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import ComputeConfig, GloVe, HeadConfig, MeshConfig, ModelConfig, OptimizerConfig
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.models.architecture import Architecture, bert_architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import MODEL_PARTS, PRETRAINING_PARTS, bert_parameters
from bert_jax.models.block import Block, FeedForward
from bert_jax.models.costs import trained_parameters
from bert_jax.models.embeddings import Embeddings
from bert_jax.models.kernels import plain
from bert_jax.models.kernels.plain import AttentionMask
from bert_jax.models.layers import Linear, gelu_tanh
from bert_jax.models.stack import Stack
from bert_jax.models.task import BertForTask
from bert_jax.objectives.static_vectors import WordVectors
from bert_jax.parameters import (
    Axis,
    Parameter,
    entries,
    linear,
    norm,
    row_tables,
    state_entries,
    state_names,
    table,
    total_size,
)
from bert_jax.training.optimizers import included, optimizer, scale_by_depth
from bert_jax.training.state import abstract_state

DEEP = dataclasses.replace(SMALL, num_layers=3)
LOOP = ComputeConfig(dtype="float32", layers="loop")
SCAN, SCAN_AGAIN = (ComputeConfig(dtype="float32", layers="scan", remat=remat) for remat in ("none", "full"))


def with_stack(config: ModelConfig, compute: ComputeConfig, **changes) -> Architecture:
    usual = bert_architecture(config, compute)
    return dataclasses.replace(usual, stack=dataclasses.replace(usual.stack, **changes))


WINDOWS = np.array([LENGTH, 2, 1])


def local(config: ModelConfig, compute: ComputeConfig) -> Architecture:
    feed_forward = functools.partial(FeedForward, config, activation=gelu_tanh)
    block = functools.partial(LocalBlock, config, feed_forward=feed_forward)
    return with_stack(config, compute, block=block, layer_inputs={"window": WINDOWS[: config.num_layers]})


def shared(config: ModelConfig, compute: ComputeConfig) -> Architecture:
    """The first layer and the last have the same parameters."""
    return with_stack(config, compute, sharing=(0, 1, 0))


def all_shared(config: ModelConfig, compute: ComputeConfig) -> Architecture:
    return with_stack(config, compute, sharing=(0,) * config.num_layers)


def test_a_window_per_layer_equals_numpy():
    model, batch = BertForPreTraining(DEEP, FLOAT32, architecture=local), make_batch()
    params = perturbed(model)
    distance = np.abs(np.arange(LENGTH)[:, None] - np.arange(LENGTH)[None, :])
    allowed = [batch["attention_mask"][:, None, :] * (distance <= window) for window in WINDOWS]
    expected = numpy_bert.forward(params, DEEP, batch, allowed)
    output = encode(model, params, batch, collect=True)
    seen = np.stack(allowed).any(-1)  # a position of padding may see nothing, and what it holds is of no use
    for ours, theirs, rows in zip(output.hidden_states[1:], expected["hidden_states"][1:], seen, strict=True):
        np.testing.assert_allclose(np.asarray(ours)[rows], theirs[rows], atol=5e-5)
    for ours, theirs, rows in zip(output.attentions, expected["attentions"], seen, strict=True):
        np.testing.assert_allclose(np.moveaxis(ours, 1, 2)[rows], np.moveaxis(theirs, 1, 2)[rows], atol=5e-5)
    assert not np.allclose(expected["last_hidden_state"], numpy_bert.forward(params, DEEP, batch)["last_hidden_state"])


def loss_and_gradient(architecture, compute: ComputeConfig, params=None, config: ModelConfig = DEEP):
    """Parameters, and a loss and its gradient with dropout, of an encoder without heads, which compiles faster."""
    batch = make_batch()
    inputs = batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]
    return encoder_gradient(BertForPreTraining(config, compute, (), architecture), inputs, params)


@pytest.mark.parametrize(
    "own, other_way", [("attention", SCAN), pytest.param("feed_forward", SCAN_AGAIN, marks=pytest.mark.slow)]
)
def test_layers_that_share_a_part_are_layers_with_equal_parts_and_summed_gradients(own, other_way):
    """The gradient of a shared array is the sum of those of its copies in a model that shares nothing."""
    common = {"attention": "feed_forward", "feed_forward": "attention"}[own]
    config = dataclasses.replace(SMALL, sharing=common)
    params, loss, gradient = loss_and_gradient(bert_architecture, LOOP, config=config)
    one_set = {name: leaf.shape[0] == 1 for name, leaf in leaf_paths(params["encoder"]).items()}
    assert one_set == {name: name.startswith(common) for name in one_set}
    copies = jax.tree.map(lambda leaf: np.repeat(leaf, 2 // leaf.shape[0], axis=0), params["encoder"])
    _, expected_loss, expected = loss_and_gradient(bert_architecture, SCAN, params | {"encoder": copies}, SMALL)
    expected |= {
        "encoder": jax.tree.map(
            lambda leaf, ours: leaf if ours.shape == leaf.shape else leaf.sum(0, keepdims=True),
            jax.device_get(expected["encoder"]),
            params["encoder"],
        )
    }
    for _, found, slopes in ((params, loss, gradient), loss_and_gradient(bert_architecture, other_way, config=config)):
        assert float(found) == pytest.approx(float(expected_loss), rel=1e-5)
        assert_trees_close(slopes, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    "architecture, sharing, other_way",
    [(shared, (0, 1, 0), SCAN_AGAIN), pytest.param(all_shared, (0, 0, 0), SCAN, marks=pytest.mark.slow)],
)
def test_shared_layers_are_layers_with_equal_parameters_and_summed_gradients(architecture, sharing, other_way):
    params, loss, gradient = loss_and_gradient(architecture, LOOP)
    sets = range(max(sharing) + 1)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(params["encoder"])} == {len(sets)}
    copies = params | {"encoder": jax.tree.map(lambda leaf: leaf[np.array(sharing)], params["encoder"])}
    _, expected_loss, expected = loss_and_gradient(bert_architecture, SCAN, copies)
    expected |= {
        "encoder": jax.tree.map(
            lambda leaf: np.stack([leaf[np.array(sharing) == index].sum(0) for index in sets]),
            jax.device_get(expected["encoder"]),
        )
    }
    for _, found, slopes in ((params, loss, gradient), loss_and_gradient(architecture, other_way)):
        assert float(found) == pytest.approx(float(expected_loss), rel=1e-5)
        assert_trees_close(slopes, expected, rtol=1e-4, atol=2e-5)


ROUNDS = [  # layers, groups, layers of a group; the set of parameters of each layer
    (6, 2, 1, [0, 0, 0, 1, 1, 1]),
    (5, 2, 1, [0, 0, 0, 1, 1]),
    (6, 1, 3, [0, 1, 2, 0, 1, 2]),
    (8, 2, 2, [0, 1, 0, 1, 2, 3, 2, 3]),
    (6, 3, 2, [0, 1, 2, 3, 4, 5]),
]


@pytest.mark.parametrize("layers, groups, inner, sets", ROUNDS)
def test_the_sets_of_groups_of_layers(layers, groups, inner, sets):
    config = dataclasses.replace(DEEP, num_layers=layers, sharing="all", layer_groups=groups, group_layers=inner)
    config.check()
    assert list(config.set_of_layer) == sets and config.parameter_sets == max(sets) + 1


@pytest.mark.parametrize("sizes", [(6, 0, 1), (6, 1, 0), (6, 1, 4), (6, 7, 1), (6, 4, 2)])
def test_groups_that_do_not_fit_are_refused(sizes):
    layers, groups, inner = sizes
    config = dataclasses.replace(DEEP, num_layers=layers, sharing="all", layer_groups=groups, group_layers=inner)
    with pytest.raises(UserError, match="model.(num_layers|layer_groups|group_layers)="):
        config.check()


@pytest.mark.parametrize(
    "layers, groups, inner, sets",
    [(3, 2, 1, [0, 0, 1]), pytest.param(*ROUNDS[3], marks=pytest.mark.slow)],
)
def test_groups_of_layers_are_layers_with_equal_parameters(layers, groups, inner, sets):
    """Unrolled and scanned, and each of them alone."""
    config = dataclasses.replace(DEEP, num_layers=layers, sharing="all", layer_groups=groups, group_layers=inner)
    params, loss, gradient = loss_and_gradient(bert_architecture, LOOP, config=config)
    copies = params | {"encoder": jax.tree.map(lambda leaf: leaf[np.array(sets)], params["encoder"])}
    apart = dataclasses.replace(DEEP, num_layers=layers)
    _, expected_loss, expected = loss_and_gradient(bert_architecture, SCAN, copies, config=apart)
    expected |= {
        "encoder": jax.tree.map(
            lambda leaf: np.stack([leaf[np.array(sets) == index].sum(0) for index in range(max(sets) + 1)]),
            jax.device_get(expected["encoder"]),
        )
    }
    for _, found, slopes in ((params, loss, gradient), loss_and_gradient(bert_architecture, SCAN, config=config)):
        assert float(found) == pytest.approx(float(expected_loss), rel=1e-5)
        assert_trees_close(slopes, expected, rtol=1e-4, atol=2e-5)


def test_a_window_per_layer_is_one_model_scanned_and_unrolled():
    _, loss, gradient = loss_and_gradient(local, LOOP, config=SMALL)
    _, found, slopes = loss_and_gradient(local, SCAN_AGAIN, config=SMALL)
    assert float(found) == pytest.approx(float(loss), rel=1e-5)
    assert_trees_close(slopes, gradient, rtol=1e-4, atol=2e-5)


class GatedFeedForward(nnx.Module):
    """GELU(x · gate) ⊙ (x · intermediate) · output (Shazeer 2020)."""

    def __init__(self, config: ModelConfig, key: jax.Array):
        hidden, wide, std = (config.hidden_size,), (config.feed_forward_size,), config.initializer_range
        gate_key, intermediate_key, output_key = jax.random.split(key, 3)
        self.gate = Linear(hidden, wide, std, gate_key)
        self.intermediate = Linear(hidden, wide, std, intermediate_key)
        self.output = Linear(wide, hidden, std, output_key)

    def __call__(self, x):
        return self.output(jax.nn.gelu(self.gate(x)) * self.intermediate(x))


def rotated(x: jax.Array, base: jax.Array) -> jax.Array:
    """Rotary positions (Su et al. 2021) of x [B, L, A, D]."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * base ** (-jnp.arange(half) / half)[None]
    sine, cosine = jnp.sin(angle)[None, :, None], jnp.cos(angle)[None, :, None]
    return jnp.concatenate(
        [x[..., :half] * cosine - x[..., half:] * sine, x[..., half:] * cosine + x[..., :half] * sine], -1
    )


@pytest.mark.parametrize("layers", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_scan_over_layers_that_are_one_needs_nothing_that_differs(layers):
    """Without dropout there is not even a key per layer to scan over."""
    config = dataclasses.replace(DEEP, num_layers=layers, sharing="all")
    ids = np.arange(12, dtype=np.int32).reshape(2, 6)
    states = []
    for compute in (ComputeConfig(dtype="float32", layers="scan"), ComputeConfig(dtype="float32", layers="loop")):
        model = BertForPreTraining(config, compute, ())
        encoded = compiled(functools.partial(model.encode, collect=True))(perturbed(model), ids, 0 * ids, 0 * ids + 1)
        states.append(np.stack(encoded.hidden_states))
    np.testing.assert_allclose(states[0], states[1], atol=1e-5)


class RotaryBlock(Block):
    """BERT's block with rotary positions of a base that each layer is given: a kernel around the kernel."""

    def __call__(self, x, mask, dropout_key, attend, collect, base):
        def rotary(query, key, *rest):
            return attend(rotated(query, base), rotated(key, base), *rest)

        return super().__call__(x, mask, dropout_key, rotary, collect)


def modern(config: ModelConfig, compute: ComputeConfig) -> Architecture:
    """GeGLU, rotary positions with two bases, and no table of positions."""
    block = functools.partial(RotaryBlock, config, feed_forward=functools.partial(GatedFeedForward, config))
    bases = {"base": np.resize(np.array([160_000.0, 10_000.0], np.float32), config.num_layers)}
    usual = with_stack(config, compute, block=block, layer_inputs=bases)
    layer, hidden = Axis("layer", config.num_layers), Axis("hidden", config.hidden_size)
    gate = linear("encoder/feed_forward/gate", (hidden,), (Axis("intermediate", config.feed_forward_size),), (layer,))
    kept = [entry for path, entry in usual.parameters.items() if path != "embeddings/position/table"]
    embeddings = functools.partial(Embeddings, config, positions=None)
    return dataclasses.replace(usual, embeddings=embeddings, parameters=table([*kept, *gate]))


EVEN = dataclasses.replace(DEEP, hidden_size=24, num_heads=3, norm_position="pre")


@pytest.mark.parametrize("layers", [pytest.param("scan", marks=pytest.mark.slow), "loop"])
def test_with_rotary_positions_a_text_in_a_packed_row_is_as_if_alone(layers):
    """Only distances count and segments separate texts, so a text's states do not depend on its place in the row."""
    model = BertForPreTraining(EVEN, ComputeConfig(dtype="float32", layers=layers), (), modern)
    params = perturbed(model)
    assert "position" not in params["embeddings"] and "gate" in params["encoder"]["feed_forward"]
    ids = np.random.default_rng(2).integers(0, 61, (2, 12)).astype(np.int32)
    ones, segments = np.ones_like(ids), np.repeat(np.array([[1, 2]], np.int32), [5, 7], axis=1).repeat(2, axis=0)
    run = compiled(functools.partial(model.encode, collect=True))
    packed = run(params, ids, 0 * ids, AttentionMask(padding=ones, segments=segments))
    alone = run(params, ids[:, 5:], 0 * ids[:, 5:], AttentionMask(padding=ones[:, 5:]))
    np.testing.assert_allclose(packed.last_hidden_state[:, 5:], alone.last_hidden_state, atol=1e-4)
    np.testing.assert_allclose(packed.attentions[1][:, :, 5:, 5:], alone.attentions[1], atol=1e-5)
    together = run(params, ids, 0 * ids, ones)
    assert np.abs(together.last_hidden_state[:, 5:] - alone.last_hidden_state).max() > 0.01


@pytest.mark.slow
def test_an_architecture_from_outside_learns():
    model, batch = BertForPreTraining(EVEN, FLOAT32, architecture=modern), make_batch()
    step = compiled(jax.value_and_grad(loss_function(model, batch)))
    params, losses = compiled(model.init)(jax.random.key(0)), []
    for index in range(4):
        loss, gradient = step(params, jax.random.key(index))
        assert all(np.any(leaf) for leaf in jax.tree.leaves(gradient))
        params = jax.tree.map(lambda leaf, slope: leaf - 0.1 * slope, params, gradient)
        losses.append(float(loss))
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("architecture", [local, shared, all_shared, modern])
def test_an_architecture_from_outside_is_partitioned_by_its_table(architecture):
    """The same rules as by hand: hidden over fsdp, feed-forward width and heads over tensor, layers whole."""
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    for model in (
        BertForPreTraining(EVEN, FLOAT32, architecture=architecture),
        BertForTask(EVEN, HeadConfig(kind="span"), FLOAT32, architecture),
    ):
        lamb = optimizer(OptimizerConfig(name="lamb"), model.parameters)
        state = abstract_state(model, lamb, mesh)
        shapes = {path: leaf.shape for path, leaf in leaf_paths(state.params).items()}
        assert {path: parameter.shape for path, parameter in model.parameters.items()} == shapes
        specs = {path: leaf.sharding.spec for path, leaf in leaf_paths(state.params).items()}
        wide = [path for path in specs if path.endswith(("intermediate/kernel", "gate/kernel"))]
        assert len(wide) == (2 if architecture is modern else 1)
        assert all(specs[path] == P(None, "fsdp", "tensor") for path in wide)


def test_layers_that_share_parameters_have_no_depth():
    model = BertForPreTraining(DEEP, FLOAT32, architecture=shared)
    with pytest.raises(UserError, match=r"layer_decay=0.9 .* 3 layers, but encoder/.* is \[2, "):
        scale_by_depth(0.9, 3, model.parameters)


def test_a_task_model_takes_an_architecture():
    batch = {name: make_batch()[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
    model = BertForTask(DEEP, HeadConfig(kind="span"), FLOAT32, shared)
    params = perturbed(model)
    plain = BertForTask(DEEP, HeadConfig(kind="span"), FLOAT32)
    copies = params | {"encoder": jax.tree.map(lambda leaf: leaf[np.array([0, 1, 0])], params["encoder"])}
    np.testing.assert_allclose(compiled(model.apply)(params, batch), compiled(plain.apply)(copies, batch), atol=1e-6)


def test_the_kernel_of_the_architecture_computes_every_layer():
    """A kernel that reads all real positions alike is attention without queries."""

    def uniform(query, key, value, mask, dropout_key=None, rate=0.0, collect=False):
        shares = (mask.padding / mask.padding.sum(1, keepdims=True))[:, :, None, None]
        return jnp.broadcast_to((shares * value).sum(1, keepdims=True), value.shape), None

    def without_queries(query, *given):
        return plain.attention(0 * query, *given)

    kernel = plain.Kernel(uniform, supports=(), otherwise=without_queries)
    batch = make_batch()
    model = BertForPreTraining(DEEP, FLOAT32, architecture=lambda *given: with_stack(*given, attend=kernel))
    params = perturbed(model)
    output, collected = encode(model, params, batch), encode(model, params, batch, collect=True)
    query = jax.tree.map(np.zeros_like, params["encoder"]["attention"]["query"])
    attention = params["encoder"]["attention"] | {"query": query}
    expected = numpy_bert.forward(params | {"encoder": params["encoder"] | {"attention": attention}}, DEEP, batch)
    np.testing.assert_allclose(output.last_hidden_state, expected["last_hidden_state"], atol=5e-5)
    np.testing.assert_allclose(collected.last_hidden_state, expected["last_hidden_state"], atol=5e-5)
    np.testing.assert_allclose(collected.attentions, expected["attentions"], atol=1e-6)


def test_a_stack_wants_one_entry_per_layer():
    given = {
        "block": functools.partial(Block, DEEP),
        "num_layers": 3,
        "attend": plain.Kernel(plain.attention, plain.EVERYTHING),
        "scan": True,
    }
    with pytest.raises(UserError, match=r"sharing=\(0, 1\).* 3 layers"):
        Stack(**given, sharing=(0, 1))
    with pytest.raises(UserError, match="'window'.* has 2 entries .* 3 layers"):
        Stack(**given, layer_inputs={"window": np.array([1, 2])})


# The axes by hand: the first rule that matches.
RULES = (
    (r"(embeddings/word|^contexts)/(table|delta)$", P("tensor", "fsdp")),
    (r"(embeddings|mask_decoder)/(position|token_type)/(table|delta)$", P(None, "fsdp")),
    (r"embeddings/target$|relative/table$", P(None, None, "fsdp")),
    (r"relative_bias/table$", P(None, None, "tensor")),
    (r"attention/(query|key|value|distance|position_key|position_query)/kernel$", P(None, "fsdp", "tensor", None)),
    (
        r"attention/((query|key|value|position_key|position_query)/|(content|distance|segment)_)bias$",
        P(None, "tensor", None),
    ),
    (r"attention/segments$", P(None, None, "tensor", None)),
    (r"attention/output/kernel$", P(None, "tensor", None, "fsdp")),
    (r"feed_forward/(intermediate|gate)/kernel$", P(None, "fsdp", "tensor")),
    (r"feed_forward/(intermediate|gate)/bias$", P(None, "tensor")),
    (r"feed_forward/output/kernel$", P(None, "tensor", "fsdp")),
    (r"encoder/(forward|backward)/kernel$", P(None, "fsdp", None)),
    (r"convolution/dense/kernel$", P(None, None, "fsdp", None)),
    (r"span_boundary/dense/kernel$", P(None, "fsdp")),
    (r"(projection|pooler|(mlm|words|tokens)/dense|tokens/output|next_sentence)/kernel$", P("fsdp", None)),
    (r"(mlm|words)/bias$|^context_biases/", P("tensor")),
    (r"", P()),
)
EXCLUDED = re.compile(r"(^|[/_])bias$|norm/scale$|^context_biases/")


def spec_by_rules(mesh, path: str, shape: tuple[int, ...]) -> P:
    rule = next(spec for pattern, spec in RULES if re.search(pattern, path))
    return P(*(None if axis and size % mesh.shape[axis] else axis for axis, size in zip(rule, shape)))


def every_model():
    yield from (BertForPreTraining(config, parts=MODEL_PARTS) for config in MODELS.values())
    yield from (trained(detection(embeddings)) for embeddings in ("shared", "own", "disentangled"))
    yield WordVectors(MODELS["no layers"], options=GloVe())
    yield from (BertForTask(config, head) for config in (RULES_SMALL, MODELS["pre"]) for head in HEADS.values())


@pytest.mark.parametrize(
    "mesh", [MeshConfig(), MeshConfig(fsdp=2, tensor=2), MeshConfig(data=1, fsdp=8), MeshConfig(data=2, tensor=4)]
)
def test_partition_equals_the_rules_by_path(mesh):
    mesh = sharding.make_mesh(mesh)
    for model in every_model():
        for path, parameter in model.parameters.items():
            assert sharding.partition_spec(mesh, parameter)[0] == spec_by_rules(mesh, path, parameter.shape), path


def test_decay_and_layers_equal_the_rules_by_path():
    for model in every_model():
        for path, parameter in model.parameters.items():
            assert parameter.decays == (EXCLUDED.search(path) is None), path
            below = re.search(r"(^|/)(embeddings|encoder/relative(_bias)?)/", path)
            layers = re.search(r"(^|/)encoder/", path) and not below
            assert parameter.layer_axis == (0 if layers else None), path
            assert parameter.embedding == bool(below), path
        tree = included(model.parameters, unflatten_dict(dict(model.parameters), sep="/"))
        assert leaf_paths(tree) == {path: EXCLUDED.search(path) is None for path in leaf_paths(tree)}


ROOT = pathlib.Path(__file__).parents[2]
CONFIGS = sorted(path.stem for path in (ROOT / "configs").glob("*.py"))


def assert_equal(model) -> None:
    made = leaf_paths(shapes(model))
    expected = {path: leaf.shape for path, leaf in made.items()}
    assert {path: parameter.shape for path, parameter in model.parameters.items()} == expected
    assert all(path == parameter.path for path, parameter in model.parameters.items())
    assert total_size(model.parameters) == sum(leaf.size for leaf in made.values())


@pytest.mark.parametrize("name", CONFIGS)
def test_what_every_shipped_configuration_trains_is_described(name, monkeypatch):
    """By the model, and by what `info` counts without one."""
    monkeypatch.syspath_prepend(str(ROOT))
    config = importlib.import_module(f"configs.{name}").get_config()
    model = dataclasses.replace(config.model, vocab_size=config.model.vocab_size or 30_522)
    config = dataclasses.replace(config, model=model)
    assert_equal(trained(config))
    assert trained_parameters(config.model, config.objective) == trained(config).parameters


@pytest.mark.parametrize("name", MODELS)
def test_every_variant_of_the_encoder_is_described(name):
    assert_equal(BertForPreTraining(MODELS[name], parts=MODEL_PARTS))


@pytest.mark.parametrize(
    "name", ["default", *(pytest.param(n, marks=pytest.mark.slow) for n in MODELS if n != "default")]
)
def test_any_parts_of_an_encoder_are_described(name):
    for size in range(len(PRETRAINING_PARTS) + 1):
        for parts in itertools.combinations(PRETRAINING_PARTS, size):
            assert_equal(BertForPreTraining(MODELS[name], parts=parts))


@pytest.mark.parametrize("embeddings", ["shared", "own", "disentangled"])
def test_a_discriminator_and_its_generator_are_described(embeddings):
    config = detection(embeddings)
    assert_equal(trained(config))
    assert trained_parameters(config.model, config.objective) == trained(config).parameters


OF_LAST_LAYER = [name for name, head in HEADS.items() if head.features == HeadConfig().features]


@pytest.mark.parametrize(
    "model, head",
    [
        *(("default", head) for head in HEADS),
        *(("modern", head) for head in OF_LAST_LAYER),
        *(pytest.param("modern", head, marks=pytest.mark.slow) for head in HEADS if head not in OF_LAST_LAYER),
        *(pytest.param("pre", head, marks=pytest.mark.slow) for head in HEADS),
    ],
)
def test_every_variant_of_the_head_is_described(model, head):
    assert_equal(BertForTask(MODELS[model], HEADS[head]))


def test_tables_with_a_row_per_word_or_position():
    parameters = bert_parameters(RULES_SMALL, head=HEADS["tagging, CRF"])
    assert row_tables(parameters, "vocab") == ("embeddings/word/table", "mlm/bias")
    assert row_tables(parameters, "position") == ("embeddings/position/table",)


def abstract(*shape) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def test_an_array_that_the_table_does_not_know_is_an_error():
    model = BertForPreTraining(RULES_SMALL)
    tree = shapes(model)
    tree["encoder"]["feed_forward"]["gate"] = {"kernel": abstract(4, 24, 96)}
    with pytest.raises(UserError, match=r"encoder/feed_forward/gate/kernel \[4, 24, 96\] is not in .*`parameters`"):
        entries(model.parameters, tree)
    with pytest.raises(UserError, match="generator/pooler/kernel .* is not in"):
        entries(model.parameters, {"generator": {"pooler": {"kernel": abstract(24, 24)}}})


def test_an_array_of_another_shape_is_an_error():
    model = BertForPreTraining(RULES_SMALL)
    tree = shapes(model)
    tree["encoder"]["attention"]["query"]["kernel"] = abstract(24, 3, 8)  # of one layer, not stacked
    wanted = r"query/kernel is \[24, 3, 8\], .*axes \[layer=4, hidden=24, heads=3, head_size=8\]"
    with pytest.raises(UserError, match=wanted):
        entries(model.parameters, tree)
    tree["encoder"]["attention"]["query"]["kernel"] = abstract(4, 24, 8, 3)
    with pytest.raises(UserError, match=r"query/kernel is \[4, 24, 8, 3\]"):
        entries(model.parameters, tree)


class Gated(BertForPreTraining):
    """A model with one array more than its table says."""

    def init(self, key):
        params = super().init(key)
        params["encoder"]["gate"] = {"kernel": jax.numpy.zeros((4, 24, 96))}
        return params


@dataclasses.dataclass(frozen=True)
class Described(Gated):
    @property
    def parameters(self):
        gate = Parameter("encoder/gate/kernel", (Axis("layer", 4), Axis("hidden", 24), Axis("intermediate", 96)))
        return {**bert_parameters(self.config, self.parts), gate.path: gate}


def test_a_model_is_partitioned_and_optimized_by_the_table_that_it_brings():
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    lamb = OptimizerConfig(name="lamb")
    model = Gated(RULES_SMALL)
    with pytest.raises(UserError, match="encoder/gate/kernel"):
        abstract_state(model, optimizer(lamb, model.parameters), mesh)
    model = Described(RULES_SMALL)
    state = abstract_state(model, optimizer(lamb, model.parameters), mesh)
    for leaf in (state.params, state.optimizer_state[0].mu, state.optimizer_state[0].nu):
        assert leaf["encoder"]["gate"]["kernel"].sharding.spec == P(None, "fsdp", "tensor")


def test_moments_are_split_like_their_parameters_and_what_else_an_optimizer_keeps_is_whole_everywhere():
    parameters = bert_parameters(RULES_SMALL)
    moments, factored = ({"pooler": {"kernel": abstract(*shape)}} for shape in ((24, 24), (24,)))
    state = {"count": abstract(), "mu": moments, "rows": factored, "last": abstract(3)}
    found = state_entries(parameters, state)
    assert found["mu"]["pooler"]["kernel"].axes == parameters["pooler/kernel"].axes
    assert [found["count"].axes, found["rows"]["pooler"]["kernel"].axes, found["last"].axes] == [(), (), ()]
    assert state_names(parameters, state) == ["count", "last", "mu", "rows"]


def test_a_factored_optimizer_is_placed_on_a_mesh():
    factored = optax.chain(optax.scale_by_factored_rms(min_dim_size_to_factor=8), optax.trace(0.9))
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    state = abstract_state(BertForPreTraining(RULES_SMALL), factored, mesh)
    rows, trace = state.optimizer_state[0].v_row, state.optimizer_state[1].trace
    kernel = lambda tree: tree["encoder"]["feed_forward"]["intermediate"]["kernel"]
    assert kernel(rows).shape != kernel(state.params).shape and kernel(rows).sharding.is_fully_replicated
    assert kernel(trace).sharding.spec == kernel(state.params).sharding.spec == P(None, "fsdp", "tensor")


@dataclasses.dataclass(frozen=True)
class Promising(BertForPreTraining):
    """Its table has an array that it does not make."""

    @property
    def parameters(self):
        return {**super().parameters, **table(linear("encoder/gate", (Axis("hidden", 24),), (Axis("hidden", 24),)))}


def test_an_entry_without_an_array_is_an_error():
    model = Promising(RULES_SMALL)
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    with pytest.raises(UserError, match="has encoder/gate/kernel and 1 more, which the model does not return"):
        abstract_state(model, optimizer(OptimizerConfig(), model.parameters), mesh)


def test_a_misspelt_axis_is_an_error_and_names_those_there_are():
    with pytest.raises(UserError, match=r"encoder/gate/kernel has an axis 'hiden'; .* layer, hidden, intermediate,"):
        Parameter("encoder/gate/kernel", (Axis("layer", 4), Axis("hiden", 24)))


def test_a_misspelt_use_is_an_error_and_names_those_there_are():
    with pytest.raises(UserError, match=r"order/kernel has used='per_sentence', .* per_prediction, per_text,"):
        Parameter("order/kernel", (Axis("hidden", 24),), used="per_sentence")


def test_a_large_array_without_an_axis_that_is_split_gets_a_remark():
    mesh, one = sharding.make_mesh(MeshConfig(data=4, fsdp=2)), sharding.make_mesh(MeshConfig())
    large, small = (Parameter("x/kernel", (Axis("layer", 2), Axis("feature", size))) for size in (2**15 + 1, 2**15))
    assert sharding.partition_spec(mesh, large) == (
        P(),
        ["no axis that is split (vocab, heads, intermediate, hidden, embedding)"],
    )
    assert sharding.partition_spec(mesh, small) == sharding.partition_spec(one, large) == (P(), [])


def test_two_axes_of_one_name_share_one_axis_of_the_mesh():
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    hidden, wide, layer = Axis("hidden", 8), Axis("intermediate", 16), Axis("layer", 2)
    specs = {
        entry.path: sharding.partition_spec(mesh, entry)[0]
        for entry in (*linear("square", (hidden,), (hidden,)), *linear("up", (hidden,), (wide,)), *norm("n", hidden))
    }
    assert specs["square/kernel"] == P("fsdp", None) and specs["up/kernel"] == P("fsdp", "tensor")
    assert specs["up/bias"] == P("tensor") and specs["n/scale"] == specs["square/bias"] == P()
    shared = Parameter("experts", (layer, Axis("heads", 4), wide, hidden))
    assert sharding.partition_spec(mesh, shared)[0] == P(None, "tensor", None, "fsdp")


def documented() -> list[str]:
    """The table in docs/checkpoints.md: modules with equal arrays side by side share a row."""
    tagger = HeadConfig(kind="tagging", labels=LABELS, crf=True)
    bilstm = dataclasses.replace(tagger, crf=False, features="weighted_all")
    plain, features = (bert_parameters(MODELS["pre"], head=head) for head in (tagger, bilstm))
    modules: dict[str, list[Parameter]] = {}
    for path, parameter in {**plain, **features}.items():
        modules.setdefault(path.rpartition("/")[0], []).append(parameter)
    rows: dict[tuple, list[str]] = {}
    for module, arrays in modules.items():
        parent, _, name = module.rpartition("/")
        leaves = ",".join(parameter.path.rpartition("/")[2] for parameter in arrays)
        axes = ", ".join(f"[{', '.join(axis.name for axis in parameter.axes)}]" for parameter in arrays)
        rows.setdefault((parent, leaves, axes), []).append(name)
    return [
        f"| `{parent}{'/' if parent else ''}{braced(','.join(names))}/{braced(leaves)}` | {axes} |"
        for (parent, leaves, axes), names in rows.items()
    ]


def braced(names: str) -> str:
    return f"{{{names}}}" if "," in names else names


def test_the_documentation_shows_this_table():
    """Copy the rows of a failure into docs/checkpoints.md."""
    text = (ROOT / "docs" / "checkpoints.md").read_text()
    found = text.split("| path | axes |\n|---|---|\n")[1].split("\n\n")[0].splitlines()
    assert found == documented(), "\n".join(["expected:", *documented()])


def test_the_example_of_the_guide_describes_a_gate():
    text = (ROOT / "docs" / "extending.md").read_text().split("## The parameters of an architecture")[1]
    names: dict = {}
    exec(text.split("```python\n")[1].split("```")[0], names)
    parameters = BertForPreTraining(RULES_SMALL, architecture=names["gated"]).parameters
    added = {p: parameter.shape for p, parameter in parameters.items() if p not in bert_parameters(RULES_SMALL)}
    assert added == {"encoder/feed_forward/gate/kernel": (4, 24, 96), "encoder/feed_forward/gate/bias": (4, 96)}
