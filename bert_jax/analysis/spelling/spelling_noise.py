"""How well a model finds hidden words among words with spelling errors, and how its vocabulary breaks these up.

The hidden words and their pieces are the same at every rate, so that only what the model reads around them changes.
Errors are drawn from the same numbers at every rate: those of a lower rate are among those of a higher one.
"""

import typing
from collections.abc import Iterable

import numpy as np

from bert_jax.analysis.spelling.noise_sums import NoiseSums, SpellingNoise
from bert_jax.analysis.text_sample import windows
from bert_jax.analysis.text_vectors import counted_texts
from bert_jax.config.noise import EDITS, ErrorUnit, NoiseConfig, check_noise
from bert_jax.data.randomness import Stream, bits
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel

RATES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
_WINDOW = 512  # texts that are tokenized and held at once


def noise(
    model: PretrainedModel,
    texts: Iterable[str],
    *,
    rates: Iterable[float] = RATES,
    per: ErrorUnit = "character",
    kinds: Iterable[str] = EDITS,
    seed: int = 0,
    batch_size: int = 32,
    max_length: int | None = 128,
    progress: bool = True,
) -> SpellingNoise:
    """Return how well a model finds hidden words while the others get spelling errors.

    Words are what white space separates. A text is cut behind the last word with which it fits at all rates.

    Args:
      model: a model that predicts masked words.
      texts: a list, or anything else that can be iterated; memory is that of a few hundred texts.
      rates: probabilities of an edit, ascending; see NoiseConfig, also for `per` and `kinds`.
      per: what the rates count, letters and digits ("character") or words ("word").
      kinds: edits to draw from.
      seed: of the errors and of the hidden words.
      batch_size: number of texts that the model reads at once.
      max_length: tokens per text; None: as many as the model has positions.
      progress: whether to show a bar.

    Raises:
      UserError: the model predicts no masked words, the texts have no words, or an option that cannot work.
    """
    noises = spelling_noises(rates, per, kinds)
    if "mlm" not in model.network.parts or model.config.two_directions or model.config.direction == "left_to_right":
        raise UserError(
            f"{model.path} predicts no masked words, so there is nothing to measure; give a model with such a head, or "
            "a fine-tuned one and the dev set of its task"
        )
    longest = min(max_length or model.config.longest_sequence, model.config.longest_sequence)
    if longest < 3 or batch_size < 1:
        raise UserError(f"max_length={max_length} must be at least 3, and batch_size={batch_size} at least 1")
    sums, count = NoiseSums(model, noises, longest, batch_size), 0
    with counted_texts(texts, visible=progress) as done:
        for window in windows(texts, _WINDOW):
            sums.add(window, bits(seed, Stream.EDITED_TEXT, count + np.arange(len(window))))
            count += len(window)
            done(len(window))
    return sums.result(count)


def spelling_noises(rates: Iterable[float], per: ErrorUnit, kinds: Iterable[str]) -> list[NoiseConfig]:
    """Return the noise of each rate; raise a UserError if one cannot work or the rates do not ascend."""
    rates = [float(rate) for rate in rates]
    if not rates or any(low >= high for low, high in zip(rates, rates[1:], strict=False)):
        raise UserError(
            f"rates={','.join(map(str, rates))} must be ascending numbers, at least one, such as 0,0.05,0.1"
        )
    if per not in typing.get_args(ErrorUnit):
        raise UserError(f"per={per!r} must be {' or '.join(typing.get_args(ErrorUnit))}")
    noises = [NoiseConfig(rate=rate, per=per, kinds=tuple(kinds)) for rate in rates]
    for each in noises:
        check_noise(each, "")
    return noises
