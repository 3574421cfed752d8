"""Vocabularies in directories of Hugging Face `transformers`, which several files there describe together.

A directory is read as one of bert_jax's own kinds of vocabulary if that gives the same ids; otherwise `tokenizers` runs
its tokenizer.json as it is. WordPiece is in vocab.txt or a tokenizer.json, byte-level BPE in vocab.json with merges.txt
or in a tokenizer.json. A tokenizer.json with a unigram model, without the SentencePiece file that it was made of, is
made into one again. What tokenizer_config.json, special_tokens_map.json, added_tokens.json and config.json ask for is
done, or refused by name: where no kind of our own can do it, the tokenizer.json that `transformers` would make is run.
"""

import base64
import binascii
import collections
import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers
from absl import logging
from etils import epath
from tokenizers import AddedToken, pre_tokenizers, processors

from bert_jax.errors import UserError, first_lines
from bert_jax.files import inside, read_contents, read_object
from bert_jax.tokenization import sentence_pieces
from bert_jax.tokenization.byte_level import ROBERTA_NAMES, ByteLevel, byte_level_of, read_byte_level
from bert_jax.tokenization.json_vocabulary import (
    NAMES,
    JsonVocabulary,
    NotExpressible,
    model_kind,
    pair_form,
    special_names,
)
from bert_jax.tokenization.vocabulary import (
    BYTE_LEVEL_FILE,
    CLASS_SEGMENT,
    CONFIG_FILE,
    JSON_FILE,
    JSON_KIND,
    MERGES_FILE,
    SPECIAL_NAMES,
    WORD_START,
    WORDPIECE_FILE,
    Vocabulary,
    vocabulary_files,
)
from bert_jax.tokenization.wordpiece import (
    HUGGING_FACE_LENGTH,
    MAX_WORD_LENGTH,
    WordPiece,
    basic_normalizer,
    basic_pre_tokenizer,
    capitals,
    casing,
    check_specials,
    parse_entries,
)

SPECIALS_FILE, ADDED_FILE = "special_tokens_map.json", "added_tokens.json"
MODEL_FILES = ("config.json", "bert_config.json")


@dataclasses.dataclass(frozen=True)
class _Source:
    """The files of a directory that describe its vocabulary."""

    directory: epath.Path
    files: dict[str, epath.Path]
    """Those that exist, by name; a SentencePiece model is ".model"."""
    settings: dict[str, Any]
    """Contents of tokenizer_config.json and, where that says nothing, of special_tokens_map.json."""
    model: dict[str, Any]
    """Contents of the model's own config.json."""
    fast: dict[str, Any] | None
    """Contents of tokenizer.json."""

    @property
    def settings_file(self) -> epath.Path:
        return self.directory / CONFIG_FILE

    @property
    def of_class(self) -> str:
        """The class of `transformers` that reads it, without "Fast"; "" if nothing says one."""
        return _class_of(self.settings, self.model)

    @property
    def as_it_is(self) -> bool:
        """Whether the class takes tokenizer.json as it is, whatever the options next to it."""
        return self.takes_all or self.settings.get("kind") == JSON_KIND

    @property
    def takes_all(self) -> bool:
        """Whether even the class and separator tokens are only those of the tokenizer.json."""
        return self.of_class in _PLAIN and self.fast is not None


_PLAIN = ("PreTrainedTokenizer", "TokenizersBackend")
_MPNET_CLASS = "MPNetTokenizer"
_MPNET_NAMES = dict(zip(NAMES, ("<pad>", "[UNK]", "<s>", "</s>", "<mask>"), strict=True))
"""Its special tokens unless the files name others. The vocabulary has those of BERT, too, as words."""


