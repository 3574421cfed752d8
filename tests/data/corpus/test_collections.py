"""Readers of published collections: Gutenberg, Wikipedia, WARC files, documentation."""

import bz2
import gzip
import json
import sys
import sysconfig

import documents
import pytest
from documents import contents, record, refused, run
from documents import write_of_record as write

from bert_jax.corpus import blocks, documentation
from bert_jax.corpus.blocks import read_blocks
from bert_jax.corpus.readers import find_sources, read_documents
from bert_jax.corpus.text import make_splitter
from bert_jax.errors import UserError

CHAPTERS = [
    "CHAPTER I\nIt was a dark night, and the wind blew over the hills.\n“Who is there?” said she.",
    "CHAPTER II\nEnd.",
]
BODY = (
    "\n\n\n\n\nCHAPTER I\n\n\nIt was a dark night, and the\nwind blew over  the hills.\n\n“Who is there?”\n"
    "  said she.\n\n\n\n\nCHAPTER II\n\nEnd.\n\n\n"
)

# (before the book, after it, lines of the header, lines of the licence, credits)
EDITIONS = {
    "2020s": (
        "\ufeffThe Project Gutenberg eBook of A Night\n\nThis ebook is for the use of anyone\nTitle: A Night\n\n"
        "*** START OF THE PROJECT GUTENBERG EBOOK A NIGHT ***\n\n\n\n\nProduced by A. Person and the\nteam\n\n\n",
        "*** END OF THE PROJECT GUTENBERG EBOOK A NIGHT ***\n\n"
        "Updated editions will replace it.\nSTART: FULL LICENSE\n",
        *(4, 3, 1),
    ),
    "2000s": (
        "Project Gutenberg's A Night, by A. Person\n\n*** START OF THIS PROJECT GUTENBERG EBOOK A NIGHT ***\n\n",
        "End of Project Gutenberg's A Night, by A. Person\n\n*** END OF THIS PROJECT GUTENBERG EBOOK A NIGHT ***\n"
        "***** x\n",
        *(2, 3, 0),
    ),
    "1990s": (
        "**Welcome To The World of Free Plain Vanilla Electronic Texts**\n\n"
        "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n\n",
        "End of the Project Gutenberg Etext of A Night\n",
        *(2, 1, 0),
    ),
}


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("name", EDITIONS)
def test_the_book_and_nothing_else(tmp_path, vocab, name, ending):
    before, after, header_lines, licence_lines, credits = EDITIONS[name]
    path = tmp_path / "pg1.txt.gz"
    path.write_bytes(gzip.compress((before + BODY + after).replace("\n", ending).encode()))
    assert list(read_documents(str(path), format="gutenberg")) == CHAPTERS
    run(path, vocab, tmp_path / "store", format="gutenberg")
    removed = json.loads((tmp_path / "store" / "manifest.json").read_text())["removed"]
    assert {entry["what"]: entry["number"] for entry in removed} == {
        what: number
        for what, number in (("header_lines", header_lines), ("licence_lines", licence_lines), ("credits", credits))
        if number
    }


def test_a_text_that_does_not_say_where_the_book_begins(tmp_path, vocab):
    (tmp_path / "a.txt").write_text(BODY)
    with pytest.raises(UserError, match=r"a.txt has no line like \*\*\* START OF .* --format=text"):
        run(tmp_path / "a.txt", vocab, tmp_path / "store", format="gutenberg")
    assert not (tmp_path / "store").exists()


PARAGRAPHS = [paragraphs for _, paragraphs, _ in documents.ARTICLES]
COPIES = 40


@pytest.fixture
def dump(tmp_path):
    return documents.write_of_dump(tmp_path / "xxwiki-pages-articles-multistream.xml.bz2", documents.pages() * COPIES)


def read(input):
    return [document.split("\n") for document in read_documents(str(input))]


@pytest.mark.parametrize("block_bytes", [100, 3000, 1 << 20])
@pytest.mark.parametrize("name", ["dump.xml", "dump.xml.bz2"])
def test_articles_are_their_paragraphs(tmp_path, monkeypatch, name, block_bytes):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
    path = documents.write_of_dump(tmp_path / name, documents.pages())
    assert read(path) == PARAGRAPHS


