"""Token stores, whole and damaged."""

import dataclasses
import errno
import functools
import hashlib
import json
import os
import pathlib
import random
import shutil

import numpy as np
import pytest
from cloud_bucket import bucket
from synthetic_store import VOCABULARY, edited, hand_made, prepared, unverified

from bert_jax.data import store as verification
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
    expected = [0, 7, 0, 8, 0, 9]
    assert store.tokens(np.array([2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, size - 1])).tolist() == expected
    assert store.sentence_starts(np.arange(5)).tolist() == [0, 2**31, 2**32, size - 1, size]
    assert store.document_tokens.tolist() == [0, 2**32, size]


def test_fingerprint_is_of_the_content(tmp_path):
    manifest = open_store(prepared(tmp_path)).manifest
    moved = dataclasses.replace(manifest.sources[0], name="elsewhere", revision="1")
    elsewhere = dataclasses.replace(manifest, sources=(moved,))
    assert elsewhere.fingerprint == manifest.fingerprint
    files = (dataclasses.replace(manifest.files[0], sha256="1"), *manifest.files[1:])
    changed = dataclasses.replace(manifest, files=files)
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


@pytest.fixture
def settled(monkeypatch):
    """Files are recorded as verified however young they are."""
    monkeypatch.setattr(verification, "SETTLED_NANOSECONDS", 0)


def records():
    directory = verification.cache_directory() / "verified"
    return {path.name for path in directory.iterdir()} if directory.is_dir() else set()


@pytest.mark.parametrize(
    "name",
    [
        *("shard-00000.tokens", "shard-00000.sentences", "shard-00000.documents"),
        *("tokenizer/vocab.txt", "tokenizer/tokenizer_config.json"),
    ],
)
@pytest.mark.parametrize(
    "damage",
    [lambda data: bytes(len(data)), lambda data: b"\xff" * len(data), lambda data: data[:-1] + bytes([data[-1] ^ 1])],
)
def test_damage_to_a_local_store_is_refused(tmp_path, settled, name, damage):
    """Also in a store that was verified before, and by a tool that restores the modification time."""
    path = pathlib.Path(prepared(tmp_path))
    open_store(path)
    file, before = path / name, (path / name).stat()
    file.write_bytes(damage(file.read_bytes()))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):
        message = f"content of {name} is not what .*delete the store and prepare or copy it again"
        with pytest.raises(UserError, match=message):
            open_store(path)


def test_a_verified_store_is_not_hashed_again(tmp_path, settled, monkeypatch):
    path, hashed = pathlib.Path(prepared(tmp_path)), []
    hash_file = verification.hash_file
    monkeypatch.setattr(verification, "hash_file", lambda file: hashed.append(file.name) or hash_file(file))
    open_store(path)
    assert sorted(hashed) == sorted(f.name for f in path.rglob("*") if f.is_file() and f.name != "manifest.json")
    open_store(path)
    assert len(hashed) == 5
    (path / "shard-00000.tokens").touch()
    open_store(path)
    assert len(hashed) == 10
    shutil.copytree(path, tmp_path / "copy")
    open_store(tmp_path / "copy")
    assert len(hashed) == 15


def test_an_error_in_the_middle_of_reading_names_the_file(tmp_path, monkeypatch):
    """That of read() has no name, and was once: None cannot be read."""
    path, hash_file = prepared(tmp_path), verification.hash_file

    def broken(file):
        if file.name == "shard-00000.tokens":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return hash_file(file)

    monkeypatch.setattr(verification, "hash_file", broken)
    message = f"{path}/shard-00000.tokens cannot be read: Input/output error; prepare or copy the"
    with pytest.raises(UserError, match=message):
        open_store(path)


def test_files_that_may_change_within_a_time_stamp_are_not_recorded(tmp_path):
    before = records()
    open_store(prepared(tmp_path))
    assert records() == before


@pytest.mark.parametrize("obstacle", ["a file", "read-only"])
def test_without_a_cache_directory_a_store_is_hashed_every_time(tmp_path, settled, monkeypatch, obstacle):
    path = pathlib.Path(prepared(tmp_path))
    if obstacle == "a file":
        (tmp_path / "cache").write_text("in the way")
    else:
        monkeypatch.setattr(
            pathlib.Path, "touch", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied"))
        )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert open_store(path).num_tokens == open_store(path).num_tokens == 8
    assert not records() if obstacle == "read-only" else (tmp_path / "cache").read_text() == "in the way"


@pytest.mark.parametrize(
    "sentences, documents, match",
    [
        ([0, 4, 3, 8], [0, 2], "sentences of shard 0 do not begin at 0 and ascend to below 10"),
        ([0, 4, 4, 8], [0, 2], "sentences of shard 0"),
        ([1, 4, 6, 8], [0, 2], "sentences of shard 0"),
        ([0, 4, 6, 10], [0, 2], "sentences of shard 0"),
        ([0, 4, 6, 2**63 + 1], [0, 2], "sentences of shard 0"),
        ([0, 4, 6, 8], [0, 4], "documents of shard 0 do not begin at 0 and ascend to below 4"),
        ([0, 4, 6, 8], [2, 0], "documents of shard 0"),
        ([0, 4, 6, 8], [0, 2**40], "documents of shard 0"),
    ],
)
@pytest.mark.parametrize("piece", [1, 2, 1 << 22])
def test_impossible_boundaries_are_refused_though_hashed(tmp_path, monkeypatch, sentences, documents, match, piece):
    monkeypatch.setattr(verification, "_PIECE", piece)
    path = hand_made(tmp_path / "store", [(10, {}, sentences, documents)])
    with pytest.raises(UserError, match=match):
        open_store(path)
    open_store(hand_made(tmp_path / "good", [(10, {9: 999}, [0, 4, 6, 8], [0, 2])]))


