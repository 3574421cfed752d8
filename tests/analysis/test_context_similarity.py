"""Contextuality of words against loops over encode, known answers, and one word in several senses."""

import itertools

import numpy as np
import pytest
from command_lines import refusal
from pretrained_model import CONFIG, TOKENIZER, write_workdir

from bert_jax.analysis import similarity, word_senses
from bert_jax.analysis.words import WordFinder, explained_variance, intra_sentence_similarity, mean_cosine
from bert_jax.errors import UserError

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
    result = similarity(model, TEXTS, words=50, contexts=5, progress=False)
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
    result = similarity(model, lines, words=9, contexts=4, progress=False)
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
    results = [similarity(model, lines, words=9, contexts=2, seed=seed, progress=False) for seed in range(24)]
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


def test_bad_input_is_one_clear_error(model):
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
            lambda: similarity(model, SENTENCES, contexts=9, progress=False),
            "no word occurs in contexts=9 of the 4 texts",
        ),
        (lambda: similarity(model, SENTENCES, contexts=1, progress=False), "contexts=1 must be at least 2"),
        (lambda: similarity(model, [], progress=False), "there are no texts"),
    ):
        with pytest.raises(UserError, match=message):
            call()


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
        (["--word=cat", f"--senses={tmp_path}/none.tsv"], "none.tsv cannot be read"),
        (["--word=cat", f"--senses={tmp_path}/bad.tsv"], "bad.tsv, line 1: expected the name of a sense, a tab"),
    ):
        assert message in refusal(capsys, "analyze", *words, f"--output={tmp_path}/out", *more)
