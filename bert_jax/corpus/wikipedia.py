"""Articles of MediaWiki exports as running text, in any language.

Exports are the form of Wikipedia's dumps, `*-pages-articles*.xml.bz2`. A block holds whole `<page>` elements, and
each page is parsed by itself. So memory is bounded by one page, and no entity declaration, which could only be in the
prologue of the file, ever reaches the parser.

The text of a page is its paragraphs, without headings, lists and tables, as BERT's authors took them. Templates are
not expanded, so their text is missing from the sentence. The tokens of the syntax come from mwparserfromhell; the
tree that it would build from them takes several times as long.
"""

import collections
import functools
import html
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from xml.etree import ElementTree

from bert_jax.errors import UserError

MAX_HEAD_BYTES = 1 << 18
"""The beginning of a file that must hold its `<siteinfo>`; those of Wikipedia take 2 to 10 KB."""

_BEGINNING = re.compile(rb"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*<mediawiki[\s>]", re.DOTALL)
_SITE_INFORMATION = re.compile(rb"<siteinfo>.*?</siteinfo>", re.DOTALL)
_PAGE = re.compile(r"<page>.*?</page>", re.DOTALL)
_ARTICLES, _MEDIA, _FILES, _CATEGORIES = 0, -2, 6, 14


def begins(beginning: bytes) -> bool:
    """Return whether a file that begins like this is a MediaWiki export."""
    return bool(_BEGINNING.match(beginning.removeprefix(b"\xef\xbb\xbf")))


def site_information(head: bytes, name: str) -> bytes:
    """Return the `<siteinfo>` element at the beginning of a file, which has the names of the wiki's namespaces.

    Raises:
      UserError: the file does not begin like a MediaWiki export, or the element is damaged.
    """
    found = _SITE_INFORMATION.search(head)
    if not begins(head) or not found:
        raise UserError(
            f"{name} does not begin with <mediawiki …> and <siteinfo>, so it is not a MediaWiki export; give a file "
            "such as enwiki-20260901-pages-articles.xml.bz2"
        )
    try:
        namespace_names(found[0])
    except (ElementTree.ParseError, ValueError) as error:
        raise UserError(
            f"{name}: its <siteinfo> is not as MediaWiki writes it ({error}); fetch the dump again"
        ) from None
    return found[0]


def check_end(rest: bytes, name: str) -> None:
    """Raise a UserError if a file does not end as an export does."""
    if not rest.rstrip().endswith(b"</mediawiki>"):
        raise UserError(f"{name} ends before </mediawiki>, so it is not the whole dump; fetch it again")


def articles(text: str, head: bytes, where: str, removed: collections.Counter[str]) -> Iterator[str]:
    """Yield the text of each article in a block of pages, a paragraph per line.

    Args:
      text: the block.
      head: see `site_information`.
      where: file and place, for messages.
      removed: gets the numbers of pages and of parts of pages that are left out.

    Raises:
      UserError: a page is not well-formed XML.
    """

    names = namespace_names(head)
    for found in _PAGE.finditer(text):
        if source := _article(found[0], where, removed):
            if plain := plain_text(source, names, removed):
                yield plain
            else:
                removed["articles_without_text"] += 1


def _article(page: str, where: str, removed: collections.Counter[str]) -> str:
    """Return the wikitext of the page if it is an article, otherwise count it and return the empty string."""
    try:
        element = ElementTree.fromstring(page)
    except ElementTree.ParseError as error:
        title = re.search("<title>(.*?)</title>", page)
        which = f"the page {title[1]!r:.80}" if title else "a page"
        raise UserError(f"{where}: {which} is not well-formed XML ({error}); fetch the dump again") from None
    revisions = element.findall("revision")
    namespace, model = element.findtext("ns", "0").strip(), revisions[-1].findtext("model", "") if revisions else ""
    text = revisions[-1].findtext("text") if revisions else None
    if namespace != str(_ARTICLES):
        removed["pages_of_other_namespaces"] += 1
    elif element.find("redirect") is not None:
        removed["redirects"] += 1
    elif model not in ("", "wikitext"):
        removed["pages_of_other_content_models"] += 1
    elif not text:
        removed["articles_without_text"] += 1
    else:
        return text
    return ""


