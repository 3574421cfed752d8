"""Random access over shards and beyond 32 bits; nothing that a manifest says is believed."""

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
from cloud_bucket import bucket
from hand_made_store import VOCABULARY, edited, hand_made, prepared, unverified

from bert_jax.data.store import open_store
from bert_jax.errors import UserError
from bert_jax.files import sealed, unsealed


def test_documents_sentences_tokens(tmp_path):
    store = open_store(prepared(tmp_path))
    assert (store.num_documents, store.num_sentences, store.num_tokens, store.vocab_size) == (3, 5, 8, 9)
    assert store.document_sentences.tolist() == [0, 2, 3, 5]
    assert store.document_tokens.tolist() == [0, 4, 5, 8]
    assert store.sentence_starts(np.array([[0, 1], [4, 5]])).tolist() == [[0, 2], [7, 8]]
    tokens = store.tokens(np.array([[0, 1, 2, 3], [4, 5, 6, 7]]))
    assert tokens.tolist() == [[5, 6, 7, 8], [6, 5, 5, 7]] and tokens.dtype == np.int32
    assert store.tokens(np.zeros((2, 0), np.int64)).shape == (2, 0)
    assert store.tokenizer().tokens == VOCABULARY
    for array in (store.document_sentences, store.document_tokens, store.sentence_starts(np.arange(3))):
        assert array.dtype == np.int64
    for bad in (-1, 8):
        with pytest.raises(IndexError):
            store.tokens(np.array([bad]))
    with pytest.raises(IndexError):
        store.sentence_starts(np.array([6]))


