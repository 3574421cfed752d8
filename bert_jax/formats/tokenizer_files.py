"""Vocabulary files of a Hugging Face directory: read, and written so that AutoTokenizer gives the same ids.

A directory is read as one of bert_jax's own kinds of tokenizer if that gives the same ids, else its tokenizer.json is
used as it is. WordPiece is in vocab.txt or a tokenizer.json, whose settings are checked for that. Byte-level BPE is
in vocab.json with merges.txt, or in a tokenizer.json. From a SentencePiece model come the parts that a tokenizer.json
needs to split text in the same way; a tokenizer.json with a unigram model, without the SentencePiece file that it was
made of, is made into one again.
"""

import base64
import binascii
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from etils import epath
from tokenizers import AddedToken, processors

from bert_jax.errors import UserError
from bert_jax.files import read_contents, read_object
from bert_jax.formats.safetensors_files import inside
from bert_jax.tokenization import sentence_pieces
from bert_jax.tokenization.byte_level import ROBERTA_NAMES, ByteLevel, byte_level_of, read_byte_level
from bert_jax.tokenization.json_vocabulary import NAMES, NotExpressible, pair_form, read_json_vocabulary
from bert_jax.tokenization.tokenizer import CLASS_SEGMENT, Tokenizer
from bert_jax.tokenization.vocabulary import (
    BYTE_LEVEL_FILE,
    CONFIG_FILE,
    JSON_FILE,
    SPECIAL_NAMES,
    WORD_START,
    WORDPIECE_FILE,
    Vocabulary,
    vocabulary_files,
    write_file,
)
from bert_jax.tokenization.wordpiece import WordPiece, basic_normalizer, casing, parse_entries, written_entries


def _read_byte_level(directory: epath.Path) -> ByteLevel | None:
    """Return the vocabulary of a directory with vocab.json or a tokenizer.json of a byte-level BPE, else None."""
    slow_file, fast_file = directory / BYTE_LEVEL_FILE, directory / JSON_FILE
    fast = _read_fast_byte_level(inside(directory, fast_file.name)) if fast_file.exists() else None
    if not slow_file.exists():
        return fast
    slow = read_byte_level(inside(directory, slow_file.name))
    if fast is not None and (fast.tokens, fast.merges) != (slow.tokens, slow.merges):
        raise UserError(
            f"{slow_file} ({len(slow.tokens):,} entries) and {fast_file.name} next to it "
            f"({len(fast.tokens):,}) hold different vocabularies or merges; delete the one the model was not "
            "trained with"
        )
    return fast or slow


def _read_fast_byte_level(file: epath.Path) -> ByteLevel | None:
    values = read_object(file)
    model, splitting = _object(values.get("model")), _object(values.get("pre_tokenizer"))
    if splitting.get("type") != "ByteLevel" or not isinstance(model.get("vocab"), dict):
        return None
    if values.get("normalizer") is not None or splitting.get("use_regex") is False:
        raise NotExpressible(
            f"{file} changes or splits text differently from GPT-2 (normalizer "
            f"{_object(values.get('normalizer'))!r:.60}); only plain byte-level BPE can be read"
        )
    vocabulary, merges = dict(model["vocab"]), model.get("merges")
    for added in values.get("added_tokens") or ():
        if not added.get("special"):
            raise NotExpressible(
                f"{file} adds {added.get('content')!r:.60} to its vocabulary, which is found in a text before it is "
                "split; our tokenizer has no such step. Remove it from added_tokens if the model does without"
            )
        if added.get("content") in (ROBERTA_NAMES[4], SPECIAL_NAMES[4]) and not added.get("lstrip"):
            raise NotExpressible(f"{file} leaves the space before {added['content']} to the text")
        vocabulary.setdefault(added.get("content"), added.get("id"))
    if not isinstance(merges, list):
        raise UserError(f"{file} has no list of merges in its model")
    found = byte_level_of(vocabulary, merges, splitting.get("add_prefix_space") is True, file)
    form = pair_form(values.get("post_processor"), found.special_ids, file)
    if form not in (None, (found.separators, False)):
        raise NotExpressible(f"{file} puts {form.separators} separators between two texts")
    return found


