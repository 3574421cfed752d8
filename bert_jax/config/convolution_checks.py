"""What a model with a convolution beside its first layer cannot have, before anything heavy is loaded."""

from bert_jax.config.encoder import ModelConfig
from bert_jax.errors import UserError

_NEEDED = {
    "layer": (("transformer",), "has no first layer to which it could be added"),
    "positions": (("learned", "rope", "alibi", "none"), "has two streams of states, for which there is no such form"),
    "norm_position": (("post",), "has no norm after a layer"),
    "direction": (("both",), "must not see the tokens after it"),
}
"""Option, the values that a convolution allows, and what is wrong with a model of another."""


def check_convolution(model: ModelConfig) -> None:
    """Raise a UserError if there can be no such convolution, or not in this model."""
    width, activation = model.convolution_width, model.convolution_activation
    if width == 0:
        if activation != ModelConfig.convolution_activation:
            raise UserError(
                f"model.convolution_activation={activation} has no effect without model.convolution_width; set that "
                "to 3, as in DeBERTa v2, or leave both out"
            )
        return
    widest = 2 * model.max_position_embeddings - 1
    if width < 0 or width % 2 == 0 or width > widest:
        raise UserError(
            f"model.convolution_width={width} must be odd, so that as many tokens are seen on the left as on the right,"
            f" and at most {widest}, which reaches across the longest sequence; DeBERTa v2 has 3, and 0 means none"
        )
    for name, (allowed, reason) in _NEEDED.items():
        if (value := getattr(model, name)) not in allowed:
            raise UserError(
                f"model.convolution_width={width} cannot be combined with model.{name}={value}, which {reason}; set "
                f"model.convolution_width=0, or model.{name}={allowed[0]}"
            )
