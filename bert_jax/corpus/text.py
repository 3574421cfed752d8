"""Plain text: books of Project Gutenberg, hard-wrapped lines, and splitting into sentences.

A book is stripped of its header, its licence and the names of its transcribers. Paragraphs are separated by blank
lines and their lines are wrapped. Before a chapter there are at least three blank lines (the rules of Distributed
Proofreaders say four), so a chapter is a document.

Lines of hard-wrapped text end where the next word would not have fitted, as in most books in plain text. A wrapped
line may end within a sentence, so lines are joined before sentences are found. The end of a paragraph shows even
without blank lines: its last line had room for another word.

A sentence splitter is a callable from a list of lines to a list of sentences; no sentence spans two lines, and none
is empty. The rules and abbreviations of some 300 languages come from `sentencex` (Wikimedia), which needs no model
and no download.
"""

import collections
import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any

from bert_jax.errors import UserError

_START = re.compile(
    r"(?im)^[ \t]*(\*\*\* ?START OF (THE|THIS) PROJECT GUTENBERG[^\n]*"
    r"|\*END[ *]*THE SMALL PRINT![^\n]*(\n[^\n]*\*END\*)?[^\n]*)$"
)
_END = re.compile(
    r"(?im)^[ \t]*(\*\*\* ?END OF (THE|THIS) PROJECT GUTENBERG|(This is )?(the )?End of (the |this )?Project Gutenberg)"
)
_CREDIT = re.compile(
    r"(?is)\s*((e-?text |this e-?book was |this etext was )?(produced|prepared|transcribed|scanned|proofed|typed) by\b"
    r"|\[?transcriber[’']?s? notes?\b|\[illustration).*"
)
_CHAPTER = re.compile(r"\n(?:[ \t]*\n){3,}")
_PARAGRAPH = re.compile(r"\n(?:[ \t]*\n)+")


def chapters(text: str, name: str, removed: collections.Counter[str]) -> list[str]:
    """Return the chapters of a book, with a paragraph per line.

    Args:
      text: the whole file, with line feeds.
      removed: gets the numbers of lines of the header and of the licence, and of paragraphs of credits.

    Raises:
      UserError: the line at which the book begins is missing.
    """
    start = _START.search(text)
    if not start:
        raise UserError(
            f"{name} has no line like *** START OF THE PROJECT GUTENBERG EBOOK, so header and book cannot be told "
            "apart; take it out of the input, or read it with --format=text"
        )
    end = _END.search(text, start.end())
    body = text[start.end() : end.start() if end else None]
    removed["header_lines"] += _lines(text[: start.end()])
    removed["licence_lines"] += _lines(text[end.start() :]) if end else 0
    found = [_paragraphs(chapter) for chapter in _CHAPTER.split(body)]
    while found and (not found[0] or _CREDIT.fullmatch(found[0][0])):
        removed["credits"] += bool(found[0])
        found[0] = found[0][1:]
        if not found[0]:
            found.pop(0)
    return ["\n".join(paragraphs) for paragraphs in found if paragraphs]


def _paragraphs(chapter: str) -> list[str]:
    return [joined for part in _PARAGRAPH.split(chapter) if (joined := " ".join(part.split()))]


def _lines(text: str) -> int:
    return sum(1 for line in text.split("\n") if line.strip())


SentenceSplitter = Callable[[list[str]], list[str]]

_LANGUAGES = frozenset(
    # all of ISO 639 that have two letters
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el "
    "en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu "
    "ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mo mr ms mt my "
    "na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm "
    "sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh "
    "zu "
    # those of three letters, and of parts, to which sentencex gives the rules of a relative; others get English ones
    "abs ace ady aeb aln alt ami anp arn arq ary arz ast atj avk awa azb ban bar bbc bcc bgn bjn bpy bqi btm bug "
    "bxr cdo crh csb dsb dtp dty egl eml ext fit frc frp frr fur gag gan gcr glk gom gor gsw guc hak hif hrx hsb "
    "hyw inh jam jut kaa kab kbd kbp khw kiu kjp koi krc krl ksh kum lad lbe lez lij liv lki lld lmo lrc ltg luz "
    "lzh lzz mad mai mdf mhr min mnw mrj mwl myv mzn nah nan nap nds nia nrm olo pcd pdc pdt pfl pih pms pnt qug "
    "rgn rmy rue rup ruq sah scn sco sdc sdh ses sgs shi shy skr sli smn srn stq sty szl szy tay tcy tet trv tyv "
    "udm vec vep vls vmf vot vro wuu xal xmf zea zgh cbk-zam map-bms nds-nl roa-tara".split()
)

WINDOW = 10_000
"""Characters passed to sentencex at once: more slow it down, and an unclosed quotation mark joins everything after
it."""

# sentencex 1.0 panics if an initial is followed by a space of more than one byte ("J\u00a0."); all spaces are alike to
# BERT.
_WIDE_SPACES = "\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_SPACES = str.maketrans(dict.fromkeys(_WIDE_SPACES, " "))
_PLAIN_SENTENCE = re.compile(r"(?s).+?(?:[.!?]\s+|$)")
_PAIRED = str.maketrans(dict.fromkeys('"“”„«»‘’()[]{}「」『』《》', " "))


def make_splitter(method: str, language: str = "en") -> SentenceSplitter:
    """Return the splitter for `method` "split" (find the sentences) or "lines" (each line is one).

    Raises:
      UserError: `language` is not the code of one, or of one whose rules are not known.
    """
    code = known_language(language)
    if method == "lines":
        return _stripped
    return lambda lines: _stripped(sentence for line in lines for sentence in _split_line(line, code))


