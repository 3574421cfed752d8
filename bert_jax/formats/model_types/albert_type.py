"""ALBERT: one set of parameters for all layers, and narrow embeddings."""

from typing import Any

from etils import epath

from bert_jax.config import ModelConfig
from bert_jax.errors import UserError
from bert_jax.formats.model_types.bert_type import ENCODER
from bert_jax.formats.model_types.definition import HEADS, PART_NAMES, TASKS, ModelType, beyond_bert, true_options

_SIZES = {
    "vocab_size": ("vocab_size", 30_000),
    "embedding_size": ("embedding_size", 128),
    "hidden_size": ("hidden_size", 4_096),
    "num_hidden_layers": ("num_layers", 12),
    "num_attention_heads": ("num_heads", 64),
    "intermediate_size": ("intermediate_size", 16_384),
    "max_position_embeddings": ("max_position_embeddings", 512),
    "type_vocab_size": ("type_vocab_size", 2),
}
_RATES = {
    "hidden_dropout_prob": ("hidden_dropout", 0.0),
    "attention_probs_dropout_prob": ("attention_dropout", 0.0),
    "layer_norm_eps": ("layer_norm_epsilon", 1e-12),
    "initializer_range": ("initializer_range", 0.02),
}
_UNSUPPORTED = {
    "position_embedding_type": (None, "absolute"),
    "quantization_config": (None,),
    "is_decoder": (None, False),
    "inner_group_num": (None, 1),
}


def _obstacles(model: ModelConfig) -> tuple[str, ...]:
    """Return the options whose values ALBERT does not have."""
    return beyond_bert(model, "embedding_size", "sharing") + true_options(
        embedding_size=model.embedding_size is None,
        sharing=model.sharing not in ("all", "none"),
        type_vocab_size=model.type_vocab_size == 0,
    )


def _read(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    """Return which parameters the layers share; raise a UserError for groups of layers that share among themselves."""
    groups, layers = values.get("num_hidden_groups", 1), values.get("num_hidden_layers", 12)
    if groups not in (1, layers):
        raise UserError(
            f"{file} has num_hidden_groups={groups!r:.40} of {layers} layers; either all layers share their parameters "
            f"(1) or none do ({layers})"
        )
    return {"sharing": "all" if groups == 1 else "none"}


def _written(model: ModelConfig) -> dict[str, Any]:
    """Return the further contents of config.json."""
    return {"num_hidden_groups": model.parameter_sets, "inner_group_num": 1}


_LAYER = "albert.encoder.albert_layer_groups.{}.albert_layers.0"
ALBERT = ModelType(
    name="albert",
    family="ALBERT",
    prefix="albert.",
    modules={
        **{ours: f"albert.{theirs}" for ours, theirs in ENCODER.items() if ours.startswith("embeddings/")},
        "embeddings/projection": "albert.encoder.embedding_hidden_mapping_in",
        **{f"encoder/attention/{name}": f"{_LAYER}.attention.{name}" for name in ("query", "key", "value")},
        "encoder/attention/output": f"{_LAYER}.attention.dense",
        "encoder/attention_norm": f"{_LAYER}.attention.LayerNorm",
        "encoder/feed_forward/intermediate": f"{_LAYER}.ffn",
        "encoder/feed_forward/output": f"{_LAYER}.ffn_output",
        "encoder/feed_forward_norm": f"{_LAYER}.full_layer_layer_norm",
        "pooler": "albert.pooler",
        "mlm/dense": "predictions.dense",
        "mlm/norm": "predictions.LayerNorm",
        "mlm": "predictions",
        "next_sentence": "sop_classifier.classifier",
    },
    heads=HEADS,
    classes={
        **{kind: f"AlbertFor{theirs}" for kind, theirs in TASKS.items()},
        "pretraining": "AlbertForPreTraining",
        "mlm": "AlbertForMaskedLM",
        "encoder": "AlbertModel",
    },
    decoder="predictions.decoder",
    obstacles=_obstacles,
    sizes=_SIZES,
    rates=_RATES,
    unsupported=_UNSUPPORTED,
    read_options=_read,
    written_options=_written,
    usual_activation="gelu_new",
    classifier_dropout="classifier_dropout_prob",
    part_names=PART_NAMES | {"next_sentence": "sentence-order head"},
)
