"""Texts that a model of masked words writes: all masks of a text are filled in, step by step.

In each step every mask has its words predicted with the others in place, one is drawn for each, and some of these are
kept: those that the model finds the most likely (low-confidence remasking of LLaDA, arXiv 2502.09992), random ones
(ancestral sampling of MDLM, arXiv 2406.07524), or the first ones. What is kept is never masked again. A model that
reads from left to right fills in the first mask, whose words before it are known, and computes the text anew each time.

Every draw is a function of seed, sample, step and place. So a text does not depend on those beside it: on a CPU to the
last letter (pretrained/outputs.py), elsewhere up to words whose probabilities differ by rounding.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_jax.config.commands import UnmaskingConfig, UnmaskingOrder
from bert_jax.data.sequences import as_features
from bert_jax.errors import UserError
from bert_jax.pretrained.answers import check_fills_masks
from bert_jax.pretrained.outputs import MaskedWords
from bert_jax.pretrained.runner import softmax
from bert_jax.randomness import Stream, bits, uniform
from bert_jax.tokenization.tokenizer import assembled, check_utf8

LENGTH = 16
"""Masks that are put after a text that has none."""

OnStep = Callable[[int, list[str]], None]
"""Called after each step with its number, from 1, and all texts, in which masks stand for what is not written yet."""


@dataclasses.dataclass
class Draft:
    """A text that is being written."""

    ids: np.ndarray
    """int32 [L], with [CLS] and [SEP]."""
    types: np.ndarray
    masks: int
    """Number of its masks before the first step."""
    steps: int
    key: np.uint64
    """Randomness of its draws."""
    step: int = 0
    """Number of steps that are over."""

    def next_count(self) -> int:
        """Return how many masks the next step fills in."""
        return self.masks * (self.step + 1) // self.steps - self.masks * self.step // self.steps


def generate(
    model: Any, prompts: Sequence[str], options: UnmaskingConfig, batch_size: int = 32, on_step: OnStep | None = None
) -> list[list[str]]:
    """Return for each prompt the texts of its samples, as the tokenizer spells them.

    Raises:
      UserError: the model fills in no masks, there is nothing to fill in, or a text is longer than what it reads.
    """
    options.check()
    check_fills_masks(model)
    order = _order(model, options)
    tokenizer = model.need_tokenizer()
    drafts = [_draft(model, prompt, options, sample) for prompt in prompts for sample in range(options.samples)]
    if model.config.predicts_ahead and (fewer := [draft for draft in drafts if draft.steps < draft.masks]):
        raise UserError(
            f"steps={fewer[0].steps} for {fewer[0].masks} masks would fill in several at a time, and a model with "
            "model.direction=left_to_right knows only what is before the first; leave steps out"
        )
    number = 0
    while unfinished := [draft for draft in drafts if draft.step < draft.steps]:
        number += 1
        _fill_in(model, unfinished, order, options.temperature, batch_size)
        if on_step is not None:
            on_step(number, [_text(tokenizer, draft.ids) for draft in drafts])
    texts = [_text(tokenizer, draft.ids) for draft in drafts]
    return [texts[first : first + options.samples] for first in range(0, len(texts), options.samples)]


def _order(model: Any, options: UnmaskingConfig) -> UnmaskingOrder:
    order = options.order or ("left_to_right" if model.config.predicts_ahead else "confidence")
    if order != "left_to_right" and model.config.predicts_ahead:
        raise UserError(
            f"order={order} fills in masks that have others before them, which a model with model.direction="
            "left_to_right cannot; leave it out"
        )
    return order


def _draft(model: Any, prompt: str, options: UnmaskingConfig, sample: int) -> Draft:
    if not isinstance(prompt, str):
        raise UserError(f"generate takes a text or a list of texts, each a str, not {prompt!r:.60}")
    check_utf8(prompt)
    tokenizer, longest = model.need_tokenizer(), model.config.longest_sequence
    given = tokenizer.encode_masked(prompt) if prompt else []
    length = options.length
    if length is None:
        length = 0 if tokenizer.mask_id in given else LENGTH
    size = len(assembled(tokenizer, given)[0]) + length
    if size > longest:
        raise UserError(
            f"the text {prompt[:40]!r} with length={length} masks has {size} tokens with its [CLS] and [SEP], but "
            f"the model takes {longest}; shorten it"
        )
    ids, types = assembled(tokenizer, [*given, *[tokenizer.mask_id] * length])
    masks = int((ids == tokenizer.mask_id).sum())
    if not masks:
        raise UserError(f"length=0 leaves nothing to fill in after {prompt[:40]!r}, which has no [MASK]; raise it")
    steps = masks if options.steps is None else min(options.steps, masks)
    return Draft(ids, types, masks, steps, bits(options.seed, Stream.GENERATED_WORD, sample))


def _fill_in(
    model: Any,
    drafts: Sequence[Draft],
    order: UnmaskingOrder,
    temperature: float,
    batch_size: int,
) -> None:
    """Fill in as many masks of each draft as its next step does."""
    tokenizer = model.tokenizer
    mask_id, marks = tokenizer.mask_id, [*tokenizer.special_ids, *tokenizer.vocabulary.added_ids]
    features = as_features([(draft.ids, draft.types) for draft in drafts], model.config.longest_sequence)
    output = MaskedWords(mask_id, None, model.config.predicts_ahead)
    for numbers, found in model.compute(output, features, batch_size, False):
        for number, logits in zip(numbers, found, strict=False):
            draft = drafts[number]
            places = np.flatnonzero(draft.ids == mask_id)
            scores = np.stack(logits)[:, : tokenizer.vocab_size].astype(np.float64)
            scores[:, marks] = -np.inf  # no text has them
            chosen = _chosen(order, places, draft)
            words, confidence = _drawn(scores[chosen], places[chosen], draft, temperature)
            if order == "confidence":
                surest = np.argsort(-confidence, kind="stable")[: draft.next_count()]
                chosen, words = chosen[surest], words[surest]
            draft.ids[places[chosen]] = words
            draft.step += 1


def _chosen(order: UnmaskingOrder, places: np.ndarray, draft: Draft) -> np.ndarray:
    """Return which of the masks get a word, int64 [N]: those of this step, or all if their words decide on it."""
    if order == "confidence":
        return np.arange(len(places))
    if order == "left_to_right":
        return np.arange(draft.next_count())
    keys = bits(draft.key, Stream.GENERATED_PLACE, draft.step, places)
    return np.argsort(keys, kind="stable")[: draft.next_count()]


def _drawn(scores: np.ndarray, places: np.ndarray, draft: Draft, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a word for each mask, int64 [M], and its probability without temperature, from scores [M, V]."""
    shares = softmax(scores)
    if not temperature:
        words = scores.argmax(axis=1)
    else:
        sums = np.cumsum(shares if temperature == 1 else _tempered(scores, temperature), axis=1)
        draws = uniform(bits(draft.key, Stream.GENERATED_WORD, draft.step, places))
        # The first entry whose sum is above the draw; one without a share has the sum of the entry before it.
        words = (sums <= (draws * sums[:, -1])[:, None]).sum(axis=1)
    return words, np.take_along_axis(shares, words[:, None], axis=1)[:, 0]


def _tempered(scores: np.ndarray, temperature: float) -> np.ndarray:
    with np.errstate(over="ignore"):  # at a very low one all but the first word are infinitely far behind
        return softmax((scores - scores.max(axis=1, keepdims=True)) / temperature)


def _text(tokenizer: Any, ids: np.ndarray) -> str:
    return tokenizer.decode([number for number in ids.tolist() if number not in (tokenizer.cls_id, tokenizer.sep_id)])