def known_language(language: str) -> str:
    """Return the code without a country or script for which there are no rules of its own: en for en-gb.

    Raises:
      UserError: `language` is not the code of one, or of one whose rules are not known.
    """
    if not re.fullmatch(r"[a-z]{2,3}(-[a-z0-9]+)*", language):
        raise UserError(f"language={language!r} is not a language code such as en, de or zh")
    found = next((code for code in (language, language.partition("-")[0]) if code in _LANGUAGES), None)
    if found is None:
        raise UserError(
            f"language={language} is a code without rules for sentences; give that of ISO 639 with two letters, such "
            "as en and not eng, if there is one, or that of a related language"
        )
    return found


def _stripped(texts: Any) -> list[str]:
    return [stripped for text in texts if (stripped := text.strip())]


def _split_line(line: str, language: str) -> list[str]:
    line = line.translate(_SPACES)
    if len(line) <= WINDOW:
        return _segment(line, language)
    sentences, start, unfinished = [], 0, False
    while start < len(line):
        window = line[start : start + WINDOW]
        found = _segment(window, language)
        last = start + WINDOW >= len(line)
        if not last and len(found) == 1:
            found = _split_ignoring_pairs(window, language)
        goes_on = not last and len(found) == 1
        if not last and not goes_on:
            found.pop()  # the window may have cut it short
        start += sum(map(len, found))
        if unfinished:
            sentences[-1] += found.pop(0)
        sentences += found
        unfinished = goes_on
    return sentences


def _split_ignoring_pairs(text: str, language: str) -> list[str]:
    """Split as if there were no quotation marks or brackets: sentencex never splits between one and its partner."""
    sentences, start = [], 0
    for blanked in _segment(text.translate(_PAIRED), language):
        sentences.append(text[start : start + len(blanked)])
        start += len(blanked)
    return sentences


def _segment(text: str, language: str) -> list[str]:
    """Return the sentences of `text`, which joined give `text` again."""
    from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue] (compiled, without types)

    try:
        return segment(language, text)
    except BaseException as error:  # a panic in Rust: one odd line must not end a run of several hours
        if type(error).__name__ != "PanicException":
            raise
        return _PLAIN_SENTENCE.findall(text)


SAMPLE_CHARACTERS = 1 << 18
"""Length of the beginning of a source by which all of it is judged."""

MIN_LINES, MIN_COLUMN = 10, 40
"""Fewer lines are too few to judge; shorter ones are verse, tables and lists of words."""

MIN_BROKEN = 0.3
"""Share of the lines that break a sentence at the column. Three wrapped novels have 0.61 to 0.68; Wikipedia and three
novels with one paragraph per line have 0.000."""

_SENTENCE_END = re.compile(r"[.!?:;…][\"'”’»)\]*_]*$")


def find_column(lines: Iterable[str]) -> tuple[int, bool]:
    """Return the column at which `lines` are wrapped if they are, and whether they are.

    An empty line separates documents. Only the first SAMPLE_CHARACTERS are read. The column is the length that nine of
    ten lines do not exceed: the maximum would be misled by one long line, and a column that is slightly too small only
    joins the last line of a few paragraphs to the next one, which divides no sentence.
    """
    sample = _sample(lines)
    lengths = sorted(len(line) for line in sample if line)
    column = lengths[int(0.9 * (len(lengths) - 1))] if lengths else 0
    return column, _is_wrapped(sample, column)


def _is_wrapped(lines: list[str], column: int) -> bool:
    """Return whether so many sentences break at `column` that it must be why; the text must not be all lowercase."""
    pairs = [(line, following) for line, following in itertools.pairwise(lines) if line and following]
    broken = sum(
        following.lstrip()[0].islower() and not _SENTENCE_END.search(line) and _overflows(line, following, column)
        for line, following in pairs
    )
    return len(pairs) >= MIN_LINES and column >= MIN_COLUMN and broken >= MIN_BROKEN * len(pairs)


def _sample(lines: Iterable[str]) -> list[str]:
    taken, size = [], 0
    for line in lines:
        taken.append(line.rstrip())
        size += len(line) + 1
        if size >= SAMPLE_CHARACTERS:
            break
    return taken


def continues(line: str, following: str, column: int) -> bool:
    """Return whether `following` continues the paragraph of `line`: it is lowercase, or its first word had no room."""
    line, following = line.rstrip(), following.lstrip()
    return following[:1].islower() or _overflows(line, following, column)


def _overflows(line: str, following: str, column: int) -> bool:
    first_word = (following.split(maxsplit=1) or [""])[0]
    return len(line) + 1 + len(first_word) > column


def join_lines(lines: list[str], column: int) -> list[str]:
    """Return the paragraphs of a document, each as one line; none of `lines` is blank."""
    paragraphs: list[list[str]] = []
    for index, line in enumerate(lines):
        if index and continues(lines[index - 1], line, column):
            paragraphs[-1].append(line.strip())
        else:
            paragraphs.append([line.strip()])
    return [" ".join(paragraph) for paragraph in paragraphs]


def last_paragraph(text: bytes, column: int) -> int:
    """Return where in `text` the last complete line that begins a paragraph begins, or 0 if there is none.

    `text` has no blank line and may end anywhere.
    """
    lines = text.splitlines(keepends=True)
    end = len(text)
    for index in range(len(lines) - 1, 0, -1):
        end -= len(lines[index])
        line, following = (lines[i].decode(errors="replace") for i in (index - 1, index))
        if following.endswith(("\n", "\r")) and not continues(line, following, column):
            return end
    return 0
