"""The data of a pre-training run: the stores that its options name, mixed in exact shares, per phase.

A mixture is still a pure function of (seed, position). The statistics of an epoch are measured on its rows without
reading a token.
"""

import dataclasses
import hashlib
import json
import logging
from typing import Any

import numpy as np

from bert_jax.config import Config, DataConfig, Phase, resolve_phases
from bert_jax.config.checks import MixturePart, resolve_mixtures, training_paths
from bert_jax.data.examples import Batch, Examples
from bert_jax.data.store import Store, open_store
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


def epoch_report(examples: Examples, epoch: int = 0, limit: int = 100_000) -> EpochReport:
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


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Documents to evaluate on."""

    name: str
    """Name of the figures of these documents in a mixture; "" otherwise."""
    store: Store
    split: str
    """"held_out", or "all" of a separate store."""


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The stores of a run, opened and compared by `open_corpus`."""

    stores: dict[str, Store]
    """Those to train on, by name: the end of its path."""
    training: tuple[Examples | Mixture, ...]
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


def open_corpus(config: Config) -> Corpus:
    """Open the stores that `config.data` names.

    Raises:
      UserError: there is no such store, the vocabularies differ from each other or from model.vocab_size, or a phase
        has fewer sequences than a batch.
    """
    mixtures, paths = resolve_mixtures(config), training_paths(config)
    opened = {path: open_store(path, config.data.cache) for path in paths or ("",)}
    _check_vocabularies(config.model.vocab_size, opened)
    names = dict(zip(opened, _names(list(opened)), strict=True))
    training = []
    for phase, parts in zip(resolve_phases(config), mixtures, strict=True):
        training.append(_mixed(config, phase, parts, opened, names) if parts else _alone(config, phase, opened))
        check_epoch(training[-1], phase.batch_size)
    stores = {names[path]: store for path, store in opened.items()}
    return Corpus(stores, tuple(training), _held_out(config.data, stores, bool(mixtures[0])))


def _alone(config: Config, phase: Phase, opened: dict[str, Store]) -> Examples:
    (store,) = opened.values()
    return Examples(store, config, phase, split="train", seed=phase.data_seed)


def _mixed(
    config: Config, phase: Phase, parts: tuple[MixturePart, ...], opened: dict[str, Store], names: dict[str, str]
) -> Mixture:
    """Return the mixture of a phase, in which each store has a seed that follows from its text, not from its place."""
    sources, weights = {}, []
    for part in parts:
        store = opened[part.path]
        seed = phase.data_seed + (int(store.fingerprint[:7], 16) << 36)
        sources[names[part.path]] = examples = Examples(store, config, phase, split="train", seed=seed)
        tokens, rows = int(examples.documents.num_tokens.sum()), examples.num_examples(0)
        amount = part.amount
        if part.kind == "size":
            amount = tokens ** (1 / config.data.mixture_temperature)
        assert amount is not None
        weights.append(amount if part.kind == "weight" else amount * rows / tokens)
    mixture = Mixture(sources, np.array(weights))
    _tell(phase, parts, mixture)
    return mixture


def _tell(phase: Phase, parts: tuple[MixturePart, ...], mixture: Mixture) -> None:
    """Warn of stores that a phase reads again because they are smaller than their budget, and of budgets it misses."""
    read = {name: share * phase.steps * phase.batch_size for name, share in mixture.shares.items()}
    if parts[0].kind != "tokens":
        return
    for part, (name, examples) in zip(parts, mixture.sources.items(), strict=True):
        tokens, epochs = int(examples.documents.num_tokens.sum()), read[name] / examples.num_examples(0)
        assert part.amount is not None
        if part.amount > tokens:
            logging.warning(
                "phase %d: %s has %s tokens, fewer than its budget of %s: each is read %.3g times",
                phase.index,
                part.path,
                f"{tokens:,}",
                f"{part.amount:,.0f}",
                epochs,
            )
        missed = epochs * tokens / part.amount - 1 if part.amount else 0.0
        if abs(missed) > 0.01:
            logging.warning(
                "phase %d reads %s tokens of %s, %.0f %% of its budget: its steps decide how much is read, the budgets "
                "only of which",
                phase.index,
                f"{epochs * tokens:,.0f}",
                part.path,
                100 * (1 + missed),
            )


def _names(paths: list[str]) -> list[str]:
    """Return what stores are called: the last parts of their paths, as many as tell all apart."""
    split = [[part for part in path.split("/") if part not in ("", ".")] or ["store"] for path in paths]
    for count in range(1, max(map(len, split)) + 1):
        names = ["_".join(parts[-count:]) for parts in split]
        if len(set(names)) == len(names):
            return names
    return [f"store_{number}" for number in range(len(paths))]


def _held_out(data: DataConfig, stores: dict[str, Store], mixed: bool) -> tuple[HeldOut, ...]:
    if not data.eval_path:
        if not data.held_out:
            return ()
        return tuple(HeldOut(name if mixed else "", store, "held_out") for name, store in stores.items())
    evaluation_store = open_store(data.eval_path, data.cache)
    if evaluation_store.tokenizer().fingerprint != next(iter(stores.values())).tokenizer().fingerprint:
        raise UserError(
            f"data.eval_path={data.eval_path} was prepared with a vocabulary different from that of "
            f"{'data.mixture' if mixed else 'data.path'}={data.mixture or data.path}; prepare it again with the same "
            "--vocab"
        )
    return (HeldOut("", evaluation_store, "all"),)


def _check_vocabularies(given: int | None, opened: dict[str, Store]) -> None:
    (first, store), *others = opened.items()
    if given not in (None, store.vocab_size):
        raise UserError(
            f"model.vocab_size={given}, but {first} was prepared with a vocabulary of {store.vocab_size} "
            "entries; leave model.vocab_size out (it is taken from the store), or prepare the corpus with the other "
            "vocabulary"
        )
    for path, other in others:
        if other.manifest.tokenizer.fingerprint != store.manifest.tokenizer.fingerprint:
            raise UserError(
                f"data.mixture: {path} was prepared with a vocabulary different from that of {first}; prepare one of "
                "them again with the --vocab of the other"
            )
