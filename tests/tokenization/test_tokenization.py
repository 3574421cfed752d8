"""Tokenizers: Google's ids, words, and bytes.

Google's published algorithm (published_tokenizers.py) is equalled everywhere. Where transformers 5.23 reads a text
otherwise, `difficult_text.reasons` says why, and the tests hold it to that: with a reason the readings differ, without
one they agree to the last id.
"""

import gzip
import itertools
import json
import random
import unicodedata

import difficult_text
import documents
import numpy as np
import published_tokenizers
import pytest
import tokenizers
from etils import epath
from oracles import make_tokenizer_oracle as oracle
from processes import EXHAUSTIVE
from published_tokenizers import google, google_basic
from vocabularies import byte_level, foreign_model

from bert_jax.config import TrainVocabConfig
from bert_jax.data.preparation.vocabularies import run_train_vocab, train_vocab
from bert_jax.errors import UserError
from bert_jax.formats.huggingface_export import write_tokenizer
from bert_jax.tokenization import wordpiece
from bert_jax.tokenization.byte_level import learn_byte_level
from bert_jax.tokenization.tokenizer import Tokenizer, join, load_tokenizer, read_tokenizer, sequence_length
from bert_jax.tokenization.vocabulary import SPECIAL_NAMES, WORD_START
from bert_jax.tokenization.wordpiece import WordIds, WordPiece

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
OTHER_TABLES = "\U0001171e\U00011938"


def character_tokenizer(lowercase: bool, texts: list[str]) -> Tokenizer:
    """One whose ids spell the basic words out, so that encode shows what normalisation and splitting did."""
    characters = sorted(set("".join("".join(google_basic(text, lowercase)) for text in texts)))
    return Tokenizer(WordPiece([*SPECIALS, *characters, *("##" + c for c in characters)], lowercase))


def pieces(tokenizer, text: str) -> list[str]:
    return [tokenizer.tokens[i] for i in tokenizer.encode(text)]


def write_vocabulary(path, tokens: list[str]):
    path.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    return path


# The three tables of Google's tokenization_test.py.


def test_google_full_tokenizer(tmp_path):
    tokens = ["[UNK]", "[CLS]", "[SEP]", "want", "##want", "##ed", "wa", "un", "runn", "##ing", ","]
    tokenizer = load_tokenizer(write_vocabulary(tmp_path / "vocab.txt", [*tokens, "[PAD]", "[MASK]"]))
    ids = tokenizer.encode("UNwant\u00e9d,running")
    assert pieces(tokenizer, "UNwant\u00e9d,running") == ["un", "##want", "##ed", ",", "runn", "##ing"]
    assert ids == [7, 4, 5, 10, 8, 9]
    assert tokenizer.decode(ids) == "unwanted , running"


@pytest.mark.parametrize(
    "lowercase, text, words",
    [
        (False, "ah\u535a\u63a8zz", ["ah", "\u535a", "\u63a8", "zz"]),
        (True, " \tHeLLo!how  \n Are yoU?  ", ["hello", "!", "how", "are", "you", "?"]),
        (True, "H\u00e9llo", ["hello"]),
        (False, " \tHeLLo!how  \n Are yoU?  ", ["HeLLo", "!", "how", "Are", "yoU", "?"]),
    ],
)
def test_google_basic_tokenizer(lowercase, text, words):
    assert google_basic(text, lowercase) == words
    assert pieces(Tokenizer(WordPiece([*SPECIALS, *words], lowercase)), text) == words


def test_google_wordpiece_tokenizer():
    tokenizer = Tokenizer(WordPiece([*SPECIALS, "want", "##want", "##ed", "wa", "un", "runn", "##ing"], False))
    assert pieces(tokenizer, "") == []
    assert pieces(tokenizer, "unwanted running") == ["un", "##want", "##ed", "runn", "##ing"]
    assert pieces(tokenizer, "unwantedX running") == ["[UNK]", "runn", "##ing"]


@pytest.mark.slow
@pytest.mark.parametrize("lowercase", [True, False])
def test_equals_google_on_every_assigned_character(lowercase):
    characters = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    known = [c for c in characters if c not in OTHER_TABLES]
    assert len(known) > 250_000
    sample = [c for c in known if unicodedata.category(c) != "Co"] + known[-100:]
    texts = [f"x{c}Y" for c in sample]
    tokenizer = character_tokenizer(lowercase, texts)
    vocabulary = set(tokenizer.tokens)
    for text, ids in zip(texts, tokenizer.encode_batch(texts)):
        assert [tokenizer.tokens[i] for i in ids] == google(text, vocabulary, lowercase), ascii(text)


