"""Hugging Face directories that lie, lead out of themselves, or do not fit."""

import json
import os
import re
import struct

import numpy as np
import pytest
from huggingface_directory import ENCODER, HEAD, ONE, POOLER, STATE, directory, refusal, sharded

from bert_jax.formats.huggingface import open_huggingface


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/passwd", "..", "a/b.safetensors", "a\\b.safetensors", ""]
)
def test_an_index_names_files_of_its_own_directory_only(tmp_path, name):
    assert f"{name!r}" in refusal(sharded(tmp_path / "in", extra={"extra": name}))


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "vocab.txt"])
def test_links_that_lead_out_are_refused(tmp_path, file):
    place = directory(tmp_path / "in")
    (place / file).rename(tmp_path / "elsewhere")
    (place / file).symlink_to(tmp_path / "elsewhere")
    assert re.search(rf"in/{file} is a link to .*elsewhere", refusal(place))


def test_an_index_that_does_not_fit_its_files(tmp_path):
    place = sharded(tmp_path, extra={"extra": "model-00001-of-00002.safetensors"})
    assert "says that extra is in model-00001" in refusal(place)
    index = tmp_path / "model.safetensors.index.json"
    for text, says in (
        ("{", "not JSON"),
        ("[]", "JSON object"),
        ('{"weight_map": {"a": 3}}', "weight_map"),
        ('{"weight_map": {"a": "x", "a": "y"}}', "2 values named 'a'"),
    ):
        index.write_text(text)
        assert says in refusal(tmp_path)


def header(*entries: str) -> bytes:
    return ("{" + ",".join(entries) + "}").encode()


def entry(name="a", dtype="F32", shape=(2,), start=0, end=8) -> str:
    return json.dumps({name: {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}})[1:-1]


DAMAGED = {  # header, contents, claimed length of the header (None: the true one), what the message says
    "a header beyond the file": (header(entry()), 8, 10**6, "claims 1,000,000 bytes, but the file has"),
    "a header of 2^62 bytes": (header(entry()), 8, 2**62, "claims 4,611,686"),
    "a header that is cut": (header(entry()), 8, 5, "invalid JSON in header"),
    "no JSON": (b"PK\3\4", 8, None, "invalid JSON in header"),
    "no object": (b"[1]", 8, None, "invalid JSON in header"),
    "overlapping arrays": (header(entry(), entry("b", start=4, end=12)), 12, None, "invalid offset for tensor `b`"),
    "an array beyond the file": (header(entry(), entry("b", start=8, end=16)), 12, None, "not fully covered"),
    "a hole": (header(entry(), entry("b", start=12, end=20)), 20, None, "invalid offset for tensor `b`"),
    "bytes left over": (header(entry()), 12, None, "not fully covered"),
    "an end before the start": (header(entry(start=8, end=0)), 8, None, "invalid offset for tensor `a`"),
    "a shape that does not fit": (header(entry(shape=(3,))), 8, None, "invalid shape"),
    "a shape beyond 2^64": (header(entry(shape=(2**62, 8))), 8, None, "overflow"),
    "a negative shape": (header(entry(shape=(-2,))), 8, None, "-2"),
    "a type that does not fit": (header(entry(dtype="I64")), 8, None, "invalid shape, data type"),
    "an unknown type": (header(entry(dtype="F31")), 8, None, "F31"),
    "a name that stands there twice": (header(entry(), entry()), 8, None, "names 'a' 2 times"),
    "nested beyond reason": (b'{"a":' + b"[" * 100_000, 8, None, "invalid JSON in header"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_header_that_lies(tmp_path, name):
    text, size, claimed, says = DAMAGED[name]
    file = directory(tmp_path) / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(text) if claimed is None else claimed) + text + bytes(size))
    message = refusal(tmp_path)
    assert str(file) in message and says in message and len(message) < 600


def test_a_file_that_is_cut_and_a_header_without_end(tmp_path):
    file = directory(tmp_path) / "model.safetensors"
    os.truncate(file, file.stat().st_size - 1)
    assert "not fully covered" in refusal(tmp_path)
    for size in (0, 7):
        os.truncate(file, size)
        assert "header too small" in refusal(tmp_path)
    with file.open("wb") as stream:  # sparse: 20 MB that were never written
        stream.write(struct.pack("<Q", 20_000_000))
        stream.truncate(20_000_008)
    assert "a header of 20,000,000 bytes" in refusal(tmp_path)


