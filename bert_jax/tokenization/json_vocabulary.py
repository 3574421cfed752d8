"""A tokenizer.json of Hugging Face, run by their library because no other kind of vocabulary can express it.

Such files normalize text in their own way, find added tokens in a text before it is split, or join a pair
differently, as the tokenizers of ModernBERT and those that transformers 5 saves for ALBERT, XLNet and DeBERTa v3 do.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import tokenizers
from etils import epath
from tokenizers import models

from bert_jax.errors import UserError
from bert_jax.files import read_object
from bert_jax.tokenization.byte_level import ROBERTA_NAMES, SPACES
from bert_jax.tokenization.vocabulary import CONFIG_FILE, JSON_FILE, JSON_KIND, WORD_START, Vocabulary

NAMES = tuple(f"{name}_token" for name in ("pad", "unk", "cls", "sep", "mask"))
"""Keys of the special tokens in tokenizer_config.json, in the order of `Vocabulary.special_ids`."""


class NotExpressible(UserError):
    """A tokenizer.json gives ids that no other kind of vocabulary gives; `JsonVocabulary` may read it."""


class PairForm(NamedTuple):
    """How two texts become a sequence."""

    separators: int
    class_last: bool


@dataclasses.dataclass(eq=False, repr=False)
class JsonVocabulary(Vocabulary):
    """The pipeline of a tokenizer.json; special tokens in a text are not found, unlike its other added tokens.

    Attributes:
      values: the parsed file.
      special_names: padding, unknown, class, separator and mask tokens.
      file: named in errors.

    Raises:
      UserError: the library cannot read it, ids are missing, a special token has no entry, or texts are joined as no
        model here reads them.
    """

    values: dict[str, Any]
    special_names: Sequence[str]
    file: epath.Path = epath.Path(JSON_FILE)

    kind = JSON_KIND
    finds_specials = True
    widens = True

    def __post_init__(self):
        self.values = self.values | {"truncation": None, "padding": None}
        try:
            self.fast = fast = tokenizers.Tokenizer.from_str(json.dumps(self.values))
        except Exception as error:  # the library raises nothing narrower
            raise UserError(f"{self.file} cannot be read by tokenizers: {' '.join(str(error).split()):.160}") from None
        fast.encode_special_tokens = True
        self.tokens, self.special_ids = self._entries(fast)
        content = json.dumps([self.kind, self.options(), self.values], sort_keys=True)
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()
        normal = "A" if fast.normalizer is None else fast.normalizer.normalize_str("A")
        self.lowercase = normal.strip(WORD_START + " ") == "a"
        usual = PairForm(2 if self.special_names[2] == ROBERTA_NAMES[2] else 1, False)
        form = pair_form(self.values.get("post_processor"), self.special_ids, self.file) or usual
        self.separators, self.class_last = form
        added = {each["content"]: each for each in self.values.get("added_tokens") or ()}
        self.added_ids = [i for i, token in enumerate(self.tokens) if token in added]
        self.mask_takes_space = bool(added.get(self.special_names[4], {}).get("lstrip"))
        self.continuing = self.values["model"].get("continuing_subword_prefix") or ""
        self.word_starts = (*SPACES, WORD_START)
        self._of_bytes = "ByteLevel" in json.dumps(self.values.get("pre_tokenizer"))

    def _entries(self, fast: tokenizers.Tokenizer) -> tuple[list[str], tuple[int, ...]]:
        """Return the tokens in the order of their ids, and the ids of the special ones."""
        ids = fast.get_vocab(with_added_tokens=True)
        size = max(ids.values(), default=-1) + 1
        tokens = [token for i in range(size) if (token := fast.id_to_token(i)) is not None]
        if not tokens or len(tokens) < size:
            raise UserError(
                f"{self.file} has {len(tokens):,} entries, but ids up to {size - 1:,}; each id needs an entry"
            )
        if missing := [name for name in self.special_names if name not in ids]:
            raise UserError(f"{self.file} has no entry for the special tokens {', '.join(missing)}; complete it")
        return tokens, tuple(ids[name] for name in self.special_names)

    def after_space(self, text: str) -> str:
        return " " + text if self._of_bytes else text

    def files(self) -> dict[str, bytes]:
        return {JSON_FILE: (json.dumps(self.values, ensure_ascii=False) + "\n").encode()}

    def options(self) -> dict[str, bool | str]:
        return dict(zip(NAMES, self.special_names, strict=True))


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


def read_json_vocabulary(file: epath.Path, names: dict[str, Any] | None = None) -> JsonVocabulary:
    """Read a tokenizer.json, and the names of its special tokens from `names` or the tokenizer_config.json next to it.

    Raises:
      UserError: a file is damaged, or a special token has no name.
    """
    config = file.parent / CONFIG_FILE
    given = names or (read_object(config) if config.exists() else {})
    special = [found.get("content") if isinstance(found := given.get(key), dict) else found for key in NAMES]
    if unnamed := [key for key, name in zip(NAMES, special, strict=True) if not isinstance(name, str)]:
        raise UserError(f"{config} does not name {', '.join(unnamed)}; add the names of these special tokens")
    values = read_object(file)
    if not isinstance(values.get("model"), dict):
        raise UserError(f"{file} is damaged: it has no model")
    return JsonVocabulary(values, [str(name) for name in special], file)
