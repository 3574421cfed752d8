"""Masked diffusion: rates and weights against loops, and the bound against a grammar that is enumerated."""

import dataclasses
import itertools
import types

import numpy as np
import pytest
from small_model import SMALL, compiled, perturbed

from bert_jax.config import Config, DataConfig, MaskedDiffusion, MaskingConfig, PhaseConfig, resolve_phases
from bert_jax.config.checks import check
from bert_jax.config.presets import model_config
from bert_jax.data.masking import Diffusion
from bert_jax.data.store import open_store
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.objectives.masked_words import DiffusionObjective
from bert_jax.objectives.objective import evaluation_metrics
from bert_jax.randomness import Stream, bits, spread, uniform
from bert_jax.training_data import Examples, held_out_examples

CLS, SEP, MASK = 2, 3, 4


def rows_of(*texts: list[list[int]], length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, what is text, and lengths, of rows of texts."""
    ids = np.zeros((len(texts), length), np.int32)
    lengths = []
    for row, own in enumerate(texts):
        flat = list(itertools.chain.from_iterable([CLS, *text, SEP] for text in own))
        ids[row, : len(flat)] = flat
        lengths.append(len(flat))
    return ids, ids > MASK, np.array(lengths)


@pytest.mark.parametrize("exact", [False, True])
def test_each_text_of_a_row_is_masked_at_its_own_rate(exact):
    """A loop over places, with the rate of each text and its weight, and of exact numbers the smallest draws."""
    texts = [[[10, 11, 12, 13, 14], [20, 21], [30, 31, 32, 33]], [[40, 41, 42, 43, 44, 45, 46, 47, 48]], [[50]]]
    ids, is_text, lengths = rows_of(*texts, length=20)
    keys = bits(3, Stream.MASKS, np.arange(3))
    word = spread(bits(3, Stream.MASK_RATE, np.zeros(3, np.int64)), np.arange(3))
    found = Diffusion(0.01, 20, MASK, CLS, exact)(ids, is_text, lengths, keys, word)
    draws = uniform(bits(keys[:, None], Stream.CANDIDATES, np.arange(20)))
    for row, own in enumerate(texts):
        places, weights, begin = [], [], 0
        for number, text in enumerate(own):
            share = (uniform(word)[row] + number / len(own)) % 1
            here = begin + 1 + np.arange(len(text))
            if exact:
                count = int(share * len(text)) + 1
                chosen, weight = sorted(here[np.argsort(draws[row, here])[:count]]), len(text) / count
            else:
                rate = 0.01 + 0.99 * share
                chosen, weight = [place for place in here if draws[row, place] < rate], 1 / rate
            places += chosen
            weights += [weight] * len(chosen)
            begin += len(text) + 2
        used = found["masked_weights"][row] > 0
        assert found["masked_positions"][row, used].tolist() == places
        np.testing.assert_allclose(found["masked_weights"][row, used], weights, rtol=1e-6)
        np.testing.assert_array_equal(found["masked_ids"][row, used], ids[row, places])
        assert (np.flatnonzero(found["input_ids"][row] != ids[row]) == places).all()
        assert (found["input_ids"][row, places] == MASK).all()
        assert found["num_tokens"][row] == sum(map(len, own))


def test_rates_are_spread_over_neighbouring_rows():
    """Of 32 consecutive rates each eighth of [0, 1) has 3 to 5; of independent ones every third eighth has not."""
    for start in range(0, 2000, 32):
        words = spread(bits(1, Stream.MASK_RATE, np.zeros(32, np.int64)), start + np.arange(32))
        counts = np.histogram(uniform(words), 8, (0, 1))[0]
        assert counts.min() >= 3 and counts.max() <= 5


LETTERS, SIZE, FIRST = 4, 5, 10
"""Letters of a grammar, how many a text has, and the id of the first one."""
TEXTS = np.array(list(itertools.product(range(LETTERS), repeat=SIZE)))
BITS = 1 << np.arange(SIZE)


@pytest.fixture(scope="module")
def grammar():
    """The probability [T] of each of all texts by a Markov chain, and the exact ones [2^5, T, 5, 4] of the letters of
    each text at each place, given those that each mask leaves."""
    random = np.random.default_rng(0)
    begin, steps = random.dirichlet(np.full(LETTERS, 0.5)), random.dirichlet(np.full(LETTERS, 0.5), LETTERS)
    shares = begin[TEXTS[:, 0]] * steps[TEXTS[:, :-1], TEXTS[:, 1:]].prod(axis=1)
    letters = (TEXTS[:, :, None] == np.arange(LETTERS)).reshape(len(TEXTS), -1) * shares[:, None]
    exact = []
    for code in range(2**SIZE):
        left = TEXTS[:, (code & BITS) == 0]
        alike = (left[:, None] == left).all(axis=-1).astype(float)
        exact.append((alike @ letters).reshape(-1, SIZE, LETTERS) / (alike @ shares)[:, None, None])
    return shares, np.array(exact)


def test_the_mean_over_all_masks_is_the_entropy_of_the_grammar(grammar):
    """A mask of n of 5 letters has the weight 1 / (n · binomial(5, n)), the integral of t^(n-1) (1 - t)^(5-n)."""
    shares, exact = grammar
    own = -np.log(np.take_along_axis(exact, TEXTS[None, :, :, None], 3)[..., 0])  # [2^5, T, 5]
    counts = np.array([int(code).bit_count() for code in range(2**SIZE)])
    binomials = np.array([1, 5, 10, 10, 5, 1])[counts]
    masked = (np.arange(2**SIZE)[:, None] & BITS) > 0
    bound = ((own * masked[:, None]).sum(-1)[1:] / (counts * binomials)[1:, None]).sum(0)
    np.testing.assert_allclose(bound, -np.log(shares), rtol=1e-9)


@pytest.mark.parametrize("exact_number", [False, True])
def test_the_bound_of_exact_predictions_is_the_entropy_of_the_grammar(grammar, exact_number):
    shares, exact = grammar
    rows, length = 30_000, SIZE + 2
    chosen = np.random.default_rng(1).choice(len(TEXTS), rows, p=shares)
    ids = np.full((rows, length), CLS, np.int32)
    ids[:, 1:-1], ids[:, -1] = FIRST + TEXTS[chosen], SEP
    keys, words = bits(0, Stream.MASKS, np.arange(rows)), spread(bits(0, Stream.MASK_RATE, 0), np.arange(rows))
    masking = Diffusion(0.001, length, MASK, CLS, exact_number)
    batch = masking(ids, ids > MASK, np.full(rows, length), keys, words)
    codes = (batch["input_ids"][:, 1:-1] == MASK) @ BITS
    places = np.clip(batch["masked_positions"] - 1, 0, SIZE - 1)
    logits = np.full((rows, length, FIRST + LETTERS), -99, np.float32)
    logits[..., FIRST:] = np.log(np.take_along_axis(exact[codes, chosen], places[:, :, None], 1).clip(1e-30))
    model = types.SimpleNamespace(  # knows the grammar
        has_word_losses=False, encode=lambda *_, **__: None, word_logits=lambda _, given, *__: given["logits"]
    )
    batch |= {"logits": logits, "attention_mask": np.ones_like(ids), "token_type_ids": 0 * ids}
    objective = DiffusionObjective(model)
    sums = compiled(lambda given: objective.sums(None, given))(batch)
    assert sums["diffusion"].weight == rows * SIZE == objective.denominators(batch)["diffusion"]
    metrics = evaluation_metrics(objective.terms, {"diffusion": sums["diffusion"]})
    entropy = -np.log(shares[chosen]).mean() / SIZE
    assert metrics["diffusion_loss"] == pytest.approx(entropy, rel=0.01)
    assert metrics["perplexity"] == pytest.approx(np.exp(entropy), rel=0.01)


def test_the_loss_of_a_model_is_that_of_a_loop():
    model = BertForPreTraining(dataclasses.replace(SMALL, pair_head=False), parts=("mlm",))
    params = perturbed(model)
    ids, is_text, lengths = rows_of([[10, 11, 12, 13]], [[20, 21, 22, 23, 24, 25]], length=14)
    keys = bits(1, Stream.MASKS, np.arange(2))
    batch = Diffusion(0.001, 14, MASK, CLS, False)(ids, is_text, lengths, keys, keys)
    batch |= {"token_type_ids": 0 * ids, "attention_mask": (np.arange(14) < lengths[:, None]).astype(np.int32)}
    objective = DiffusionObjective(model)
    sums, logits = compiled(lambda p, b: (objective.sums(p, b), model.mlm_logits(p, b)))(params, batch)
    total = 0.0
    for row, slot in zip(*np.nonzero(batch["masked_weights"]), strict=True):
        own = logits[row, slot].astype(np.float64)
        loss = np.log(np.exp(own).sum()) - own[batch["masked_ids"][row, slot]]
        total += batch["masked_weights"][row, slot] * loss
    assert sums["diffusion"].loss == pytest.approx(total, rel=1e-5) and sums["diffusion"].weight == 10


CONFIG = Config(
    model=dataclasses.replace(model_config("mini"), type_vocab_size=0, pair_head=False),
    objective=MaskedDiffusion(),
    data=DataConfig(path="store", sentence_pairs="none"),
    workdir="run",
)


@pytest.mark.parametrize("packing", ["off", "on"])
def test_batches_are_a_function_of_seed_and_position(small_store, packing):
    data = DataConfig(path=str(small_store), sentence_pairs="none", packing=packing, held_out=0.2)
    phases = (PhaseConfig(sequence_length=48, batch_size=8),)
    config, store = dataclasses.replace(CONFIG, data=data, phases=phases), open_store(str(small_store))
    examples = Examples(store, config)
    batch = examples.batch(np.arange(12))
    layout = {name: (shape, np.dtype(kind)) for name, (shape, kind) in examples.layout.items()}
    assert {name: (values.shape[1:], values.dtype) for name, values in batch.items()} == layout
    again = Examples(store, config).batch(np.array([11, 2]))
    for name, values in again.items():
        np.testing.assert_array_equal(values, batch[name][[11, 2]])
    later = examples.batch(np.arange(12) + examples.num_examples(0))
    assert (later["masked_weights"].max(1) != batch["masked_weights"].max(1)).any()
    text = (batch["attention_mask"] > 0) & ~np.isin(batch["input_ids"], [CLS, SEP])
    np.testing.assert_array_equal(batch["num_tokens"], text.sum(1))


def test_an_evaluation_masks_an_exact_number_of_each_text(small_store):
    config = dataclasses.replace(CONFIG, data=dataclasses.replace(CONFIG.data, path=str(small_store), held_out=0.2))
    config = dataclasses.replace(config, phases=(PhaseConfig(sequence_length=48, batch_size=8),))
    store = open_store(str(small_store))
    held_out = types.SimpleNamespace(name="", store=store, split="held_out")
    examples = held_out_examples(config, resolve_phases(config)[0], [held_out])[""]
    batch = examples.batch(np.arange(min(8, examples.num_examples(0))))
    counts = (batch["masked_weights"] > 0).sum(1)
    assert (counts > 0).all()
    np.testing.assert_allclose(batch["masked_weights"].max(1), batch["num_tokens"] / counts, rtol=1e-6)
    np.testing.assert_allclose(batch["masked_weights"].sum(1), batch["num_tokens"], rtol=1e-5)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"masking": MaskingConfig(rate=0.3)}, "masks each text at a rate of its own.*masking.rate=0.3 has no effect"),
        ({"masking": MaskingConfig(unit="span")}, "masking.unit=span has no effect"),
        ({"data": DataConfig(path="s")}, "reads single texts, but data.sentence_pairs=nsp"),
        ({"phases": (PhaseConfig(max_predictions=20),)}, "up to all of it, so phases.0.max_predictions=20"),
        ({"objective": MaskedDiffusion(min_rate=0.0)}, "objective.min_rate=0 must be above 0"),
        (
            {"model": dataclasses.replace(CONFIG.model, direction="left_to_right")},
            "model.direction=left_to_right each state knows one side of it",
        ),
    ],
)
def test_what_contradicts_it_is_refused(changes, message):
    check(CONFIG)
    with pytest.raises(UserError, match=message):
        check(dataclasses.replace(CONFIG, **changes))
