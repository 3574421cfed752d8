"""Text to ids and back: BERT's WordPiece, SentencePiece and byte-level BPE behind one interface.

WordPiece follows Google's BasicTokenizer and WordpieceTokenizer character for character. Hugging Face's ready-made
BertNormalizer does not (it drops private-use characters, leaves 256 ideographs of extension E unspaced, lowercases a
final sigma to σ, and only knows the punctuation of Unicode 8), so the same steps are assembled from its parts. The only
remaining difference is the version of Unicode: Google's code takes the category of a character from the running Python,
this one from the table in `tokenizers`, which is the same on every Python.
"""

import hashlib
import json
import os
from collections.abc import Iterable

import numpy as np
import tokenizers
from etils import epath
from tokenizers import models, normalizers, pre_tokenizers

from bert_jax.errors import UserError
from bert_jax.tokenization import vocabulary_file
from bert_jax.tokenization.abstract import SEPARATOR, Tokenizer, WordIds
from bert_jax.tokenization.byte_level import load_byte_level
from bert_jax.tokenization.json_tokenizer import load_json_tokenizer
from bert_jax.tokenization.sentence_pieces import load_sentence_pieces
from bert_jax.tokenization.vocabulary_file import SPECIAL_NAMES

MAX_WORD_LENGTH = 200  # characters; a longer word is [UNK] (Google's value, Hugging Face's default is 100)

_CONTROL = r"[[\p{Cc}\p{Cf}\x{FFFD}]&&[^\t\n\r]]"
_FINAL_SIGMA = r"\p{Cased}\p{Case_Ignorable}*\KΣ(?!\p{Case_Ignorable}*\p{Cased})"
_IDEOGRAPHS = (
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}"
    r"\x{2B820}-\x{2CEAF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}"
)


def final_sigma() -> normalizers.Normalizer:
    """Return a normalizer that lowercases the sigmas that Python lowercases to ς, so that others become σ."""
    return normalizers.Replace(tokenizers.Regex(_FINAL_SIGMA), "ς")


def basic_normalizer(lowercase: bool) -> normalizers.Normalizer:
    """Return a normalizer that drops control characters and U+FFFD.

    If `lowercase`, it also lowercases, decomposes (NFD) and strips accents.
    """
    steps = [normalizers.Replace(tokenizers.Regex(_CONTROL), "")]
    if lowercase:
        steps += [
            final_sigma(),
            normalizers.Lowercase(),
            normalizers.NFD(),
            normalizers.Replace(tokenizers.Regex(r"\p{Mn}"), ""),
        ]
    return normalizers.Sequence(steps)


def basic_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Return a pre-tokenizer that splits at whitespace and isolates ideographs, punctuation and ASCII symbols."""
    alone = tokenizers.Regex(rf"[\p{{P}}$+<=>^`|~{_IDEOGRAPHS}]")
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(alone, "isolated")])


class WordPieceTokenizer(Tokenizer):
    """Google's basic tokenization, then the longest known piece first; a word with an unknown part is [UNK]."""

    kind = "wordpiece"

    def __init__(self, tokens: list[str], lowercase: bool):
        self._ids = ids = {token: i for i, token in enumerate(tokens)}
        content = json.dumps([self.kind, lowercase, MAX_WORD_LENGTH, tokens])
        super().__init__(
            tokens, tuple(ids[name] for name in SPECIAL_NAMES), lowercase, hashlib.sha256(content.encode()).hexdigest()
        )
        self._encoder = tokenizers.Tokenizer(
            models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_LENGTH)
        )
        self._encoder.normalizer = basic_normalizer(lowercase)
        self._encoder.pre_tokenizer = basic_pre_tokenizer()

        self._word_ids = WordIds(self.encode_batch, ids.get(SEPARATOR))

    def encode_flat(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        return self._word_ids(texts)

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._encoder.encode_batch_fast(texts, add_special_tokens=False)]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = self._encoder.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self.tokens[i] for i in ids).replace(" ##", "")

    def continues_word(self) -> np.ndarray:
        return np.array([token.startswith("##") for token in self.tokens])

    def spell(self, token: str) -> list[int]:
        if not token.startswith("##") or token == "##":
            return self.encode(token) or [self.unk_id]
        ids, start = [], 2
        while start < len(token):
            pieces = (("##" + token[start:end], end) for end in range(len(token), start, -1))
            piece, start = next(((piece, end) for piece, end in pieces if piece in self._ids), (None, start))
            if piece is None:
                return [self.unk_id]
            ids.append(self._ids[piece])
        return ids

    def _files(self) -> dict[str, bytes]:
        return {vocabulary_file.WORDPIECE_FILE: vocabulary_file.serialize(self.tokens)}

    def _encode_glued(self, text: str) -> list[int]:
        return self.encode(text)


def load_tokenizer(path: str | os.PathLike[str], lowercase: bool | None = None) -> Tokenizer:
    """Read a vocab.txt, a SentencePiece .model, a vocab.json (of byte-level BPE, with its merges.txt beside it), or a
    directory that holds one of them (local or gs://).

    `lowercase` None: as the tokenizer_config.json beside vocab.txt says, else uncased unless an entry has a capital
    letter.

    Raises:
      UserError: the vocabulary cannot be used or does not fit `lowercase`.
    """
    file = vocabulary_file.find(epath.Path(path))
    if file.name == vocabulary_file.JSON_FILE:
        if vocabulary_file.is_json_vocabulary(file):
            return load_json_tokenizer(file)
        raise UserError(
            f"{file} is a file of transformers; `bert-jax convert {file.parent} NEW --to=bert_jax` writes the "
            "vocabulary of the model to NEW/tokenizer"
        )
    if file.suffix == ".json":
        return load_byte_level(file, lowercase)
    contents = file.read_bytes()
    if file.suffix == ".model":
        return load_sentence_pieces(file, contents, lowercase)
    tokens = vocabulary_file.parse(contents, file)
    return WordPieceTokenizer(tokens, vocabulary_file.casing(tokens, file, lowercase))
