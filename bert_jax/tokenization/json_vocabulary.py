"""A tokenizer.json of Hugging Face, run by their library because no other kind of vocabulary can express it.

Such files normalize or split text in their own way, find added tokens in a text before it is split, or join a pair
differently, as the tokenizers of ModernBERT and those that transformers 5 saves for ALBERT, XLNet and DeBERTa v3 do.
"""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tokenizers
from etils import epath
from tokenizers import models

from bert_jax.errors import UserError
from bert_jax.tokenization.byte_level import ROBERTA_NAMES, SPACES
from bert_jax.tokenization.vocabulary import JSON_FILE, JSON_KIND, SPECIAL_NAMES, WORD_START, Vocabulary

NAMES = tuple(f"{name}_token" for name in ("pad", "unk", "cls", "sep", "mask"))
"""Keys of the special tokens in tokenizer_config.json, in the order of `Vocabulary.special_ids`."""
_USUAL_NAMES = (
    SPECIAL_NAMES,
    ROBERTA_NAMES,
    ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    ("<pad>", "<unk>", "<cls>", "<sep>", "<mask>"),
)
"""Names of BERT, RoBERTa, ALBERT and XLNet, for a tokenizer.json that comes without tokenizer_config.json."""
_GAP = "entry {} is missing"
"""What the library is given where an id has no entry, or it would give the id to an added token; no text has it."""


class NotExpressible(Exception):
    """A tokenizer.json gives ids that no other kind of vocabulary gives, so `JsonVocabulary` has to read it."""


class PairForm(NamedTuple):
    """How two texts become a sequence."""

    separators: int
    class_last: bool


@dataclasses.dataclass(eq=False, repr=False)
class JsonVocabulary(Vocabulary):
    """The pipeline of a tokenizer.json; the five special tokens are not found in a text, unlike all other added ones.

    Attributes:
      values: the parsed file.
      special_names: padding, unknown, class, separator and mask tokens.
      file: named in errors.

    Raises:
      UserError: the library cannot read it, most ids are missing, a special token has no entry, or texts are joined as
        no model here reads them.
    """

    values: dict[str, Any]
    special_names: Sequence[str]
    file: epath.Path = epath.Path(JSON_FILE)

    kind = JSON_KIND
    finds_specials = True
    widens = True

    def __post_init__(self):
        self.values = self.values | {"truncation": None, "padding": None}
        gaps = _gaps(self.values, self.file)
        self.fast = fast = self._fast(gaps)
        self.tokens, self.special_ids = self._entries(fast, gaps)
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
        model = self.values["model"]
        self.continuing = model.get("continuing_subword_prefix") or ""
        self.word_starts = ("",) if model_kind(model) == "WordLevel" else (*SPACES, WORD_START)
        self.cut_at_spaces = _splits_at_spaces(self.values) and not {*added}.difference(self.special_names)
        self._marks_spaces = _first_part(fast, " a") != _first_part(fast, "a") and _first_part(fast, " a").startswith(
            (*SPACES, WORD_START)
        )

    def _fast(self, gaps: set[int]) -> tokenizers.Tokenizer:
        """Return what reads a text, in which the library finds all added tokens but the five special ones."""
        model, added = self.values["model"], self.values.get("added_tokens") or ()
        if gaps:
            model = model | {"vocab": model["vocab"] | {_GAP.format(i): i for i in gaps}}
        if isinstance(added, list) and all(isinstance(each, dict) for each in added):
            added = [each | {"special": each.get("content") in self.special_names} for each in added]
        with _read_by_library(self.file):
            fast = tokenizers.Tokenizer.from_str(json.dumps(self.values | {"model": model, "added_tokens": added}))
        fast.encode_special_tokens = True
        return fast

    def _entries(self, fast: tokenizers.Tokenizer, gaps: set[int]) -> tuple[list[str], tuple[int, ...]]:
        """Return the tokens in the order of their ids, and the ids of the special ones."""
        ids = fast.get_vocab(with_added_tokens=True)
        size = max(ids.values(), default=-1) + 1
        if not ids or size > len(ids):
            raise UserError(f"{self.file} has {len(ids):,} entries, but ids up to {size - 1:,}; each id needs an entry")
        by_id = {i: token for token, i in ids.items() if i not in gaps}  # id_to_token changes the case of added ones
        tokens = [by_id.get(i, "") for i in range(size)]
        if missing := [name for name in self.special_names if name not in ids]:
            raise UserError(f"{self.file} has no entry for the special tokens {', '.join(missing)}; complete it")
        for each in self.values.get("added_tokens") or ():
            if (place := ids.get(each["content"])) != each["id"]:
                raise UserError(
                    f"{self.file} gives its added token {each['content']!r:.60} the id {each['id']}, but its place is "
                    f"{place}; fetch the file again"
                )
        return tokens, tuple(ids[name] for name in self.special_names)

    def after_space(self, text: str) -> str:
        return " " + text if self._marks_spaces else text

    def files(self) -> dict[str, bytes]:
        return {JSON_FILE: (json.dumps(self.values, ensure_ascii=False) + "\n").encode()}

    def options(self) -> dict[str, bool | str]:
        return dict(zip(NAMES, self.special_names, strict=True))


