"""Compressed text: each kind against its own library, of several streams, resumed, truncated, and misnamed."""

import bz2
import gzip
import lzma
import random

import pytest
from letter_corpus import contents, random_documents, run, write_corpus

from bert_jax.corpus import blocks as text_blocks
from bert_jax.corpus.blocks import read_blocks
from bert_jax.corpus.readers import find_sources, read_documents
from bert_jax.errors import UserError

TEXT = "\n\n".join(f"Document {i} says {random.Random(i).random()}." for i in range(400)).encode()


def zstd_compress(data: bytes) -> bytes:
    return pytest.importorskip("backports.zstd").compress(data)


KINDS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd_compress}


def write(path, ending, streams=3):
    path = path.with_name(path.name + ending)
    size = len(TEXT) // streams + 1
    path.write_bytes(b"".join(KINDS[ending](TEXT[i : i + size]) for i in range(0, len(TEXT), size)))
    return path


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("ending", KINDS)
def test_text_of_one_and_several_streams(tmp_path, monkeypatch, ending, streams):
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 1000)
    path = write(tmp_path / "a.txt", ending, streams)
    assert list(read_documents(str(path))) == TEXT.decode().split("\n\n")
    [source] = find_sources(str(path))
    blocks = list(read_blocks(source))
    assert len(blocks) > 10
    for index in (0, 5, len(blocks) - 2):
        assert [block.payload for block in read_blocks(source, start=blocks[index].end)] == [
            block.payload for block in blocks[index + 1 :]
        ]


@pytest.mark.parametrize("ending", KINDS)
def test_truncated_and_foreign_files_are_refused(tmp_path, ending):
    path = write(tmp_path / "a.txt", ending)
    whole = path.read_bytes()
    for damaged in (whole[:-20], whole[: len(whole) // 2], b"nothing of the kind at all"):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=rf"a.txt{ending} is not a whole \w+ file") as error:
            list(read_documents(str(path)))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("ending", [".bz2", ".zst"])
def test_the_store_is_that_of_the_plain_text(tmp_path, vocab, monkeypatch, ending):
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 1000)
    plain = write_corpus(tmp_path / "a.txt", random_documents(40))
    data = (tmp_path / "a.txt").read_bytes()
    (tmp_path / f"b.txt{ending}").write_bytes(KINDS[ending](data[:3001]) + KINDS[ending](data[3001:]))
    run(plain, vocab, tmp_path / "plain")
    run(tmp_path / f"b.txt{ending}", vocab, tmp_path / "packed")
    stores = [contents(tmp_path / name) for name in ("plain", "packed")]
    for store in stores:
        del store["manifest.json"]  # names its source
    assert stores[0] == stores[1]


@pytest.mark.parametrize("ending", KINDS)
def test_a_compressed_file_without_its_ending(tmp_path, ending):
    path = write(tmp_path / "a.txt", ending).rename(tmp_path / "a.txt")
    with pytest.raises(UserError, match=rf"a.txt is compressed .* its name does not say so; rename it to …{ending}"):
        find_sources(str(path))


def test_an_archive_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(UserError, match="a.txt is a zip archive; unpack it"):
        find_sources(str(tmp_path / "a.txt"))


def test_zstd_without_the_extra(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jsonl", ".zst")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs backports.zstd.*bert_jax\[corpora\]"):
        find_sources(str(path))
