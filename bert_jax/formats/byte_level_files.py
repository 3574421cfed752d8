"""Byte-level BPE in the files of `transformers`: vocab.json with merges.txt, and tokenizer.json."""

from typing import Any

import tokenizers
from etils import epath
from tokenizers import AddedToken, processors

from bert_jax.errors import UserError
from bert_jax.files import read_object
from bert_jax.formats.safetensors_files import inside
from bert_jax.tokenization import vocabulary_file
from bert_jax.tokenization.byte_level import ROBERTA_NAMES, ByteLevelTokenizer, byte_level_tokenizer, fast_tokenizer
from bert_jax.tokenization.json_tokenizer import NotExpressible, pair_form
from bert_jax.tokenization.tokenizer import load_tokenizer
from bert_jax.tokenization.vocabulary_file import SPECIAL_NAMES


def read_byte_level(directory: epath.Path) -> ByteLevelTokenizer | None:
    """Return the tokenizer of a directory with vocab.json or a tokenizer.json of a byte-level BPE, else None.

    Raises:
      UserError: a file is damaged, the two hold different vocabularies, or text is split or changed in another way.
    """
    slow_file, fast_file = directory / vocabulary_file.BYTE_LEVEL_FILE, directory / vocabulary_file.JSON_FILE
    fast = _read_fast(inside(directory, fast_file.name)) if fast_file.exists() else None
    if not slow_file.exists():
        return fast
    slow = load_tokenizer(inside(directory, slow_file.name))
    assert isinstance(slow, ByteLevelTokenizer)
    if fast is not None and (fast.tokens, fast.merges) != (slow.tokens, slow.merges):
        raise UserError(
            f"{slow_file} ({slow.vocab_size:,} entries) and {fast_file.name} next to it "
            f"({fast.vocab_size:,}) hold different vocabularies or merges; delete the one the model was not "
            "trained with"
        )
    return fast or slow


def _read_fast(file: epath.Path) -> ByteLevelTokenizer | None:
    values = read_object(file)
    model, splitting = _part(values, "model"), _part(values, "pre_tokenizer")
    if splitting.get("type") != "ByteLevel" or not isinstance(model.get("vocab"), dict):
        return None
    if values.get("normalizer") is not None or splitting.get("use_regex") is False:
        raise NotExpressible(
            f"{file} changes or splits text differently from GPT-2 (normalizer "
            f"{_part(values, 'normalizer')!r:.60}); only plain byte-level BPE can be read"
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
    tokenizer = byte_level_tokenizer(vocabulary, merges, splitting.get("add_prefix_space") is True, file)
    form = pair_form(values.get("post_processor"), tokenizer.special_ids, file)
    if form not in (None, (tokenizer.separators, False)):
        raise NotExpressible(f"{file} puts {form.separators} separators between two texts")
    return tokenizer


def _part(values: dict[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name)
    return found if isinstance(found, dict) else {}


def fast_byte_level(tokenizer: ByteLevelTokenizer) -> tokenizers.Tokenizer:
    """Return what a tokenizer.json holds, special tokens included; the mask takes the space before it, as RoBERTa's."""
    fast = fast_tokenizer({token: i for i, token in enumerate(tokenizer.tokens)}, tokenizer.merges, tokenizer.spaced)
    names = [tokenizer.tokens[i] for i in tokenizer.special_ids]
    fast.add_special_tokens([*names[:-1], AddedToken(names[-1], lstrip=True)])
    if tokenizer.separators == 2:
        ends = ((names[3], tokenizer.sep_id), (names[2], tokenizer.cls_id))
        fast.post_processor = processors.RobertaProcessing(*ends, trim_offsets=True, add_prefix_space=tokenizer.spaced)
    return fast
