"""Files of BEIR and others: what they say, and how damaged ones are refused."""

import bz2
import gzip

import pytest

from bert_jax.errors import UserError
from bert_jax.tools.search import beir
from bert_jax.tools.search.beir import Document

GOOD = b'{"_id": "a", "title": "One", "text": "first"}\n\n{"_id": "b", "text": "zw\xc3\xb6lf", "metadata": {}}\r\n'


@pytest.mark.parametrize(
    "name, contents",
    [
        ("corpus.jsonl", GOOD),
        ("corpus.jsonl", b"\xef\xbb\xbf" + GOOD),
        ("corpus.jsonl.gz", gzip.compress(GOOD)),
        ("corpus.jsonl.bz2", bz2.compress(GOOD)),
        ("corpus.tsv", "a\tOne\tfirst\nb\t\tzwölf\n".encode()),
    ],
    ids=["plain", "with a mark", "gzip", "bzip2", "tsv"],
)
def test_documents(tmp_path, name, contents):
    (tmp_path / name).write_bytes(contents)
    found = list(beir.read_corpus(str(tmp_path / name), beir.file_format(name)))
    assert found == [Document("a", "One", "first"), Document("b", "", "zwölf")]
    assert [each.whole for each in found] == ["One first", "zwölf"]  # as BEIR joins them
    if "jsonl" in name:
        assert beir.corpus_file(str(tmp_path)) == str(tmp_path / name)


def test_other_forms(tmp_path):
    (tmp_path / "corpus.txt").write_text("first\n\nthird\tone\n")
    assert [*beir.read_corpus(str(tmp_path / "corpus.txt"), "text")] == [
        Document("1", "", "first"),
        Document("3", "", "third\tone"),
    ]
    (tmp_path / "collection.tsv").write_text("12\tfirst\n")
    assert [*beir.read_corpus(str(tmp_path / "collection.tsv"), "tsv")] == [Document("12", "", "first")]
    (tmp_path / "empty.jsonl").write_text('{"_id": "a", "title": "", "text": " "}\n')
    (document,) = beir.read_corpus(str(tmp_path / "empty.jsonl"), "beir", keep_empty=True)
    assert document.whole == ""


LINE = b'{"_id": "a", "text": "first"}\n'
CORPORA = {
    "not JSON": (LINE + b'{"_id": "b", "text":\n', ", line 2 is not JSON"),
    "another value": (b"[1, 2]\n", ", line 1 must hold a JSON object"),
    "not UTF-8": (LINE + b'{"_id": "b", "text": "\xe9"}\n', r", line 2: not UTF-8 \(byte 0xe9\)"),
    "half a character": (b'{"_id": "a", "text": "\\ud800"}\n', ", line 1 is not JSON"),
    "a number as id": (b'{"_id": 1, "text": "first"}\n', ", line 1: _id=1; expected a string"),
    "no id": (b'{"id": "a", "text": "first"}\n', ", line 1: no '_id' but 'id, text'; expected a string"),
    "no text": (b'{"_id": "a", "title": "One"}\n', ", line 1: no 'text' but '_id, title'; expected a string"),
    "no title": (b'{"_id": "a", "title": null, "text": "x"}\n', ", line 1: title=None; expected a string"),
    "an empty id": (b'{"_id": " ", "text": "x"}\n', ", line 1: the id is empty"),
    "a tab in an id": (b'{"_id": "a\\tb", "text": "x"}\n', r", line 1: the id 'a\\tb' has a tab"),
    "an empty text": (LINE + b'{"_id": "b", "text": " "}\n', "line 2: the document 'b' has no text; .*--empty=keep"),
    "a name twice": (b'{"_id": "a", "_id": "b", "text": "x"}\n', ", line 1 has 2 values named '_id'"),
    "UTF-16": (LINE.decode().encode("utf-16"), "is UTF-16, not UTF-8"),
    "packed": (gzip.compress(LINE), r"is compressed \(gzip\), but its name does not say so"),
    "nothing": (b"", "is empty: 0 bytes"),
    "lines of a Macintosh": (LINE.replace(b"\n", b"\r") * 2, "its lines end in carriage returns alone"),
}


