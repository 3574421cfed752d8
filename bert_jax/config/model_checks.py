"""Checks that sizes, form and positions of a model fit together, before anything heavy is loaded."""

import math

from bert_jax.config import Config
from bert_jax.config.convolution_checks import check_convolution
from bert_jax.config.disentangled_checks import check_disentangled
from bert_jax.config.ranges import need_positive, need_share
from bert_jax.config.recurrent_checks import check_recurrent
from bert_jax.config.static_vectors_checks import check_static_vectors
from bert_jax.errors import UserError


def check_model(config: Config) -> None:
    """Raise a UserError if the model cannot be built, or is not one for the objective."""
    model = config.model
    check_static_vectors(config)
    need_positive(
        model,
        "model.",
        "hidden_size",
        "num_heads",
        "max_position_embeddings",
        "rope_theta",
        "rope_scale",
        "vocab_pad_multiple",
        "layer_norm_epsilon",
        "initializer_range",
    )
    if model.layer != "none":
        need_positive(model, "model.", "num_layers")
    if model.vocab_size is not None and model.vocab_size < 6:
        raise UserError(
            f"model.vocab_size={model.vocab_size} leaves no room for words in addition to the five special tokens"
        )
    if model.hidden_size % model.num_heads:
        fits = [h for h in range(1, model.hidden_size + 1) if model.hidden_size % h == 0]
        near = sorted(fits, key=lambda h: abs(h - model.num_heads))[:3]
        raise UserError(
            f"model.hidden_size={model.hidden_size} is not divisible by model.num_heads={model.num_heads}; "
            f"numbers of heads that fit: {', '.join(map(str, sorted(near)))}"
        )
    for name in ("intermediate_size", "embedding_size"):
        if (value := getattr(model, name)) is not None and value < 1:
            raise UserError(f"model.{name}={value} must be positive")
    if model.padding_id is not None and not 0 <= model.padding_id < model.max_position_embeddings - 1:
        raise UserError(
            f"model.padding_id={model.padding_id} must be an id, 0 or more, and leave positions of the "
            f"{model.max_position_embeddings} in model.max_position_embeddings; RoBERTa has 1 and 514"
        )
    need_share(model, "model.", "hidden_dropout", "attention_dropout", "recurrent_dropout", below_one=True)
    _check_positions(config)
    check_disentangled(model)
    check_convolution(model)
    if model.layer == "lstm":
        check_recurrent(config)
    elif model.recurrent_dropout:
        raise UserError(
            f"model.recurrent_dropout={model.recurrent_dropout} drops weights of recurrent layers, but model.layer="
            f"{model.layer} has none; leave it out, or set model.layer=lstm"
        )


def _check_positions(config: Config) -> None:
    """Check how tokens see each other: positions inside attention, windows, global tokens."""
    model = config.model
    for name in ("type_vocab_size", "global_every", "global_tokens"):
        if getattr(model, name) < 0:
            raise UserError(f"model.{name}={getattr(model, name)} must not be negative")
    if model.positions == "rope" and model.head_size % 2:
        raise UserError(
            f"model.positions=rope turns features in pairs, but model.hidden_size={model.hidden_size} with "
            f"model.num_heads={model.num_heads} makes heads of {model.head_size}; choose a number of heads that makes "
            "them even"
        )
    if model.rope_local_theta is not None and not 0 < model.rope_local_theta < math.inf:
        raise UserError(f"model.rope_local_theta={model.rope_local_theta} must be positive, or None for rope_theta")
    if not model.first_attention_norm and model.norm_position != "pre":
        raise UserError(
            "model.first_attention_norm=False belongs to model.norm_position=pre, not to "
            f"{model.norm_position}, which has no norm before an attention"
        )
    if not model.first_attention_norm and model.sharing != "none":
        raise UserError(
            f"model.first_attention_norm=False makes the first layer different, but with model.sharing="
            f"{model.sharing} layers share parameters; set model.sharing=none"
        )
    if model.local_window is None and model.global_tokens:
        raise UserError(
            f"model.global_tokens={model.global_tokens} needs model.local_window: without it every token sees "
            "everything"
        )
    if model.local_window is None and not model.global_every:
        raise UserError(
            "model.global_every=0 makes all layers local, but without model.local_window none is; set "
            "model.local_window too, or leave it out"
        )
    if model.local_window is None:
        return
    if not 0 < model.local_window < model.max_position_embeddings:
        raise UserError(
            f"model.local_window={model.local_window} must be between 1 and model.max_position_embeddings - 1 = "
            f"{model.max_position_embeddings - 1}; for a window that restricts nothing, set model.local_window=None"
        )
