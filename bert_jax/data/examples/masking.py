"""Masked language modelling: which tokens are predicted and what replaces them (Devlin et al. 2018, section 3.1)."""

import dataclasses

import numpy as np

from bert_jax.config import MaskingConfig
from bert_jax.data.randomness import Stream, bits, integers, uniform

_COLUMN_BITS = np.uint64((1 << 20) - 1)  # low bits of a random word that carry the column through a sort


@dataclasses.dataclass(frozen=True)
class Masking:
    """Masks batches by one rule, at most `max_predictions` places per row."""

    config: MaskingConfig
    max_predictions: int
    vocab_size: int
    mask_id: int
    continues_word: np.ndarray  # bool [vocab_size]: the piece continues the word before it

    def __call__(
        self, input_ids: np.ndarray, is_text: np.ndarray, lengths: np.ndarray, keys: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Mask rows of ids.

        Args:
          input_ids: int32 [B, L].
          is_text: bool [B, L], False on [CLS], [SEP] and padding.
          lengths: [B], places in use, [CLS] and [SEP] included, as the original counts them.
          keys: uint64 [B], the randomness of each row.

        Returns:
          input_ids [B, L], masked_positions [B, M] ascending, masked_ids [B, M] (the originals), masked_weights [B, M];
          unused slots are 0.
        """
        budget = np.minimum(num_predictions(lengths, self.config.rate, self.max_predictions), is_text.sum(1))
        if self.config.unit == "token":
            places = random_places(is_text, keys, budget, self.max_predictions)
        else:
            words = Words.find(input_ids, is_text, self.continues_word)
            choose = {"whole_word": choose_words, "ngram": choose_ngrams, "span": choose_spans}[self.config.unit]
            places = words.places(choose(words, keys, budget, self.config), self.max_predictions)
        used = places < input_ids.shape[1]
        positions = np.where(used, places, 0)
        originals = np.where(used, np.take_along_axis(input_ids, positions, 1), 0).astype(np.int32)
        replaced = self._replace(originals, places, keys)
        masked = input_ids.copy()
        rows, slots = np.nonzero(used)
        masked[rows, positions[rows, slots]] = replaced[rows, slots]
        return {
            "input_ids": masked,
            "masked_positions": positions.astype(np.int32),
            "masked_ids": originals,
            "masked_weights": used.astype(np.float32),
        }

    def _replace(self, ids: np.ndarray, places: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return [MASK], a random entry of the vocabulary (uniform) or the same id, for ids [B, M] at `places` [B, M].

        Which of the three is drawn for each piece, whatever the unit, or once for a run of adjacent places.
        """
        slots = np.arange(ids.shape[1])
        words = integers(bits(keys[:, None], Stream.RANDOM_WORD, slots), self.vocab_size)
        if self.config.replacement == "span":
            begins = np.diff(places, axis=1, prepend=-2) != 1
            slots = np.maximum.accumulate(np.where(begins, slots, 0), axis=1)
        draw = uniform(bits(keys[:, None], Stream.REPLACEMENT, slots))
        to_random = draw < self.config.mask_share + self.config.random_share
        return np.where(draw < self.config.mask_share, self.mask_id, np.where(to_random, words, ids)).astype(np.int32)


def num_predictions(lengths: np.ndarray, rate: float, max_predictions: int) -> np.ndarray:
    """Return how many places to predict: rate × length, halves to even, at least 1, at most `max_predictions`."""
    return np.minimum(max_predictions, np.maximum(1, np.rint(rate * lengths).astype(np.int64)))


def random_places(is_text: np.ndarray, keys: np.ndarray, budget: np.ndarray, max_predictions: int) -> np.ndarray:
    """Return ascending places [B, M] of `budget` [B] tokens, uniform without replacement; L in unused slots."""
    length = is_text.shape[1]
    order = _random_order(is_text, keys, max_predictions)
    slots = np.arange(order.shape[1])
    places = np.sort(np.where(slots < budget[:, None], order, length), axis=1)
    return np.pad(places, ((0, 0), (0, max_predictions - order.shape[1])), constant_values=length)


def _random_order(eligible: np.ndarray, keys: np.ndarray, most: int | None = None) -> np.ndarray:
    """Return the columns [B, N] of every row in random order, the eligible ones first; at most the first `most`."""
    columns = np.arange(eligible.shape[1], dtype=np.uint64)
    draws = bits(keys[:, None], Stream.CANDIDATES, columns) >> np.uint64(1)
    draws &= ~_COLUMN_BITS
    draws[~eligible] = ~_COLUMN_BITS
    draws |= columns
    if most is not None and most < draws.shape[1]:
        draws = np.partition(draws, most, axis=1)[:, :most]
    draws.sort(axis=1)
    return (draws & _COLUMN_BITS).astype(np.int64)


@dataclasses.dataclass(frozen=True)
class Words:
    """The words of each row, in order; [B, W] arrays have one column per word, W being the most words in a row."""

    index: np.ndarray  # int64 [B, L]: the word that each place belongs to, -1 outside the text
    num_pieces: np.ndarray  # int64 [B, W]: 0 if the row has no such word
    segment_end: np.ndarray  # int64 [B, W]: number of the first word after the segment that the word is in

    @classmethod
    def find(cls, input_ids: np.ndarray, is_text: np.ndarray, continues_word: np.ndarray) -> "Words":
        """Find the words: runs of text pieces of which all but the first continue it, never across a [SEP]."""
        after_text = np.pad(is_text, ((0, 0), (1, 0)))[:, :-1]
        begins = is_text & ~(continues_word[input_ids] & after_text)
        index = np.where(is_text, np.cumsum(begins, axis=1) - 1, -1)
        num_rows, width = len(index), int(index.max(initial=0)) + 1
        flat = np.arange(num_rows)[:, None] * width + index
        num_pieces = np.bincount(flat[is_text], minlength=num_rows * width).reshape(num_rows, width)
        first_of_segment = np.zeros((num_rows, width + 1), bool)
        rows, places = np.nonzero(is_text & ~after_text)
        first_of_segment[rows, index[rows, places]] = True
        first_of_segment[np.arange(num_rows), index.max(axis=1) + 1] = True
        following = np.where(first_of_segment[:, 1:], np.arange(1, width + 1), width)
        return cls(index, num_pieces, np.minimum.accumulate(following[:, ::-1], axis=1)[:, ::-1])

    def places(self, chosen: np.ndarray, max_predictions: int) -> np.ndarray:
        """Return ascending places [B, M] of the pieces of the `chosen` words (bool [B, W]); L in unused slots."""
        length = self.index.shape[1]
        selected = np.take_along_axis(chosen, np.maximum(self.index, 0), 1) & (self.index >= 0)
        places = np.sort(np.where(selected, np.arange(length), length), axis=1)[:, :max_predictions]
        return np.pad(places, ((0, 0), (0, max_predictions - places.shape[1])), constant_values=length)


def choose_words(words: Words, keys: np.ndarray, budget: np.ndarray, config: MaskingConfig) -> np.ndarray:
    """Return bool [B, W]: random whole words, skipping those that would exceed the budget, as in the original."""
    order = _random_order(words.num_pieces > 0, keys)
    rows, used = np.arange(len(order)), np.zeros_like(budget)
    chosen = np.zeros(words.num_pieces.shape, bool)
    for word in order.T:
        pieces = words.num_pieces[rows, word]
        fits = (pieces > 0) & (used + pieces <= budget)
        chosen[rows, word] = fits
        used += np.where(fits, pieces, 0)
        if (used == budget).all():
            break
    return chosen


def choose_ngrams(words: Words, keys: np.ndarray, budget: np.ndarray, config: MaskingConfig) -> np.ndarray:
    """Return bool [B, W]: n-grams of words (Lan et al. 2020, section 4.1), n at most `ngram_max`, P(n) ∝ 1/n.

    As in the published code, an n-gram starts at a random word; it gives up its last words until it fits the budget,
    and is skipped if it has a word that is chosen already. Here it also ends at a [SEP].
    """
    order = _random_order(words.num_pieces > 0, keys)
    lengths = ngram_lengths(uniform(bits(keys[:, None], Stream.SPAN_LENGTH, np.arange(order.shape[1]))), config)
    rows, used, last = np.arange(len(order)), np.zeros_like(budget), words.num_pieces.shape[1] - 1
    chosen = np.zeros(words.num_pieces.shape, bool)
    for first, length in zip(order.T, lengths.T, strict=True):
        end = np.minimum(first + length, words.segment_end[rows, first])
        places = first[:, None] + np.arange(config.ngram_max)
        columns, inside = np.minimum(places, last), places < end[:, None]
        costs = np.cumsum(np.where(inside, words.num_pieces[rows[:, None], columns], 0), axis=1)
        fits = inside & (words.num_pieces[rows, first] > 0)[:, None] & (used[:, None] + costs <= budget[:, None])
        fits &= ~(fits & chosen[rows[:, None], columns]).any(axis=1, keepdims=True)
        row, place = np.nonzero(fits)
        chosen[row, columns[row, place]] = True
        used += np.where(fits, costs, 0).max(axis=1)
        if (used == budget).all():
            break
    return chosen


def choose_spans(words: Words, keys: np.ndarray, budget: np.ndarray, config: MaskingConfig) -> np.ndarray:
    """Return bool [B, W]: spans of words (Joshi et al. 2020, section 3.1) until the budget is used up.

    A span starts at a random word that no span covers yet, has `span_lengths` words, runs over words that another span
    covers without paying for them, ends at a [SEP], and stops before a word that would exceed the budget.
    """
    order = _random_order(words.num_pieces > 0, keys)
    lengths = span_lengths(uniform(bits(keys[:, None], Stream.SPAN_LENGTH, np.arange(order.shape[1]))), config)
    rows, used = np.arange(len(order)), np.zeros_like(budget)
    chosen = np.zeros(words.num_pieces.shape, bool)
    for first, length in zip(order.T, lengths.T, strict=True):
        end = np.minimum(first + length, words.segment_end[rows, first])
        growing = ~chosen[rows, first] & (words.num_pieces[rows, first] > 0)
        for step in range(config.span_max_words):
            word = np.minimum(first + step, words.num_pieces.shape[1] - 1)
            cost = np.where(chosen[rows, word], 0, words.num_pieces[rows, word])
            growing = growing & (first + step < end) & (used + cost <= budget)
            if not growing.any():
                break
            chosen[rows, word] |= growing
            used += np.where(growing, cost, 0)
        if (used == budget).all():
            break
    return chosen


def ngram_lengths(draws: np.ndarray, config: MaskingConfig) -> np.ndarray:
    """Return the words per n-gram for uniform `draws`: P(n) ∝ 1/n for n = 1 … ngram_max (6/11, 3/11, 2/11 for 3)."""
    shares = np.cumsum(1 / np.arange(1, config.ngram_max + 1))
    return 1 + np.searchsorted(shares[:-1] / shares[-1], draws, side="right")


def span_lengths(draws: np.ndarray, config: MaskingConfig) -> np.ndarray:
    """Return the words per span for uniform `draws`.

    P(l) ∝ span_continue^(l - 1) for l = 1 … span_max_words (mean 3.8 for 0.8 and 10).
    """
    shares = np.cumsum(config.span_continue ** np.arange(config.span_max_words))
    return 1 + np.searchsorted(shares[:-1] / shares[-1], draws, side="right")
