"""The data of a pre-training run: the token stores that its options name, and the training examples of each phase."""

import dataclasses
import hashlib
import json
import logging

import numpy as np

from bert_jax.config import Config, Phase, resolve_phases
from bert_jax.config.mixtures import MixturePart, resolve_mixtures, training_paths
from bert_jax.data.examples.examples import Examples
from bert_jax.data.examples.mixture import Mixture, check_epoch
from bert_jax.data.store.access import open_store
from bert_jax.data.store.store import Store
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Documents to evaluate on."""

    name: str
    """What figures of these documents are called, in a mixture; "" otherwise."""
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
    """What to evaluate on: () if nothing is held out, one in a run of one store, one for each store of a mixture."""

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
    def mixed_stores(self) -> tuple[str, ...]:
        """The fingerprint of each store, in a run of mixtures."""
        mixed = any(isinstance(each, Mixture) for each in self.training)
        return tuple(store.fingerprint for store in self.stores.values()) if mixed else ()

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
    _check_vocabularies(config, opened)
    names = dict(zip(opened, _names(list(opened)), strict=True))
    training = []
    for phase, parts in zip(resolve_phases(config), mixtures, strict=True):
        training.append(_mixed(config, phase, parts, opened, names) if parts else _alone(config, phase, opened))
        check_epoch(training[-1], phase.batch_size)
    stores = {names[path]: store for path, store in opened.items()}
    return Corpus(stores, tuple(training), _held_out(config, stores, bool(mixtures[0])))


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


def _held_out(config: Config, stores: dict[str, Store], mixed: bool) -> tuple[HeldOut, ...]:
    data = config.data
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


def _check_vocabularies(config: Config, opened: dict[str, Store]) -> None:
    (first, store), *others = opened.items()
    given = config.model.vocab_size
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
