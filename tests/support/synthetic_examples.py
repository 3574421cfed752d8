"""Epochs of examples cut from a synthetic store, and what is in them."""

import numpy as np

from bert_jax.config import Config, DataConfig, MaskingConfig, PhaseConfig
from bert_jax.data.examples import Examples

PAIRS = ("nsp", "sop", "adjacent", "none")
LABELLED = ("nsp", "sop")
SEPARATORS = {"nsp": (2,), "sop": (2,), "adjacent": (1, 2), "none": (1,)}  # [SEP]s of a text


def make_config(sequence_length=64, short=0.1, **options):
    data = {
        name: options.pop(name)
        for name in ("sentence_pairs", "held_out", "eval_path", "copies", "packing")
        if name in options
    }
    return Config(
        data=DataConfig(short_sequence_probability=short, **data),
        masking=MaskingConfig(**options),
        phases=(PhaseConfig(sequence_length=sequence_length),),
    )


def make_examples(store, split="all", seed=0, **options):
    return Examples(store, make_config(**options), split=split, seed=seed)


def epoch_rows(examples, epoch):
    count = examples.num_examples(epoch)
    return examples.rows(np.full(count, epoch), np.arange(count))


def segments(rows):
    """Token offsets of the first and the second segment of every row (arrays)."""
    return [
        tuple(index[(index >= 0) & (types == segment)] for segment in (0, 1))
        for index, types in zip(rows.token_index, rows.token_type_ids)
    ]


def sentences_seen(examples, epoch):
    """Number of the store's sentences with a token at least in the epoch."""
    tokens = epoch_rows(examples, epoch).token_index
    starts = examples.store.sentence_starts(np.arange(examples.store.num_sentences))
    return len(np.unique(np.searchsorted(starts, tokens[tokens >= 0], side="right")))


def documents_of(store, offsets):
    return np.searchsorted(store.document_tokens, offsets, side="right") - 1
