"""Stores of more than 2^32 tokens and 2^33 bytes, in sparse files: what is cut, read and mixed from behind these."""

import dataclasses

import numpy as np
import pytest
from hand_made_store import hand_made, unverified
from synthetic_store import VOCAB_SIZE, synthetic_tokenizer

from bert_jax.config import Config, DataConfig, PhaseConfig
from bert_jax.data import mixtures
from bert_jax.data.examples import Examples
from bert_jax.data.mixtures import GRAINS, Mixture

SENTENCE, DOCUMENT, FIRST = 1 << 14, 1 << 18, 100_000
"""Tokens of a sentence, about the longest that `prepare` keeps; of a document; and of the first document."""
SIZE = 5 << 30
CONFIG = Config(
    phases=(PhaseConfig(steps=20, sequence_length=128, batch_size=16),), data=DataConfig(held_out=0.0), seed=3
)


def written(positions):
    """The ids of the documents that are not zeros: a function of the position in the whole store."""
    return 5 + positions * 7919 % (VOCAB_SIZE - 5)


def document_with(position):
    """Return [begin, end) of the document of a token."""
    begin = (position - FIRST) // DOCUMENT * DOCUMENT + FIRST
    return begin, min(begin + DOCUMENT, SIZE)


MARKED = [document_with(position) for position in (1 << 31, 1 << 32, SIZE - 1)]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """The store on disk: one shard beyond 2^32 tokens, and a small one behind it."""
    documents = np.append(0, np.arange(FIRST, SIZE, DOCUMENT))
    lengths = np.diff(np.append(documents, SIZE))
    per_document = -(-lengths // SENTENCE)
    sentences = np.concatenate(
        [np.arange(begin, begin + length, SENTENCE) for begin, length in zip(documents, lengths, strict=True)]
    )
    firsts = np.cumsum(np.append(0, per_document))[:-1]
    path = tmp_path_factory.mktemp("large") / "store"
    hand_made(path, [(SIZE, {}, sentences, firsts), (7, dict.fromkeys(range(7), 9), [0, 3], [0, 1])], hashed=False)
    with (path / "shard-00000.tokens").open("r+b") as file:
        for begin, end in MARKED:
            file.seek(2 * begin)
            file.write(written(np.arange(begin, end)).astype("<u2").tobytes())
    store = unverified(path)
    store.tokenizer = synthetic_tokenizer
    return store


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "store"
    sentences = np.arange(0, 50_000, 25)
    ids = dict(enumerate(written(np.arange(50_000))))
    store = unverified(hand_made(path, [(50_000, ids, sentences, np.arange(0, 2_000, 20))], hashed=False))
    store.tokenizer = synthetic_tokenizer
    return store


def test_documents_beyond_32_bits_are_cut_without_a_gap(large):
    examples = Examples(large, CONFIG)
    starts = examples.documents.token_starts
    for begin, end in MARKED:
        document = int(np.searchsorted(starts, begin))
        chunks = examples.source.of_document(4, document)
        found = examples.source.find(4, chunks)
        assert found.begin[0] == begin and found.end[-1] == end
        np.testing.assert_array_equal(found.begin[1:], found.end[:-1])
        np.testing.assert_array_equal(examples.source.shuffled(4, examples.source.indices_of(4, chunks)), chunks)
    assert end == SIZE > 1 << 32


def test_rows_beyond_32_bits_have_the_tokens_of_their_positions(large):
    examples = Examples(large, CONFIG)
    for begin, _ in MARKED:
        document = int(np.searchsorted(examples.documents.token_starts, begin))
        chunks = examples.source.of_document(0, document)[-40:]
        indices = examples.source.indices_of(0, chunks)
        epochs = np.zeros_like(indices)
        rows, batch = examples.rows(epochs, indices), examples.examples_at(epochs, indices)
        ids = batch["input_ids"].copy()
        for row, (places, tokens, weights) in enumerate(
            zip(batch["masked_positions"], batch["masked_ids"], batch["masked_weights"], strict=True)
        ):
            ids[row, places[weights > 0]] = tokens[weights > 0]
        places = rows.token_index[rows.token_index >= 0]
        marked = np.any([(begin <= places) & (places < end) for begin, end in MARKED], axis=0)
        assert marked.sum() > 1000
        np.testing.assert_array_equal(ids[rows.token_index >= 0], np.where(marked, written(places), 0))


def test_a_mixture_far_behind_32_bits_takes_the_rows_of_its_stores(large, small):
    sources = {"large": Examples(large, CONFIG), "small": Examples(small, CONFIG)}
    positions = np.arange((1 << 33) + 5, (1 << 33) + 45)
    batch = Mixture(sources, np.array([0.75, 0.25])).batch(positions)
    for row, position in enumerate(positions.tolist()):
        before, behind = ((place * 3 + 2) // 4 for place in (position, position + 1))  # rows of `large`, of 3/4 of all
        name, own = ("large", before) if behind > before else ("small", position - before)
        alone = sources[name].batch(np.array([own]))
        for key, values in alone.items():
            np.testing.assert_array_equal(batch[key][row], values[0])


@pytest.mark.parametrize(
    "amounts, budgets", [(("", ""), None), (("=6B", "=50K"), (6e9, 5e4))], ids=["sizes", "budgets"]
)
def test_shares_count_tokens_beyond_32_bits(large, small, monkeypatch, caplog, amounts, budgets):
    monkeypatch.setattr(mixtures, "open_store", lambda path, cache: {"large": large, "small": small}[path])
    data = DataConfig(mixture=f"large{amounts[0]},small{amounts[1]}", held_out=0.0)
    (mixture,) = mixtures.open_corpus(dataclasses.replace(CONFIG, data=data)).training
    tokens = np.array([large.num_tokens, small.num_tokens])
    rows = [examples.num_examples(0) for examples in mixture.sources.values()]
    read = np.array(list(mixture.shares.values())) * tokens / rows
    wanted = np.array(budgets or tokens, float)
    assert read[1] / read.sum() == pytest.approx(wanted[1] / wanted.sum(), abs=2 / GRAINS)
    told = [record.getMessage() for record in caplog.records if "fewer than its budget" in record.getMessage()]
    assert told == [] if budgets is None else f"{tokens[0]:,} tokens, fewer than its budget of 6,000,000,000" in told[0]