_STEPS = {"Precompiled", "Replace", "NFKD", "StripAccents", "Lowercase", "Strip", "NFC"}
"""Normalizers whose effect is in a model's own table, or in the cleaning before it."""
_TABLE, _NORMALIZER = 2, 3  # precompiled_charsmap of NormalizerSpec, normalizer_spec of ModelProto


def _read_unigram(file: epath.Path) -> sentence_pieces.SentencePieces | None:
    """Return the vocabulary of a tokenizer.json with a unigram model, None if it has another."""
    values = read_object(file)
    model = values.get("model")
    if not isinstance(model, dict) or model.get("type") != "Unigram":
        return None
    steps = list(_steps(values.get("normalizer"), "normalizers"))
    pieces = _pieces(values, model, file)
    family, cleaning = sentence_pieces.family_of(file, pieces)
    cleaning = dataclasses.replace(
        cleaning,
        lowercase=any(step.get("type") == "Lowercase" for step in steps),
        strips_accents=any(step.get("type") == "NFKD" for step in steps),
    )
    _check_splitting(values, model, file)
    whole = sentence_pieces.with_pieces(
        sentence_pieces.field(_NORMALIZER, sentence_pieces.field(_TABLE, _table(steps, file))),
        sentence_pieces.in_order_of_file(pieces, family),
    )
    return sentence_pieces.pieces_of(file, whole, family, cleaning)


def _pieces(values: dict[str, Any], model: dict[str, Any], file: epath.Path) -> list[sentence_pieces.Piece]:
    """Return the entries in the order of their ids."""
    entries, unknown = model.get("vocab"), model.get("unk_id")
    if not isinstance(entries, list) or not all(map(_is_entry, entries)) or not isinstance(unknown, int):
        raise UserError(f"{file} is damaged: model.vocab must hold pairs of a piece and its score, and unk_id an id")
    kinds = {unknown: sentence_pieces.UNKNOWN}
    for added in values.get("added_tokens") or ():
        i = added.get("id") if isinstance(added, dict) else None
        if i == len(entries) and added.get("special") and isinstance(added.get("content"), str):
            entries = [*entries, [added["content"], 0.0]]  # DeBERTa's mask
        if not isinstance(i, int) or not 0 <= i < len(entries) or entries[i][0] != added.get("content"):
            raise NotExpressible(
                f"{file} adds {added!r:.80} to its vocabulary, which is found in a text before it is split; our "
                "tokenizer has no such step. Remove it from added_tokens if the model does without"
            )
        kinds.setdefault(i, sentence_pieces.CONTROL if added.get("special") else sentence_pieces.USER_DEFINED)
    return [
        sentence_pieces.Piece(text, float(score), kinds.get(i, sentence_pieces.NORMAL))
        for i, (text, score) in enumerate(entries)
    ]


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


def _read_fast_wordpiece(file: epath.Path) -> tuple[list[str], bool]:
    """Return the entries of a tokenizer.json in the order of their ids, and whether text is lowercased."""
    values = read_object(file)
    model = _object(values.get("model"))
    kind = model.get("type", "WordPiece" if "max_input_chars_per_word" in model else None)
    if kind != "WordPiece":
        raise UserError(f"{file} holds a model of type {kind!r:.40}; BERT's is WordPiece")
    if model.get("continuing_subword_prefix", "##") != "##" or model.get("unk_token", "[UNK]") != "[UNK]":
        raise UserError(
            f"{file} marks continued pieces with {model.get('continuing_subword_prefix')!r:.20} and unknown words with "
            f"{model.get('unk_token')!r:.20}; only '##' and '[UNK]' can be read"
        )
    tokens = _in_order(model.get("vocab"), file)
    entries = map(_object, found if isinstance(found := values.get("added_tokens"), list) else ())
    _check_additions([(entry.get("content"), entry.get("id")) for entry in entries], tokens, file)
    return tokens, _normalization(values.get("normalizer"), file)


