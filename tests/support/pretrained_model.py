"""A small model of every part, models compared, and models loaded."""

import dataclasses

import jax
import numpy as np
import numpy_bert
from small_model import perturbed

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import CheckpointConfig, ComputeConfig, MeshConfig, ModelConfig
from bert_jax.config.options import to_dict
from bert_jax.devices import sharding
from bert_jax.devices.placement import StoredArray
from bert_jax.formats.opening import place
from bert_jax.formats.stored import StoredModel, check_fit
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.task import BertForTask
from bert_jax.pretrained.model import PretrainedModel
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


def write_workdir(directory, *steps: int, config=CONFIG, run_id: str = "run", **options) -> dict[int, dict]:
    """A work directory with these steps; the parameters of each, drawn from the step as the seed.

    `options`: further ones that the record of each step has.
    """
    TOKENIZER.save(directory / "tokenizer")
    written = {}
    with Checkpoints(directory / "checkpoints", CheckpointConfig(keep_last=9), run_id=run_id) as checkpoints:
        for step in steps:
            written[step] = random_params(BertForPreTraining(config), step)
            state = {"step": np.int32(step), "params": written[step], "optimizer_state": {"m": written[step]}}
            metrics = {"mlm_loss": 2.5}
            recorded = {"model": to_dict(config), "seed": 3} | options
            checkpoints.save(step, state, position={}, config=recorded, metrics=metrics)
    return written


def whole(array) -> np.ndarray:
    return array.read((slice(None),) * len(array.shape))


def every_array(stored) -> dict[str, np.ndarray]:
    return {path: whole(array) for path, array in stored.arrays.items()}


def contents(stored) -> dict[str, bytes]:
    return {path: np.asarray(array, np.float32).tobytes() for path, array in every_array(stored).items()}


def assert_same(one, other) -> None:
    check_fit(other)
    assert contents(one) == contents(other)
    assert (one.model, one.head, one.parts) == (other.model, other.head, other.parts)
    assert one.tokenizer.fingerprint == other.tokenizer.fingerprint


SMALL = dataclasses.replace(CONFIG, num_layers=2)
TEXTS = [
    "the cat sat on the mat.",
    ("a big dog", "ran in the house"),
    "birds",
    "old cats, old dogs flew on the old tree.",
]


def loaded(stored) -> PretrainedModel:
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    return PretrainedModel(stored, place(stored, mesh), mesh, ComputeConfig(dtype="float32", layers="scan"))


def compilations(model: PretrainedModel, function: str) -> int:
    """For how many shapes and options the runner has compiled its function of that name."""
    return getattr(model._runner, function)._jitted._cache_size()


def original_pieces(text) -> list[list[int]]:
    """[CLS] A [SEP] (B [SEP]), as ids."""
    first, second = text if isinstance(text, tuple) else (text, None)
    segments = [[TOKENIZER.cls_id, *TOKENIZER.encode(first), TOKENIZER.sep_id]]
    return segments if second is None else [*segments, [*TOKENIZER.encode(second), TOKENIZER.sep_id]]


ABOVE = {name: tree for name, tree in random_params(BertForPreTraining(CONFIG)).items() if name in PARTS}


def row_by_row(model, text) -> dict:
    """One text, not padded, in float64 NumPy; where the model lacks a part, with any other."""
    segments = original_pieces(text)
    ids = np.array([sum(segments, [])])
    batch = {
        "input_ids": ids,
        "token_type_ids": np.repeat(np.arange(len(segments)), [len(s) for s in segments])[None],
        "attention_mask": np.ones_like(ids),
        "masked_positions": np.array([[0]]),
    }
    return numpy_bert.forward(ABOVE | jax.device_get(model.params), model.config, batch)
