"""XLNet: arrays with heads as an axis of their own, and the class token at the end."""

from typing import Any

from etils import epath

from bert_jax.config import EncoderConfig, XLNetConfig
from bert_jax.errors import UserError
from bert_jax.formats.model_types.definition import (
    HEADS,
    OPENERS,
    PART_NAMES,
    ModelType,
    beyond_bert,
    true_options,
)
from bert_jax.models.bert_parameters import OF_TEXTS

LONGEST = 512
"""Tokens of a row of the published models; distances have no end, and config.json does not say one."""
SEGMENTS = 4
"""Numbers of segments that the tokenizer of `transformers` gives: two texts, the class token, padding."""

_SIZES = {
    "vocab_size": ("vocab_size", 32_000),
    "d_model": ("hidden_size", 1_024),
    "n_layer": ("num_layers", 24),
    "n_head": ("num_heads", 16),
    "d_inner": ("intermediate_size", 4_096),
}
_RATES = {
    "dropout": ("hidden_dropout", 0.1),
    "layer_norm_eps": ("layer_norm_epsilon", 1e-12),
    "initializer_range": ("initializer_range", 0.02),
}
_UNSUPPORTED = {
    "attn_type": (None, "bi"),
    "bi_data": (None, False),
    "clamp_len": (None, -1),
    "same_length": (None, False),
    "summary_type": (None, "last"),
    "summary_use_proj": (None, True),
    "summary_activation": (None, "tanh"),
    "quantization_config": (None,),
}


def _obstacles(model: EncoderConfig) -> tuple[str, ...]:
    """Return the options whose values XLNet, which has one rate of dropout, does not have."""
    own = isinstance(model, XLNetConfig)
    return beyond_bert(model, "positions") + true_options(
        positions=not own, attention_dropout=own and model.attention_dropout != model.hidden_dropout
    )


def _read(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    """Return the options that every XLNet has; raise a UserError for heads of another size."""
    hidden, heads = values.get("d_model", 1_024), values.get("n_head", 16)
    if (size := values.get("d_head")) not in (None, hidden // heads):
        raise UserError(f"{file} has d_head={size!r:.40}; only d_model / n_head = {hidden // heads} is supported")
    if hidden % 2:
        raise UserError(f"{file} has d_model={hidden}, but distances are encoded by as many sines as cosines")
    return {
        "positions": "xlnet",
        "attention_dropout": float(values.get("dropout", 0.1)),
        "max_position_embeddings": LONGEST,
        "type_vocab_size": SEGMENTS,
        "pair_head": False,
    }


def _written(model: XLNetConfig) -> dict[str, Any]:
    """Return the further contents of config.json; how long a memory is, is chosen by whoever reads with one.

    A model that came from `transformers` keeps the length that was there.
    """
    return {
        "d_head": model.head_size,
        "attn_type": "bi",
        "mem_len": None,
        "clamp_len": -1,
        "summary_type": "last",
        "summary_use_proj": True,
        "summary_activation": "tanh",
        "bos_token_id": None,
        "eos_token_id": None,
    }


_LAYER = "transformer.layer.{}"
_ATTENTION = {
    "query/kernel": "q",
    "key/kernel": "k",
    "value/kernel": "v",
    "output/kernel": "o",
    "distance/kernel": "r",
    "content_bias": "r_w_bias",
    "distance_bias": "r_r_bias",
    "segment_bias": "r_s_bias",
    "segments": "seg_embed",
}
_POOLED = {"pooler": "sequence_summary.summary", "head": "logits_proj"}
XLNET = ModelType(
    name="xlnet",
    family="XLNet",
    prefix="transformer.",
    modules={
        "embeddings/word": "transformer.word_embedding",
        "encoder/attention_norm": f"{_LAYER}.rel_attn.layer_norm",
        "encoder/feed_forward/intermediate": f"{_LAYER}.ff.layer_1",
        "encoder/feed_forward/output": f"{_LAYER}.ff.layer_2",
        "encoder/feed_forward_norm": f"{_LAYER}.ff.layer_norm",
        "mlm": "lm_loss",
    },
    arrays={
        "embeddings/target": "transformer.mask_emb",
        **{f"encoder/attention/{ours}": f"{_LAYER}.rel_attn.{theirs}" for ours, theirs in _ATTENTION.items()},
    },
    heads=HEADS | dict.fromkeys((*OF_TEXTS, "choice"), _POOLED),
    class_name="XLNet",
    other_classes={"span": "XLNetForQuestionAnsweringSimple", "mlm": "XLNetLMHeadModel"},
    decoder="lm_loss",
    obstacles=_obstacles,
    sizes=_SIZES,
    rates=_RATES,
    unsupported=_UNSUPPORTED,
    read_options=_read,
    written_options=_written,
    activation="ff_activation",
    classifier_dropout="summary_last_dropout",
    openers=OPENERS | {"mlm": ("AutoModelForPreTraining", None)},  # it fills no mask in a text, as the hub's task does
    part_names=PART_NAMES | {"mlm": "permutation-language-model head"},
)
