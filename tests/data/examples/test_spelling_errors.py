"""Training rows with spelling errors: the same targets, words that were edited by their own pieces, exact positions."""

import dataclasses

import numpy as np
import pytest
import small_corpus

from bert_jax.config import Config, DataConfig, MaskingConfig, PhaseConfig, PrepareConfig, TrainVocabConfig
from bert_jax.config.checks import check
from bert_jax.config.objective import LeftToRight
from bert_jax.config.pretraining import PretrainingNoiseConfig
from bert_jax.data.examples import Examples
from bert_jax.data.pipeline import batches
from bert_jax.data.preparation.prepare import run_prepare
from bert_jax.data.preparation.vocabularies import run_train_vocab
from bert_jax.data.spelling_errors import edited_words
from bert_jax.data.store import open_store
from bert_jax.errors import UserError
from bert_jax.randomness import Stream, bits

CLEAN = PretrainingNoiseConfig()
NOISE = PretrainingNoiseConfig(rate=0.2)
ROWS = np.arange(24)


@pytest.fixture(scope="module", params=("frequency", "unigram", "byte_bpe"))
def store(request, tmp_path_factory):
    place = tmp_path_factory.mktemp(request.param)
    corpus = small_corpus.write(place / "corpus.txt", 60)
    size = {"frequency": 120, "unigram": 90, "byte_bpe": 400}[request.param]
    lowercase = request.param != "byte_bpe"
    vocabulary = TrainVocabConfig(
        input=str(corpus), output=str(place / "v"), size=size, method=request.param, lowercase=lowercase
    )
    run_train_vocab(vocabulary)
    run_prepare(PrepareConfig(input=str(corpus), vocab=str(place / "v"), output=str(place / "s"), sentences="lines"))
    return open_store(place / "s")


def examples(store, noise=CLEAN, packing="off", split="train", unit="token", **data) -> Examples:
    pairs = "none" if packing == "on" or store.tokenizer().separators > 1 else "nsp"
    data = DataConfig(path="s", sentence_pairs=pairs, packing=packing, noise=noise, **data)
    phase = PhaseConfig(steps=9, sequence_length=96, batch_size=8)
    return Examples(store, Config(data=data, masking=MaskingConfig(unit=unit), phases=(phase,)), split=split)


def assert_equal(first: dict, second: dict):
    assert first.keys() == second.keys()
    for name in first:
        assert first[name].dtype == second[name].dtype
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def at_predictions(batch: dict) -> list[np.ndarray]:
    """Targets, weights, and what the model reads in their places."""
    read = np.take_along_axis(batch["input_ids"], batch["masked_positions"].astype(np.int64), axis=1)
    return [batch["masked_ids"], batch["masked_weights"], read * (batch["masked_weights"] > 0)]


