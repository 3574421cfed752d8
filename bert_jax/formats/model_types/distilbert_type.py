"""DistilBERT: neither segments nor a pooler."""

from typing import Any

from etils import epath

from bert_jax.config import ModelConfig
from bert_jax.formats.model_types.definition import HEADS, TASKS, HeadKind, ModelType, beyond_bert, true_options

_SIZES = {
    "vocab_size": ("vocab_size", 30_522),
    "dim": ("hidden_size", 768),
    "n_layers": ("num_layers", 6),
    "n_heads": ("num_heads", 12),
    "hidden_dim": ("intermediate_size", 3_072),
    "max_position_embeddings": ("max_position_embeddings", 512),
}
_RATES = {
    "dropout": ("hidden_dropout", 0.1),
    "attention_dropout": ("attention_dropout", 0.1),
    "initializer_range": ("initializer_range", 0.02),
}
_EPSILON = 1e-12  # of its norms; config.json does not say it
_UNSUPPORTED = {"quantization_config": (None,)}


def _obstacles(model: ModelConfig) -> tuple[str, ...]:
    """Return the options whose values DistilBERT does not have."""
    return beyond_bert(model, "pooler") + true_options(
        type_vocab_size=model.type_vocab_size > 0,
        pooler=model.pooler != "relu",
        layer_norm_epsilon=model.layer_norm_epsilon != _EPSILON,
    )


def _read(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    """Return the fields of ModelConfig that every DistilBERT has."""
    del values, file
    return {
        "type_vocab_size": 0,
        "pair_head": False,
        "pooler": "relu",
        "layer_norm_epsilon": _EPSILON,
    }


_LAYER = "distilbert.transformer.layer.{}"
_PRE_CLASSIFIER = {"pooler": "pre_classifier", "head": "classifier"}
_HEADS: dict[HeadKind, dict[str, str]] = {
    "classification": _PRE_CLASSIFIER,
    "regression": _PRE_CLASSIFIER,
    "choice": _PRE_CLASSIFIER,
}
DISTILBERT = ModelType(
    name="distilbert",
    family="DistilBERT",
    prefix="distilbert.",
    modules={
        "embeddings/word": "distilbert.embeddings.word_embeddings",
        "embeddings/position": "distilbert.embeddings.position_embeddings",
        "embeddings/norm": "distilbert.embeddings.LayerNorm",
        "encoder/attention/query": f"{_LAYER}.attention.q_lin",
        "encoder/attention/key": f"{_LAYER}.attention.k_lin",
        "encoder/attention/value": f"{_LAYER}.attention.v_lin",
        "encoder/attention/output": f"{_LAYER}.attention.out_lin",
        "encoder/attention_norm": f"{_LAYER}.sa_layer_norm",
        "encoder/feed_forward/intermediate": f"{_LAYER}.ffn.lin1",
        "encoder/feed_forward/output": f"{_LAYER}.ffn.lin2",
        "encoder/feed_forward_norm": f"{_LAYER}.output_layer_norm",
        "mlm/dense": "vocab_transform",
        "mlm/norm": "vocab_layer_norm",
        "mlm": "vocab_projector",
    },
    heads=HEADS | _HEADS,
    classes={
        **{kind: f"DistilBertFor{theirs}" for kind, theirs in TASKS.items()},
        "mlm": "DistilBertForMaskedLM",
        "encoder": "DistilBertModel",
    },
    decoder="vocab_projector",
    obstacles=_obstacles,
    sizes=_SIZES,
    rates=_RATES,
    unsupported=_UNSUPPORTED,
    read_options=_read,
    activation="activation",
    classifier_dropout="seq_classif_dropout",
)