@contextlib.contextmanager
def _read_by_library(file: epath.Path) -> Iterator[None]:
    """Raise a UserError that names the file for whatever the library raises inside."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # Exception itself, and for a panic of its Rust what is not even that
        raise UserError(f"{file} cannot be read by tokenizers: {' '.join(str(error).split()):.160}") from None


def model_kind(model: Mapping[str, Any]) -> str:
    """Return the type of a tokenizer.json's model, which older files leave to its other keys."""
    if isinstance(kind := model.get("type"), str):
        return kind
    if "max_input_chars_per_word" in model:
        return "WordPiece"
    if "merges" in model:
        return "BPE"
    return "Unigram" if isinstance(model.get("vocab"), list) else "WordLevel"


def _gaps(values: Mapping[str, Any], file: epath.Path) -> set[int]:
    """Return the ids below the largest of a model that have no entry, as where a vocab.txt has an entry twice.

    Raises:
      UserError: they are more than those with one.
    """
    vocabulary = values["model"].get("vocab")
    if not isinstance(vocabulary, dict) or not all(isinstance(i, int) for i in vocabulary.values()):
        return set()
    size = max(vocabulary.values(), default=-1) + 1
    if size > 2 * len(vocabulary):
        raise UserError(f"{file} has {len(vocabulary):,} entries, but ids up to {size - 1:,}; fetch the file again")
    return {*range(size)}.difference(vocabulary.values())


def _splits_at_spaces(values: Mapping[str, Any]) -> bool:
    """Return whether white space is known to separate the words of a text, and nothing looks beyond it."""
    normalizer, splitting = values.get("normalizer"), values.get("pre_tokenizer")
    known = {"type": "BertPreTokenizer"}, {"type": "WhitespaceSplit"}
    return splitting in known and (normalizer is None or normalizer.get("type") == "BertNormalizer")


def _first_part(fast: tokenizers.Tokenizer, text: str) -> str:
    """Return the first part of a text, normalized, that the model of a pipeline is given."""
    normal = text if fast.normalizer is None else fast.normalizer.normalize_str(text)
    if fast.pre_tokenizer is None:
        return normal
    parts = fast.pre_tokenizer.pre_tokenize_str(normal)
    return parts[0][0] if parts else ""


def pair_form(post_processor: Any, special_ids: Sequence[int], file: epath.Path) -> PairForm | None:
    """Return how the post-processor of a tokenizer.json joins two texts; None if it adds no special tokens.

    It is asked for two texts of one word, without the vocabulary, which takes long to load.

    Raises:
      UserError: no model here reads texts that are joined so; `file` is named.
    """
    _, _, cls, sep, _ = special_ids
    fast = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    bare = json.loads(fast.to_str()) | {"post_processor": post_processor}
    with _read_by_library(file):
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


def special_names(
    named: Mapping[str, Any],
    entries: Container[str],
    model: Mapping[str, Any],
    file: epath.Path,
    otherwise: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the names of padding, unknown, class, separator and mask tokens.

    `named` says them as tokenizer_config.json does. What it leaves out is as in the first of BERT, RoBERTa, ALBERT and
    XLNet whose names are `entries`; or else as `otherwise` says, the first and last token of a text are class and
    separator, and where a model has no unknown word, its token is the padding.

    Raises:
      UserError: nothing says one of them; `file` is named.
    """
    given = {key: value.get("content") if isinstance(value, dict) else value for key, value in named.items()}
    fitting = [
        usual
        for usual in _USUAL_NAMES
        if all(name in entries and given.get(key) in (None, name) for key, name in zip(NAMES, usual, strict=True))
    ]
    if fitting:
        return list(fitting[0])
    rest = {"cls_token": "bos_token", "sep_token": "eos_token"}
    found = {key: given.get(key) or (otherwise or given).get(key) or given.get(rest.get(key, key)) for key in NAMES}
    found["unk_token"] = found["unk_token"] or model.get("unk_token") or found["pad_token"]
    if unnamed := [key for key, name in found.items() if not isinstance(name, str)]:
        raise UserError(f"{file} does not name {', '.join(unnamed)}; add the names of these special tokens")
    return [str(name) for name in found.values()]