@pytest.mark.slow
@pytest.mark.parametrize("casing", ["uncased", "cased"])
def test_equals_google_on_wikipedia(shared_data, casing):
    """2 MB of English text with names in many scripts: no difference."""
    tokenizer = load_tokenizer(shared_data / "vocab" / casing / "vocab.txt")
    assert tokenizer.lowercase == (casing == "uncased")
    vocabulary = set(tokenizer.tokens)
    with gzip.open(shared_data / "wiki" / "wiki_valid.txt.gz", "rt", encoding="utf-8") as file:
        lines = file.read(2_000_000).splitlines()
    for line, ids in zip(lines, tokenizer.encode_batch(lines)):
        assert [tokenizer.tokens[i] for i in ids] == google(line, vocabulary, tokenizer.lowercase)


def test_published_ids(shared_data):
    """A tutorial's example; its id for "superb", 25408, is a slip: that line of the vocabulary is "miscellaneous"."""
    tokenizer = load_tokenizer(shared_data / "vocab" / "uncased")
    ids = tokenizer.encode("This movie was absolutely fantastic! The acting was superb.")
    assert ids == [2023, 3185, 2001, 7078, 10392, 999, 1996, 3772, 2001, 21688, 1012]
    assert tokenizer.special_ids == (0, 100, 101, 102, 103)
    assert tokenizer.encode("hello") == [7592] and tokenizer.vocab_size == 30_522


# Specials, offsets, masks.

WORDS = [*SPECIALS, "the", "cat", "sat", "un", "##want", "##ed", ".", "mask", "[", "]", "##s"]


def test_special_names_in_a_corpus_are_plain_text():
    tokenizer = Tokenizer(WordPiece(WORDS, True))
    assert pieces(tokenizer, "the [MASK] sat") == ["the", "[", "mask", "]", "sat"]
    assert set(tokenizer.encode(" ".join(SPECIALS))) & set(tokenizer.special_ids) == {tokenizer.unk_id}


def test_masks_in_a_text_become_the_mask_token():
    tokenizer = Tokenizer(WordPiece(WORDS, True))
    shown = [tokenizer.tokens[i] for i in tokenizer.encode_masked("The [MASK] sat [MASK]. [MASK][MASK]")]
    assert shown == ["the", "[MASK]", "sat", "[MASK]", ".", "[MASK]", "[MASK]"]
    assert tokenizer.encode_masked("the cat") == tokenizer.encode("the cat")


def test_specials_by_name_wherever_they_stand():
    tokens = list(WORDS)
    random.Random(1).shuffle(tokens)
    tokenizer = Tokenizer(WordPiece(tokens, True))
    assert [tokens[i] for i in tokenizer.special_ids] == SPECIALS
    assert pieces(tokenizer, "the unwanted dog") == ["the", "un", "##want", "##ed", "[UNK]"]
    continues = {token for token, inside in zip(tokens, tokenizer.continues_word()) if inside}
    assert continues == {"##want", "##ed", "##s"}


def test_offsets_point_into_the_text():
    tokenizer = Tokenizer(WordPiece(WORDS, True))
    text = "The\u200b c\u00e1t\u00a0 UNwant\u00e9d."
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    assert [text[start:end] for start, end in offsets][1:] == ["c\u00e1t", "UN", "want", "\u00e9d", "."]


# Files.


def test_save_and_load_keep_the_fingerprint(tmp_path):
    for lowercase in (True, False):
        tokenizer = Tokenizer(WordPiece(WORDS, lowercase))  # no capitals: only the stored casing can tell the two apart
        tokenizer.save(tmp_path / str(lowercase) / "deep")
        again = load_tokenizer(tmp_path / str(lowercase) / "deep")
        assert (again.fingerprint, again.lowercase, again.tokens) == (tokenizer.fingerprint, lowercase, WORDS)
    forms = itertools.product((WORDS, WORDS[::-1], WORDS[:-1]), (True, False))
    assert len({Tokenizer(WordPiece(*form)).fingerprint for form in forms}) == 6


