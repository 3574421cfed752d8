"""Predicted tokens of a row: masked words and their replacements, permuted words, and the next words.

Masked language modelling follows Devlin et al. 2018, section 3.1; permutation language modelling Yang et al. 2019,
section 2. Left to right, every token of a text is predicted at the place before it, and none is masked.
"""

import dataclasses
from typing import Literal

import numpy as np

from bert_jax.config import (
    LeftToRight,
    MaskedDiffusion,
    MaskingConfig,
    ObjectiveConfig,
    Permutation,
    TwoDirections,
)
from bert_jax.data.store import Store
from bert_jax.randomness import Stream, bits, integers, uniform
from bert_jax.tokenization.tokenizer import Tokenizer

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
        self,
        input_ids: np.ndarray,
        is_text: np.ndarray,
        lengths: np.ndarray,
        keys: np.ndarray,
        spread: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        """Mask rows of ids.

        Args:
          input_ids: int32 [B, L].
          is_text: bool [B, L], False on [CLS], [SEP] and padding.
          lengths: [B], places in use, [CLS] and [SEP] included, as the original counts them.
          keys: uint64 [B], the randomness of each row.
          spread: uint64 [B], a word for each row that is evenly spread over the rows of a batch; it is not read.

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


def replacement(token: int, original: int, mask_id: int) -> Literal["mask", "random", "kept"]:
    """Return what a predicted token was replaced by: [MASK], a random entry of the vocabulary, or nothing."""
    return "kept" if token == original else "mask" if token == mask_id else "random"


def num_predictions(lengths: np.ndarray, rate: float, max_predictions: int) -> np.ndarray:
    """Return how many places to predict in rows of these lengths (see `num_predicted`), at most `max_predictions`."""
    wanted = np.rint(rate * lengths).astype(np.int64)  # halves to even numbers, as `round` there
    return np.minimum(max_predictions, np.maximum(1, wanted))


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


@dataclasses.dataclass(frozen=True)
class Permutations:
    """Makes of each row what `Masking` makes of it, without changing a token, and an order of its tokens.

    As in the published code, only the last `rate` of the order is drawn: the targets, among them the special tokens.
    All other tokens come before them, see each other and are seen by all.
    """

    rate: float
    """Share of the tokens that are predicted: 1/K of the paper, whose K is 6."""
    longest_span: int
    """Most tokens of a span that is predicted; P(n) ∝ 1/n."""
    max_predictions: int
    continues_word: np.ndarray  # bool [vocab_size]: the piece continues the word before it

    def __call__(
        self,
        input_ids: np.ndarray,
        is_text: np.ndarray,
        lengths: np.ndarray,
        keys: np.ndarray,
        spread: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        """Return the arrays of `Masking.__call__`, which explains the arguments, and order int32 [B, L].

        The order is 0 for what is given, also padding; a token sees those of a lower one. Each target and special token
        has its own.
        """
        budget = np.minimum(num_predictions(lengths, self.rate, self.max_predictions), is_text.sum(1))
        chosen = self.spans(input_ids, is_text, keys, budget)
        more = random_places(is_text & ~chosen, keys, budget - chosen.sum(1), self.max_predictions)
        rows, slots = np.nonzero(more < is_text.shape[1])
        chosen[rows, more[rows, slots]] = True
        chosen &= ~_first_where_all(is_text, chosen)
        columns, length = np.arange(is_text.shape[1]), is_text.shape[1]
        places = np.sort(np.where(chosen, columns, length), axis=1)[:, : self.max_predictions]
        places = np.pad(places, ((0, 0), (0, self.max_predictions - places.shape[1])), constant_values=length)
        used = places < length
        positions = np.where(used, places, 0)
        special = ~is_text & (columns < lengths[:, None])
        return {
            "input_ids": input_ids,
            "masked_positions": positions.astype(np.int32),
            "masked_ids": np.where(used, np.take_along_axis(input_ids, positions, 1), 0).astype(np.int32),
            "masked_weights": used.astype(np.float32),
            "order": _places_in_order(chosen | special, keys),
        }

    def spans(self, input_ids: np.ndarray, is_text: np.ndarray, keys: np.ndarray, budget: np.ndarray) -> np.ndarray:
        """Return bool [B, L]: from left to right, spans of n tokens, each somewhere in a context of n / rate others.

        A span begins with a word and ends with its segment at the latest (`_sample_mask` of the published code, in
        which the context has mask_alpha / mask_beta · n tokens).
        """
        length, rows = is_text.shape[1], np.arange(len(is_text))
        columns = np.arange(length)
        before = np.pad(is_text, ((0, 0), (1, 0)))[:, :-1]
        next_word = _next_where(is_text & ~(self.continues_word[input_ids] & before))
        end_of_text = _next_where(~is_text)
        draws = uniform(bits(keys[:, None], Stream.SPAN_LENGTH, columns))
        sizes = ngram_lengths(draws, MaskingConfig(ngram_max=self.longest_span))
        chosen, used, cursor = np.zeros(is_text.shape, bool), np.zeros_like(budget), np.zeros(len(rows), np.int64)
        for step in range(length):
            size = np.minimum(sizes[:, step], budget - used)
            context = np.maximum(np.rint(size / self.rate).astype(np.int64), 1)
            left = integers(bits(keys, Stream.SPAN_CONTEXT, step), context)
            begin = next_word[rows, np.minimum(cursor + left, length)]
            end = np.minimum(begin + size, end_of_text[rows, np.minimum(begin, length)])
            chosen |= (columns >= begin[:, None]) & (columns < end[:, None])
            used = used + np.maximum(end - begin, 0)
            cursor = end + context - left
            if ((cursor >= length) | (used >= budget)).all():
                break
        return chosen


def _next_where(found: np.ndarray) -> np.ndarray:
    """Return int64 [B, L + 1]: the first column from each on where bool [B, L] is set; L if there is none."""
    length = found.shape[1]
    places = np.pad(np.where(found, np.arange(length), length), ((0, 0), (0, 1)), constant_values=length)
    return np.minimum.accumulate(places[:, ::-1], axis=1)[:, ::-1]


def _first_where_all(is_text: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return bool [B, L]: the first token of every run of text that is chosen as a whole.

    It has to be given, because the first target of such a text would see nothing.
    """
    given, stops = _next_where(is_text & ~chosen), _next_where(~is_text)
    begins = is_text & ~np.pad(is_text, ((0, 0), (1, 0)))[:, :-1]
    return begins & (given[:, :-1] > stops[:, :-1])


