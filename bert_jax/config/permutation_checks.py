"""What XLNet and its objective must satisfy, before anything heavy is loaded."""

from bert_jax.config.objectives import ObjectiveConfig
from bert_jax.config.options import Config, MaskingConfig
from bert_jax.errors import UserError

_FORM = {
    "norm_position": "post",
    "direction": "both",
    "local_window": None,
    "embedding_size": None,
    "padding_id": None,
    "task_transform": False,
    "use_bias": True,
}
"""Options that XLNet has one value of."""


def check_permutation(config: Config) -> None:
    """Raise a UserError if model and objective are not both XLNet's, or an option would be ignored."""
    model, objective = config.model, config.objective
    if model.is_xlnet:
        _check_model(config)
    if (objective.name == "permutation") != model.is_xlnet:
        raise UserError(
            f"model.positions={model.positions} and objective.name={objective.name}: the tokens of a permutation are "
            "predicted by XLNet's second stream of states, and nothing else trains it; set model.positions=xlnet and "
            "objective.name=permutation, or neither"
        )
    if objective.longest_span < 1:
        raise UserError(f"objective.longest_span={objective.longest_span} must be positive; the paper's is 5")
    if objective.name != "permutation":
        if objective.longest_span != ObjectiveConfig.longest_span:
            raise UserError(
                f"objective.longest_span={objective.longest_span} belongs to objective.name=permutation, not to "
                f"{objective.name}; set that name or leave the option out"
            )
        return
    why = "objective.name=permutation predicts tokens that it leaves as they are"
    for name, value in vars(config.masking).items():
        if name not in ("rate", "static_masks") and value != getattr(MaskingConfig, name):
            raise UserError(
                f"{why}, in spans of up to objective.longest_span, so masking.{name}={value} has no effect; leave it "
                "out"
            )
    if config.data.sentence_pairs != "none":
        raise UserError(
            f"{why} and reads single texts, but data.sentence_pairs={config.data.sentence_pairs}; set "
            "data.sentence_pairs=none"
        )
    for name, alone in (("mlm_weight", 1), ("sentence_pair_weight", 1), ("span_boundary_weight", 0)):
        if getattr(objective, name) != alone:
            raise UserError(
                f"{why}, which is its only loss, so objective.{name}={getattr(objective, name):g} has no effect; "
                "leave it out"
            )


def _check_model(config: Config) -> None:
    model = config.model
    for name, value in _FORM.items():
        if getattr(model, name) != value:
            raise UserError(
                f"model.{name}={getattr(model, name)} is not for model.positions=xlnet, which has {value}; leave it out"
            )
    if model.hidden_size % 2:
        raise UserError(
            f"model.hidden_size={model.hidden_size} is odd, but model.positions=xlnet encodes distances by as many "
            "sines as cosines; make it even"
        )
