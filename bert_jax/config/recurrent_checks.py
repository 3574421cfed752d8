"""What a model with recurrent layers cannot have, before anything heavy is loaded."""

from bert_jax.config.options import Config
from bert_jax.errors import UserError

_WITHOUT_EFFECT = {
    "positions": ("none", "learned"),
    "feed_forward": ("plain",),
    "local_window": (None,),
    "first_attention_norm": (True,),
    "scaled_outputs": (False,),
    "sharing": ("none", "all"),
}
"""Options about attention and feed-forward networks, with the values that a recurrent layer allows."""


def check_recurrent(config: Config) -> None:
    """Raise a UserError if an option belongs to Transformer layers, or two directions cannot share the width."""
    model = config.model
    for name, allowed in _WITHOUT_EFFECT.items():
        if (value := getattr(model, name)) not in allowed:
            raise UserError(
                f"model.{name}={value} belongs to Transformer layers, but model.layer=lstm; set model.{name}="
                f"{' or '.join(map(str, allowed))}"
            )
    if model.direction == "both" and model.hidden_size % 2:
        raise UserError(
            f"model.hidden_size={model.hidden_size} cannot be divided between the two directions of model.layer=lstm; "
            "make it even"
        )
