"""A teacher of drawn parameters with the vocabulary of a store, written as a work directory."""

import pathlib

from model_variants import variant
from pretrained_model import stored_model

from bert_jax.config import ModelConfig
from bert_jax.formats.conversion import new_directory, write_bert_jax
from bert_jax.formats.stored import StoredModel
from bert_jax.tokenization.tokenizer import load_tokenizer

TEACHER = ModelConfig(
    hidden_size=32, num_layers=4, num_heads=2, intermediate_size=48, max_position_embeddings=64, activation="gelu_erf"
)


def write(
    directory: pathlib.Path, store: pathlib.Path, parts=("pooler", "mlm"), teacher_size=None, **changes
) -> StoredModel:
    """Write it to a new directory and return it as it was drawn; with a `teacher_size`, as a student is."""
    tokenizer = load_tokenizer(store / "tokenizer")
    config = variant(TEACHER, vocab_size=tokenizer.vocab_size, **changes)
    teacher = stored_model(config, parts, tokenizer=tokenizer, teacher_size=teacher_size)
    with new_directory(directory) as partial:
        write_bert_jax(teacher, partial)
    return teacher
