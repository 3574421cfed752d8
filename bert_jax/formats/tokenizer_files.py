"""Vocabulary files of a Hugging Face directory: reads them, and writes them so that AutoTokenizer gives our ids."""

import json
from typing import Any

import tokenizers
from etils import epath
from tokenizers import decoders, models, processors

from bert_jax.errors import UserError
from bert_jax.files import read_object
from bert_jax.formats import sentencepiece_files
from bert_jax.formats.byte_level_files import fast_byte_level, read_byte_level
from bert_jax.formats.safetensors_files import inside
from bert_jax.formats.unigram_files import read_unigram
from bert_jax.formats.wordpiece_files import as_object, check_additions, check_options, read_fast_wordpiece
from bert_jax.tokenization import vocabulary_file
from bert_jax.tokenization.byte_level import ByteLevelTokenizer
from bert_jax.tokenization.json_tokenizer import NAMES, JsonTokenizer, NotExpressible, load_json_tokenizer
from bert_jax.tokenization.piece_files import CONTROL, read_pieces
from bert_jax.tokenization.segments import CLASS_SEGMENT
from bert_jax.tokenization.sentence_pieces import WORD_START, SentencePieceTokenizer
from bert_jax.tokenization.tokenizer import (
    MAX_WORD_LENGTH,
    Tokenizer,
    WordPieceTokenizer,
    basic_normalizer,
    basic_pre_tokenizer,
    load_tokenizer,
)

TOKENIZER_FILE, CONFIG_FILE = vocabulary_file.JSON_FILE, vocabulary_file.CONFIG_FILE
SPECIALS_FILE = "special_tokens_map.json"
ADDED_FILE = "added_tokens.json"


def read_tokenizer(directory: epath.Path) -> Tokenizer | None:
    """Return the tokenizer of a directory with vocab.txt, vocab.json, tokenizer.json or a SentencePiece model, or None.

    It is one of our own kinds where that gives the ids of the directory, else tokenizer.json as it is.

    Raises:
      UserError: a file is damaged, or its settings would give different ids than our tokenizer.
    """
    try:
        return _read_own(directory)
    except NotExpressible:
        return load_json_tokenizer(inside(directory, TOKENIZER_FILE), _special_names(directory))


def _special_names(directory: epath.Path) -> dict[str, Any]:
    """Return the names of the special tokens in tokenizer_config.json or, in older directories, the map beside it."""
    files = (directory / SPECIALS_FILE, directory / CONFIG_FILE)
    found = [read_object(inside(directory, file.name)) for file in files if file.exists()]
    return {key: value for values in found for key, value in values.items() if value is not None}


def _read_own(directory: epath.Path) -> Tokenizer | None:
    if (byte_level := read_byte_level(directory)) is not None:
        return byte_level
    files = {
        name: directory / name for name in (vocabulary_file.WORDPIECE_FILE, TOKENIZER_FILE, CONFIG_FILE, ADDED_FILE)
    }
    there = {name: inside(directory, name) for name, file in files.items() if file.exists()}
    models = [file for file in vocabulary_file.vocabularies(directory) if file.suffix == ".model"]
    config = read_object(there[CONFIG_FILE]) if CONFIG_FILE in there else {}
    if models:
        tokenizer = load_tokenizer(inside(directory, models[0].name))
        _check_slow_additions(there, config, tokenizer.tokens)
        return tokenizer
    if TOKENIZER_FILE in there and vocabulary_file.WORDPIECE_FILE not in there:
        if (unigram := read_unigram(there[TOKENIZER_FILE])) is not None:
            _check_slow_additions(there, config, unigram.tokens)
            return unigram
    fast = read_fast_wordpiece(there[TOKENIZER_FILE]) if TOKENIZER_FILE in there else None
    if vocabulary_file.WORDPIECE_FILE in there:
        file = there[vocabulary_file.WORDPIECE_FILE]
        tokens = vocabulary_file.parse(file.read_bytes(), file)
        if fast is not None and fast.tokens != tokens:
            raise UserError(
                f"{file} ({len(tokens):,} entries) and {TOKENIZER_FILE} next to it ({len(fast.tokens):,}) hold "
                f"different vocabularies{_first_difference(tokens, fast.tokens)}; delete the one the model was not "
                "trained with"
            )
    elif fast is not None:
        file, tokens = there[TOKENIZER_FILE], fast.tokens
        vocabulary_file.parse(vocabulary_file.serialize(tokens), file)
    else:
        return None
    _check_slow_additions(there, config, tokens)
    lowercase = config.get("do_lower_case", None if fast is None else fast.lowercase)
    if lowercase is None:
        lowercase = vocabulary_file.casing(tokens, file, None)
    check_options(config, lowercase, directory / CONFIG_FILE)
    return WordPieceTokenizer(tokens, vocabulary_file.casing(tokens, file, lowercase))


