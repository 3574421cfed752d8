"""Hugging Face directories: the numbers of `transformers`, its names for every class, and files that lie."""

import json
import os
import re
import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import huggingface_errors
import random_bert
from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.errors import UserError
from bert_jax.interop import huggingface_names, safetensors_files
from bert_jax.interop.huggingface import open_huggingface
from bert_jax.interop.safetensors_files import FileTensor
from bert_jax.pretrained import stored as stored_model

SIZES = random_bert.sizes("tiny")
DRAWN = random_bert.draw_parameters(SIZES)
STATE = random_bert.to_hugging_face(DRAWN)
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(86)), *"abc", "##a", "##b", "##c"]
ENCODER = {name: value for name, value in STATE.items() if name.startswith("bert.") and "pooler" not in name}
POOLER = {name: value for name, value in STATE.items() if "pooler" in name}
MLM = {name: value for name, value in STATE.items() if name.startswith("cls.predictions")}
PAIRS = {name: value for name, value in STATE.items() if name.startswith("cls.seq")}
HEAD = {"classifier.weight": np.random.RandomState(1).standard_normal((3, 32)).astype(np.float32),
        "classifier.bias": np.arange(3, dtype=np.float32)}
SPAN = {name.replace("classifier", "qa_outputs"): value[:2] for name, value in HEAD.items()}
ONE = {name: value[:1] for name, value in HEAD.items()}


def directory(place, state=STATE, tokens=TOKENS, **config):
    """`state` in a new directory as transformers would have saved it, by the library's own writer."""
    place.mkdir(parents=True, exist_ok=True)
    safetensors.numpy.save_file(state, place / "model.safetensors", {"format": "pt"})
    (place / "config.json").write_text(json.dumps(random_bert.config_json(SIZES, "gelu_erf") | config))
    if tokens:
        (place / "vocab.txt").write_text("\n".join(tokens) + "\n")
    return place


def whole(array):
    return array.read((slice(None),) * len(array.shape))


def refusal(place) -> str:
    """The message with which `place` is refused: one line."""
    with pytest.raises(UserError) as caught:
        open_huggingface(place)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name, activation", [
    pytest.param(*case, marks=pytest.mark.slow) if case[0] == "base" else case for case in random_bert.CASES])
def test_outputs_loss_and_gradients_are_those_of_transformers(name, activation):
    """Our float32 is as near to PyTorch's float64 as PyTorch's own float32 is: 32 samples and the norm of each array."""
    for quantity, found in huggingface_errors.compare(name, activation).items():
        assert found.error <= 8 * found.their_largest_error + 8 * 2**-23 * found.size, quantity
        if not quantity.endswith("key/bias"):  # the gradient of a key's bias is zero in exact arithmetic: only rounding is left
            assert found.norm_error < 3e-6, quantity


CLASSES = {  # name: (arrays, our parts, what config.json says, the head)
    "BertModel": (ENCODER | POOLER, ("pooler",), {}, None),
    "BertModel without pooler": (ENCODER, (), {}, None),
    "BertForPreTraining": (STATE, ("pooler", "mlm", "next_sentence"), {}, None),
    "BertForMaskedLM": (ENCODER | MLM, ("mlm",), {}, None),
    "BertForNextSentencePrediction": (ENCODER | POOLER | PAIRS, ("pooler", "next_sentence"), {}, None),
    "BertForSequenceClassification": (
        ENCODER | POOLER | HEAD, ("pooler", "head"),
        {"id2label": {"0": "no", "2": "yes", "1": "so"}, "classifier_dropout": 0.3},
        HeadConfig(kind="classification", labels=("no", "so", "yes"), dropout=0.3)),
    "regression": (ENCODER | POOLER | ONE, ("pooler", "head"), {"architectures": ["BertForSequenceClassification"],
                   "id2label": {"0": "LABEL_0"}}, HeadConfig(kind="regression", dropout=0.2)),
    "BertForTokenClassification": (ENCODER | HEAD, ("head",), {},
                                   HeadConfig(kind="tagging", labels=("LABEL_0", "LABEL_1", "LABEL_2"), dropout=0.2)),
    "BertForQuestionAnswering": (ENCODER | SPAN, ("head",), {}, HeadConfig(kind="span", dropout=0.2)),
    "BertForMultipleChoice": (ENCODER | POOLER | ONE, ("pooler", "head"), {}, HeadConfig(kind="choice", dropout=0.2))}


