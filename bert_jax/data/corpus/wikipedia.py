"""Articles of a MediaWiki export, the form of Wikipedia's dumps (`*-pages-articles*.xml.bz2`), in any language.

A block holds whole `<page>` elements, and each page is parsed by itself. So the memory is that of one page, and no
declaration of an entity, which could only be in the prologue of the file, ever reaches the parser.
"""

import collections
import functools
import re
from collections.abc import Iterator
from xml.etree import ElementTree

from bert_jax.errors import UserError, need_extra

MAX_HEAD_BYTES = 1 << 18
"""The beginning of a file that must hold its `<siteinfo>`; those of Wikipedia take 2 to 10 KB."""

_BEGINNING = re.compile(rb"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*<mediawiki[\s>]", re.DOTALL)
_SITE_INFORMATION = re.compile(rb"<siteinfo>.*?</siteinfo>", re.DOTALL)
_PAGE = re.compile(r"<page>.*?</page>", re.DOTALL)
_ARTICLES, _MEDIA, _FILES, _CATEGORIES = 0, -2, 6, 14


def begins(beginning: bytes) -> bool:
    """Return whether a file that begins like this is a MediaWiki export."""
    return bool(_BEGINNING.match(beginning.removeprefix(b"\xef\xbb\xbf")))


def need_parser(name: str) -> None:
    """Check that the parser of wikitext is installed.

    Raises:
      UserError: it is not.
    """
    need_extra("mwparserfromhell", "corpora", name)


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
    """Check that a file ends as an export does.

    Raises:
      UserError: it does not.
    """
    if not rest.rstrip().endswith(b"</mediawiki>"):
        raise UserError(f"{name} ends before </mediawiki>, so it is not the whole dump; fetch it again")


def articles(text: str, head: bytes, where: str, removed: collections.Counter[str]) -> Iterator[str]:
    """Yield the text of each article in a block of pages, a paragraph per line; see wikitext.py.

    Args:
      text: the block.
      head: see `site_information`.
      where: file and place, for messages.
      removed: gets the numbers of pages and of parts of pages that are left out.

    Raises:
      UserError: a page is not well-formed XML.
    """
    from bert_jax.data.corpus.wikitext import plain_text

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