def test_casing_is_inferred(tmp_path):
    assert load_tokenizer(write_vocabulary(tmp_path / "uncased.txt", WORDS)).lowercase
    cased = write_vocabulary(tmp_path / "cased.txt", [*WORDS, "\u00c9cole"])
    assert not load_tokenizer(cased).lowercase
    message = "lowercase=True, but .*cased.txt is a cased vocabulary .*\u00c9cole.*lowercase=False"
    with pytest.raises(UserError, match=message):
        load_tokenizer(cased, lowercase=True)
    assert not load_tokenizer(tmp_path / "uncased.txt", lowercase=False).lowercase


@pytest.mark.parametrize(
    "contents, message",
    [
        (b"", "is empty"),
        ("\n".join(["[PAD]", "[UNK]", "a", "b"]).encode(), r"has no \[CLS\], \[SEP\], \[MASK\]"),
        (b"\n\n\n", "is empty"),
        ("\n".join([*SPECIALS, "caf\u00e9"]).encode("latin-1"), "line 6: not UTF-8 .byte 0xe9"),
    ],
)
def test_bad_vocabulary_is_one_clear_line(tmp_path, contents, message):
    file = tmp_path / "vocab.txt"
    file.write_bytes(contents)
    with pytest.raises(UserError, match=message) as caught:
        load_tokenizer(file)
    assert str(file) in str(caught.value)


def test_missing_or_ambiguous_vocabulary(tmp_path):
    with pytest.raises(UserError, match="no vocabulary at .*train-vocab"):
        load_tokenizer(tmp_path / "nothing.txt")
    with pytest.raises(UserError, match="but has none of them"):
        load_tokenizer(tmp_path)
    write_vocabulary(tmp_path / "vocab.txt", WORDS)
    (tmp_path / "spm.model").write_bytes(b"not a model")
    with pytest.raises(UserError, match="but has spm.model, vocab.txt"):
        load_tokenizer(tmp_path)
    with pytest.raises(UserError, match="is not a SentencePiece model"):
        load_tokenizer(tmp_path / "spm.model")
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match="tokenizer_config.json is not JSON"):
        load_tokenizer(tmp_path / "vocab.txt")


def test_windows_line_ends_and_byte_order_mark(tmp_path):
    file = tmp_path / "vocab.txt"
    file.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(WORDS).encode())
    assert load_tokenizer(file).tokens == WORDS


# SentencePiece.


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def pieces_model(request, tmp_path_factory):
    output = tmp_path_factory.mktemp("spm") / "pieces.model"
    text = "The cat sat on the mat. The dogs walked, talking and walking to the unwanted market. " * 20
    options = TrainVocabConfig(input="test", output=str(output), size=60, method=request.param, held_out=0)
    train_vocab([text] * 3, options)
    return output


def test_sentencepiece_specials_and_words(pieces_model):
    tokenizer = load_tokenizer(pieces_model)
    assert tokenizer.kind == "sentencepiece" and tokenizer.lowercase and tokenizer.tokens[:5] == SPECIALS
    assert repr(tokenizer) == (
        f"Tokenizer(sentencepiece, {tokenizer.vocab_size} entries, uncased; "
        f"{' '.join(f'{name}={i}' for i, name in enumerate(SPECIALS))})"
    )
    long, short = tokenizer(["the cat", "the"])["input_ids"].tolist()
    assert long == [tokenizer.cls_id, *tokenizer.encode("the cat"), tokenizer.sep_id]
    alone = [tokenizer.cls_id, *tokenizer.encode("the"), tokenizer.sep_id]
    assert short == alone + [0] * (len(long) - len(alone))
    text = "the cat [MASK] [SEP] walked"
    assert set(tokenizer.encode(text)) & set(tokenizer.special_ids) <= {tokenizer.unk_id}
    continues = tokenizer.continues_word()
    assert continues.dtype == bool and len(continues) == tokenizer.vocab_size and not continues[:5].any()
    assert all(inside == (not t.startswith(WORD_START)) for t, inside in list(zip(tokenizer.tokens, continues))[5:])
    words = "the cats walked to market".split()
    starts = [i for i in tokenizer.encode(" ".join(words)) if not continues[i]]
    assert len(starts) == len(words)  # whole-word masking finds the words again


