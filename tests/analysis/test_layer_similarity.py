"""CKA: known answers, a direct transcription in float64, unbiased minibatches, and the layers of a model."""

import itertools

import numpy as np
import pytest
from loaded_model import loaded
from pretrained_model import CONFIG, TOKENIZER, WORDS, random_texts, stored_model

from bert_jax.analysis import cka, layers, texts
from bert_jax.analysis.layers import HsicSums, hsic
from bert_jax.errors import UserError
from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.tokenization.wordpiece import WordPiece

WORD = WORDS[5:16]


def u_centred(states: np.ndarray) -> np.ndarray:
    """The inner products of [n, H], centred without bias entry by entry (Székely, Rizzo 2014, definition 2)."""
    n, kernel = len(states), states @ states.T
    np.fill_diagonal(kernel, 0.0)
    result = np.zeros((n, n))
    for i, j in itertools.permutations(range(n), 2):
        rows = kernel[i].sum() / (n - 2) + kernel[:, j].sum() / (n - 2)
        result[i, j] = kernel[i, j] - rows + kernel.sum() / ((n - 1) * (n - 2))
    return result


def transcribed_hsic(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.sum(u_centred(x) * u_centred(y)) / (len(x) * (len(x) - 3)))


def transcribed_cka(minibatches: list[tuple[np.ndarray, np.ndarray]]) -> float:
    between, first, second = (
        np.mean([transcribed_hsic(*(pair[side] for side in sides)) for pair in minibatches])
        for sides in ((0, 1), (0, 0), (1, 1))
    )
    return between / np.sqrt(first * second)


