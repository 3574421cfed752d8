"""A tokenizer.json of Hugging Face, run by their library because no other kind of vocabulary can express it.

Such files normalize text in a way of their own, find added tokens in a text before it is split, or join a pair
differently, as the tokenizers of ModernBERT and those that transformers 5 saves for ALBERT, XLNet and DeBERTa v3 do.
"""

import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from etils import epath
from tokenizers import models

from bert_jax.errors import UserError
from bert_jax.files import read_object
from bert_jax.tokenization import vocabulary_file
from bert_jax.tokenization.abstract import Tokenizer, widened
from bert_jax.tokenization.byte_level import ROBERTA_NAMES, SPACES
from bert_jax.tokenization.sentence_pieces import WORD_START

NAMES = tuple(f"{name}_token" for name in ("pad", "unk", "cls", "sep", "mask"))
"""Keys of the special tokens in tokenizer_config.json, in the order of `Tokenizer.special_ids`."""


class NotExpressible(UserError):
    """A tokenizer.json gives ids that none of our own kinds of vocabulary gives; `JsonTokenizer` may read it."""


class PairForm(NamedTuple):
    """How two texts become a sequence."""

    separators: int
    class_last: bool


class JsonTokenizer(Tokenizer):
    """The pipeline of a tokenizer.json; special tokens in a text are not found, unlike its other added tokens."""

    kind = vocabulary_file.JSON_KIND

    def __init__(self, values: dict[str, Any], special_names: Sequence[str], file: epath.Path):
        """Make a tokenizer of the content of a tokenizer.json.

        Args:
          values: the parsed file.
          special_names: padding, unknown, class, separator and mask tokens.
          file: named in errors.

        Raises:
          UserError: the library cannot read it, ids are missing, a special token has no entry, or texts are joined as
            no model here reads them.
        """
        self._values = values | {"truncation": None, "padding": None}
        self._names = dict(zip(NAMES, special_names, strict=True))
        try:
            self._fast = tokenizers.Tokenizer.from_str(json.dumps(self._values))
        except Exception as error:  # the library raises nothing narrower
            raise UserError(f"{file} cannot be read by tokenizers: {' '.join(str(error).split()):.160}") from None
        ids = self._fast.get_vocab(with_added_tokens=True)
        size = max(ids.values(), default=-1) + 1
        tokens = [token for i in range(size) if (token := self._fast.id_to_token(i)) is not None]
        if not tokens or len(tokens) < size:
            raise UserError(f"{file} has {len(tokens):,} entries, but ids up to {size - 1:,}; each id needs an entry")
        if missing := [name for name in special_names if name not in ids]:
            raise UserError(f"{file} has no entry for the special tokens {', '.join(missing)}; complete it")
        content = json.dumps([self.kind, self._names, self._values], sort_keys=True)
        special_ids = tuple(ids[name] for name in special_names)
        fingerprint = hashlib.sha256(content.encode()).hexdigest()
        super().__init__(tokens, special_ids, _normalized(self._fast, "A") == "a", fingerprint)
        usual = PairForm(2 if special_names[2] == ROBERTA_NAMES[2] else 1, False)
        self.separators, self.class_last = pair_form(values.get("post_processor"), special_ids, file) or usual
        self._fast.encode_special_tokens = True
        self._special = set(special_ids) - {self.unk_id}
        self._added = {added["content"]: added for added in values.get("added_tokens") or ()}
        self._bytes = "ByteLevel" in json.dumps(values.get("pre_tokenizer"))
        self._prefix: str = values["model"].get("continuing_subword_prefix") or ""

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [self._plain(each.ids) for each in self._fast.encode_batch_fast(texts, add_special_tokens=False)]

    def _plain(self, ids: list[int]) -> list[int]:
        """Return the ids without special tokens, which a unigram model may find, as it finds its other pieces."""
        return ids if self._special.isdisjoint(ids) else [self.unk_id if i in self._special else i for i in ids]

    def encode_words(self, words: list[str]) -> list[list[int]]:
        return self.encode_batch([" " + word for word in words] if self._bytes else words)

    def encode_flat(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        # The sentences of a corpus follow each other, so each is read after a space.
        rows = self.encode_words(texts)
        lengths = np.array([len(row) for row in rows], np.int64)
        return np.fromiter(itertools.chain.from_iterable(rows), np.int32, lengths.sum()), lengths

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = self._fast.encode(text, add_special_tokens=False)
        offsets = [_without_space(text, start, end) for start, end in encoding.offsets]
        return self._plain(encoding.ids), widened(text, offsets)

    def encode_masked(self, text: str) -> list[int]:
        mask = self.tokens[self.mask_id]
        if not self._added.get(mask, {}).get("lstrip"):
            return super().encode_masked(text)
        *before, last = text.split(mask)
        return super().encode_masked(mask.join([*(part.rstrip() for part in before), last]))  # it takes the space

    def decode(self, ids: Iterable[int]) -> str:
        parts = []
        for special, run in itertools.groupby(map(int, ids), key=lambda i: i in self.special_ids):
            pieces = list(run)
            parts += [self.tokens[i] for i in pieces] if special else [self._fast.decode(pieces).strip()]
        return " ".join(parts)

    def continues_word(self) -> np.ndarray:
        if self._prefix:
            continues = np.array([token.startswith(self._prefix) for token in self.tokens])
        else:
            continues = np.array([not token.startswith((*SPACES, WORD_START)) for token in self.tokens])
        continues[[i for i, token in enumerate(self.tokens) if token in self._added or i in self.special_ids]] = False
        return continues

    def spell(self, token: str) -> list[int]:
        return [piece.id for piece in self._fast.model.tokenize(token)] or [self.unk_id]

    def options(self) -> dict[str, bool | str]:
        return dict(self._names)

    def _files(self) -> dict[str, bytes]:
        return {vocabulary_file.JSON_FILE: (json.dumps(self._values, ensure_ascii=False) + "\n").encode()}

    def _encode_glued(self, text: str) -> list[int]:
        ids = self.encode(text)
        if not ids or not self.tokens[ids[0]].startswith(WORD_START):
            return ids
        inner = self.tokens[ids[0]].removeprefix(WORD_START)
        glued = self._fast.token_to_id(inner)
        return ids[1:] if not inner else ids if glued is None else [glued, *ids[1:]]


def pair_form(post_processor: Any, special_ids: Sequence[int], file: epath.Path) -> PairForm | None:
    """Return how the post-processor of a tokenizer.json joins two texts; None if it adds no special tokens.

    It is asked for two texts of one word, without the vocabulary, which takes long to load.

    Raises:
      UserError: no model here reads texts that are joined so; `file` is named.
    """
    _, _, cls, sep, _ = special_ids
    fast = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    bare = json.loads(fast.to_str()) | {"post_processor": post_processor}
    encoding = tokenizers.Tokenizer.from_str(json.dumps(bare)).encode("a", "a")
    places = {text: [i for i, owner in enumerate(encoding.sequence_ids) if owner == text] for text in (None, 0, 1)}
    if not places[None]:
        return None
    specials = {i: encoding.ids[i] for i in places[None]}
    between = [specials.pop(i) for i in places[None] if places[0] and places[1] and places[0][-1] < i < places[1][0]]
    around = list(specials.values())
    if between not in ([sep], [sep, sep]) or around not in ([cls, sep], [sep, cls]):
        raise UserError(
            f"{file} joins two texts as {' '.join(encoding.tokens)!r:.120}; expected the class, a text, one or two "
            "separators, a text and a separator, or the class at the end"
        )
    return PairForm(len(between), around == [sep, cls])


def load_json_tokenizer(file: epath.Path, names: dict[str, Any] | None = None) -> JsonTokenizer:
    """Read a tokenizer.json, and the names of its special tokens from `names` or tokenizer_config.json beside it.

    Raises:
      UserError: a file is damaged, or a special token has no name.
    """
    config = file.parent / vocabulary_file.CONFIG_FILE
    given = names or (read_object(config) if config.exists() else {})
    special = [found.get("content") if isinstance(found := given.get(key), dict) else found for key in NAMES]
    if unnamed := [key for key, name in zip(NAMES, special, strict=True) if not isinstance(name, str)]:
        raise UserError(f"{config} does not name {', '.join(unnamed)}; add the names of these special tokens")
    values = read_object(file)
    if not isinstance(values.get("model"), dict):
        raise UserError(f"{file} is damaged: it has no model")
    return JsonTokenizer(values, [str(name) for name in special], file)


def _normalized(fast: tokenizers.Tokenizer, text: str) -> str:
    return text if fast.normalizer is None else fast.normalizer.normalize_str(text).strip(WORD_START + " ")


def _without_space(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the characters of a piece without the white space around them; the end of a piece of white space."""
    inner = text[start:end].strip()
    first = start + text[start:end].index(inner) if inner else end
    return first, first + len(inner)