def test_sentencepiece_masks_and_offsets(pieces_model):
    tokenizer = load_tokenizer(pieces_model)
    ids = tokenizer.encode_masked("the [MASK] sat on [MASK].")
    assert ids.count(tokenizer.mask_id) == 2
    assert tokenizer.tokens[ids[-1]] == "." and ids[-2] == tokenizer.mask_id  # glued: no word start between
    assert tokenizer.decode(ids) == "the [MASK] sat on [MASK] ."
    assert tokenizer.decode(tokenizer.encode("The  cat sat.")) == "the cat sat."
    text = "The cat  sat."
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text) and len(offsets) == len(ids)
    assert "".join(text[start:end] for start, end in offsets).replace(" ", "") == "Thecatsat."


def test_sentencepiece_round_trip(pieces_model, tmp_path):
    tokenizer = load_tokenizer(pieces_model)
    tokenizer.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert again.fingerprint == tokenizer.fingerprint and again.encode("the cat") == tokenizer.encode("the cat")
    config = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
    assert config == {"kind": "sentencepiece", "do_lower_case": True}
    with pytest.raises(UserError, match="casing of a SentencePiece model is fixed"):
        load_tokenizer(pieces_model, lowercase=False)


def test_sentencepiece_made_by_others(tmp_path):
    """ALBERT's layout (<pad> <unk> [CLS] [SEP] [MASK]) is understood; user-defined specials stay out of plain text."""
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
    albert = load_tokenizer(foreign_model(tmp_path / "albert", **ids, control_symbols="[CLS],[SEP],[MASK]"))
    assert [albert.tokens[i] for i in albert.special_ids] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    leaky = load_tokenizer(foreign_model(tmp_path / "leaky", pad_id=3, user_defined_symbols="[CLS],[SEP],[MASK]"))
    assert leaky.mask_id not in leaky.encode("the [MASK] sat")
    assert leaky.mask_id in leaky.encode_masked("the [MASK] sat")
    with pytest.raises(UserError, match=r"has no \[PAD\], \[CLS\], \[SEP\], \[MASK\]"):
        load_tokenizer(foreign_model(tmp_path / "plain"))


def test_batch_equals_one_by_one(pieces_model):
    texts = ["The cat sat.", "", "walking [MASK] dogs", "\u65e5\u672c"]
    for tokenizer in (load_tokenizer(pieces_model), Tokenizer(WordPiece(WORDS, True))):
        assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
        assert all(isinstance(i, int) for ids in tokenizer.encode_batch(texts) for i in ids)
        assert np.max(np.concatenate(tokenizer.encode_batch(texts))) < tokenizer.vocab_size


def test_a_tokenizer_is_called_with_texts_and_shows_what_it_is():
    tokenizer = Tokenizer(WordPiece([*SPECIAL_NAMES, "the", "cat", "##s", "sat"], lowercase=True))
    assert repr(tokenizer) == "Tokenizer(wordpiece, 9 entries, uncased; [PAD]=0 [UNK]=1 [CLS]=2 [SEP]=3 [MASK]=4)"
    one, several = tokenizer("The cats"), tokenizer(["sat", ("the [MASK]", "cat")])
    assert one["input_ids"].tolist() == [[2, 5, 6, 7, 3]] and one["input_ids"].dtype == np.int32
    assert several["input_ids"].tolist() == [[2, 8, 3, 0, 0, 0], [2, 5, 4, 3, 6, 3]]
    assert several["token_type_ids"].tolist() == [[0] * 6, [0, 0, 0, 0, 1, 1]]
    assert several["attention_mask"].tolist() == [[1, 1, 1, 0, 0, 0], [1] * 6]
    assert tokenizer("sat " * 600)["input_ids"].shape == (1, 602), "nothing is cut"
    assert tokenizer(("sat " * 9, "cat"), max_length=8)["input_ids"].tolist() == [[2, 8, 8, 8, 8, 3, 6, 3]]
    assert tokenizer.tokenize("The cats") == ["the", "cat", "##s"]
    assert tokenizer.decode(one["input_ids"][0]) == "[CLS] the cats [SEP]"
    assert tokenizer("")["input_ids"].tolist() == [[2, 3]]
    for texts, options, message in (
        ([], {}, "empty list"),
        (3, {}, "text 0 is 3"),
        ("a", {"max_length": 4}, "must be 5 or more"),
    ):
        with pytest.raises(UserError, match=message):
            tokenizer(texts, **options)


CASINGS = {"uncased": True, "cased": False}