def similarity(*minibatches: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """CKA of representations [n, H], each as that of the only layer."""
    sums = HsicSums()
    for rows, columns in minibatches:
        sums.add(rows[:, None], columns[:, None])
    return sums.similarity()


def zero_diagonal(states: np.ndarray) -> np.ndarray:
    kernel = states @ states.T
    return (kernel - np.diag(np.diag(kernel)))[None]


def test_equal_rotated_scaled_and_shifted_representations_have_similarity_one():
    random = np.random.default_rng(0)
    states = random.standard_normal((40, 12))
    rotation = np.linalg.qr(random.standard_normal((12, 12)))[0]
    for other in (states, states @ rotation, -3.5 * states, states + 20.0, np.pad(states, ((0, 0), (0, 5)))):
        np.testing.assert_allclose(similarity((states, other)), [[1.0]], rtol=1e-12)
    stretched = states * np.linspace(0.1, 3, 12)  # linear CKA does not forgive every linear map
    assert similarity((states, stretched))[0, 0] < 0.95


def test_independent_representations_have_similarity_zero_where_the_biased_estimate_has_not():
    random = np.random.default_rng(1)
    found, biased = [], []
    for _ in range(40):
        x, y = random.standard_normal((2, 32, 64))
        found.append(similarity((x, y))[0, 0])
        x, y = x - x.mean(0), y - y.mean(0)
        biased.append(np.sum((x.T @ y) ** 2) / np.linalg.norm(x.T @ x) / np.linalg.norm(y.T @ y))
    assert abs(np.mean(found)) < 4 * np.std(found) / np.sqrt(len(found))  # four standard errors
    assert min(biased) > 0.5  # with fewer texts than dimensions it calls everything similar


def test_cka_equals_a_direct_transcription_in_float64():
    random = np.random.default_rng(2)
    shared = random.standard_normal((3, 9, 4))
    minibatches = [(part @ random.standard_normal((4, 6)), part**2 + 0.3) for part in shared]
    np.testing.assert_allclose(similarity(*minibatches), [[transcribed_cka(minibatches)]], rtol=1e-10)


def test_the_mean_over_all_minibatches_is_the_estimate_of_all_texts():
    """It is a U-statistic: its mean over all subsets of 4 of 8 texts is exactly its value for the 8."""
    x, y = np.random.default_rng(3).standard_normal((2, 8, 5))
    parts = [
        hsic(zero_diagonal(x[list(some)]), zero_diagonal(y[list(some)])) for some in itertools.combinations(range(8), 4)
    ]
    np.testing.assert_allclose(np.mean(parts), hsic(zero_diagonal(x), zero_diagonal(y))[0, 0], rtol=1e-10)


def test_a_constant_representation_has_no_similarity():
    states = np.random.default_rng(4).standard_normal((10, 3))
    noise = 7.0 + 1e-6 * states  # as rounding in float32 leaves it
    assert np.isnan(similarity((states, noise))).all() and np.isnan(similarity((noise, noise))).all()


@pytest.mark.parametrize("vectors", ["mean", "cls"])
def test_the_layers_of_a_model_are_compared_by_their_vectors(model, vectors):
    lines, size = random_texts(25), 12
    result = cka(model, lines, vectors=vectors, minibatch=size, progress=False)
    encoding = model.encode(lines, layers="all")
    mask = encoding.attention_mask[:, :, None]
    states = [
        layer[:, 0] if vectors == "cls" else (layer * mask).sum(1) / mask.sum(1) for layer in encoding.hidden_states
    ]
    assert result.texts == 24 and result.minibatches == 2 and result.vectors == vectors
    assert result.matrix.shape == (CONFIG.num_layers + 1, CONFIG.num_layers + 1)
    for row, column in np.ndindex(result.matrix.shape):
        if vectors == "cls" and 0 in (row, column):
            assert np.isnan(result.matrix[row, column])  # the embedding of [CLS] is the same in every text
            continue
        pairs = [(states[row][i : i + size], states[column][i : i + size]) for i in (0, size)]
        wanted = transcribed_cka([(x.astype(np.float64), y.astype(np.float64)) for x, y in pairs])
        # Inputs are float32: the states of two batchings differ by up to 1e-6.
        np.testing.assert_allclose(result.matrix[row, column], wanted, atol=2e-4)


def test_a_token_is_the_same_in_all_layers_and_models_and_never_a_mark(model):
    line = ["the cat sat on the mat", "a", "big old dogs", "birds flew in"] * 6
    result = cka(model, line, model, vectors="token", minibatch=12, seed=5, progress=False)
    np.testing.assert_allclose(np.diag(result.matrix), 1.0, rtol=1e-9)
    vectors = layers.layer_vectors(model, line, "token", seed=5)
    states = model.encode(line, layers="all")
    places = set()
    for number, row in enumerate(vectors):
        real = int(states.attention_mask[number].sum())
        near = [
            place for place in range(real) if np.allclose(row[-1], states.hidden_states[-1][number, place], atol=1e-4)
        ]
        assert len(near) == 1 and 0 < near[0] < real - 1
        for layer, found in enumerate(row):
            np.testing.assert_allclose(found, states.hidden_states[layer][number, near[0]], atol=1e-4)
        places.add(near[0])
    assert len(places) > 3


def test_models_of_different_depth_are_compared_layer_by_layer(model):
    import dataclasses

    small = loaded(stored_model(dataclasses.replace(CONFIG, num_layers=2)))
    result = cka(model, random_texts(16), small, minibatch=8, progress=False)
    assert result.matrix.shape == (CONFIG.num_layers + 1, 3) and np.isfinite(result.matrix).all()
    assert result.models == (model.path, small.path)


def test_a_stream_is_read_window_by_window(model, monkeypatch):
    monkeypatch.setattr(layers, "WINDOW", 8)
    lines, ahead, seen = random_texts(40), [], []

    def stream():
        for line in lines:
            seen.append(line)
            yield line

    measured = texts.layer_vectors

    def watched(model, window, *rest, **options):
        ahead.append(len(seen))
        return measured(model, window, *rest, **options)

    monkeypatch.setattr(texts, "layer_vectors", watched)
    streamed = cka(model, stream(), minibatch=8, progress=False)
    assert ahead == [8, 16, 24, 32, 40]
    monkeypatch.setattr(layers, "WINDOW", 64)
    # The windows sort texts into other batches, whose states differ by rounding.
    np.testing.assert_allclose(streamed.matrix, cka(model, lines, minibatch=8, progress=False).matrix, atol=2e-4)


def test_few_texts_are_one_minibatch(model):
    assert cka(model, random_texts(5), minibatch=256, progress=False).texts == 5


@pytest.mark.parametrize(
    "lines, options, message",
    [
        (["a cat", "a dog", "a bird"], {}, "CKA needs at least 4 texts, not 3"),
        ([], {}, "there are no texts to analyze"),
        ("a cat", {}, "needs several texts, not only 'a cat'"),
        (["a cat"] * 8, {"minibatch": 3}, "minibatch=3 must be at least 4"),
        (["a cat"] * 8, {"vectors": "median"}, "vectors='median' must be one of mean, cls, token"),
        (["a cat"] * 8, {"max_length": 99}, "max_length=99 must be between 5 and the 40 positions"),
    ],
)
def test_bad_input_is_one_clear_error(model, lines, options, message):
    with pytest.raises(UserError, match=message):
        cka(model, lines, progress=False, **options)


def test_tokens_of_different_tokenizers_are_not_compared(model):
    other = loaded(stored_model(tokenizer=Tokenizer(WordPiece([*WORDS[:-1], "new"], lowercase=True))))
    assert TOKENIZER.fingerprint != other.tokenizer.fingerprint
    with pytest.raises(UserError, match="have different tokenizers; use vectors='mean' or 'cls'"):
        cka(model, random_texts(8), other, vectors="token", progress=False)
    assert np.isfinite(cka(model, random_texts(8), other, progress=False).matrix).all()
