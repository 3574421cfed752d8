"""Segments and windows of documents, mixtures of stores, and stores of many tokens.

Statistical bounds are at 5 standard deviations, or chi-square at p = 1e-6; all seeds are fixed.
"""

import dataclasses
import fractions
import itertools
import json
import random
import re

import documents
import numpy as np
import pytest
from scipy import stats
from synthetic_store import (
    VOCAB_SIZE,
    SyntheticStore,
    documents_of,
    edited,
    epoch_rows,
    hand_made,
    make_examples,
    random_documents,
    segments,
    synthetic_tokenizer,
    unverified,
    write_store,
)

from bert_jax import training_data
from bert_jax.config import Config, DataConfig, MaskingConfig, PhaseConfig, PrepareConfig, SkipGram, TrainVocabConfig
from bert_jax.config.checks import check
from bert_jax.config.model import ModelConfig
from bert_jax.config.objective import SHARED_NEGATIVES, SkipGramConfig
from bert_jax.config.pretraining import PhaseData
from bert_jax.data import packing
from bert_jax.data.mixtures import GRAINS, Mixture, assign, epoch_report, grains
from bert_jax.data.neighbours import NeighbourWindows
from bert_jax.data.preparation.prepare import run_prepare
from bert_jax.data.preparation.vocabularies import run_train_vocab
from bert_jax.data.store import PADDING, SPECIAL, open_store
from bert_jax.errors import UserError
from bert_jax.files import unsealed
from bert_jax.randomness import Stream, bits, uniform
from bert_jax.training_data import Examples, open_corpus

ADJACENT = {"sentence_pairs": "adjacent", "short": 0.05}


@pytest.fixture(scope="module")
def store():
    return SyntheticStore(random_documents(150))


def published_segments(lengths: list[int], target_length: int, draw) -> list[int]:
    """The segment, 0 or 1, of each sentence of an example; `draw()` is the next random number in [0, 1)."""
    wanted = 100_000 if draw() < 0.1 else (target_length - 3) // 2
    first, result = 0, []
    for length in lengths:
        goes_over = 1 not in result and first < wanted
        if first == 0 or first + length < wanted or (goes_over and draw() < 0.5):
            first += length
            result.append(0)
        else:
            result.append(1)
    return result


def expected_texts(store, examples, epoch: int, sequence_length: int):
    """For each text of an epoch the token offsets of its segments, by the rule, and whether it would have put some
    sentence back into the first segment."""
    indices = np.arange(examples.source.count(epoch))
    found = examples.source.find(epoch, examples.source.shuffled(epoch, indices))
    draws = uniform(bits(examples.seed, Stream.SPLIT, epoch, indices[:, None], np.arange(2)))
    starts = store.sentence_starts(np.arange(store.num_sentences))
    for begin, end, target, numbers in zip(found.begin, found.end, found.target, draws.tolist()):
        edges = [begin, *starts[(starts > begin) & (starts < end)], end]
        of_sentence = published_segments(np.diff(edges).tolist(), int(target) + 3, iter(numbers).__next__)
        chosen = np.maximum.accumulate(of_sentence)  # nothing goes back
        of_token = np.repeat(chosen, np.diff(edges))
        tokens = np.arange(begin, end)
        first, second = tokens[of_token == 0][: sequence_length - 2], tokens[of_token == 1]
        second = second[: max(0, sequence_length - len(first) - 3)]
        yield [first, second][: 2 if len(second) else 1], chosen.tolist() != of_sentence


@pytest.mark.parametrize("sequence_length", [24, 128])
@pytest.mark.parametrize("short", [0.05, 0.6])
def test_rows_are_those_of_the_published_rule_given_the_numbers_that_were_drawn(store, sequence_length, short):
    examples = make_examples(store, sentence_pairs="adjacent", sequence_length=sequence_length, short=short)
    for epoch in (0, 12):
        rows, kinds = epoch_rows(examples, epoch), set()
        texts = list(expected_texts(store, examples, epoch, sequence_length))
        for index, types, cut, (parts, _) in zip(rows.token_index, rows.token_type_ids, rows.truncated, texts):
            expected = np.full(sequence_length, PADDING)
            expected_types = np.zeros(sequence_length, int)
            expected[0], place = SPECIAL, 1
            for segment, tokens in enumerate(parts):
                expected[place : place + len(tokens)] = tokens
                expected[place + len(tokens)] = SPECIAL
                expected_types[place : place + len(tokens) + 1] = segment
                place += len(tokens) + 1
            np.testing.assert_array_equal(index, expected)
            np.testing.assert_array_equal(types, expected_types)
            kinds.add((len(parts), cut > 0))
        assert kinds == {(1, False), (1, True), (2, False), (2, True)}
        assert len(texts) == len(rows.lengths) and rows.labels is None and not rows.duplicated.any()
        assert 0 < np.mean([goes_back for _, goes_back in texts]) < 0.2  # what the published rule puts out of order


