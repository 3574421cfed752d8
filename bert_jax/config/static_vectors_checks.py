"""What a model of static word vectors cannot have, before anything heavy is loaded."""

import math

from bert_jax.config.options import Config
from bert_jax.config.phases import resolve_phases
from bert_jax.config.static_vectors import StaticVectorsConfig
from bert_jax.errors import UserError

_WITHOUT_LAYERS = {
    "num_layers": 0,
    "positions": "none",
    "type_vocab_size": 0,
    "pair_head": False,
    "embedding_size": None,
    "norm_position": "post",
    "scaled_outputs": False,
    "sharing": "none",
    "local_window": None,
    "direction": "both",
    "feed_forward": "plain",
}
"""Options that a model without layers needs."""


def check_static_vectors(config: Config) -> None:
    """Raise a UserError if only one of model and objective is for static vectors, or an option does not fit them."""
    model, objective, options = config.model, config.objective, config.objective.static_vectors
    if not objective.predicts_neighbours:
        if model.layer == "none":
            raise UserError(
                f"model.layer=none gives a word the same vector everywhere, which objective.name={objective.name} "
                "cannot learn from; set objective.name=skip_gram or glove"
            )
        if options != type(options)():
            raise UserError(
                "objective.static_vectors has no effect without objective.name=skip_gram or glove; leave it out"
            )
        return
    if model.layer != "none":
        raise UserError(
            f"objective.name={objective.name} learns one vector per word, but with model.layer={model.layer} it would "
            "see the neighbours that it has to predict; set model.layer=none"
        )
    for name, needed in _WITHOUT_LAYERS.items():
        if getattr(model, name) != needed:
            raise UserError(
                f"model.{name}={getattr(model, name)} has no effect in a model without layers (model.layer=none); set "
                f"model.{name}={needed}"
            )
    _check_names(objective.name, options)
    for name in ("window", "negatives"):
        if getattr(options, name) < 1:
            raise UserError(
                f"objective.static_vectors.{name}={getattr(options, name)} must be positive; the paper's is 5"
            )
    if not 0 <= options.subsampling < 1:
        raise UserError(
            f"objective.static_vectors.subsampling={options.subsampling} must be a share of the text, from 0 to below "
            "1; the paper's is 1e-5"
        )
    if not (0 < options.maximum_count < math.inf and 0 <= options.count_power <= 1):
        raise UserError(
            f"objective.static_vectors.maximum_count={options.maximum_count:g} must be positive and count_power="
            f"{options.count_power:g} from 0 to 1; the paper's are 100 and 0.75"
        )
    for phase in resolve_phases(config):
        if phase.sequence_length <= options.window:
            raise UserError(
                f"objective.static_vectors.window={options.window} is not shorter than the rows of "
                f"phases.{phase.index}.sequence_length={phase.sequence_length}; make it smaller, or the rows longer"
            )


_OF_ONE = {"skip_gram": ("negatives", "subsampling"), "glove": ("counts", "maximum_count", "count_power")}
"""Options that only one of the objectives has."""


def _check_names(name: str, options: StaticVectorsConfig) -> None:
    """Raise a UserError if an option is for the other objective."""
    for other, names in _OF_ONE.items():
        for option in names:
            if other != name and getattr(options, option) != getattr(StaticVectorsConfig(), option):
                raise UserError(
                    f"objective.static_vectors.{option}={getattr(options, option)} has no effect with objective.name="
                    f"{name}; leave it out, or set objective.name={other}"
                )
