"""Words counted in a sample of documents, from which a vocabulary is learned."""

import collections
from collections.abc import Iterable, Mapping

from bert_jax.tokenization.tokenizer import MAX_WORD_LENGTH, basic_normalizer, basic_pre_tokenizer

ALPHABET_LIMIT = 1_000  # characters, as in Hugging Face's WordPiece trainer; words with any other are not learned from


class Sample:
    """Words of a corpus, thinned to `max_bytes` while it is read: from every document, or every 2nd, every 4th …

    The size of a stream is known only at its end. So document number i belongs to level (trailing zero bits of i), and
    while the sample is too large, its lowest level is dropped. Document 0 stays whatever its size.
    """

    def __init__(self, max_bytes: int):
        self.max_bytes = max_bytes
        self.num_documents: int = 0
        self._words: dict[int, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self._sizes: collections.Counter[int] = collections.Counter()
        self._lowest, self._highest = 0, 63

    def add(self, document: str) -> None:
        number = self.num_documents
        self.num_documents += 1
        level = (number & -number).bit_length() - 1 if number else self._highest
        if level < self._lowest:
            return
        self._words[level].update(document.split())
        self._sizes[level] += len(document.encode())
        while self.num_bytes > self.max_bytes and self._lowest < self._highest:
            self._words.pop(self._lowest, None)
            self._sizes.pop(self._lowest, None)
            self._lowest += 1

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of the documents in the sample."""
        return sum(self._sizes.values())

    @property
    def stride(self) -> int:
        """Distance between sampled documents: 1 if every document is in the sample, 2 if every second …"""
        return 2**self._lowest

    def words(self) -> collections.Counter[str]:
        """Return how often each whitespace-separated word occurs in the sample."""
        return sum_counts(pair for words in self._words.values() for pair in words.items())


def sum_counts(pairs: Iterable[tuple[str, int]]) -> collections.Counter[str]:
    total = collections.Counter()
    for word, count in pairs:
        total[word] += count
    return total


def basic_words(words: Mapping[str, int], lowercase: bool) -> collections.Counter[str]:
    """Count the words that WordPiece will see: normalized, punctuation and ideographs apart, none over 200 characters.

    The tokenizer does all this within whitespace-separated words, so each distinct one is processed only once.
    """
    normalizer, pre_tokenizer = basic_normalizer(lowercase), basic_pre_tokenizer()
    parts = (
        (part, count)
        for word, count in words.items()
        for part, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(word))
    )
    return sum_counts((part, count) for part, count in parts if len(part) <= MAX_WORD_LENGTH)


def alphabet_of(words: Mapping[str, int], size: int) -> list[str]:
    """Return the most frequent characters, each alone and, if it occurs so, with ##, of which all pieces are made.

    Stops at ALPHABET_LIMIT characters or `size` pieces, so that rare characters do not fill the vocabulary.
    """
    characters, inside = collections.Counter(), set()
    for word, count in words.items():
        for character in word:
            characters[character] += count
        inside.update(word[1:])
    kept = []
    for character in sorted(characters, key=lambda c: (-characters[c], c))[:ALPHABET_LIMIT]:
        pieces = [character, "##" + character] if character in inside else [character]
        if len(kept) + len(pieces) > size:
            break
        kept += pieces
    return sorted(kept, key=lambda piece: (piece.startswith("##") and len(piece) > 1, piece))


def spelled_with(words: Mapping[str, int], alphabet: list[str]) -> dict[str, int]:
    """Return the words without characters outside `alphabet`, most frequent first, ties in alphabetical order."""
    known = set(alphabet)
    kept = [word for word in words if known.issuperset(word)]
    return {word: words[word] for word in sorted(kept, key=lambda word: (-words[word], word))}