def test_packed_texts_are_those_of_the_published_rule(store, monkeypatch):
    """Where no text gives up a token for a place; chunks are divided between texts, and none needs a cut."""
    monkeypatch.setattr(packing, "TOLERANCE", 0)
    examples = make_examples(store, packing="on", sequence_length=128, **ADJACENT)
    rows = epoch_rows(examples, 3)
    found = []
    for index, types, numbers in zip(rows.token_index, rows.token_type_ids, rows.text_ids):
        for number in range(1, numbers.max() + 1):
            here = numbers == number
            parts = [index[here & (types == segment) & (index >= 0)].tolist() for segment in (0, 1)]
            assert (index[here] == SPECIAL).sum() == 1 + sum(map(bool, parts))
            found.append([part for part in parts if part])
    expected = [[part.tolist() for part in parts] for parts, _ in expected_texts(store, examples, 3, 128)]
    assert sorted(found) == sorted(expected) and {len(parts) for parts in found} == {1, 2}
    assert rows.labels is None and not rows.truncated.any()


def test_rows_are_consecutive_text_of_one_document(store):
    rows = epoch_rows(make_examples(store, sequence_length=128, **ADJACENT), 1)
    for first, second in segments(rows):
        text = np.concatenate([first, second])
        assert (np.diff(text) == 1).all() and len(set(documents_of(store, text))) == 1


def test_one_text_in_ten_is_a_single_segment_and_the_middle_sentence_goes_either_way():
    """Documents of eight sentences of 15 tokens: half of the target is 62, which the fifth sentence reaches."""
    store = SyntheticStore([[15] * 8] * 4000)
    rows = epoch_rows(make_examples(store, sentence_pairs="adjacent", short=0.0, sequence_length=128), 0)
    count = np.bincount([len(first) for first, _ in segments(rows)], minlength=121)
    assert count.sum() == count[[60, 75, 120]].sum() == 4000
    assert stats.chisquare(count[[60, 75, 120]], [1800, 1800, 400]).pvalue > 1e-6


def published_examples(documents, sequence_length: int, seed: int):
    """The lengths of the segments of all examples, made from the front of each document as in the published code."""
    draw, target, examples = random.Random(seed), sequence_length, []
    for document in documents:
        waiting = []
        for number, length in enumerate(document):
            waiting.append(length)
            if sum(waiting) < target and number < len(document) - 1:
                continue
            of_sentence = published_segments(waiting, target, draw.random)
            first, second = (sum(n for n, each in zip(waiting, of_sentence) if each == segment) for segment in (0, 1))
            first = min(first, sequence_length - 2)
            examples.append((first, min(second, max(0, sequence_length - first - 3))))
            waiting, target = [], sequence_length
            if draw.random() < 0.05:
                target = draw.randint(5, sequence_length)
    return np.array(examples)


def test_epochs_are_near_the_published_procedure():
    """Close, not equal: its examples end with the sentence that fills them, ours with the cell of a chunk."""
    documents = random_documents(600, seed=3)[:600]
    theirs = published_examples(documents, 128, seed=0)
    examples = make_examples(SyntheticStore(documents), sequence_length=128, **ADJACENT)
    ours = np.array([[len(first), len(second)] for first, second in segments(epoch_rows(examples, 0))])
    single, mean, first = (
        [measure(each) for each in (ours, theirs)]
        for measure in (
            lambda lengths: (lengths[:, 1] == 0).mean(),
            lambda lengths: lengths.sum(1).mean(),
            lambda lengths: lengths[lengths[:, 1] > 0, 0].mean(),
        )
    )
    assert abs(single[0] - single[1]) < 0.05 and 0.9 < mean[0] / mean[1] < 1 and 0.9 < first[0] / first[1] < 1.05
    report = epoch_report(examples)
    assert report.is_next is None and report.sentences_seen == 1 and report.duplicated == 0


