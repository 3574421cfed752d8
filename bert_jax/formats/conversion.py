"""`bert-jax convert`: writes a model in a different layout; the parameters keep every bit."""

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

from etils import epath
from rich.console import Console

from bert_jax.config import EmbeddingConfig
from bert_jax.config.commands import ConvertConfig, ModelFormat, PartsWritten, Weights
from bert_jax.config.json_form import from_dict
from bert_jax.errors import UserError
from bert_jax.formats.fit import check_fit
from bert_jax.formats.generator_arrays import generator_of
from bert_jax.formats.opening import open_stored
from bert_jax.formats.own_checkpoint import open_checkpoint
from bert_jax.formats.stored import StoredModel, describe_embedding
from bert_jax.formats.writing import check_destination, new_directory, write_bert_jax
from bert_jax.models.bert_parameters import ENCODER_PARTS, STATE_PROJECTION


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    to: ModelFormat,
    parts: PartsWritten = "all",
    weights: Weights = "last",
) -> None:
    """Convert the model in `source`, of any known kind, to the new directory `destination`, and print a summary.

    Args:
      to: bert_jax, huggingface or tf1.
      parts: all, mlm, encoder or generator; see ConvertConfig.
      weights: last or ema; see ConvertConfig.

    Raises:
      UserError: the source is unreadable, the destination is not empty, or the other format cannot represent the model.
    """
    from_dict(ConvertConfig, {"to": to, "parts": parts, "weights": weights})  # raises a UserError for any other word
    check_destination(destination)
    stored = _opened(source, weights)
    check_fit(stored)
    chosen = select(stored, parts, to)
    with new_directory(destination) as directory:
        _write(chosen, directory, to, os.path.basename(os.path.normpath(destination)))
    _print_summary(source, stored, chosen, destination, to)


def _opened(source: str | os.PathLike[str], weights: Weights) -> StoredModel:
    stored = open_stored(source)
    if weights == "last":
        return stored
    if stored.kind != "bert_jax":
        raise UserError(f"weights=ema, but {source} is not a run of bert_jax, and only such runs keep a moving average")
    return open_checkpoint(stored.path, weights)


def select(stored: StoredModel, parts: PartsWritten, to: ModelFormat = "bert_jax") -> StoredModel:
    """Return `stored` with only some of its parts; see ConvertConfig.parts.

    A student's map to the states of its teacher is never written, and only bert_jax knows a span boundary head and the
    enhanced mask decoder. Google's run_squad.py leaves a pooler that nothing reads. The classes of transformers do not
    have one together with such a head, and would report it as unexpected.
    """
    if parts == "generator":
        generator = generator_of(stored)
        check_fit(generator)
        return select(generator, "all", to)
    stored = stored.without(STATE_PROJECTION)
    if to != "bert_jax":
        stored = stored.without("span_boundary", "mask_decoder")
    if parts == "all" and to == "huggingface" and stored.head is not None and stored.head.kind in ("span", "tagging"):
        return stored.without("pooler")
    if parts == "all":
        return stored
    if parts == "mlm" and "mlm" not in stored.parts:
        raise UserError(
            f"parts=mlm, but {stored.path} has no masked-language-model head; it has "
            f"{', '.join(stored.parts) or 'an encoder only'}"
        )
    kept = (*ENCODER_PARTS, *{"mlm": ("mlm", "mask_decoder"), "encoder": ("pooler",)}[parts])
    arrays = {path: array for path, array in stored.arrays.items() if path.split("/")[0] in kept}
    return dataclasses.replace(stored, arrays=arrays, head=None)


def _write(stored: StoredModel, directory: epath.Path, to: ModelFormat, name: str) -> None:
    if to == "bert_jax":
        write_bert_jax(stored, directory)
    elif to == "huggingface":
        from bert_jax.formats.huggingface_export import write_huggingface

        write_huggingface(stored, directory, name)
    else:
        from bert_jax.formats.tf_writing import write_tf_checkpoint

        write_tf_checkpoint(stored, directory)


def _print_summary(source: Any, stored: StoredModel, chosen: StoredModel, destination: Any, to: ModelFormat) -> None:
    numbers = sum(math.prod(array.shape) for array in chosen.arrays.values())
    vocabulary = f"vocabulary of {chosen.tokenizer.vocab_size:,} entries" if chosen.tokenizer else "no vocabulary"
    left = [part for part in stored.parts if part not in chosen.parts]
    if stored.beside:  # discriminator and generator of one run
        left = [*left, "generator"] if chosen.beside else ["discriminator"]
    lines = [
        f"from {source} ({stored.kind}): encoder of {stored.model.num_layers} layers and {stored.model.hidden_size} "
        f"features, {_listed(stored.parts)}",
        f"to {destination} ({to}): encoder, {_listed(chosen.parts)}, {numbers:,} parameters; {vocabulary}",
    ]
    if left:
        lines.append(f"left out: {_listed(left)}")
    if chosen.embedding != EmbeddingConfig() and to != "bert_jax":
        lines.append(
            f"left out: how embed makes vectors ({describe_embedding(chosen.embedding)}); --to=bert_jax keeps it"
        )
    if chosen.postprocesses and to != "bert_jax":
        lines.append(f"left out: postprocesses ({_listed(list(chosen.postprocesses))}); --to=bert_jax keeps them")
    if stored.ignored:
        lines.append(f"ignored in the source: {_listed(stored.ignored)}")
    Console(highlight=False).print("\n".join(lines), markup=False, soft_wrap=True)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (", ".join(names[:5]) or "nothing else") + more
