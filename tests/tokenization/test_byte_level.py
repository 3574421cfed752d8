"""Byte-level BPE: oracle is gpt2_bpe.py, the published algorithm in plain Python."""

import json
import unicodedata

import gpt2_bpe
import numpy as np
import pytest
import small_corpus
import tokenizers
from byte_level_vocabulary import byte_level
from etils import epath

from bert_jax.config import TrainVocabConfig
from bert_jax.data.preparation.vocabularies import run_train_vocab, train_vocab
from bert_jax.errors import UserError
from bert_jax.formats.tokenizer_files import read_tokenizer, write_tokenizer
from bert_jax.tokenization.byte_level import learn_byte_level
from bert_jax.tokenization.tokenizer import join, load_tokenizer, sequence_length

TEXTS = [
    "The gardener digs before noon.",
    "don't we'll  two  spaces\n\nand\tlines ",
    "Ärger 東京 naïve 🌷 e\u0301, x_y 42km (a-b) …",
    "",
    " ",
    "rose",
]


@pytest.mark.parametrize("text", TEXTS + small_corpus.documents(3))
def test_pieces_are_those_of_the_published_algorithm(text):
    tokenizer = byte_level(spaced=False)
    assert [tokenizer.tokens[i] for i in tokenizer.encode(text)] == gpt2_bpe.pieces(text, tokenizer.vocabulary.merges)
    spaced, words = byte_level(), text.split()
    assert [[spaced.tokens[i] for i in ids] for ids in tokenizer.encode_words(words)] == [
        gpt2_bpe.pieces(f" {word}", tokenizer.vocabulary.merges) for word in words
    ]
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
        characters = {gpt2_bpe.CHARACTERS[byte] for byte in text[start:end].encode()}
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
    corpus = small_corpus.write(tmp_path / "corpus.txt", 100)
    config = TrainVocabConfig(
        input=str(corpus), output=str(tmp_path / "one"), size=350, method="byte_bpe", lowercase=False
    )
    tokenizer = run_train_vocab(config)
    assert tokenizer.vocab_size == 350 and tokenizer.kind == "byte_level"
    assert sorted(file.name for file in (tmp_path / "one").iterdir()) == [
        "merges.txt",
        "tokenizer_config.json",
        "vocab.json",
    ]
    again = train_vocab(corpus.read_text().split("\n\n"), config)[0]
    assert again.tokens == tokenizer.tokens and again.vocabulary.merges == tokenizer.vocabulary.merges
    tokenizer.save(tmp_path / "two")
    assert load_tokenizer(tmp_path / "two").fingerprint == tokenizer.fingerprint
    assert load_tokenizer(tmp_path / "two" / "vocab.json").fingerprint == tokenizer.fingerprint


def test_a_vocabulary_of_deberta_has_the_special_tokens_and_pairs_of_bert(tmp_path):
    """In the order of the published ids, with the pieces that RoBERTa's vocabulary of the same text has."""
    corpus = small_corpus.write(tmp_path / "corpus.txt", 100)
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
    corpus.write_text("\n\n".join(f"{text} Cafe\u0301 e\u0301te\u0301." for text in small_corpus.documents(100)))
    given = dict(input=str(corpus), output=str(tmp_path / "modernbert"), size=350, method="byte_bpe", lowercase=False)
    tokenizer = run_train_vocab(config := TrainVocabConfig(**given, family="modernbert"))
    unused = [f"[unused{i}]" for i in range(34)]
    assert tokenizer.tokens[345:] == ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", *unused]
    assert len(set(tokenizer.tokens)) == 384 and "\u00c3\u00a9" in tokenizer.tokens  # the two bytes of é, merged
    assert train_vocab(corpus.read_text().split("\n\n"), config)[0].fingerprint == tokenizer.fingerprint
    file = tmp_path / "modernbert/tokenizer.json"
    merges = [tuple(pair) for pair in json.loads(file.read_text())["model"]["merges"]]
    fast = tokenizers.Tokenizer.from_file(str(file))  # as transformers reads it
    for text in ["Cafe\u0301 caf\u00e9", "\u1100\u1161 \u212b", *TEXTS, *small_corpus.documents(3)]:
        composed = unicodedata.normalize("NFC", text)
        assert tokenizer.tokenize(text) == tokenizer.tokenize(composed) == gpt2_bpe.pieces(composed, merges)
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
    with pytest.raises(UserError, match=says) as caught:
        load_tokenizer(damaged(tmp_path / "vocabulary", change))
    assert "\n" not in str(caught.value)


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
