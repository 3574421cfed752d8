"""Rows for static word vectors: windows and random words for skip-gram, and pair counts for GloVe.

Skip-gram (Mikolov et al. 2013): words, how far each one's window reaches, and negatives drawn at random. GloVe:
words, and how often the store has each of them near those that follow it.
"""

import numpy as np

from bert_jax.config import GloVe, GloVeConfig, MaskingConfig, SkipGram, SkipGramConfig
from bert_jax.config.objective import SHARED_NEGATIVES
from bert_jax.data.pair_counts import PairCounts, count_again, open_pair_counts
from bert_jax.data.store import Store
from bert_jax.errors import UserError
from bert_jax.randomness import Stream, bits, held_out_documents, integers, uniform
from bert_jax.tokenization.tokenizer import Tokenizer

POWER = 0.75  # of the counts, by which words are drawn (section 2.2)


class NeighbourWindows:
    """Makes of each row what `Masking` makes of it, for an objective that predicts the neighbours of every word.

    Args:
      options: window and subsampling.
      counts: how often each entry of the vocabulary occurs, [V].
      padding: id of [PAD].
    """

    def __init__(self, options: SkipGramConfig, counts: np.ndarray, padding: int):
        self._window, self._padding = options.window, padding
        self._ends = np.cumsum(counts**POWER)
        self._ends /= self._ends[-1]
        shares = np.maximum(counts, 1) / counts.sum()
        self._kept = np.sqrt(options.subsampling / shares) if options.subsampling else np.ones(len(counts))

    def __call__(
        self,
        input_ids: np.ndarray,
        is_text: np.ndarray,
        lengths: np.ndarray,
        keys: np.ndarray,
        spread: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        """Return the arrays of `Masking.__call__`, which explains the arguments, and three more.

        Special tokens and the words that subsampling leaves out are taken out of the row before windows are laid, so
        input_ids and attention_mask are of the words that stay. Each of these is a "prediction" at its own place.
        windows [B, L, 2] has how many words before and after are neighbours, 0 in padding; negatives
        [B, SHARED_NEGATIVES] are words drawn by their counts to the power of 3/4, which all words of the row share.
        """
        del lengths
        keys, place = keys[:, None], np.arange(input_ids.shape[1], dtype=np.int32)
        stays = is_text & (uniform(bits(keys, Stream.SUBSAMPLING, place)) < self._kept[input_ids])
        words, ids, texts = only_words(input_ids, is_text, stays, self._padding)
        reach = 1 + integers(bits(keys, Stream.WINDOW, place), self._window)
        windows = np.stack([np.minimum(reach, room) for room in _room_on_each_side(texts)], axis=-1)
        drawn = uniform(bits(keys, Stream.NEGATIVE, np.arange(SHARED_NEGATIVES)))
        return {
            "input_ids": ids,
            "attention_mask": words.astype(np.int32),
            "masked_positions": np.where(words, place, 0).astype(np.int32),
            "masked_ids": np.where(words, ids, 0).astype(np.int32),
            "masked_weights": words.astype(np.float32),
            "windows": np.where(words[:, :, None], windows, 0).astype(np.int32),
            "negatives": np.searchsorted(self._ends, drawn, side="right").astype(np.int32),
        }


def only_words(
    input_ids: np.ndarray, is_text: np.ndarray, stays: np.ndarray, padding: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Move the tokens that stay to the front of their rows, [B, L] each.

    Returns which places hold one, their ids (elsewhere `padding`), and a number for each place that is the same in one
    text and larger in the next: a special token between two tokens ends a text, or a document.
    """
    words = np.arange(input_ids.shape[1]) < stays.sum(axis=1)[:, None]
    first = np.argsort(~stays, axis=1, kind="stable")
    ids = np.where(words, np.take_along_axis(input_ids, first, axis=1), padding).astype(np.int32)
    texts = np.take_along_axis(np.cumsum(~is_text, axis=1), first, axis=1)
    return words, ids, np.where(words, texts, input_ids.shape[1] + 1)


def _room_on_each_side(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how many places of the same text are before and after each, [B, L] each, from the numbers of texts."""
    place, begins = np.arange(texts.shape[1]), np.diff(texts, axis=1, prepend=-1) != 0
    ends = np.diff(texts, axis=1, append=-1) != 0
    start = np.maximum.accumulate(np.where(begins, place, 0), axis=1)
    last = np.minimum.accumulate(np.where(ends, place, len(place))[:, ::-1], axis=1)[:, ::-1]
    return place - start, last - place


class NeighbourCounts:
    """Makes of each row what `Masking` makes of it, for an objective of the counts of pairs.

    Args:
      counts: of the pairs of the corpus.
      padding: id of [PAD].
    """

    def __init__(self, counts: PairCounts, padding: int):
        self._counts, self._padding = counts, padding

    def __call__(
        self,
        input_ids: np.ndarray,
        is_text: np.ndarray,
        lengths: np.ndarray,
        keys: np.ndarray,
        spread: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        """Return the arrays of `Masking.__call__`, which explains the arguments, and pair_counts [B, L, W].

        Special tokens are taken out of the row, so input_ids and attention_mask are of its words, each of which is a
        "prediction" at its own place. pair_counts[b, i, d - 1] is the count of the words i and i + d, 0 if there is
        no such word in the same text, or the pair was never counted.
        """
        del lengths, keys
        length, window = input_ids.shape[1], self._counts.counted.window
        words, ids, texts = only_words(input_ids, is_text, is_text, self._padding)
        later = np.arange(length)[:, None] + np.arange(1, window + 1)  # [L, W]
        inside, later = later < length, np.minimum(later, length - 1)
        pairs = words[:, :, None] & (texts[:, :, None] == texts[:, later]) & inside
        counts = np.zeros(pairs.shape, np.float32)
        counts[pairs] = self._counts.of(np.broadcast_to(ids[:, :, None], pairs.shape)[pairs], ids[:, later][pairs])
        return {
            "input_ids": ids,
            "attention_mask": words.astype(np.int32),
            "masked_positions": np.where(words, np.arange(length), 0).astype(np.int32),
            "masked_ids": np.where(words, ids, 0).astype(np.int32),
            "masked_weights": words.astype(np.float32),
            "pair_counts": counts,
        }


def counts_for(options: GloVeConfig, store: Store, held_out: float | None) -> PairCounts:
    """Open the counts that `options` name.

    Args:
      store: what is trained or evaluated on.
      held_out: share of the documents that training does not see; None for an evaluation, which may read any store of
        the same vocabulary.

    Raises:
      UserError: the counts are missing, damaged, or of something else.
    """
    again = count_again(store.path, options.window, held_out)
    if not options.counts:
        raise UserError(f"--objective.static_vectors.counts is missing: {again}")
    counts = open_pair_counts(options.counts)
    counted = counts.counted
    for name, found, wanted, meaning in (
        ("window", counted.window, options.window, "--objective.static_vectors.window"),
        ("tokenizer", counted.tokenizer, store.manifest.tokenizer.fingerprint, "the vocabulary of the store"),
        ("store", counted.store, store.fingerprint, "the store of --data.path"),
        ("held_out", counted.held_out, held_out, "the share that this run holds out"),
    ):
        if found != wanted and (held_out is not None or name in ("window", "tokenizer")):
            raise UserError(
                f"the counts in {options.counts} are of {name}={found:.16}, and {meaning} is {wanted:.16}; {again}"
                if isinstance(found, str)
                else f"the counts in {options.counts} were made with {name}={found}, and {meaning} is {wanted}; "
                f"{again}, or change the option"
            )
    return counts


def places(
    objective: SkipGram | GloVe,
    masking: MaskingConfig,
    store: Store,
    tokenizer: Tokenizer,
    max_predictions: int,
    held_out: float | None,
) -> NeighbourWindows | NeighbourCounts:
    """See `data.examples.PlaceFamily`."""
    del masking, max_predictions
    match objective:
        case SkipGram():
            counts = store.token_counts - _held_out_counts(store, held_out or 0)
            return NeighbourWindows(objective.static_vectors, counts, tokenizer.pad_id)
        case GloVe():
            return NeighbourCounts(counts_for(objective.static_vectors, store, held_out), tokenizer.pad_id)


def _held_out_counts(store: Store, share: float) -> np.ndarray:
    """Return int64 [V]: how often each entry of the vocabulary occurs in the documents that training never sees."""
    documents = np.flatnonzero(held_out_documents(store.num_documents, share))
    return store.count_tokens(store.document_tokens[documents], store.document_tokens[documents + 1])
