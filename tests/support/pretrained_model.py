"""A small model of every part, made of seeded random parameters, and its checkpoint as a run would leave it."""

import dataclasses

import numpy as np
from small_model import perturbed

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import CheckpointConfig, ModelConfig
from bert_jax.config.json_form import to_dict
from bert_jax.devices.placement import StoredArray
from bert_jax.formats.stored import StoredModel
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.task import BertForTask
from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.tokenization.wordpiece import WordPiece

WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog bird sat ran flew on in mat tree house . , ##s ##t big old".split()
)
TOKENIZER = Tokenizer(WordPiece(WORDS, lowercase=True))
CONFIG = ModelConfig(
    vocab_size=len(WORDS), hidden_size=16, num_layers=5, num_heads=4, intermediate_size=24, max_position_embeddings=40
)
PARTS = ("pooler", "mlm", "next_sentence")


def random_params(model, seed: int = 0) -> dict:
    """Parameters in which no bias is zero and no scale one, so that each shows in the outputs."""
    return perturbed(model, seed, spread=0.3)


def random_texts(count: int, seed: int = 0) -> list[str]:
    """Texts of 3 to 11 of the words that are whole."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS[5:16], random.integers(3, 12))) for _ in range(count)]


def stored_model(
    config=CONFIG, parts=PARTS, head=None, tokenizer=TOKENIZER, teacher_size=None, **changes
) -> StoredModel:
    """The model as a reader would describe it."""
    if head is None:
        model = BertForPreTraining(config, parts=parts, teacher_size=teacher_size)
    else:
        model = BertForTask(config, head)
    arrays = {
        path: StoredArray(values.shape, values.dtype, values.__getitem__)
        for path, values in leaf_paths(random_params(model)).items()
    }
    return dataclasses.replace(StoredModel("test", "somewhere", config, arrays, tokenizer, head), **changes)


def write_workdir(directory, *steps: int, config=CONFIG, run_id: str = "run") -> dict[int, dict]:
    """A work directory with these steps; the parameters of each, drawn from the step as the seed."""
    TOKENIZER.save(directory / "tokenizer")
    written = {}
    with Checkpoints(directory / "checkpoints", CheckpointConfig(keep_last=9), run_id=run_id) as checkpoints:
        for step in steps:
            written[step] = random_params(BertForPreTraining(config), step)
            state = {"step": np.int32(step), "params": written[step], "optimizer_state": {"m": written[step]}}
            checkpoints.save(
                step, state, position={}, config={"model": to_dict(config), "seed": 3}, metrics={"mlm_loss": 2.5}
            )
    return written


def contents(stored) -> dict[str, bytes]:
    return {
        path: np.asarray(array.read((slice(None),) * len(array.shape)), np.float32).tobytes()
        for path, array in stored.arrays.items()
    }