PAD, CLS, SEP, LENGTH, ROWS = 0, 2, 3, 16, 600
COUNTS = np.array([0, 0, 0, 0, 0, 900, 90, 9, 40, 0, 300])
NEIGHBOUR_SPECIAL = 5  # ids below


@pytest.fixture(scope="module")
def given():
    """ROWS rows of [CLS], eight words, [SEP], three words, [SEP], as `NeighbourWindows` takes them."""
    ids = np.full((ROWS, LENGTH), PAD, np.int32)
    words = np.random.default_rng(0).choice(np.flatnonzero(COUNTS), (ROWS, 11))
    ids[:, 0], ids[:, 1:9], ids[:, 9], ids[:, 10:13], ids[:, 13] = CLS, words[:, :8], SEP, words[:, 8:], SEP
    return ids, ids >= NEIGHBOUR_SPECIAL, np.full(ROWS, 14), bits(7, Stream.MASKS, np.arange(ROWS))


def rows(given, **options):
    return NeighbourWindows(SkipGramConfig(**options), COUNTS, PAD)(*given)


def test_a_row_keeps_its_words_alone_and_in_order(given):
    found = rows(given)
    np.testing.assert_array_equal(found["input_ids"][:, :11], given[0][:, [*range(1, 9), 10, 11, 12]])
    np.testing.assert_array_equal(found["attention_mask"].sum(axis=1), 11)
    np.testing.assert_array_equal(found["windows"].max(axis=2) > 0, found["attention_mask"] > 0)


def test_in_packed_rows_no_text_has_neighbours_in_another(small_store):
    objective = SkipGram()
    phase = PhaseConfig(sequence_length=256, batch_size=16)
    config = Config(phases=(phase,), data=DataConfig(sentence_pairs="none", packing="on"), objective=objective)
    examples = Examples(open_store(small_store), config)
    where = examples.locate(np.arange(16))
    batch, texts = examples.examples_at(*where), examples.rows(*where)
    assert {name: (array.shape[1:], array.dtype) for name, array in batch.items()} == examples.layout
    several = 0
    for row in range(16):
        sizes = np.bincount(texts.text_ids[row][texts.token_index[row] >= 0])[1:]
        several += len(sizes) > 1
        assert batch["attention_mask"][row].sum() == sizes.sum()
        number, place = np.repeat(np.arange(len(sizes)), sizes), np.arange(sizes.sum())
        before, after = batch["windows"][row, : sizes.sum()].T
        assert (number[place - before] == number).all() and (number[place + after] == number).all()
        assert (np.maximum(before, after) > 0)[sizes[number] > 1].all()
    assert several > 8


def test_windows_are_as_often_of_every_width(given):
    before, after = np.moveaxis(rows(given, window=4)["windows"][:, :11], 2, 0)
    inside = before[:, 4]  # the fifth of eight words
    assert stats.chisquare(np.bincount(inside, minlength=5)[1:]).pvalue > 0.001
    np.testing.assert_array_equal(np.minimum(inside, 3), after[:, 4])


def test_windows_end_with_the_text(given):
    before, after = np.moveaxis(rows(given, window=4)["windows"][:, :11], 2, 0)
    room = np.array([*range(8), *range(3)])
    np.testing.assert_array_equal(before.max(axis=0), np.minimum(room, 4))
    np.testing.assert_array_equal(after.max(axis=0), np.minimum([*range(7, -1, -1), 2, 1, 0], 4))


def test_random_words_are_drawn_by_their_counts_to_the_three_quarters(given):
    drawn = np.bincount(rows(given)["negatives"].ravel(), minlength=len(COUNTS))
    assert not drawn[COUNTS == 0].any()
    there = COUNTS > 0
    expected = ROWS * SHARED_NEGATIVES * COUNTS[there] ** 0.75 / (COUNTS**0.75).sum()
    assert stats.chisquare(drawn[there], expected).pvalue > 0.001
    flat = ROWS * SHARED_NEGATIVES * COUNTS[there] / COUNTS.sum()
    assert stats.chisquare(drawn[there], flat).pvalue < 1e-9  # the test would see another power