def _check_additions(added: list[tuple[Any, ...]], tokens: list[str], file: epath.Path) -> None:
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
    values = _object(normalizer)
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
    _check_options(options, lowercase, file)
    if values.get("clean_text") is False:
        raise UserError(f"{file} keeps control characters (clean_text=false); our tokenizer, like Google's, drops them")
    return lowercase


def _check_options(config: dict[str, Any], lowercase: bool, file: epath.Path) -> None:
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
    ids = _object(vocabulary)
    if not ids or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids.values()):
        raise UserError(f"{file} has no vocabulary: model.vocab must be an object from entries to ids")
    tokens = sorted(ids, key=ids.__getitem__)
    for i, token in enumerate(tokens):
        if ids[token] != i:
            raise UserError(
                f"{file}: the ids of the vocabulary must be 0 to {len(ids) - 1:,}; {i} is missing or a duplicate"
            )
    return tokens


def _object(value: Any) -> dict[str, Any]:
    """Return a JSON object as it is, and an empty one for any other value."""
    return value if isinstance(value, dict) else {}


_SPECIALS_FILE = "special_tokens_map.json"
_ADDED_FILE = "added_tokens.json"


def read_tokenizer(directory: epath.Path) -> Tokenizer | None:
    """Return the tokenizer of a directory with vocab.txt, vocab.json, tokenizer.json or a SentencePiece model, or None.

    It is one of our own kinds where that gives the ids of the directory, else tokenizer.json as it is.

    Raises:
      UserError: a file is damaged, or its settings would give different ids than our tokenizer.
    """
    try:
        found = _read_own(directory)
    except NotExpressible:
        found = read_json_vocabulary(inside(directory, JSON_FILE), _special_names(directory))
    return None if found is None else Tokenizer(found)


def _special_names(directory: epath.Path) -> dict[str, Any]:
    """Return the names of the special tokens in tokenizer_config.json or, in older directories, the map next to it."""
    files = (directory / _SPECIALS_FILE, directory / CONFIG_FILE)
    found = [read_object(inside(directory, file.name)) for file in files if file.exists()]
    return {key: value for values in found for key, value in values.items() if value is not None}


def _read_own(directory: epath.Path) -> Vocabulary | None:
    if (found := _read_byte_level(directory)) is not None:
        return found
    files = {name: directory / name for name in (WORDPIECE_FILE, JSON_FILE, CONFIG_FILE, _ADDED_FILE)}
    there = {name: inside(directory, name) for name, file in files.items() if file.exists()}
    models = [file for file in vocabulary_files(directory) if file.suffix == ".model"]
    config = read_object(there[CONFIG_FILE]) if CONFIG_FILE in there else {}
    if models:
        pieces = sentence_pieces.read_sentence_pieces(inside(directory, models[0].name))
        _check_slow_additions(there, config, pieces.tokens)
        return pieces
    if JSON_FILE in there and WORDPIECE_FILE not in there:
        if (unigram := _read_unigram(there[JSON_FILE])) is not None:
            _check_slow_additions(there, config, unigram.tokens)
            return unigram
    fast = _read_fast_wordpiece(there[JSON_FILE]) if JSON_FILE in there else None
    if WORDPIECE_FILE in there:
        file = there[WORDPIECE_FILE]
        tokens = parse_entries(read_contents(file), file)
        if fast is not None and fast[0] != tokens:
            raise UserError(
                f"{file} ({len(tokens):,} entries) and {JSON_FILE} next to it ({len(fast[0]):,}) hold "
                f"different vocabularies{_first_difference(tokens, fast[0])}; delete the one the model was not "
                "trained with"
            )
    elif fast is not None:
        file, tokens = there[JSON_FILE], fast[0]
        parse_entries(written_entries(tokens), file)
    else:
        return None
    _check_slow_additions(there, config, tokens)
    lowercase = config.get("do_lower_case", None if fast is None else fast[1])
    if lowercase is None:
        lowercase = casing(tokens, file, None)
    _check_options(config, lowercase, directory / CONFIG_FILE)
    return WordPiece(tokens, casing(tokens, file, lowercase))


