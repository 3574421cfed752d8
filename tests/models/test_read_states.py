"""A last layer computed only where it is read, against one computed everywhere: values, gradients, operations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_variants import variant
from processes import EXHAUSTIVE
from small_model import compiled, perturbed

from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig
from bert_jax.models.architecture import bert_architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.layers import PackedTexts
from bert_jax.models.protocol import EncoderOutput, ReadStates
from bert_jax.models.task import BertForTask
from bert_jax.objectives.masked_words import PretrainingObjective

BATCH, LENGTH, HIDDEN = 3, 24, 16
COMPUTE = ComputeConfig(dtype="float32", products="plain")
PLAIN = ModelConfig(
    vocab_size=50, hidden_size=HIDDEN, num_layers=1, num_heads=2, max_position_embeddings=32, initializer_range=0.3
)
MODELS = {
    "bert": {"num_layers": 2},
    "one layer": {},
    "convolution": {"convolution_width": 3, "num_layers": 2},
    "pre-norm": {"norm_position": "pre"},
    "mpnet": {
        **{"padding_id": 1, "type_vocab_size": 0, "pair_head": False},
        **{"positions": "learned_bias", "bias_buckets": 8, "bias_max_distance": 12},
    },
    "albert": {"sharing": "all", "embedding_size": 8, "num_layers": 2},
    "shared attention": {"sharing": "attention", "num_layers": 2},
    "alibi": {"positions": "alibi"},
    "gpt": {"direction": "left_to_right"},
    "modern": {
        **{"positions": "rope", "norm_position": "pre", "norm": "rms_norm", "feed_forward": "geglu", "use_bias": False},
        **{"local_window": 3, "global_every": 2, "num_layers": 3, "global_tokens": 0, "first_attention_norm": False},
    },
    "window with global tokens": {"local_window": 2, "global_every": 2, "num_layers": 3, "global_tokens": 2},
}


def model_of(options: dict) -> BertForPreTraining:
    config = variant(PLAIN, **options)
    parts = ("mlm", "pooler", "next_sentence") if config.pair_head else ("mlm",)
    return BertForPreTraining(config, COMPUTE, parts)


def batch_of(packed: bool) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(3)
    lengths = np.array([LENGTH, 17, 9])
    batch = {
        "input_ids": generator.integers(5, 50, (BATCH, LENGTH)),
        "token_type_ids": np.zeros((BATCH, LENGTH), int),
        "attention_mask": (np.arange(LENGTH) < lengths[:, None]).astype(int),
        # Out of order, one twice, and 0 in slots that are not used.
        "masked_positions": np.array([[7, 2, 2, 20], [16, 3, 0, 0], [8, 0, 5, 0]]),
        "masked_ids": generator.integers(5, 50, (BATCH, 4)),
    }
    if packed:
        rows = ([1, 2], [10, 14]), ([1, 2, 0], [4, 13, 7]), ([1, 0], [9, 15])
        batch["text_ids"] = np.stack([np.repeat(*row) for row in rows])
        batch["text_starts"] = np.array([[0, 10], [0, 4], [0, 0]])
    batch = {name: values.astype(np.int32) for name, values in batch.items()}
    return batch | {"masked_weights": np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 1, 0]], np.float32)}


def inputs(batch: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    return batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]


QUICK = (
    "one layer",
    "convolution",
    "alibi",
    "modern",
    "window with global tokens",
)
"""Models whose rows of several texts are among the core tests; of the others a sibling is."""
CASES = [
    ("bert", False, False),
    *(pytest.param(name, True, True, marks=() if name in QUICK else pytest.mark.slow) for name in MODELS),
    *(pytest.param(name, False, True, marks=pytest.mark.slow) for name in MODELS if EXHAUSTIVE or name not in QUICK),
]


@pytest.mark.parametrize("name, packed, dropout", CASES)
def test_states_and_gradients_are_those_of_the_whole_layer(name, packed, dropout):
    """Dropout included: what is dropped depends on the place of an element in the whole array."""
    model, batch = model_of(MODELS[name]), batch_of(packed)
    params = perturbed(model, spread=0.3)
    key, positions, texts = jax.random.key(5) if dropout else None, batch["masked_positions"], PackedTexts.of(batch)
    weights = np.random.default_rng(4).normal(size=(BATCH, 4, HIDDEN)).astype(np.float32)

    def alone(params):
        found = model.read(params, *inputs(batch), positions, key, texts)
        assert isinstance(found, ReadStates)
        return loss(found.states, found.pooled), found

    def whole(params):
        found = model.encode(params, *inputs(batch), key, texts=texts)
        states = jnp.take_along_axis(found.last_hidden_state, positions[:, :, None], axis=1)
        return loss(states, found.pooled), ReadStates(states, found.pooled)

    def loss(states, pooled):
        return jnp.sum(weights * states) + (0 if pooled is None else jnp.sum(jnp.square(pooled + 0.1)))

    both = compiled(lambda params: [jax.value_and_grad(road, has_aux=True)(params) for road in (alone, whole)])
    ((_, found), gradients), ((_, expected), expected_gradients) = both(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found, expected)
    scale = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(expected_gradients))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * scale), gradients, expected_gradients)


@pytest.mark.parametrize(
    "options, compute",
    [({"layer": "lstm"}, {}), ({"positions": "xlnet", "type_vocab_size": 2}, {}), ({}, {"layers": "scan"})],
    ids=["lstm", "xlnet", "scan"],
)
def test_layers_that_cannot_be_computed_in_part_are_computed_whole(options, compute):
    model = BertForPreTraining(variant(PLAIN, **options), dataclasses.replace(COMPUTE, **compute))
    batch = batch_of(packed=False)
    read = lambda params: model.read(params, *inputs(batch), batch["masked_positions"])
    found = jax.eval_shape(read, jax.eval_shape(model.init, jax.random.key(0)))
    assert isinstance(found, EncoderOutput) and found.last_hidden_state.shape == (BATCH, LENGTH, HIDDEN)


def test_an_architecture_from_outside_is_computed_whole():
    """Its block need not know how to be computed at some positions."""
    model = dataclasses.replace(model_of({}), architecture=lambda *arguments: bert_architecture(*arguments))
    assert model_of({}).reads_alone and not model.reads_alone


@pytest.mark.parametrize(
    "options, kind, packed",
    [
        ({}, "classification", True),
        pytest.param({"task_transform": True}, "classification", False, marks=pytest.mark.slow),
        ({}, "choice", False),
    ],
    ids=["packed", "transform", "choice"],
)
def test_a_task_has_the_scores_of_whole_layers(options, kind, packed):
    """With dropout. A scan computes whole layers, so it is the other road."""
    head = HeadConfig(kind=kind, labels=("a", "b") if kind == "classification" else ())
    model, batch = BertForTask(variant(PLAIN, **options), head, COMPUTE), batch_of(packed)
    if kind == "choice":
        batch = {name: values[None] for name, values in batch.items()}
    whole = dataclasses.replace(model, compute=dataclasses.replace(COMPUTE, layers="scan"))
    assert model.encoder.reads_alone and not whole.encoder.reads_alone
    params, key = perturbed(model), jax.random.key(1)
    found, expected = (compiled(each.apply)(params, batch, key) for each in (model, whole))
    np.testing.assert_allclose(found, expected, atol=2e-5)


def operations(function, model) -> float:
    """What the compiler counts for a function of the parameters of a model."""
    return jax.jit(function).lower(jax.eval_shape(model.init, jax.random.key(0))).cost_analysis()["flops"]


WIDE = dataclasses.replace(PLAIN, hidden_size=128, num_layers=2)


def left_out(read: int) -> int:
    """Queries, attention and the feed-forward network of the positions that are not read, in one layer of WIDE."""
    return 2 * BATCH * (LENGTH - read) * (10 * 128 * 128 + 2 * LENGTH * 128)


def test_pretraining_leaves_out_what_nobody_reads():
    model, batch = BertForPreTraining(WIDE, COMPUTE), batch_of(packed=False)
    found = operations(lambda params: PretrainingObjective(model).sums(params, batch), model)
    everything = operations(lambda params: model.encode(params, *inputs(batch)), model)
    head = 2 * BATCH * 4 * 128 * (128 + 50)
    assert found == pytest.approx(everything - left_out(read=5) + head, rel=0.03)  # masked positions and the first


def test_a_classifier_leaves_out_what_nobody_reads():
    model, batch = BertForTask(WIDE, HeadConfig(labels=("a", "b")), COMPUTE), batch_of(packed=False)
    found = operations(lambda params: model.apply(params, batch), model)
    everything = operations(lambda params: model.encode(params, *inputs(batch)), model)
    assert found == pytest.approx(everything - left_out(read=1), rel=0.03)