def test_frequent_words_are_left_out_by_their_share(given):
    found = rows(given, subsampling=0.01)
    stay = np.bincount(found["input_ids"][found["attention_mask"] > 0], minlength=len(COUNTS))
    there = np.bincount(given[0][given[1]], minlength=len(COUNTS))
    for word in np.flatnonzero(COUNTS):
        share = COUNTS[word] / COUNTS.sum()
        kept = min(1.0, np.sqrt(0.01 / share))
        assert stats.binomtest(int(stay[word]), int(there[word]), kept).pvalue > 0.001


def test_the_store_counts_every_token_once(small_store, monkeypatch):
    store = open_store(small_store)
    monkeypatch.setattr("bert_jax.data.store._COUNTED", 1000)
    expected = np.zeros(store.vocab_size, int)
    np.add.at(expected, np.concatenate(store.arrays["tokens"]), 1)
    np.testing.assert_array_equal(store.token_counts, expected)


def store_of(place, family: str):
    corpus = documents.write(place / "corpus.txt", 40)
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
    lines = documents.documents(40)
    order = {tuple(tokenizer.encode(line)): number for number, line in enumerate("\n".join(lines).split("\n"))}
    ids = batch["input_ids"].copy()
    used = batch["masked_weights"] > 0
    ids[np.nonzero(used)[0], batch["masked_positions"][used]] = batch["masked_ids"][used]
    found = 0
    others = (batch[name] for name in ("token_type_ids", "attention_mask", "next_sentence_labels"))
    for row, types, mask, swapped in zip(ids, *others):
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


PHASE = PhaseConfig(steps=20, sequence_length=64, batch_size=16)
CONFIG = Config(phases=(PHASE,), data=DataConfig(held_out=0.0))
PARTS = ([3, 1], [0.7, 0.2, 0.1], [1, 0, 5, 2], [1e-9, 1.0], [1.0])


@pytest.mark.parametrize("weights", PARTS, ids=str)
def test_shares_are_exact_to_half_an_example_per_store_at_every_position(weights):
    counts = grains(np.array(weights, float))
    assert counts.sum() == GRAINS and np.all((counts > 0) == (np.array(weights) > 0))
    number, own = assign(np.arange(1_000_000), counts)
    expected = np.arange(1, 1_000_001)[:, None] * counts / GRAINS
    for store, count in enumerate(counts):
        here = np.flatnonzero(number == store)
        np.testing.assert_array_equal(own[here], np.arange(len(here)))  # its examples in their order, none left out
        seen = np.cumsum(number == store)
        assert np.abs(seen - expected[:, store]).max() <= len(weights) / 2, count


