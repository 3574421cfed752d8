import collections
import json
import os
import re
import types

import numpy as np
import pytest
from hand_made_store import hand_made, unverified
from synthetic_store import SyntheticStore, random_documents, write_store

from bert_jax import cli
from bert_jax.config.pretraining import DescribeConfig
from bert_jax.data.store import open_store
from bert_jax.errors import UserError
from bert_jax.tools import description
from bert_jax.tools.description import SHARES, corpus_card, count_tokens, frequent_sentences, run_describe, text_hashes


@pytest.fixture(scope="module")
def synthetic():
    """A document that is there three times, and a sentence of three words that is in each of ten others."""
    documents = [*random_documents(30), *[[4, 9, 2]] * 3, *[[3, 6]] * 10]
    store = SyntheticStore(documents, seed=3)
    starts = store.document_tokens
    copies, others = range(len(documents) - 13, len(documents) - 10), range(len(documents) - 10, len(documents))
    for copy in copies[1:]:
        store.all_tokens[starts[copy] : starts[copy + 1]] = store.all_tokens[starts[copies[0]] : starts[copies[0] + 1]]
    for other in others:
        store.all_tokens[starts[other] : starts[other] + 3] = [5, 6, 8]
    return store


@pytest.fixture(scope="module")
def store(synthetic, tmp_path_factory):
    return open_store(str(write_store(synthetic, tmp_path_factory.mktemp("described") / "store", 20)))


def test_figures_are_those_of_a_plain_count(synthetic, store):
    card = corpus_card(store, "here")
    documents, sentences = np.diff(synthetic.document_tokens), np.diff(synthetic._starts)
    np.testing.assert_allclose(card.document_lengths, np.percentile(documents, SHARES))
    np.testing.assert_array_equal(card.sentence_lengths, np.percentile(sentences, SHARES, method="inverted_cdf"))
    for histogram, lengths in ((card.document_histogram, documents), (card.sentence_histogram, sentences)):
        edges = zip(card.length_edges[:-1], card.length_edges[1:], strict=True)
        assert histogram.tolist() == [int(((low <= lengths) & (lengths < high)).sum()) for low, high in edges]
        assert histogram.sum() == len(lengths)
    counts = collections.Counter(synthetic.all_tokens.tolist())
    assert card.used_entries == len(counts)
    assert card.rare_entries == sum(count < 100 for count in counts.values())
    assert card.token_shares[100] == sum(count for _, count in counts.most_common(100)) / synthetic.num_tokens
    assert card.frequencies[:3].tolist() == [count for _, count in counts.most_common(3)]
    assert (card.duplicated_documents, card.duplicated_tokens) == (2, 30)


def test_figures_do_not_depend_on_how_much_is_read_at_once(store, monkeypatch):
    whole = corpus_card(store, "here")
    monkeypatch.setattr(description, "BLOCK_TOKENS", 64)  # most documents are longer
    pieces = corpus_card(store, "here")
    np.testing.assert_array_equal(count_tokens(store).hashes, hashes_of_whole_documents(store))
    assert (pieces.duplicated_documents, pieces.frequent) == (whole.duplicated_documents, whole.frequent)
    np.testing.assert_array_equal(pieces.frequencies, whole.frequencies)


def hashes_of_whole_documents(store):
    tokens = store.tokens(np.arange(store.num_tokens))
    return text_hashes(tokens, store.document_tokens)


@pytest.mark.skipif(
    not os.environ.get("BERT_JAX_LARGE_STORE"), reason="two minutes of a core; set BERT_JAX_LARGE_STORE=1"
)
def test_a_store_beyond_32_bits_has_a_card(tmp_path):
    """More than 2^31 tokens and 2^32 bytes, in a sparse file: all zeros but for two documents behind these."""
    size, sentence, document = (1 << 31) + (1 << 20), 1 << 14, 1 << 18
    sentences, last = np.arange(0, size, sentence), range(size - 2 * document, size)
    ids = dict.fromkeys(last[: 2 * sentence], 7) | dict.fromkeys(last[-document:][:sentence], 8)
    documents = np.arange(0, len(sentences), document // sentence)
    store = unverified(hand_made(tmp_path / "store", [(size, ids, sentences, documents)], hashed=False))
    store.tokenizer = lambda: types.SimpleNamespace(decode=lambda ids: " ".join(map(str, ids[:3])))
    card = corpus_card(store, "large")
    assert card.counts["tokens"] == size > 1 << 31
    assert card.frequencies[:3].tolist() == [size - 3 * sentence, 2 * sentence, sentence]
    assert card.duplicated_documents == len(documents) - 3
    assert card.duplicated_tokens == (len(documents) - 3) * document
    assert [(each.text, each.count) for each in card.frequent] == [("0 0 0", len(sentences) - 3), ("7 7 7", 2)]
    assert card.document_histogram.sum() == len(documents) and card.sentence_lengths.tolist() == [sentence] * 7


def test_frequent_sentences_are_those_of_a_plain_count(synthetic, store):
    starts, tokenizer = synthetic._starts, store.tokenizer()
    plain = collections.Counter(
        tuple(synthetic.all_tokens[begin:end].tolist()) for begin, end in zip(starts[:-1], starts[1:], strict=True)
    )
    wanted = collections.Counter({text: count for text, count in plain.items() if count > 1})
    found = frequent_sentences(store, most=len(wanted) + 5)
    assert [each.count for each in found] == [count for _, count in wanted.most_common()]
    assert {(each.text, each.count, each.tokens) for each in found} == {
        (tokenizer.decode(list(text)), count, len(text)) for text, count in wanted.items()
    }
    assert {each.text: each.count for each in found}[tokenizer.decode([5, 6, 8])] >= 10


def test_the_page_shows_two_stores_beside_each_other_and_loads_nothing(store, tmp_path, capsys):
    other = write_store(SyntheticStore(random_documents(9), seed=8), tmp_path / "<b>other", 1000)
    output = tmp_path / "card.html"
    assert cli._run(["bert-jax", "describe", str(store.path), str(other), f"--output={output}"]) == 0
    assert f"{output}: 2 stores" in capsys.readouterr().out
    text = output.read_text(encoding="utf-8")
    assert "&lt;b&gt;other" in text and "<b>other" not in text
    assert "default-src" in text and not re.search(r"<(?:script|link|img)[^>]* (?:src|href)=", text)
    first, second = json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))
    assert (first["path"], second["path"]) == (str(store.path), str(other))
    assert f"{first['counts']['tokens']:,}" in text and f"{second['counts']['tokens']:,}" in text
    assert first["samples"] == corpus_card(store, "").samples and len(first["samples"]) == 8
    assert {file["name"] for file in first["files"]} > {"shard-00000.tokens"}


@pytest.mark.parametrize(
    ("paths", "changes", "message"),
    [
        (["a"], {"output": "card.txt"}, "output=card.txt must end in .html"),
        (["a", "b", "c"], {"output": "card.html"}, "3 stores are too many for two columns"),
        (["a"], {"output": "card.html", "samples": -1}, "samples=-1 must not be negative"),
        (["nowhere"], {"output": "card.html"}, "nowhere"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(paths, changes, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        run_describe(paths, DescribeConfig(**changes))
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
