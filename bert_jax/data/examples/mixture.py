"""Examples of several token stores in exact shares, still a pure function of (seed, position)."""

import numpy as np

from bert_jax.data.examples.batch_layout import Batch
from bert_jax.data.examples.examples import Examples
from bert_jax.errors import UserError

GRAINS = 1 << 20
"""Shares are multiples of 1 / GRAINS: among as many consecutive positions each store has its share exactly."""


class Mixture:
    """The examples of several stores, taken in turn: position p is an example of one of them.

    Among the first p positions store s has its share of p, to within half an example per store, for every p; so every
    batch is mixed alike, which is less noisy than drawing the store of each example. A store's own positions are read
    in their order, one after the other: it has epochs of its own, of any length.

    It is used in place of `Examples`, and is safe to call from several threads.
    """

    def __init__(self, sources: dict[str, Examples], weights: np.ndarray):
        """Mix `sources`, by name, with `weights` (float [sources]) as the shares of their examples."""
        first = next(iter(sources.values()))
        self.sources: dict[str, Examples] = sources
        self.grains: np.ndarray = grains(weights)
        self.layout: dict[str, tuple[tuple[int, ...], type[np.generic]]] = first.layout
        self.store = first.store  # all have its vocabulary
        self.split: str = first.split
        self.sequence_length: int = first.sequence_length

    @property
    def shares(self) -> dict[str, float]:
        """The share of each store among the examples."""
        return dict(zip(self.sources, (self.grains / GRAINS).tolist(), strict=True))

    @property
    def fingerprints(self) -> list[tuple[str, int]]:
        """The fingerprint of each store with its share, in GRAINS: equal ones give the same examples."""
        stores = (examples.store.fingerprint for examples in self.sources.values())
        return list(zip(stores, self.grains.tolist(), strict=True))

    def num_examples(self, epoch: int) -> int:
        """Return the number of examples of `epoch` of all stores together; here each is read at its own pace."""
        return sum(examples.num_examples(epoch) for examples in self.sources.values())

    def batch(self, positions: np.ndarray) -> Batch:
        """Return the examples at `positions` (int64 [B], any order, repeats allowed)."""
        number, own = assign(np.asarray(positions, np.int64), self.grains)
        rows = {name: np.empty((len(number), *shape), dtype) for name, (shape, dtype) in self.layout.items()}
        for index, examples in enumerate(self.sources.values()):
            here = np.flatnonzero(number == index)
            if here.size:
                for name, values in examples.batch(own[here]).items():
                    rows[name][here] = values
        return rows


def grains(weights: np.ndarray) -> np.ndarray:
    """Return int64 [S]: `weights` (float [S]) as numbers of GRAINS, by largest remainders; positive ones get one.

    Raises:
      UserError: the weights add up to nothing.
    """
    weights = np.asarray(weights, np.float64)
    if not weights.sum() > 0:
        raise UserError("the weights of the mixture add up to nothing; give at least one store a positive weight")
    exact = weights / weights.sum() * GRAINS
    counts = np.where(weights > 0, np.maximum(np.floor(exact), 1), 0).astype(np.int64)
    missing = GRAINS - int(counts.sum())
    order = np.argsort(counts - exact, kind="stable")  # the largest remainder first
    if missing >= 0:
        counts[order[:missing]] += 1
    else:  # tiny weights got one grain each: the largest pays
        counts[int(np.argmax(counts))] += missing
    return counts


def assign(positions: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the store (int64 [B]) of each of `positions` (int64 [B]), and its position among that store's examples.

    Store after store takes its share of what the stores before it have left, evenly spaced: the multiples of its share
    among what is left, rounded (Bresenham's line).
    """
    blocks, left = np.divmod(positions, GRAINS)
    number, own = np.full(positions.shape, -1), np.zeros(positions.shape, np.int64)
    total = GRAINS
    for index, count in enumerate(counts.tolist()):
        if not count:
            continue
        before, behind = ((places * count + total // 2) // total for places in (left, left + 1))
        here = (number < 0) & (behind > before)
        number[here], own[here] = index, (blocks * count + before)[here]
        left = left - before
        total -= count
    return number, own


def check_epoch(examples: Examples | Mixture, batch_size: int) -> None:
    """Raise a UserError if a training epoch has fewer examples than a batch; evaluation may repeat some."""
    count = examples.num_examples(0)
    if examples.split == "train" and count < batch_size:
        raise UserError(
            f"the training documents give {count} sequences of length {examples.sequence_length}, fewer than a "
            f"batch of {batch_size}; lower the batch size to at most {count}, shorten the sequences, "
            "or prepare more text"
        )
