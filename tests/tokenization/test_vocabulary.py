"""Learning, measuring and extending vocabularies; texts are small and made here, real ones come with `shared_data`."""

import collections
import gzip
import random

import numpy as np
import pytest

from bert_jax.config import PrepareConfig, TrainVocabConfig
from bert_jax.config.commands import ExtendVocabConfig
from bert_jax.corpus.readers import read_documents
from bert_jax.data.chunks import Documents
from bert_jax.data.preparation.prepare import run_prepare
from bert_jax.data.preparation.vocabularies import (
    Sample,
    alphabet_of,
    basic_words,
    extend,
    find_words,
    learn_pieces,
    report,
    run_extend_vocab,
    run_train_vocab,
    spelled_with,
    train_vocab,
)
from bert_jax.data.store import open_store
from bert_jax.errors import UserError
from bert_jax.tokenization.tokenizer import Tokenizer, load_tokenizer
from bert_jax.tokenization.wordpiece import WordPiece

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
STEMS = "walk talk jump play train learn token mask word part count merge pair score corpus system model layer".split()
ENDINGS = ["", "s", "ed", "ing", "er", "ers", "able", "'s"]


def documents(number: int, seed: int = 0) -> list[str]:
    """Made-up inflected text, stems by Zipf's law, with some capitals, accents and characters that occur once."""
    draw = random.Random(seed)
    weights = [1 / rank for rank in range(1, len(STEMS) + 1)]
    texts = []
    for index in range(number):
        words = [stem + draw.choice(ENDINGS) for stem in draw.choices(STEMS, weights, k=60)]
        words[0] = words[0].title()
        texts.append(" ".join(words) + f". Caf\u00e9 no {index}: {chr(0x4E00 + index)}!")
    return texts


def options(place, **changes) -> TrainVocabConfig:
    return TrainVocabConfig(**{"input": "test", "output": str(place), "size": 300, "held_out": 0.1, **changes})


def naive_likelihood_merges(words: dict[str, int], alphabet: list[str], room: int, min_count: int) -> list[str]:
    """The definition, everything counted anew for each merge."""
    split = {word: [c if i == 0 else "##" + c for i, c in enumerate(word)] for word in words}
    vocabulary = list(alphabet)
    while len(vocabulary) < len(alphabet) + room:
        singles, pairs = collections.Counter(), collections.Counter()
        for word, parts in split.items():
            for part in parts:
                singles[part] += words[word]
            for pair in zip(parts, parts[1:]):
                pairs[pair] += words[word]
        ranked = [(-c / (singles[a] * singles[b]), -c, a, b) for (a, b), c in pairs.items() if c >= min_count]
        if not ranked:
            break
        *_, a, b = min(ranked)
        merged = a + b.removeprefix("##")
        for word, parts in split.items():
            rebuilt = []
            while parts:
                step = 2 if parts[:2] == [a, b] else 1
                rebuilt.append(merged if step == 2 else parts[0])
                parts = parts[step:]
            split[word] = rebuilt
        if merged not in vocabulary:
            vocabulary.append(merged)
    return vocabulary[len(alphabet) :]


@pytest.mark.parametrize("min_count", [1, 3, 40])
@pytest.mark.parametrize("seed", [0, 1])
def test_likelihood_merges_equal_the_definition(min_count, seed):
    draw = random.Random(seed)
    random_words = {"".join(draw.choices("abc", k=draw.randint(1, 9))): draw.randint(1, 30) for _ in range(150)}
    real_words = basic_words(collections.Counter(" ".join(documents(20, seed)).split()), True)
    for words in (random_words, real_words, {"aaaaaaa": 5, "aaaa": 3, "baaab": 2}):
        alphabet = alphabet_of(words, 1_000)
        expected = naive_likelihood_merges(words, alphabet, 120, min_count)
        assert learn_pieces(words, alphabet, 120, min_count) == expected
        assert expected or min_count == 40


