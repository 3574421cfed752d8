"""Whitening and removal of components: known answers, through embed, and saved with a model."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
import safetensors.numpy
from loaded_model import loaded
from pretrained_model import CONFIG, random_texts, stored_model

import bert_jax
from bert_jax.analysis import fit_postprocess
from bert_jax.analysis.layers import postprocess_matrix
from bert_jax.errors import UserError

SIZE = CONFIG.hidden_size
RANK = SIZE - 1
"""Directions in which vectors of the last layer can vary: Σ (x - bias) / scale = 0 for what a LayerNorm returns."""


@pytest.fixture(scope="module")
def whitening(model):
    return fit_postprocess(model, random_texts(60), progress=False)


def test_whitened_vectors_have_mean_zero_and_the_identity_covariance(model, whitening):
    vectors = model.embed(random_texts(60), postprocess=whitening)
    # In float32, on vectors of a condition number of some hundreds.
    np.testing.assert_allclose(vectors.mean(0), 0.0, atol=1e-3)
    np.testing.assert_allclose(np.cov(vectors.T), np.eye(RANK), atol=2e-3)
    before = model.embed(random_texts(60))
    norm = model.params["encoder"]["feed_forward_norm"]
    sums = np.sum((before - np.asarray(norm["bias"][-1])) / np.asarray(norm["scale"][-1]), axis=1)
    np.testing.assert_allclose(sums, 0.0, atol=1e-4)
    assert np.abs(np.cov(before.T) - np.eye(SIZE)).max() > 0.1
    np.testing.assert_allclose(vectors, (before - whitening.mean) @ whitening.matrix, atol=1e-3)


def test_what_is_fitted_on_one_set_is_applied_to_another(model, whitening):
    others = random_texts(9, seed=1)
    plain = model.embed(others)
    train = model.embed(random_texts(60)).astype(np.float64)
    found = model.embed(others, postprocess=whitening).astype(np.float64)
    # Distances of whitened vectors are Mahalanobis distances, whatever the rotation.
    inverse = np.linalg.pinv(np.cov(train.T), rcond=1e-9, hermitian=True)
    for i in range(8):
        step = (plain[i] - plain[i + 1]).astype(np.float64)
        np.testing.assert_allclose(np.sum((found[i] - found[i + 1]) ** 2), step @ inverse @ step, rtol=5e-3)


def test_whitening_keeps_the_directions_with_the_most_variance(model, whitening):
    few = fit_postprocess(model, random_texts(60), components=3, progress=False)
    assert few.matrix.shape == (SIZE, 3)
    np.testing.assert_allclose(few.matrix, whitening.matrix[:, :3], atol=1e-5)
    lengths = np.linalg.norm(whitening.matrix, axis=0)  # 1 / √λ, so the largest variance comes first
    assert (np.diff(lengths) >= 0).all()


def test_removed_components_are_gone_and_the_others_untouched(model):
    lines = random_texts(60)
    removal = fit_postprocess(model, lines, "component_removal", components=2, progress=False)
    before, after = model.embed(lines).astype(np.float64), model.embed(lines, postprocess=removal).astype(np.float64)
    variances, directions = np.linalg.eigh(np.cov(before.T))
    np.testing.assert_allclose(after @ directions[:, -2:], 0.0, atol=1e-4)
    kept = directions[:, :-2]
    np.testing.assert_allclose(after @ kept, (before - before.mean(0)) @ kept, atol=1e-4)
    assert fit_postprocess(model, lines, "component_removal", progress=False).matrix.shape == (SIZE, SIZE)


@pytest.mark.parametrize("size, removed", [(16, 1), (149, 1), (256, 3), (768, 8)])
def test_a_hundredth_of_the_components_is_removed_unless_told_otherwise(size, removed):
    matrix = postprocess_matrix("component_removal", 9_999, np.diag(np.arange(1.0, size + 1)))
    np.testing.assert_allclose(matrix, np.diag([1.0] * (size - removed) + [0.0] * removed), atol=1e-12)


def test_vectors_are_normalized_after_the_map(model, whitening):
    plain = model.embed(random_texts(5), postprocess=whitening)
    unit = model.embed(random_texts(5), postprocess=whitening, normalize=True)
    np.testing.assert_allclose(unit, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6)


def test_a_stream_of_texts_is_fitted_in_parts(model, whitening, monkeypatch):
    monkeypatch.setattr("bert_jax.analysis.layers.WINDOW", 16)
    streamed = fit_postprocess(model, iter(random_texts(60)), progress=False)
    np.testing.assert_allclose(streamed.mean, whitening.mean, atol=1e-5)
    gram = [each.matrix @ each.matrix.T for each in (streamed, whitening)]  # the inverse covariance: no signs
    np.testing.assert_allclose(gram[0], gram[1], rtol=1e-2, atol=1e-3 * np.abs(gram[1]).max())


@pytest.fixture(scope="module")
def saved(model, whitening, tmp_path_factory) -> pathlib.Path:
    model = loaded(stored_model())
    directory = tmp_path_factory.mktemp("saved") / "model"
    model.postprocesses["white"] = whitening
    model.postprocesses["all-but-2"] = fit_postprocess(
        model, random_texts(60), "component_removal", "second_to_last", "cls", components=2, progress=False
    )
    model.save(directory)
    return directory


def test_it_is_saved_with_the_model_and_loaded_by_name(model, whitening, saved, tmp_path):
    again = bert_jax.load(saved)
    assert sorted(again.postprocesses) == ["all-but-2", "white"]
    for name in ("kind", "layers", "pooling"):
        assert getattr(again.postprocesses["white"], name) == getattr(whitening, name)
    np.testing.assert_array_equal(again.postprocesses["white"].mean, whitening.mean)
    np.testing.assert_array_equal(again.postprocesses["white"].matrix, whitening.matrix)
    np.testing.assert_allclose(
        again.embed(random_texts(4), postprocess="white"),
        model.embed(random_texts(4), postprocess=whitening),
        atol=1e-3,
    )
    assert again.embed(random_texts(4), "second_to_last", "cls", postprocess="all-but-2").shape == (4, SIZE)
    again.save(tmp_path / "copy")
    assert sorted(bert_jax.load(tmp_path / "copy").postprocesses) == ["all-but-2", "white"]


def test_conversion_keeps_it_or_says_that_it_is_left_out(saved, tmp_path, capsys):
    bert_jax.convert(saved, tmp_path / "ours", to="bert_jax")
    assert "left out" not in capsys.readouterr().out
    assert sorted(bert_jax.load(tmp_path / "ours").postprocesses) == ["all-but-2", "white"]
    bert_jax.convert(saved, tmp_path / "theirs", to="huggingface")
    assert "left out: postprocesses (all-but-2, white); --to=bert_jax keeps them" in capsys.readouterr().out


@pytest.mark.parametrize(
    "count, options, message",
    [
        (SIZE, {}, f"needs more than {SIZE} texts, not {SIZE}"),
        (4, {"components": 4}, "needs more than 4 texts, not 4"),
        (60, {"components": 0}, f"components=0 must be between 1 and {SIZE}"),
        (60, {"components": SIZE, "kind": "component_removal"}, f"must be between 1 and {SIZE - 1}"),
        (60, {"kind": "pca"}, "kind='pca' must be one of whitening, component_removal"),
        (60, {"pooling": "median"}, "pooling='median' must be"),
    ],
)
def test_bad_input_is_one_clear_error(model, count, options, message):
    with pytest.raises(UserError, match=message):
        fit_postprocess(model, random_texts(count), progress=False, **options)


def test_texts_that_vary_too_little_are_one_clear_error(model):
    lines = ["a cat"] * 20 + ["the dog"] * 20
    with pytest.raises(UserError, match="vary in 1 directions, not in 5; give texts that differ more"):
        fit_postprocess(model, lines, components=5, progress=False)
    assert fit_postprocess(model, lines, progress=False).matrix.shape == (SIZE, 1)
    with pytest.raises(UserError, match="vary in 0 directions, not in 1"):
        postprocess_matrix("whitening", 99, np.zeros((SIZE, SIZE)))


def test_a_map_of_other_vectors_is_refused(model, whitening):
    with pytest.raises(UserError, match="fitted on layers='last', pooling='mean', but embed has .* pooling='cls'"):
        model.embed("a cat", pooling="cls", postprocess=whitening)
    with pytest.raises(UserError, match="no postprocess 'white'; it has none"):
        model.embed("a cat", postprocess="white")


def test_a_name_that_is_no_file_name_is_refused_and_nothing_is_left(whitening, tmp_path):
    model = loaded(stored_model())
    model.postprocesses["../evil"] = whitening
    with pytest.raises(UserError, match="cannot be named '../evil'"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["cut", "kind", "pooling", "shape", "dtype", "json"])
def test_a_damaged_file_is_one_clear_error(whitening, tmp_path, damage):
    from bert_jax.formats.sentence_transformers import read_postprocesses, write_postprocesses

    write_postprocesses(tmp_path, {"white": whitening})
    file = tmp_path / "postprocess" / "white.safetensors"
    arrays = {"mean": whitening.mean, "matrix": whitening.matrix}
    about = {"kind": "whitening", "layers": "last", "pooling": "mean"}
    if damage in about:
        about[damage] = ["x"] if damage == "kind" else "x"
    arrays["mean"] = arrays["mean"][:3] if damage == "shape" else arrays["mean"]
    arrays = {name: each.astype(np.float16) if damage == "dtype" else each for name, each in arrays.items()}
    words = "{" if damage == "json" else json.dumps(about)
    file.write_bytes(safetensors.numpy.save(arrays, metadata={"postprocess": words}))
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match="white.safetensors is not a (postprocess|whole safetensors)"):
        read_postprocesses(tmp_path)


def test_a_postprocess_is_compared_by_identity_and_cannot_be_changed(whitening):
    with pytest.raises(dataclasses.FrozenInstanceError):
        whitening.kind = "component_removal"
