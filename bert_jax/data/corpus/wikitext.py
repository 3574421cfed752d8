"""The running text of a wiki page: its paragraphs, without headings, lists and tables, as BERT's authors took them.

Templates are not expanded, so what they would say is missing from its sentence. The syntax is read by mwparserfromhell.
"""

import collections
import re
from typing import Any

_LIST_ITEM = "\0"  # XML has no such character
_REMOVED_TAGS = {
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
_BLOCK_TAGS = {"p", "div", "blockquote", "center", "poem", "hr", "ul", "ol", "dl"}
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


def plain_text(source: str, namespaces: dict[str, str], removed: collections.Counter[str]) -> str:
    """Return the paragraphs of a page of wikitext, each on a line.

    Args:
      source: the wikitext.
      namespaces: see `wikipedia.namespace_names`.
      removed: gets the number of templates, tables, references, galleries, files, categories, comments, headings, list
        items and other elements that are left out; what is inside one of them is not counted.
    """
    import mwparserfromhell

    parts: list[str] = []
    _render(mwparserfromhell.parse(source), parts, namespaces, removed)
    lines = []
    for line in "".join(parts).split("\n"):
        line = line.strip()
        if line.startswith(_LIST_ITEM):
            removed["list_items"] += 1
        elif line.startswith(("{|", "|", "!")):  # of a table that is never closed
            removed["tables"] += line.startswith("{|")
        elif _HAS_WORD.search(line := _tidied(line)):
            lines.append(line)
    return "\n".join(lines)


def _render(code: Any, parts: list[str], namespaces: dict[str, str], removed: collections.Counter[str]) -> None:
    for node in code.nodes:
        kind = type(node).__name__
        if kind == "Text":
            parts.append(node.value)
        elif kind == "Wikilink":
            _render_link(node, parts, namespaces, removed)
        elif kind == "Tag":
            _render_tag(node, parts, namespaces, removed)
        elif kind == "HTMLEntity":
            parts.append(node.normalize())
        elif kind == "ExternalLink":
            if node.title is not None:
                _render(node.title, parts, namespaces, removed)
        elif kind == "Heading":
            removed["headings"] += 1
        elif kind == "Comment":
            removed["comments"] += 1
        else:  # a template, or an argument of one
            removed["templates"] += 1


def _render_link(node: Any, parts: list[str], namespaces: dict[str, str], removed: collections.Counter[str]) -> None:
    title = str(node.title).strip()
    prefix = title.partition(":")[0].strip().lower().replace("_", " ")
    kind = namespaces.get(prefix, "") if ":" in title else ""
    if not kind and _FILE_NAME.match(title):  # by another of the names that a wiki has for files
        kind = "files"
    if kind:
        removed[kind] += 1
    elif node.text is not None:
        _render(node.text, parts, namespaces, removed)
    else:
        parts.append(title.removeprefix(":"))


def _render_tag(node: Any, parts: list[str], namespaces: dict[str, str], removed: collections.Counter[str]) -> None:
    name = str(node.tag).strip().lower()
    if name in ("li", "dd", "dt") and node.wiki_markup:
        parts.append(_LIST_ITEM)  # the item is the rest of the line
    elif kind := _REMOVED_TAGS.get(name):
        removed[kind] += 1
    elif name == "br":
        parts.append(" ")
    else:
        edge = "\n" if name in _BLOCK_TAGS else ""
        parts.append(edge)
        if node.contents is not None:
            _render(node.contents, parts, namespaces, removed)
        parts.append(edge)


def _tidied(line: str) -> str:
    """Close the gaps that removed parts have left."""
    line = _QUOTES.sub("", _SWITCH.sub("", line)).replace(_LIST_ITEM, "")
    line = _SPACES.sub(" ", line)
    line = _BRACKET_BEGINNING.sub(r"\1", _EMPTY_BRACKETS.sub("", line))
    return _SPACE_BEFORE.sub(r"\1", line).strip()
