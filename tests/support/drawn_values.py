"""Arrays of parameters that are drawn again wherever their names are known."""

import zlib

import numpy as np


def value(owner: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values that depend on owner and name alone, around 1 for the scales of norms."""
    random = np.random.RandomState(zlib.crc32(f"{owner}/{name}".encode()))
    centre = 1 if name.lower().endswith("norm.weight") else 0
    return (centre + 0.3 * random.standard_normal(shape)).astype(np.float32)
