"""SentencePiece vocabularies, with the ids, the special tokens and the cleaning of the models that use them.

Each family of models has its own special tokens and ids of pieces. The ids are made the model's own by writing its
pieces in their order, so that nothing else has to know the difference. ALBERT and XLNet also clean a text before
SentencePiece sees it; each result keeps the characters that it came from.

The file of a model is a protocol buffer of a few fields. They are parsed here because the generated classes would
bind us to one version of the library.
"""

import bisect
import collections
import dataclasses
import functools
import hashlib
import itertools
import json
import re
import struct
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import sentencepiece
import tokenizers
from etils import epath
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bert_jax.errors import UserError
from bert_jax.files import read_contents, read_object
from bert_jax.tokenization.vocabulary import (
    CONFIG_FILE,
    SENTENCEPIECE_FILE,
    SPECIAL_NAMES,
    WORD_START,
    Vocabulary,
    widened,
)
from bert_jax.tokenization.wordpiece import final_sigma

_SPACES, _QUOTES = re.compile(r"\s+"), re.compile("``|''")


@dataclasses.dataclass(frozen=True)
class Cleaning:
    """Steps in this order, as in `preprocess_text` of the published code and `transformers`.

    Attributes:
      tidies: whether runs of white space become one space, none is left at the ends, and `` and '' become ".
      strips_accents: whether text is decomposed (NFKD) and combining characters are dropped.
      lowercase: whether text is lowercased.
    """

    tidies: bool = False
    strips_accents: bool = False
    lowercase: bool = False

    def __bool__(self) -> bool:
        return self.tidies or self.strips_accents or self.lowercase

    def __call__(self, text: str) -> str:
        """Return the cleaned text."""
        if self.tidies:
            text = _QUOTES.sub('"', _SPACES.sub(" ", text.strip()))
        if self.strips_accents and not text.isascii():
            text = _without_accents(text)
        return text.lower() if self.lowercase else text

    def with_origins(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """Return the cleaned text and, for each of its characters, the (start, end) in `text` that it came from."""
        parts = [(character, i, i + 1) for i, character in enumerate(text)]
        if self.tidies:
            parts = _replaced(_replaced(_stripped(parts), _SPACES, " "), _QUOTES, '"')
        if self.strips_accents:
            parts = [(base, *at) for character, *at in parts for base in _without_accents(character)]
        if self.lowercase:
            lowered = iter("".join(character for character, *_ in parts).lower())  # Σ depends on its neighbours
            parts = [(next(lowered), *at) for character, *at in parts for _ in character.lower()]
        return "".join(character for character, *_ in parts), [(start, end) for _, start, end in parts]


def _without_accents(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))


