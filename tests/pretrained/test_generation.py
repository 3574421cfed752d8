"""Texts that are written by filling in masks, against a loop over NumPy's BERT."""

import collections
import dataclasses
import itertools
import json

import jax
import numpy as np
import numpy_bert
import pytest
from model_variants import variant
from pretrained_model import CONFIG, SMALL, TOKENIZER, loaded, stored_model

from bert_jax.cli import writing
from bert_jax.config.commands import GenerateConfig
from bert_jax.errors import UserError
from bert_jax.pretrained.generation import Draft, _chosen, _draft, _drawn, generate

TEXT = "the [MASK] sat [MASK] [MASK] house"


def test_greedy_steps_are_those_of_a_loop(model):
    """In each of two steps the surest words of three masks: one, then two."""
    params = jax.device_get(model.params)
    ids = np.array([[TOKENIZER.cls_id, *TOKENIZER.encode_masked(TEXT), TOKENIZER.sep_id]])
    for count in (1, 2):
        places = np.flatnonzero(ids[0] == TOKENIZER.mask_id)[None]
        batch = {"input_ids": ids, "token_type_ids": 0 * ids, "attention_mask": 0 * ids + 1}
        logits = numpy_bert.forward(params, CONFIG, batch | {"masked_positions": places})["mlm_logits"][0]
        logits[:, list(TOKENIZER.special_ids)] = -np.inf
        shares = numpy_bert.softmax(logits)
        surest = np.argsort(-shares.max(axis=1))[:count]
        ids[0, places[0, surest]] = shares.argmax(axis=1)[surest]
    seen = []
    found = model.generate(TEXT, temperature=0, steps=2, on_step=lambda step, texts: seen.append((step, texts[0])))
    assert found == TOKENIZER.decode(ids[0, 1:-1])
    assert [(step, text.count("[MASK]")) for step, text in seen] == [(1, 2), (2, 0)] and seen[1][1] == found


def test_a_text_depends_on_its_seed_and_not_on_those_beside_it(model):
    alone = model.generate(TEXT, seed=7)
    others = ["a dog [MASK]", TEXT, "", "the [MASK] [MASK] [MASK] [MASK]"]
    assert model.generate(others, seed=7, batch_size=2)[1] == alone == model.generate([TEXT] * 3, seed=7)[2]
    several = model.generate(TEXT, samples=6, seed=7)
    assert several[0] == alone and len(set(several)) > 3
    assert len({model.generate(TEXT, seed=seed) for seed in range(4)}) > 2
    assert model.generate(TEXT, seed=7, order="random", steps=1) == model.generate(TEXT, seed=7, steps=1)


def test_special_tokens_are_never_written(model):
    for text in model.generate("the cat", length=20, temperature=100.0, samples=3, order="random", steps=4):
        assert text.startswith("the cat") and "[" not in text
        assert len(TOKENIZER.encode(text)) <= 22


def test_words_are_drawn_by_their_probabilities():
    """Of 20,000 draws each share within five standard deviations, at a temperature of 2."""
    logits, count = np.array([0.0, 1.0, -np.inf, 3.0, 2.0]), 20_000
    draft = Draft(np.zeros(0), np.zeros(0), 1, 1, np.uint64(5))
    words, confidence = _drawn(np.tile(logits, (count, 1)), np.arange(count), draft, 2.0)
    shares = numpy_bert.softmax(logits / 2)
    found = np.bincount(words, minlength=5) / count
    assert (np.abs(found - shares) <= 5 * np.sqrt(shares / count)).all()
    np.testing.assert_allclose(confidence, numpy_bert.softmax(logits)[words])
    coldest, _ = _drawn(np.tile(logits, (9, 1)), np.arange(9), draft, 1e-320)
    assert (coldest == 3).all()


def test_every_order_of_random_places_is_as_likely(model):
    """Of 3,000 samples with three masks each of the six orders has its share within five standard deviations."""
    count, found, masks = 3_000, collections.Counter(), (2, 4, 5)
    for sample in range(count):
        draft, left, order = _draft(model, TEXT, GenerateConfig(order="random"), sample), np.array(masks), ()
        for draft.step in range(3):
            (kept,) = _chosen("random", left, draft)  # whatever the model is surest of
            order, left = (*order, int(left[kept])), np.delete(left, kept)
        found[order] += 1
    assert set(found) == set(itertools.permutations(masks))
    assert max(abs(number / count - 1 / 6) for number in found.values()) < 5 * np.sqrt(5 / 36 / count)


@pytest.mark.slow
def test_a_model_of_one_direction_goes_on_from_left_to_right():
    model = loaded(stored_model(config=variant(SMALL, direction="left_to_right")))
    tokens = ["the", "cat"]
    for _ in range(4):
        candidates = model.fill_mask(f"{' '.join(tokens).replace(' ##', '')} [MASK]", top_k=24)[0]
        tokens.append(next(each.token for each in candidates if not each.token.startswith("[")))
    written = [TOKENIZER.tokens.index(token) for token in tokens]
    assert model.generate("the cat", length=4, temperature=0) == TOKENIZER.decode(written)
    with pytest.raises(UserError, match="order=confidence fills in masks that have others before them"):
        model.generate("the cat", order="confidence")
    with pytest.raises(UserError, match="steps=2 for 4 masks would fill in several at a time"):
        model.generate("the cat", length=4, steps=2)


def test_the_command_prints_and_writes_what_the_model_returns(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(writing, "load_with_generator", lambda path: (model, None))
    options = GenerateConfig(samples=2, output=str(tmp_path / "texts.jsonl"))
    writing.run_generate("model", [TEXT, "a dog"], options)
    rows = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == [*model.generate(TEXT, samples=2), *model.generate("a dog", samples=2)]
    assert [(row["prompt"], row["sample"]) for row in rows] == [(TEXT, 0), (TEXT, 1), ("a dog", 0), ("a dog", 1)]
    writing.run_generate("model", [TEXT], dataclasses.replace(options, output="", show_steps=True, samples=1))
    shown = capsys.readouterr().out.splitlines()
    assert [line[:8] for line in shown[:-1]] == ["step 1: ", "step 2: ", "step 3: "] and shown[-1] == rows[0]["text"]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda m: m.generate("a cat", length=0), "length=0 leaves nothing to fill in after 'a cat', which has no"),
        (lambda m: m.generate("a cat", length=40), "with length=40 masks has 44 tokens .* the model takes 40"),
        (lambda m: m.generate("a cat", length=1 << 40), "with length=1099511627776 masks has"),  # which are not made
        (lambda m: m.generate(TEXT, temperature=-1), "temperature=-1 must be from 0"),
        (lambda m: m.generate(TEXT, samples=3, temperature=0), "samples=3 would all be the same text"),
        (lambda m: m.generate(TEXT, steps=0), "steps"),
        (lambda m: m.generate([TEXT, 3]), "takes a text or a list of texts, each a str, not 3"),
        (lambda m: m.generate(TEXT, order="best"), "order='best' must be confidence, random or left_to_right"),
    ],
)
def test_what_cannot_be_written_is_refused(model, call, message):
    with pytest.raises(UserError, match=message):
        call(model)


def test_no_texts_give_none(model):
    assert generate(model, [], GenerateConfig()) == []
