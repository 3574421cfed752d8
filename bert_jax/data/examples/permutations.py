"""Permutation language modelling: which tokens are predicted, and in which order (Yang et al. 2019, section 2)."""

import dataclasses

import numpy as np

from bert_jax.config import MaskingConfig
from bert_jax.data.examples.masking import ngram_lengths, num_predictions, random_places
from bert_jax.data.randomness import Stream, bits, integers, uniform


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
        self, input_ids: np.ndarray, is_text: np.ndarray, lengths: np.ndarray, keys: np.ndarray
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
