"""Random access over shards and beyond 32 bits; nothing that a manifest says is believed."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
from etils import epath

from bert_jax.config import PrepareConfig
from bert_jax.config_dict import to_dict
from bert_jax.data import prepare
from bert_jax.data.manifest import Counts, FileRecord, Manifest, Options, Shard, TokenizerRecord, shard_file
from bert_jax.data.store import open_store, verify
from bert_jax.errors import UserError

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "alpha", "beta", "gamma", "##s"]


def hand_made(directory, shards, dtype="uint16", vocab_size=1000):
    """Writes a store from (token count, {position: id}, sentence starts, document starts) a shard; tokens are sparse files."""
    directory.mkdir(parents=True)
    for index, (num_tokens, ids, sentences, documents) in enumerate(shards):
        with (directory / shard_file(index, "tokens")).open("wb") as file:
            file.truncate(num_tokens * np.dtype(dtype).itemsize)
            for position, value in ids.items():
                file.seek(position * np.dtype(dtype).itemsize)
                file.write(np.array(value, np.dtype(dtype).newbyteorder("<")).tobytes())
        np.array(sentences, "<u8").tofile(directory / shard_file(index, "sentences"))
        np.array(documents, "<u8").tofile(directory / shard_file(index, "documents"))
    sizes = tuple(Shard(tokens=n, sentences=len(sentences), documents=len(documents)) for n, _, sentences, documents in shards)
    sums = {part: sum(getattr(shard, part) for shard in sizes) for part in ("tokens", "sentences", "documents")}
    manifest = Manifest(
        version=1, dtype=dtype, counts=Counts(**sums, text_bytes=0, unknown_tokens=0, cut_sentences=0, replaced_characters=0),
        tokenizer=TokenizerRecord(kind="wordpiece", fingerprint="0", vocab_size=vocab_size), sources=(), shards=sizes,
        options=Options(sentences="lines", language="en", text_field="text", bad_utf8="error"),
        files=tuple(FileRecord(name=shard_file(i, part), sha256="0") for i in range(len(sizes)) for part in sums))
    (directory / "manifest.json").write_text(json.dumps(to_dict(manifest)))
    return directory


def prepared(tmp_path, output=None, text="alpha beta\ngammas\n\nbeta\n\n\nalpha alpha\ngamma\n"):
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (tmp_path / "corpus.txt").write_text(text)
    output = output or str(tmp_path / "store")
    prepare.run_prepare(PrepareConfig(input=str(tmp_path / "corpus.txt"), vocab=str(tmp_path / "vocab.txt"), output=output,
                                      sentences="lines", workers=1))
    return output


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
    path = hand_made(tmp_path / "store", [
        (size, dict(enumerate(values)), np.arange(0, size, 4), np.arange(0, -(-size // 4), 3))
        for size, values in zip(sizes, ids)])
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
    path = hand_made(tmp_path / "store", [
        (size, {mark: 10 + i for i, mark in enumerate(marks)}, marks, [0, 3]),
        (size, {mark: 20 + i for i, mark in enumerate(marks)}, marks, [0, 2])], dtype, vocab_size)
    assert sum(os.path.getsize(file) for file in path.glob("*.tokens")) == 10**10
    store = open_store(path)
    assert store.num_tokens == 2 * size
    positions = np.array([*marks, *(size + mark for mark in marks)])
    assert store.tokens(positions[::-1]).tolist() == [24, 23, 22, 21, 20, 14, 13, 12, 11, 10]
    assert store.sentence_starts(np.arange(11)).tolist() == [*positions, 2 * size]
    assert store.document_sentences.tolist() == [0, 3, 5, 7, 10]
    assert store.document_tokens.tolist() == [0, 2**30 + 1, size, size + 2**30, 2 * size]
    assert store.tokens(np.array(2 * size - 1)) == 24


def test_one_shard_beyond_32_bits(tmp_path):
    size = 2**32 + 10
    path = hand_made(tmp_path / "store", [(size, {2**31: 7, 2**32: 8, size - 1: 9}, [0, 2**31, 2**32, size - 1], [0, 2])])
    store = open_store(path)
    assert store.tokens(np.array([2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, size - 1])).tolist() == [0, 7, 0, 8, 0, 9]
    assert store.sentence_starts(np.arange(5)).tolist() == [0, 2**31, 2**32, size - 1, size]
    assert store.document_tokens.tolist() == [0, 2**32, size]


def test_fingerprint_is_of_the_content(tmp_path):
    manifest = open_store(prepared(tmp_path)).manifest
    moved = dataclasses.replace(manifest.sources[0], name="elsewhere", revision="1")
    elsewhere = dataclasses.replace(manifest, sources=(moved,))
    assert elsewhere.fingerprint == manifest.fingerprint
    changed = dataclasses.replace(manifest, files=(dataclasses.replace(manifest.files[0], sha256="1"), *manifest.files[1:]))
    assert changed.fingerprint != manifest.fingerprint


def test_verify_names_the_damaged_file(tmp_path):
    store = open_store(prepared(tmp_path))
    verify(store)
    path = store.path / "shard-00000.tokens"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with pytest.raises(UserError, match="content of shard-00000.tokens is not"):
        verify(open_store(store.path))


def test_another_vocabulary_inside_is_noticed(tmp_path):
    path = pathlib.Path(prepared(tmp_path))
    vocabulary = path / "tokenizer" / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text().replace("alpha", "omega"))
    with pytest.raises(UserError, match="not the one the store was made with"):
        open_store(path).tokenizer()


def edited(values, keys, value):
    *path, last = keys
    inner = values
    for key in path:
        inner = inner[key]
    inner[last] = value
    return json.dumps(values)


@pytest.mark.parametrize("keys, value, match", [
    (["version"], 2, "version 2, this program reads version 1"),
    (["files", 0, "name"], "../../etc/passwd", "files listed are not those"),
    (["files", 3, "name"], "tokenizer/../../x", "files listed are not those"),
    (["files", 3, "name"], "/etc/passwd", "files listed are not those"),
    (["files", 1, "name"], "shard-00000.tokens", "files listed are not those"),
    (["counts", "tokens"], -8, "negative"),
    (["counts", "tokens"], 9, "the shards have 8 tokens, counts.tokens is 9"),
    (["counts", "tokens"], 8.0, "counts.tokens=8.0 must be of type int"),
    (["shards", 0, "sentences"], 2**63, "2\\^62"),
    (["shards"], [], "the shards have 0 tokens"),
    (["shards"], "many", "damaged.*shards='many' must be a list"),
    (["dtype"], "object", "dtype 'object' does not belong"),
    (["dtype"], "uint32", "dtype 'uint32' does not belong"),
    (["tokenizer", "vocab_size"], 10**6, "dtype 'uint16' does not belong"),
    (["tokenizer", "vocab_size"], -1, "negative"),
    (["surprise"], 1, "unknown option surprise"),
])
def test_hostile_manifests_are_refused(tmp_path, keys, value, match):
    path = pathlib.Path(prepared(tmp_path)) / "manifest.json"
    path.write_text(edited(json.loads(path.read_text()), keys, value))
    with pytest.raises(UserError, match=match) as error:
        open_store(path.parent)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text, match", [
    ("", "is not JSON"), ("[]", "a JSON object"), ('{"version": 1}', "damaged"), ("[" * 10**5, "is not JSON")])
def test_broken_manifests_are_refused(tmp_path, text, match):
    path = pathlib.Path(prepared(tmp_path)) / "manifest.json"
    path.write_text(text)
    with pytest.raises(UserError, match=match):
        open_store(path.parent)


def test_missing_parts_are_refused(tmp_path):
    with pytest.raises(UserError, match="not a token store"):
        open_store(tmp_path)
    path = pathlib.Path(prepared(tmp_path))
    os.truncate(path / "shard-00000.tokens", 6)
    with pytest.raises(UserError, match="has 6 bytes, the manifest says 16"):
        open_store(path)
    (path / "shard-00000.documents").unlink()
    (path / "shard-00000.tokens").write_bytes(bytes(16))
    with pytest.raises(UserError, match="is missing"):
        open_store(path)
    (path / "shard-00000.documents").write_bytes(bytes(24))
    with pytest.raises(UserError, match="not ascending"):
        open_store(path).document_sentences


@contextlib.contextmanager
def bucket(directory):
    """gs:// paths lead into a local directory."""
    local = epath.gpath._PREFIX_TO_BACKEND[None]

    class Bucket(type(local)):
        def __getattribute__(self, name):
            method = getattr(local, name)
            return lambda path, *args, **options: method(str(path).replace("gs://", f"{directory}/"), *args, **options)

    original = epath.gpath._GPath._backend
    epath.gpath._GPath._backend = property(lambda path: Bucket() if path._uri_scheme == "gs" else original.fget(path))
    try:
        yield
    finally:
        epath.gpath._GPath._backend = original


