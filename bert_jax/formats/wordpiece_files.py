"""WordPiece in a tokenizer.json of Hugging Face, and settings with which it would give different ids than ours."""

import dataclasses
import json
from typing import Any

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files import read_object
from bert_jax.tokenization.tokenizer import basic_normalizer


@dataclasses.dataclass(frozen=True)
class FastWordPiece:
    """Vocabulary and casing of a tokenizer.json."""

    tokens: list[str]
    lowercase: bool


def read_fast_wordpiece(file: epath.Path) -> FastWordPiece:
    """Read a tokenizer.json; raise a UserError if it is damaged, or its ids would differ from ours."""
    values = read_object(file)
    model = as_object(values.get("model"))
    kind = model.get("type", "WordPiece" if "max_input_chars_per_word" in model else None)
    if kind != "WordPiece":
        raise UserError(f"{file} holds a model of type {kind!r:.40}; BERT's is WordPiece")
    if model.get("continuing_subword_prefix", "##") != "##" or model.get("unk_token", "[UNK]") != "[UNK]":
        raise UserError(
            f"{file} marks continued pieces with {model.get('continuing_subword_prefix')!r:.20} and unknown words with "
            f"{model.get('unk_token')!r:.20}; only '##' and '[UNK]' can be read"
        )
    tokens = _in_order(model.get("vocab"), file)
    entries = map(as_object, _list(values.get("added_tokens")))
    check_additions([(entry.get("content"), entry.get("id")) for entry in entries], tokens, file)
    return FastWordPiece(tokens, _normalization(values.get("normalizer"), file))


def check_additions(added: list[tuple[Any, ...]], tokens: list[str], file: epath.Path) -> None:
    """Raise a UserError about (token, id) that are not in the vocabulary; an id may be digits, or None for any."""
    ids = {token: i for i, token in enumerate(tokens)}
    foreign = [
        token
        for token, i in added
        if not isinstance(token, str) or token not in ids or (i is not None and str(i) != str(ids[token]))
    ]
    if foreign:
        raise UserError(
            f"{file} adds {len(foreign)} tokens to its vocabulary, first {foreign[0]!r:.60}, that are found in a "
            "text before it is split; our tokenizer has no such step. Make them entries of a vocab.txt instead, "
            "each on the line of its id"
        )


def _normalization(normalizer: Any, file: epath.Path) -> bool:
    """Return whether it lowercases; raise a UserError if it is neither BERT's own normalizer nor the one we write."""
    values = as_object(normalizer)
    for lowercase in (True, False):
        if values == json.loads(basic_normalizer(lowercase).__getstate__()):
            return lowercase
    if values.get("type") != "BertNormalizer":
        raise UserError(f"{file} normalizes text with {values.get('type')!r:.40}, not with BertNormalizer")
    lowercase = values.get("lowercase", True)
    options = {
        "strip_accents": values.get("strip_accents"),
        "tokenize_chinese_chars": values.get("handle_chinese_chars"),
    }
    check_options(options, lowercase, file)
    if values.get("clean_text") is False:
        raise UserError(f"{file} keeps control characters (clean_text=false); our tokenizer, like Google's, drops them")
    return lowercase


def check_options(config: dict[str, Any], lowercase: bool, file: epath.Path) -> None:
    """Raise a UserError about settings with which our tokenizer would give different ids."""
    if not isinstance(lowercase, bool):
        raise UserError(f"{file} has {lowercase!r:.40} for lowercasing where true or false is expected")
    if config.get("strip_accents") not in (None, lowercase):
        raise UserError(
            f"{file} has strip_accents={config['strip_accents']!r:.20} with do_lower_case={lowercase}; our "
            "tokenizer, like Google's, strips accents exactly when it lowercases"
        )
    if config.get("tokenize_chinese_chars") not in (None, True):
        raise UserError(
            f"{file} has tokenize_chinese_chars={config['tokenize_chinese_chars']!r:.20}; our tokenizer, like "
            "Google's, always sets ideographs apart"
        )


def _in_order(vocabulary: Any, file: epath.Path) -> list[str]:
    """Return the entries by their ids, which must be 0 to N - 1."""
    ids = as_object(vocabulary)
    if not ids or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids.values()):
        raise UserError(f"{file} has no vocabulary: model.vocab must be an object from entries to ids")
    tokens = sorted(ids, key=ids.__getitem__)
    for i, token in enumerate(tokens):
        if ids[token] != i:
            raise UserError(
                f"{file}: the ids of the vocabulary must be 0 to {len(ids) - 1:,}; {i} is missing or a duplicate"
            )
    return tokens


def as_object(value: Any) -> dict[str, Any]:
    """Return a JSON object as it is, and an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
