"""Dumps of Wikipedia: their articles as written by hand, what is left out and counted, and damaged files."""

import bz2
import gzip
import json

import pytest
import wikipedia_dump
from letter_corpus import contents, run
from refused_documents import refused

from bert_jax.corpus import blocks
from bert_jax.corpus.readers import find_sources, read_documents
from bert_jax.errors import UserError

PARAGRAPHS = [paragraphs for _, paragraphs, _ in wikipedia_dump.ARTICLES]
COPIES = 40


@pytest.fixture
def dump(tmp_path):
    return wikipedia_dump.write(tmp_path / "xxwiki-pages-articles-multistream.xml.bz2", wikipedia_dump.pages() * COPIES)


def read(input):
    return [document.split("\n") for document in read_documents(str(input))]


@pytest.mark.parametrize("block_bytes", [100, 3000, 1 << 20])
@pytest.mark.parametrize("name", ["dump.xml", "dump.xml.bz2"])
def test_articles_are_their_paragraphs(tmp_path, monkeypatch, name, block_bytes):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
    path = wikipedia_dump.write(tmp_path / name, wikipedia_dump.pages())
    assert read(path) == PARAGRAPHS


def test_what_was_left_out_is_in_the_manifest_for_any_number_of_workers(tmp_path, dump, vocab, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 3000)
    for workers in (1, 2):
        run(dump, vocab, tmp_path / f"by_{workers}", workers=workers, sentences="split", language="de")
    assert contents(tmp_path / "by_1") == contents(tmp_path / "by_2")
    manifest = json.loads((tmp_path / "by_1" / "manifest.json").read_text())
    assert (
        manifest["sources"][0]["format"] == "wikipedia" and manifest["counts"]["documents"] == len(PARAGRAPHS) * COPIES
    )
    expected = dict(wikipedia_dump.REMOVED_PAGES)
    for _, _, removed in wikipedia_dump.ARTICLES:
        expected = {key: expected.get(key, 0) + removed.get(key, 0) for key in {*expected, *removed}}
    expected["templates"] += 1  # of the page that is nothing else
    assert {entry["source"] for entry in manifest["removed"]} == {str(dump)}
    assert {entry["what"]: entry["number"] for entry in manifest["removed"]} == {
        what: number * COPIES for what, number in expected.items()
    }


def test_an_interrupted_preparation_counts_once(tmp_path, dump, vocab, monkeypatch):
    from bert_jax.data.preparation import writer

    monkeypatch.setattr(blocks, "BLOCK_BYTES", 3000)
    run(dump, vocab, tmp_path / "whole")
    append, calls = writer.StoreWriter.append, []

    def break_off(self, block, continues):
        calls.append(block)
        if len(calls) % 7 == 0:
            raise OSError(28, "No space left on device")
        append(self, block, continues)

    monkeypatch.setattr(writer.StoreWriter, "append", break_off)
    for _ in range(100):
        try:
            run(dump, vocab, tmp_path / "resumed")
            break
        except UserError as error:
            assert "No space left" in str(error)
    assert len(calls) > 20 and contents(tmp_path / "resumed") == contents(tmp_path / "whole")


@pytest.mark.parametrize("place", [0.2, 0.7, 0.99])
def test_a_truncated_dump_is_refused(tmp_path, dump, place):
    data = dump.read_bytes()
    dump.write_bytes(data[: int(place * len(data))])
    refused(dump, "is not a whole bzip2 file")
    plain = tmp_path / "dump.xml"
    whole = bz2.decompress(data)
    plain.write_bytes(whole[: int(place * len(whole))])
    refused(plain, "ends before </mediawiki>")


@pytest.mark.parametrize("block_bytes", [100, 1 << 20])
def test_a_dump_that_lacks_whole_streams_is_refused(tmp_path, monkeypatch, block_bytes):
    """Each stream is whole, and so is what is left of the file as far as bzip2 knows."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "dump.xml.bz2"
    path.write_bytes(b"".join(bz2.compress(part.encode()) for part in (wikipedia_dump.HEAD, *wikipedia_dump.pages())))
    refused(path, "ends before </mediawiki>")


def test_nothing_is_left_of_a_dump_that_was_refused(tmp_path, dump, vocab):
    dump.write_bytes(dump.read_bytes()[:-60])
    with pytest.raises(UserError, match="not a whole bzip2 file"):
        run(dump, vocab, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_entities_are_never_expanded(tmp_path):
    declarations = (
        '<!DOCTYPE mediawiki [<!ENTITY a "lol"><!ENTITY b "&a;&a;"><!ENTITY c SYSTEM "file:///etc/passwd">]>\n'
    )
    evil = wikipedia_dump.page("Evil", 0, "").replace("></text>", ">&b; &c;</text>")
    path = tmp_path / "dump.xml"
    path.write_text(wikipedia_dump.HEAD + evil + "</mediawiki>\n")
    refused(path, "the page 'Evil' is not well-formed XML", "undefined entity")
    path.write_text(declarations + wikipedia_dump.HEAD + evil + "</mediawiki>\n")
    with pytest.raises(UserError, match="not a MediaWiki export"):
        list(read_documents(str(path), format="wikipedia"))


def test_a_page_that_is_too_long_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(blocks, "MAX_RECORD_BYTES", 4000)
    page = wikipedia_dump.page("Long", 0, "word " * 3000)
    refused(wikipedia_dump.write(tmp_path / "dump.xml", [page]), "a page of more than", "pages-articles")


def test_a_format_that_the_file_does_not_have(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("Only text.\n")
    with pytest.raises(UserError, match="not a MediaWiki export"):
        list(read_documents(str(path), format="wikipedia"))


def test_a_damaged_head(tmp_path):
    path = wikipedia_dump.write(tmp_path / "dump.xml", wikipedia_dump.pages())
    whole = path.read_text()
    for present, damaged in (('key="6"', 'key="six"'), ("</namespaces>", ""), ("</siteinfo>", "")):
        path.write_text(whole.replace(present, damaged))
        refused(path, "siteinfo")


def test_without_the_extra(tmp_path, monkeypatch):
    path = wikipedia_dump.write(tmp_path / "dump.xml", wikipedia_dump.pages())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"dump.xml needs mwparserfromhell.*bert_jax\[corpora\]"):
        find_sources(str(path))


def test_exports_compressed_otherwise_and_of_several_files(tmp_path):
    data = wikipedia_dump.write(tmp_path / "part1.xml", wikipedia_dump.pages()).read_bytes()
    (tmp_path / "part2.xml-p10p20.gz").write_bytes(gzip.compress(data))
    assert read(tmp_path / "part*") == PARAGRAPHS * 2
