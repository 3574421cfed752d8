"""The vocabulary of ModernBERT: a byte-level BPE of composed text (NFC), in a tokenizer.json."""

import json
from collections.abc import Iterable

from etils import epath
from tokenizers import AddedToken, normalizers, processors

from bert_jax.tokenization.byte_level import fast_tokenizer, learn_merges
from bert_jax.tokenization.json_tokenizer import JsonTokenizer
from bert_jax.tokenization.vocabulary_file import JSON_FILE, SPECIAL_NAMES

SPECIALS = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
"""ModernBERT's special tokens in the order of their ids, which follow those of the pieces."""
MULTIPLE = 64
"""The published vocabulary is filled up to a multiple of it, with tokens that no text has been trained with."""


def learn_modernbert(words: Iterable[str], size: int) -> JsonTokenizer:
    """Learn `size` entries from an iterator over words, and add [unusedN] up to the next multiple of 64."""
    composed = normalizers.NFC()
    pieces, merges = learn_merges(map(composed.normalize_str, words), size - len(SPECIALS))
    fast = fast_tokenizer({piece: i for i, piece in enumerate(pieces)}, merges, spaced=False)
    fast.normalizer = composed
    fast.add_special_tokens([*SPECIALS[:-1], AddedToken(SPECIALS[-1], lstrip=True)])
    fast.add_tokens([f"[unused{i}]" for i in range(-fast.get_vocab_size() % MULTIPLE)])
    fast.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, fast.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return JsonTokenizer(json.loads(fast.to_str()), SPECIAL_NAMES, epath.Path(JSON_FILE))
