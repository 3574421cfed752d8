"""A model before its first step: laws within their sampling error, closed forms, and the command."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from command_lines import refusal
from etils import epath
from model_variants import variant
from pretrained_model import CONFIG, write_workdir

from bert_jax.analysis import draw_initialisation, draw_positions, init, signal
from bert_jax.analysis.results import save_result, saved_result
from bert_jax.analysis.signal import (
    DepthGrowth,
    Initialisation,
    attention_norm,
    depth_growth,
    law,
    position_similarity,
    step_costs,
)
from bert_jax.config import DisentangledConfig, ModelConfig
from bert_jax.errors import UserError

SMALL = ModelConfig(vocab_size=60, hidden_size=64, num_layers=3, num_heads=4, max_position_embeddings=32)
WIDE = dataclasses.replace(SMALL, hidden_size=128, initializer_range=0.05)


@pytest.mark.slow
def test_the_norm_of_attention_follows_the_law_for_any_number_of_heads():
    found = attention_norm(WIDE, (1, 2, 4, 8, 16), draws=64, length=16)
    assert found.heads == (1, 2, 4, 8, 16) and (found.standard_error < 0.04).all()
    assert (np.abs(found.ratio - 1) < 4 * found.standard_error).all()
    np.testing.assert_allclose(found.measured, found.predicted, rtol=0.06)


def test_the_law_is_that_of_independent_kernels():
    """The expectation over kernels drawn here, in NumPy, with one head of the whole width."""
    random, size, length, scale = np.random.default_rng(0), 48, 12, 0.88
    spread = 0.8796256610342398
    states = random.standard_normal((length, size)) + 0.7 * random.standard_normal(size)
    squares = []
    for _ in range(1500):
        query, key, value, output = spread * scale / size**0.5 * random.standard_normal((4, size, size))
        scores = (states @ query) @ (states @ key).T / size**0.5
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        squares.append(((weights @ states @ value @ output) ** 2).sum(axis=1).mean())
    expected = float(law(jnp.asarray(states, jnp.float32), scale / size**0.5))
    error = np.std(squares) / len(squares) ** 0.5
    assert abs(np.mean(squares) - expected) < 4 * error + 0.1 * expected  # the law is of first order in the scores
    np.testing.assert_allclose(float(law(jnp.ones((5, 64)), 0.1)), (0.1 * spread) ** 4 * 64**3, rtol=1e-6)


DEEPER = dataclasses.replace(SMALL, num_layers=4, initializer_range=0.1)


@pytest.fixture(scope="module")
def growth() -> DepthGrowth:
    return depth_growth(DEEPER, draws=8, length=16)


@pytest.mark.slow
def test_states_grow_with_pre_norm_as_theory_says_and_not_with_post_norm(growth):
    np.testing.assert_allclose(growth.state[0], 1.0, rtol=1e-3)
    assert (np.diff(growth.state[1]) > 0.1).all()
    np.testing.assert_allclose(growth.state[1], growth.predicted_state, rtol=0.05)


@pytest.mark.slow
def test_the_last_gradient_falls_with_depth_only_with_pre_norm(growth):
    assert growth.depths == (1, 2, 4)
    post, pre = growth.last_gradient
    np.testing.assert_allclose(post, post[0], rtol=0.1)
    assert pre[2] < 0.8 * pre[0]
    np.testing.assert_allclose(post / pre, growth.predicted_ratio, rtol=0.1)
    assert growth.gradient.shape == growth.output_gradient.shape == (2, 4)
    assert (growth.output_gradient < growth.gradient).all()


@pytest.mark.slow
def test_states_grow_less_where_outputs_begin_smaller_as_theory_says_too(growth):
    scaled = depth_growth(dataclasses.replace(DEEPER, scaled_outputs=True), draws=8, length=16)
    assert scaled.state[1, -1] - 1 < (growth.state[1, -1] - 1) / 4
    np.testing.assert_allclose(scaled.state[1], scaled.predicted_state, rtol=0.02)
    np.testing.assert_allclose(scaled.last_gradient[0] / scaled.last_gradient[1], scaled.predicted_ratio, rtol=0.02)


def test_positions_of_both_starts_are_as_similar_as_their_closed_forms_say():
    config = dataclasses.replace(SMALL, max_position_embeddings=300)
    learned = np.random.default_rng(0).standard_normal((300, 64))
    found = position_similarity(config, learned)
    assert found.tables == ("random", "sinusoidal", "learned") and len(found.rows) == len(found.maps[0]) == 100
    np.testing.assert_allclose(found.by_distance[1], found.predicted, atol=1e-5)
    np.testing.assert_allclose([matrix.diagonal() for matrix in found.maps], 1.0, atol=1e-12)
    apart = found.maps[0][~np.eye(100, dtype=bool)]
    assert abs(apart.mean()) < 0.01 and apart.std() == pytest.approx(64**-0.5, rel=0.1)
    # Both starts have the same size (a table of the 0.02 of initializer_range, cut at two standard deviations).
    np.testing.assert_allclose(found.root_mean_square[:2], 0.02 * 0.8796, rtol=0.02)
    rows = learned[list(found.rows)]
    expected = rows[3] @ rows[7] / np.linalg.norm(rows[3]) / np.linalg.norm(rows[7])
    assert found.maps[2][3, 7] == pytest.approx(expected)


@pytest.mark.slow
def test_the_compiler_counts_the_operations_of_the_closed_form():
    wide = dataclasses.replace(SMALL, hidden_size=128, num_layers=2)
    found = step_costs(wide, (8, 32), sequences=2)
    assert found.lengths == (8, 32) and found.sequences == 2
    # XLA counts everything, the closed form products alone.
    assert ((found.flops / found.closed_flops > 1) & (found.flops / found.closed_flops < 1.06)).all()
    # In short sequences what is not kept, such as gradients of the tables, weighs more than what is.
    assert 0.7 < found.bytes[1] / found.closed_bytes[1] < 1.2 and found.bytes[0] < found.bytes[1]
    # Of the operations of 32 tokens, four times those of 8, and again four times what is quadratic.
    quadratic = found.attention_flops
    assert quadratic[1] == 16 * quadratic[0] == 3 * 2 * 2 * 2 * 128 * 32**2


@pytest.mark.slow
def test_init_leaves_its_result_and_pictures_and_is_not_computed_again(tmp_path, monkeypatch, analyze):
    write_workdir(tmp_path / "run", 1, config=dataclasses.replace(CONFIG, num_layers=1))
    words = ["init", tmp_path / "run", "--draws=2", "--lengths=8", "--length=8", "--heads=1,4,5"]
    printed, result = analyze(*words)
    names = ["init.png", "init.svg", "positions.png", "positions.svg", "result.json"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    assert result["norm"]["heads"] == [1, 4]  # 5 does not divide 16
    assert result["positions"]["tables"] == ["random", "sinusoidal", "learned"]
    assert "norm of attention" in printed
    monkeypatch.setattr(signal, "init", None)
    (tmp_path / "out" / "init.svg").unlink()
    assert "has this result already" in analyze(*words)[0] and (tmp_path / "out" / "init.svg").exists()


@pytest.mark.slow
def test_a_configuration_without_positions_has_no_map_of_them(tmp_path):
    config = variant(dataclasses.replace(SMALL, num_layers=1), positions="rope")
    result = init(config, heads=(2,), lengths=(8,), draws=2, length=8, name="rope", progress=False)
    assert result.positions is None and len(draw_initialisation(result).axes) == 6
    file = epath.Path(tmp_path) / "result.json"
    save_result(file, {}, result)
    again = saved_result(file, {}, Initialisation)
    assert again is not None and again.positions is None and again.norm.heads == (2,)
    np.testing.assert_array_equal(again.growth.state, result.growth.state)
    assert len(draw_positions(position_similarity(SMALL)).axes) == 4  # two maps, a bar of colours, the curves


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"layer": "lstm"}, {}, r"no attention \(model.layer=lstm\)"),
        ({"disentangled": DisentangledConfig(terms="c2p"), "positions": "none"}, {}, "depend on relative positions"),
        ({"positions": "xlnet"}, {}, "depend on relative positions"),
        ({}, {"heads": (3, 5)}, "heads=3,5: none divides the hidden size of 64"),
        ({}, {"heads": (0, 2)}, "heads=0,2 must be numbers from 1 on"),
        ({}, {"lengths": (64,)}, "lengths=64: the model reads 32 tokens"),
        ({}, {"length": 64}, "length=64 must be from 8 to the 32 tokens"),
        ({}, {"draws": 1}, "draws=1 must be at least 2"),
    ],
    ids=["lstm", "deberta", "xlnet", "heads", "no_heads", "lengths", "length", "draws"],
)
def test_bad_input_is_one_clear_error(changes, options, message):
    with pytest.raises(UserError, match=message):
        init(variant(SMALL, **changes), **{"length": 8, "name": "this", **options})


def test_a_shipped_configuration_is_known_by_its_name():
    config = signal._model("bert_mini")
    assert isinstance(config, ModelConfig) and config.hidden_size == 256


def test_bad_options_are_one_line(tmp_path, capsys):
    words = ["analyze", "init", "bert_huge", f"--output={tmp_path}/out"]
    assert "draws=1 must be at least 2" in refusal(capsys, *words, "--draws=1")
    assert "bert_huge" in refusal(capsys, *words)
