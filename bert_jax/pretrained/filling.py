"""`bert-jax fill-mask`: what a checkpoint would write in place of each [MASK]."""

import dataclasses

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from bert_jax.command_config import FillMaskConfig
from bert_jax.errors import UserError
from bert_jax.pretrained.text_batches import as_features, check_utf8
from bert_jax.tasks.batching import padded


@dataclasses.dataclass(frozen=True)
class Candidate:
    token: str
    probability: float


def fill_mask(model, text: str, top_k: int = 5) -> list[list[Candidate]]:
    """The `top_k` likeliest pieces for each [MASK] of `text`, in order, by a PretrainedModel.

    Every mask is predicted with the other masks in place. Raises UserError where there is no mask or too much text.
    """
    tokenizer, longest = model.need_tokenizer(), model.config.max_position_embeddings
    mask = tokenizer.tokens[tokenizer.mask_id]
    if not 0 < top_k <= tokenizer.vocab_size:
        raise UserError(f"top_k={top_k} must lie between 1 and the {tokenizer.vocab_size} entries of the vocabulary")
    if not isinstance(text, str):
        raise UserError(f"fill_mask takes one text, a str, and was given {text!r:.60}; call it once for each of several")
    check_utf8(text)
    ids = np.array([tokenizer.cls_id, *tokenizer.encode_masked(text), tokenizer.sep_id], np.int32)
    positions = np.flatnonzero(ids == tokenizer.mask_id)
    if not len(positions):
        raise UserError(f"there is no {mask} in {text[:60]!r}; write {mask} where a word is to be filled in")
    if len(ids) > longest:
        raise UserError(f"the text has {len(ids)} tokens with its [CLS] and [SEP], the model takes {longest}; shorten it")
    # Padded, both the text and its list of masks, so that a second text seldom compiles again.
    batch = padded(as_features([(ids, np.zeros_like(ids))], longest), np.array([0]), 1)
    batch["masked_positions"] = np.zeros((1, 1 << (len(positions) - 1).bit_length()), np.int32)
    batch["masked_positions"][0, :len(positions)] = positions
    probabilities = np.asarray(jax.nn.softmax(model.mlm_logits(batch)[0, :len(positions)]))
    best = np.argsort(-probabilities, axis=-1, kind="stable")[:, :top_k]
    return [[Candidate(tokenizer.tokens[token], float(row[token])) for token in tokens]
            for row, tokens in zip(probabilities, best)]


def run_fill_mask(path: str, text: str, options: FillMaskConfig) -> None:
    from bert_jax.pretrained.loading import load

    model = load(path)
    print_filled(text, fill_mask(model, text, options.top_k), model.tokenizer.tokens[model.tokenizer.mask_id])


def print_filled(text: str, filled: list[list[Candidate]], mask: str) -> None:
    """The text, then one column a mask, likeliest on top."""
    console, table = Console(markup=False, highlight=False), Table(show_header=len(filled) > 1)
    console.print(text, style="bold", soft_wrap=True)
    for number in range(1, len(filled) + 1):
        table.add_column(f"{mask} {number}")
    for candidates in zip(*filled):
        table.add_row(*(f"{c.probability:6.1%}  {c.token}" for c in candidates))
    console.print(table)