WORDS = "bert.embeddings.word_embeddings.weight"
MISFITS = {  # arrays, config.json, what the message says
    "wrong sizes": (STATE, {"hidden_size": 64}, (f"{WORDS} is [97, 32] where [97, 64] is expected", "and 54 more")),
    "missing": (
        {name: value for name, value in STATE.items() if name != "bert.encoder.layer.1.output.dense.bias"},
        {},
        ("bert.encoder.layer.1.output.dense.bias is missing",),
    ),
    "more layers": (STATE, {"num_hidden_layers": 2}, ("num_hidden_layers=2, but the weights have 3 layers",)),
    "a billion layers": (STATE, {"num_hidden_layers": 10**9}, ("num_hidden_layers=1000000000",)),
    "integers": (
        STATE | {WORDS: STATE[WORDS].astype(np.int64)},
        {},
        (f"{WORDS} is of type I64, not F64, F32, F16, BF16",),
    ),
    "untied": (
        STATE | {"cls.predictions.decoder.weight": STATE[WORDS] + 1},
        {},
        ("cls.predictions.decoder.weight differs",),
    ),
    "two biases": (
        STATE | {"cls.predictions.decoder.bias": STATE["cls.predictions.bias"] + 1},
        {},
        ("cls.predictions.decoder.bias differs from cls.predictions.bias",),
    ),
    "untied and absent": (STATE, {"tie_word_embeddings": False}, ("tie_word_embeddings=false but no cls.predictions",)),
    "one parameter twice": (
        STATE | {WORDS.removeprefix("bert."): STATE[WORDS]},
        {},
        ("one parameter under two names", WORDS),
    ),
    "a small vocabulary": (STATE, {"vocab_size": 96}, ("is [97, 32] where [96, 32] is expected",)),
    "no pooler for its head": (
        ENCODER | HEAD,
        {"architectures": ["BertForSequenceClassification"]},
        ("bert.pooler.dense.weight is missing",),
    ),
    "a head that is not known": (
        ENCODER | {"span_scores.weight": np.zeros((2, 32), np.float32)},
        {"architectures": ["BertForSpans"]},
        ("'BertForSpans', whose head (span_scores.weight) cannot be expressed here", "save it as BertModel first"),
    ),
    "labels": (
        ENCODER | POOLER | HEAD,
        {"id2label": {"0": "a", "1": "b"}, "architectures": ["BertForSequenceClassification"]},
        ("classification with 2 outputs (a, b), but the weights have 3",),
    ),
    "labels out of order": (
        ENCODER | POOLER | HEAD,
        {"id2label": {"0": "a", "2": "b"}},
        ("keys of id2label must be 0 to 1",),
    ),
    "several labels at once": (
        ENCODER | POOLER | HEAD,
        {"problem_type": "multi_label_classification"},
        ("choose one label",),
    ),
    "another model": (STATE, {"model_type": "gpt2"}, ("'gpt2'", "can be loaded are", "bert")),
    "a decoder": (STATE, {"is_decoder": True}, ("is_decoder=True",)),
    "relative positions": (
        STATE,
        {"position_embedding_type": "relative_key"},
        ("position_embedding_type='relative_key'",),
    ),
    "pruned heads": (STATE, {"pruned_heads": {"0": [1]}}, ("pruned_heads",)),
    "quantized": (STATE, {"quantization_config": {"bits": 4}}, ("quantization_config",)),
    "relu": (STATE, {"hidden_act": "relu"}, ("hidden_act='relu'", "gelu_new")),
    "a list for a name": (STATE, {"hidden_act": []}, ("hidden_act=[]",)),
    "heads": (STATE, {"num_attention_heads": 5}, ("hidden_size=32, not divisible by num_attention_heads=5",)),
    "a size in words": (STATE, {"hidden_size": "32"}, ("hidden_size='32'",)),
    "a negative size": (STATE, {"intermediate_size": -1}, ("intermediate_size=-1",)),
    "dropout of 1": (STATE, {"hidden_dropout_prob": 1}, ("hidden_dropout_prob=1",)),
    "no number": (STATE, {"layer_norm_eps": float("nan")}, ("layer_norm_eps=nan",)),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_named(tmp_path, name):
    state, config, says = MISFITS[name]
    message = refusal(directory(tmp_path, state, **config))
    assert not [words for words in says if words not in message], message


def test_activations_and_problem_types(tmp_path):
    for theirs, ours in (("gelu", "gelu_erf"), ("gelu_new", "gelu_tanh"), ("gelu_pytorch_tanh", "gelu_tanh")):
        assert open_huggingface(directory(tmp_path, hidden_act=theirs)).model.activation == ours
    one = directory(
        tmp_path, ENCODER | POOLER | ONE, problem_type="single_label_classification", id2label={"0": "only"}
    )
    assert open_huggingface(one).head.kind == "classification"


def test_config_json_that_is_none(tmp_path):
    for text, says in (
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "JSON object"),
        ('{"id2label": 3}', "id2label=3"),
    ):
        (directory(tmp_path) / "config.json").write_text(text)
        assert says in refusal(tmp_path)
    (tmp_path / "config.json").unlink()
    assert "config.json is missing" in refusal(tmp_path)
