"""Batches of tasks for a small model: rows that say very different amounts, and some that only fill."""

import numpy as np

from bert_jax.config import HeadConfig, ModelConfig

ROWS, LENGTH = 16, 12
MODEL = ModelConfig(vocab_size=41, hidden_size=16, num_layers=2, num_heads=2, max_position_embeddings=LENGTH)
HEADS = {
    "classification": HeadConfig(labels=("a", "b", "c"), dropout=0.0),
    "tagging": HeadConfig(kind="tagging", labels=("O", "B-X", "I-X"), crf=True, dropout=0.0),
}


def make_batch(kind: str, seed: int) -> dict[str, np.ndarray]:
    """Rows that say very different amounts; the last three only fill the batch."""
    random = np.random.default_rng(seed)
    lengths = random.integers(4, LENGTH + 1, ROWS)[:, None]
    real = np.arange(LENGTH) < lengths
    if kind == "classification":
        labels = random.integers(0, 3, ROWS)
    else:  # class << 2, the first word of its sentence | 1, the last | 2
        labels = random.integers(0, 3, (ROWS, LENGTH)) << 2
        labels[:, 0] |= 1
        labels[np.arange(ROWS), lengths[:, 0] - 1] |= 2
        labels = np.where(real, labels, -1)
    arrays = {
        "input_ids": random.integers(1, MODEL.vocab_size, (ROWS, LENGTH)),
        "token_type_ids": np.zeros((ROWS, LENGTH)),
        "attention_mask": real,
        "labels": labels,
    }
    return {name: np.asarray(array, np.int32) for name, array in arrays.items()} | {
        "weights": (np.arange(ROWS) < ROWS - 3).astype(np.float32)
    }