def test_shards_read_as_one(tmp_path):
    rng = np.random.default_rng(0)
    sizes = [50, 1, 300, 20]
    ids = [rng.integers(0, 1000, size) for size in sizes]
    path = hand_made(
        tmp_path / "store",
        [
            (size, dict(enumerate(values)), np.arange(0, size, 4), np.arange(0, -(-size // 4), 3))
            for size, values in zip(sizes, ids)
        ],
    )
    store = open_store(path)
    whole = np.concatenate(ids)
    indices = rng.integers(0, sum(sizes), (7, 11))
    np.testing.assert_array_equal(store.tokens(indices), whole[indices])
    starts, documents, token, sentence = [], [], 0, 0
    for size in sizes:
        starts += [token + start for start in range(0, size, 4)]
        documents += [sentence + start for start in range(0, -(-size // 4), 3)]
        token, sentence = token + size, sentence + -(-size // 4)
    assert store.sentence_starts(np.arange(store.num_sentences + 1)).tolist() == [*starts, token]
    assert store.document_sentences.tolist() == [*documents, sentence]
    assert store.document_tokens.tolist() == [*(starts[d] for d in documents), token]


@pytest.mark.parametrize("dtype, vocab_size", [("uint16", 1000), ("uint32", 100_000)])
def test_ten_gigabytes_are_addressed_with_64_bits(tmp_path, dtype, vocab_size):
    """Two sparse shards of 5 GB each: positions beyond 2^31 and 2^32, across the shards, at either end."""
    size = 5 * 10**9 // np.dtype(dtype).itemsize
    marks = [0, 1, 2**30, 2**30 + 1, size - 1]
    path = hand_made(
        tmp_path / "store",
        [
            (size, {mark: 10 + i for i, mark in enumerate(marks)}, marks, [0, 3]),
            (size, {mark: 20 + i for i, mark in enumerate(marks)}, marks, [0, 2]),
        ],
        dtype,
        vocab_size,
        hashed=False,
    )
    assert sum(os.path.getsize(file) for file in path.glob("*.tokens")) == 10**10
    store = unverified(path)
    assert store.num_tokens == 2 * size
    positions = np.array([*marks, *(size + mark for mark in marks)])
    assert store.tokens(positions[::-1]).tolist() == [24, 23, 22, 21, 20, 14, 13, 12, 11, 10]
    assert store.sentence_starts(np.arange(11)).tolist() == [*positions, 2 * size]
    assert store.document_sentences.tolist() == [0, 3, 5, 7, 10]
    assert store.document_tokens.tolist() == [0, 2**30 + 1, size, size + 2**30, 2 * size]
    assert store.tokens(np.array(2 * size - 1)) == 24


def test_one_shard_beyond_32_bits(tmp_path):
    size = 2**32 + 10
    path = hand_made(
        tmp_path / "store",
        [(size, {2**31: 7, 2**32: 8, size - 1: 9}, [0, 2**31, 2**32, size - 1], [0, 2])],
        hashed=False,
    )
    store = unverified(path)
    assert store.tokens(np.array([2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, size - 1])).tolist() == [
        0,
        7,
        0,
        8,
        0,
        9,
    ]
    assert store.sentence_starts(np.arange(5)).tolist() == [0, 2**31, 2**32, size - 1, size]
    assert store.document_tokens.tolist() == [0, 2**32, size]


def test_fingerprint_is_of_the_content(tmp_path):
    manifest = open_store(prepared(tmp_path)).manifest
    moved = dataclasses.replace(manifest.sources[0], name="elsewhere", revision="1")
    elsewhere = dataclasses.replace(manifest, sources=(moved,))
    assert elsewhere.fingerprint == manifest.fingerprint
    changed = dataclasses.replace(
        manifest, files=(dataclasses.replace(manifest.files[0], sha256="1"), *manifest.files[1:])
    )
    assert changed.fingerprint != manifest.fingerprint


def test_another_vocabulary_inside_is_noticed(tmp_path):
    """A manifest that lists another vocabulary.txt with its right hash."""
    path = pathlib.Path(prepared(tmp_path))
    vocabulary, manifest = path / "tokenizer" / "vocab.txt", path / "manifest.json"
    vocabulary.write_text(vocabulary.read_text().replace("alpha", "omega"))
    values = unsealed(json.loads(manifest.read_text()))
    [record] = [record for record in values["files"] if record["name"] == "tokenizer/vocab.txt"]
    record["sha256"] = hashlib.sha256(vocabulary.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(sealed(values)))
    with pytest.raises(UserError, match="not the one the store was made with"):
        open_store(path).tokenizer()


@pytest.mark.parametrize("vocab_size", [8, 10])
def test_a_size_that_is_not_the_vocabulary_s_is_noticed(tmp_path, vocab_size):
    path = pathlib.Path(prepared(tmp_path))
    manifest = path / "manifest.json"
    manifest.write_text(edited(unsealed(json.loads(manifest.read_text())), ["tokenizer", "vocab_size"], vocab_size))
    with pytest.raises(UserError, match="not the one the store was made with"):
        open_store(path).tokenizer()


def files_in(directory):
    return {path.name for path in directory.rglob("*") if path.is_file() and path.suffix != ".lock"}


def test_remote_stores_are_made_and_copied_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    cache = tmp_path / "cache"
    with bucket(tmp_path / "cloud"):
        remote = prepared(tmp_path, "gs://bucket/store")
        assert not any((tmp_path / "home").rglob("*.tokens"))
        store, local = open_store(remote, str(cache)), open_store(prepared(tmp_path))
        assert [path.name for path in cache.iterdir()] == [store.fingerprint] == [local.fingerprint]
        assert store.tokenizer().tokens == VOCABULARY
        assert store.tokens(np.arange(store.num_tokens)).tolist() == local.tokens(np.arange(local.num_tokens)).tolist()
        assert store.document_tokens.tolist() == local.document_tokens.tolist()
        shutil.rmtree(tmp_path / "cloud" / "bucket" / "store" / "tokenizer")
        (tmp_path / "cloud" / "bucket" / "store" / "shard-00000.tokens").unlink()
        again = open_store(remote, str(cache))
        assert again.tokenizer().tokens == VOCABULARY
        assert again.tokens(np.arange(store.num_tokens)).tolist() == local.tokens(np.arange(local.num_tokens)).tolist()
        (store.path / "shard-00000.tokens").write_bytes(bytes(16))
        with pytest.raises(UserError, match=f"{store.fingerprint}: the content of shard-00000.tokens .* delete"):
            open_store(remote, str(cache)).tokens(np.arange(2))
        shutil.rmtree(cache)
        with pytest.raises(UserError, match="cannot copy gs://bucket/store"):
            open_store(remote, str(cache))
        assert not files_in(cache)


def test_files_of_a_remote_store_are_copied_when_they_are_needed(tmp_path):
    shards = [(10, {0: 11}, [0, 4], [0]), (20, {5: 12}, [0, 5], [0]), (30, {9: 13}, [0, 9, 20], [0, 1])]
    hand_made(tmp_path / "cloud" / "bucket" / "store", shards)
    with bucket(tmp_path / "cloud"):
        store = open_store("gs://bucket/store", str(tmp_path / "cache"))
        assert not {name for name in files_in(tmp_path / "cache") if name.startswith("shard")}
        assert (store.num_tokens, store.num_sentences, store.num_documents) == (60, 7, 4)
        assert store.tokens(np.array([15, 29])).tolist() == [12, 0]
        assert files_in(tmp_path / "cache") == {"shard-00001.tokens"}
        assert store.sentence_starts(np.array([4, 5])).tolist() == [30, 39]
        assert store.document_sentences.tolist() == [0, 2, 4, 5, 7]
        assert files_in(tmp_path / "cache") == {
            "shard-00001.tokens",
            "shard-00002.sentences",
            *(f"shard-0000{number}.documents" for number in range(3)),
        }
        assert store.tokens(np.array([[39], [0]])).tolist() == [[13], [11]]


def test_a_copy_that_arrives_damaged_is_refused(tmp_path):
    with bucket(tmp_path / "cloud"):
        remote = prepared(tmp_path, "gs://bucket/store")
        path = tmp_path / "cloud" / "bucket" / "store" / "shard-00000.tokens"
        path.write_bytes(bytes(path.stat().st_size))
        store = open_store(remote, str(tmp_path / "cache"))
        with pytest.raises(UserError, match="content of shard-00000.tokens"):
            store.tokens(np.arange(2))
        assert "shard-00000.tokens" not in files_in(tmp_path / "cache")
