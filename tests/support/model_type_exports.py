"""A small model of every model type of `transformers`, with every head that an export of it can have."""

import functools
import pathlib
import tempfile

import family_pieces
import numpy as np
from model_variants import variant
from modern_models import MODERN
from pretrained_model import TOKENIZER, stored_model
from processes import EXHAUSTIVE
from vocabularies import byte_level, modernbert, mpnet

from bert_jax.config import DisentangledConfig, HeadConfig
from bert_jax.config.options import to_dict
from bert_jax.formats.model_types import MODEL_TYPES
from bert_jax.formats.stored import StoredModel
from bert_jax.tokenization.tokenizer import load_tokenizer

SIZES = dict(hidden_size=30, num_layers=2, num_heads=3, intermediate_size=23, max_position_embeddings=24)
ROBERTA = dict(padding_id=1, type_vocab_size=1, pair_head=False, activation="gelu_erf")
DEBERTA = dict(type_vocab_size=0, pair_head=False, positions="none", pooler="gelu_erf")
DISTANCES = DisentangledConfig(terms="c2p+p2c", max_distance=5, key_bias=False)
BUCKETS = DisentangledConfig(terms="c2p+p2c", max_distance=12, buckets=6, shared_projections=True, table_norm=True)
GATED = dict(
    **dict(type_vocab_size=0, norm_position="pre", norm="rms_norm", positions="rope", embedding_norm=False),
    **dict(layer_bias=False, pair_head=False, activation="silu"),
)
FORMS = {  # options in which each type is not BERT
    "bert": {},
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "modernbert": {name: value for name, value in to_dict(MODERN).items() if name not in SIZES},
    "albert": dict(embedding_size=7, sharing="all"),
    "distilbert": dict(type_vocab_size=0, pooler="relu", pair_head=False),
    "mpnet": ROBERTA | dict(type_vocab_size=0, positions="learned_bias"),
    "electra": dict(embedding_size=7, pooler="gelu_erf", activation="gelu_erf", pair_head=False),
    "deberta": DEBERTA | {"disentangled": DISTANCES},
    "deberta-v2": DEBERTA | {"disentangled": BUCKETS},
    "modernbert-decoder": {name: value for name, value in to_dict(MODERN).items() if name not in SIZES}
    | {"direction": "left_to_right"},
    "nomic_bert": dict(positions="rope", feed_forward="swiglu", activation="silu", layer_bias=False, pair_head=False),
    "eurobert": GATED | dict(pooler="gelu_erf", key_value_heads=1, word_head="linear", feed_forward="swiglu"),
    "neobert": GATED | dict(pooler="tanh", word_head="affine", feed_forward="swiglu", intermediate_size=24),
    "xlnet": dict(positions="xlnet", type_vocab_size=4, pair_head=False),
}
PARTS = {  # key of ModelType.classes without a task → our parts; "pooled" is an "encoder" with its pooler
    "pretraining": ("pooler", "mlm", "next_sentence"),
    "mlm": ("mlm",),
    "pairs": ("pooler", "next_sentence"),
    "replaced_tokens": ("replaced_tokens",),
    "encoder": (),
    "pooled": ("pooler",),
}
LABELS = ("no", "so", "yes")


def cases() -> list[tuple[str, str]]:
    """Model type, and what an export of it can have: a key of its classes, or "pooled"."""
    found = []
    for name, kind in MODEL_TYPES.items():
        found += [(name, key) for key in [*kind.classes, *(["pooled"] if "pooler" in kind.modules else [])]]
    return found


def listed() -> list[tuple[str, str]]:
    """The cases that are compared: with BERT_JAX_EXHAUSTIVE=1 all, otherwise each type and each head once."""
    first = dict(reversed([(key, name) for name, key in cases()]))
    some = [(name, key) for name, key in cases() if key in ("mlm", "classification") or first[key] == name]
    return cases() if EXHAUSTIVE else some


@functools.cache
def tokenizer_of(name: str):
    """A vocabulary of the kind that the published models of this type have."""
    if name in family_pieces.OPTIONS:
        with tempfile.TemporaryDirectory() as place:
            (pathlib.Path(place) / family_pieces.FILES[name]).write_bytes(family_pieces.train(name))
            (pathlib.Path(place) / "config.json").write_text(f'{{"model_type": "{name}"}}')
            return load_tokenizer(place)
    if name in ("modernbert", "mpnet"):
        return {"modernbert": modernbert, "mpnet": mpnet}[name]()
    return byte_level(spaced=False) if name in ("roberta", "deberta") else TOKENIZER


def make(name: str, key: str, **options) -> StoredModel:
    """A model of this type with what `key` says and with `options` beside those of its form, of random parameters."""
    tokenizer = tokenizer_of(name)
    config = variant(**{**SIZES, **FORMS[name], **options, "vocab_size": tokenizer.vocab_size})
    if key in PARTS:
        return stored_model(config, PARTS[key], tokenizer=tokenizer)
    head = HeadConfig(kind=key, labels=LABELS if key in ("classification", "multilabel", "tagging") else ())
    return stored_model(config, None, head, tokenizer)


def inputs(stored: StoredModel) -> dict[str, np.ndarray]:
    """Three rows, int32 [3, 12], two of them padded: on the left where the last token is read."""
    random, column = np.random.RandomState(3), np.arange(12)
    real = column < np.array([12, 9, 5])[:, None]
    real = real[:, ::-1] if stored.model.reads_last_token else real
    ids = np.where(real, random.randint(10, 23, real.shape), stored.tokenizer.pad_id)
    types = (column >= 4) & real & (stored.model.type_vocab_size > 1)
    values = {"input_ids": ids, "token_type_ids": types, "attention_mask": real}
    return {name: value.astype(np.int32) for name, value in values.items()}