@pytest.mark.parametrize(
    "dtype, vocab_size, value", [("uint16", 1000, 65_535), ("uint16", 1000, 1000), ("uint32", 100_000, 2**32 - 1)]
)
def test_ids_beyond_the_vocabulary_are_refused_where_they_are_read(tmp_path, dtype, vocab_size, value):
    store = open_store(
        hand_made(tmp_path / "store", [(10, {0: value, 1: vocab_size - 1}, [0], [0])], dtype, vocab_size)
    )
    assert store.tokens(np.arange(1, 10)).tolist() == [vocab_size - 1] + [0] * 8
    with pytest.raises(UserError, match=f"holds id {value}, but its vocabulary has {vocab_size:,} entries"):
        store.tokens(np.arange(10))


def test_no_changed_bit_goes_unnoticed(tmp_path):
    """One bit of each byte of each file, the manifest included: refused in one line, or the store reads as before."""
    path, draw = pathlib.Path(prepared(tmp_path)), random.Random(0)
    fingerprint, refused = open_store(path).fingerprint, 0
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        original = file.read_bytes()
        for place in range(len(original)):
            changed = bytearray(original)
            changed[place] ^= 1 << draw.randrange(8)
            file.write_bytes(changed)
            try:
                assert open_store(path).fingerprint == fingerprint, (file.name, place)
            except UserError:
                refused += 1
            else:
                assert file.name == "manifest.json", (file.name, place)  # white space between its values
        file.write_bytes(original)
    assert refused > 1000
    open_store(path)


@pytest.mark.parametrize("keys", [["checksum"], ["removed"], ["options", "clean"], ["sources", 0, "wrap_column"]])
def test_a_manifest_that_lacks_something_is_refused(tmp_path, keys):
    path = pathlib.Path(prepared(tmp_path)) / "manifest.json"
    values = json.loads(path.read_text())
    if keys != ["checksum"]:
        values = unsealed(values)
    *parents, last = keys
    inner = functools.reduce(lambda part, key: part[key], parents, values)
    del inner[last]
    path.write_text(json.dumps(values if keys == ["checksum"] else sealed(values)))
    says = "it has no checksum" if keys == ["checksum"] else f"missing: {'.'.join(map(str, keys))}"
    with pytest.raises(UserError, match=f"is damaged or was not written by `bert-jax prepare`: {says}$"):
        open_store(path.parent)


@pytest.mark.parametrize(
    "keys, value, match",
    [
        (["version"], 2, "version 2, but this program reads version 1"),
        (["files", 0, "name"], "../../etc/passwd", "files listed are not those"),
        (["files", 3, "name"], "tokenizer/../../x", "files listed are not those"),
        (["files", 3, "name"], "/etc/passwd", "files listed are not those"),
        (["files", 1, "name"], "shard-00000.tokens", "files listed are not those"),
        (["counts", "tokens"], -8, "negative"),
        (["counts", "tokens"], 9, "the shards have 8 tokens, but counts.tokens is 9"),
        (["counts", "tokens"], 8.0, "counts.tokens=8.0 must be of type int"),
        (["shards", 0, "sentences"], 2**63, "2\\^62"),
        (["shards"], [], "the shards have 0 tokens"),
        (["shards"], "many", "damaged.*shards='many' must be a list"),
        (["dtype"], "object", "dtype 'object' does not belong"),
        (["dtype"], "uint32", "dtype 'uint32' does not belong"),
        (["tokenizer", "vocab_size"], 10**6, "dtype 'uint16' does not belong"),
        (["tokenizer", "vocab_size"], -1, "negative"),
        (["surprise"], 1, "unknown option surprise"),
    ],
)
def test_hostile_manifests_are_refused(tmp_path, keys, value, match):
    path = pathlib.Path(prepared(tmp_path)) / "manifest.json"
    path.write_text(edited(unsealed(json.loads(path.read_text())), keys, value))
    with pytest.raises(UserError, match=match):
        open_store(path.parent)


@pytest.mark.parametrize(
    "text, match",
    [("", "is not JSON"), ("[]", "a JSON object"), ('{"version": 1}', "damaged"), ("[" * 10**5, "is not JSON")],
)
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
    with pytest.raises(UserError, match="has 6 bytes, but the manifest says 16"):
        open_store(path)
    (path / "shard-00000.documents").unlink()
    (path / "shard-00000.tokens").write_bytes(bytes(16))
    with pytest.raises(UserError, match="is missing"):
        open_store(path)
    (path / "shard-00000.documents").write_bytes(bytes(24))
    with pytest.raises(UserError, match="content of shard-00000.tokens, shard-00000.documents is not"):
        open_store(path)
    with pytest.raises(UserError, match="not ascending"):
        unverified(path).document_sentences
    (path / "tokenizer" / "vocab.txt").unlink()
    with pytest.raises(UserError, match="vocab.txt cannot be read: No such file"):
        open_store(path)