def _class_of(settings: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Return the class that the files name; if none, and the model is an MPNet, that of MPNet."""
    name = settings.get("tokenizer_class") or model.get("tokenizer_class")
    name = name or (_MPNET_CLASS if model.get("model_type") == "mpnet" else "")
    return name.removesuffix("Fast") if isinstance(name, str) else ""


def read_vocabulary(
    directory: epath.Path, lowercase: bool | None = None, only: str = "", links: bool = False
) -> Vocabulary | None:
    """Return the vocabulary of a directory; None if it holds none.

    Args:
      lowercase: what to do instead of what the files say; None: as they say.
      only: name of the one file to read, of several vocabularies.
      links: whether a file may be a link to a place outside the directory.

    Raises:
      UserError: a file is damaged, contradicts another, or asks for what is not read here.
    """
    source = _source(directory, only, links)
    if not any(name in source.files for name in (WORDPIECE_FILE, BYTE_LEVEL_FILE, JSON_FILE, ".model")):
        return None
    _check_class(source)
    _check_settings(source)
    try:
        found = _own(source, lowercase)
    except NotExpressible:
        found = _run_as_it_is(source)
    if lowercase not in (None, found.lowercase):
        fixed = "uncased" if found.lowercase else "cased"
        raise UserError(
            f"lowercase={lowercase}, but the vocabulary in {directory} is {fixed} and has no casing to choose; leave "
            "it out"
        )
    return found


def _source(directory: epath.Path, only: str, links: bool) -> _Source:
    names = [WORDPIECE_FILE, BYTE_LEVEL_FILE, MERGES_FILE, JSON_FILE, CONFIG_FILE, SPECIALS_FILE, ADDED_FILE]
    if only:
        others = {WORDPIECE_FILE, BYTE_LEVEL_FILE, JSON_FILE} - {only}
        names = [name for name in names if name not in others]
    models = [file.name for file in vocabulary_files(directory) if file.suffix == ".model" and only in ("", file.name)]
    there = [name for name in (*names, *MODEL_FILES, *models[:1]) if (directory / name).exists()]
    files = {name: directory / name if links else inside(directory, name) for name in there}
    texts = {
        name: read_object(file) for name, file in files.items() if name.endswith(".json") and name != BYTE_LEVEL_FILE
    }
    specials, config = texts.get(SPECIALS_FILE, {}), texts.get(CONFIG_FILE, {})
    fast = texts.get(JSON_FILE)
    if fast is not None and not isinstance(fast.get("model"), dict):
        raise UserError(f"{files[JSON_FILE]} is damaged: it has no model")
    settings = _over(specials, config)
    model = next((texts[name] for name in MODEL_FILES if name in texts), {})
    if _class_of(settings, model) == _MPNET_CLASS:  # which joins texts in its own way, whatever the file says
        settings, fast = _over(_MPNET_NAMES, settings), fast and fast | {"post_processor": None}
    return _Source(
        directory=directory,
        files={(".model" if name in models else name): file for name, file in files.items()},
        settings=settings,
        model=model,
        fast=fast,
    )


def _over(usual: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is said and, where that is nothing, what is usual."""
    return {**usual, **{key: value for key, value in said.items() if value is not None or key not in usual}}


_BERT_CLASSES = (
    *("BertTokenizer", "BertTokenizerLegacy", "ElectraTokenizer", "DistilBertTokenizer", "MobileBertTokenizer"),
    *("ConvBertTokenizer", "SqueezeBertTokenizer", "RetriBertTokenizer", "LayoutLMTokenizer", "FunnelTokenizer"),
)
_BYTE_LEVEL_CLASSES = ("RobertaTokenizer", "DebertaTokenizer", "GPT2Tokenizer", "LongformerTokenizer", "BartTokenizer")
_CLASSES = {
    WORDPIECE_FILE: (*_BERT_CLASSES, _MPNET_CLASS, *_PLAIN, ""),
    BYTE_LEVEL_FILE: (*_BYTE_LEVEL_CLASSES, *_PLAIN, ""),
    ".model": (*sentence_pieces.CLASSES, *_PLAIN, ""),
}
"""File of a vocabulary → the classes that read it as it is read here; "" if none is named."""
_PYTHON_CLASSES = {
    "BertJapaneseTokenizer": "splits text with MeCab, Sudachi or Juman++ or by characters",
    "BertweetTokenizer": "rewrites tweets with Python of its own",
    "PhobertTokenizer": "reads words that another program has split",
    "FlaubertTokenizer": "splits text with Moses",
    "XLMTokenizer": "splits text with Moses",
    "HerbertTokenizer": "splits text with Moses",
    "CanineTokenizer": "reads code points",
    "ByT5Tokenizer": "reads bytes",
}


def _check_class(source: _Source) -> None:
    """Raise a UserError unless the class that the files name reads them as this package or `tokenizers` does."""
    name, file = source.of_class, source.settings_file
    if name in _PYTHON_CLASSES:
        raise UserError(
            f"{file} or the config.json next to it names {name}, which {_PYTHON_CLASSES[name]}; that cannot be run "
            "here. Give the model without its tokenizer files, and ids from transformers to encode_ids"
        )
    auto = source.settings.get("auto_map")
    if auto and not any(name in classes for classes in _CLASSES.values()):
        raise UserError(
            f"{file} names {name or auto!r:.80}, a class in a Python file of its own, and no file's code is run here; "
            "save the model with a tokenizer.json and without auto_map, or give it without its tokenizer files"
        )
    if auto:
        logging.warning("%s names Python files (auto_map), which are not run; it is read without them", file)
    for kind, classes in _CLASSES.items():
        if kind in source.files and source.fast is None and name not in classes:
            raise UserError(
                f"{file} or the config.json next to it names {name:.60}, which does not read "
                f"{source.files[kind].name} as {', '.join(filter(None, classes))} do; put the tokenizer.json there "
                "that transformers saves with it"
            )


_REFUSED: dict[str, tuple[Any, ...]] = {
    "wordpieces_prefix": (None, "##"),
    "word_tokenizer_type": (None, "basic"),
    "subword_tokenizer_type": (None, "wordpiece"),
    "do_word_tokenize": (None, True),
    "do_subword_tokenize": (None, True),
    "split_by_punct": (None, False),
    "vocab_type": (None, "spm"),
    "sp_model_kwargs": (None, {}),
    "fix_mistral_regex": (None, False),
}
"""Keys of tokenizer_config.json that change ids → the values with which they do not; with others it is refused."""
_USED = (
    *("do_lower_case", "do_basic_tokenize", "never_split", "strip_accents", "tokenize_chinese_chars", "keep_accents"),
    *("remove_space", "add_prefix_space", "tokenizer_class", "auto_map", "added_tokens_decoder", "kind", "family"),
    *("add_bos_token", "add_eos_token", "mecab_kwargs", "sudachi_kwargs", "jumanpp_kwargs", *NAMES),
)
"""Keys whose effect is in the ids, and in the tokenizer.json of an export; given again, `transformers` 5 would replace
its post-processor by what add_bos_token and add_eos_token say."""
_PLACES = (
    *("name_or_path", "special_tokens_map_file", "tokenizer_file", "vocab_file", "merges_file", "spm_file", "backend"),
    *("full_tokenizer_file", "is_local", "local_files_only", "_commit_hash", "use_fast", "from_slow"),
)
"""Keys that say where files were, or which code read them."""
_CARRIED = (
    *("additional_special_tokens", "extra_special_tokens", "bos_token", "eos_token", "model_specific_special_tokens"),
    *("model_max_length", "max_len", "padding_side", "truncation_side", "model_input_names", "padding", "truncation"),
    *("max_length", "stride", "truncation_strategy", "pad_to_multiple_of", "pad_token_type_id", "unk_id", "verbose"),
    *("clean_up_tokenization_spaces", "errors", "trim_offsets", "split_special_tokens", "chat_template", "legacy"),
    *("processor_class", "device_map", "response_schema", "image_token"),
)
"""Keys that leave the ids of a text as they are; an export has them again."""


def carried_settings(directory: epath.Path) -> dict[str, dict[str, Any]]:
    """Return what an export has again of tokenizer_config.json and special_tokens_map.json: file → its other keys."""
    files = [name for name in (CONFIG_FILE, SPECIALS_FILE) if (directory / name).exists()]
    texts = {name: read_object(inside(directory, name)) for name in files}
    own = (*_REFUSED, *_USED, *_PLACES)
    return {name: {key: value for key, value in text.items() if key not in own} for name, text in texts.items()}


def _check_settings(source: _Source) -> None:
    """Raise a UserError about a setting with which ids would differ from those here; warn of unknown ones."""
    for key, allowed in _REFUSED.items():
        if source.settings.get(key) not in allowed:
            raise UserError(
                f"{source.settings_file} has {key}={source.settings[key]!r:.60}, which is not read here; only "
                f"{allowed[-1]!r} is. Put a tokenizer.json there that does it, with "
                f'"tokenizer_class": "PreTrainedTokenizerFast" and without this key'
            )
    for key in ("do_lower_case", "do_basic_tokenize", "strip_accents", "tokenize_chinese_chars", "add_prefix_space"):
        if not isinstance(value := source.settings.get(key), bool | None):
            raise UserError(f"{source.settings_file} has {key}={value!r:.40} where true or false is expected")
    if unknown := sorted({*source.settings}.difference(_REFUSED, _USED, _PLACES, _CARRIED)):
        logging.warning("%s has %s, which nothing here reads", source.settings_file, first_lines(unknown, 5))


def _own(source: _Source, lowercase: bool | None) -> Vocabulary:
    """Return a vocabulary of a kind of our own that gives the ids of the files, or a tokenizer.json made for them.

    Raises:
      NotExpressible: no kind of our own gives the ids of the tokenizer.json.
    """
    kind = "" if source.fast is None else model_kind(source.fast["model"])
    if source.settings.get("kind") == JSON_KIND and source.fast is not None:
        raise NotExpressible(f"{source.files[JSON_FILE]} is a vocabulary by itself")
    for name in (".model", BYTE_LEVEL_FILE):
        if name in source.files and source.fast is not None and source.of_class not in _CLASSES[name]:
            raise NotExpressible(f"{source.of_class} does not read {source.files[name].name} as it is read here")
    ours = ".model" in source.files and "kind" in source.settings  # the tokenizer.json is made of it
    if BYTE_LEVEL_FILE in source.files or (kind == "BPE" and not ours):
        found = _byte_level(source)
    elif ".model" in source.files:
        found = sentence_pieces.read_sentence_pieces(source.files[".model"], lowercase)
        if source.settings.get("add_prefix_space") is False and source.of_class:
            raise UserError(f"{source.settings_file} has add_prefix_space=false, which is not read here")
    elif kind == "Unigram":
        assert source.fast is not None  # it has a kind
        found = _read_unigram(source.fast, source.files[JSON_FILE])
    elif WORDPIECE_FILE in source.files or kind == "WordPiece":
        return _wordpiece(source, lowercase)
    else:
        raise NotExpressible(f"{source.files[JSON_FILE]} has a model of type {kind}")
    names = [found.tokens[i] for i in found.special_ids]
    known = names if isinstance(found, ByteLevel) else found.tokens
    foreign = [each for each in _additions(source, found.ids) if each["content"] not in known]
    if not foreign:
        return found
    if source.fast is not None:
        raise NotExpressible(f"{source.directory} adds {foreign[0]['content']!r:.60} to its vocabulary")
    fast = complete_pipeline(found)
    assert fast is not None  # every own kind has one
    return JsonVocabulary(_with_additions(json.loads(fast.to_str()), foreign), names, source.directory)


def _run_as_it_is(source: _Source) -> JsonVocabulary:
    """Return tokenizer.json as `tokenizers` runs it, with the tokens that the files next to it add."""
    assert source.fast is not None  # or `_own` would have found a vocabulary, or refused it
    file = source.files[JSON_FILE]
    if dropout := source.fast["model"].get("dropout"):
        raise UserError(f"{file} splits words at random (dropout={dropout!r:.20}); set it to null")
    values = source.fast if source.as_it_is else _with_options(source.fast, source.settings)
    ids = _ids(values, file)
    values = _with_additions(values, _additions(source, ids))
    known = ids | {each["content"]: each["id"] for each in values["added_tokens"]}
    return _run(source, values, special_names(source.settings, known, values["model"], file), known, file)


def _run(
    source: _Source, values: dict[str, Any], names: list[str], ids: Mapping[str, int], file: epath.Path
) -> JsonVocabulary:
    """Return a vocabulary that puts class and separator tokens around a text, as models here are read.

    Raises:
      UserError: the class takes the file as it is, and that has none of them.
    """
    flags = [_object(source.settings.get(key)) for key in NAMES]  # such as whether a mask takes the space before it
    specials = [
        _added({**flag, "content": name, "special": True}, ids[name])
        for flag, name in zip(flags, names, strict=True)
        if name in ids
    ]
    values = _with_additions(values, specials)
    found = JsonVocabulary(values, names, file)
    if pair_form(values.get("post_processor"), found.special_ids, file) is not None:
        return found
    if source.takes_all:
        raise UserError(
            f"{file} puts no class and separator tokens around a text, and models here are read with them; if the "
            'model was trained with them, add them as its "post_processor"'
        )
    if model_kind(values["model"]) == "WordPiece":
        found.separators = 2 if source.of_class == _MPNET_CLASS else 1  # whatever the names
    form = json.loads(_post_processor(found).__getstate__())
    return JsonVocabulary(values | {"post_processor": form}, names, file)


def _ids(values: Mapping[str, Any], file: epath.Path) -> dict[str, int]:
    """Return the ids of a model's entries."""
    vocabulary = values["model"].get("vocab")
    if isinstance(vocabulary, list) and vocabulary and all(map(_is_entry, vocabulary)):
        return {piece: i for i, (piece, _) in enumerate(vocabulary)}
    ids = _object(vocabulary)
    if not ids or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids.values()):
        raise UserError(f"{file} has no vocabulary: model.vocab must map entries to ids, or list pieces with scores")
    return dict(ids)