@pytest.fixture(scope="module")
def stored() -> dict:
    return json.loads(oracle.PATH.read_text())


@pytest.mark.parametrize("casing", CASINGS)
def test_difficult_text_equals_google(stored, casing):
    tokenizer = Tokenizer(WordPiece(stored["characters"], CASINGS[casing]))
    for text in difficult_text.texts():
        read = [tokenizer.tokens[i] for i in tokenizer.encode(text)]
        assert read == google(text, set(tokenizer.tokens), tokenizer.lowercase), ascii(text)


@pytest.mark.parametrize("casing", CASINGS)
@pytest.mark.parametrize("kind", oracle.KINDS)
def test_difficult_text_equals_transformers_but_for_known_reasons(stored, kind, casing):
    tokenizer = Tokenizer(WordPiece(stored["characters"], CASINGS[casing]))
    theirs = stored["difficult"][f"{kind} {casing}"]
    same = 0
    for text, ids in zip(difficult_text.texts(), theirs, strict=True):
        reasons = difficult_text.reasons(text, kind, tokenizer.lowercase)
        assert (tokenizer.encode(text) == ids) == (not reasons), (ascii(text), reasons)
        same += not reasons
    assert same > 60


@pytest.mark.slow
@pytest.mark.parametrize("casing", CASINGS)
def test_ten_megabytes_of_wikipedia(stored, shared_data, casing):
    """Both tokenizers of transformers, by a hash of each thousand lines; a known reason sets one or two lines apart."""
    tokenizer = load_tokenizer(shared_data / "vocab" / casing)
    lines = oracle.read_lines(shared_data / "wiki" / "wiki_train.txt.gz")
    rows = dict(zip(lines, tokenizer.encode_batch(lines)))
    for kind in oracle.KINDS:
        plain = [line for line in lines if not difficult_text.reasons(line, kind, tokenizer.lowercase)]
        assert len(lines) - len(plain) <= 3
        assert oracle.block_hashes([rows[line] for line in plain]) == stored["blocks"][f"{kind} {casing}"]


@pytest.mark.parametrize(
    "character, pieces",
    [
        *((space, ["a", "b"]) for space in " \t\r\n\u00a0"),
        ("\u0005", ["a", "##b"]),
        ("\U0001f4a9", ["a", "##\U0001f4a9", "##b"]),
        *((mark, ["a", mark, "b"]) for mark in "-$`."),
    ],
)
def test_published_facts_about_characters(character, pieces):
    """Google's tests of is_whitespace, is_control and is_punctuation."""
    tokenizer = Tokenizer(WordPiece([*difficult_text.SPECIALS, "a", "##b", "b", "##\U0001f4a9", *"-$`."], True))
    assert [tokenizer.tokens[i] for i in tokenizer.encode(f"a{character}b")] == pieces


def test_the_casing_that_a_directory_states_is_checked_against_its_vocabulary(tmp_path):
    """As Google's validate_case_matches_checkpoint, for every way in; one capital among many is no cased vocabulary."""
    tokens = [*difficult_text.SPECIALS, "the", "The", "##s", "Cat"]
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    message = r"lowercase=True \(by .*_config.json\), but .*cased vocabulary.*'The'.*_case\": false"
    with pytest.raises(UserError, match=message):
        load_tokenizer(tmp_path)
    with pytest.raises(UserError, match=message):
        read_tokenizer(epath.Path(tmp_path))  # of a Hugging Face directory
    assert not load_tokenizer(tmp_path, lowercase=False).lowercase
    many = [*difficult_text.SPECIALS, "The", *(f"w{i}" for i in range(200))]
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in many))
    assert load_tokenizer(tmp_path).lowercase and load_tokenizer(tmp_path / "vocab.txt", lowercase=True).lowercase


IDS_WORDS = [*SPECIAL_NAMES, *"the cat un ##want ##ed . , [ ] mask ##s σ ##ς ##σ a".split()]


def assert_as_whole_texts(tokenizer, texts: list[str], size: int = 2000) -> None:
    """Each batch twice: words are new, and then known."""
    for start in range(0, len(texts), size):
        batch = texts[start : start + size]
        rows = tokenizer.encode_batch(batch)
        for _ in range(2):
            ids, lengths = tokenizer.encode_flat(batch)
            np.testing.assert_array_equal(lengths, [len(row) for row in rows])
            np.testing.assert_array_equal(ids, list(itertools.chain.from_iterable(rows)))


