"""Offsets of SentencePiece's pieces where one character becomes several: an oracle of Unicode's own tables.

A character that normalizes on its own gives its place in the text to each byte of its normal form; a piece extends from
the place of its first byte to that of its last.
"""

import functools
import itertools
import unicodedata

import difficult_text
import family_pieces
import pytest
from etils import epath
from foreign_sentencepiece import foreign_model
from published_pieces import preprocess_text

from bert_jax.tokenization.sentence_pieces import CONTROL, FAMILIES, NORMAL, UNKNOWN, Piece, pieces_of, with_pieces
from bert_jax.tokenization.tokenizer import Tokenizer

SPACE, BYTE = "\u2581", 6
EXPANDING = [
    "A\ufb01ne o\ufb03ce, 10\u00bd kg or \u00bd\u00be",
    *("\u00bd 1", "x\u337fy \u337f", "wait\u2026 what\u2026", "\u2026a", "\u2167\u2168 \u33a2 5\u2116"),
    *("\u2057\u2a74 \u2122x \u3300", "\u00bd\u0323 q\u0308 x", "\ufb01\u0301 e\u0301\u0323 x"),
    *("x \ufdfa y", "a\ufdfab", "a\u00b4b c\u00b8d"),  # with spaces inside
]
TEXTS = [*EXPANDING, *family_pieces.TEXTS, *difficult_text.texts()]
PARTS = ["\u2581V", "\u2581VI", "\u2581v", "\u2581vi", "\u25811", "01", "21", "Af", "af", "in", "T.", "t.", "x\u682a"]
"""Pieces that begin in one character and end within the next."""
MODELS = {
    "unigram": {},
    "bpe": {"model_type": "bpe"},
    "unigram without a space": {"add_dummy_prefix": False},
    "bpe without a space": {"model_type": "bpe", "add_dummy_prefix": False},
    "bytes": {"byte_fallback": True, "vocab_size": 300},
}


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory) -> tuple[str, bytes]:
    file = tmp_path_factory.mktemp("model") / "any"
    return request.param, foreign_model(file, normalization_rule_name="nmt_nfkc", **MODELS[request.param]).read_bytes()


def normal_form(text: str, family: str) -> str:
    """What the pieces of a text spell, apart from a space that is added before it."""
    if FAMILIES[family].cleaning and text != " ":
        text = preprocess_text(text, lower=family == "albert")
    return unicodedata.normalize("NFKC", text).replace(" ", SPACE)


def places(text: str, family: str) -> list[tuple[int, int]]:
    """The (start, end) of each byte of the normal form; none if characters do not stand alone."""
    forms = [normal_form(character, family) for character in text]
    if "".join(forms) != normal_form(text, family):
        return []
    found = []
    for place, form in enumerate(forms):
        if form:
            found.append((place, place + 1, form))
        elif place and forms[place - 1] != SPACE:  # an accent that is dropped has its letter's place
            found[-1] = (found[-1][0], place + 1, found[-1][2])
        else:
            return []
    return [(start, end) for start, end, form in found for _ in form.encode()]


@functools.cache
def judged(family: str) -> dict[str, list[tuple[int, int]]]:
    """The texts whose characters stand alone, and the places of their bytes."""
    dropped = {"Cc", "Cf", "Cn", "Co"}
    texts = [
        text
        for text in TEXTS
        if text == " ".join(text.split())
        and dropped.isdisjoint(map(unicodedata.category, text))
        and "\ufffd" not in text
    ]
    return {text: found for text in texts if (found := places(text, family))}


def tokenizer_with(model: bytes, family: str, of_bytes: bool) -> Tokenizer:
    """A vocabulary of the characters of the texts, of bytes where they are not of ASCII, and of PARTS."""
    kind = FAMILIES[family]
    names = ("<unk>", "<s>", "</s>") if kind.first else kind.special_names
    pieces = [Piece(name, kind=UNKNOWN if "unk" in name.lower() else CONTROL) for name in names]
    characters = set("".join(normal_form(text, family) for text in judged(family)))
    if of_bytes:
        characters = {character for character in characters if character.isascii()}
        pieces += [Piece(f"<0x{byte:02X}>", kind=BYTE) for byte in range(256)]
    pieces += [Piece(text, -10.0, NORMAL) for text in sorted(characters | {SPACE})]
    pieces += [Piece(text, -5.0, NORMAL) for text in PARTS]
    return Tokenizer(pieces_of(epath.Path("any.model"), with_pieces(model, pieces), kind, kind.cleaning))


def spelled(token: str) -> bytes:
    return bytes.fromhex(token[3:5]) if token.startswith("<0x") else token.encode()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_piece_has_the_place_of_the_characters_that_it_is_of(model, family):
    name, contents = model
    tokenizer, begun = tokenizer_with(contents, family, of_bytes=name == "bytes"), 0
    for text, of_bytes in judged(family).items():
        added = "" if "without" in name else SPACE
        of_bytes = [(0, 0)] * len(added.encode()) + of_bytes
        ids, offsets = tokenizer.encode_with_offsets(text)
        assert ids == tokenizer.encode(text)
        pieces = [spelled(tokenizer.tokens[i]) for i in ids]
        assert b"".join(pieces).decode() == added + normal_form(text, family)
        bounds = itertools.pairwise(itertools.accumulate(map(len, pieces), initial=0))
        assert offsets == [(of_bytes[first][0], of_bytes[end - 1][1]) for first, end in bounds], text
        begun += sum(one[0] < other[0] < one[1] for one, other in itertools.pairwise(offsets))
    assert len(judged(family)) > 60 and begun > 5  # pieces that begin in one character and end within the next
