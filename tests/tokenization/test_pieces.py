"""SentencePiece vocabularies of every family, and offsets in texts.

Oracles: the published code (published_tokenizers.py), transformers (oracles/make_family_pieces_oracle.py), and for
offsets Unicode's own tables. A character that normalizes on its own gives its place in the text to each byte of its
normal form; a piece extends from the place of its first byte to that of its last.
"""

import functools
import io
import itertools
import json
import pathlib
import unicodedata

import difficult_text
import family_pieces
import numpy as np
import published_tokenizers
import pytest
import sentencepiece
import vocabularies
from etils import epath
from family_pieces import FILES, OPTIONS
from published_tokenizers import preprocess_text
from vocabularies import foreign_model

from bert_jax.errors import UserError
from bert_jax.tokenization.sentence_pieces import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    Cleaning,
    Piece,
    pieces_of,
    read_pieces,
    with_pieces,
)
from bert_jax.tokenization.sentence_pieces import FAMILIES as OFFSETS_FAMILIES
from bert_jax.tokenization.tokenizer import Tokenizer, join, load_tokenizer

ORACLE = json.loads((pathlib.Path(__file__).parents[1] / "oracles/family_pieces_oracle.json").read_text())
FAMILIES = list(OPTIONS)


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """family → a directory of transformers with the .model of the oracle and a config.json."""
    base = vocabularies.foreign_model(tmp_path_factory.mktemp("base") / "any", normalization_rule_name="nmt_nfkc")
    places = {}
    for family, oracle in ORACLE.items():
        places[family] = tmp_path_factory.mktemp(family)
        model = with_pieces(base.read_bytes(), [Piece(*piece) for piece in oracle["pieces"]])
        (places[family] / FILES[family]).write_bytes(model)
        (places[family] / "config.json").write_text(json.dumps({"model_type": family}))
    return places


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_those_of_the_published_code(directories, family):
    tokenizer = load_tokenizer(directories[family])
    processor = sentencepiece.SentencePieceProcessor(model_file=str(directories[family] / FILES[family]))
    texts = family_pieces.texts()
    expected = [published_tokenizers.ids(family, processor, text) for text in texts]
    assert tokenizer.encode_batch(texts) == expected
    ids, lengths = tokenizer.encode_flat(texts)
    assert ids.tolist() == sum(expected, []) and lengths.tolist() == list(map(len, expected))


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_those_of_transformers(directories, family):
    tokenizer, oracle = load_tokenizer(directories[family]), ORACLE[family]
    texts = [text for text in family_pieces.texts() if family_pieces.reads_alike(text, family)]
    rows = tokenizer.encode_batch(texts)
    assert rows == oracle["published"]
    read = [(ours, theirs) for ours, theirs in zip(rows, oracle["auto"]) if theirs is not None]
    assert len(read) > 20 and all(ours == theirs for ours, theirs in read)
    assert list(tokenizer.special_ids) == oracle["special"]
    assert tokenizer.vocab_size == max(len(oracle["pieces"]), 1 + max(tokenizer.special_ids))


@pytest.mark.parametrize("family", FAMILIES)
def test_pairs_are_joined_as_in_transformers(directories, family):
    tokenizer = load_tokenizer(directories[family])
    first, second = (tokenizer.encode(text) for text in ("the gardener", "before noon, 25,"))
    ids, types = join(tokenizer, first, second, 128)
    whole = ids.tolist()
    assert [i for i in whole if i not in tokenizer.special_ids] == first + second
    shape = [tokenizer.tokens[i] if i in tokenizer.special_ids else "x" for i in whole]
    oracle = [tokenizer.tokens[i] if i in tokenizer.special_ids else "x" for i in ORACLE[family]["pair"]["ids"]]
    squeezed = [[m for m, before in zip(marks, ["", *marks]) if m != "x" or before != "x"] for marks in (shape, oracle)]
    assert squeezed[0] == squeezed[1]
    if family in ("xlm-roberta", "camembert", "deberta-v2"):  # where the class knows every rule
        assert whole == ORACLE[family]["pair"]["ids"] and types.tolist() == ORACLE[family]["pair"]["types"]
    cut, _ = join(tokenizer, first, second, 10)
    assert len(cut) == 10
    assert [i for i in cut if i in tokenizer.special_ids] == [i for i in whole if i in tokenizer.special_ids]