def write_tokenizer(tokenizer: Tokenizer, directory: epath.Path, max_length: int, has_segments: bool = True) -> None:
    """Write the vocabulary with the files that AutoTokenizer looks for.

    A model without segments may refuse token_type_ids in transformers; its tokenizer does not return them.

    tokenizer.json has our own normalization, not BertNormalizer, which differs from Google's
    (bert_jax/tokenization/wordpiece.py); therefore the class named is the plain PreTrainedTokenizerFast, which takes
    the file as it is: BertTokenizer would replace it with its own.
    """
    tokenizer.save(directory)
    vocabulary = tokenizer.vocabulary
    names = dict(zip(NAMES, (tokenizer.tokens[i] for i in tokenizer.special_ids), strict=True))
    if (fast := vocabulary.pipeline()) is not None:
        *others, mask = names.values()
        fast.add_special_tokens(
            [*others, AddedToken(mask, lstrip=vocabulary.mask_takes_space), *vocabulary.never_found()]
        )
        fast.post_processor = _post_processor(tokenizer)
        write_file(directory / JSON_FILE, fast.to_str(pretty=True).encode())
    segments = ["token_type_ids"] if has_segments and tokenizer.separators == 1 else []
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "kind": tokenizer.kind,
        "do_lower_case": tokenizer.lowercase,
        "model_max_length": max_length,
        "model_input_names": ["input_ids", *segments, "attention_mask"],
        "clean_up_tokenization_spaces": tokenizer.kind == "wordpiece",
        **vocabulary.options(),
        **({"padding_side": "left"} if tokenizer.class_last else {}),
        **names,
    }
    for name, content in ((CONFIG_FILE, config), (_SPECIALS_FILE, names)):
        write_file(directory / name, (json.dumps(content, indent=2) + "\n").encode())


def _post_processor(tokenizer: Tokenizer) -> processors.PostProcessor:
    """Return how one or two texts become a sequence, as tokenization/tokenizer.py does it."""
    cls, sep = (tokenizer.tokens[i] for i in (tokenizer.cls_id, tokenizer.sep_id))
    if isinstance(tokenizer.vocabulary, ByteLevel) and tokenizer.separators == 2:
        ends = (sep, tokenizer.sep_id), (cls, tokenizer.cls_id)
        return processors.RobertaProcessing(*ends, trim_offsets=True, add_prefix_space=tokenizer.vocabulary.spaced)
    second = 1 if tokenizer.separators == 1 else 0
    head = "" if tokenizer.class_last else f"{cls}:0 "
    tail = f" {cls}:{CLASS_SEGMENT}" if tokenizer.class_last else ""
    between = " ".join([f"{sep}:0"] * tokenizer.separators)
    return processors.TemplateProcessing(
        single=f"{head}$A:0 {sep}:0{tail}",
        pair=f"{head}$A:0 {between} $B:{second} {sep}:{second}{tail}",
        special_tokens=[(cls, tokenizer.cls_id), (sep, tokenizer.sep_id)],
    )


def _check_slow_additions(there: dict[str, epath.Path], config: dict[str, Any], tokens: list[str]) -> None:
    """Check the additions to a vocabulary without tokenizer.json: added_tokens.json or added_tokens_decoder."""
    if _ADDED_FILE in there:
        _check_additions(list(read_object(there[_ADDED_FILE]).items()), tokens, there[_ADDED_FILE])
    if decoder := _object(config.get("added_tokens_decoder")):
        added = [(_object(entry).get("content"), key) for key, entry in decoder.items()]
        _check_additions(added, tokens, there[CONFIG_FILE])


def _first_difference(ours: list[str], theirs: list[str]) -> str:
    pairs = ((i, a, b) for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    return next((f", first at id {i}: {a!r} and {b!r}" for i, a, b in pairs), "")
