"""Tokenizers and their files; WordPiece's oracle is `google`, the published algorithm in google_tokenization.py."""

import gzip
import json
import random
import unicodedata

import numpy as np
import pytest
from foreign_sentencepiece import foreign_model
from google_tokenization import google, google_basic

from bert_jax.config import TrainVocabConfig
from bert_jax.data.preparation.vocabularies import train_vocab
from bert_jax.errors import UserError
from bert_jax.tokenization.tokenizer import Tokenizer, load_tokenizer
from bert_jax.tokenization.vocabulary import SPECIAL_NAMES, WORD_START
from bert_jax.tokenization.wordpiece import WordPiece

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
    known = [
        c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cn", "Cs") and c not in OTHER_TABLES
    ]
    assert len(known) > 250_000
    sample = [c for c in known if unicodedata.category(c) != "Co"] + known[-100:]
    texts = [f"x{c}Y" for c in sample]
    tokenizer = character_tokenizer(lowercase, texts)
    vocabulary = set(tokenizer.tokens)
    different = [
        text
        for text, ids in zip(texts, tokenizer.encode_batch(texts))
        if [tokenizer.tokens[i] for i in ids] != google(text, vocabulary, lowercase)
    ]
    assert different == []


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
    assert (
        len(
            {
                Tokenizer(WordPiece(words, lowercase)).fingerprint
                for words in (WORDS, WORDS[::-1], WORDS[:-1])
                for lowercase in (True, False)
            }
        )
        == 6
    )


def test_fingerprint_does_not_depend_on_the_path(tmp_path):
    first, second = (load_tokenizer(write_vocabulary(tmp_path / name, WORDS)) for name in ("a.txt", "b.txt"))
    assert first.fingerprint == second.fingerprint


def test_casing_is_inferred(tmp_path):
    assert load_tokenizer(write_vocabulary(tmp_path / "uncased.txt", WORDS)).lowercase
    cased = write_vocabulary(tmp_path / "cased.txt", [*WORDS, "\u00c9cole"])
    assert not load_tokenizer(cased).lowercase
    with pytest.raises(
        UserError, match="lowercase=True, but .*cased.txt is a cased vocabulary .*\u00c9cole.*lowercase=False"
    ):
        load_tokenizer(cased, lowercase=True)
    assert not load_tokenizer(tmp_path / "uncased.txt", lowercase=False).lowercase


@pytest.mark.parametrize(
    "contents, message",
    [
        (b"", "is empty"),
        ("\n".join(["[PAD]", "[UNK]", "a", "b"]).encode(), r"has no \[CLS\], \[SEP\], \[MASK\]"),
        (
            "\n".join([*SPECIALS, "cat", "dog", "cat", "dog", "cat"]).encode(),
            r"'cat' on lines 6, 8, 10; 'dog' on lines 7, 9",
        ),
        ("\n".join([*SPECIALS, "cat", "", "dog"]).encode(), "line 7 is empty"),
        ("\n".join([*SPECIALS, "caf\u00e9"]).encode("latin-1"), "not UTF-8 .line 6, byte"),
    ],
)
def test_bad_vocabulary_is_one_clear_line(tmp_path, contents, message):
    file = tmp_path / "vocab.txt"
    file.write_bytes(contents)
    with pytest.raises(UserError, match=message) as caught:
        load_tokenizer(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_missing_or_ambiguous_vocabulary(tmp_path):
    with pytest.raises(UserError, match="no vocabulary at .*train-vocab"):
        load_tokenizer(tmp_path / "nothing.txt")
    with pytest.raises(UserError, match="but has neither"):
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
    train_vocab(
        [text] * 3, TrainVocabConfig(input="test", output=str(output), size=60, method=request.param, held_out=0)
    )
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
    assert short == [tokenizer.cls_id, *tokenizer.encode("the"), tokenizer.sep_id] + [0] * (
        len(long) - len(tokenizer.encode("the")) - 2
    )
    text = "the cat [MASK] [SEP] walked"
    assert set(tokenizer.encode(text)) & set(tokenizer.special_ids) <= {tokenizer.unk_id}
    continues = tokenizer.continues_word()
    assert continues.dtype == bool and len(continues) == tokenizer.vocab_size and not continues[:5].any()
    assert all(
        inside == (not token.startswith(WORD_START)) for token, inside in list(zip(tokenizer.tokens, continues))[5:]
    )
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
    albert = load_tokenizer(
        foreign_model(
            tmp_path / "albert", pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols="[CLS],[SEP],[MASK]"
        )
    )
    assert [albert.tokens[i] for i in albert.special_ids] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    leaky = load_tokenizer(foreign_model(tmp_path / "leaky", pad_id=3, user_defined_symbols="[CLS],[SEP],[MASK]"))
    assert leaky.mask_id not in leaky.encode("the [MASK] sat") and leaky.mask_id in leaky.encode_masked(
        "the [MASK] sat"
    )
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
    assert (
        tokenizer.tokenize("The cats") == ["the", "cat", "##s"]
        and tokenizer.decode(one["input_ids"][0]) == "[CLS] the cats [SEP]"
    )
    assert tokenizer("")["input_ids"].tolist() == [[2, 3]]
    for texts, options, message in (
        ([], {}, "empty list"),
        (3, {}, "text 0 is 3"),
        ("a", {"max_length": 4}, "must be 5 or more"),
    ):
        with pytest.raises(UserError, match=message):
            tokenizer(texts, **options)
