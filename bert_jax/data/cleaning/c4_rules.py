"""The rules of C4 about lines and pages (Raffel et al. 2020, section 2.2), with the numbers of its published code."""

import re

from bert_jax.data.cleaning.word_boundaries import words_with_marks

LONGEST_WORD = 1_000
FEWEST_WORDS = 5
"""Least number of words in a line."""
FEWEST_SENTENCES = 3
"""Least number of sentences in a page."""
END_MARKS = (".", "?", "!", '"', "。", "？", "！")
"""Ends of a line: those of the published code, and those of Chinese and Japanese."""
POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")

_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
_SENTENCE_END = re.compile(r"[.?!]+[\"”’')\]]*(?=\s|$)|[。？！]+")


def clean_page(lines: list[str]) -> tuple[list[str], dict[str, list[str]], str | None]:
    """Apply the rules.

    C4's list of obscene words is not applied, and neither is its rule about sentences that occur on several pages;
    for those see deduplicate.

    Returns:
      (the lines that stay, the lines that go by rule, the rule by which the whole page goes or None)
    """
    kept: list[str] = []
    gone: dict[str, list[str]] = {}
    for line in lines:
        cut = _CITATION.sub("", line.strip())
        rule, whole_page = _broken_rule(line, cut)
        if whole_page:
            return [], {}, rule
        if rule:
            gone.setdefault(rule, []).append(line)
        else:
            kept.append(cut)
    if sum(count_sentences(line) for line in kept) < FEWEST_SENTENCES:
        return [], {}, "few_sentences"
    return kept, gone, None


def count_sentences(line: str) -> int:
    """Return how many sentences end in a line, by their punctuation."""
    return len(_SENTENCE_END.findall(line))


def _broken_rule(line: str, cut: str) -> tuple[str | None, bool]:
    """Return (the first rule that a line breaks, whether its page goes too), in the order of the published code.

    `cut`: the line without the marks of citations.
    """
    lower = cut.lower()
    if any(len(word) > LONGEST_WORD for word in words_with_marks(line)):
        return "long_word", False
    if not cut.endswith(END_MARKS) or cut.endswith("..."):
        return "no_end_mark", False
    if len(words_with_marks(cut)) < FEWEST_WORDS:
        return "short_line", False
    if "lorem ipsum" in lower:
        return "lorem_ipsum", True
    if "javascript" in lower:
        return "javascript", False
    if "{" in cut:
        return "curly_bracket", True
    if any(policy in lower for policy in POLICIES):
        return "policy", False
    return None, False