@pytest.mark.parametrize("separator", [True, False])
@pytest.mark.parametrize("lowercase", [True, False])
def test_texts_that_could_be_cut_wrongly(separator, lowercase):
    tokenizer = Tokenizer(WordPiece([*IDS_WORDS, "|"] if separator else IDS_WORDS, lowercase))
    texts = ["", " ", "  the  cat ", "the|cat", "|", "| |", "a | b", "the [MASK]", "un\u200bwanted\u00a0cats"]
    texts += ["ΑΣ ΑΣ. ΑΣ.Α ΣΑ", "Σ \u0301Σ", "\u0301 a", "\tthe\ncat\r\n", "\x1cthe\x1fcat\x85", "中国 的cat"]
    texts += ["unwanted " * 300, "a" * 300]
    assert_as_whole_texts(tokenizer, texts)
    for text in texts:
        assert_as_whole_texts(tokenizer, [text])
    ids, lengths = tokenizer.encode_flat([])
    assert len(ids) == len(lengths) == 0


@pytest.mark.parametrize("step", [pytest.param(1 if EXHAUSTIVE else 7, marks=pytest.mark.slow), 61])
def test_every_code_point_between_words(shared_data, step):
    tokenizer = load_tokenizer(shared_data / "vocab" / "uncased")
    characters = [chr(c) for c in range(0, 0x110000, step) if unicodedata.category(chr(c)) != "Cs"]
    assert_as_whole_texts(tokenizer, [f"x{c}Y {c} a {c}{c}|b Σ{c} {c}ΑΣ" for c in characters])


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(wordpiece, "MAX_SIZE", 100)
    encoded = []

    def encode(texts):
        encoded.append(texts)
        return [[ord(c) for c in text if c != " "] for text in texts]

    remembered = WordIds(encode, ord("|"))
    for _ in range(3):
        for start in range(0, 40, 4):
            texts = [f"{chr(97 + i % 26)}{i} z" for i in range(start, start + 4)]
            ids, lengths = remembered(texts)
            assert ids.tolist() == [ord(c) for text in texts for c in text if c != " "]
            assert lengths.tolist() == [len(text) - 1 for text in texts]
    assert len(encoded) == 30, "what was forgotten is encoded again"
    assert len(remembered._numbers) < 20


def test_a_separator_that_is_not_found_again():
    """An id that a word has too: as many as there are words, but one by one they are right."""
    remembered = WordIds(lambda texts: [[7] * len(text.split()) for text in texts], 7)
    ids, lengths = remembered(["a b", "c"])
    assert ids.tolist() == [7, 7, 7] and lengths.tolist() == [2, 1]


TEXTS = [
    "The gardener digs before noon.",
    "don't we'll  two  spaces\n\nand\tlines ",
    "Ärger 東京 naïve 🌷 e\u0301, x_y 42km (a-b) …",
    "",
    " ",
    "rose",
]


@pytest.mark.parametrize("text", TEXTS + documents.documents(3))
def test_pieces_are_those_of_the_published_algorithm(text):
    tokenizer, spaced = byte_level(spaced=False), byte_level()
    published = lambda text: published_tokenizers.pieces(text, tokenizer.vocabulary.merges)
    assert pieces(tokenizer, text) == published(text)
    found = [[spaced.tokens[i] for i in ids] for ids in tokenizer.encode_words(text.split())]
    assert found == [published(f" {word}") for word in text.split()]
    flat, counts = tokenizer.encode_flat([text, "rose"])
    assert flat.tolist() == [*spaced.encode(text), *spaced.encode("rose")] and counts.sum() == len(flat)


@pytest.mark.parametrize("spaced", [True, False])
@pytest.mark.parametrize("text", TEXTS)
def test_offsets_are_the_characters_of_each_piece(text, spaced):
    tokenizer = byte_level(spaced)
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    covered = set()
    for i, (start, end) in zip(ids, offsets):
        characters = {published_tokenizers.CHARACTERS[byte] for byte in text[start:end].encode()}
        assert set(tokenizer.tokens[i].lstrip("Ġ")) <= characters | set("ĠĊĉ")
        covered |= set(range(start, end))
    assert {i for i, character in enumerate(text) if not character.isspace()} <= covered
    assert tokenizer.decode(ids) == text.strip() or "  " in text


