"""Documents of our own: text with something to learn in it, published collections, and what cannot be read."""

import bz2
import gzip
import json
import pathlib
import random
import string
from xml.sax.saxutils import escape

import numpy as np
import pytest

from bert_jax.config import PrepareConfig
from bert_jax.corpus.readers import read_documents
from bert_jax.data.preparation import prepare
from bert_jax.errors import UserError

TOPICS = {
    "garden": (["gardener", "rose", "spade", "hedge", "sparrow"], ["grows", "digs", "waters", "blooms", "wilts"]),
    "harbour": (["sailor", "anchor", "lighthouse", "gull", "tide"], ["sails", "sinks", "rises", "docks", "drifts"]),
    "kitchen": (["cook", "kettle", "oven", "loaf", "onion"], ["bakes", "boils", "simmers", "cools", "burns"]),
    "workshop": (["joiner", "hammer", "bench", "plank", "chisel"], ["cuts", "planes", "splits", "joins", "polishes"]),
}
PLACES = ["in the morning", "before noon", "after the rain", "without a sound", "once again"]


def documents(count: int, seed: int = 0) -> list[str]:
    """`count` documents of 4 to 12 sentences, one sentence a line."""
    generator, topics = np.random.default_rng(seed), list(TOPICS.values())
    texts = []
    for _ in range(count):
        nouns, verbs = topics[generator.integers(len(topics))]
        lines = []
        for _ in range(generator.integers(4, 13)):
            first, second = generator.integers(5, size=2)
            lines.append(
                f"The {nouns[first]} {verbs[first]} {PLACES[generator.integers(5)]} "
                f"and the {nouns[second]} {verbs[second]}."
            )
        texts.append("\n".join(lines))
    return texts


def write(path, count: int, seed: int = 0):
    path.write_text("\n\n".join(documents(count, seed)) + "\n", encoding="utf-8")
    return path


LETTERS = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase), "."]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]


def random_documents(count, seed=0):
    """Lists of lines; some documents are longer than a block of the tests, some sentences too."""
    rng = random.Random(seed)

    def sentence():
        words = (
            "".join(rng.choices(string.ascii_lowercase, k=rng.randrange(1, 8))) for _ in range(rng.randrange(1, 12))
        )
        return " ".join(words)

    return [[sentence() for _ in range(rng.choice((1, 2, 5, 5, 5, 60)))] for _ in range(count)]


def write_corpus(path, documents):
    text = "\n\n".join("\n".join(lines) for lines in documents) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def run(input, vocab, output, **options):
    return prepare.run_prepare(
        PrepareConfig(
            input=str(input), vocab=vocab, output=str(output), **{"sentences": "lines", "workers": 1, **options}
        )
    )


def contents(directory):
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def refused(path, *words: str, **options) -> None:
    """Read the documents of `path`, which ends with one line that has these words."""
    with pytest.raises(UserError) as error:
        list(read_documents(str(path), **options))
    assert all(word in str(error.value) for word in (path.name, *words))


def record(kind, body, content_type="text/plain"):
    body = body.encode() if isinstance(body, str) else body
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: http://example.org/\r\nContent-Type: {content_type}\r\n"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body + b"\r\n\r\n"


def write_of_record(path, records):
    """Write records as Common Crawl does: each is a stream of its own."""
    path.write_bytes(b"".join(gzip.compress(each) if path.suffix == ".gz" else each for each in records))
    return path


NAMESPACES = {-2: "Medium", 0: "", 1: "Diskussion", 6: "Datei", 10: "Vorlage", 14: "Kategorie"}

HEAD = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">\n  <siteinfo>\n'
    "    <sitename>Wikipedia</sitename>\n    <namespaces>\n"
    + "".join(f'      <namespace key="{key}" case="first-letter">{n}</namespace>\n' for key, n in NAMESPACES.items())
    + "    </namespaces>\n  </siteinfo>\n"
)

