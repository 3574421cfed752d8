"""What `bert-jax doctor` finds in token stores: each failure is made on purpose, and a sound store has none."""

import dataclasses
import pathlib

import numpy as np
import pytest
import small_corpus
from synthetic_store import MASK, VOCAB_SIZE, SyntheticStore, random_documents, write_store

from bert_jax import cli
from bert_jax.config import Config, DataConfig, MaskingConfig, PhaseConfig, PrepareConfig
from bert_jax.config.pretraining import DoctorConfig
from bert_jax.data.preparation.prepare import run_prepare
from bert_jax.data.store import open_store
from bert_jax.tools.description import count_tokens
from bert_jax.tools.doctor import check_store, example_checks


def wrong(path) -> set[str]:
    return {check.name for check in check_store(str(path), DoctorConfig(sequence_length=64)) if check.is_wrong}


@pytest.fixture
def prepared(small_store, tmp_path):
    """Prepares texts with the vocabulary of the small corpus, or another one."""

    def prepare(texts: list[str], vocab: pathlib.Path = small_store.parent / "vocab.txt", **options) -> pathlib.Path:
        (tmp_path / "corpus.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
        names = {"input": str(tmp_path / "corpus.txt"), "vocab": str(vocab), "output": str(tmp_path / "store")}
        run_prepare(PrepareConfig(**names, sentences="lines", workers=1, **options))
        return tmp_path / "store"

    return prepare


def cased_vocabulary(small_store, place: pathlib.Path) -> pathlib.Path:
    """The vocabulary of the small corpus, and its words with a capital letter."""
    tokens = (small_store.parent / "vocab.txt").read_text().splitlines()
    plain = [token for token in tokens if token.isalpha()]
    file = place / "cased.txt"
    file.write_text("\n".join([*tokens, *(token.capitalize() for token in plain)]) + "\n")
    return file


def test_nothing_is_wrong_with_sound_stores(small_store, prepared, tmp_path):
    assert wrong(small_store) == set()
    cased = cased_vocabulary(small_store, tmp_path)
    assert wrong(prepared(small_corpus.documents(200), cased, lowercase=False)) == set()


def test_duplicated_documents_are_told(prepared):
    texts = small_corpus.documents(200)
    assert wrong(prepared([*texts, *texts[:20]])) == {"duplicated documents"}


def test_text_with_letters_that_the_vocabulary_lacks(prepared):
    texts = [text + "\nШла Саша по шоссе." for text in small_corpus.documents(200)]
    assert wrong(prepared(texts)) == {"unknown tokens"}


def test_lowercased_text_with_a_cased_vocabulary(prepared, small_store, tmp_path):
    texts = [text.lower() for text in small_corpus.documents(200)]
    store = prepared(texts, cased_vocabulary(small_store, tmp_path), lowercase=False)
    assert wrong(store) == {"wrong casing for the vocabulary"}


def test_capitals_with_an_uncased_vocabulary(prepared, caplog):
    store = prepared(small_corpus.documents(200), lowercase=False)
    assert wrong(store) == {"wrong casing for the vocabulary", "unknown tokens"}  # "The" is unknown


def test_too_few_documents(prepared):
    assert wrong(prepared(small_corpus.documents(60))) == {"too few documents"}


def test_documents_of_one_sentence_have_degenerate_pairs(prepared):
    """Every chunk is a single sentence, so that no second segment can follow the first."""
    sentences = list(dict.fromkeys("\n".join(small_corpus.documents(60)).splitlines()))
    store = prepared(sentences)
    assert wrong(store) == {"degenerate sentence pairs"}
    unlabelled = check_store(str(store), DoctorConfig(sequence_length=64, sentence_pairs="adjacent"))
    assert not any(check.is_wrong for check in unlabelled)


def sentences(seed: int = 0) -> SyntheticStore:
    return SyntheticStore(random_documents(300), seed)


def test_ids_that_the_vocabulary_does_not_have(tmp_path):
    store = sentences()
    store.all_tokens[1234] = VOCAB_SIZE + 7
    assert wrong(write_store(store, tmp_path / "store", 100)) == {"ids out of range"}


def test_special_tokens_in_the_text(tmp_path):
    store = sentences()
    store.all_tokens[1234] = MASK
    assert wrong(write_store(store, tmp_path / "store", 100)) == {"special tokens in the text"}


def test_a_damaged_store(tmp_path):
    path = write_store(sentences(), tmp_path / "store", 100)
    assert wrong(path) == set()
    tokens = bytearray((path / "shard-00001.tokens").read_bytes())
    tokens[100] ^= 1
    (path / "shard-00001.tokens").write_bytes(tokens)
    assert wrong(path) == {"damaged store"}


@pytest.mark.parametrize("most, expected", [(None, set()), (1, {"masks that select nothing"})])
def test_masks(small_store, most, expected):
    phase = PhaseConfig(sequence_length=64, max_predictions=most)
    config = Config(data=DataConfig(held_out=0.1), phases=(phase,))
    checks = example_checks(open_store(small_store), config)
    assert {check.name for check in checks if check.is_wrong} == expected
    spans = dataclasses.replace(config, masking=MaskingConfig(unit="span"))
    assert {check.name for check in example_checks(open_store(small_store), spans) if check.is_wrong} == expected


def test_one_pass_counts_what_a_loop_counts(tmp_path, monkeypatch):
    """In blocks that end within a shard, against the definition; equal documents have equal hashes, others do not."""
    monkeypatch.setattr("bert_jax.tools.description.BLOCK_TOKENS", 5_000)
    documents = [*random_documents(100), [3, 4], [4, 3], [3, 4]]
    store = SyntheticStore(documents)
    starts = store.document_tokens
    store.all_tokens[starts[-4] : starts[-3]] = store.all_tokens[starts[-2] : starts[-1]]  # the first of the last three
    opened, told = open_store(write_store(store, tmp_path / "store", 40)), []
    counts = count_tokens(opened, told.append)
    np.testing.assert_array_equal(counts.ids, np.bincount(store.all_tokens, minlength=VOCAB_SIZE))
    texts = [tuple(store.all_tokens[starts[i] : starts[i + 1]]) for i in range(len(documents))]
    assert len(counts.hashes) == len(texts)
    same = {(i, j) for i in range(len(texts)) for j in range(i) if texts[i] == texts[j]}
    assert same == {(i, j) for i in range(len(texts)) for j in range(i) if counts.hashes[i] == counts.hashes[j]}
    assert len(same) >= 1 and told[-1] == len(store.all_tokens) and len(told) > 5
    shares = np.bincount(store.all_tokens) / len(store.all_tokens)
    assert counts.entropy() == pytest.approx(-sum(share * np.log(share) for share in shares if share))


def test_the_command_says_what_to_do(prepared, small_store, capsys):
    assert cli._run(["bert-jax", "doctor", str(small_store), "--sequence_length=64"]) == 0
    assert "0 of 8 checks found something" in capsys.readouterr().out
    path = prepared(small_corpus.documents(60))
    capsys.readouterr()
    assert cli._run(["bert-jax", "doctor", str(path), "--sequence_length=64"]) == 1
    said = capsys.readouterr().out
    assert "wrong  too few documents: 60 documents" in said and "expected: at least 100" in said
    assert "what to do: " in said and "1 of 8 checks" in said
    assert cli._run(["bert-jax", "doctor", str(path), "--sequence_length=4"]) == 2
    assert cli._run(["bert-jax", "doctor", str(path.parent)]) == 2
    assert "not the work directory of a run" in capsys.readouterr().err