def test_special_tokens_masks_and_pairs():
    tokenizer = byte_level()
    assert [tokenizer.tokens[i] for i in tokenizer.special_ids] == ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    assert (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id) == (1, 0, 2)
    assert not set(tokenizer.encode("<mask> <s> </s>")) & set(tokenizer.special_ids)
    a, b = tokenizer.encode("The rose"), tokenizer.encode("a spade")
    for each in (tokenizer, byte_level(spaced=False)):
        masked = each.encode_masked("The rose <mask> blooms<mask>.")
        assert masked == [*each.encode("The rose"), 4, *tokenizer.encode("blooms"), 4, *each.encode(".")]
    rows = tokenizer([("The rose", "a spade"), "The rose"])
    assert rows["input_ids"][0].tolist() == [0, *a, 2, 2, *b, 2]
    assert rows["input_ids"][1][: len(a) + 2].tolist() == [0, *a, 2]
    assert not rows["token_type_ids"].any()
    ids, _ = join(tokenizer, a * 9, b * 9, 20)
    assert len(ids) == 20 and ids.tolist().count(2) == 3 and sequence_length(tokenizer, a, b) == len(a) + len(b) + 4
    with pytest.raises(UserError, match="minimum is 6"):
        join(tokenizer, a, b, 5)


def test_words_begin_where_a_piece_has_the_space():
    tokenizer = byte_level()
    continues = tokenizer.continues_word()
    ids = np.array(tokenizer.encode("The lighthouse, xylophone"))
    begins = [tokenizer.tokens[i] for i in ids[~continues[ids]]]
    assert len(begins) == 3 and all(piece.startswith("Ġ") for piece in begins)
    assert not continues[list(tokenizer.special_ids)].any()


def test_a_vocabulary_is_learned_twice_alike_saved_and_read(tmp_path):
    corpus = documents.write(tmp_path / "corpus.txt", 100)
    output = str(tmp_path / "one")
    config = TrainVocabConfig(input=str(corpus), output=output, size=350, method="byte_bpe", lowercase=False)
    tokenizer = run_train_vocab(config)
    assert tokenizer.vocab_size == 350 and tokenizer.kind == "byte_level"
    expected = ["merges.txt", "tokenizer_config.json", "vocab.json"]
    assert sorted(file.name for file in (tmp_path / "one").iterdir()) == expected
    again = train_vocab(corpus.read_text().split("\n\n"), config)[0]
    assert again.tokens == tokenizer.tokens and again.vocabulary.merges == tokenizer.vocabulary.merges
    tokenizer.save(tmp_path / "two")
    assert load_tokenizer(tmp_path / "two").fingerprint == tokenizer.fingerprint
    assert load_tokenizer(tmp_path / "two" / "vocab.json").fingerprint == tokenizer.fingerprint


def test_a_vocabulary_of_deberta_has_the_special_tokens_and_pairs_of_bert(tmp_path):
    """In the order of the published ids, with the pieces that RoBERTa's vocabulary of the same text has."""
    corpus = documents.write(tmp_path / "corpus.txt", 100)
    given = dict(input=str(corpus), size=350, method="byte_bpe", lowercase=False)
    ours, roberta = (
        run_train_vocab(TrainVocabConfig(**given, family=family, output=str(tmp_path / family)))
        for family in ("deberta", "bert")
    )
    assert ours.tokens[:5] == ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"] and ours.tokens[5:] == roberta.tokens[5:]
    a, b = ours.encode("The rose"), ours.encode("a spade")
    rows = load_tokenizer(tmp_path / "deberta")([("The rose", "a spade")])
    assert rows["input_ids"][0].tolist() == [1, *a, 2, *b, 2]
    assert rows["token_type_ids"][0].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)