def test_the_class_token_of_xlnet_is_the_last_and_in_a_segment_of_its_own(directories):
    tokenizer = load_tokenizer(directories["xlnet"])
    ids, types = join(tokenizer, [50, 51], [52], 16)
    assert ids.tolist() == [50, 51, 4, 52, 4, 3] and types.tolist() == [0, 0, 0, 1, 1, 2]
    ids, types = join(tokenizer, [50, 51], None, 16)
    assert ids.tolist() == [50, 51, 4, 3] and types.tolist() == [0, 0, 0, 2]


@pytest.mark.parametrize("family", FAMILIES)
def test_offsets_are_the_characters_of_each_piece(directories, family):
    tokenizer = load_tokenizer(directories[family])
    for text in family_pieces.texts():
        ids, offsets = tokenizer.encode_with_offsets(text)
        assert ids == tokenizer.encode(text) and len(offsets) == len(ids)
        assert all(0 <= start <= end <= len(text) for start, end in offsets)
        assert [start for start, _ in offsets] == sorted(start for start, _ in offsets)
        for i, (start, end) in zip(ids, offsets):
            piece = tokenizer.tokens[i].strip("\u2581")
            if i != tokenizer.unk_id and piece:
                assert piece in _normalized(tokenizer, text[start:end])
        covered = {place for start, end in offsets for place in range(start, end)}
        lost = [c for place, c in enumerate(text) if place not in covered]
        assert all(not _seen(tokenizer, c).strip() or unicodedata.combining(c) for c in lost)


def _seen(tokenizer, text: str) -> str:
    """What SentencePiece makes of a part of a text by its own normalization."""
    return tokenizer.vocabulary.processor.normalize(tokenizer.vocabulary.cleaning(text)).replace("\u2581", " ")


def _normalized(tokenizer, text: str) -> str:
    """The same, and with everything that can be composed, which a part of a text may have lost a neighbour for."""
    return _seen(tokenizer, text) + unicodedata.normalize("NFKC", tokenizer.vocabulary.cleaning(text))


@pytest.mark.parametrize("family", ["albert", "xlnet"])
def test_cleaning_with_and_without_origins_is_the_same(directories, family):
    cleaning = load_tokenizer(directories[family]).vocabulary.cleaning
    for text in [*family_pieces.texts(), "\u0130\u03a3 x\u03a3", "``''`", " \u00a0\u00a8a "]:
        cleaned, origins = cleaning.with_origins(text)
        assert cleaned == cleaning(text) and len(origins) == len(cleaned)
        assert cleaned == published_tokenizers.preprocess_text(text, family == "albert")
    assert Cleaning(tidies=True).with_origins("  a \n``b''")[1] == [(2, 3), (3, 5), (5, 7), (7, 8), (8, 10)]