@pytest.mark.parametrize("name", CORPORA)
def test_damaged_corpora_are_refused(tmp_path, name):
    contents, says = CORPORA[name]
    file = tmp_path / "corpus.jsonl"
    file.write_bytes(contents)
    with pytest.raises(UserError, match=says):
        list(beir.read_corpus(str(file), "beir"))


def test_other_damaged_files_are_refused(tmp_path):
    (tmp_path / "ragged.tsv").write_text("a\tfirst\nb\n")
    with pytest.raises(UserError, match="line 2: 1 columns; expected 2"):
        list(beir.read_corpus(str(tmp_path / "ragged.tsv"), "tsv"))
    (tmp_path / "wide.tsv").write_text("a\tb\tc\td\n")
    with pytest.raises(UserError, match="line 1: 4 columns; expected id and text, or id, title and text"):
        list(beir.read_corpus(str(tmp_path / "wide.tsv"), "tsv"))
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(LINE * 50)[:-9])
    with pytest.raises(UserError, match="not a whole gzip file"):
        list(beir.read_corpus(str(tmp_path / "cut.jsonl.gz"), "beir"))
    (tmp_path / "bomb.jsonl.gz").write_bytes(gzip.compress(LINE.replace(b"first", b"a" * (1 << 22)) * 5, 1))
    with pytest.raises(UserError, match="more than 2 times as much text"):
        list(beir.read_corpus(str(tmp_path / "bomb.jsonl.gz"), "beir", max_expansion=2))
    for place, says in ((tmp_path / "none", "no such file"), ("/dev/zero", "not a file"), ("gs://a/b", "copy it here")):
        with pytest.raises(UserError, match=says):
            list(beir.read_corpus(str(place), "beir"))
    with pytest.raises(UserError, match="a directory without corpus.jsonl"):
        beir.corpus_file(str(tmp_path))


def test_queries(tmp_path):
    file = tmp_path / "queries.jsonl"
    for contents, says in {
        LINE + LINE: "two queries have the id 'a'",
        b'{"_id": "a", "text": ""}\n': "the query 'a' has no text",
        b"\n": "holds no query",
    }.items():
        file.write_bytes(contents)
        with pytest.raises(UserError, match=says):
            beir.read_queries(str(file))
    file.write_bytes(LINE)
    assert beir.read_queries(str(file)) == {"a": "first"}


QUERIES = {"q": "what", "r": "who"}
HEADER = "query-id\tcorpus-id\tscore\n"
JUDGEMENTS = {
    "no header": ("q\td\t1\n", "line 1: .* must be the header query-id corpus-id score"),
    "four columns": (f"{HEADER}q\t0\td\t1\n", "line 2: 4 columns; expected 3"),
    "a fraction": (f"{HEADER}q\td\t0.5\n", "line 2: the score '0.5' is no whole number"),
    "no number": (f"{HEADER}q\td\tyes\n", "line 2: the score 'yes' is no whole number"),
    "another query": (f"{HEADER}s\td\t1\n", "line 2: there is no query 's' among the 2 queries"),
    "a pair twice": (f"{HEADER}q\td\t1\nq\td\t0\n", "line 3: query 'q' and document 'd' are judged a second time"),
    "nothing": (HEADER, "holds no judgement"),
    "nothing relevant": (f"{HEADER}q\td\t0\nr\td\t-1\n", "no score is 1 or more, so no document is relevant"),
}


@pytest.mark.parametrize("name", JUDGEMENTS)
def test_damaged_judgements_are_refused(tmp_path, name):
    contents, says = JUDGEMENTS[name]
    (tmp_path / "test.tsv").write_text(contents)
    with pytest.raises(UserError, match=says):
        beir.read_judgements(str(tmp_path / "test.tsv"), QUERIES)


def test_judgements(tmp_path):
    (tmp_path / "test.tsv").write_text(f"{HEADER}q\td\t2\nq\te\t-1\nr\td\t0\n")
    assert beir.read_judgements(str(tmp_path / "test.tsv"), QUERIES) == {"q": {"d": 2, "e": -1}, "r": {"d": 0}}