def write_tokenizer(tokenizer: Tokenizer, directory: epath.Path, max_length: int, has_segments: bool = True) -> None:
    """Write the vocabulary with the files that AutoTokenizer looks for.

    A model without segments may refuse token_type_ids in transformers; its tokenizer does not return them.

    tokenizer.json has our own normalization, not BertNormalizer, which differs from Google's
    (bert_jax/tokenization/tokenizer.py); therefore the class named is the plain PreTrainedTokenizerFast, which takes
    the file as it is: BertTokenizer would replace it with its own.
    """
    tokenizer.save(directory)
    byte_level = isinstance(tokenizer, ByteLevelTokenizer)
    names = dict(zip(NAMES, (tokenizer.tokens[i] for i in tokenizer.special_ids), strict=True))
    if not isinstance(tokenizer, JsonTokenizer):  # which has written its own
        fast = fast_byte_level(tokenizer) if byte_level else _fast_tokenizer(tokenizer)
        if not byte_level:
            fast.add_special_tokens([*names.values(), *_unwritten(tokenizer)])
        if not byte_level or tokenizer.separators == 1:
            fast.post_processor = _template(tokenizer)
        vocabulary_file.write(directory / TOKENIZER_FILE, fast.to_str(pretty=True).encode())
    segments = ["token_type_ids"] if has_segments and tokenizer.separators == 1 else []
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "kind": tokenizer.kind,
        "do_lower_case": tokenizer.lowercase,
        "model_max_length": max_length,
        "model_input_names": ["input_ids", *segments, "attention_mask"],
        "clean_up_tokenization_spaces": tokenizer.kind == "wordpiece",
        **tokenizer.options(),
        **({"padding_side": "left"} if tokenizer.class_last else {}),
        **names,
    }
    for name, content in ((CONFIG_FILE, config), (SPECIALS_FILE, names)):
        vocabulary_file.write(directory / name, (json.dumps(content, indent=2) + "\n").encode())


def _unwritten(tokenizer: Tokenizer) -> list[str]:
    """Return the further pieces that SentencePiece never finds in a text, as the end of a document in XLNet."""
    if not isinstance(tokenizer, SentencePieceTokenizer):
        return []
    return [piece.text for piece in read_pieces(tokenizer.model) if piece.kind == CONTROL]


def _template(tokenizer: Tokenizer) -> processors.TemplateProcessing:
    """Return how one or two texts become a sequence, as tokenization/segments.py does it."""
    cls, sep = (tokenizer.tokens[i] for i in (tokenizer.cls_id, tokenizer.sep_id))
    second = 1 if tokenizer.separators == 1 else 0
    head = "" if tokenizer.class_last else f"{cls}:0 "
    tail = f" {cls}:{CLASS_SEGMENT}" if tokenizer.class_last else ""
    between = " ".join([f"{sep}:0"] * tokenizer.separators)
    return processors.TemplateProcessing(
        single=f"{head}$A:0 {sep}:0{tail}",
        pair=f"{head}$A:0 {between} $B:{second} {sep}:{second}{tail}",
        special_tokens=[(cls, tokenizer.cls_id), (sep, tokenizer.sep_id)],
    )


def _fast_tokenizer(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    if isinstance(tokenizer, SentencePieceTokenizer):
        fast = sentencepiece_files.fast_tokenizer(tokenizer.model, tokenizer.unk_id, tokenizer.cleaning)
        fast.decoder = decoders.Metaspace(WORD_START, "always")
        return fast
    ids = {token: i for i, token in enumerate(tokenizer.tokens)}
    fast = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_LENGTH))
    fast.normalizer, fast.pre_tokenizer = basic_normalizer(tokenizer.lowercase), basic_pre_tokenizer()
    fast.decoder = decoders.WordPiece("##", cleanup=False)
    return fast


def _check_slow_additions(there: dict[str, epath.Path], config: dict[str, Any], tokens: list[str]) -> None:
    """Check the additions to a vocabulary without tokenizer.json: added_tokens.json or added_tokens_decoder."""
    if ADDED_FILE in there:
        check_additions(list(read_object(there[ADDED_FILE]).items()), tokens, there[ADDED_FILE])
    if decoder := as_object(config.get("added_tokens_decoder")):
        added = [(as_object(entry).get("content"), key) for key, entry in decoder.items()]
        check_additions(added, tokens, there[CONFIG_FILE])


def _first_difference(ours: list[str], theirs: list[str]) -> str:
    pairs = ((i, a, b) for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    return next((f", first at id {i}: {a!r} and {b!r}" for i, a, b in pairs), "")
