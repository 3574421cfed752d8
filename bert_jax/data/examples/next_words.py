"""Left-to-right language modelling: every token of a text is predicted at the place before it, and none is masked."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class NextWords:
    """Makes of each row what `Masking` makes of it, for a model that sees only what comes before."""

    max_predictions: int
    """One less than the length of a row: every place but the last has a successor."""
    cls_id: int

    def __call__(
        self, input_ids: np.ndarray, is_text: np.ndarray, lengths: np.ndarray, keys: np.ndarray
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