def test_likelihood_score_by_hand():
    """The Hugging Face course's corpus: ##gs comes first there too, at 5 / (20 · 5).

    Then all pairs tie at 1/36 and ours takes the most frequent, p·u. By frequency ##u·##g, 20 times, would have been
    first.
    """
    words = {"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5}
    alphabet = alphabet_of(words, 100)
    assert learn_pieces(words, alphabet, 2, 1) == ["##gs", "pu"]
    assert learn_pieces(words, alphabet, 1, 20) == ["##ug"]
    assert learn_pieces(words, alphabet, 1, 21) == []


@pytest.mark.parametrize("method", ["frequency", "likelihood", "unigram", "bpe"])
def test_every_method_writes_the_same_file_twice(tmp_path, method):
    suffix = ".txt" if method in ("frequency", "likelihood") else ".model"
    for run in "ab":
        tokenizer, learned, held_out = train_vocab(documents(60), options(tmp_path / f"{run}{suffix}", method=method))
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    assert tokenizer.tokens[:5] == SPECIALS and tokenizer.special_ids == (0, 1, 2, 3, 4)
    assert tokenizer.vocab_size <= 300 and len(set(tokenizer.tokens)) == tokenizer.vocab_size
    assert (learned.num_documents, held_out.num_documents) == (54, 6)
    measured = report(tokenizer, held_out)
    assert 1 <= measured.pieces_per_word < 3 and 0.3 < measured.single_piece_words <= 1
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"a{suffix}", f"b{suffix}"]  # no temporary file stays


@pytest.mark.parametrize("method", ["frequency", "likelihood"])
def test_layout_and_size(tmp_path, method):
    """Specials, then the alphabet, then pieces; exactly `size` entries, or all there is when the corpus has no more."""
    rare = {"min_pair_count": 2} if method == "likelihood" else {}
    tokenizer, learned, _ = train_vocab(documents(60), options(tmp_path, method=method, size=150, **rare))
    words = basic_words(learned.words(), True)
    alphabet = alphabet_of(words, 72)
    assert tokenizer.vocab_size == 150 and tokenizer.tokens[5 : 5 + len(alphabet)] == alphabet
    assert all(len(token.removeprefix("##")) > 1 for token in tokenizer.tokens[5 + len(alphabet) :])
    everything, _, _ = train_vocab(documents(60), options(tmp_path, method=method, size=30_000, **rare))
    assert everything.vocab_size < 2_000 and {"walk", "cafe", "[MASK]", "##ing"} <= set(everything.tokens)


def test_frequency_is_byte_pair_encoding(tmp_path):
    """Sennrich et al. 2016: low 5, lowest 2, newer 6, wider 3. e·r stands there 9 times, then l·o and lo·w 7 times."""
    text = " ".join(["low"] * 5 + ["lowest"] * 2 + ["newer"] * 6 + ["wider"] * 3)
    tokenizer, _, _ = train_vocab([text], options(tmp_path, size=41, held_out=0))
    alphabet = alphabet_of(collections.Counter(text.split()), 18)
    assert tokenizer.tokens[5:23] == alphabet and tokenizer.tokens[23:26] == ["##er", "lo", "low"]


def test_rare_characters_do_not_eat_the_table():
    words = collections.Counter({"ab": 100, "ba": 90, **{chr(0x4E00 + i): 1 for i in range(3_000)}})
    assert len(alphabet_of(words, 10_000)) == 1_000 + 2
    alphabet = alphabet_of(words, 6)
    assert alphabet == ["a", "b", "\u4e00", "\u4e01", "##a", "##b"]
    assert list(spelled_with(words, alphabet)) == ["ab", "ba", "\u4e00", "\u4e01"]