@pytest.mark.parametrize("prefix", ["bert.", ""])
@pytest.mark.parametrize("name", CLASSES)
def test_reads_every_class(tmp_path, name, prefix):
    state, parts, config, head = CLASSES[name]
    state = {key.removeprefix("bert.") if not prefix else key: value for key, value in state.items()}
    stored = open_huggingface(directory(tmp_path, state, **{"architectures": [name], "hidden_dropout_prob": 0.2, **config}))
    assert (stored.kind, stored.parts, stored.head, stored.ignored) == ("huggingface", parts, head, ())
    assert stored.model == ModelConfig(**SIZES, activation="gelu_erf", hidden_dropout=0.2)
    expected = {path: value for path, value in DRAWN.items() if path.split("/")[0] in ("embeddings", "encoder", *parts)}
    if head is not None:
        kernel, bias = [value for key, value in state.items() if key.startswith(("classifier.", "qa_outputs."))]
        expected |= {"head/kernel": kernel.T, "head/bias": bias}
    assert set(stored.arrays) == set(expected)
    for path, value in expected.items():
        assert stored.arrays[path].shape == value.shape and stored.arrays[path].dtype == np.float32
        np.testing.assert_array_equal(whole(stored.arrays[path]), value, err_msg=path)


def test_reads_old_names_and_what_is_tied_or_learns_nothing(tmp_path):
    state = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
             for name, value in STATE.items()}
    bias = state.pop("cls.predictions.bias")
    state |= {"cls.predictions.decoder.weight": state["bert.embeddings.word_embeddings.weight"],
              "cls.predictions.decoder.bias": bias, "bert.embeddings.position_ids": np.arange(20)[None], "extra.weight": bias}
    stored = open_huggingface(directory(tmp_path, state))
    assert stored.ignored == ("bert.embeddings.position_ids", "extra.weight")
    for path, value in DRAWN.items():
        np.testing.assert_array_equal(whole(stored.arrays[path]), value, err_msg=path)


def test_a_part_of_an_array_equals_that_part_of_the_whole(tmp_path):
    arrays = open_huggingface(directory(tmp_path)).arrays
    for path, array in arrays.items():
        everything = whole(array)
        for first in (0, 1):
            index = tuple(slice(size // 2, size) if axis % 2 == first else slice(1, max(2, size - 1))
                          for axis, size in enumerate(array.shape))
            np.testing.assert_array_equal(array.read(index), everything[index], err_msg=path)
        assert array.read((slice(0, 0), *(slice(None),) * (len(array.shape) - 1))).size == 0


def test_only_the_layers_and_heads_that_are_asked_for_are_read():
    place = huggingface_names.table(ModelConfig(**SIZES))["encoder/attention/query/kernel"]
    asked = []

    def read(index):
        asked.append(index)
        return np.zeros([len(range(size)[part]) for part, size in zip(index, place.their_shape)], np.float32)

    tensors = {place.names[1]: FileTensor(place.their_shape, "F32", "", read)}  # of the other layers there are none
    part = place.read(tensors, (slice(1, 2), slice(None), slice(2, 3), slice(None)))
    assert part.shape == (1, 32, 1, 8) and asked == [(slice(16, 24), slice(0, 32))]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_floats_become_float32(tmp_path, dtype):
    stored = open_huggingface(directory(tmp_path, {name: value.astype(dtype) for name, value in STATE.items()}))
    for path in ("embeddings/word/table", "encoder/attention/output/kernel", "mlm/bias"):
        value = whole(stored.arrays[path])
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, DRAWN[path].astype(dtype).astype(np.float32))


def sharded(place, names=("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"), extra=None):
    """`STATE` in two files and an index."""
    directory(place)
    (place / "model.safetensors").unlink()
    home = {name: names[i % 2] for i, name in enumerate(STATE)}
    for file in names:
        if "/" not in file:
            safetensors.numpy.save_file({name: STATE[name] for name in STATE if home[name] == file}, place / file)
    (place / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": home | (extra or {})}))
    return place


def test_shards_are_one_model(tmp_path):
    stored = open_huggingface(sharded(tmp_path))
    for path, value in DRAWN.items():
        np.testing.assert_array_equal(whole(stored.arrays[path]), value)


def test_a_snapshot_of_the_hub_cache_is_made_of_links(tmp_path):
    snapshot, blobs = tmp_path / "snapshots" / "0123abc", tmp_path / "blobs"
    blobs.mkdir()
    directory(snapshot)
    for number, file in enumerate(sorted(snapshot.iterdir())):
        file.rename(blobs / str(number))
        file.symlink_to(f"../../blobs/{number}")
    np.testing.assert_array_equal(whole(open_huggingface(snapshot).arrays["pooler/bias"]), DRAWN["pooler/bias"])


class Remote:
    """A file of an object store as epath shows it."""

    def __init__(self, file):
        self.file = file

    def __fspath__(self):
        return f"gs://bucket/{self.file.name}"

    def open(self, mode):
        return self.file.open(mode)


def test_a_remote_file_is_copied_and_the_copy_goes(tmp_path, monkeypatch):
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr(safetensors_files.tempfile, "tempdir", str(copies))
    tensors = safetensors_files.open_file(Remote(directory(tmp_path / "remote") / "model.safetensors"))
    assert list(copies.iterdir()) == []
    for name, value in STATE.items():
        np.testing.assert_array_equal(tensors[name].read((slice(None),) * value.ndim), value)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "..", "a/b.safetensors", "a\\b.safetensors", ""])
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
    for text, says in (("{", "cannot be read"), ("[]", "weight_map"), ('{"weight_map": {"a": 3}}', "weight_map"),
                       ('{"weight_map": {"a": "x", "a": "y"}}', "'a' stands there twice")):
        index.write_text(text)
        assert says in refusal(tmp_path)