def test_a_vocabulary_of_modernbert_reads_composed_text_and_is_filled_up(tmp_path):
    """Pieces first, special tokens after them, unused ones to a multiple of 64; the corpus is decomposed."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(f"{text} Cafe\u0301 e\u0301te\u0301." for text in documents.documents(100)))
    given = dict(input=str(corpus), output=str(tmp_path / "modernbert"), size=350, method="byte_bpe", lowercase=False)
    tokenizer = run_train_vocab(config := TrainVocabConfig(**given, family="modernbert"))
    unused = [f"[unused{i}]" for i in range(34)]
    assert tokenizer.tokens[345:] == ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", *unused]
    assert len(set(tokenizer.tokens)) == 384 and "\u00c3\u00a9" in tokenizer.tokens  # the two bytes of é, merged
    assert train_vocab(corpus.read_text().split("\n\n"), config)[0].fingerprint == tokenizer.fingerprint
    file = tmp_path / "modernbert/tokenizer.json"
    merges = [tuple(pair) for pair in json.loads(file.read_text())["model"]["merges"]]
    fast = tokenizers.Tokenizer.from_file(str(file))  # as transformers reads it
    for text in ["Cafe\u0301 caf\u00e9", "\u1100\u1161 \u212b", *TEXTS, *documents.documents(3)]:
        composed = unicodedata.normalize("NFC", text)
        assert tokenizer.tokenize(text) == tokenizer.tokenize(composed) == published_tokenizers.pieces(composed, merges)
        ids, types = join(tokenizer, tokenizer.encode(text), tokenizer.encode("a rose"), 512)
        assert (fast.encode(text, "a rose").ids, fast.encode(text, "a rose").type_ids) == (ids.tolist(), types.tolist())
    masked = tokenizer.encode_masked("The rose [MASK] blooms.")
    assert masked == fast.encode("The rose [MASK] blooms.", add_special_tokens=False).ids
    write_tokenizer(tokenizer, epath.Path(tmp_path / "export"), 512)
    exported = read_tokenizer(epath.Path(tmp_path / "export"))
    assert exported is not None and exported.fingerprint == tokenizer.fingerprint


def test_an_entry_of_another_vocabulary_is_spelled():
    tokenizer = byte_level()
    other = learn_byte_level(["lighthouses", "東京"] * 9, 300)
    for token in other.tokens[5:]:
        assert "".join(tokenizer.tokens[i] for i in tokenizer.spell(token)) == token


def damaged(place, change):
    byte_level().save(place)
    change(place)
    return place


def edit(name: str, change):
    def apply(place):
        values = json.loads((place / name).read_text())
        change(values)
        (place / name).write_text(json.dumps(values))

    return apply


DAMAGES = {
    "no merges": (lambda place: (place / "merges.txt").unlink(), "needs the merges.txt"),
    "a byte is missing": (edit("vocab.json", lambda ids: ids.update({"??": ids.pop("!")})), "1 of the 256 bytes"),
    "an id is missing": (edit("vocab.json", lambda ids: ids.update({"!": 4_000})), "must be 0 to"),
    "no mask": (edit("vocab.json", lambda ids: ids.update({"??": ids.pop("<mask>")})), "has no <mask>"),
    "a foreign merge": (lambda place: (place / "merges.txt").write_text("q q\n"), "the merge 'q q'"),
    "not JSON": (lambda place: (place / "vocab.json").write_text("{"), "vocab.json"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_vocabulary_is_refused_in_one_line(tmp_path, name):
    change, says = DAMAGES[name]
    with pytest.raises(UserError, match=says):
        load_tokenizer(damaged(tmp_path / "vocabulary", change))


OPTIONS = {
    "lowercase": (dict(lowercase=True), "--lowercase=False"),
    "small": (dict(size=200), "size of 276"),
    "a file": (dict(output="vocab.txt"), "give a directory"),
    "a family of SentencePiece": (dict(family="albert"), "family=albert with method=byte_bpe .* --method=unigram"),
    "SentencePiece of ModernBERT": (dict(family="modernbert", method="bpe"), "of ModernBERT is a byte-level one; set"),
    "SentencePiece of version 1": (dict(family="deberta", method="unigram"), "set --method=byte_bpe, or --family=deb"),
    "WordPiece of version 1": (dict(family="deberta", method="frequency"), "byte-level one; set --method=byte_bpe"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_do_not_fit_are_refused(tmp_path, name):
    options, says = OPTIONS[name]
    given = dict(input="corpus.txt", output=str(tmp_path), size=400, method="byte_bpe", lowercase=False) | options
    with pytest.raises(UserError, match=says):
        run_train_vocab(TrainVocabConfig(**given))


def test_casing_cannot_be_asked_for(tmp_path):
    byte_level().save(tmp_path)
    assert load_tokenizer(tmp_path, lowercase=False).lowercase is False
    with pytest.raises(UserError, match="no casing"):
        load_tokenizer(tmp_path, lowercase=True)
