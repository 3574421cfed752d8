"""Similarity of layers, and of a word in its contexts."""

import itertools

import numpy as np
import pytest
from command_lines import refusal
from pretrained_model import CONFIG, TOKENIZER, WORDS, loaded, random_texts, stored_model, write_workdir

from bert_jax.analysis import cka, layers, texts, word_senses
from bert_jax.analysis import similarity as similarity_of_contexts
from bert_jax.analysis.layers import HsicSums, hsic
from bert_jax.analysis.words import (
    WordFinder,
    explained_variance,
    intra_sentence_similarity,
    mean_cosine,
    read_senses,
)
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


def test_cka_equals_a_direct_transcription_in_float64():
    random = np.random.default_rng(2)
    shared = random.standard_normal((3, 9, 4))
    minibatches = [(part @ random.standard_normal((4, 6)), part**2 + 0.3) for part in shared]
    np.testing.assert_allclose(similarity(*minibatches), [[transcribed_cka(minibatches)]], rtol=1e-10)


def test_the_mean_over_all_minibatches_is_the_estimate_of_all_texts():
    """It is a U-statistic: its mean over all subsets of 4 of 8 texts is exactly its value for the 8."""
    x, y = np.random.default_rng(3).standard_normal((2, 8, 5))
    parts = [hsic(zero_diagonal(x[list(s)]), zero_diagonal(y[list(s)])) for s in itertools.combinations(range(8), 4)]
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
        near = [p for p in range(real) if np.allclose(row[-1], states.hidden_states[-1][number, p], atol=1e-4)]
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


LAYERS = CONFIG.num_layers + 1
TEXTS = [
    "the cats sat on the mat",
    "a big dog ran",
    "old dogs and cats flew on a tree",
    "birds sat in the old tree",
] * 5


def cosine(x: np.ndarray, y: np.ndarray) -> float:
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def words_of(model, texts) -> list[list[tuple[str, np.ndarray]]]:
    """The words of each text with their vectors [N + 1, H], from the strings of the pieces."""
    encoding, found = model.encode(texts, layers="all"), []
    states = np.stack(encoding.hidden_states, axis=2).astype(np.float64)
    for row, pieces in enumerate(encoding.tokens):
        words: list[tuple[str, list[int]]] = []
        for place, piece in enumerate(pieces):
            if piece.startswith("##") and words and words[-1][1][-1] == place - 1:
                words[-1] = (words[-1][0] + piece[2:], [*words[-1][1], place])
            elif piece not in ("[CLS]", "[SEP]", "[UNK]"):
                words.append((piece, [place]))
        found.append([(word, states[row, places].mean(0)) for word, places in words])
    return found


def test_measures_of_words_equal_loops_over_the_pieces(model):
    result = similarity_of_contexts(model, TEXTS, words=50, contexts=5, progress=False)
    rows = words_of(model, TEXTS)
    assert result.texts == 20 and result.contexts == 5
    assert {"cats", "dogs", "the", "old", "tree"} <= set(result.words)  # cat ##s is one word
    assert "[UNK]" not in result.words and "and" not in result.words
    for number, word in enumerate(result.words):
        vectors = [next(vector for name, vector in row if name == word) for row in rows if word in dict(row)]
        # Every text stands there five times, so words of one text have all their vectors equal.
        if len({tuple(name for name, _ in row) for row in rows if word in dict(row)}) == 1:
            np.testing.assert_allclose(result.self_similarity[number], 1.0, atol=1e-5)
            np.testing.assert_allclose(result.explained_variance[number], 1.0, atol=1e-5)
        assert len(vectors) >= 5
    intra = [
        [np.mean([cosine(vector[layer], np.mean([v[layer] for _, v in row], 0)) for _, vector in row]) for row in rows]
        for layer in range(LAYERS)
    ]
    np.testing.assert_allclose(result.intra_sentence, np.mean(intra, axis=1), atol=1e-5)


def test_a_word_in_different_contexts_has_the_self_similarity_of_a_loop(model):
    lines = ["the cat sat", "a cat ran on the mat", "old cat", "big big cat in a tree"]
    result = similarity_of_contexts(model, lines, words=9, contexts=4, progress=False)
    vectors = [dict(row)["cat"] for row in words_of(model, lines)]
    assert result.words == ("cat",)
    for layer in range(LAYERS):
        pairs = [cosine(x[layer], y[layer]) for x, y in itertools.combinations(vectors, 2)]
        np.testing.assert_allclose(result.self_similarity[0, layer], np.mean(pairs), atol=1e-5)
        matrix = np.stack([vector[layer] for vector in vectors])
        wanted = np.linalg.eigvalsh(matrix @ matrix.T)[-1] / np.trace(matrix @ matrix.T)
        np.testing.assert_allclose(result.explained_variance[0, layer], wanted, atol=1e-5)


def test_equal_vectors_have_similarity_one_and_those_at_right_angles_none():
    random = np.random.default_rng(0)
    same = np.tile(random.standard_normal((1, 2, 8)), (5, 1, 1))
    for measure in (mean_cosine, explained_variance, intra_sentence_similarity):
        np.testing.assert_allclose(measure(same), 1.0, rtol=1e-12)
    axes = np.eye(6)[:, None]  # six vectors at right angles: nothing in common
    np.testing.assert_allclose(mean_cosine(axes), 0.0, atol=1e-15)
    np.testing.assert_allclose(explained_variance(axes), 1 / 6, rtol=1e-12)
    np.testing.assert_allclose(intra_sentence_similarity(axes), 1 / np.sqrt(6), rtol=1e-12)