def header(*entries: str) -> bytes:
    return ("{" + ",".join(entries) + "}").encode()


def entry(name="a", dtype="F32", shape=(2,), start=0, end=8) -> str:
    return json.dumps({name: {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}})[1:-1]


DAMAGED = {  # header, contents, claimed length of the header (None: the true one), what the message says
    "a header beyond the file": (header(entry()), 8, 10**6, "claims 1,000,000 bytes, the file has"),
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
    "missing": ({name: value for name, value in STATE.items() if name != "bert.encoder.layer.1.output.dense.bias"}, {},
                ("bert.encoder.layer.1.output.dense.bias is missing",)),
    "more layers": (STATE, {"num_hidden_layers": 2}, ("num_hidden_layers=2, but the weights are those of 3 layers",)),
    "a billion layers": (STATE, {"num_hidden_layers": 10**9}, ("num_hidden_layers=1000000000",)),
    "integers": (STATE | {WORDS: STATE[WORDS].astype(np.int64)}, {}, (f"{WORDS} is of type I64, not F64, F32, F16, BF16",)),
    "untied": (STATE | {"cls.predictions.decoder.weight": STATE[WORDS] + 1}, {}, ("cls.predictions.decoder.weight differs",)),
    "two biases": (STATE | {"cls.predictions.decoder.bias": STATE["cls.predictions.bias"] + 1}, {},
                   ("cls.predictions.decoder.bias differs from cls.predictions.bias",)),
    "untied and absent": (STATE, {"tie_word_embeddings": False}, ("tie_word_embeddings=false but no cls.predictions",)),
    "one parameter twice": (STATE | {WORDS.removeprefix("bert."): STATE[WORDS]}, {}, ("one parameter under two names", WORDS)),
    "a small vocabulary": (STATE, {"vocab_size": 96}, ("is [97, 32] where [96, 32] is expected",)),
    "no pooler for its head": (ENCODER | HEAD, {"architectures": ["BertForSequenceClassification"]},
                               ("bert.pooler.dense.weight is missing",)),
    "labels": (ENCODER | POOLER | HEAD, {"id2label": {"0": "a", "1": "b"}, "architectures": ["BertForSequenceClassification"]},
               ("classification with 2 outputs (a, b), but the weights have 3",)),
    "labels out of order": (ENCODER | POOLER | HEAD, {"id2label": {"0": "a", "2": "b"}}, ("keys of id2label must be 0 to 1",)),
    "several labels at once": (ENCODER | POOLER | HEAD, {"problem_type": "multi_label_classification"}, ("choose one label",)),
    "another model": (STATE, {"model_type": "roberta"}, ("'roberta'", "only model_type 'bert'")),
    "a decoder": (STATE, {"is_decoder": True}, ("is_decoder=True",)),
    "relative positions": (STATE, {"position_embedding_type": "relative_key"}, ("position_embedding_type='relative_key'",)),
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
    one = directory(tmp_path, ENCODER | POOLER | ONE, problem_type="single_label_classification", id2label={"0": "only"})
    assert open_huggingface(one).head.kind == "classification"


def test_config_json_that_is_none(tmp_path):
    for text, says in (("{", "not JSON"), ("[" * 100_000, "not JSON"), ("[]", "JSON object"),
                       ('{"id2label": 3}', "id2label=3")):
        (directory(tmp_path) / "config.json").write_text(text)
        assert says in refusal(tmp_path)
    (tmp_path / "config.json").unlink()
    assert "config.json is missing" in refusal(tmp_path)


def fast_tokenizer(place, tokens=TOKENS, model=None, **changes):
    """A tokenizer.json as transformers writes it for BERT; vocab.txt goes."""
    values = {"model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                        "max_input_chars_per_word": 100, "vocab": {token: i for i, token in enumerate(tokens)}} | (model or {}),
              "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                             "lowercase": False},
              "added_tokens": [{"id": i, "content": token, "special": True} for i, token in enumerate(tokens[:5])]} | changes
    (directory(place) / "tokenizer.json").write_text(json.dumps(values))
    (place / "vocab.txt").unlink(missing_ok=True)
    return place


def test_the_vocabulary_of_a_tokenizer_json(tmp_path):
    tokenizer = open_huggingface(fast_tokenizer(tmp_path)).tokenizer
    assert tokenizer.tokens == TOKENS and not tokenizer.lowercase
    assert tokenizer.encode("ab B word7") == [91, 95, 1, 12]


def test_padded_rows_of_the_vocabulary_are_cut_and_a_warning_says_so(tmp_path, caplog):
    with caplog.at_level("WARNING", logger="absl"):
        stored = open_huggingface(directory(tmp_path, tokens=TOKENS[:90]))
    assert "7 rows of the word table beyond the 90 entries" in caplog.text
    assert stored.model.vocab_size == stored.tokenizer.vocab_size == 90
    for path in ("embeddings/word/table", "mlm/bias"):
        np.testing.assert_array_equal(whole(stored.arrays[path]), DRAWN[path][:90])
    assert "vocabulary of 98 entries for a word table of 97 rows" in refusal(directory(tmp_path, tokens=[*TOKENS, "more"]))
    assert open_huggingface(directory(tmp_path / "none", tokens=None)).tokenizer is None


def test_a_vocabulary_for_another_model_is_no_padding(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_model, "PADDING_LIMIT", 6)
    assert "vocabulary of 90 entries for a word table of 97 rows" in refusal(directory(tmp_path, tokens=TOKENS[:90]))


NORMALIZER = {"type": "BertNormalizer", "lowercase": True, "clean_text": True, "handle_chinese_chars": True}
TOKENIZERS = {  # changes of tokenizer.json, what the message says
    "another model": (dict(model={"type": "BPE"}), "'BPE'"),
    "another prefix": (dict(model={"continuing_subword_prefix": "@@"}), "'@@'"),
    "ids with a gap": (dict(model={"vocab": {"[PAD]": 0, "a": 2}}), "the ids of the vocabulary must be 0 to 1; 1 is missing"),
    "no vocabulary": (dict(model={"vocab": []}), "no vocabulary"),
    "no specials": (dict(model={"vocab": {"a": 0}}, added_tokens=[]), "has no [PAD]"),
    "added tokens": (dict(added_tokens=[{"content": "<e1>"}]), "adds 1 tokens to its vocabulary, first '<e1>'"),
    "added tokens that are none": (dict(added_tokens=5, model={"vocab": {"a": 0}}), "has no [PAD]"),
    "another normalizer": (dict(normalizer={"type": "NFKC"}), "'NFKC', not by BertNormalizer"),
    "accents kept": (dict(normalizer=NORMALIZER | {"strip_accents": False}), "strip_accents=False with do_lower_case=True"),
    "ideographs joined": (dict(normalizer=NORMALIZER | {"handle_chinese_chars": False}), "tokenize_chinese_chars=False"),
    "controls kept": (dict(normalizer=NORMALIZER | {"clean_text": False}), "clean_text=false"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_json_under_which_ids_would_differ(tmp_path, name):
    changes, says = TOKENIZERS[name]
    assert says in refusal(fast_tokenizer(tmp_path, **changes))


def test_tokenizer_config(tmp_path):
    config = directory(tmp_path) / "tokenizer_config.json"
    for lowercase in (True, False):
        config.write_text(json.dumps({"do_lower_case": lowercase, "strip_accents": None, "tokenize_chinese_chars": True}))
        assert open_huggingface(tmp_path).tokenizer.lowercase == lowercase
    for values, says in (({"do_lower_case": False, "strip_accents": True}, "strip_accents=True with do_lower_case=False"),
                         ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars=False"), ({"do_lower_case": 3}, "3")):
        config.write_text(json.dumps(values))
        assert says in refusal(tmp_path)
    config.write_text("{}")
    fast = json.loads((fast_tokenizer(tmp_path / "other") / "tokenizer.json").read_text())
    fast["model"]["vocab"] |= {"word0": 6, "word1": 5}
    (tmp_path / "tokenizer.json").write_text(json.dumps(fast))
    assert "different vocabularies, first at id 5: 'word0' and 'word1'" in refusal(tmp_path)
    vocabulary = [token.upper() if token == "word3" else token for token in TOKENS]
    config.write_text('{"do_lower_case": true}')
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    assert "is a cased vocabulary" in refusal(tmp_path)


def test_names_the_other_table_has_too():
    """The product's table and the test's own agree on every name and shape."""
    places = huggingface_names.table(ModelConfig(**SIZES))
    names = {path: place.name for path, place in places.items()}
    assert names == random_bert.hugging_face_names()
    for place in places.values():
        for name in place.names:
            assert STATE[name].shape == place.their_shape
