"""Isotropy: known answers in closed form, transcriptions in float64, streams, and the layers of a model."""

import numpy as np
import pytest
from pretrained_model import CONFIG, random_texts

from bert_jax.analysis import isotropy, layers
from bert_jax.analysis.layers import CosineSums, Moments, partition_score
from bert_jax.errors import UserError


def test_moments_of_parts_are_those_of_the_whole_even_far_from_zero():
    random = np.random.default_rng(0)
    vectors = random.standard_normal((50, 2, 6)) @ random.standard_normal((6, 6)) + 1e6
    moments = Moments(2, 6)
    for part in np.split(vectors, [1, 20, 21]):
        moments.add(part)
    for layer in range(2):
        states = vectors[:, layer]
        np.testing.assert_allclose(moments.mean[layer], states.mean(0), rtol=1e-14)
        np.testing.assert_allclose(moments.covariance()[layer], np.cov(states.T), rtol=1e-7)
        np.testing.assert_allclose(moments.second_moment()[layer], states.T @ states / 50, rtol=1e-12)


def test_cosines_of_random_directions_are_small_and_those_of_a_shifted_cloud_near_one():
    random = np.random.default_rng(1)
    size, cloud = 64, random.standard_normal((600, 64))
    sums = CosineSums(3)
    sums.add(np.stack([cloud, cloud + 10.0, np.ones_like(cloud)], axis=1))
    signed, absolute = sums.signed / sums.pairs, sums.absolute / sums.pairs
    # 600 · 599 / 2 pairs of standard deviation 1/8, each vector in many: the mean is within a few 1e-4 of 0.
    assert abs(signed[0]) < 2e-3
    # The cosine c of two random directions has E|c| = Γ(d/2) / (√π Γ((d+1)/2)) = √(2/πd) · (1 + 1/4d + …).
    np.testing.assert_allclose(absolute[0], np.sqrt(2 / (np.pi * size)) * (1 + 1 / (4 * size)), rtol=5e-3)
    # Two vectors μ + x and μ + y with |μ|² = 100 d: the cosine is about 100 / 101.
    np.testing.assert_allclose([signed[1], absolute[1]], 100 / 101, rtol=1e-3)
    np.testing.assert_allclose(signed[2], 1.0, rtol=1e-12)


def test_cosines_equal_a_loop_over_all_pairs():
    vectors = np.random.default_rng(2).standard_normal((7, 2, 3)).astype(np.float32)
    vectors[3] = 0.0
    sums = CosineSums(2)
    sums.add(vectors)
    for layer in range(2):
        states = vectors[:, layer].astype(np.float64)
        cosines = [
            0.0 if 3 in (i, j) else a @ b / np.sqrt((a @ a) * (b @ b))
            for i, a in enumerate(states)
            for j, b in enumerate(states)
            if i != j
        ]
        np.testing.assert_allclose(sums.signed[layer] / sums.pairs, np.mean(cosines), atol=1e-14)
        np.testing.assert_allclose(sums.absolute[layer] / sums.pairs, np.mean(np.abs(cosines)), atol=1e-14)


def second_moments(vectors: np.ndarray) -> np.ndarray:
    return np.einsum("nrh,nri->rhi", vectors, vectors) / len(vectors)


def test_the_partition_function_has_its_closed_forms():
    cross = (
        np.concatenate([np.eye(4), -np.eye(4)])[:, None] * 1.5
    )  # along every axis and back: all directions are equal
    np.testing.assert_allclose(partition_score(cross, second_moments(cross)), 1.0, rtol=1e-12)
    single = np.tile(np.array([0.0, 3.0, 0.0]), (9, 1))[:, None]  # F is n · exp(3) along it, n · exp(-3) against it
    np.testing.assert_allclose(partition_score(single, second_moments(single)), np.exp(-6.0), rtol=1e-12)
    long = 1_000 * single  # exp(3000) is beyond float64; the ratio is 0, not NaN
    np.testing.assert_array_equal(partition_score(long, second_moments(long)), 0.0)


def test_the_partition_function_equals_a_direct_transcription():
    vectors = np.random.default_rng(3).standard_normal((30, 2, 5)) + 0.4
    found = partition_score(vectors, second_moments(vectors))
    for layer in range(2):
        states = vectors[:, layer]
        directions = np.linalg.svd(states)[2]  # the right singular vectors are the eigenvectors of Σ x xᵀ
        sums = [np.sum(np.exp(states @ (sign * c))) for c in directions for sign in (1, -1)]
        np.testing.assert_allclose(found[layer], min(sums) / max(sums), rtol=1e-9)


def test_the_layers_of_a_model_are_measured(model):
    lines = random_texts(30)
    result = isotropy(model, lines, progress=False)
    encoding = model.encode(lines, layers="all")
    mask = encoding.attention_mask[:, :, None]
    assert result.texts == 30 and result.vectors == "mean" and result.model == model.path
    assert result.spectrum.shape == (CONFIG.num_layers + 1, CONFIG.hidden_size)
    for layer, states in enumerate(encoding.hidden_states):
        vectors = ((states * mask).sum(1) / mask.sum(1)).astype(np.float64)
        units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines = (units @ units.T)[~np.eye(30, dtype=bool)]
        # The states of other batches differ by rounding in float32.
        np.testing.assert_allclose(result.cosine[layer], cosines.mean(), atol=1e-5)
        np.testing.assert_allclose(result.absolute_cosine[layer], np.abs(cosines).mean(), atol=1e-5)
        wanted = np.linalg.eigvalsh(np.cov(vectors.T))[::-1]
        np.testing.assert_allclose(result.spectrum[layer], wanted, atol=1e-5 * wanted[0])
        np.testing.assert_allclose(
            result.effective_dimensions[layer], np.trace(np.cov(vectors.T)) ** 2 / np.sum(wanted**2), rtol=1e-4
        )
        assert 0 < result.partition[layer] <= 1


def test_vectors_that_are_all_the_same_have_no_dimensions(model):
    result = isotropy(model, random_texts(12), vectors="cls", progress=False)
    np.testing.assert_allclose(result.cosine[0], 1.0, rtol=1e-6)  # the embedding of [CLS]
    assert not result.spectrum[0].any() and np.isnan(result.effective_dimensions[0])
    assert (result.effective_dimensions[1:] >= 1).all() and (result.effective_dimensions[1:] <= 11).all()


def test_a_stream_gives_what_a_list_gives_up_to_the_pairs_between_windows(model, monkeypatch):
    lines = random_texts(24)
    whole = isotropy(model, lines, progress=False)
    monkeypatch.setattr(layers, "WINDOW", 8)
    streamed = isotropy(model, iter(lines), progress=False)
    assert streamed.texts == 24
    np.testing.assert_allclose(streamed.spectrum, whole.spectrum, atol=1e-4)
    parts = [isotropy(model, lines[start : start + 8], progress=False) for start in (0, 8, 16)]
    np.testing.assert_allclose(streamed.cosine, np.mean([part.cosine for part in parts], axis=0), atol=1e-5)


@pytest.mark.parametrize(
    "lines, options, message",
    [
        (["a cat"], {}, "there is only one; give two or more"),
        ([], {}, "there are no texts to analyze"),
        ("a cat", {}, "needs several texts"),
        (["a cat", "a dog"], {"vectors": "max"}, "vectors='max' must be one of"),
    ],
)
def test_bad_input_is_one_clear_error(model, lines, options, message):
    with pytest.raises(UserError, match=message):
        isotropy(model, lines, progress=False, **options)
