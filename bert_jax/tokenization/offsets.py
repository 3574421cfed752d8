"""Offsets of pieces in the text that they came from, where a normalizer makes one character of several or drops one."""

import itertools
from collections.abc import Iterable


def widened(text: str, offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the (start, end) of each piece with the characters beside it that belong to none and are no white space.

    Of characters that become one, as two backquotes do, a tokenizer names one alone; of those that it drops, none. An
    answer that is cut from the text by its pieces would lack them. Between two pieces they go to the first, and to all
    that end where it does, up to white space, and after that to the second.
    """
    found: list[tuple[int, int]] = []
    covered = 0
    for start, end in offsets:
        if start > covered:
            start -= _give(text, covered, start, found)
        found.append((start, end))
        covered = max(covered, end)
    _give(text, covered, len(text), found)
    return found


def _give(text: str, start: int, end: int, found: list[tuple[int, int]]) -> int:
    """Widen the pieces that end at `start` by what follows them, and return how many characters precede `end`.

    An empty piece is not widened.
    """
    until = start + _until_space(text[start:end])
    place = len(found)
    while place and found[place - 1][0] < found[place - 1][1] == start:
        place -= 1
        found[place] = found[place][0], until
    return _until_space(reversed(text[until if place < len(found) else start : end]))


def _until_space(characters: Iterable[str]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda character: not character.isspace(), characters))
