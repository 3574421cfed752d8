"""Rows for GloVe: words, and how often the store has each of them beside those that follow it."""

import numpy as np

from bert_jax.config.static_vectors import StaticVectorsConfig
from bert_jax.data.examples.neighbour_windows import only_words
from bert_jax.data.store.pair_counts import AGAIN, PairCounts, open_pair_counts
from bert_jax.data.store.store import Store
from bert_jax.errors import UserError


class NeighbourCounts:
    """Makes of each row what `Masking` makes of it, for an objective of the counts of pairs.

    Args:
      counts: of the pairs of the corpus.
      padding: id of [PAD].
    """

    def __init__(self, counts: PairCounts, padding: int):
        self._counts, self._padding = counts, padding

    def __call__(
        self, input_ids: np.ndarray, is_text: np.ndarray, lengths: np.ndarray, keys: np.ndarray
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


def counts_for(options: StaticVectorsConfig, store: Store, held_out: float | None) -> PairCounts:
    """Open the counts that `options` name.

    Args:
      store: what is trained or evaluated on.
      held_out: share of the documents that training does not see; None for an evaluation, which may read any store of
        the same vocabulary.

    Raises:
      UserError: the counts are missing, damaged, or of something else.
    """
    if not options.counts:
        raise UserError(
            "--objective.static_vectors.counts is missing: count the pairs of the store with `bert-jax count STORE "
            f"--output=COUNTS --window={options.window}`, and give their directory"
        )
    counts = open_pair_counts(options.counts)
    counted = counts.counted
    for name, found, wanted, meaning in (
        ("window", counted.window, options.window, "--objective.static_vectors.window"),
        ("tokenizer", counted.tokenizer, store.manifest.tokenizer.fingerprint, "the vocabulary of the store"),
        ("store", counted.store, store.fingerprint, "the store of --data.path"),
        ("held_out", counted.held_out, held_out, "--data.held_out, 0 with --data.eval_path"),
    ):
        if found != wanted and (held_out is not None or name in ("window", "tokenizer")):
            raise UserError(
                f"the counts in {options.counts} are of {name}={found:.16}, and {meaning} is {wanted:.16}; {AGAIN}, or "
                "change the option"
                if isinstance(found, str)
                else f"the counts in {options.counts} were made with {name}={found}, and {meaning} is {wanted}; "
                f"{AGAIN}, or change the option"
            )
    return counts
