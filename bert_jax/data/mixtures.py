"""The data of a pre-training run: stores mixed in exact shares, per phase.

A mixture is still a pure function of (seed, position). The statistics of an epoch are measured on its rows without
reading a token.
"""

import dataclasses
import hashlib
import json
from typing import Any

import numpy as np

from bert_jax.config import Phase
from bert_jax.data.examples import Batch, Layout, StoreExamples
from bert_jax.data.store import Store
from bert_jax.errors import UserError

_ROWS_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True)
class EpochReport:
    """Statistics of one epoch; shares are between 0 and 1, and lengths count [CLS] and [SEP]."""

    sequences: int
    examined: int  # the first ones of the epoch, in order
    is_next: float | None  # share of label 0; None if pairs have no labels
    mean_length: float
    padding: float  # share of the positions of a batch
    truncated: float  # share of the text's tokens
    duplicated: float  # share of the text's tokens
    sentences_seen: float | None  # share with at least one token; None unless all sequences were examined
    tokens_seen: float | None
    texts_per_sequence: float  # 1 unless rows are packed


def epoch_report(examples: StoreExamples, epoch: int = 0, limit: int = 100_000) -> EpochReport:
    """Measure at most `limit` sequences of `epoch`; this takes one byte of memory per token of the store."""
    sequences = examples.num_examples(epoch)
    examined = min(sequences, limit)
    documents, store = examples.documents, examples.store
    seen = np.zeros(store.num_tokens, bool) if examined == sequences else None
    lengths, labels, truncated, duplicated, kept, texts = [], [], 0, 0, 0, 0
    for start in range(0, examined, _ROWS_AT_ONCE):
        indices = np.arange(start, min(start + _ROWS_AT_ONCE, examined))
        rows = examples.rows(np.full(len(indices), epoch), indices)
        text = rows.token_index[rows.token_index >= 0]
        lengths.append(rows.lengths)
        texts += len(indices) if rows.text_weights is None else int(rows.text_weights.sum())
        truncated, duplicated, kept = (
            truncated + rows.truncated.sum(),
            duplicated + rows.duplicated.sum(),
            kept + text.size,
        )
        if rows.labels is not None:
            labels.append(rows.labels if rows.text_weights is None else rows.labels[rows.text_weights > 0])
        if seen is not None:
            seen[text] = True
    lengths, own = np.concatenate(lengths), kept - duplicated + truncated
    sentences_seen = None if seen is None else _sentences_seen(store, seen, documents)
    tokens_seen = None if seen is None else float(seen.sum() / documents.num_tokens.sum())
    return EpochReport(
        sequences,
        examined,
        1 - float(np.concatenate(labels).mean()) if labels else None,
        float(lengths.mean()),
        1 - float(lengths.mean()) / examples.sequence_length,
        float(truncated / own),
        float(duplicated / own),
        sentences_seen,
        tokens_seen,
        texts / examined,
    )


def _sentences_seen(store: Any, seen: np.ndarray, documents: Any) -> float:
    starts = store.sentence_starts(np.arange(store.num_sentences))
    touched = np.logical_or.reduceat(seen, starts).sum()
    return float(touched / (documents.end_sentences - documents.first_sentences).sum())


GRAINS = 1 << 20
"""Shares are multiples of 1 / GRAINS: among as many consecutive positions each store has its share exactly."""


class Mixture:
    """The examples of several stores, taken in turn: position p is an example of one of them.

    Among the first p positions store s has its share of p, to within half an example per store, for every p; so every
    batch is mixed alike, which is less noisy than drawing the store of each example. A store's own positions are read
    in their order, one after the other: it has epochs of its own, of any length.

    It is used in place of `StoreExamples`, and is safe to call from several threads.
    """

    def __init__(self, sources: dict[str, StoreExamples], weights: np.ndarray):
        """Mix `sources`, by name, with `weights` (float [sources]) as the shares of their examples."""
        first = next(iter(sources.values()))
        self.sources: dict[str, StoreExamples] = sources
        self.grains: np.ndarray = grains(weights)
        self.layout: Layout = first.layout
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


