"""What config.json of ALBERT, DistilBERT and ELECTRA says beside what BERT's does, and which models they can hold."""

from typing import Any

from etils import epath

from bert_jax.config import ModelConfig
from bert_jax.errors import UserError

ALBERT_SIZES = {
    "vocab_size": ("vocab_size", 30_000),
    "embedding_size": ("embedding_size", 128),
    "hidden_size": ("hidden_size", 4_096),
    "num_hidden_layers": ("num_layers", 12),
    "num_attention_heads": ("num_heads", 64),
    "intermediate_size": ("intermediate_size", 16_384),
    "max_position_embeddings": ("max_position_embeddings", 512),
    "type_vocab_size": ("type_vocab_size", 2),
}
ALBERT_RATES = {
    "hidden_dropout_prob": ("hidden_dropout", 0.0),
    "attention_probs_dropout_prob": ("attention_dropout", 0.0),
    "layer_norm_eps": ("layer_norm_epsilon", 1e-12),
    "initializer_range": ("initializer_range", 0.02),
}
DISTILBERT_SIZES = {
    "vocab_size": ("vocab_size", 30_522),
    "dim": ("hidden_size", 768),
    "n_layers": ("num_layers", 6),
    "n_heads": ("num_heads", 12),
    "hidden_dim": ("intermediate_size", 3_072),
    "max_position_embeddings": ("max_position_embeddings", 512),
}
DISTILBERT_RATES = {
    "dropout": ("hidden_dropout", 0.1),
    "attention_dropout": ("attention_dropout", 0.1),
    "initializer_range": ("initializer_range", 0.02),
}
DISTILBERT_EPSILON = 1e-12  # of its norms; config.json does not say it
ELECTRA_SIZES = {
    "vocab_size": ("vocab_size", 30_522),
    "hidden_size": ("hidden_size", 256),
    "num_hidden_layers": ("num_layers", 12),
    "num_attention_heads": ("num_heads", 4),
    "intermediate_size": ("intermediate_size", 1_024),
    "max_position_embeddings": ("max_position_embeddings", 512),
    "type_vocab_size": ("type_vocab_size", 2),
}
_OTHERS = {"position_embedding_type": (None, "absolute"), "quantization_config": (None,), "is_decoder": (None, False)}
ALBERT_UNSUPPORTED = _OTHERS | {"inner_group_num": (None, 1)}
DISTILBERT_UNSUPPORTED = {"quantization_config": (None,)}
ELECTRA_UNSUPPORTED = _OTHERS | {
    "hidden_act": (None, "gelu"),  # that of the generator's head, whatever config.json says
    "summary_type": (None, "first"),
    "summary_use_proj": (None, True),
    "summary_activation": (None, "gelu"),
}


def _is_like(model: ModelConfig, *differing: str) -> bool:
    """Return whether a model differs from BERT in no other options than these."""
    return model.padding_id is None and set(model.beyond_bert) <= set(differing) and model.norm_position == "post"


def albert_holds(model: ModelConfig) -> bool:
    """Return whether ALBERT computes what a model of this configuration does."""
    return (
        _is_like(model, "embedding_size", "sharing")
        and model.embedding_size is not None
        and model.sharing in ("all", "none")
        and model.type_vocab_size > 0
    )


def read_albert(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    """Return which parameters the layers share; raise a UserError for groups of layers that share among themselves."""
    groups, layers = values.get("num_hidden_groups", 1), values.get("num_hidden_layers", 12)
    if groups not in (1, layers):
        raise UserError(
            f"{file} has num_hidden_groups={groups!r:.40} of {layers} layers; either all layers share their parameters "
            f"(1) or none do ({layers})"
        )
    return {"sharing": "all" if groups == 1 else "none"}


def written_albert(model: ModelConfig) -> dict[str, Any]:
    """Return the further contents of config.json."""
    return {"num_hidden_groups": 1 if model.sharing == "all" else model.num_layers, "inner_group_num": 1}


def distilbert_holds(model: ModelConfig) -> bool:
    """Return whether DistilBERT computes what a model of this configuration does."""
    return (
        _is_like(model, "pooler")
        and model.type_vocab_size == 0
        and model.pooler == "relu"
        and model.layer_norm_epsilon == DISTILBERT_EPSILON
    )


def read_distilbert(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    """Return the fields of ModelConfig that every DistilBERT has."""
    del values, file
    return {
        "type_vocab_size": 0,
        "pair_head": False,
        "pooler": "relu",
        "layer_norm_epsilon": DISTILBERT_EPSILON,
    }


def electra_holds(model: ModelConfig) -> bool:
    """Return whether ELECTRA computes what a model of this configuration does."""
    return (
        _is_like(model, "embedding_size", "pooler")
        and model.embedding_size != model.hidden_size
        and model.pooler == "gelu_erf"
        and model.activation == "gelu_erf"
        and model.type_vocab_size > 0
    )


def read_electra(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    """Return the width of the embeddings, which have a map only where it is not that of the layers."""
    width = values.get("embedding_size", 128)
    if not isinstance(width, int) or isinstance(width, bool) or width < 1:
        raise UserError(f"{file} has embedding_size={width!r:.40} where a positive whole number is expected")
    narrow = width != values.get("hidden_size", 256)
    return {"embedding_size": width if narrow else None, "pooler": "gelu_erf", "pair_head": False}


def written_electra(model: ModelConfig) -> dict[str, Any]:
    """Return the further contents of config.json."""
    return {"embedding_size": model.word_size, "summary_type": "first", "summary_activation": "gelu"}
