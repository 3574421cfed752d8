"""Attention by blocks within a window: equal to the masked full matrix, and linear in the length."""

import dataclasses
import functools
import math

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from model_variants import variant
from modern_model import MODERN, rows
from processes import EXHAUSTIVE
from small_model import compiled, perturbed

from bert_jax.config import ComputeConfig, MeshConfig
from bert_jax.devices import sharding
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.block import alibi_bias, causal_bias
from bert_jax.models.kernels import choice, plain, windowed
from bert_jax.models.kernels.plain import AttentionMask, Call
from bert_jax.models.layers import PackedTexts
from bert_jax.parameters import entries

HEADS, SIZE = 2, 4
CASES = [  # length, window, global tokens, real positions of each row, whether there are segments
    pytest.param(50, 3, 0, (50, 31), False, id="blocks wider than the window"),
    pytest.param(64, 16, 0, (64, 40), True, id="whole blocks, segments"),
    pytest.param(77, 17, 0, (77, 50), False, id="odd"),
    pytest.param(70, 5, 3, (70, 44), False, id="global tokens"),
    pytest.param(70, 9, 1, (70, 52), True, id="a global token of each text"),
    pytest.param(90, 3, 2, (90, 61), True, id="two of each text"),
    pytest.param(20, 19, 2, (20, 20), False, id="a window over all"),
]


