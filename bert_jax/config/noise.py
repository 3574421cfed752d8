"""Options of character edits, which pre-training, fine-tuning and analyses share; standard library only."""

import dataclasses
from typing import Literal

from bert_jax.errors import UserError

EDITS = ("insert", "delete", "substitute", "swap", "neighbour")
"""insert a random letter, delete, substitute a random letter, swap with the next character, hit a neighbouring key."""
ErrorUnit = Literal["character", "word"]
"""Unit of a rate of errors; see `NoiseConfig.per`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """Spelling errors: edits of letters and digits, before the text is tokenized."""

    rate: float = 0.0
    """Probability of an edit, for each letter and digit, or for each word; see per. 0: the text stays as it is."""
    per: ErrorUnit = "character"
    """Unit of the rate. character: each letter or digit is edited with this probability, independently. word: each
    word gets one edit with this probability, at one of its letters or digits."""
    kinds: tuple[str, ...] = EDITS
    """Edits to draw from, each with the same probability: insert, delete, substitute, swap, neighbour (a key next to
    the right one on a QWERTY keyboard)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingNoiseConfig(NoiseConfig):
    """Spelling errors in the training rows, with clean targets; evaluation stays clean."""

    reserve: float = 0.0
    """Share of a row that is kept free of text, because words with errors take more pieces. Where a row has no room,
    errors are left out. Like all options here, it is used with a rate above 0 only."""


def check_noise(noise: NoiseConfig, prefix: str) -> None:
    """Raise a UserError that names option, value and remedy if the values cannot be used; `prefix`: "data.noise."."""
    if not 0 <= noise.rate <= 1:
        raise UserError(f"{prefix}rate={noise.rate} must be a probability from 0 to 1, such as 0.05")
    unknown = [kind for kind in noise.kinds if kind not in EDITS]
    if unknown or not noise.kinds or len(set(noise.kinds)) < len(noise.kinds):
        raise UserError(f"{prefix}kinds={','.join(noise.kinds)} must be some of {','.join(EDITS)}, each once")
    if isinstance(noise, PretrainingNoiseConfig) and not 0 <= noise.reserve <= 0.5:
        raise UserError(f"{prefix}reserve={noise.reserve} must be a share from 0 to 0.5 of a row")
