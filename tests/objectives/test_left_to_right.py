"""The model that sees only what comes before: what it reads, what it predicts, and that no answer leaks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_model import compiled, encode, perturbed

from bert_jax.config import Config, DataConfig, LeftToRight, ModelConfig, PhaseConfig
from bert_jax.config.checks import check
from bert_jax.console import parse
from bert_jax.data.masking import NextWords
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.block import causal_bias
from bert_jax.models.layers import PackedTexts
from bert_jax.objectives.choice import default_objective

CLS, SEP, LENGTH, VOCABULARY = 2, 3, 12, 50
SIZES = ModelConfig(
    vocab_size=VOCABULARY,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    intermediate_size=32,
    max_position_embeddings=LENGTH,
    direction="left_to_right",
    type_vocab_size=0,
    pair_head=False,
)
PAIRS = dataclasses.replace(SIZES, type_vocab_size=2, pair_head=True)
CONFIG = Config(
    model=SIZES,
    objective=LeftToRight(),
    data=DataConfig(sentence_pairs="none"),
    phases=(PhaseConfig(sequence_length=LENGTH, batch_size=2),),
)


@pytest.fixture(scope="module")
def text():
    """[CLS], seven words and [SEP]."""
    words = np.random.default_rng(0).integers(5, VOCABULARY, 7)
    return np.array([CLS, *words, SEP], np.int32)


@pytest.fixture(scope="module")
def model():
    return BertForPreTraining(SIZES, parts=("mlm", "pooler"))


@pytest.fixture(scope="module")
def params(model):
    return perturbed(model)


def row(*texts) -> dict[str, np.ndarray]:
    """Return a row of several texts as a batch of one, with what `NextWords` makes of it."""
    ids, numbers = np.zeros((1, LENGTH), np.int32), np.zeros((1, LENGTH), np.int32)
    starts, place = [], 0
    for number, each in enumerate(texts, 1):
        ids[0, place : place + len(each)], numbers[0, place : place + len(each)] = each, number
        starts.append(place)
        place += len(each)
    batch = NextWords(LENGTH - 1, CLS)(ids, ids > 4, np.array([place]), np.zeros(1, np.uint64))
    batch |= {"attention_mask": (np.arange(LENGTH) < place)[None].astype(np.int32), "token_type_ids": 0 * ids}
    return batch if len(texts) == 1 else batch | {"text_ids": numbers, "text_starts": np.array([starts], np.int32)}


def test_every_token_but_the_first_of_a_text_is_predicted_at_the_place_before_it():
    batch = row([CLS, 10, 11, SEP], [CLS, 12, 13, 14, SEP])
    used = batch["masked_weights"][0] > 0
    pairs = list(zip(batch["masked_positions"][0, used], batch["masked_ids"][0, used], strict=True))
    assert pairs == [(0, 10), (1, 11), (2, SEP), (4, 12), (5, 13), (6, 14), (7, SEP)]
    np.testing.assert_array_equal(batch["input_ids"][0, :9], [CLS, 10, 11, SEP, CLS, 12, 13, 14, SEP])


def test_the_bias_hides_what_comes_later():
    hidden = np.asarray(causal_bias(np.arange(3)[None, :] - np.arange(3)[:, None])[0]) < 0
    np.testing.assert_array_equal(hidden, [[False, True, True], [False, False, True], [False, False, False]])


def test_the_loss_is_that_of_each_word_given_its_prefix_alone(model, params, text):
    batch = row(text)
    found = compiled(default_objective(model, CONFIG).sums)(params, batch)["next_word"]

    @compiled
    def shares(ids, mask, place):
        encoded = model.encode(params, ids, jnp.zeros_like(ids), mask)
        return jax.nn.log_softmax(model.mlm_logits(params, {"masked_positions": place[None, None]}, encoded)[0, 0])

    total = 0.0
    for place in range(1, len(text)):
        ids, mask = np.zeros((1, LENGTH), np.int32), np.zeros((1, LENGTH), np.int32)
        ids[0, :place], mask[0, :place] = text[:place], 1  # nothing of what comes later is in the row
        total -= float(np.asarray(shares(ids, mask, np.int32(place - 1)))[text[place]])
    assert float(found.weight) == len(text) - 1
    np.testing.assert_allclose(float(found.loss), total, rtol=1e-5)


def test_packed_texts_are_computed_as_if_alone(model, params, text):
    objective, names = default_objective(model, CONFIG), ("input_ids", "token_type_ids", "attention_mask")
    first, second = text[[0, 1, 2, -1]], text[[0, 3, 4, 5, -1]]

    @compiled
    def measured(batch):
        pooled = model.encode(params, *(batch[name] for name in names), texts=PackedTexts.of(batch)).pooled
        return objective.sums(params, batch)["next_word"].loss, pooled

    loss, pooled = measured(row(first, second))
    alone = [measured(row(each)) for each in (first, second)]
    np.testing.assert_allclose(loss, sum(each for each, _ in alone), rtol=1e-5)
    for place, (_, expected) in enumerate(alone):
        np.testing.assert_allclose(pooled[0, place], expected[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pad_left", [False, True])
def test_the_pooler_reads_the_last_real_token(model, params, text, pad_left):
    padding = np.zeros(LENGTH - len(text), np.int32)
    ids = np.concatenate([padding, text] if pad_left else [text, padding])[None]
    output = encode(model, params, {"input_ids": ids, "token_type_ids": 0 * ids, "attention_mask": np.int32(ids > 0)})
    last = LENGTH - 1 if pad_left else len(text) - 1
    pooler = params["pooler"]
    expected = np.tanh(output.last_hidden_state[0, last] @ pooler["kernel"] + pooler["bias"])
    np.testing.assert_allclose(output.pooled[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": dataclasses.replace(SIZES, direction="both")}, "would see the answer; set model.direction"),
        ({"data": DataConfig(), "model": PAIRS}, "set data.sentence_pairs"),
        ({"phases": (PhaseConfig(sequence_length=8, max_predictions=2),)}, "phases.0.max_predictions=2 has no effect"),
    ],
)
def test_what_would_leak_or_be_ignored_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        check(dataclasses.replace(CONFIG, **changes))


def test_the_weight_of_masked_words_is_refused():
    message = "objective.mlm_weight=2 belongs to objective.name=masked_words or .*, not to objective.name=left_to_right"
    with pytest.raises(UserError, match=message):
        parse(CONFIG, ["--objective.mlm_weight=2"], "pretrain")