@functools.lru_cache(maxsize=4)
def namespace_names(head: bytes) -> dict[str, str]:
    """Return the names of the namespaces whose links are no text, in lower case, and what each is counted as."""
    kinds = {_MEDIA: "files", _FILES: "files", _CATEGORIES: "categories"}
    names = {"file": "files", "image": "files", "media": "files", "category": "categories"}  # valid in every wiki
    for element in ElementTree.fromstring(head).iter("namespace"):
        if (kind := kinds.get(int(element.get("key", "0")))) and element.text:
            names[element.text.lower()] = kind
    return names


_LIST_ITEM = "\0"  # XML has no such character
_OPENING = {
    "TemplateOpen": "templates",
    "ArgumentOpen": "templates",
    "CommentStart": "comments",
    "HeadingStart": "headings",
    "WikilinkOpen": "link",
    "ExternalLinkOpen": "address",
    "HTMLEntityStart": "entity",
    "TagOpenOpen": "element",
}
_CLOSING = {
    *("TemplateClose", "ArgumentClose", "CommentEnd", "HeadingEnd", "WikilinkClose", "ExternalLinkClose"),
    *("HTMLEntityEnd", "TagCloseClose", "TagCloseSelfclose"),
}
_REMOVED_ELEMENTS = {
    "table": "tables",
    "ref": "references",
    "references": "references",
    "gallery": "galleries",
    "li": "list_items",
    "dd": "list_items",
    "dt": "list_items",
    **dict.fromkeys(
        (
            *("math", "chem", "ce", "score", "timeline", "graph", "hiero", "syntaxhighlight", "source", "pre"),
            *("imagemap", "inputbox", "section", "indicator", "mapframe", "maplink", "templatedata", "templatestyles"),
            *("categorytree", "style", "noinclude", "includeonly"),
        ),
        "other_elements",
    ),
}
_BLOCK_ELEMENTS = {"p", "div", "blockquote", "center", "poem", "hr", "ul", "ol", "dl"}
_FILE_NAME = re.compile(
    r"(?i)[^:|]+:[^:|]+\.(jpe?g|png|gif|svg|tiff?|webp|pdf|djvu|og[gvam]|opus|wav|mp3|webm|mid)\s*$"
)
_SWITCH = re.compile(r"__[^\W\d_]+__")
_EMPTY_BRACKETS = re.compile(r" ?[(\[（][\s,;:/–-]*[)\]）]")
_BRACKET_BEGINNING = re.compile(r"([(（])[\s,;:]+")
_SPACE_BEFORE = re.compile(r" +([,.;:!?)])")
_SPACES = re.compile(r"[ \t]+")
_QUOTES = re.compile(r"'{2,}")
_HAS_WORD = re.compile(r"[^\W_]")


class _Part:
    """The page, or a template, link, element or the like of which the end has not been read."""

    __slots__ = ("contents", "kind", "left_out", "texts", "token")

    def __init__(self, kind: str, token: Any = None):
        self.kind: str = kind
        self.token: Any = token
        self.texts: list[list[str]] = [[]]
        """What its sections show so far: of a link the title and the text, of an element name, attributes, contents."""
        self.contents: int | None = None
        """Index of the section between the tags of an element."""
        self.left_out: list[str] = []
        """The kinds of what is left out of it."""

    def text(self, section: int) -> str:
        return "".join(self.texts[section])


