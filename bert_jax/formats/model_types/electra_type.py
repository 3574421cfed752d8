"""ELECTRA: the discriminator, with the generator's head where a file has that."""

from typing import Any

from etils import epath

from bert_jax.config import ModelConfig
from bert_jax.errors import UserError
from bert_jax.formats.model_types.bert_type import ENCODER
from bert_jax.formats.model_types.definition import HEADS, TASKS, HeadKind, ModelType, beyond_bert, true_options

_SIZES = {
    "vocab_size": ("vocab_size", 30_522),
    "hidden_size": ("hidden_size", 256),
    "num_hidden_layers": ("num_layers", 12),
    "num_attention_heads": ("num_heads", 4),
    "intermediate_size": ("intermediate_size", 1_024),
    "max_position_embeddings": ("max_position_embeddings", 512),
    "type_vocab_size": ("type_vocab_size", 2),
}
_UNSUPPORTED = {
    "position_embedding_type": (None, "absolute"),
    "quantization_config": (None,),
    "is_decoder": (None, False),
    "hidden_act": (None, "gelu"),  # that of the generator's head, whatever config.json says
    "summary_type": (None, "first"),
    "summary_use_proj": (None, True),
    "summary_activation": (None, "gelu"),
}


def _obstacles(model: ModelConfig) -> tuple[str, ...]:
    """Return the options whose values ELECTRA does not have."""
    return beyond_bert(model, "embedding_size", "pooler") + true_options(
        embedding_size=model.embedding_size == model.hidden_size,
        pooler=model.pooler != "gelu_erf",
        activation=model.activation != "gelu_erf",
        type_vocab_size=model.type_vocab_size == 0,
    )


def _read(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    """Return the width of the embeddings, which have a map only where it is not that of the layers."""
    width = values.get("embedding_size", 128)
    if not isinstance(width, int) or isinstance(width, bool) or width < 1:
        raise UserError(f"{file} has embedding_size={width!r:.40} where a positive whole number is expected")
    narrow = width != values.get("hidden_size", 256)
    return {"embedding_size": width if narrow else None, "pooler": "gelu_erf", "pair_head": False}


def _written(model: ModelConfig) -> dict[str, Any]:
    """Return the further contents of config.json."""
    return {"embedding_size": model.word_size, "summary_type": "first", "summary_activation": "gelu"}


_CLASSIFIER = {"pooler": "classifier.dense", "head": "classifier.out_proj"}
_HEADS: dict[HeadKind, dict[str, str]] = {
    "classification": _CLASSIFIER,
    "regression": _CLASSIFIER,
    "choice": {"pooler": "sequence_summary.summary", "head": "classifier"},
}
ELECTRA = ModelType(
    name="electra",
    family="ELECTRA",
    prefix="electra.",
    modules={
        **{ours: f"electra.{theirs}" for ours, theirs in ENCODER.items() if ours != "pooler"},
        "embeddings/projection": "electra.embeddings_project",
        "mlm/dense": "generator_predictions.dense",
        "mlm/norm": "generator_predictions.LayerNorm",
        "mlm": "generator_lm_head",
        "replaced_tokens/dense": "discriminator_predictions.dense",
        "replaced_tokens/output": "discriminator_predictions.dense_prediction",
    },
    heads=HEADS | _HEADS,
    classes={
        **{kind: f"ElectraFor{theirs}" for kind, theirs in TASKS.items()},
        "mlm": "ElectraForMaskedLM",
        "replaced_tokens": "ElectraForPreTraining",
        "encoder": "ElectraModel",
    },
    decoder="generator_lm_head",
    obstacles=_obstacles,
    sizes=_SIZES,
    unsupported=_UNSUPPORTED,
    read_options=_read,
    written_options=_written,
)