def read_before(position: int, number: int, counts: np.ndarray) -> int:
    """Return how many of the first `position` examples are of store `number`."""
    (blocks, left), total = divmod(position, GRAINS), GRAINS
    for count in counts[:number].tolist():
        left -= (left * count + total // 2) // total
        total -= count
    count = int(counts[number])
    return blocks * count + (left * count + total // 2) // total if count else 0


def assigned(own: np.ndarray, number: int, counts: np.ndarray) -> np.ndarray:
    """Return the positions (int64 [B]) at which store `number`'s own positions (int64 [B]) are: undo `assign`."""
    totals = GRAINS - (np.cumsum(counts) - counts)
    blocks, before = np.divmod(own, counts[number])
    total = int(totals[number])
    # The place among what the earlier stores have left, then among what all but the last of them have, and so on.
    left = -(-((before + 1) * total - total // 2) // counts[number]) - 1
    for count, total in zip(counts[:number][::-1].tolist(), totals[:number][::-1].tolist(), strict=True):
        left = (left * total + total // 2) // (total - count)
    return blocks * GRAINS + left


def check_epoch(examples: StoreExamples | Mixture, batch_size: int) -> None:
    """Raise a UserError if a training epoch has fewer examples than a batch; evaluation may repeat some."""
    count = examples.num_examples(0)
    if examples.split == "train" and count < batch_size:
        raise UserError(
            f"the training documents give {count} sequences of length {examples.sequence_length}, fewer than a "
            f"batch of {batch_size}; lower the batch size to at most {count}, shorten the sequences, "
            "or prepare more text"
        )


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Documents to evaluate on."""

    name: str
    """Name of the figures of these documents in a mixture; "" otherwise."""
    store: Store
    split: str
    """"held_out", or "all" of a separate store."""


def recorded_stores(run: dict[str, Any]) -> list[str]:
    """Return the fingerprints of the stores that a run.json names, as `Corpus.identity` writes them; [] if of none."""
    one = run.get("store_fingerprint")
    return run.get("store_fingerprints") or ([one] if one else [])


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The stores of a run, as `training_data.open_corpus` opens them."""

    stores: dict[str, Store]
    """Those to train on, by name: the end of its path."""
    training: tuple[StoreExamples | Mixture, ...]
    """Training examples of each phase."""
    held_out: tuple[HeldOut, ...]
    """Documents to evaluate on: () if nothing is held out, one in a run of one store, one for each of a mixture."""

    @property
    def store(self) -> Store:
        """The first store; all have its vocabulary."""
        return next(iter(self.stores.values()))

    @property
    def fingerprint(self) -> str:
        """That of the store; of mixtures, one that tells their stores and shares in every phase."""
        mixtures = [each.fingerprints for each in self.training if isinstance(each, Mixture)]
        return hashlib.sha256(json.dumps(mixtures).encode()).hexdigest() if mixtures else self.store.fingerprint

    @property
    def identity(self) -> dict[str, Any]:
        """Identity that a resumed run must share with the earlier start: fingerprints of stores and vocabulary."""
        facts = {"store_fingerprint": self.fingerprint, "tokenizer_fingerprint": self.store.tokenizer().fingerprint}
        if not any(isinstance(each, Mixture) for each in self.training):
            return facts
        return facts | {"store_fingerprints": [store.fingerprint for store in self.stores.values()]}

    def shares(self, phase: Phase) -> dict[str, float]:
        """Return the share of each `held_out` in the examples of a phase, by name."""
        training = self.training[phase.index]
        if isinstance(training, Mixture) and len(self.held_out) > 1:
            return {each.name: training.shares.get(each.name, 0.0) for each in self.held_out}
        return {each.name: 1.0 for each in self.held_out}

    def fingerprints(self) -> dict[str, str | None]:
        """Return the fingerprints that must be equal on all hosts, wherever their copies are."""
        return {
            "store_fingerprint": self.fingerprint,
            "tokenizer_fingerprint": self.store.manifest.tokenizer.fingerprint,
            "evaluation_store_fingerprint": " ".join(each.store.fingerprint for each in self.held_out) or None,
            "evaluation_split": " ".join(each.split for each in self.held_out),
        }