def test_casing_and_accents_are_those_of_tokenizer_config(directories, tmp_path):
    (tmp_path / "spiece.model").write_bytes((directories["albert"] / "spiece.model").read_bytes())
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"tokenizer_class": "AlbertTokenizer", "do_lower_case": false, "keep_accents": true}')
    cased = load_tokenizer(tmp_path)
    assert not cased.lowercase and cased.vocabulary.cleaning == Cleaning(tidies=True)
    assert cased.tokenize("In caf\u00e9") != load_tokenizer(directories["albert"]).tokenize("In caf\u00e9")
    with pytest.raises(UserError, match="lowercase=True"):
        load_tokenizer(tmp_path, lowercase=True)
    for values, says in (
        ({"do_lower_case": 3}, "do_lower_case=3 where true or false is expected"),
        ({"remove_space": False}, "remove_space=false"),
        ({"split_by_punct": True}, "split_by_punct=True"),
    ):
        config.write_text(json.dumps({"tokenizer_class": "AlbertTokenizerFast"} | values))
        with pytest.raises(UserError, match=says):
            load_tokenizer(tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_vocabulary_is_the_same_without_a_config_of_the_model(directories, family, tmp_path):
    tokenizer = load_tokenizer(directories[family])
    tokenizer.save(tmp_path)
    assert (tmp_path / FILES[family]).read_bytes() == (directories[family] / FILES[family]).read_bytes()
    again = load_tokenizer(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint and again.tokens == tokenizer.tokens
    assert again.encode_batch(family_pieces.TEXTS) == tokenizer.encode_batch(family_pieces.TEXTS)
    assert len({load_tokenizer(place).fingerprint for place in directories.values()}) == len(directories)


@pytest.mark.parametrize("family", ["xlm-roberta", "camembert"])
def test_ids_of_fairseq_need_to_know_whose_they_are(directories, family, tmp_path):
    file = tmp_path / FILES[family]
    file.write_bytes((directories[family] / FILES[family]).read_bytes())
    with pytest.raises(UserError, match="belongs to XLM-RoBERTa or to CamemBERT"):
        load_tokenizer(file)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    assert load_tokenizer(file).tokens[-1] == "<mask>"
    file.write_bytes((directories["albert"] / FILES["albert"]).read_bytes())
    with pytest.raises(UserError, match="begins with '<pad>, <unk>, "):
        load_tokenizer(file)


@pytest.mark.parametrize("family", ["deberta-v2", "xlnet", "albert"])
def test_other_families_are_known_by_their_pieces(directories, family, tmp_path):
    file = tmp_path / FILES[family]
    file.write_bytes((directories[family] / FILES[family]).read_bytes())
    assert load_tokenizer(file).fingerprint == load_tokenizer(directories[family]).fingerprint


def test_a_damaged_model_is_refused_in_one_line(directories, tmp_path):
    whole = (directories["xlm-roberta"] / FILES["xlm-roberta"]).read_bytes()
    file = tmp_path / "sentencepiece.bpe.model"
    (tmp_path / "config.json").write_text('{"model_type": "xlm-roberta"}')
    random = np.random.RandomState(3)
    refused = 0
    for number in range(60):
        damaged = bytearray(whole[: 9_000 if number % 2 else random.randint(1, 9_000)])
        for place in random.randint(0, len(damaged), 3):
            damaged[place] = random.randint(256)
        file.write_bytes(bytes(damaged))
        try:
            load_tokenizer(file).encode("the gardener 1,000")
        except UserError as error:
            refused += "\n" not in str(error)
    assert refused > 30
    for text in (b"", b"\x0a\x80", b"\x0a\x02\x10\x01", b"\xff" * 40):
        file.write_bytes(text)
        with pytest.raises(UserError, match="is not a SentencePiece model|begins with ''"):
            load_tokenizer(file)


def test_pieces_are_written_as_sentencepiece_reads_them():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c ab abc"] * 9), model_writer=model, vocab_size=9, minloglevel=2
    )
    pieces = read_pieces(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=with_pieces(model.getvalue(), pieces[::-1]))
    assert [processor.id_to_piece(i) for i in range(9)] == [piece.text for piece in pieces[::-1]]
    assert [processor.get_score(i) for i in range(9)] == [piece.score for piece in pieces[::-1]]
    assert read_pieces(with_pieces(model.getvalue(), pieces)) == pieces


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
    if OFFSETS_FAMILIES[family].cleaning and text != " ":
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
    kind = OFFSETS_FAMILIES[family]
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


@pytest.mark.parametrize("family", OFFSETS_FAMILIES)
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
