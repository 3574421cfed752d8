"""Web pages of a crawl, written here as servers send them: their text, what is counted, and what is hostile."""

import collections
import gzip
import json
import sys
import zlib

import pytest
from documents import contents, record, refused, run
from documents import write_of_record as write

from bert_jax.corpus import blocks, crawls
from bert_jax.corpus.readers import read_documents
from bert_jax.errors import UserError

pytest.importorskip("resiliparse")

SENTENCES = ["Straße und café sind Wörter.", "A second paragraph of the page, with more words in it."]
PAGE = (
    "<!doctype html><html><head><title>Title</title><style>p {color: red}</style></head><body>"
    "<nav><ul><li><a href=/>Home</a><li><a href=/about>About us</a></ul></nav>"
    f"<main><h1>Heading</h1><p>{SENTENCES[0]}\n<p>{SENTENCES[1]}<script>alert(1)</script></main>"
    "<footer>Copyright</footer></body></html>"
)
TEXT = "\n".join(["Heading", *SENTENCES])


def response(body, *headers, status="200 OK", content_type="text/html; charset=utf-8"):
    body = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def text_of(sent):
    removed = collections.Counter()
    text, lost = crawls.main_text(sent, "a.warc", removed)
    return text, lost, dict(removed)


def chunked(data, size):
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in [*parts, b""])


def raw_deflate(data):
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


DATA = PAGE.encode()


@pytest.mark.parametrize(
    "sent",
    [
        response(PAGE),
        response(PAGE, content_type="application/xhtml+xml"),
        response(PAGE).replace(b"HTTP/1.1 200 OK", b"HTTP/2 200"),
        response(PAGE, f"Content-Length: {len(DATA)}"),
        # As crawls keep it.
        response(PAGE, "Content-Encoding: gzip", "Transfer-Encoding: chunked", "Content-Length: 9"),
        response(PAGE, f"Content-Length: {len(DATA) + 1}"),
        response(gzip.compress(DATA), "Content-Encoding: gzip"),
        response(zlib.compress(DATA), "Content-Encoding: deflate"),
        response(raw_deflate(DATA), "Content-Encoding: deflate"),
        response(chunked(DATA, 50), "Transfer-Encoding: chunked"),
        response(chunked(gzip.compress(DATA), 7), "Transfer-Encoding: chunked", "Content-Encoding: GZIP"),
        response(PAGE.encode("cp1252"), content_type="text/html; charset=ISO-8859-1"),
        response(PAGE.encode("utf-16"), content_type="text/html; charset=ascii"),
        response(PAGE.replace("<head>", "<head><meta charset=latin1>").encode("latin-1"), content_type="text/html"),
        response(PAGE.encode("cp1252"), content_type="text/html"),  # nothing says so
        response(PAGE, content_type="text/html; charset=no-such"),
    ],
)
def test_the_text_of_a_page_however_it_was_sent(sent):
    assert text_of(sent) == (TEXT, 0, {})


def test_pages_packed_by_brotli_are_read_up_to_the_limit():
    brotli = pytest.importorskip("brotli")
    assert text_of(response(brotli.compress(DATA), "Content-Encoding: br")) == (TEXT, 0, {})
    bomb = response(brotli.compress(bytes(1 << 26), quality=1), "Content-Encoding: br")
    assert text_of(bomb) == ("", 0, {"pages_too_long": 1})


@pytest.mark.parametrize(
    "sent, why",
    [
        (response("", "Location: /b", status="301 Moved"), "responses_with_another_status"),
        (response(PAGE, status="404 Not Found"), "responses_with_another_status"),
        (response(b"\x89PNG", content_type="image/png"), "responses_of_other_types"),
        (response("text", content_type="text/plain"), "responses_of_other_types"),
        (b"", "damaged_responses"),
        (b"\xff\x00 no HTTP", "damaged_responses"),
        (b"HTTP/1.1 200 OK\r\n" + b"a" * 100_000, "damaged_responses"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000 + b"\r\n", "damaged_responses"),
        (response("zz\r\n", "Transfer-Encoding: chunked"), "damaged_responses"),
        (response(chunked(DATA, 50)[:-60], "Transfer-Encoding: chunked"), "damaged_responses"),
        (response(gzip.compress(DATA)[:-20], "Content-Encoding: gzip"), "damaged_responses"),
        (response(b"no gzip", "Content-Encoding: gzip"), "damaged_responses"),
        (response(b"x", "Content-Encoding: no-such"), "damaged_responses"),
        (response(b"", "Content-Encoding: br", "Transfer-Encoding: chunked"), "pages_without_text"),
        (response(b"\x8b\x05 no", "Content-Encoding: br"), "damaged_responses"),
        (response(gzip.compress(bytes(1 << 26)), "Content-Encoding: gzip"), "pages_too_long"),
        (response("<p>" + "a " * (1 << 21)), "pages_too_long"),
        (response("<div>" * 100_000 + "x"), "pages_nested_too_deeply"),
        (response(""), "pages_without_text"),
        (response("<title>a</title><script>b</script>"), "pages_without_text"),
    ],
)
def test_what_is_no_page_is_counted(sent, why):
    assert text_of(sent) == ("", 0, {why: 1})


def test_bytes_that_are_not_of_the_charset_are_replaced_and_counted():
    text, lost, removed = text_of(response(b"<p>one \xff\xfe two and \xef\xbf\xbd as it was"))
    assert (text, lost, removed) == ("one \ufffd\ufffd two and \ufffd as it was", 2, {})


RECORDS = [
    record("warcinfo", "Software-Info: a crawler\r\n", "application/warc-fields"),
    record("request", "GET / HTTP/1.1\r\n\r\n", "application/http; msgtype=request"),
    *(
        record("response", response(PAGE.replace("second", f"{i}th")), "application/http; msgtype=response")
        for i in range(20)
    ),
    record("response", response("", status="302 Found"), "application/http"),
    record("response", "127.0.0.1", "text/dns"),
]


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("block_bytes", [300, pytest.param(1 << 20, marks=pytest.mark.slow)])
def test_a_crawl_is_the_same_store_for_any_number_of_workers(tmp_path, vocab, monkeypatch, block_bytes):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
    path = write(tmp_path / "a.warc.gz", RECORDS)
    assert list(read_documents(str(path))) == [TEXT.replace("second", f"{i}th") for i in range(20)]
    for workers in (1, 2):
        run(path, vocab, tmp_path / f"by_{workers}", workers=workers)
    run(path, vocab, tmp_path / "by_beam", runner="beam")
    assert contents(tmp_path / "by_1") == contents(tmp_path / "by_2") == contents(tmp_path / "by_beam")
    manifest = json.loads((tmp_path / "by_1" / "manifest.json").read_text())
    expected = {"records_without_text": 3, "responses_with_another_status": 1}
    assert {entry["what"]: entry["number"] for entry in manifest["removed"]} == expected


@pytest.mark.parametrize("runner", ["local", "beam"])
def test_without_the_library_a_crawl_is_one_line_and_nothing_is_left(tmp_path, vocab, monkeypatch, runner):
    path = write(tmp_path / "a.warc.gz", RECORDS)
    monkeypatch.setitem(sys.modules, "resiliparse", None)
    with pytest.raises(UserError, match="text of web pages") as error:
        run(path, vocab, tmp_path / "store", runner=runner)
    assert "corpora" in str(error.value)
    assert not (tmp_path / "store").exists()


def test_a_crawl_that_is_cut_short_is_one_line(tmp_path):
    path = write(tmp_path / "a.warc", RECORDS)
    path.write_bytes(path.read_bytes()[:-9])
    refused(path, "ends within a record")
