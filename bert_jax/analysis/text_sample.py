"""The texts that an analysis reads: a random sample of the lines of a corpus, or all of them, without holding them."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from bert_jax.data.corpus.readers import read_lines
from bert_jax.data.corpus.text_blocks import Source
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Lines:
    """The lines of some sources that are not blank; each iteration reads them again."""

    sources: list[Source]
    text_field: str

    def __iter__(self) -> Iterator[str]:
        return (line for source in self.sources for line in read_lines(source, self.text_field) if line.strip())


def texts_of(sources: list[Source], count: int, seed: int, text_field: str = "text") -> Iterable[str]:
    """Return `count` lines of the sources, drawn at random and in random order, or for 0 all of them, one by one.

    Only the lines drawn are held in memory. Fewer lines than `count` are all returned.
    """
    lines = Lines(sources, text_field)
    return lines if count == 0 else drawn(lines, count, seed)


def drawn(items: Iterable[str], count: int, seed: int) -> list[str]:
    """Return `count` of the items in random order, every subset with the same probability.

    This is reservoir sampling (Vitter 1985, algorithm R): one pass, and memory for `count` items.
    """
    random, kept = np.random.default_rng(seed), []
    for number, item in enumerate(items):
        if number < count:
            kept.append(item)
        elif (place := int(random.integers(number + 1))) < count:
            kept[place] = item
    return [kept[place] for place in random.permutation(len(kept))]


def windows(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield the texts in lists of `size`; the last may be shorter.

    Raises:
      UserError: one text instead of several, or none.
    """
    if isinstance(texts, (str, tuple)):
        raise UserError(f"an analysis needs several texts, not only {texts!r:.60}; give a list of them")
    remaining, number = iter(texts), 0
    while window := list(itertools.islice(remaining, size)):
        yield window
        number += 1
    if not number:
        raise UserError("there are no texts to analyze; the input is empty or has blank lines only")