# (wikitext, its paragraphs, what is removed from it)
ARTICLES = [
    (
        """{{Infobox river
| name = Lena {{Coordinates|57|N}}
}}
'''Lena''' ({{IPA|ˈlʲenə}}) is a ''river'' in [[Asia (region)|Siberia]], [[Russia]].<ref name="a">A book.</ref><ref />
It&nbsp;is 4,294&nbsp;km long &amp; wide.<!-- check -->

== Course ==
{| class="wikitable"
! City !! Distance
|-
| [[Yakutsk]] || {{convert|1|km}}
|}
The river [http://example.org/upper rises] near [[Lake Baikal]].
[[Datei:Lena.jpg|thumb|The [[Lena (river)|Lena]] in ''spring''.]]
* [[Vitim]]
* [[Aldan]]
__NOTOC__
<gallery>
File:One.jpg|One
</gallery>
{{Navigation}}
[[Kategorie:River in Russia]]""",
        [
            "Lena is a river in Siberia, Russia.",
            "It\xa0is 4,294\xa0km long & wide.",
            "The river rises near Lake Baikal.",
        ],
        {
            **{"templates": 3, "references": 2, "comments": 1, "headings": 1, "tables": 1, "files": 1, "list_items": 2},
            **{"galleries": 1, "categories": 1},
        },
    ),
    (
        "<div>A ''first'' part.</div><blockquote>Quoted '''words'''.</blockquote>\n:indented\nSee [[:Datei:X.jpg]] and "
        "<nowiki>[[no link]]</nowiki>.<br/>Done <math>x^2</math>.\n[[Bild:Old.png|mini|Old name]]\n"
        "{| never closed\n| cell",
        ["A first part.", "Quoted words.", "See Datei:X.jpg and [[no link]]. Done."],
        {"list_items": 1, "other_elements": 1, "files": 1, "tables": 1},
    ),
    ("Straße, 東京, naïve, 😀: ''all'' kept.", ["Straße, 東京, naïve, 😀: all kept."], {}),
]

OTHER_PAGES = [
    ("Fluss", 0, "#REDIRECT [[Lena]]", '<redirect title="Lena" />', "wikitext"),
    ("Diskussion:Lena", 1, "Is this right?", "", "wikitext"),
    ("Vorlage:Navigation", 10, "A template.", "", "wikitext"),
    ("Lena.json", 0, "{}", "", "json"),
    ("Leer", 0, "{{only|a template}}", "", "wikitext"),
]

REMOVED_PAGES = {
    "redirects": 1,
    "pages_of_other_namespaces": 2,
    "pages_of_other_content_models": 1,
    "articles_without_text": 1,
}


def page(title: str, namespace: int, text: str, more: str = "", model: str = "wikitext") -> str:
    """Return a page as an export has it."""
    return (
        f"  <page>\n    <title>{escape(title)}</title>\n    <ns>{namespace}</ns>\n    <id>1</id>\n    {more}\n"
        f"    <revision>\n      <id>2</id>\n      <model>{model}</model>\n      <format>text/x-wiki</format>\n"
        f'      <text bytes="{len(text.encode())}" xml:space="preserve">{escape(text)}</text>\n'
        "    </revision>\n  </page>\n"
    )


def pages() -> list[str]:
    """Return the pages of the small dump: the articles, with the other pages after the first of them."""
    articles = [page(f"Article {index}", 0, text) for index, (text, _, _) in enumerate(ARTICLES)]
    return [articles[0], *(page(*other) for other in OTHER_PAGES), *articles[1:]]


def write_of_dump(path: pathlib.Path, pages: list[str]) -> pathlib.Path:
    """Write a dump; if its name says bz2, as the multistream dumps are: the head, some pages at a time, the end."""
    parts = [HEAD, *("".join(pages[i : i + 2]) for i in range(0, len(pages), 2)), "</mediawiki>\n"]
    multistream = path.suffix == ".bz2"
    path.write_bytes(b"".join(bz2.compress(part.encode()) if multistream else part.encode() for part in parts))
    return path


NAMES = ("a.txt", "a.txt.gz", "a.txt.zst", "a.jsonl", "dump.xml.bz2", "crawl.warc.wet.gz", "a.parquet", "a.arrow")


def written(path, documents):
    """Write documents, lists of lines, in the format that the name says; return the name."""
    texts = ["\n".join(lines) for lines in documents]
    plain = ("\n\n".join(texts) + "\n").encode()
    if path.name == "dump.xml.bz2":
        paragraphs = [text.replace("\n", "\n\n") for text in texts]
        write_of_dump(path, [page(f"Article {i}", 0, text) for i, text in enumerate(paragraphs)])
    elif path.suffix in (".parquet", ".arrow"):
        _write_table(path, texts)
    elif path.name == "a.txt.zst":
        path.write_bytes(pytest.importorskip("backports.zstd").compress(plain))
    elif path.name == "a.jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    elif path.name == "crawl.warc.wet.gz":
        path.write_bytes(b"".join(gzip.compress(_record(text.encode())) for text in texts))
    else:
        path.write_bytes(gzip.compress(plain) if path.suffix == ".gz" else plain)
    return str(path)


def _record(text):
    return b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: %d\r\n\r\n%s\r\n\r\n" % (len(text), text)


def _write_table(path, texts):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"text": texts})
    if path.suffix == ".parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=90)
    else:
        with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=70)
