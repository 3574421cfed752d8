"""What is predicted in a row: the one place where the configuration chooses how places are picked and hidden."""

import numpy as np

from bert_jax.config import Config, Phase
from bert_jax.data.examples.masking import Masking
from bert_jax.data.examples.neighbour_counts import NeighbourCounts, counts_for
from bert_jax.data.examples.neighbour_windows import NeighbourWindows
from bert_jax.data.examples.next_words import NextWords
from bert_jax.data.examples.permutations import Permutations
from bert_jax.data.store.store import Store
from bert_jax.tokenization.tokenizer import Tokenizer


def predicted_places(
    config: Config, phase: Phase, store: Store, tokenizer: Tokenizer, split: str
) -> Masking | NextWords | Permutations | NeighbourWindows | NeighbourCounts:
    """Return what chooses the places of a row that are predicted, and hides what must not be seen."""
    if config.objective.predicts_all:
        return NextWords(phase.max_predictions, tokenizer.cls_id)
    if config.objective.name == "skip_gram":
        return NeighbourWindows(config.objective.static_vectors, store.token_counts, tokenizer.pad_id)
    if config.objective.name == "glove":
        held_out = 0 if config.data.eval_path else config.data.held_out
        counts = counts_for(config.objective.static_vectors, store, held_out if split == "train" else None)
        return NeighbourCounts(counts, tokenizer.pad_id)
    begins = np.asarray(tokenizer.continues_word(), bool)
    if config.objective.name == "permutation":
        return Permutations(config.masking.rate, config.objective.longest_span, phase.max_predictions, begins)
    return Masking(config.masking, phase.max_predictions, store.vocab_size, tokenizer.mask_id, begins)
