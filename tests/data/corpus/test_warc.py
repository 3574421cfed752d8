"""WET files written here as ISO 28500 says: their texts, what is counted, and files that are damaged or no text."""

import json

import pytest
from crawl_records import record, write
from letter_corpus import contents, run
from refused_documents import refused

from bert_jax.corpus import blocks
from bert_jax.corpus.blocks import read_blocks
from bert_jax.corpus.readers import find_sources, read_documents

TEXTS = [
    "One page.\nIts second line.",
    "Straße und 東京",
    "A page that quotes\r\n\r\nWARC/1.0\r\nContent-Length: 3\r\n\r\nabc\r\n\r\nand goes on.",
    *(f"Page {i} says {'more ' * i}." for i in range(40)),
]
LINES = ["\n".join(line for line in text.replace("\r", "").split("\n") if line) for text in TEXTS]


RECORDS = [
    record("warcinfo", "Software-Info: a crawler\r\n", "application/warc-fields"),
    *(record("conversion", text) for text in TEXTS),
    record("metadata", "x: y", "application/warc-fields"),
    record("resource", "A text file.", "text/plain; charset=utf-8"),
]


@pytest.mark.parametrize("block_bytes", [300, 1 << 20])
@pytest.mark.parametrize("name", ["crawl.warc.wet", "crawl.warc.wet.gz", "records.dat"])
def test_conversions_are_documents(tmp_path, monkeypatch, name, block_bytes):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
    assert list(read_documents(str(write(tmp_path / name, RECORDS)))) == [*LINES, "A text file."]


def test_blocks_resume_at_every_position(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 300)
    [source] = find_sources(str(write(tmp_path / "a.wet.gz", RECORDS)))
    whole = list(read_blocks(source))
    assert len(whole) > 10
    for index, block in enumerate(whole):
        assert [each.payload for each in read_blocks(source, start=block.end)] == [
            each.payload for each in whole[index + 1 :]
        ]


def test_the_manifest_counts_records_without_text(tmp_path, vocab, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 300)
    path = write(tmp_path / "a.wet.gz", RECORDS)
    for workers in (1, 2):
        run(path, vocab, tmp_path / f"by_{workers}", workers=workers)
    assert contents(tmp_path / "by_1") == contents(tmp_path / "by_2")
    manifest = json.loads((tmp_path / "by_1" / "manifest.json").read_text())
    assert manifest["removed"] == [{"source": str(path), "what": "records_without_text", "number": 2}]


def test_damaged_files(tmp_path):
    path = write(tmp_path / "a.wet", RECORDS)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    refused(path, "ends within a record")
    path.write_bytes(whole[:-10] + RECORDS[0])
    refused(path, "no WARC record where one should begin")
    path.write_bytes(RECORDS[0] + RECORDS[1].replace(b"Content-Length", b"Content-Size"))
    refused(path, "does not say its Content-Length")
    packed = write(tmp_path / "b.wet.gz", RECORDS)
    packed.write_bytes(packed.read_bytes()[:-9])
    refused(packed, "not a whole gzip file")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.wet", "a.wet.gz"])
@pytest.mark.parametrize("place", [0, 3, len(RECORDS)])
def test_a_record_that_is_too_long_is_skipped_and_counted(tmp_path, vocab, monkeypatch, name, place):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 300)
    monkeypatch.setattr(blocks, "MAX_RECORD_BYTES", 1000)
    film = record("response", bytes(3_000_000), "application/http")
    path = write(tmp_path / name, [*RECORDS[:place], film, film, *RECORDS[place:]])
    assert list(read_documents(str(path))) == [*LINES, "A text file."]
    [source] = find_sources(str(path))
    whole = list(read_blocks(source))
    assert max(len(block.payload) for block in whole) < 1200
    for index, block in enumerate(whole):
        rest = [each.payload for each in read_blocks(source, start=block.end)]
        assert rest == [each.payload for each in whole[index + 1 :]]
    for runner in ("local", "beam"):
        run(path, vocab, tmp_path / runner, runner=runner)
    assert contents(tmp_path / "local") == contents(tmp_path / "beam")
    manifest = json.loads((tmp_path / "local" / "manifest.json").read_text())
    assert {entry["what"]: entry["number"] for entry in manifest["removed"]} == {
        "records_without_text": 2,
        "records_too_long": 2,
    }
    refused(write(tmp_path / f"cut_{name}", [film[:-9]]), "ends within a record")


def test_bytes_that_are_not_utf8_are_found_in_their_file(tmp_path):
    records = [RECORDS[1], record("conversion", b"ab\xffc")]
    path = write(tmp_path / "a.wet", records)
    refused(path, f"byte {path.read_bytes().index(0xFF)} (0xff) is not UTF-8")
    assert list(read_documents(str(path), bad_utf8="replace"))[1] == "ab\ufffdc"