def test_casing_survives_where_the_script_has_none(tmp_path):
    """Reading such a vocabulary as uncased would strip its vowel signs."""
    text = "\u0939\u093f\u0928\u094d\u0926\u0940 \u092d\u093e\u0937\u093e " * 50
    tokenizer, _, _ = train_vocab([text], options(tmp_path / "vocab.txt", lowercase=False, held_out=0, size=60))
    assert not load_tokenizer(tmp_path / "vocab.txt").lowercase
    assert tokenizer.unk_id not in tokenizer.encode("\u0939\u093f\u0928\u094d\u0926\u0940")
    cased, _, _ = train_vocab(documents(20), options(tmp_path / "cased.txt", lowercase=False))
    assert not cased.lowercase and any(token != token.lower() for token in cased.tokens[5:])


def test_sample_is_thinned_evenly_and_bounded():
    texts = [f"word{i:04} " + "x" * 90 for i in range(1_000)]
    everything, some = Sample(10**9), Sample(20_000)
    for text in texts:
        everything.add(text)
        some.add(text)
    assert everything.stride == 1 and everything.num_bytes == sum(map(len, texts))
    assert 10_000 <= some.num_bytes <= 20_000 and some.num_documents == 1_000
    kept = sorted(int(word[4:]) for word in some.words() if word.startswith("word"))
    assert kept == list(range(0, 1_000, some.stride))


def test_report_by_hand():
    tokenizer = Tokenizer(WordPiece([*SPECIALS, "the", "cat", "##s", "sat", "."], True))
    sample = Sample(10**6)
    sample.add("The cats sat. The \u72d7 sat.")  # the · cat ##s · sat · . · the · [UNK] · sat · .
    measured = report(tokenizer, sample)
    assert measured.num_words == 8
    assert measured.pieces_per_word == 9 / 8
    assert measured.single_piece_words == 6 / 8
    assert measured.unknown_words == 1 / 8 and measured.unknown_pieces == 1 / 9
    assert measured.pieces_per_byte == 9 / len("The cats sat. The \u72d7 sat.".encode())


@pytest.mark.parametrize("share", [0.01, 0.05, 0.1])
def test_what_a_run_holds_out_is_not_learned(tmp_path, share):
    """The held-out documents of the store of a corpus, whatever their share, hold words that no other document has."""
    corpus, store_path = tmp_path / "corpus.txt", tmp_path / "store"
    texts = documents(120)
    texts[20:20] = ["\u200b", "\u0301"]  # a store has no document for what has no token
    corpus.write_text("\n\n".join(texts), encoding="utf-8")

    run_train_vocab(options(tmp_path / "vocab.txt", input=str(corpus)))
    run_prepare(PrepareConfig(input=str(corpus), vocab=str(tmp_path / "vocab.txt"), output=str(store_path), workers=1))
    held_out = Documents(open_store(store_path), "held_out", share).numbers
    with_text = [text for text in texts if text not in ("\u200b", "\u0301")]
    assert len(held_out) == round(share * len(with_text))
    for number in held_out:
        texts[texts.index(with_text[number])] = "zyxwv " * 50
    corpus.write_text("\n\n".join(texts), encoding="utf-8")
    config = options(tmp_path / "learned.txt", input=str(corpus), held_out=share)
    tokenizer, learned, measured = train_vocab(read_documents(str(corpus)), config)
    assert set(measured.words()) == {"zyxwv"} and "zyxwv" not in learned.words()
    assert not any("zy" in token for token in tokenizer.tokens)


