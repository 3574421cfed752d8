"""Sequences of a task whose every array tells which of them it came from."""

import numpy as np

from bert_jax.data.sequences import Features


def make_features(size=103, kind="classification", max_length=100):
    """Sequence i is i + 1 times the number i + 1, up to max_length; every array tells where it came from."""
    random = np.random.default_rng(0)
    lengths = np.minimum(random.geometric(0.05, size) + 2, max_length)
    ids = [np.full(length, index + 1, np.int32) for index, length in enumerate(lengths)]
    types = [(np.arange(length) >= 2).astype(np.int32) for length in lengths]
    labels = {
        "classification": np.arange(size, dtype=np.int32),
        "regression": np.arange(size, dtype=np.float32) / 2,
        "span": np.stack([np.arange(size), np.arange(size) + 1], 1).astype(np.int32),
        "choice": np.arange(size, dtype=np.int32),
        "tagging": [np.where(np.arange(n) % 2, index, -1).astype(np.int32) for index, n in enumerate(lengths)],
    }[kind]
    if kind == "choice":
        ids, types = ([[entry[:2], entry] for entry in entries] for entries in (ids, types))
    return Features(ids, types, labels, np.arange(size, dtype=np.int32), max_length)
