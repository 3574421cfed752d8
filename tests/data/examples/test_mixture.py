import dataclasses
import fractions
import itertools
import json

import numpy as np
import pytest
from hand_made_store import edited
from synthetic_store import SyntheticStore, random_documents, write_store

from bert_jax.config import Config, DataConfig, ModelConfig, PhaseConfig
from bert_jax.config.checks import check
from bert_jax.data.examples import Examples
from bert_jax.data.mixtures import GRAINS, Mixture, assign, grains, open_corpus
from bert_jax.errors import UserError
from bert_jax.files import unsealed

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


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_shares_follow_from_sizes_flattened_by_a_temperature(places, temperature):
    """XLM-R, section 3.1: the tokens that are read of each are proportional to n^(1/T)."""
    paths, tokens = zip(*places.values(), strict=True)
    (mixture,) = open_corpus(with_mixture(",".join(paths), mixture_temperature=temperature)).training
    sequences = [examples.num_examples(0) for examples in mixture.sources.values()]
    read = np.array(list(mixture.shares.values())) * np.array(tokens) / np.array(sequences)
    wanted = np.array(tokens, float) ** (1 / temperature)
    np.testing.assert_allclose(read / read.sum(), wanted / wanted.sum(), rtol=1e-4)
    if temperature == 1:  # all are read equally often
        np.testing.assert_allclose(np.array(list(mixture.shares.values())) / sequences * sum(sequences), 1, rtol=1e-3)


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
    ("mixture", "message"),
    [
        ("a=0,b=0", "data.mixture=a=0,b=0: the weights add up to nothing"),
        ("a=0.5,a=0.5", "names a twice; give each store once"),
        ("a=0.5,b", "give all stores a weight (STORE=0.7), all a budget in tokens (STORE=300M), or none"),
        ("a=0.5,b=3M", "give all stores a weight"),
        ("a=-1,b=2", "'a=-1' gives a the weight '-1'; give a number from 0 on"),
        ("a=nan", "gives a the weight 'nan'"),
        ("a=much", "gives a the weight 'much'"),
        ("=1", "'=1' names no store"),
        (",", "names no store"),
    ],
)
def test_bad_mixtures_are_one_line(mixture, message):
    with pytest.raises(UserError) as error:
        check(with_mixture(mixture))
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (with_mixture("a,b", path="c"), "data.path=c and data.mixture=a,b: give one of them"),
        (
            with_mixture("a=1,b=2", mixture_temperature=2.0),
            "data.mixture_temperature=2.0, but data.mixture=a=1,b=2 says",
        ),
        (with_mixture("a,b", mixture_temperature=0.0), "data.mixture_temperature=0.0 must be a positive number"),
        (with_mixture("", mixture_temperature=2.0), "has no effect without data.mixture"),
        (
            with_mixture("", phases=(dataclasses.replace(PHASE, mixture="a"),)),
            "phases.0.mixture=a, but data.mixture is",
        ),
    ],
)
def test_options_that_contradict_each_other_are_one_line(config, message):
    with pytest.raises(UserError) as error:
        check(config)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_stores_must_have_one_vocabulary(places, tmp_path):
    other = write_store(SyntheticStore(random_documents(10)), tmp_path / "other", 1000)
    manifest = other / "manifest.json"
    manifest.write_text(edited(unsealed(json.loads(manifest.read_text())), ["tokenizer", "fingerprint"], "0" * 64))
    config = with_mixture(f"{places['wiki'][0]}=1,{other}=1")
    with pytest.raises(UserError, match="other was prepared with a vocabulary different from that of .*wiki"):
        open_corpus(dataclasses.replace(config, model=ModelConfig()))