@pytest.mark.parametrize("packing", ("off", "on"))
@pytest.mark.parametrize("unit", ("token", "whole_word"))
def test_targets_are_clean_and_the_rows_are_whole(store, packing, unit):
    clean = examples(store, packing=packing, unit=unit).batch(ROWS)
    assert_equal(
        clean, examples(store, dataclasses.replace(NOISE, rate=0.0, reserve=0.3), packing, unit=unit).batch(ROWS)
    )
    noisy = examples(store, NOISE, packing, unit=unit).batch(ROWS)
    assert (noisy["input_ids"] != clean["input_ids"]).mean() > 0.02
    for ours, theirs in zip(at_predictions(noisy), at_predictions(clean), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    tokenizer = store.tokenizer()
    for name, places in (("sep", tokenizer.sep_id), ("cls", tokenizer.cls_id)):
        counts = [
            np.sum((batch["input_ids"] == places) & (batch["attention_mask"] > 0), axis=1) for batch in (noisy, clean)
        ]
        np.testing.assert_array_equal(*counts, err_msg=name)
    past = noisy["attention_mask"] == 0
    assert (noisy["input_ids"][past] == tokenizer.pad_id).all() and (noisy["token_type_ids"][past] == 0).all()
    if packing == "on":
        starts = np.take_along_axis(noisy["input_ids"], noisy["text_starts"].astype(np.int64), axis=1)
        assert (starts == tokenizer.cls_id).all()
        np.testing.assert_array_equal(noisy["text_ids"] > 0, noisy["attention_mask"] > 0)
        np.testing.assert_array_equal(noisy["text_ids"].max(axis=1), clean["text_ids"].max(axis=1))


def transcribed(store, clean: Examples, position: int, noise: PretrainingNoiseConfig) -> list[int]:
    """The ids of a row with every error that was drawn, word by word; there must be room for all of them."""
    tokenizer, epoch_index = store.tokenizer(), clean.locate(np.array([position]))
    key = bits(clean.seed, Stream.MASKS, epoch_index[0], 0, epoch_index[1])[0]
    batch = clean.batch(np.array([position]))
    ids, used = batch["input_ids"][0], batch["masked_weights"][0] > 0
    original = ids.copy()
    original[batch["masked_positions"][0][used]] = batch["masked_ids"][0][used]
    predicted = set(batch["masked_positions"][0][used].tolist())
    continues, special = tokenizer.continues_word(), {tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id}
    words: list[list[int]] = []
    result: list[list[int] | int] = []
    previous = None
    for place in range(int(batch["attention_mask"].sum())):
        if original[place] in special:
            previous = None
            result.append(int(ids[place]))
        elif previous is not None and continues[original[place]]:
            previous.append(place)
        else:
            previous = [place]
            words.append(previous)
            result.append(previous)
    number_of = {id(word): number for number, word in enumerate(words)}
    row: list[int] = []
    for part in result:
        if isinstance(part, int):
            row.append(part)
            continue
        old, text = [int(ids[place]) for place in part], tokenizer.decode(original[part])
        word_key = bits(key, Stream.EDITED_WORD, number_of[id(part)])
        (new,) = edited_words([text], np.array([word_key]), noise)
        stays = predicted & set(part) or tokenizer.unk_id in original[part] or continues[original[part[0]]]
        row += old if stays or new == text else tokenizer.encode_words([new])[0]
    return row


def test_each_word_is_edited_tokenized_and_put_into_its_place(store):
    noise = dataclasses.replace(NOISE, rate=0.05, reserve=0.4)
    noisy, errors = examples(store, noise), 0
    clean = examples(store, noise)
    clean._errors = None  # the same rows, with the same room
    for position in range(10):
        batch = noisy.batch(np.array([position]))
        wanted = transcribed(store, clean, position, noise)
        assert batch["input_ids"][0, : batch["attention_mask"].sum()].tolist() == wanted
        errors += len(wanted) - int(clean.batch(np.array([position]))["attention_mask"].sum())
    assert errors > 10


def test_a_batch_is_a_function_of_its_positions(store):
    whole = examples(store, NOISE).batch(ROWS)
    for part in (ROWS[:5], ROWS[::-1], ROWS[7:8]):
        alone = examples(store, NOISE).batch(part)
        assert_equal(alone, {name: values[part] for name, values in whole.items()})
    half = [next(iter(batches(examples(store, NOISE), 0, 8, rows, 1))) for rows in (np.arange(4), np.arange(4, 8))]
    both = {name: np.concatenate([part[name] for part in half]) for name in whole}
    assert_equal(both, {name: values[:8] for name, values in whole.items()})


def test_room_limits_what_is_edited_and_evaluation_is_clean(store):
    lengths = {}
    for reserve in (0.0, 0.4):
        chosen = examples(store, dataclasses.replace(NOISE, reserve=reserve), packing="on")
        before = dataclasses.replace(NOISE, reserve=reserve)
        kept = examples(store, before, packing="on")
        kept._errors = None
        noisy, clean = chosen.batch(ROWS), kept.batch(ROWS)
        lengths[reserve] = noisy["attention_mask"].sum() / clean["attention_mask"].sum()
        assert chosen.text_length == 96 - int(96 * reserve) and noisy["input_ids"].shape == (24, 96)
    assert lengths[0.4] > lengths[0.0] + 0.05
    held_out = [examples(store, noise, split="held_out", held_out=0.2) for noise in (NOISE, CLEAN)]
    assert_equal(held_out[0].batch(ROWS), held_out[1].batch(ROWS))


def test_objectives_without_masks_are_refused():
    config = Config(data=DataConfig(path="s", sentence_pairs="none", noise=NOISE))
    check(dataclasses.replace(config, workdir="w"))
    with pytest.raises(UserError, match="data.noise.rate=0.2 puts errors into words that are not predicted"):
        check(dataclasses.replace(config, objective=LeftToRight()))