@pytest.mark.usefixtures("forked_workers")
def test_what_was_left_out_is_in_the_manifest_for_any_number_of_workers(tmp_path, dump, vocab, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 3000)
    for workers in (1, 2):
        run(dump, vocab, tmp_path / f"by_{workers}", workers=workers, sentences="split", language="de")
    assert contents(tmp_path / "by_1") == contents(tmp_path / "by_2")
    manifest = json.loads((tmp_path / "by_1" / "manifest.json").read_text())
    assert manifest["sources"][0]["format"] == "wikipedia"
    assert manifest["counts"]["documents"] == len(PARAGRAPHS) * COPIES
    expected = dict(documents.REMOVED_PAGES)
    for _, _, removed in documents.ARTICLES:
        expected = {key: expected.get(key, 0) + removed.get(key, 0) for key in {*expected, *removed}}
    expected["templates"] += 1  # of the page that is nothing else
    assert {entry["source"] for entry in manifest["removed"]} == {str(dump)}
    wanted = {what: number * COPIES for what, number in expected.items()}
    assert {entry["what"]: entry["number"] for entry in manifest["removed"]} == wanted


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
    path.write_bytes(b"".join(bz2.compress(part.encode()) for part in (documents.HEAD, *documents.pages())))
    refused(path, "ends before </mediawiki>")


def test_entities_are_never_expanded(tmp_path):
    declarations = (
        '<!DOCTYPE mediawiki [<!ENTITY a "lol"><!ENTITY b "&a;&a;"><!ENTITY c SYSTEM "file:///etc/passwd">]>\n'
    )
    evil = documents.page("Evil", 0, "").replace("></text>", ">&b; &c;</text>")
    path = tmp_path / "dump.xml"
    path.write_text(documents.HEAD + evil + "</mediawiki>\n")
    refused(path, "the page 'Evil' is not well-formed XML", "undefined entity")
    path.write_text(declarations + documents.HEAD + evil + "</mediawiki>\n")
    with pytest.raises(UserError, match="not a MediaWiki export"):
        list(read_documents(str(path), format="wikipedia"))


def test_a_page_that_is_too_long_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(blocks, "MAX_RECORD_BYTES", 4000)
    page = documents.page("Long", 0, "word " * 3000)
    refused(documents.write_of_dump(tmp_path / "dump.xml", [page]), "a page of more than", "pages-articles")


def test_a_damaged_head(tmp_path):
    path = documents.write_of_dump(tmp_path / "dump.xml", documents.pages())
    whole = path.read_text()
    for present, damaged in (('key="6"', 'key="six"'), ("</namespaces>", ""), ("</siteinfo>", "")):
        path.write_text(whole.replace(present, damaged))
        refused(path, "siteinfo")


def test_without_the_extra(tmp_path, monkeypatch):
    path = documents.write_of_dump(tmp_path / "dump.xml", documents.pages())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"dump.xml needs mwparserfromhell.*bert_jax\[corpora\]"):
        find_sources(str(path))


def test_exports_compressed_otherwise_and_of_several_files(tmp_path):
    data = documents.write_of_dump(tmp_path / "part1.xml", documents.pages()).read_bytes()
    (tmp_path / "part2.xml-p10p20.gz").write_bytes(gzip.compress(data))
    assert read(tmp_path / "part*") == PARAGRAPHS * 2


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
        assert [e.payload for e in read_blocks(source, start=block.end)] == [e.payload for e in whole[index + 1 :]]


@pytest.mark.usefixtures("forked_workers")
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
    expected = {"records_without_text": 2, "records_too_long": 2}
    assert {entry["what"]: entry["number"] for entry in manifest["removed"]} == expected
    refused(write(tmp_path / f"cut_{name}", [film[:-9]]), "ends within a record")


def test_bytes_that_are_not_utf8_are_found_in_their_file(tmp_path):
    records = [RECORDS[1], record("conversion", b"ab\xffc")]
    path = write(tmp_path / "a.wet", records)
    refused(path, f"byte {path.read_bytes().index(0xFF)} (0xff) is not UTF-8")
    assert list(read_documents(str(path), bad_utf8="replace"))[1] == "ab\ufffdc"


GOOGLE = """Computes the `mean` of all of the elements in the array.

    This is the first line of a paragraph that is wrapped
    over two lines, see :func:`~numpy.median` and [the guide](https://example.org/guide).

    >>> mean([1, 2])
    1.5

    Args:
      values: The numbers that are to be averaged, as a list or an array.
      axis (int): 0.

    Example::

        result = mean(values)  # The mean of the values is computed here for you.

    Returns:
      The mean, which is a scalar of the same type as the values.

    ```python
    The code in this block is not a sentence of the corpus.
    ```
    """
