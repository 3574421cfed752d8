"""Writes text as a dump of Wikipedia, with the markup that a real article has, to measure how fast dumps are read.

    python scripts/make_wikipedia_dump.py TEXT.txt.gz DUMP.xml.bz2 [MEGABYTES]

TEXT has a paragraph per line and a blank line between articles. Each article gets an infobox before its text, a
reference after every sixth end of a sentence, a link on every twelfth word, a file, a heading, a table, a list and a
category, so that nearly half of the wikitext is no running text. The dump has streams of 100 pages, as the multistream
dumps have. The text is repeated until the dump has MEGABYTES (100) of XML.
"""

import bz2
import gzip
import itertools
import re
import sys
from xml.sax.saxutils import escape

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">
  <siteinfo>
    <namespaces>
      <namespace key="0" case="first-letter" />
      <namespace key="6" case="first-letter">File</namespace>
      <namespace key="14" case="first-letter">Category</namespace>
    </namespaces>
  </siteinfo>
"""
REFERENCE = (
    "<ref>{{cite book |last=Author |first=A. |title=The title of a book |publisher=House |year=1999 |pages=1–20 "
    "|url=https://example.org/some/long/path |access-date=1 January 2020}}</ref>"
)
INFOBOX = "{{Infobox\n" + "".join(f"| field_{i} = some value {{{{nowrap|{i} km}}}}\n" for i in range(12)) + "}}\n"
TABLE = (
    '\n{| class="wikitable"\n! Name !! Number\n' + "".join(f"|-\n| [[Row {i}]] || {i}\n" for i in range(12)) + "|}\n"
)
TAIL = TABLE + "* [[One]]\n* [[Two]]\n* [[Three]]\n\n== References ==\n{{reflist}}\n[[Category:Articles]]\n"
STREAM_PAGES = 100


def marked_up(article: str) -> str:
    """Return wikitext that says what `article` says."""
    ends = itertools.count(1)
    lines = []
    for line in article.split("\n"):
        words = re.sub(r"[\[\]{}|<>=']", "", line).split(" ")
        for index in range(5, len(words), 12):
            if words[index].isalpha():
                words[index] = f"[[{words[index].title()} (article)|{words[index]}]]"
        line = re.sub(r"\. ", lambda _: f".{REFERENCE} " if next(ends) % 6 == 1 else ". ", " ".join(words))
        lines.append(line)
    return (
        INFOBOX
        + lines[0]
        + "\n[[File:A picture.jpg|thumb|What it [[shows]]]]\n\n== History ==\n"
        + "\n\n".join(lines[1:])
        + TAIL
    )


def page(number: int, article: str) -> str:
    return (
        f"  <page>\n    <title>Article {number}</title>\n    <ns>0</ns>\n    <id>{number}</id>\n    <revision>\n"
        f'      <model>wikitext</model>\n      <text xml:space="preserve">{escape(marked_up(article))}</text>\n'
        "    </revision>\n  </page>\n"
    )


def main(text: str, dump: str, megabytes: str = "100") -> None:
    with gzip.open(text, "rt", encoding="utf-8") as file:
        articles = [article for article in file.read().strip().split("\n\n") if article.strip()]
    written, pages = 0, (page(number, article.strip()) for number, article in enumerate(itertools.cycle(articles)))
    with open(dump, "wb") as file:
        file.write(bz2.compress(HEAD.encode()))
        while written < float(megabytes) * 1e6:
            stream = "".join(itertools.islice(pages, STREAM_PAGES)).encode()
            written += len(stream)
            file.write(bz2.compress(stream))
        file.write(bz2.compress(b"</mediawiki>\n"))
    print(f"{dump}: {written / 1e6:,.1f} MB of XML, of which {len(articles):,} articles are different")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
