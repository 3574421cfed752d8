"""The function of a model that is exported: its outputs, and its program for every batch and length."""

import dataclasses
import functools

import jax
import model_type_exports
import numpy as np
import pytest
from jax import export
from model_variants import variant
from modern_models import FIRST as MODERN
from pretrained_model import SMALL, loaded, stored_model
from processes import EXHAUSTIVE

from bert_jax.config import EmbeddingConfig, HeadConfig
from bert_jax.config.heads import TokenVectors, WordVector
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.models.bert_parameters import TOKEN_VECTORS
from bert_jax.models.deberta import relative_rows, rows_of_distances
from bert_jax.pretrained.encodings import read_texts
from bert_jax.tools.export.comparison import compare, padded, sample_texts
from bert_jax.tools.export.function import model_function

LABELS = ("O", "B-X", "I-X")
RECURRENT = {"vocab_size": SMALL.vocab_size, "hidden_size": 16, "num_layers": 2, "max_position_embeddings": 40}


def colbert():
    """A model with vectors of tokens."""
    stored = stored_model(SMALL, (), embedding=EmbeddingConfig(form=TokenVectors(size=6)))
    kernel = np.random.default_rng(0).standard_normal((SMALL.hidden_size, 6)).astype(np.float32)
    whole = StoredArray(kernel.shape, kernel.dtype, kernel.__getitem__)
    return dataclasses.replace(stored, arrays={**stored.arrays, f"{TOKEN_VECTORS}/kernel": whole})


def of_head(kind: str, **options):
    labels = LABELS if kind in ("classification", "tagging") else ()
    shape = variant(SMALL, task_transform=True) if options.get("pooling") == "mean" else SMALL
    return stored_model(shape, None, HeadConfig(kind=kind, labels=labels, **options))


def of_vectors(**options):
    return stored_model(SMALL, ("mlm",) if "form" in options else (), embedding=EmbeddingConfig(**options))


def words_of(**options):
    return stored_model(variant(SMALL, **options), ("mlm",))


OTHERS = {  # what no model type of transformers has
    "crf": lambda: of_head("tagging", crf=True),
    "features": lambda: of_head("tagging", features="last", lstm_size=8),
    "windows": lambda: of_head("classification", windows="max"),
    "sigmoid": lambda: of_head("regression", activation="sigmoid"),
    "mean head": lambda: of_head("classification", pooling="mean"),
    "unit vectors": lambda: of_vectors(pooling="mean_sqrt_len", normalize=True, max_length=20),
    "largest": lambda: of_vectors(pooling="max"),
    "words": lambda: of_vectors(form=WordVector()),
    "tokens": colbert,
    "one way": lambda: stored_model(variant(**RECURRENT, layer="lstm", direction="left_to_right"), ("mlm",)),
    "both ways": lambda: stored_model(variant(**RECURRENT, layer="lstm", direction="both"), ("mlm",)),
    "static": lambda: stored_model(variant(SMALL, layer="none"), ()),
    "alibi": lambda: words_of(positions="alibi"),
    "left to right": lambda: words_of(direction="left_to_right"),
    "global tokens": lambda: words_of(local_window=2, global_tokens=1),
    "dynamic": lambda: words_of(positions="rope", rope_scaling="dynamic", rope_scale=2.0, rope_trained_length=6),
    "yarn": lambda: words_of(positions="rope", rope_scaling="yarn", rope_scale=2.0, rope_trained_length=6),
    "recipe": lambda: words_of(
        **{"query_key_norm": True, "value_embeddings": "ends", "num_layers": 3, "logit_cap": 3.0},
        **{"positions": "rope", "norm_position": "pre", "activation": "relu_squared"},
    ),
    "mask decoder": lambda: stored_model(dataclasses.replace(MODERN, vocab_size=24), ("mlm", "mask_decoder")),
}


def program_of(function):
    program = export.export(jax.jit(function))(*function.arguments())
    return lambda *inputs: jax.device_get(program.call(*inputs))


def assert_exact(stored) -> None:
    model = loaded(stored)
    function = model_function(model)
    compared = compare(model, function, program_of(function))
    assert compared.relative < 1e-5, compared.describe()
    blank = [np.zeros((2, 5), np.int32) for _ in function.inputs]  # a row of nothing but padding
    assert all(np.isfinite(values).all() for values in jax.device_get(jax.jit(function)(*blank)).values())


@pytest.mark.slow
@pytest.mark.parametrize("name, key", model_type_exports.listed())
def test_every_model_type_and_head_is_exported(name, key):
    """Of the same functions test_onnx.py compares all, each with what another program computes of it."""
    assert_exact(model_type_exports.make(name, key))


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS if EXHAUSTIVE else ("unit vectors", "both ways", "recipe", "mask decoder"))
def test_what_is_ours_alone_is_exported(name):
    assert_exact(OTHERS[name]())


def test_outputs_are_those_that_the_directory_asks_for():
    def of(stored):
        function = model_function(loaded(stored))
        return function.inputs, dict(function.outputs)

    segments = ("input_ids", "attention_mask", "token_type_ids")
    assert of(of_head("span")) == (segments, {"start_logits": ("batch", "length"), "end_logits": ("batch", "length")})
    assert of(of_head("choice"))[1] == {"scores": ("batch",)}
    assert of(of_head("tagging", crf=True))[1] == {
        "logits": ("batch", "length", 3),
        "transitions": (3, 3),
        "start": (3,),
        "end": (3,),
    }
    assert list(of(stored_model(SMALL))[1]) == [
        "pooler_output",
        "next_sentence_logits",
        "logits",
        "last_hidden_state",
    ]
    assert list(of(of_vectors(normalize=True))[1]) == ["sentence_embedding", "last_hidden_state"]
    assert of(stored_model(variant(SMALL, type_vocab_size=1), ()))[0] == segments[:2]


def test_a_length_of_which_nobody_knows_whether_it_is_above_a_block_is_traced():
    """Rows of more than 64 tokens are computed in another way on a CPU, and no limit of the others tells which."""
    function = model_function(loaded(stored_model(variant(SMALL, max_position_embeddings=100), ("mlm",))))
    found = jax.eval_shape(function, *function.arguments())
    assert str(found["logits"].shape[1]) == "length"


def test_vectors_that_are_not_supported_are_refused():
    model = loaded(stored_model(SMALL, (), embedding=EmbeddingConfig(unsupported="a module of type CNN")))
    with pytest.raises(UserError, match="a module of type CNN is not supported"):
        model_function(model)


def test_rows_by_distance_are_the_same_for_a_length_that_is_not_known():
    (length,) = export.symbolic_shape("length")
    tables = [
        (functools.partial(relative_rows, max_distance=reach, buckets=buckets), reach)
        for buckets, reach in ((None, 5), (6, 12), (256, 512))
    ]
    of_length = lambda x: [rows_of_distances(x.shape[0], *table) for table in tables]
    program = export.export(jax.jit(of_length))(jax.ShapeDtypeStruct((length,), np.int32))
    for known in (1, 700):
        for found, table in zip(program.call(np.zeros(known, np.int32)), tables, strict=True):
            np.testing.assert_array_equal(found, rows_of_distances(known, *table))


def test_texts_that_are_compared_have_odd_lengths():
    model = loaded(stored_model(SMALL))
    several, empty, longest = (
        padded(read_texts(model, texts, 40), 0)["attention_mask"].sum(1) for texts in sample_texts(model)
    )
    assert min(several) == 2 and len(set(several.tolist())) > 4
    assert empty.tolist() == [2] and longest.tolist() == [40]