NUMPY = """
    Return the standard deviation of the values along an axis.

    Parameters
    ----------
    values : array_like
        The values of which the deviation is to be computed.

    Notes
    -----
    The square of it is the variance [1]_, as it is in every book.

    ======  =========================================
    a       The table is a thing that is to be left out.
    ======  =========================================

    .. versionadded:: 1.7 of the library is the first with it.
    """


def test_prose_of_docstrings():
    assert documentation.prose(GOOGLE) == [
        "Computes the mean of all of the elements in the array.",
        "This is the first line of a paragraph that is wrapped over two lines, see numpy.median and the guide.",
        "The numbers that are to be averaged, as a list or an array.",
        "The mean, which is a scalar of the same type as the values.",
    ]
    assert documentation.prose(NUMPY) == [
        "Return the standard deviation of the values along an axis.",
        "The values of which the deviation is to be computed.",
        "The square of it is the variance, as it is in every book.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "TODO.",
        "Dies ist ein deutscher Satz, der hier nicht bleiben soll und darf.",
        "x = f(y) + g(z) ** 2 # a.b.c.d",
        "no full stop at the end of the line",
        "a.b.c d.e.f g_h_i j(k) l[m] n{o} the.",
    ],
)
def test_what_is_not_english_prose_is_dropped(text):
    assert documentation.prose(text) == []


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A library directory of our own in place of the installation's."""
    monkeypatch.setattr(sysconfig, "get_paths", lambda: dict.fromkeys(("stdlib", "purelib", "platlib"), str(tmp_path)))
    monkeypatch.setattr(documentation, "MIN_DOCUMENT_CHARACTERS", 20)
    return tmp_path


def write_of_pages(path, source):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(source if isinstance(source, bytes) else source.encode())


def test_a_module_is_a_document_and_nothing_is_run(library):
    write_of_pages(
        library / "b.py",
        '"""The module is about the letter b."""\nraise SystemExit\n'
        'class C:\n  """The class is documented in the module."""\n'
        '  def f(self):\n    """The method is in the class of it."""\n',
    )
    write_of_pages(library / "a" / "__init__.py", '"""The package comes before the module in the order."""')
    write_of_pages(
        library / "pydoc_data" / "topics.py",
        "topics = {'x': '''The first topic is a text of its own.''', 'y': 'The second is one of the two.'}",
    )
    write_of_pages(library / "tests" / "c.py", '"""The tests are not a part of the corpus."""')
    write_of_pages(library / "a" / "test_d.py", '"""The test file is not a part of it."""')
    write_of_pages(library / "broken.py", b'"""The file is not Python')
    write_of_pages(library / "latin.py", b'"""The file is not in UTF-8: \xff and so on."""')
    write_of_pages(library / "z.py", '"""The module is about the letter b.\n\nThe rest of it is new to the corpus."""')
    texts = [text for text, _ in documentation.documents()]
    assert texts == [
        "The package comes before the module in the order.",
        "The module is about the letter b.\nThe class is documented in the module.\nThe method is in the class of it.",
        "The first topic is a text of its own.",
        "The second is one of the two.",
        "The rest of it is new to the corpus.",
    ]
    assert [share for _, share in documentation.documents()][-1] == 1


def test_the_description_follows_the_files(library):
    write_of_pages(library / "a.py", '"""One."""')
    before = documentation.describe()
    assert before[0] == 10 and documentation.describe() == before
    write_of_pages(library / "a.py", '"""Three."""')
    assert documentation.describe() != before


def test_the_standard_library_alone_is_a_corpus(monkeypatch):
    """Tens of thousands of sentences without any package, most of them as English as the language reference."""
    stdlib = sysconfig.get_paths()["stdlib"]
    monkeypatch.setattr(sysconfig, "get_paths", lambda: dict.fromkeys(("stdlib", "purelib", "platlib"), stdlib))
    before = set(sys.modules)
    texts = [text for text, _ in documentation.documents()]
    assert not {name for name in set(sys.modules) - before if name.startswith("pydoc_data")}
    split = make_splitter("split")
    sentences = [sentence for text in texts for sentence in split(text.split("\n"))]
    lines = [line for text in texts for line in text.split("\n")]
    # 320 and 13,790 in Python 3.11; 3.12 and 3.13 have fewer modules.
    assert len(texts) > 250 and len(sentences) > 10_000
    assert len(set(lines)) == len(lines)
    assert any("statement is used to wrap the execution of a block" in line for line in lines)
    assert not any(">>>" in line or "```" in line for line in lines)