def test_the_baseline_is_that_of_words_drawn_at_random(model):
    """Its mean over seeds is the mean cosine of two texts' words, within four standard errors."""
    lines = TEXTS[:4]
    results = [similarity_of_contexts(model, lines, words=9, contexts=2, seed=s, progress=False) for s in range(24)]
    found = np.stack([result.cosine_baseline for result in results])
    pairs = [
        [np.mean([cosine(x[layer], y[layer]) for _, x in first for _, y in second]) for layer in range(LAYERS)]
        for first, second in itertools.combinations(words_of(model, lines), 2)
    ]
    assert (np.abs(found.mean(0) - np.mean(pairs, axis=0)) < 4 * found.std(0) / np.sqrt(len(found))).all()
    for result in results:  # of two vectors at a time, of which one direction explains half or more
        assert ((result.explained_baseline >= 0.5) & (result.explained_baseline <= 1)).all()


def test_words_end_where_the_next_begins_and_marks_are_none():
    finder = WordFinder(TOKENIZER.continues_word(), np.array(TOKENIZER.special_ids))
    ids = np.array([TOKENIZER.tokens.index(t) for t in "[CLS] cat ##s the ##s ##t [UNK] ##s dog [SEP] [PAD]".split()])
    assert finder.find(ids) == [(1, 3), (3, 6), (7, 8), (8, 9)]
    assert finder.find(ids[:1]) == []


SENSES = ["animal", "animal", "thing", "thing"]
SENTENCES = ["the cat sat on a mat", "a cat ran in the house", "old tree cat", "the big cat in the tree sat"]


def test_within_and_between_senses_are_means_of_the_cosines(model):
    result = word_senses(model, "cat", SENTENCES, SENSES)
    rows = words_of(model, SENTENCES)
    vectors = [dict(row)["cat"] for row in rows]
    for layer in range(LAYERS):
        table = np.array([[cosine(x[layer], y[layer]) for y in vectors] for x in vectors])
        np.testing.assert_allclose(result.cosines[layer], table, atol=1e-5)
        np.testing.assert_allclose(result.within[layer], (table[0, 1] + table[2, 3]) / 2, atol=1e-5)
        np.testing.assert_allclose(result.between[layer], table[:2, 2:].mean(), atol=1e-5)
        others = [(n, v[layer]) for n, row in enumerate(rows) for name, v in row if name != "cat"]
        pairs = [cosine(x, y) for (i, x), (j, y) in itertools.combinations(others, 2) if i != j]
        np.testing.assert_allclose(result.baseline[layer], np.mean(pairs), atol=1e-5)
    assert np.isnan(word_senses(model, "cat", SENTENCES).between).all()


def test_bad_input_is_one_clear_error_of_contexts(model):
    for call, message in (
        (lambda: word_senses(model, "dog", SENTENCES), r"the word 'dog' is not in text \d \("),
        (
            lambda: word_senses(model, "the cat", SENTENCES),
            "is not a single word for this tokenizer, which reads the, cat",
        ),
        (lambda: word_senses(model, "zebra", SENTENCES), "is not a single word for this tokenizer"),
        (lambda: word_senses(model, "cat", SENTENCES, SENSES[:2]), "4 texts with 2 senses"),
        (lambda: word_senses(model, "cat", SENTENCES[:1]), "give two texts or more"),
        (
            lambda: similarity_of_contexts(model, SENTENCES, contexts=9, progress=False),
            "no word occurs in contexts=9 of the 4 texts",
        ),
        (lambda: similarity_of_contexts(model, SENTENCES, contexts=1, progress=False), "contexts=1 must be at least 2"),
        (lambda: similarity_of_contexts(model, [], progress=False), "there are no texts"),
    ):
        with pytest.raises(UserError, match=message):
            call()


def test_lines_of_senses_end_in_line_feeds_alone(tmp_path):
    (tmp_path / "senses.tsv").write_bytes("\ufeffbank\ta\u2028b\x85c\x0bd\r\n\nshore\te".encode())
    assert read_senses(f"{tmp_path}/senses.tsv") == [("bank", "a\u2028b\x85c\x0bd"), ("shore", "e")]


@pytest.mark.slow
def test_the_command_measures_words_and_senses(tmp_path, capsys, analyze):
    write_workdir(tmp_path / "run", 1)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    (tmp_path / "senses.tsv").write_text("\n".join("\t".join(row) for row in zip(SENSES, SENTENCES)) + "\n")
    words = ["similarity", f"{tmp_path}/run", f"--input={tmp_path}/texts.txt"]
    of_senses = ["--word=cat", f"--senses={tmp_path}/senses.tsv"]
    printed, saved = analyze(*words, "--contexts=5", *of_senses, file="word.json")
    assert "result.json, similarity.png, similarity.svg" in printed and "word.json, word.png, word.svg" in printed
    assert saved["senses"] == SENSES and np.shape(saved["cosines"]) == (LAYERS, 4, 4)
    again, _ = analyze(*words, "--contexts=5")
    assert "result.json has this result already" in again and "word.json" not in again
    again, _ = analyze(*words, "--contexts=5", *of_senses)
    assert "word.json has this result already" in again
    (tmp_path / "bad.tsv").write_text("animal the cat\n")
    for more, message in (
        (["--word=cat"], "give both, --word=WORD --senses=FILE, or neither"),
        (["--word=cat", f"--senses={tmp_path}/none.tsv"], f"{tmp_path}/none.tsv cannot be read"),
        (["--word=cat", f"--senses={tmp_path}/bad.tsv"], "bad.tsv, line 1: expected the name of a sense, a tab"),
    ):
        assert message in refusal(capsys, "analyze", *words, f"--output={tmp_path}/out", *more)