def setting(length, window, first, real, segmented) -> tuple[list[np.ndarray], AttentionMask, np.ndarray]:
    random = np.random.default_rng(length)
    inputs = [random.standard_normal((len(real), length, HEADS, SIZE)).astype(np.float32) for _ in range(3)]
    padding = (np.arange(length)[None, :] < np.array(real)[:, None]).astype(np.int32)
    segments = np.tile(np.arange(length) // 21, (len(real), 1)).astype(np.int32) if segmented else None
    positions = None if not first else np.arange(first, dtype=np.int32)[None]
    if first and segmented:  # each text has some, and a row one that is not there
        starts = np.arange(0, length, 21)[:, None] + np.arange(first)
        positions = np.append(starts, length).astype(np.int32)[None]
    mask = AttentionMask(padding=padding, segments=segments, window=window, global_positions=positions)
    return inputs, mask, padding.astype(bool)


@pytest.mark.parametrize("length, window, first, real, segmented", CASES)
@pytest.mark.parametrize(
    "bias", [None, functools.partial(alibi_bias, HEADS), causal_bias], ids=["no bias", "ALiBi", "left to right"]
)
def test_outputs_and_gradients_are_those_of_the_masked_full_matrix(length, window, first, real, segmented, bias):
    inputs, mask, seen = setting(length, window, first, real, segmented)
    # To xla as a full matrix, computed here, and to the blocks as a function of distances.
    full = None if bias is None else np.asarray(bias(np.arange(length)[None, :] - np.arange(length)[:, None]))[None]
    masks = {
        windowed.attention: dataclasses.replace(mask, distance_bias=bias),
        plain.attention: dataclasses.replace(mask, bias=full),
    }

    def loss(inputs, attend):
        found, _ = attend(*inputs, masks[attend])
        return jnp.sum(jnp.where(seen[:, :, None, None], jnp.sin(found), 0)), found

    @compiled
    def both(inputs):
        return [
            jax.value_and_grad(functools.partial(loss, attend=attend), has_aux=True)(inputs)
            for attend in (windowed.attention, plain.attention)
        ]

    ((_, found), slopes), ((_, expected), wanted) = both(inputs)
    np.testing.assert_allclose(np.asarray(found)[seen], np.asarray(expected)[seen], atol=2e-6)
    for one, other in zip(slopes, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def largest(length: int) -> int:
    """Values of the largest array on the way to the gradients."""
    inputs, mask, _ = setting(length, 24, 2, (length,), False)
    loss = jax.grad(lambda inputs: jnp.sum(windowed.attention(*inputs, mask, jax.random.key(0), 0.1)[0]))
    jaxpr = jax.make_jaxpr(loss)(inputs)
    return max(math.prod(each.aval.shape) for each in variables(jaxpr.jaxpr))


def variables(jaxpr):
    for equation in jaxpr.eqns:
        yield from equation.outvars
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from variables(inner)


def test_no_array_grows_faster_than_the_length():
    assert largest(960) == 2 * largest(480)


def test_dropped_probabilities_keep_the_mean():
    inputs, mask, _ = setting(640, 16, 1, (640,), False)
    query, key, value = inputs[0], inputs[1], np.ones_like(inputs[2])
    attend = compiled(lambda: windowed.attention(query, key, value, mask, jax.random.key(3), 0.25)[0][0, ..., 0])
    found, again = np.asarray(attend()), np.asarray(attend())
    np.testing.assert_array_equal(found, again)
    error = found.std() / math.sqrt(found.size)
    assert found.std() > 0.05 and abs(found.mean() - 1) < 6 * error


def test_it_is_chosen_for_windows_far_shorter_than_the_row():
    call = Call(rows=1, length=8192, heads=12, size=64, rate=0.0, dtype=jnp.dtype("float32"), window=64)
    paths = {
        (length, window): choice.attention_path(
            ComputeConfig(), "cpu", dataclasses.replace(call, length=length, window=window)
        )
        for length in (128, 8192)
        for window in (None, 64, 4096)
    }
    assert paths.pop((8192, 64)) == "windowed" and set(paths.values()) == {"xla"}
    assert choice.attention_path(ComputeConfig(attention="xla"), "cpu", call) == "xla"
    # With G global tokens a position has 3 · 64 + 2 · G scores, which is half of a row of 512 where G = 32.
    sizes = ((512, 32), (512, 33), (896, 128), (888, 128))
    calls = [dataclasses.replace(call, length=length, global_tokens=number) for length, number in sizes]
    found = [choice.attention_path(ComputeConfig(), "cpu", each) for each in calls]
    assert found == ["windowed", "xla", "windowed", "xla"]
    # On a TPU it is what the kernel there cannot do: global tokens, and lengths that are no multiple of 128.
    changes = ({}, {"global_tokens": 1}, {"length": 8200})
    on_tpu = [dataclasses.replace(call, dtype=jnp.dtype("bfloat16"), **each) for each in changes]
    paths = [choice.attention_path(ComputeConfig(), "tpu", each) for each in on_tpu]
    assert paths == ["pallas", "windowed", "windowed"]


@pytest.mark.parametrize(
    "layers, changes",
    [("loop", {}), ("scan", {}), ("scan", {"positions": "alibi"}), ("scan", {"direction": "left_to_right"})],
    ids=["loop", "scan", "ALiBi", "left to right"],
)
def test_a_model_with_local_layers_is_the_same_by_blocks(layers, changes, monkeypatch):
    config = variant(MODERN, max_position_embeddings=128, num_layers=4, **changes, global_tokens=1)
    params, batch = perturbed(BertForPreTraining(config, parts=())), rows(101, (101, 60))
    calls = []
    counted = dataclasses.replace(
        windowed.KERNEL, function=lambda *given: calls.append(1) or windowed.attention(*given)
    )
    monkeypatch.setattr(windowed, "KERNEL", counted)
    states = {}
    for kernel in ("auto", "xla"):
        model = BertForPreTraining(config, ComputeConfig(dtype="float32", attention=kernel, layers=layers), ())
        states[kernel] = np.asarray(compiled(model.encode)(params, *batch).last_hidden_state)[batch[2] > 0]
        assert (len(calls) > 0) == (kernel == "auto")
        calls.clear()
    np.testing.assert_allclose(states["auto"], states["xla"], atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [0, 2], ids=["single texts", "global tokens of two texts"])
def test_a_model_with_local_layers_is_the_same_on_any_mesh(tokens):
    sizes = {"hidden_size": 32, "num_heads": 4, "max_position_embeddings": 128, "num_layers": 4}
    config = variant(MODERN, **sizes, global_tokens=tokens)
    model = BertForPreTraining(config, ComputeConfig(dtype="float32", layers="scan"), ())
    params, batch = perturbed(model), rows(128, (128, 60, 128, 33))
    real = jnp.asarray(batch[2])[:, :, None]
    numbers = (batch[2] * (1 + (np.arange(128) >= 30)[None])).astype(np.int32)
    texts = PackedTexts(numbers, np.array([[0, 30]] * 4, np.int32)) if tokens else None

    def loss(params, batch):
        return jnp.sum(jnp.sin(model.encode(params, *batch, texts=texts).last_hidden_state) * real)

    expected, slopes = compiled(jax.value_and_grad(loss))(params, batch)
    others = (MeshConfig(data=8), MeshConfig(data=1, fsdp=8)) if EXHAUSTIVE else ()
    for sizes in (MeshConfig(data=2, fsdp=2, tensor=2), *others):
        mesh = sharding.make_mesh(sizes)
        placed = jax.device_put(params, sharding.shardings(mesh, entries(model.parameters, params)))
        step = compiled(sharding.under(mesh, jax.value_and_grad(loss)))
        found, gradient = step(placed, batch)
        assert float(found) == pytest.approx(float(expected), rel=1e-5)
        for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(slopes), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5 * np.abs(other).max())