def _with_options(values: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tokenizer.json with what the classes of `transformers` change in it as tokenizer_config.json asks."""
    normalizer, splitting = _object(values.get("normalizer")), _object(values.get("pre_tokenizer"))
    options = {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    }
    if normalizer.get("type") == "BertNormalizer":
        asked = {ours: settings[key] for key, ours in options.items() if key in settings}
        asked = {key: value for key, value in asked.items() if value is not None or key == "strip_accents"}
        values = values | {"normalizer": normalizer | asked}
    if splitting.get("type") == "ByteLevel" and isinstance(space := settings.get("add_prefix_space"), bool):
        values = values | {"pre_tokenizer": splitting | {"add_prefix_space": space}}
    return values


def _additions(source: _Source, ids: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the tokens that are found in a text before it is split, with their ids, as tokenizer.json lists them.

    A decoder in tokenizer_config.json replaces what older directories have in added_tokens.json and in lists of names.

    Raises:
      UserError: an entry is damaged, or gives an entry of the vocabulary another id.
    """
    named = source.settings
    found: dict[str, dict[str, Any]] = {}
    listed = [*_listed(named.get("additional_special_tokens")), *_listed(named.get("extra_special_tokens"))]
    listed = [each.get("content") if isinstance(each, dict) else each for each in listed]
    special = [*listed, *(named.get(key) for key in NAMES)]
    decoder = _object(named.get("added_tokens_decoder"))
    older = {} if decoder or ADDED_FILE not in source.files else read_object(source.files[ADDED_FILE])
    entries = [(i, _object(each)) for i, each in decoder.items()]
    entries += [(i, {"content": token, "special": token in special}) for token, i in older.items()]
    entries += [(each.get("id"), each) for each in map(_object, _listed((source.fast or {}).get("added_tokens")))]
    for said, entry in entries:
        token = entry.get("content")
        number = int(str(said)) if re.fullmatch(r"[0-9]{1,9}", str(said)) else None
        if not isinstance(token, str) or number is None:
            raise UserError(
                f"{source.directory} adds {entry!r:.80} with the id {said!r:.40} to its vocabulary; expected a text "
                "and an id"
            )
        if token in ids and ids[token] != number:
            raise UserError(
                f"{source.directory} adds {token!r:.60} to its vocabulary with the id {number}, but it is an entry "
                f"with the id {ids[token]}; delete the one the model was not trained with"
            )
        found[token] = _added(entry, number)
    following = max([-1, *ids.values(), *(each["id"] for each in found.values())]) + 1
    for token in dict.fromkeys(token for token in listed if isinstance(token, str) and token not in found):
        found[token] = _added({"content": token, "special": True}, ids.get(token, following))
        following += token not in ids
    return sorted(found.values(), key=lambda each: each["id"])


def _listed(tokens: Any) -> list[Any]:
    """Return tokens that are a list, or named by keys."""
    return list(tokens.values()) if isinstance(tokens, dict) else tokens if isinstance(tokens, list) else []


def _added(entry: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return an added token as tokenizer.json has it; what is left out is as in `transformers`."""
    special = bool(entry.get("special"))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special, "special": special}
    return {"id": number, "content": entry["content"], **{key: bool(entry.get(key, flags[key])) for key in flags}}


def _with_additions(values: dict[str, Any], additions: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a tokenizer.json that also has these added tokens."""
    there = {each["content"]: each for each in _listed(values.get("added_tokens"))}
    both = there | {each["content"]: there.get(each["content"], each) for each in additions}
    return values | {"added_tokens": sorted(both.values(), key=lambda each: each["id"])}


def _byte_level(source: _Source) -> ByteLevel:
    """Return the vocabulary of vocab.json with merges.txt, or of a tokenizer.json of a byte-level BPE."""
    fast = None
    if source.fast is not None:
        values = source.fast if source.as_it_is else _with_options(source.fast, source.settings)
        fast = _fast_byte_level(values, source.files[JSON_FILE])
    if (file := source.files.get(BYTE_LEVEL_FILE)) is None:
        assert fast is not None  # one of the two is there
        return fast
    slow = read_byte_level(file)
    if fast is not None and (fast.tokens, fast.merges) != (slow.tokens, slow.merges):
        raise UserError(
            f"{file} ({len(slow.tokens):,} entries) and {JSON_FILE} next to it ({len(fast.tokens):,}) hold different "
            "vocabularies or merges; delete the one the model was not trained with"
        )
    return fast or slow


def _fast_byte_level(values: dict[str, Any], file: epath.Path) -> ByteLevel:
    model, splitting = values["model"], _object(values.get("pre_tokenizer"))
    if splitting.get("type") != "ByteLevel" or not isinstance(model.get("vocab"), dict):
        raise NotExpressible(f"{file} does not split text into bytes as GPT-2 does")
    options = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
    if any(model.get(option) for option in options):
        raise NotExpressible(f"{file} merges pieces differently from GPT-2")
    if values.get("normalizer") is not None or splitting.get("use_regex") is False:
        raise NotExpressible(f"{file} changes or splits text differently from GPT-2")
    vocabulary, merges = dict(model["vocab"]), model.get("merges")
    for added in map(_object, values.get("added_tokens") or ()):
        if added.get("content") not in (*ROBERTA_NAMES, *SPECIAL_NAMES):
            raise NotExpressible(f"{file} finds {added.get('content')!r:.60} in a text before it is split")
        if added.get("content") in (ROBERTA_NAMES[4], SPECIAL_NAMES[4]) and not added.get("lstrip"):
            raise NotExpressible(f"{file} leaves the space before {added['content']} to the text")
        vocabulary.setdefault(added.get("content"), added.get("id"))
    if not isinstance(merges, list):
        raise UserError(f"{file} has no list of merges in its model")
    if not {*pre_tokenizers.ByteLevel.alphabet()} <= vocabulary.keys():
        raise NotExpressible(f"{file} cannot spell every byte")
    found = byte_level_of(vocabulary, merges, splitting.get("add_prefix_space") is True, file)
    form = pair_form(values.get("post_processor"), found.special_ids, file)
    if form not in (None, (found.separators, False)):
        raise NotExpressible(f"{file} puts {form.separators} separators between two texts")
    return found


def _wordpiece(source: _Source, lowercase: bool | None) -> Vocabulary:
    """Return the vocabulary of a vocab.txt or a tokenizer.json: our own kind if it is BERT's in every respect."""
    settings = source.settings if lowercase is None else source.settings | {"do_lower_case": lowercase}
    tokens, file = _entries(source), source.files.get(WORDPIECE_FILE) or source.files[JSON_FILE]
    ids = {token: i for i, token in enumerate(tokens)}
    if source.fast is None:
        values = _of_entries(tokens, source, settings)
    else:
        values = source.fast if source.as_it_is else _with_options(source.fast, settings)
    values = _with_additions(values, _additions(source, ids))
    known = ids | {each["content"]: each["id"] for each in values["added_tokens"]}
    names = special_names(settings, known, values["model"], file, dict(zip(NAMES, SPECIAL_NAMES, strict=True)))
    check_specials(known, names, file)
    lowers = _casing_of_bert(values, names)
    joined = pair_form(values.get("post_processor"), [known[name] for name in names], source.files.get(JSON_FILE, file))
    own = joined is None and (source.takes_all or source.of_class == _MPNET_CLASS)
    if lowers is None or joined not in (None, (1, False)) or own:
        return _run(source, values, names, known, file)
    said = None if source.fast is None and lowercase is None else lowers  # None: an error names the file that says it
    return WordPiece(tokens, casing(tokens, file, said))


def _entries(source: _Source) -> list[str]:
    """Return the entries of vocab.txt and the model of a tokenizer.json by their ids; "" where there is none.

    Blank lines at the end of a vocab.txt that the model has no rows for are left out.
    """
    fast, file = None, source.files.get(WORDPIECE_FILE)
    if source.fast is not None:
        fast = _in_order(source.fast["model"].get("vocab"), source.files[JSON_FILE])
    if file is None:
        return fast or []
    tokens, rows = parse_entries(read_contents(file), file), source.model.get("vocab_size")
    while tokens[-1] == "" and isinstance(rows, int) and len(tokens) > rows:
        tokens.pop()
    if fast is not None and {t: i for i, t in enumerate(tokens) if t} != {t: i for i, t in enumerate(fast) if t}:
        raise UserError(
            f"{file} ({len(tokens):,} entries) and {JSON_FILE} next to it ({len(fast):,}) hold different "
            f"vocabularies{_first_difference(tokens, fast)}; delete the one the model was not trained with"
        )
    return tokens


def _of_entries(tokens: list[str], source: _Source, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokenizer.json that `transformers` makes of a vocab.txt and these settings."""
    names = [settings.get(key) or usual for key, usual in zip(NAMES, SPECIAL_NAMES, strict=True)]
    names = [name.get("content") if isinstance(name, dict) else name for name in names]
    added = [entry.get("content") for entry in map(_object, _object(settings.get("added_tokens_decoder")).values())]
    kept = settings.get("never_split")
    if kept and not (isinstance(kept, list) and {*map(str, kept)} <= {*map(str, [*names, *added])}):
        raise UserError(
            f"{source.settings_file} has never_split={kept!r:.60}, words that are left whole; only special and added "
            "tokens are here. Make them added tokens"
        )
    lowercase = settings.get("do_lower_case")
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": settings.get("tokenize_chinese_chars") is not False,
        "strip_accents": settings.get("strip_accents"),
        "lowercase": not capitals(tokens) if lowercase is None else lowercase,
    }
    basic = settings.get("do_basic_tokenize") is not False
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": normalizer if basic else None,
        "pre_tokenizer": {"type": "BertPreTokenizer" if basic else "WhitespaceSplit"},
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        "model": {
            "type": "WordPiece",
            "unk_token": names[1],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {token: i for i, token in enumerate(tokens)},
        },
    }


def _casing_of_bert(values: Mapping[str, Any], names: list[str]) -> bool | None:
    """Return whether a WordPiece tokenizer.json that is BERT's, in its form or in ours, lowercases; None for others."""
    model, normalizer = values["model"], _object(values.get("normalizer"))
    sizes = (HUGGING_FACE_LENGTH, MAX_WORD_LENGTH)
    parts = model.get("continuing_subword_prefix", "##"), model.get("unk_token", "[UNK]")
    if parts != ("##", "[UNK]") or model.get("max_input_chars_per_word", HUGGING_FACE_LENGTH) not in sizes:
        return None
    if tuple(names) != SPECIAL_NAMES or {each["content"] for each in values["added_tokens"]} - {*names}:
        return None
    splitting = _object(values.get("pre_tokenizer"))
    if splitting == json.loads(basic_pre_tokenizer().__getstate__()):
        cases = [lower for lower in (True, False) if normalizer == json.loads(basic_normalizer(lower).__getstate__())]
        return cases[0] if cases else None
    lowercase = normalizer.get("lowercase")
    usual = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": lowercase}
    accents = normalizer.get("strip_accents")
    is_berts = usual == {key: value for key, value in normalizer.items() if key != "strip_accents"}
    if splitting != {"type": "BertPreTokenizer"} or not is_berts or accents not in (None, lowercase):
        return None
    return lowercase if isinstance(lowercase, bool) else None


def _in_order(vocabulary: Any, file: epath.Path) -> list[str]:
    """Return the entries of a model by their ids, each of which one entry has at most; "" for none.

    Raises:
      UserError: two entries have one id, or more ids have none than have one.
    """
    ids = _ids({"model": {"vocab": vocabulary}}, file)
    size = max(ids.values()) + 1
    counts = collections.Counter(ids.values())
    if min(ids.values()) < 0 or size > 2 * len(ids) or len(counts) < len(ids):
        repeated = next((i for i, count in counts.items() if count > 1), None)
        problem = f"ids up to {size - 1:,}" if repeated is None else f"the id {repeated} twice"
        raise UserError(f"{file} has a vocabulary of {len(ids):,} entries, but {problem}; fetch the file again")
    tokens = [""] * size
    for token, i in ids.items():
        tokens[i] = token
    return tokens


def _object(value: Any) -> dict[str, Any]:
    """Return a JSON object as it is, and an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def complete_pipeline(vocabulary: Vocabulary) -> tokenizers.Tokenizer | None:
    """Return the tokenizer.json of a kind of our own, with special tokens; None for a vocabulary that is one itself."""
    if (fast := vocabulary.pipeline()) is None:
        return None
    *others, mask = (vocabulary.tokens[i] for i in vocabulary.special_ids)
    fast.add_special_tokens([*others, AddedToken(mask, lstrip=vocabulary.mask_takes_space), *vocabulary.never_found()])
    fast.post_processor = _post_processor(vocabulary)
    return fast


def _post_processor(vocabulary: Vocabulary) -> processors.PostProcessor:
    """Return how one or two texts become a sequence, as tokenization/tokenizer.py does it."""
    _, _, cls_id, sep_id, _ = vocabulary.special_ids
    cls, sep = vocabulary.tokens[cls_id], vocabulary.tokens[sep_id]
    if isinstance(vocabulary, ByteLevel) and vocabulary.separators == 2:
        ends = (sep, sep_id), (cls, cls_id)
        return processors.RobertaProcessing(*ends, trim_offsets=True, add_prefix_space=vocabulary.spaced)
    second = 1 if vocabulary.separators == 1 else 0
    head = "" if vocabulary.class_last else f"{cls}:0 "
    tail = f" {cls}:{CLASS_SEGMENT}" if vocabulary.class_last else ""
    between = " ".join([f"{sep}:0"] * vocabulary.separators)
    return processors.TemplateProcessing(
        single=f"{head}$A:0 {sep}:0{tail}",
        pair=f"{head}$A:0 {between} $B:{second} {sep}:{second}{tail}",
        special_tokens=[(cls, cls_id), (sep, sep_id)],
    )


_STEPS = {"Precompiled", "Replace", "NFKD", "StripAccents", "Lowercase", "Strip", "NFC"}
"""Normalizers whose effect is in a model's own table, or in the cleaning before it."""
_TABLE, _NORMALIZER = 2, 3  # precompiled_charsmap of NormalizerSpec, normalizer_spec of ModelProto


def _read_unigram(values: dict[str, Any], file: epath.Path) -> sentence_pieces.SentencePieces:
    """Return the SentencePiece model that a tokenizer.json with a unigram model was made of."""
    model = values["model"]
    steps = list(_steps(values.get("normalizer"), "normalizers"))
    pieces = _pieces(values, model, file)
    family, cleaning = sentence_pieces.family_of(file, pieces)
    cleaning = dataclasses.replace(
        cleaning,
        lowercase=any(step.get("type") == "Lowercase" for step in steps),
        strips_accents=any(step.get("type") == "NFKD" for step in steps),
    )
    if family is sentence_pieces.OURS and cleaning:
        raise NotExpressible(f"{file} changes text before its own table does, as no family that it could belong to")
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
                f"{file} adds {added!r:.80} to its vocabulary, which is found in a text before it is split"
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
            f"{file} normalizes text with {seen:.80}, not with SentencePiece's own table (Precompiled) alone"
        )
    try:
        return base64.b64decode(found[0], validate=True)
    except (binascii.Error, ValueError):
        raise UserError(f"{file} is damaged: its precompiled_charsmap is not base64; fetch it again") from None


def _check_splitting(values: dict[str, Any], model: dict[str, Any], file: epath.Path) -> None:
    """Raise NotExpressible unless text is split at spaces, of which there is one in front."""
    for step in _steps(values.get("pre_tokenizer"), "pretokenizers"):
        usual = step.get("replacement") == WORD_START and step.get("prepend_scheme", "always") == "always"
        if step.get("type") != "WhitespaceSplit" and not (step.get("type") == "Metaspace" and usual):
            raise NotExpressible(f"{file} splits text with {step!r:.120}, which SentencePiece does not")
    if model.get("byte_fallback"):
        raise NotExpressible(f"{file} has pieces for bytes (byte_fallback), which models of this family do not")


def _first_difference(ours: list[str], theirs: list[str]) -> str:
    pairs = ((i, a, b) for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    return next((f", first at id {i}: {a!r} and {b!r}" for i, a, b in pairs), "")