def test_the_only_document_is_learned_from(tmp_path):
    _, learned, held_out = train_vocab(documents(1), options(tmp_path, held_out=0.01))
    assert (learned.num_documents, held_out.num_documents) == (1, 0)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"size": 12}, "size=12 leaves no room"),
        ({"output": "{}/x.model"}, "x.model does not fit method=frequency"),
        ({"output": "{}/x.txt", "method": "bpe"}, "x.txt does not fit method=bpe"),
        ({"family": "albert", "method": "bpe"}, "family=albert with method=bpe: .* set --method=unigram"),
        ({"held_out": 0.9}, "held_out=0.9 must be"),
        ({"max_bytes": 0}, "max_bytes=0"),
        ({"method": "likelihood", "min_pair_count": 0}, "min_pair_count=0"),
        ({"min_pair_count": 3}, "min_pair_count=3 belongs to method=likelihood, not to frequency; leave it out"),
        ({"output": "{}/full", "method": "unigram"}, "already holds vocab.txt"),
        ({"output": "{}/full/vocab.txt/deeper"}, "is not a writable directory"),
    ],
)
def test_bad_options_are_refused_before_reading(tmp_path, changes, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "vocab.txt").write_text("")
    changes = {key: value.format(tmp_path) if isinstance(value, str) else value for key, value in changes.items()}
    before = sorted(tmp_path.rglob("*"))
    unread = iter(lambda: pytest.fail("the corpus was read"), None)
    with pytest.raises(UserError, match=message):
        train_vocab(unread, options(tmp_path / "new", **changes))
    assert sorted(tmp_path.rglob("*")) == before


