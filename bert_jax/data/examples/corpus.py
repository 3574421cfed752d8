"""The data of a pre-training run: the token stores that its options name, and the training examples of each phase."""

import dataclasses

from bert_jax.config import Config, resolve_phases
from bert_jax.data.examples.examples import Examples, check_epoch
from bert_jax.data.store.access import open_store
from bert_jax.data.store.store import Store
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The stores of a run, opened and compared by `open_corpus`."""

    store: Store
    training: tuple[Examples, ...]
    """Training examples of each phase."""
    evaluation_store: Store | None
    """Store to evaluate on; None if nothing is held out."""
    evaluation_split: str
    """Documents of that store to evaluate on: "held_out", or "all" of a separate store."""

    def fingerprints(self) -> dict[str, str | None]:
        """Return the fingerprints that must be equal on all hosts, wherever their copies are."""
        evaluation = self.evaluation_store
        return {
            "store_fingerprint": self.store.fingerprint,
            "tokenizer_fingerprint": self.store.manifest.tokenizer.fingerprint,
            "evaluation_store_fingerprint": None if evaluation is None else evaluation.fingerprint,
            "evaluation_split": self.evaluation_split,
        }


def open_corpus(config: Config) -> Corpus:
    """Open the stores that `config.data` names.

    Raises:
      UserError: there is no such store, the vocabularies differ from each other or from model.vocab_size, or a phase
        has fewer sequences than a batch.
    """
    store, evaluation_store = _open_stores(config)
    _check_vocabulary(config, store)
    training = []
    for phase in resolve_phases(config):
        training.append(Examples(store, config, phase, split="train", seed=phase.data_seed))
        check_epoch(training[-1], phase.batch_size)
    return Corpus(store, tuple(training), evaluation_store, "all" if config.data.eval_path else "held_out")


def _open_stores(config: Config) -> tuple[Store, Store | None]:
    """Return the store to train on and the one to evaluate on (None: nothing is held out)."""
    store = open_store(config.data.path, config.data.cache)
    if not config.data.eval_path:
        return store, store if config.data.held_out else None
    evaluation_store = open_store(config.data.eval_path, config.data.cache)
    if evaluation_store.tokenizer().fingerprint != store.tokenizer().fingerprint:
        raise UserError(
            f"data.eval_path={config.data.eval_path} was prepared with a vocabulary different from that of "
            f"data.path={config.data.path}; prepare it again with the same --vocab"
        )
    return store, evaluation_store


def _check_vocabulary(config: Config, store: Store) -> None:
    given = config.model.vocab_size
    if given not in (None, store.vocab_size):
        raise UserError(
            f"model.vocab_size={given}, but {config.data.path} was prepared with a vocabulary of {store.vocab_size} "
            "entries; leave model.vocab_size out (it is taken from the store), or prepare the corpus with the other "
            "vocabulary"
        )
