"""A small dump in the form of MediaWiki's exports, and what its articles say: written by hand, not by the product."""

import bz2
import pathlib
from xml.sax.saxutils import escape

NAMESPACES = {-2: "Medium", 0: "", 1: "Diskussion", 6: "Datei", 10: "Vorlage", 14: "Kategorie"}

HEAD = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">\n  <siteinfo>\n'
    "    <sitename>Wikipedia</sitename>\n    <namespaces>\n"
    + "".join(
        f'      <namespace key="{key}" case="first-letter">{name}</namespace>\n' for key, name in NAMESPACES.items()
    )
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
            "templates": 3,
            "references": 2,
            "comments": 1,
            "headings": 1,
            "tables": 1,
            "files": 1,
            "list_items": 2,
            "galleries": 1,
            "categories": 1,
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


def write(path: pathlib.Path, pages: list[str]) -> pathlib.Path:
    """Write a dump; if its name says bz2, as the multistream dumps are: the head, some pages at a time, the end."""
    parts = [HEAD, *("".join(pages[i : i + 2]) for i in range(0, len(pages), 2)), "</mediawiki>\n"]
    multistream = path.suffix == ".bz2"
    path.write_bytes(b"".join(bz2.compress(part.encode()) if multistream else part.encode() for part in parts))
    return path