def test_corpus_without_text_leaves_nothing(tmp_path):
    with pytest.raises(UserError, match="has no text"):
        train_vocab([" \n "], options(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_command_reads_a_file_and_prints_the_measures(tmp_path, capsys):
    (tmp_path / "corpus.txt").write_text("\n\n".join(documents(40)), encoding="utf-8")
    run_train_vocab(options(tmp_path / "vocab.txt", input=str(tmp_path / "corpus.txt")))
    shown = capsys.readouterr().out
    assert "fertility" in shown and "coverage" in shown and "[UNK]" in shown and "held-out" in shown
    assert load_tokenizer(tmp_path / "vocab.txt").lowercase


# Extension.

LETTERS = "abcdefghilnoprstuvy"
BASE = [*SPECIALS, "[unused0]", "[unused1]", "the", "dose", "of", *LETTERS, *("##" + c for c in LETTERS)]


def test_extension_keeps_every_id_and_reuses_unused_slots():
    tokenizer = Tokenizer(WordPiece(BASE, True))
    extended, added = extend(tokenizer, ["Aspirin", "dose", "Ibuprofen", "placebo-controlled", "aspirin"])
    assert added == ["aspirin", "ibuprofen", "placebo", "-", "controlled"]
    changed = [i for i, (old, new) in enumerate(zip(BASE, extended.tokens)) if old != new]
    assert changed == [5, 6] and extended.tokens[5:7] == added[:2] and extended.tokens[len(BASE) :] == added[2:]
    assert extended.encode("aspirin dose") == [5, tokenizer.encode("dose")[0]]
    assert extended.fingerprint != tokenizer.fingerprint


def test_words_are_found_by_pieces_saved():
    tokenizer = Tokenizer(WordPiece(BASE, True))
    sample = Sample(10**6)
    counts = {"the dose": 100, "aspirin": 20, "ibuprofen": 12, "at": 30, "12": 50, "qx": 40, "placebo": 3}
    sample.add(" ".join(f"{text} " * count for text, count in counts.items()))
    # 120, 96, 80 ([UNK]), 30.
    assert find_words(tokenizer, sample, 10, min_count=5) == ["aspirin", "ibuprofen", "qx", "at"]
    assert find_words(tokenizer, sample, 2, min_count=5) == ["aspirin", "ibuprofen"]


def test_extension_command(tmp_path, capsys):
    Tokenizer(WordPiece(BASE, False)).save(tmp_path / "base")
    (tmp_path / "words.txt").write_text("placebo\naspirin\n\nAspirin\n", encoding="utf-8")
    base, words = str(tmp_path / "base"), str(tmp_path / "words.txt")
    given = ExtendVocabConfig(vocab=base, words=words, output=str(tmp_path / "more" / "vocab.txt"))
    extended = run_extend_vocab(given)
    again = load_tokenizer(tmp_path / "more")
    assert again.fingerprint == extended.fingerprint and not again.lowercase
    assert again.tokens == [*SPECIALS, "placebo", "aspirin", *BASE[7:], "Aspirin"]
    assert "3 words added (2 in place of" in capsys.readouterr().out
    (tmp_path / "corpus.txt").write_text("\n\n".join(["aspirin dose"] * 20), encoding="utf-8")
    corpus = str(tmp_path / "corpus.txt")
    found = run_extend_vocab(ExtendVocabConfig(vocab=base, input=corpus, output=str(tmp_path / "found.txt")))
    assert found.tokens[5] == "aspirin" and len(found.tokens) == len(BASE)
    for wrong in ({}, {"words": words, "input": words}, {"words": words + "x"}, {"words": words, "max_words": 0}):
        with pytest.raises(UserError):
            run_extend_vocab(ExtendVocabConfig(vocab=base, output=str(tmp_path / "x"), **wrong))
    assert not (tmp_path / "x").exists()


def test_sentencepiece_cannot_be_extended(tmp_path):
    tokenizer, _, _ = train_vocab(documents(20), options(tmp_path, method="unigram", size=80))
    with pytest.raises(UserError, match="only a WordPiece vocabulary"):
        extend(tokenizer, ["aspirin"])


def test_more_entries_mean_fewer_pieces_on_wikipedia(tmp_path, shared_data):
    with gzip.open(shared_data / "wiki" / "wiki_valid.txt.gz", "rt", encoding="utf-8") as file:
        texts = file.read(500_000).split("\n\n")
    fertility = []
    for size in (500, 1_000, 4_000):
        tokenizer, _, held_out = train_vocab(texts, options(tmp_path / f"{size}.txt", size=size))
        assert tokenizer.vocab_size == size
        fertility.append(report(tokenizer, held_out).pieces_per_word)
    assert np.all(np.diff(fertility) < 0)


@pytest.mark.parametrize("family", ["albert", "xlm-roberta", "camembert", "deberta-v2", "xlnet"])
def test_a_vocabulary_of_a_family(tmp_path, family):
    tokenizer, _, _ = train_vocab(documents(60), options(tmp_path, method="unigram", family=family, size=130))
    names = {
        "albert": (["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"], [0, 1, 2, 3, 4]),
        "xlm-roberta": (["<pad>", "<unk>", "<s>", "</s>", "<mask>"], [1, 3, 0, 2, tokenizer.vocab_size - 1]),
        "camembert": (["<pad>", "<unk>", "<s>", "</s>", "<mask>"], [1, 3, 5, 6, tokenizer.vocab_size - 1]),
        "deberta-v2": (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], [0, 3, 1, 2, tokenizer.vocab_size - 1]),
        "xlnet": (["<pad>", "<unk>", "<cls>", "<sep>", "<mask>"], [5, 0, 3, 4, 6]),
    }[family]
    assert ([tokenizer.tokens[i] for i in tokenizer.special_ids], list(tokenizer.special_ids)) == names
    assert tokenizer.vocab_size == 130 and tokenizer.lowercase
    assert tokenizer.encode("Walk, CAFE") == tokenizer.encode("walk, cafe")
    assert tokenizer.class_last == (family == "xlnet") and tokenizer.separators == 1 + (names[0][2] == "<s>")
    again = load_tokenizer(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize(
    "changes", [{"method": "frequency"}, {"method": "unigram", "output": "{}/x.model"}, {"method": "byte_bpe"}]
)
def test_only_sentencepiece_vocabularies_in_directories_have_a_family(tmp_path, changes):
    place = changes.get("output", "{}").format(tmp_path)
    values = {"lowercase": False, "family": "xlnet", "size": 400} | changes
    with pytest.raises(UserError, match="only SentencePiece vocabularies belong to a family"):
        train_vocab(documents(9), options(place, **{name: values[name] for name in values if name != "output"}))