def _places_in_order(drawn: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return int32 [B, L]: 1, 2, … in random order where bool [B, L] `drawn` is set, 0 elsewhere."""
    draws = bits(keys[:, None], Stream.FACTORIZATION, np.arange(drawn.shape[1])) >> np.uint64(1)
    sequence = np.argsort(np.where(drawn, draws, ~np.uint64(0)), axis=1, kind="stable")
    places = np.empty_like(sequence)
    np.put_along_axis(places, sequence, np.broadcast_to(np.arange(1, drawn.shape[1] + 1), drawn.shape), 1)
    return np.where(drawn, places, 0).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class Diffusion:
    """Masks each text of a row at a rate of its own (see `config.MaskedDiffusion`).

    The rates of the texts of a row are equally far apart, and those of rows follow `spread`. Each is uniform, so the
    expectation is that of independent ones, but batches differ less.
    """

    min_rate: float
    max_predictions: int
    mask_id: int
    cls_id: int
    exact: bool
    """Whether a number of tokens is masked, from one to all of a text, instead of each with a probability: the mean of
    the weighted losses is the same (LLaDA, equation 6), varies less, and needs no lowest rate."""

    def __call__(
        self,
        input_ids: np.ndarray,
        is_text: np.ndarray,
        lengths: np.ndarray,
        keys: np.ndarray,
        spread: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        """Return the arrays of `Masking.__call__`, which explains the arguments, and num_tokens float32 [B].

        masked_weights are 1 / rate; num_tokens, those of the texts of a row, are what the losses are divided by.
        """
        del lengths
        columns, length = np.arange(input_ids.shape[1]), input_ids.shape[1]
        text = np.cumsum(input_ids == self.cls_id, axis=1) - 1  # texts begin with [CLS]
        texts = text.max(axis=1, initial=0) + 1
        start = uniform(keys if spread is None else spread)
        draws = uniform(bits(keys[:, None], Stream.CANDIDATES, columns))
        share = (start[:, None] + np.maximum(text, 0) / texts[:, None]) % 1.0
        if self.exact:
            sizes, rank = _ranks(np.where(is_text, text, -1), draws)
            count = np.minimum(np.floor(share * sizes) + 1, sizes)
            masked, weight = is_text & (rank < count), sizes / count
        else:
            rate = self.min_rate + (1 - self.min_rate) * share
            masked, weight = is_text & (draws < rate), 1 / rate
        places = np.sort(np.where(masked, columns, length), axis=1)[:, : self.max_predictions]
        used = places < length
        positions = np.where(used, places, 0)
        return {
            "input_ids": np.where(masked, self.mask_id, input_ids).astype(np.int32),
            "masked_positions": positions.astype(np.int32),
            "masked_ids": np.where(used, np.take_along_axis(input_ids, positions, 1), 0).astype(np.int32),
            "masked_weights": np.where(used, np.take_along_axis(weight, positions, 1), 0).astype(np.float32),
            "num_tokens": is_text.sum(axis=1).astype(np.float32),
        }


def _ranks(text: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int64 [B, L], [B, L]: how many places have the same text, and how many of these have a smaller draw.

    Args:
      text: int64 [B, L], the text of each place, -1 for none.
      draws: float64 [B, L], in [0, 1).
    """
    order = np.argsort(text + draws, axis=1, kind="stable")
    ordered = np.take_along_axis(text, order, 1)
    columns = np.arange(text.shape[1])
    begins = np.diff(ordered, axis=1, prepend=-2) != 0
    first = np.maximum.accumulate(np.where(begins, columns, 0), axis=1)
    ends = np.pad(begins, ((0, 0), (0, 1)), constant_values=True)[:, 1:]
    after = np.minimum.accumulate(np.where(ends, columns + 1, len(columns))[:, ::-1], axis=1)[:, ::-1]
    sizes, rank = np.empty_like(text), np.empty_like(text)
    np.put_along_axis(sizes, order, after - first, 1)
    np.put_along_axis(rank, order, columns - first, 1)
    return sizes, rank


@dataclasses.dataclass(frozen=True)
class NextWords:
    """Makes of each row what `Masking` makes of it, for a model that sees only what comes before."""

    max_predictions: int
    """One less than the length of a row: every place but the last has a successor."""
    cls_id: int

    def __call__(
        self,
        input_ids: np.ndarray,
        is_text: np.ndarray,
        lengths: np.ndarray,
        keys: np.ndarray,
        spread: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        """Return the arrays of `Masking.__call__`, which explains the arguments.

        Pieces and [SEP]s are predicted, also in packed rows; a [CLS], which begins a text, and padding are not.
        """
        del is_text, keys
        following = input_ids[:, 1:]
        place = np.arange(self.max_predictions, dtype=np.int32)
        used = (place + 1 < lengths[:, None]) & (following != self.cls_id)
        return {
            "input_ids": input_ids,
            "masked_positions": np.where(used, place, 0).astype(np.int32),
            "masked_ids": np.where(used, following, 0).astype(np.int32),
            "masked_weights": used.astype(np.float32),
        }


def places(
    objective: ObjectiveConfig,
    masking: MaskingConfig,
    store: Store,
    tokenizer: Tokenizer,
    max_predictions: int,
    held_out: float | None,
) -> Masking | NextWords | Permutations | Diffusion:
    """See `data.examples.PlaceFamily`."""
    begins = np.asarray(tokenizer.continues_word(), bool)
    match objective:
        case LeftToRight() | TwoDirections():
            return NextWords(max_predictions, tokenizer.cls_id)
        case Permutation(longest_span=longest_span):
            return Permutations(masking.rate, longest_span, max_predictions, begins)
        case MaskedDiffusion(min_rate=min_rate):
            return Diffusion(min_rate, max_predictions, tokenizer.mask_id, tokenizer.cls_id, exact=held_out is None)
        case _:  # masked words
            return Masking(masking, max_predictions, store.vocab_size, tokenizer.mask_id, begins)
