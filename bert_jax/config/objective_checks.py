"""What the options of the objective must satisfy, before anything heavy is loaded."""

import dataclasses
import math

from bert_jax.config.options import Config
from bert_jax.errors import UserError


def check_objective(config: Config) -> None:
    """Raise a UserError if the objective cannot be trained with the other options."""
    values = dataclasses.asdict(config.objective)
    weights = {name: value for name, value in values.items() if name.endswith("_weight")}
    for name, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise UserError(f"objective.{name}={weight} must be 0 or a positive number; the paper's is 1")
    pairs = config.data.sentence_pairs
    if not weights["mlm_weight"] and (pairs == "none" or not weights["next_sentence_weight"]):
        raise UserError(
            f"objective.mlm_weight=0 leaves nothing to learn: objective.next_sentence_weight="
            f"{weights['next_sentence_weight']:g}, data.sentence_pairs={pairs}; the paper's weights are 1"
        )
