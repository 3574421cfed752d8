"""How similar the vectors of positions are: drawn, sinusoidal, and learned."""

import dataclasses

import jax
import numpy as np

from bert_jax.config import ModelConfig
from bert_jax.models.positions import random_positions, sinusoidal_positions

MOST = 128  # rows of a map; of longer tables, evenly spaced ones


@dataclasses.dataclass(frozen=True)
class PositionSimilarity:
    """Cosines between the rows of tables of P positions."""

    tables: tuple[str, ...]
    """random, sinusoidal, and learned if there is a model."""
    rows: tuple[int, ...]
    """The positions in the maps."""
    maps: tuple[np.ndarray, ...]
    """float64 [rows, rows] for each table: cosines."""
    by_distance: tuple[np.ndarray, ...]
    """float64 [P] for each table: mean cosine of two positions at a distance."""
    predicted: np.ndarray
    """float64 [P]: the same of sinusoids, mean over the wavelengths of cos(distance · frequency)."""
    root_mean_square: np.ndarray
    """float64 [tables]: of the values of each table."""


def position_similarity(config: ModelConfig, learned: np.ndarray | None = None, seed: int = 0) -> PositionSimilarity:
    """Return the cosines in both starts of the position table of `config`, and in a learned one [P, H]."""
    key = jax.random.key(seed)
    starts = {"random": random_positions(config, key), "sinusoidal": sinusoidal_positions(config, key)}
    tables = {name: np.asarray(table, np.float64) for name, table in starts.items()}
    if learned is not None:
        tables["learned"] = learned
    first = config.first_position
    values = {name: np.asarray(table[first:], np.float64) for name, table in tables.items()}
    count = len(values["random"])
    rows = np.arange(count)[:: -(-count // MOST)]
    cosines = {name: _cosines(table) for name, table in values.items()}
    frequencies = 10_000.0 ** (-2 * (np.arange(config.word_size) // 2) / config.word_size)
    predicted = np.cos(np.arange(count)[:, None] * frequencies[None]).mean(axis=1)
    return PositionSimilarity(
        tables=tuple(values),
        rows=tuple(rows.tolist()),
        maps=tuple(matrix[np.ix_(rows, rows)] for matrix in cosines.values()),
        by_distance=tuple(
            np.array([np.diagonal(matrix, distance).mean() for distance in range(count)]) for matrix in cosines.values()
        ),
        predicted=predicted,
        root_mean_square=np.array([np.sqrt(np.mean(table**2)) for table in values.values()]),
    )


def _cosines(table: np.ndarray) -> np.ndarray:
    unit = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-30)
    return unit @ unit.T
