"""A small RoBERTa of random parameters, with a byte-level vocabulary."""

import dataclasses

import pretrained_model
from byte_level_vocabulary import byte_level

from bert_jax.config.presets import roberta_config
from bert_jax.formats.stored import StoredModel

CONFIG = dataclasses.replace(
    roberta_config("tiny"),
    vocab_size=byte_level().vocab_size,
    hidden_size=12,
    num_heads=3,
    num_layers=1,
    intermediate_size=20,
    max_position_embeddings=34,
)


def stored_model(head=None) -> StoredModel:
    """With the head of masked words, or that of a task."""
    parts = ("mlm",) if head is None else ()
    return pretrained_model.stored_model(CONFIG, parts, head, byte_level())
