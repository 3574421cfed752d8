"""How differently heads look: Jensen-Shannon divergences of their attention, a map in two dimensions, and clusters."""

import numpy as np
from scipy.special import entr

from bert_jax.errors import UserError

TOKENS = 4_096
"""Tokens that the divergences are means over: the first texts of a corpus have as many."""
OF_A_TEXT = 16  # at most, drawn at random: those of one text are alike


class DivergenceSums:
    """Sums over tokens of the divergences between what any two of H heads attend to."""

    def __init__(self, heads: int, seed: int):
        self._sums, self._random = np.zeros((heads, heads)), np.random.default_rng(seed)
        self.tokens: int = 0

    def add(self, weights: np.ndarray) -> None:
        """Add some tokens of a text, unless there are enough: probabilities [H, L (query), L (key)]."""
        count = min(OF_A_TEXT, weights.shape[1], TOKENS - self.tokens)
        if count:
            places = self._random.choice(weights.shape[1], count, replace=False)
            self._sums += divergences(weights[:, places].astype(np.float64)) * count
            self.tokens += count

    def means(self) -> np.ndarray:
        """Return float64 [H, H], in nats."""
        return self._sums / self.tokens


def divergences(rows: np.ndarray) -> np.ndarray:
    """Return [H, H]: the mean Jensen-Shannon divergences of distributions [H, Q, L], from 0 to log 2 nats.

    JS(p, q) = S((p + q) / 2) - (S(p) + S(q)) / 2, with the entropy S.
    """
    entropies, found = entr(rows).sum(axis=-1), np.zeros((len(rows), len(rows)))
    for head in range(len(rows) - 1):
        mixed = entr((rows[head] + rows[head + 1 :]) / 2).sum(axis=-1)
        values = (mixed - (entropies[head] + entropies[head + 1 :]) / 2).mean(axis=-1)
        found[head, head + 1 :] = found[head + 1 :, head] = np.maximum(values, 0.0)
    return found


def scaled_map(squared: np.ndarray) -> np.ndarray:
    """Return points [H, 2] whose distances are close to the roots of `squared` [H, H]: classical scaling.

    Roots of Jensen-Shannon divergences, and of their means, are distances of points in a space of more dimensions
    (Fuglede & Topsøe 2004); the map has the two in which they differ most. The sign of each is such that the point
    farthest out is positive.
    """
    centred = -0.5 * (squared - squared.mean(axis=0) - squared.mean(axis=1)[:, None] + squared.mean())
    values, vectors = np.linalg.eigh(centred)
    points = np.zeros((len(squared), 2))
    chosen = np.argsort(values)[::-1][:2]
    points[:, : len(chosen)] = vectors[:, chosen] * np.sqrt(np.maximum(values[chosen], 0.0))
    signs = np.sign(points[np.abs(points).argmax(axis=0), [0, 1]])
    return points * np.where(signs == 0, 1.0, signs)


def clusters_of(squared: np.ndarray, count: int) -> np.ndarray:
    """Return the cluster of each head, int [H] from 0, the largest first: average linkage of the roots of `squared`.

    Raises:
      UserError: fewer than one cluster, or more than heads.
    """
    if not 1 <= count <= len(squared):
        raise UserError(f"clusters={count} must be from 1 to the {len(squared)} heads of the model")
    if count == len(squared):
        return np.arange(count)
    from scipy.cluster import hierarchy  # takes a while to import

    condensed = np.sqrt(squared)[np.triu_indices(len(squared), 1)]
    found = hierarchy.fcluster(hierarchy.linkage(condensed, "average"), count, "maxclust") - 1
    order = sorted(set(found), key=lambda each: (-np.sum(found == each), int(np.argmax(found == each))))
    return np.array([order.index(each) for each in found])