def plain_text(source: str, namespaces: dict[str, str], removed: collections.Counter[str]) -> str:
    """Return the paragraphs of a page of wikitext, each on a line.

    Args:
      namespaces: see `wikipedia.namespace_names`.
      removed: gets the number of templates, tables, references, galleries, files, categories, comments, headings, list
        items and other elements that are left out; what is inside one of them is not counted.
    """
    shown, left_out = _render(_tokenizer()(source), namespaces)
    removed.update(left_out)
    lines = []
    for line in shown.split("\n"):
        line = line.strip()
        if line.startswith(_LIST_ITEM):
            removed["list_items"] += 1
        elif line.startswith(("{|", "|", "!")):  # of a table that is never closed
            removed["tables"] += line.startswith("{|")
        elif _HAS_WORD.search(line := _tidied(line)):
            lines.append(line)
    return "\n".join(lines)


@functools.cache
def _tokenizer() -> Callable[[str], list[Any]]:
    try:
        from mwparserfromhell.parser._tokenizer import CTokenizer
    except ImportError:  # where there is no wheel and no compiler
        from mwparserfromhell.parser.tokenizer import Tokenizer as CTokenizer
    return lambda source: CTokenizer().tokenize(source)


def _render(tokens: Iterable[Any], namespaces: dict[str, str]) -> tuple[str, list[str]]:
    """Return what the tokens of a page show, and the kind of each thing that is left out of it."""
    stack = [_Part("page")]
    for token in tokens:
        name = type(token).__name__
        if name == "Text":
            stack[-1].texts[-1].append(token["text"])
        elif name in _OPENING:
            stack.append(_Part(_OPENING[name], token))
        elif name in _CLOSING:
            part = stack.pop()
            kind, shown = _shown(part, namespaces)
            stack[-1].texts[-1].append(shown)
            stack[-1].left_out += [kind] if kind else part.left_out
        else:  # what separates two sections
            stack[-1].texts.append([])
            if name == "TagCloseOpen":
                stack[-1].contents = len(stack[-1].texts) - 1
            elif name in ("HTMLEntityNumeric", "HTMLEntityHex"):
                stack[-1].texts[-1].append("#x" if name == "HTMLEntityHex" else "#")
    return stack[0].text(0), stack[0].left_out


def _shown(part: _Part, namespaces: dict[str, str]) -> tuple[str, str]:
    """Return (what kind of thing is left out, if it is; what is shown otherwise)."""
    if part.kind == "link":
        return _shown_link(part, namespaces)
    if part.kind == "element":
        return _shown_element(part)
    if part.kind == "address":
        return "", part.text(1) if len(part.texts) > 1 else ""
    if part.kind == "entity":
        return "", html.unescape(f"&{part.text(-1)};")
    return part.kind, ""


def _shown_link(part: _Part, namespaces: dict[str, str]) -> tuple[str, str]:
    title = part.text(0).strip()
    prefix = title.partition(":")[0].strip().lower().replace("_", " ")
    if ":" in title and (kind := namespaces.get(prefix)):
        return kind, ""
    if _FILE_NAME.match(title):  # by another of the names that a wiki has for files
        return "files", ""
    return "", part.text(1) if len(part.texts) > 1 else title.removeprefix(":")


def _shown_element(part: _Part) -> tuple[str, str]:
    name = part.text(0).strip().lower()
    if name in ("li", "dd", "dt") and part.token.get("wiki_markup"):
        return "", _LIST_ITEM  # the item is the rest of the line
    if kind := _REMOVED_ELEMENTS.get(name):
        return kind, ""
    if name == "br":
        return "", " "
    edge = "\n" if name in _BLOCK_ELEMENTS else ""
    return "", edge + (part.text(part.contents) if part.contents is not None else "") + edge


def _tidied(line: str) -> str:
    """Close the gaps that removed parts have left."""
    line = _QUOTES.sub("", _SWITCH.sub("", line)).replace(_LIST_ITEM, "")
    line = _SPACES.sub(" ", line)
    line = _BRACKET_BEGINNING.sub(r"\1", _EMPTY_BRACKETS.sub("", line))
    return _SPACE_BEFORE.sub(r"\1", line).strip()
