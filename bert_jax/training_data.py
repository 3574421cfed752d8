"""The configuration of a run, and the data that it describes: the stores that it names, and their examples."""

import dataclasses
import logging
import os
from collections.abc import Iterable

import numpy as np
from etils import epath

from bert_jax.checkpoints.workdir import read_settings
from bert_jax.config import Config, DataConfig, Phase, config_of_phase, resolve_phases
from bert_jax.config.checks import MixturePart, resolve_mixtures, training_paths
from bert_jax.config.options import from_record, not_of_pretraining, options_recorded
from bert_jax.data.examples import StoreExamples
from bert_jax.data.mixtures import Corpus, HeldOut, Mixture, check_epoch
from bert_jax.data.store import Store, open_store
from bert_jax.errors import UserError
from bert_jax.tokenization.tokenizer import Tokenizer

EVALUATION_SEED = 2019  # for pairs, lengths and masks; not the run's seed, so that runs with different seeds compare


class Examples(StoreExamples):
    """`StoreExamples` of one split of a token store, made of a `Config`."""

    def __init__(
        self, store: Store, config: Config, phase: Phase | int = 0, split: str = "train", seed: int | None = None
    ):
        """Choose the documents of `store` (from `open_store`) and the length.

        Args:
          config: options of the run; data, masking and objective are used, as the phase sees them.
          phase: phase of the run, or its number in `config.phases`.
          split: "train", "held_out" or "all" documents of the store.
          seed: seed of order, pairs and masks. None: `config.seed`, for every phase.

        Raises:
          UserError: the split has no documents or no text, or its vocabulary does not fit the model or the objective.
        """
        phase = resolve_phases(config)[phase] if isinstance(phase, int) else phase
        tokenizer, seed = store.tokenizer(), config.seed if seed is None else seed
        config = config_of_phase(config, phase.index)
        _check_tokenizer(tokenizer, config)
        super().__init__(store, tokenizer, phase, config.data, config.masking, config.objective, split, seed)


def held_out_examples(config: Config, phase: Phase, held_out: Iterable[HeldOut]) -> dict[str, Examples]:
    """Return what each of `held_out` is measured on, by name: the same texts and masks in every run.

    A row has one text, so that runs that pack their rows compare with others.
    """
    alone = dataclasses.replace(phase, packed=False)
    return {each.name: Examples(each.store, config, alone, each.split, EVALUATION_SEED) for each in held_out}


def read_config(path: str | os.PathLike[str]) -> Config:
    """Return the configuration that the run in work directory `path` was last started with.

    Raises:
      UserError: there is no config.json, it is that of something else, it is damaged, or another version of bert_jax
        wrote it.
    """
    settings = read_settings(path)
    if other := not_of_pretraining(settings):
        raise UserError(f"{os.fspath(path)} holds {other}; give the work directory of a run of `bert-jax pretrain`")
    return from_record(Config, options_recorded(settings), f"{epath.Path(path) / 'config.json'}")


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
            amount = tokens ** (1 / config_of_phase(config, phase.index).data.mixture_temperature)
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


def _check_tokenizer(tokenizer: Tokenizer, config: Config) -> None:
    """Raise a UserError if the store was prepared with a tokenizer that this model or objective cannot use."""
    if tokenizer.separators > 1 and config.data.sentence_pairs != "none":
        raise UserError(
            f"data.sentence_pairs={config.data.sentence_pairs}, but {config.data.path} was prepared with a vocabulary "
            f"whose pairs have two separators and one segment ({tokenizer.kind}), as of RoBERTa, which was pre-trained "
            "without pairs: set data.sentence_pairs=none, or prepare the text with another vocabulary"
        )
    if tokenizer.class_last and not config.model.two_streams:
        raise UserError(
            f"{config.data.path} was prepared with a vocabulary of XLNet, which puts its class token behind the texts, "
            "where this model does not read it: pre-train an XLNet (`bert-jax pretrain xlnet_mini`), or prepare the "
            "text with another vocabulary"
        )
    if config.model.padding_id not in (None, tokenizer.pad_id):
        raise UserError(
            f"model.padding_id={config.model.padding_id}, but {config.data.path} was prepared with a vocabulary in "
            f"which {tokenizer.tokens[tokenizer.pad_id]} has id {tokenizer.pad_id}; set model.padding_id="
            f"{tokenizer.pad_id} (and model.max_position_embeddings to {tokenizer.pad_id + 1} more than the longest "
            "sequence)"
        )