def test_remote_stores_are_made_and_copied_once(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    cache = tmp_path / "cache"
    with bucket(tmp_path / "cloud"):
        remote = prepared(tmp_path, "gs://bucket/store")
        assert not any((tmp_path / "home").rglob("*.tokens"))
        store = open_store(remote, str(cache))
        assert [path.name for path in cache.iterdir()] == [store.fingerprint]
        verify(store)
        shutil.rmtree(tmp_path / "cloud" / "bucket" / "store" / "tokenizer")
        assert open_store(remote, str(cache)).tokenizer().tokens == VOCABULARY
        assert open_store(remote, str(cache)).fingerprint == open_store(prepared(tmp_path)).fingerprint
        shutil.rmtree(cache)
        with pytest.raises(UserError, match="cannot copy gs://bucket/store"):
            open_store(remote, str(cache))
        assert list(cache.iterdir()) == []


def test_a_copy_that_arrives_damaged_is_refused(tmp_path):
    with bucket(tmp_path / "cloud"):
        remote = prepared(tmp_path, "gs://bucket/store")
        path = tmp_path / "cloud" / "bucket" / "store" / "shard-00000.tokens"
        path.write_bytes(bytes(path.stat().st_size))
        with pytest.raises(UserError, match="content of shard-00000.tokens"):
            open_store(remote, str(tmp_path / "cache"))
        assert list((tmp_path / "cache").iterdir()) == []