def _stripped(parts: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    text = "".join(character for character, *_ in parts)
    return parts[len(text) - len(text.lstrip()) : len(text.rstrip())]


def _replaced(parts: list[tuple[str, int, int]], pattern: re.Pattern[str], by: str) -> list[tuple[str, int, int]]:
    """Return the parts with one character for each match, which came from all of it."""
    result, position = [], 0
    for match in pattern.finditer("".join(character for character, *_ in parts)):
        first, end = match.span()
        result += [*parts[position:first], (by, parts[first][1], parts[end - 1][2])]
        position = end
    return result + parts[position:]


NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = range(1, 6)  # Type of a piece in sentencepiece_model.proto
_PIECES = 1  # field of ModelProto


@dataclasses.dataclass(frozen=True)
class Piece:
    """One entry of a SentencePiece model."""

    text: str
    score: float = 0.0
    """Logarithm of its probability in a unigram model, minus its rank in a BPE model."""
    kind: int = CONTROL
    """NORMAL, UNKNOWN, CONTROL (never found in a text), USER_DEFINED (always found), UNUSED (never), or 6, a byte."""


def read_pieces(model: bytes) -> list[Piece]:
    """Return the pieces of a .model file in the order of their ids.

    Raises:
      ValueError: it is not such a file.
    """
    found = []
    for message in fields(model).get(_PIECES, ()):
        if not isinstance(message, bytes):
            raise ValueError("a piece is a number")
        text, score, kind = (fields(message).get(number, [None])[-1] for number in (1, 2, 3))
        found.append(
            Piece(
                text.decode() if isinstance(text, bytes) else "",
                struct.unpack("<f", score)[0] if isinstance(score, bytes) and len(score) == 4 else 0.0,
                kind if isinstance(kind, int) else NORMAL,
            )
        )
    return found


def with_pieces(model: bytes, pieces: Sequence[Piece]) -> bytes:
    """Return the .model file with these pieces in place of its own, and everything else as it was."""
    others = b"".join(raw for number, _, raw in _parts(model) if number != _PIECES)
    return b"".join(field(_PIECES, _written(piece)) for piece in pieces) + others


def fields(message: bytes) -> dict[int, list[Any]]:
    """Return field number → its values in a protocol buffer's message: integers, or bytes for everything else.

    Raises:
      ValueError: the message is cut off.
    """
    found = collections.defaultdict(list)
    for number, value, _ in _parts(message):
        found[number].append(value)
    return dict(found)


def field(number: int, content: bytes) -> bytes:
    """Return a field of bytes as it is encoded in a message."""
    return _number(number << 3 | 2) + _number(len(content)) + content


def _written(piece: Piece) -> bytes:
    score = b"\x15" + struct.pack("<f", piece.score)
    return field(1, piece.text.encode()) + score + b"\x18" + _number(piece.kind)


def _parts(message: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """Yield number, value and all bytes of each field."""
    position = 0
    while position < len(message):
        start = position
        key, position = varint(message, position)
        size = {1: 8, 5: 4}.get(key & 7)
        if size is None:
            size, position = varint(message, position)
        if key & 7 == 0:
            yield key >> 3, size, message[start:position]
            continue
        if position + size > len(message):
            raise ValueError(f"a field of {size} bytes begins {len(message) - position} bytes before the end")
        yield key >> 3, message[position : position + size], message[start : position + size]
        position += size


def varint(message: bytes, position: int) -> tuple[int, int]:
    """Return (value, position after it) of a number in groups of seven bits, the lowest first; at most 64 bits.

    Raises:
      ValueError: the number does not end.
    """
    value = 0
    for number, byte in enumerate(message[position : position + 10]):
        value |= (byte & 127) << 7 * number
        if byte < 128:
            return value, position + number + 1
    raise ValueError("a number does not end")


def _number(value: int) -> bytes:
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


@dataclasses.dataclass(frozen=True)
class PieceFamily:
    """Use of a SentencePiece model by the models of one `model_type`."""

    name: str
    special_names: tuple[str, ...]
    """Names of padding, unknown, class, separator and mask tokens."""
    file: str
    """Name of the file in a directory of `transformers`."""
    first: tuple[str, ...] = ()
    """Pieces with the first ids, as in fairseq."""
    dropped: int = 0
    """Number of the file's own pieces that these replace."""
    adds_mask: bool = False
    """Whether the mask has the id after the last piece, if it is not one of them."""
    separators: int = 1
    class_last: bool = False
    cleaning: Cleaning = Cleaning()
    """Before SentencePiece's own normalization, unless tokenizer_config.json says otherwise."""
    apart: bool = False
    """Whether a comma never shares a piece with the digit before it."""


_TIDY = Cleaning(tidies=True, strips_accents=True)


def _of_fairseq(name: str, first: tuple[str, ...], dropped: int) -> PieceFamily:
    names = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
    return PieceFamily(name, names, "sentencepiece.bpe.model", first, dropped, adds_mask=True, separators=2)


OURS = PieceFamily("bert", SPECIAL_NAMES, SENTENCEPIECE_FILE)
"""The family of `bert-jax train-vocab`, and of a SentencePiece model that was trained with BERT's special tokens."""
FAMILIES = {
    each.name: each
    for each in (
        OURS,
        PieceFamily(
            "albert",
            ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
            "spiece.model",
            cleaning=dataclasses.replace(_TIDY, lowercase=True),
            apart=True,
        ),
        _of_fairseq("xlm-roberta", ("<s>", "<pad>", "</s>", "<unk>"), dropped=3),
        _of_fairseq("camembert", ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"), dropped=1),
        PieceFamily("deberta-v2", SPECIAL_NAMES, "spm.model", adds_mask=True),
        PieceFamily(
            "xlnet",
            ("<pad>", "<unk>", "<cls>", "<sep>", "<mask>"),
            "spiece.model",
            class_last=True,
            cleaning=_TIDY,
            apart=True,
        ),
    )
}
CLASSES = {
    "AlbertTokenizer": "albert",
    "XLMRobertaTokenizer": "xlm-roberta",
    "CamembertTokenizer": "camembert",
    "DebertaV2Tokenizer": "deberta-v2",
    "XLNetTokenizer": "xlnet",
}


def family_of(file: epath.Path, pieces: list[Piece]) -> tuple[PieceFamily, Cleaning]:
    """Return the family of a .model file and how it cleans texts.

    tokenizer_config.json next to the file says it, or the model_type in config.json, or else the pieces.

    Raises:
      UserError: a file is damaged or contradicts itself, or nothing says which of two families it is.
    """
    config = _neighbour(file, CONFIG_FILE)
    name = config.get("family")
    if name is not None and (not isinstance(name, str) or name not in FAMILIES):
        raise UserError(f"{file.parent / CONFIG_FILE} has family={name!r:.40}; expected one of {', '.join(FAMILIES)}")
    if name is None and "kind" in config:
        return OURS, Cleaning()
    if name is None:
        name = CLASSES.get(str(config.get("tokenizer_class")).removesuffix("Fast"))
    if name is None:
        name = _neighbour(file, "config.json").get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        name = _family_of_pieces({piece.text for piece in pieces}, file)
    return FAMILIES[name], _cleaning(FAMILIES[name], config, file.parent / CONFIG_FILE)


def _neighbour(file: epath.Path, name: str) -> dict[str, Any]:
    other = file.parent / name
    return read_object(other) if other.exists() else {}


def _family_of_pieces(texts: set[str], file: epath.Path) -> str:
    if "<cls>" in texts:
        return "xlnet"
    if "[CLS]" in texts and file.name == FAMILIES["albert"].file:
        return "albert"
    if "[CLS]" in texts and "[MASK]" not in texts:
        return "deberta-v2"
    if "[CLS]" not in texts and file.name == FAMILIES["camembert"].file:
        raise UserError(
            f"{file} belongs to XLM-RoBERTa or to CamemBERT, which give its pieces different ids; put the config.json "
            'of the model next to it, or one with {"model_type": "xlm-roberta"} or {"model_type": "camembert"}'
        )
    return OURS.name


def _cleaning(family: PieceFamily, config: dict[str, Any], file: epath.Path) -> Cleaning:
    """Return the steps of a family with what tokenizer_config.json says of case and accents."""
    usual = family.cleaning
    said = {
        "do_lower_case": usual.lowercase,
        "keep_accents": not usual.strips_accents,
        "remove_space": usual.tidies,
    } | {name: config[name] for name in ("do_lower_case", "keep_accents", "remove_space") if name in config}
    if wrong := [name for name, value in said.items() if not isinstance(value, bool)]:
        raise UserError(f"{file} has {wrong[0]}={said[wrong[0]]!r:.40}; expected true or false")
    if family is OURS or family.first:
        return usual
    if not usual.tidies:
        return Cleaning(lowercase=said["do_lower_case"])
    if not said["remove_space"]:
        raise UserError(f"{file} has remove_space=false, which is not read here; models were published with true")
    return Cleaning(tidies=True, strips_accents=not said["keep_accents"], lowercase=said["do_lower_case"])


def in_order_of_ids(model: bytes, family: PieceFamily, file: epath.Path) -> tuple[bytes, tuple[int, ...]]:
    """Return the .model file with each piece at the place of its id, and the ids of the five special tokens.

    Raises:
      UserError: it lacks a special token, or does not begin as those of its family.
    """
    own = read_pieces(model)
    pieces = _in_order(own, family, file)
    ids = {piece.text: i for i, piece in enumerate(pieces)}
    if family is OURS:
        ids = {"[PAD]": ids.get("<pad>"), **ids}
    unknown = next((i for i, piece in enumerate(pieces) if piece.kind == UNKNOWN), None)
    special_ids = [unknown if number == 1 else ids.get(name) for number, name in enumerate(family.special_names)]
    found = tuple(i for i in special_ids if i is not None)
    if len(found) < len(special_ids):
        missing = [name for name, i in zip(family.special_names, special_ids, strict=True) if i is None]
        way_out = (
            "train it with control_symbols=[CLS],[SEP],[MASK] and pad_id=0, or with `bert-jax train-vocab "
            "--method=unigram`"
            if family is OURS
            else f"put the file there that a model of type {family.name} was trained with"
        )
        raise UserError(f"{file} has no {', '.join(missing)}; {way_out}")
    return model if pieces == own else with_pieces(model, pieces), found


def _in_order(pieces: list[Piece], family: PieceFamily, file: epath.Path) -> list[Piece]:
    """Return the pieces by their ids, those that the family adds among them."""
    if family.first:
        begins = [piece.text for piece in pieces[:3]]
        if begins != ["<unk>", "<s>", "</s>"]:
            raise UserError(
                f"{file} begins with {', '.join(begins)[:60]!r}, not with <unk>, <s>, </s> as the SentencePiece models "
                f"of {family.name}; put the file there that the model was trained with"
            )
        made = [Piece(name, kind=UNKNOWN if name == "<unk>" else CONTROL) for name in family.first]
        pieces = made + pieces[family.dropped :]
    if family.apart:
        pieces = [dataclasses.replace(piece, kind=UNUSED) if _is_number(piece) else piece for piece in pieces]
    mask = Piece(family.special_names[-1])
    return [*pieces, mask] if family.adds_mask and all(piece.text != mask.text for piece in pieces) else pieces


def in_order_of_file(pieces: list[Piece], family: PieceFamily) -> list[Piece]:
    """Return pieces in the order of a family's ids as its .model has them: the inverse of `in_order_of_ids`."""
    begins = [Piece("<unk>", kind=UNKNOWN), Piece("<s>"), Piece("</s>")][: family.dropped]
    last = len(pieces)
    if family.adds_mask and pieces and pieces[-1].text == family.special_names[-1]:
        last -= 1
    return begins + pieces[len(family.first) : last]


def _is_number(piece: Piece) -> bool:
    """Return whether a piece ends with a digit and a comma."""
    return piece.kind == NORMAL and piece.text[-1:] == "," and piece.text[-2:-1].isdigit()


@dataclasses.dataclass(eq=False, repr=False)
class SentencePieces(Vocabulary):
    """A SentencePiece model, unigram or BPE; its casing is part of its own normalization, or of the cleaning before.

    SentencePiece itself reads a text. The pipeline of `tokenizers` that a tokenizer.json gets is slower, and some ids
    differ: it adds scores in float64, SentencePiece in float32, so that the two choose differently between
    segmentations with equal scores (AAAAA as AAAA A or A AAAA); it composes an e with the separate marks U+0301 and
    U+0323 as a whole; and it finds the names of special tokens among its pieces.

    Attributes:
      model: contents of a .model file whose pieces are in the order of their ids.
      special_ids: ids of padding, unknown, class, separator and mask tokens.
      file: contents of the file that is saved, in which the pieces may have another order.
      family: how texts are joined, and the name of the file.
      cleaning: what is done to a text first.
    """

    model: bytes
    special_ids: tuple[int, ...]
    file: bytes
    family: PieceFamily
    cleaning: Cleaning

    kind = "sentencepiece"
    word_starts = (WORD_START,)

    def __post_init__(self):
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=self.model)
        letter = self.processor.normalize("A")
        self._adds_space = letter.startswith(WORD_START)
        self.tokens = [self.processor.id_to_piece(i) for i in range(self.processor.get_piece_size())]
        self.lowercase = self.cleaning.lowercase or letter.strip(WORD_START) == "a"
        self.separators, self.class_last = self.family.separators, self.family.class_last
        # A model made with user_defined_symbols finds its special tokens in plain text; control symbols are never
        # found.
        found = itertools.chain(*self.processor.encode([self.tokens[i] for i in self.special_ids]))
        self.finds_specials = not {*found}.isdisjoint({*self.special_ids} - {self.special_ids[1]})
        fingerprint = hashlib.sha256(self.file)
        if self.family is not OURS:
            fingerprint.update(json.dumps(self.options() | {"lowercase": self.cleaning.lowercase}).encode())
        self.fingerprint = fingerprint.hexdigest()

    def encode(self, texts: list[str]) -> list[list[int]]:
        cleaned = [self.cleaning(text) for text in texts] if self.cleaning else texts
        return self.processor.encode(cleaned, num_threads=1)  # the corpus is prepared by many processes already

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        cleaned, origins = self.cleaning.with_origins(text) if self.cleaning else (text, None)
        found = self.processor.encode(cleaned, return_type="offset_mapping")
        ids, pieces = found["ids"], found["pieces"]
        # Of a character that becomes several, as an ellipsis does, found["offsets"] name the last piece only.
        sizes = [1 if self.processor.is_byte(i) else len(piece.encode()) for i, piece in zip(ids, pieces, strict=True)]
        offsets = self._places(cleaned, sizes)
        if origins is not None:
            offsets = [_origin(origins, start, end) for start, end in offsets]
        return ids, widened(text, offsets)

    def _places(self, text: str, sizes: list[int]) -> list[tuple[int, int]]:
        """Return the (start, end) in `text` of the characters that the pieces with these numbers of bytes are made of.

        The space that is added before a text is made of none.
        """
        normalized, starts = self.processor.normalize(text, with_offsets=True)  # the last is the end of the text
        of_bytes = [start for start, character in zip(starts, normalized, strict=False) for _ in character.encode()]
        added = len(WORD_START.encode()) if self._adds_space else 0
        places, end = [], 0
        for size in sizes:
            first, end = of_bytes[end], end + size
            last = of_bytes[end - 1]
            following = bisect.bisect(starts, last) if end > added else 0
            places.append((first, starts[min(following, len(normalized))]))
        return places

    def decode(self, ids: list[int]) -> str:
        return self.processor.decode(ids)

    def spell(self, token: str) -> list[int]:
        (ids,) = self.encode([token.removeprefix(WORD_START)])
        return ids if token.startswith(WORD_START) else self.glued(ids)

    def pipeline(self) -> tokenizers.Tokenizer:
        """Return what a tokenizer.json says of this vocabulary, without special tokens."""
        return sentencepiece_pipeline(self.model, self.special_ids[1], self.cleaning)

    def never_found(self) -> list[str]:
        return [piece.text for piece in read_pieces(self.model) if piece.kind == CONTROL]

    def files(self) -> dict[str, bytes]:
        return {self.family.file: self.file}

    def options(self) -> dict[str, bool | str]:
        if self.family is OURS:
            return {}
        return {"family": self.family.name, "keep_accents": not self.cleaning.strips_accents}


def _origin(origins: list[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """Return the (start, end) in a text of characters start to end of what was made of it."""
    if start < end:
        return origins[start][0], origins[end - 1][1]
    place = origins[start][0] if start < len(origins) else origins[-1][1]
    return place, place


def pieces_of(file: epath.Path, contents: bytes, family: PieceFamily, cleaning: Cleaning) -> SentencePieces:
    """Return the vocabulary of a .model file's contents; `file` is named in errors.

    Raises:
      UserError: it lacks a special token, or is not a model.
    """
    model, special_ids = in_order_of_ids(contents, family, file)
    try:
        return SentencePieces(model, special_ids, contents, family, cleaning)
    except (RuntimeError, OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read by SentencePiece: {' '.join(str(error).split()):.120}") from None


def read_sentence_pieces(file: epath.Path, lowercase: bool | None = None) -> SentencePieces:
    """Read a .model file, and next to it what says which family of models it belongs to.

    Raises:
      UserError: it is damaged, lacks a special token, or its casing is not `lowercase`.
    """
    contents = read_contents(file)
    try:
        sentencepiece.SentencePieceProcessor(model_proto=contents)
        pieces = read_pieces(contents)
    except (RuntimeError, OSError, ValueError):
        raise UserError(
            f"{file} is not a SentencePiece model ({len(contents):,} bytes); "
            "`bert-jax train-vocab --method=unigram` makes one"
        ) from None
    vocabulary = pieces_of(file, contents, *family_of(file, pieces))
    if lowercase not in (None, vocabulary.lowercase):
        casing = "uncased" if vocabulary.lowercase else "cased"
        raise UserError(
            f"lowercase={lowercase}, but {file} is {casing}: the casing of a SentencePiece model is fixed when it "
            "is trained; leave lowercase out"
        )
    return vocabulary


UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType of sentencepiece_model.proto
APART = "\1"  # a control character, which SentencePiece's own tables drop
NEVER = 100.0  # less than the score of any text, as `transformers` writes pieces that are not used


def sentencepiece_pipeline(model: bytes, unknown: int, cleaning: Cleaning = Cleaning()) -> tokenizers.Tokenizer:
    """Return a tokenizer of Hugging Face `tokenizers` for a SentencePiece model, without special tokens.

    It gives the same ids except for a letter with several separate combining marks: everything that can be composed is,
    whereas SentencePiece only composes the letter with the first mark.

    Args:
      model: contents of the .model file.
      unknown: id of [UNK].
      cleaning: what is done to a text first.

    Raises:
      UserError: the model has options that a tokenizer.json cannot express.
    """
    parts = fields(model)
    trainer, normalizer = (fields(parts[number][-1]) if number in parts else {} for number in (2, 3))

    def option(spec: Any, number: Any, default: Any):
        return spec[number][-1] if number in spec else default

    kind = option(trainer, 3, UNIGRAM)
    whitespace = [option(normalizer, number, 1) for number in (3, 4, 5)]  # a space in front, none repeated, marked by ▁
    if kind not in (UNIGRAM, BPE) or not all(whitespace) or option(trainer, 24, 0) or option(trainer, 35, 0):
        raise UserError(
            "this SentencePiece model cannot be written as a tokenizer.json: only unigram and bpe models can be, with "
            "a space before the text, no repeated spaces, marks at the start of words, and no pieces for bytes"
        )
    pieces = read_pieces(model)
    fast = tokenizers.Tokenizer(_unigram(pieces, unknown) if kind == UNIGRAM else _bpe(pieces, unknown))
    fast.normalizer = normalizers.Sequence(
        [
            *_cleaning_steps(cleaning),
            *_by_characters(option(normalizer, 2, b"")),
            normalizers.Replace(tokenizers.Regex("^ +| +$"), ""),
            normalizers.Replace(tokenizers.Regex(" {2,}"), " "),
        ]
    )
    fast.pre_tokenizer = pre_tokenizers.Metaspace(WORD_START, "always")
    fast.decoder = decoders.Metaspace(WORD_START, "always")
    return fast


def _by_characters(table: bytes) -> list[normalizers.Normalizer]:
    """Return the replacements of a model's own table, applied to single characters as SentencePiece does.

    `tokenizers` applies it to grapheme clusters, and drops the marks of A + ring if the table knows A. So text is
    composed first, and what cannot be composed is separated by a control character while the table is applied.
    """
    if not table:
        return []
    between = tokenizers.Regex("(?<=.)(?=.)")
    return [
        normalizers.NFC(),
        normalizers.Replace(between, APART),
        normalizers.Precompiled(table),
        normalizers.Replace(APART, ""),
        normalizers.NFC(),
    ]


def _cleaning_steps(cleaning: Cleaning) -> list[normalizers.Normalizer]:
    """Return the steps of `cleaning`; spaces are tidied afterwards in every case."""
    steps = []
    if cleaning.tidies:
        steps += [
            normalizers.Replace(tokenizers.Regex(r"[\s\x{1C}-\x{1F}]"), " "),
            normalizers.Replace(tokenizers.Regex("``|''"), '"'),
        ]
    if cleaning.strips_accents:
        steps += [normalizers.NFKD(), normalizers.Replace(tokenizers.Regex(_combining()), "")]
    if cleaning.lowercase:
        steps += [final_sigma(), normalizers.Lowercase()]
    return steps


@functools.cache
def _combining() -> str:
    """Return a regular expression of the characters that `Cleaning` drops; \\p{M} has more than these."""
    marks = [code for code in range(sys.maxunicode + 1) if unicodedata.combining(chr(code))]
    runs = itertools.groupby(enumerate(marks), key=lambda pair: pair[1] - pair[0])
    ranges = [[code for _, code in run] for _, run in runs]
    return "[" + "".join(f"\\x{{{run[0]:X}}}-\\x{{{run[-1]:X}}}" for run in ranges) + "]"


def _unigram(pieces: list[Piece], unknown: int) -> models.Unigram:
    scores = [(piece.text, piece.score - NEVER * (piece.kind == UNUSED)) for piece in pieces]
    return models.Unigram(scores, unknown, False)


def _bpe(pieces: list[Piece], unknown: int) -> models.BPE:
    """Return a BPE model that merges in every way that makes a piece of two others, earlier pieces first."""
    if unused := [piece.text for piece in pieces if piece.kind == UNUSED]:
        raise UserError(
            f"this SentencePiece model cannot be written as a tokenizer.json: {len(unused):,} pieces of its bpe are "
            f"never used (first {unused[0]!r:.40}), which only a unigram model can express; learn one with "
            "--method=unigram"
        )
    ids = {piece.text: i for i, piece in enumerate(pieces)}
    merges = []
    for piece in ids:
        halves = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        known = [(ids[left], ids[right]) for left, right in halves if left in ids and right in ids]
        merges += [(pieces[left].text, pieces[right].text) for left, right in sorted(known)]
    return models.BPE(ids, merges, unk_token=pieces[unknown].text, fuse_unk=True)
