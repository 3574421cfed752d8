"""The batches of a measured step: synthetic ones, or those of a token store; as files that every contestant reads."""

import dataclasses
import pathlib

import numpy as np

from bert_jax.config import Config, Phase, resolve_phases
from bert_jax.data.examples.corpus import open_corpus

SYNTHETIC, STORED = 2, 8  # batches that a contestant goes through again and again
FIRST_WORD = 5  # ids below are special tokens


@dataclasses.dataclass(frozen=True)
class BatchFile:
    """Batches in a .npz file: each array has one more axis in front."""

    path: str
    positions: int
    """Positions of a batch, padding included."""
    useful: float
    """Positions of a batch that hold a token, on average."""
    predictions: float
    """Masked positions of a batch, on average."""

    @property
    def padding(self) -> float:
        """Share of the positions that are padding."""
        return 1 - self.useful / self.positions


def with_vocabulary(config: Config) -> Config:
    """Return `config` with the size of its vocabulary: the store's if it names one, else its own or BERT's.

    Synthetic batches are not packed, whatever the configuration says.
    """
    size = config.model.assumed_vocab_size
    if config.data.path:
        size = open_corpus(config).store.vocab_size
    else:
        config = unpacked(config)
    return dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=size))


def unpacked(config: Config) -> Config:
    """Return `config` with one text, or pair, in each row."""
    return dataclasses.replace(config, data=dataclasses.replace(config.data, packing="off"))


def write_batches(config: Config, padding: float, path: pathlib.Path) -> BatchFile:
    """Write the batches of the only phase of `config`, whose vocabulary has a size, to `path`.

    Args:
      config: options of the run; with data.path the batches are the first ones of that store.
      padding: share of padding in synthetic batches.
      path: a file that ends in .npz.
    """
    (phase,) = resolve_phases(config)
    if config.data.path:
        (examples,) = open_corpus(config).training
        batches = [examples.batch(number * phase.batch_size + np.arange(phase.batch_size)) for number in range(STORED)]
    else:
        batches = [synthetic_batch(config, phase, padding, seed) for seed in range(SYNTHETIC)]
    arrays = {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}
    np.savez(path, allow_pickle=False, **arrays)
    mean = lambda name: float(np.mean([np.count_nonzero(batch[name]) for batch in batches]))
    return BatchFile(str(path), phase.tokens_per_step, mean("attention_mask"), mean("masked_weights"))


def synthetic_batch(config: Config, phase: Phase, padding: float, seed: int) -> dict[str, np.ndarray]:
    """Return a batch of random words in which every row has the same length and every prediction slot is used."""
    random = np.random.default_rng(seed)
    rows, length = phase.batch_size, phase.sequence_length
    text = max(2, length - round(length * padding))
    masked = min(phase.max_predictions, text - 1)
    ids = random.integers(FIRST_WORD, config.model.need_vocab_size(), (rows, length), np.int32)
    attention_mask = np.broadcast_to(np.arange(length) < text, (rows, length)).astype(np.int32)
    positions = np.zeros((rows, phase.max_predictions), np.int32)
    words = np.tile(np.arange(1, text), (rows, 1))  # the first is [CLS]
    positions[:, :masked] = np.sort(random.permuted(words, axis=1)[:, :masked], axis=1)
    weights = np.broadcast_to(np.arange(phase.max_predictions) < masked, positions.shape).astype(np.float32)
    batch = {
        "input_ids": ids * attention_mask,
        "token_type_ids": (np.arange(length) > text // 2).astype(np.int32) * attention_mask,
        "attention_mask": attention_mask,
        "masked_positions": positions,
        "masked_ids": np.take_along_axis(ids, positions, 1) * weights.astype(np.int32),
        "masked_weights": weights,
    }
    if config.data.has_pair_labels:
        batch["next_sentence_labels"] = random.integers(0, 2, rows, np.int32)
    if config.objective.name == "permutation":  # the predicted words in turn, after all others
        batch["order"] = np.zeros_like(ids)
        turns = np.broadcast_to(np.arange(1, masked + 1, dtype=np.int32), (rows, masked))
        np.put_along_axis(batch["order"], positions[:, :masked], turns, 1)
    return batch
