"""What the options of disentangled attention must satisfy, before anything heavy is loaded."""

from bert_jax.config.encoder import ModelConfig
from bert_jax.errors import UserError


def check_disentangled(model: ModelConfig) -> None:
    """Raise a UserError if disentangled attention cannot have these options, or another one of the model."""
    options = model.disentangled
    if options.terms == "none":
        changed = [name for name in vars(options) if getattr(options, name) != getattr(type(options), name)]
        if changed:
            raise UserError(
                f"model.disentangled.{changed[0]}={getattr(options, changed[0])} has no effect without "
                "model.disentangled.terms; set that to c2p+p2c, as in DeBERTa, or leave both out"
            )
        return
    if model.positions not in ("none", "learned"):
        raise UserError(
            f"model.positions={model.positions} cannot be combined with model.disentangled.terms="
            f"{options.terms}; set model.positions=none, as in DeBERTa, or learned"
        )
    if not model.use_bias:
        raise UserError(
            "model.use_bias=False cannot be combined with model.disentangled.terms, because no DeBERTa has that form; "
            "set model.use_bias=True"
        )
    if model.layer != "transformer":
        raise UserError(
            f"model.layer={model.layer} has no attention, so model.disentangled.terms={options.terms} cannot apply; "
            "set model.layer=transformer"
        )
    if options.max_distance < 1:
        raise UserError(f"model.disentangled.max_distance={options.max_distance} must be positive; DeBERTa has 512")
    if options.buckets is None:
        return
    if options.buckets < 2:
        raise UserError(
            f"model.disentangled.buckets={options.buckets} must be at least 2, since half of the buckets are one "
            "distance each; DeBERTa-v3 has 256, and None means a bucket for every distance"
        )
    if options.max_distance < options.buckets // 2 + 2:
        raise UserError(
            f"model.disentangled.max_distance={options.max_distance} leaves nothing for the wider half of "
            f"model.disentangled.buckets={options.buckets}; it must be at least {options.buckets // 2 + 2}"
        )