def test_a_period_has_its_exact_shares_and_goes_on_in_the_next():
    counts = grains(np.array([0.61, 0.3, 0.09]))
    number, own = assign(np.arange(GRAINS), counts)
    np.testing.assert_array_equal(np.bincount(number), counts)
    positions = np.random.default_rng(0).integers(0, 1 << 40, 1000)
    later, places = assign(positions, counts)
    np.testing.assert_array_equal(later, number[positions % GRAINS])
    np.testing.assert_array_equal(places, own[positions % GRAINS] + positions // GRAINS * counts[later])


def test_the_order_of_stores_is_that_of_an_exact_line():
    """The same rule one position after the other, in fractions: a store is due when its rounded line goes up."""
    counts = grains(np.array([5.0, 2.0, 1.0]))
    left, seen = [0, 0, 0], []
    for _ in range(2_000):
        for store, total in enumerate((8, 3, 1)):
            slope = fractions.Fraction((5, 2, 1)[store], total)
            line = [(place * slope + fractions.Fraction(1, 2)).__floor__() for place in (left[store], left[store] + 1)]
            left[store] += 1
            if line[1] > line[0]:
                seen.append(store)
                break
    assert assign(np.arange(2_000), counts)[0].tolist() == seen


@pytest.fixture(scope="module")
def sources():
    stores = [SyntheticStore(random_documents(count, seed), seed) for seed, count in enumerate((40, 12, 5))]
    return {name: Examples(store, CONFIG, seed=7) for name, store in zip(("a", "b", "c"), stores, strict=True)}


def test_rows_are_those_of_the_stores_on_any_number_of_hosts(sources):
    mixture = Mixture(sources, np.array([0.5, 0.3, 0.2]))
    positions = np.arange(500, 564)
    whole = mixture.batch(positions)
    number, own = assign(positions, mixture.grains)
    for row, (store, place) in enumerate(zip(number, own, strict=True)):
        alone = list(sources.values())[store].batch(np.array([place]))
        for name, values in alone.items():
            np.testing.assert_array_equal(whole[name][row], values[0])
    for hosts in (2, 4):
        parts = [mixture.batch(rows) for rows in positions.reshape(hosts, -1)]
        for name, values in whole.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), values)
    assert {name: values.shape[1:] for name, values in whole.items()} == {n: s for n, (s, _) in mixture.layout.items()}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Three stores of one vocabulary, and their tokens."""
    directory, found = tmp_path_factory.mktemp("stores"), {}
    for seed, (name, count) in enumerate((("wiki", 60), ("books", 20), ("code", 6))):
        store = SyntheticStore(random_documents(count, seed), seed)
        path = write_store(store, directory / name, 1000)
        found[name] = str(path), store.num_tokens
    return found


def with_mixture(text, *, phases=(PHASE,), **data):
    return dataclasses.replace(CONFIG, phases=phases, data=DataConfig(mixture=text, held_out=0.0, **data))


def test_shares_follow_from_sizes_flattened_by_the_temperature_of_the_phase(places):
    """XLM-R, section 3.1: the tokens that are read of each are proportional to n^(1/T); here also in rows drawn."""
    paths, tokens = zip(*places.values(), strict=True)
    temperatures = 3.0, 1.0, 0.5  # the first is the run's
    phases = (PHASE, *(dataclasses.replace(PHASE, data=PhaseData(mixture_temperature=t)) for t in temperatures[1:]))
    config = with_mixture(",".join(paths), phases=phases, mixture_temperature=temperatures[0])
    for temperature, mixture in zip(temperatures, open_corpus(config).training, strict=True):
        sequences = np.array([examples.num_examples(0) for examples in mixture.sources.values()])
        shares, counted = np.array([*mixture.shares.values()]), np.bincount(assign(np.arange(4096), mixture.grains)[0])
        wanted = np.array(tokens, float) ** (1 / temperature)
        read = shares * np.array(tokens) / sequences
        np.testing.assert_allclose(read / read.sum(), wanted / wanted.sum(), rtol=1e-4)
        np.testing.assert_allclose(counted / 4096, shares, atol=2 / 4096)
        if temperature == 1:  # all are read equally often
            np.testing.assert_allclose(shares / sequences * sum(sequences), 1, rtol=1e-3)


def test_budgets_are_tokens_and_say_how_often_a_small_store_is_read(places, caplog):
    (wiki, wiki_tokens), (code, code_tokens) = places["wiki"], places["code"]
    config = with_mixture(f"{wiki}=10K,{code}=20K")
    (mixture,) = open_corpus(config).training
    sequences = {name: examples.num_examples(0) for name, examples in mixture.sources.items()}
    read = {name: share * places[name][1] / sequences[name] for name, share in mixture.shares.items()}
    assert read["code"] / read["wiki"] == pytest.approx(2, rel=1e-4)
    assert 10_000 < wiki_tokens and code_tokens < 20_000
    times = mixture.shares["code"] * 20 * 16 / sequences["code"]
    (repeated,) = [record.message for record in caplog.records if "fewer than its budget" in record.message]
    wanted = f"{code} has {code_tokens:,} tokens, fewer than its budget of 20,000: each is read {times:.3g} times"
    assert wanted in repeated


def test_phases_change_weights_and_stores(places):
    wiki, books, code = (places[name][0] for name in ("wiki", "books", "code"))
    phases = (PHASE, dataclasses.replace(PHASE, mixture=f"{books}=1,{code}=1"))
    corpus = open_corpus(with_mixture(f"{wiki}=0.75,{books}=0.25", phases=phases))
    assert list(corpus.stores) == ["wiki", "books", "code"]
    assert [each.shares for each in corpus.training] == [{"wiki": 0.75, "books": 0.25}, {"books": 0.5, "code": 0.5}]
    other = open_corpus(with_mixture(f"{wiki}=0.75,{books}=0.25"))
    swapped = open_corpus(with_mixture(f"{wiki}=0.25,{books}=0.75"))
    assert len({corpus.fingerprint, other.fingerprint, swapped.fingerprint}) == 3
    again = open_corpus(with_mixture(f"{wiki}=3,{books}=1"))
    assert again.fingerprint == other.fingerprint
    np.testing.assert_array_equal(*(each.training[0].batch(np.arange(8))["input_ids"] for each in (again, other)))


def test_stores_of_one_name_are_told_apart_by_their_parents(places, tmp_path):
    for parent, (name, number) in itertools.product("xy", [("store", 1)]):
        write_store(SyntheticStore(random_documents(10, number), ord(parent)), tmp_path / parent / name, 1000)
    corpus = open_corpus(with_mixture(f"{tmp_path}/x/store=1,{tmp_path}/y/store=1"))
    assert list(corpus.stores) == ["x_store", "y_store"]


@pytest.mark.parametrize(
    "mixture, options, message",
    [
        ("a=0,b=0", {}, "data.mixture=a=0,b=0: the weights add up to nothing"),
        ("a=0.5,a=0.5", {}, "names a twice; give each store once"),
        ("a=0.5,b", {}, "give all stores a weight (STORE=0.7), all a budget in tokens (STORE=300M), or none"),
        ("a=0.5,b=3M", {}, "give all stores a weight"),
        ("a=-1,b=2", {}, "'a=-1' gives a the weight '-1'; give a number from 0 on"),
        ("a=nan", {}, "gives a the weight 'nan'"),
        ("a=much", {}, "gives a the weight 'much'"),
        ("=1", {}, "'=1' names no store"),
        (",", {}, "names no store"),
        ("a,b", {"path": "c"}, "data.path=c and data.mixture=a,b: give one of them"),
        ("a=1,b=2", {"mixture_temperature": 2.0}, "data.mixture_temperature=2.0, but data.mixture=a=1,b=2 says"),
        ("a,b", {"mixture_temperature": 0.0}, "data.mixture_temperature=0.0 must be a positive number"),
        ("", {"mixture_temperature": 2.0}, "has no effect without data.mixture"),
        ("", {"phases": (PhaseConfig(mixture="a"),)}, "phases.0.mixture=a, but data.mixture is"),
    ],
)
def test_a_bad_mixture_is_refused(mixture, options, message):
    with pytest.raises(UserError, match=re.escape(message)):
        check(with_mixture(mixture, **options))


def test_stores_must_have_one_vocabulary(places, tmp_path):
    other = write_store(SyntheticStore(random_documents(10)), tmp_path / "other", 1000)
    manifest = other / "manifest.json"
    manifest.write_text(edited(unsealed(json.loads(manifest.read_text())), ["tokenizer", "fingerprint"], "0" * 64))
    config = with_mixture(f"{places['wiki'][0]}=1,{other}=1")
    with pytest.raises(UserError, match="other was prepared with a vocabulary different from that of .*wiki"):
        open_corpus(dataclasses.replace(config, model=ModelConfig()))


SENTENCE, DOCUMENT, FIRST = 1 << 14, 1 << 18, 100_000
"""Tokens of a sentence, about the longest that `prepare` keeps; of a document; and of the first document."""
SIZE = 5 << 30
LARGE_CONFIG = dataclasses.replace(CONFIG, phases=(dataclasses.replace(PHASE, sequence_length=128),), seed=3)


def written(positions):
    """The ids of the documents that are not zeros: a function of the position in the whole store."""
    return 5 + positions * 7919 % (VOCAB_SIZE - 5)


def document_with(position):
    """Return [begin, end) of the document of a token."""
    begin = (position - FIRST) // DOCUMENT * DOCUMENT + FIRST
    return begin, min(begin + DOCUMENT, SIZE)


MARKED = [document_with(position) for position in (1 << 31, 1 << 32, SIZE - 1)]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """The store on disk: one shard beyond 2^32 tokens, and a small one behind it."""
    documents = np.append(0, np.arange(FIRST, SIZE, DOCUMENT))
    lengths = np.diff(np.append(documents, SIZE))
    per_document = -(-lengths // SENTENCE)
    sentences = np.concatenate(
        [np.arange(begin, begin + length, SENTENCE) for begin, length in zip(documents, lengths, strict=True)]
    )
    firsts = np.cumsum(np.append(0, per_document))[:-1]
    path = tmp_path_factory.mktemp("large") / "store"
    hand_made(path, [(SIZE, {}, sentences, firsts), (7, dict.fromkeys(range(7), 9), [0, 3], [0, 1])], hashed=False)
    with (path / "shard-00000.tokens").open("r+b") as file:
        for begin, end in MARKED:
            file.seek(2 * begin)
            file.write(written(np.arange(begin, end)).astype("<u2").tobytes())
    store = unverified(path)
    store.tokenizer = synthetic_tokenizer
    return store


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "store"
    sentences = np.arange(0, 50_000, 25)
    ids = dict(enumerate(written(np.arange(50_000))))
    store = unverified(hand_made(path, [(50_000, ids, sentences, np.arange(0, 2_000, 20))], hashed=False))
    store.tokenizer = synthetic_tokenizer
    return store


def test_documents_beyond_32_bits_are_cut_without_a_gap(large):
    examples = Examples(large, LARGE_CONFIG)
    starts = examples.documents.token_starts
    for begin, end in MARKED:
        document = int(np.searchsorted(starts, begin))
        chunks = examples.source.of_document(4, document)
        found = examples.source.find(4, chunks)
        assert found.begin[0] == begin and found.end[-1] == end
        np.testing.assert_array_equal(found.begin[1:], found.end[:-1])
        np.testing.assert_array_equal(examples.source.shuffled(4, examples.source.indices_of(4, chunks)), chunks)
    assert end == SIZE > 1 << 32


def test_rows_beyond_32_bits_have_the_tokens_of_their_positions(large):
    examples = Examples(large, LARGE_CONFIG)
    for begin, _ in MARKED:
        document = int(np.searchsorted(examples.documents.token_starts, begin))
        chunks = examples.source.of_document(0, document)[-40:]
        indices = examples.source.indices_of(0, chunks)
        epochs = np.zeros_like(indices)
        rows, batch = examples.rows(epochs, indices), examples.examples_at(epochs, indices)
        ids = batch["input_ids"].copy()
        row, slot = np.nonzero(batch["masked_weights"])
        ids[row, batch["masked_positions"][row, slot]] = batch["masked_ids"][row, slot]
        places = rows.token_index[rows.token_index >= 0]
        marked = np.any([(begin <= places) & (places < end) for begin, end in MARKED], axis=0)
        assert marked.sum() > 1000
        np.testing.assert_array_equal(ids[rows.token_index >= 0], np.where(marked, written(places), 0))


def test_a_mixture_far_behind_32_bits_takes_the_rows_of_its_stores(large, small):
    sources = {"large": Examples(large, LARGE_CONFIG), "small": Examples(small, LARGE_CONFIG)}
    positions = np.arange((1 << 33) + 5, (1 << 33) + 45)
    batch = Mixture(sources, np.array([0.75, 0.25])).batch(positions)
    for row, position in enumerate(positions.tolist()):
        before, behind = ((place * 3 + 2) // 4 for place in (position, position + 1))  # rows of `large`, of 3/4 of all
        name, own = ("large", before) if behind > before else ("small", position - before)
        alone = sources[name].batch(np.array([own]))
        for key, values in alone.items():
            np.testing.assert_array_equal(batch[key][row], values[0])


@pytest.mark.parametrize(
    "amounts, budgets", [(("", ""), None), (("=6B", "=50K"), (6e9, 5e4))], ids=["sizes", "budgets"]
)
def test_shares_count_tokens_beyond_32_bits(large, small, monkeypatch, caplog, amounts, budgets):
    monkeypatch.setattr(training_data, "open_store", lambda path, cache: {"large": large, "small": small}[path])
    data = DataConfig(mixture=f"large{amounts[0]},small{amounts[1]}", held_out=0.0)
    (mixture,) = open_corpus(dataclasses.replace(LARGE_CONFIG, data=data)).training
    tokens = np.array([large.num_tokens, small.num_tokens])
    rows = [examples.num_examples(0) for examples in mixture.sources.values()]
    read = np.array(list(mixture.shares.values())) * tokens / rows
    wanted = np.array(budgets or tokens, float)
    assert read[1] / read.sum() == pytest.approx(wanted[1] / wanted.sum(), abs=2 / GRAINS)
    told = [record.getMessage() for record in caplog.records if "fewer than its budget" in record.getMessage()]
    assert told == [] if budgets is None else f"{tokens[0]:,} tokens, fewer than its budget of 6,000,000,000" in told[0]
