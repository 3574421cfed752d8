"""The documents of a corpus that are held out from training."""

import numpy as np

from bert_jax.data.ordering import permute
from bert_jax.data.randomness import Stream

# The choice belongs to the store, not to a run: runs with different seeds evaluate on the same documents.
_HELD_OUT_KEY = 2018


def held_out_documents(num_documents: int, share: float) -> np.ndarray:
    """Return bool [num_documents]: which documents training never sees, `share` of them and at least one (none for 0).

    The documents of a smaller share are among those of a larger one. `train-vocab` uses the same rule, so the
    vocabulary is not learned from what a run is evaluated on.
    """
    number = min(max(1, round(share * num_documents)), num_documents) if share else 0
    chosen = np.zeros(num_documents, bool)
    chosen[permute(np.arange(number), num_documents, _HELD_OUT_KEY, Stream.HELD_OUT)] = True
    return chosen
