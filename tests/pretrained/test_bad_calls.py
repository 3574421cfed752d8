"""Calls that a loaded model cannot answer: one clear line each."""

import dataclasses

import jax
import pytest
from loaded_model import SMALL, loaded
from model_variants import variant
from pretrained_model import stored_model

from bert_jax.errors import UserError
from bert_jax.pretrained.runner import Compiled


@pytest.mark.parametrize(
    "parts, call, message",
    [
        ((), lambda m: m.fill_mask("the [MASK]"), "has no mlm"),
        (("mlm",), lambda m: m.next_sentence("a", "b"), "has no pooler and no next_sentence"),
        ((), lambda m: m.encode("a", pooling="pooler"), "no pooler; use cls"),
        ((), lambda m: m.predict("a"), "no task head"),
    ],
)
def test_missing_parts_are_named_where_they_are_needed(parts, call, message):
    bare = loaded(stored_model(config=SMALL, parts=parts))
    assert bare.network.parts == parts
    with pytest.raises(UserError, match=message):
        call(bare)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda m: m.encode([]), "empty list"),
        (lambda m: m.encode(["a", None]), "text 1 is None"),
        (lambda m: m.encode(3.5), "text 0 is 3.5; expected"),
        (lambda m: m.encode([("a", "b", "c")]), "tuple of two"),
        (lambda m: m.encode([["a", "b"]]), "text 0 is"),
        (lambda m: m.encode("\ud83d"), "not UTF-8"),
        (lambda m: m.encode("a", layers="first"), "'last', 'all'"),
        (lambda m: m.encode("a", layers=6), "no 6; 0 is the embeddings, 1 to 5"),
        (lambda m: m.encode("a", layers=[True]), "True"),
        (lambda m: m.next_sentence("a", None), "takes two texts"),
        (lambda m: m.encode("a", layers=None), "there is no None"),
        (lambda m: m.encode("a", layers=1.5), "there is no 1.5"),
        (lambda m: m.encode("a", pooling="sum"), "pooling='sum' must be"),
        (lambda m: m.encode("a", batch_size=0), "batch_size=0"),
        (lambda m: m.encode("a", max_length=41), "max_length=41 must be between 5 and the 40"),
        (lambda m: m.encode("a", max_length=2), "max_length=2"),
        (lambda m: m.fill_mask("a"), r"no \[MASK\]"),
        (lambda m: m.embed("a", "top"), "layers 'top'"),
        (lambda m: m.embed("a", "weighted_all"), "takes 5 numbers"),
        (lambda m: m.embed("a", "weighted_last_four", weights=[1, 2]), "weights=2 numbers, but .* takes 4"),
        (lambda m: m.embed("a", weights=[1]), "last takes None"),
        (lambda m: m.embed("a", [1, 2]), r"layers \[1, 2\]"),
        (lambda m: m.embed("a", "weighted_all", weights=1.0), r"an array of shape \[\], but .* takes 5"),
        (lambda m: m.fill_mask(["a [MASK]", 3]), "takes a text or a list of texts, each a str, not 3"),
        (lambda m: m.fill_mask(("a [MASK]", "[MASK]")), r"takes a text or a list of texts, not \(.a"),
        (lambda m: m.fill_mask([]), "empty list"),
        (lambda m: m.fill_mask(["a [MASK]", "a dog"]), r"no \[MASK\] in .a dog"),
        (lambda m: m.fill_mask(["[MASK]"], batch_size=0), "batch_size=0"),
        (lambda m: m.next_sentence([], []), "empty list"),
        (lambda m: m.next_sentence(["a"], "b"), "takes two texts"),
        (lambda m: m.next_sentence(["a"], [None]), "takes two"),
        (lambda m: m.next_sentence(["a", "b"], ["c"]), "two lists of as many"),
        (lambda m: m.embed("a", "second_to_last", "pooler"), "reads the last layer"),
        (lambda m: m.fill_mask("a [MASK]", 0), "top_k=0"),
    ],
)
def test_bad_calls_get_one_clear_line(model, call, message):
    with pytest.raises(UserError, match=message) as caught:
        call(model)
    assert "\n" not in str(caught.value)


def test_states_beyond_the_memory_are_refused_before_they_are_computed(model, monkeypatch):
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 3, "SC_PAGE_SIZE": 4096}.get)  # 2,240 a text
    assert model.encode(["the cat sat"] * 5, layers="all").hidden_states[0].shape == (5, 5, 16)
    with pytest.raises(UserError, match="the states of 6 texts would take .* use embed"):
        model.encode(["the cat sat"] * 6, layers="all")


def test_recurrent_layers_have_no_attention_and_fill_no_mask():
    model = loaded(stored_model(config=variant(SMALL, layer="lstm")))
    with pytest.raises(UserError, match="recurrent .* have no attention to return"):
        model.encode("the cat", attentions=True)
    with pytest.raises(UserError, match="predicts a word from one side of it at a time"):
        model.fill_mask("the [MASK]")


def test_few_layers_and_one_segment_are_told():
    narrow = loaded(stored_model(config=dataclasses.replace(SMALL, type_vocab_size=1)))
    with pytest.raises(UserError, match="needs 4 layers and the model has 2"):
        narrow.embed("a", "concat_last_four")
    with pytest.raises(UserError, match="one segment"):
        narrow.encode(("a", "b"))


def test_a_batch_that_does_not_fit_is_answered_with_advice(model, monkeypatch):
    def too_large(self, *arguments):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8597736080 bytes.")

    monkeypatch.setattr(Compiled, "placed", too_large)
    with pytest.raises(UserError, match=r"^a batch of texts does not fit .*8597736080.*; what helps: a smaller "):
        model.encode(["some words"])
