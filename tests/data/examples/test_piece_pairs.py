"""Pairs of segments of a store that was prepared with the SentencePiece vocabulary of another family."""

import numpy as np
import pytest
import small_corpus

from bert_jax.config import Config, DataConfig, MaskingConfig, PhaseConfig, PrepareConfig, TrainVocabConfig
from bert_jax.data.examples import Examples
from bert_jax.data.preparation.prepare import run_prepare
from bert_jax.data.preparation.vocabularies import run_train_vocab
from bert_jax.data.store import open_store
from bert_jax.errors import UserError


def store_of(place, family: str):
    corpus = small_corpus.write(place / "corpus.txt", 40)
    vocabulary = TrainVocabConfig(input=str(corpus), output=str(place / "v"), size=90, method="unigram", family=family)
    run_train_vocab(vocabulary)
    run_prepare(PrepareConfig(input=str(corpus), vocab=str(place / "v"), output=str(place / "s"), sentences="lines"))
    return open_store(place / "s")


def config(pairs: str) -> Config:
    phase = PhaseConfig(steps=9, sequence_length=64, batch_size=8)
    return Config(data=DataConfig(path="s", sentence_pairs=pairs), masking=MaskingConfig(unit="ngram"), phases=(phase,))


def test_sentence_order_pairs_with_the_vocabulary_of_albert(tmp_path):
    store = store_of(tmp_path, "albert")
    tokenizer, batch = store.tokenizer(), Examples(store, config("sop")).batch(np.arange(16))
    lines = small_corpus.documents(40)
    order = {tuple(tokenizer.encode(line)): number for number, line in enumerate("\n".join(lines).split("\n"))}
    ids = batch["input_ids"].copy()
    used = batch["masked_weights"] > 0
    ids[np.nonzero(used)[0], batch["masked_positions"][used]] = batch["masked_ids"][used]
    found = 0
    for row, types, mask, swapped in zip(
        ids, batch["token_type_ids"], batch["attention_mask"], batch["next_sentence_labels"]
    ):
        row, types = row[mask > 0].tolist(), types[mask > 0].tolist()
        ends = [place for place, token in enumerate(row) if token == tokenizer.sep_id]
        assert row[0] == tokenizer.cls_id and len(ends) == 2 and ends[1] == len(row) - 1
        assert types == [0] * (ends[0] + 1) + [1] * (ends[1] - ends[0])
        first, second = row[1 : ends[0]], row[ends[0] + 1 : -1]
        text = {tuple(first): 0, tuple(second): 1}
        numbers = [order[each] for each in text if each in order]  # segments of one whole sentence
        if len(numbers) == 2 and abs(numbers[0] - numbers[1]) == 1:
            found += 1
            assert (numbers[0] > numbers[1]) == bool(swapped)
    assert found > 2


def test_a_vocabulary_of_xlnet_needs_an_xlnet(tmp_path):
    store = store_of(tmp_path, "xlnet")
    with pytest.raises(UserError, match="puts its class token behind the texts, where this model does not read it"):
        Examples(store, config("none"))


def test_a_family_that_was_trained_without_pairs_has_none(tmp_path):
    store = store_of(tmp_path, "xlm-roberta")
    for pairs in ("nsp", "sop", "adjacent"):
        with pytest.raises(UserError, match="pre-trained without pairs: set data.sentence_pairs=none"):
            Examples(store, config(pairs))
