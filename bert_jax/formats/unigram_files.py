"""A tokenizer.json with a unigram model, without the SentencePiece file that it was made of: made into one again."""

import base64
import binascii
import dataclasses
from collections.abc import Iterator
from typing import Any

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files import read_object
from bert_jax.tokenization.json_tokenizer import NotExpressible
from bert_jax.tokenization.piece_families import family_of, in_order_of_file
from bert_jax.tokenization.piece_files import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Piece, field, with_pieces
from bert_jax.tokenization.sentence_pieces import WORD_START, SentencePieceTokenizer, tokenizer_of

_STEPS = {"Precompiled", "Replace", "NFKD", "StripAccents", "Lowercase", "Strip", "NFC"}
"""Normalizers whose effect is in a model's own table, or in the cleaning before it."""
_TABLE, _NORMALIZER = 2, 3  # precompiled_charsmap of NormalizerSpec, normalizer_spec of ModelProto


def read_unigram(file: epath.Path) -> SentencePieceTokenizer | None:
    """Return the tokenizer of a tokenizer.json with a unigram model, None if it has another.

    Raises:
      UserError: the file is damaged, or splits text differently from SentencePiece.
    """
    values = read_object(file)
    model = values.get("model")
    if not isinstance(model, dict) or model.get("type") != "Unigram":
        return None
    steps = list(_steps(values.get("normalizer"), "normalizers"))
    pieces = _pieces(values, model, file)
    family, cleaning = family_of(file, pieces)
    cleaning = dataclasses.replace(
        cleaning,
        lowercase=any(step.get("type") == "Lowercase" for step in steps),
        strips_accents=any(step.get("type") == "NFKD" for step in steps),
    )
    _check_splitting(values, model, file)
    whole = with_pieces(field(_NORMALIZER, field(_TABLE, _table(steps, file))), in_order_of_file(pieces, family))
    return tokenizer_of(file, whole, family, cleaning)


def _pieces(values: dict[str, Any], model: dict[str, Any], file: epath.Path) -> list[Piece]:
    """Return the entries in the order of their ids."""
    entries, unknown = model.get("vocab"), model.get("unk_id")
    if not isinstance(entries, list) or not all(map(_is_entry, entries)) or not isinstance(unknown, int):
        raise UserError(f"{file} is damaged: model.vocab must hold pairs of a piece and its score, and unk_id an id")
    kinds = {unknown: UNKNOWN}
    for added in values.get("added_tokens") or ():
        i = added.get("id") if isinstance(added, dict) else None
        if i == len(entries) and added.get("special") and isinstance(added.get("content"), str):
            entries = [*entries, [added["content"], 0.0]]  # DeBERTa's mask
        if not isinstance(i, int) or not 0 <= i < len(entries) or entries[i][0] != added.get("content"):
            raise NotExpressible(
                f"{file} adds {added!r:.80} to its vocabulary, which is found in a text before it is split; our "
                "tokenizer has no such step. Remove it from added_tokens if the model does without"
            )
        kinds.setdefault(i, CONTROL if added.get("special") else USER_DEFINED)
    return [Piece(text, float(score), kinds.get(i, NORMAL)) for i, (text, score) in enumerate(entries)]


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and isinstance(entry[1], int | float)
    )


def _steps(part: object, below: str) -> Iterator[dict[str, Any]]:
    """Yield the parts of a normalizer or pre-tokenizer that may be a sequence."""
    if isinstance(part, dict):
        if part.get("type") != "Sequence":
            yield part
        for inner in part.get(below) or ():
            yield from _steps(inner, below)


def _table(steps: list[dict[str, Any]], file: epath.Path) -> bytes:
    """Return the model's own table of normalization."""
    foreign = [str(step.get("type")) for step in steps if step.get("type") not in _STEPS]
    found = [step.get("precompiled_charsmap") for step in steps if step.get("type") == "Precompiled"]
    if foreign or len(found) != 1 or not isinstance(found[0], str):
        seen = ", ".join(str(step.get("type")) for step in steps) or "nothing"
        raise NotExpressible(
            f"{file} normalizes text with {seen:.80}, but SentencePiece's own table (Precompiled) is needed; put the "
            ".model that the tokenizer was made of into the directory"
        )
    try:
        return base64.b64decode(found[0], validate=True)
    except (binascii.Error, ValueError):
        raise UserError(f"{file} is damaged: its precompiled_charsmap is not base64; fetch it again") from None


def _check_splitting(values: dict[str, Any], model: dict[str, Any], file: epath.Path) -> None:
    """Raise a UserError unless text is split at spaces, of which there is one in front."""
    for step in _steps(values.get("pre_tokenizer"), "pretokenizers"):
        usual = step.get("replacement") == WORD_START and step.get("prepend_scheme", "always") == "always"
        if step.get("type") != "WhitespaceSplit" and not (step.get("type") == "Metaspace" and usual):
            raise NotExpressible(
                f"{file} splits text with {step!r:.120}, which SentencePiece does not; it cannot be read"
            )
    if model.get("byte_fallback"):
        raise NotExpressible(
            f"{file} has pieces for bytes (byte_fallback), which models of this family do not; give another"
        )
