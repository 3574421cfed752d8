"""Hugging Face directories: the numbers of `transformers`, names, scripts, and what is refused."""

import json
import os
import re
import struct

import huggingface_errors
import ml_dtypes
import numpy as np
import pytest
import random_bert
import tokenizers
from huggingface_directory import (
    DRAWN,
    ENCODER,
    HEAD,
    MLM,
    ONE,
    PAIRS,
    POOLER,
    SIZES,
    SPAN,
    STATE,
    directory,
    of_rows,
    refusal,
    sharded,
)
from peer_outputs import run_with_peer
from pretrained_model import whole
from processes import EXHAUSTIVE
from published_tokenizers import google

import bert_jax
from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.errors import UserError
from bert_jax.formats import huggingface, safetensors_files, tf1
from bert_jax.formats.huggingface import open_huggingface
from bert_jax.formats.safetensors_files import FileTensor
from bert_jax.formats.stored import left_out, place_of
from bert_jax.models.bert_parameters import PRETRAINING_PARTS, bert_parameters
from bert_jax.parameters import Axis, Parameter, table

SLOW = ("tiny", "gelu_tanh")  # both are among the core tests in another case
ALIKE = ("base", "gelu_tanh")  # the sizes of one and the activation of another


@pytest.mark.parametrize(
    "name, activation",
    [
        pytest.param(*case, marks=pytest.mark.slow) if case[0] in ("base", "mini") or case == SLOW else case
        for case in random_bert.CASES
        if case != ALIKE or EXHAUSTIVE
    ],
)
def test_outputs_loss_and_gradients_are_those_of_transformers(name, activation):
    """Our float32 is as close to PyTorch's float64 as PyTorch's float32 is: 32 samples and the norm of each array."""
    for quantity, found in huggingface_errors.compare(name, activation).items():
        assert found.error <= 8 * found.their_largest_error + 8 * 2**-23 * found.size, quantity
        # The gradient of a key's bias is zero in exact arithmetic: only rounding is left.
        if not quantity.endswith("key/bias"):
            assert found.norm_error < 3e-6, quantity


CLASSES = {  # name: (arrays, our parts, what config.json says, the head)
    "BertModel": (ENCODER | POOLER, ("pooler",), {}, None),
    "BertModel without pooler": (ENCODER, (), {}, None),
    "BertForPreTraining": (STATE, ("pooler", "mlm", "next_sentence"), {}, None),
    "BertForMaskedLM": (ENCODER | MLM, ("mlm",), {}, None),
    "BertForNextSentencePrediction": (ENCODER | POOLER | PAIRS, ("pooler", "next_sentence"), {}, None),
    "BertForSequenceClassification": (
        ENCODER | POOLER | HEAD,
        ("pooler", "head"),
        {"id2label": {"0": "no", "2": "yes", "1": "so"}, "classifier_dropout": 0.3},
        HeadConfig(kind="classification", labels=("no", "so", "yes"), dropout=0.3),
    ),
    "regression": (
        ENCODER | POOLER | ONE,
        ("pooler", "head"),
        {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}},
        HeadConfig(kind="regression", dropout=0.2),
    ),
    "several labels": (
        ENCODER | POOLER | HEAD,
        ("pooler", "head"),
        {"architectures": ["BertForSequenceClassification"], "problem_type": huggingface.MULTILABEL},
        HeadConfig(kind="multilabel", labels=("LABEL_0", "LABEL_1", "LABEL_2"), dropout=0.2),
    ),
    "BertForTokenClassification": (
        ENCODER | HEAD,
        ("head",),
        {},
        HeadConfig(kind="tagging", labels=("LABEL_0", "LABEL_1", "LABEL_2"), dropout=0.2),
    ),
    "BertForQuestionAnswering": (ENCODER | SPAN, ("head",), {}, HeadConfig(kind="span", dropout=0.2)),
    "BertForMultipleChoice": (ENCODER | POOLER | ONE, ("pooler", "head"), {}, HeadConfig(kind="choice", dropout=0.2)),
}


@pytest.mark.parametrize("prefix", ["bert.", ""])
@pytest.mark.parametrize("name", CLASSES)
def test_reads_every_class(tmp_path, name, prefix):
    state, parts, config, head = CLASSES[name]
    state = {key.removeprefix("bert.") if not prefix else key: value for key, value in state.items()}
    config = {"architectures": [name], "hidden_dropout_prob": 0.2, **config}
    stored = open_huggingface(directory(tmp_path, state, **config))
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
    state = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in STATE.items()
    }
    bias = state.pop("cls.predictions.bias")
    state |= {
        "cls.predictions.decoder.weight": state["bert.embeddings.word_embeddings.weight"],
        "cls.predictions.decoder.bias": bias,
        "bert.embeddings.position_ids": np.arange(20)[None],
        "extra.weight": bias,
    }
    stored = open_huggingface(directory(tmp_path, state))
    assert stored.ignored == ("extra.weight",)
    assert left_out(stored) == ["left out: arrays that have no place here (extra.weight)"]
    for path, value in DRAWN.items():
        np.testing.assert_array_equal(whole(stored.arrays[path]), value, err_msg=path)


def test_a_part_of_an_array_equals_that_part_of_the_whole(tmp_path):
    arrays = open_huggingface(directory(tmp_path)).arrays
    for path, array in arrays.items():
        everything = whole(array)
        for first in (0, 1):
            index = tuple(
                slice(size // 2, size) if axis % 2 == first else slice(1, max(2, size - 1))
                for axis, size in enumerate(array.shape)
            )
            np.testing.assert_array_equal(array.read(index), everything[index], err_msg=path)
        assert array.read((slice(0, 0), *(slice(None),) * (len(array.shape) - 1))).size == 0


def test_only_the_layers_and_heads_that_are_asked_for_are_read():
    place = huggingface.name_table(ModelConfig(**SIZES))["encoder/attention/query/kernel"]
    asked = []

    def read(index):
        asked.append(index)
        return np.zeros([len(range(size)[part]) for part, size in zip(index, place.their_shape)], np.float32)

    tensors = {place.names[1]: FileTensor(place.their_shape, "F32", "", read)}  # of the other layers there are none
    index = slice(1, 2), slice(None), slice(2, 3), slice(None)
    part = place.read(lambda name, index: tensors[name].read(index), index)
    assert part.shape == (1, 32, 1, 8) and asked == [(slice(16, 24), slice(0, 32))]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_floats_become_float32(tmp_path, dtype):
    stored = open_huggingface(directory(tmp_path, {name: value.astype(dtype) for name, value in STATE.items()}))
    for path in ("embeddings/word/table", "encoder/attention/output/kernel", "mlm/bias"):
        value = whole(stored.arrays[path])
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, DRAWN[path].astype(dtype).astype(np.float32))


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
        np.testing.assert_array_equal(whole(tensors[name]), value)


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
DECODER, BIAS = "cls.predictions.decoder", "cls.predictions.bias"
CLASSIFIER, OF_CLASSES = ENCODER | POOLER | HEAD, {"architectures": ["BertForSequenceClassification"]}
MISFITS = {  # arrays, config.json, what the message says
    "wrong sizes": (STATE, {"hidden_size": 64}, f"{WORDS} is [97, 32] where [97, 64] is expected | and 54 more"),
    "missing": (
        {name: value for name, value in STATE.items() if name != "bert.encoder.layer.1.output.dense.bias"},
        {},
        "bert.encoder.layer.1.output.dense.bias is missing",
    ),
    "more layers": (STATE, {"num_hidden_layers": 2}, "num_hidden_layers=2, but the weights have 3 layers"),
    "a billion layers": (STATE, {"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000"),
    "ints": (STATE | {WORDS: STATE[WORDS].astype(np.int64)}, {}, f"{WORDS} is of type I64, not F64, F32, F16, BF16"),
    "untied": (STATE | {f"{DECODER}.weight": STATE[WORDS] + 1}, {}, f"{DECODER}.weight differs"),
    "two biases": (STATE | {f"{DECODER}.bias": STATE[BIAS] + 1}, {}, f"{DECODER}.bias differs from {BIAS}"),
    "untied and absent": (STATE, {"tie_word_embeddings": False}, "tie_word_embeddings=false but no cls.predictions"),
    "twice": (STATE | {WORDS.removeprefix("bert."): STATE[WORDS]}, {}, f"one parameter under two names | {WORDS}"),
    "a small vocabulary": (STATE, {"vocab_size": 96}, "is [97, 32] where [96, 32] is expected"),
    "no pooler for its head": (ENCODER | HEAD, OF_CLASSES, "bert.pooler.dense.weight is missing"),
    "a head that is not known": (
        ENCODER | {"span_scores.weight": np.zeros((2, 32), np.float32)},
        {"architectures": ["BertForSpans"]},
        "'BertForSpans', whose head (span_scores.weight) cannot be expressed here | save it as BertModel first",
    ),
    "labels": (
        CLASSIFIER,
        OF_CLASSES | {"id2label": {"0": "a", "1": "b"}},
        "classification with 2 outputs (a, b), but the weights have 3",
    ),
    "labels out of order": (CLASSIFIER, {"id2label": {"0": "a", "2": "b"}}, "keys of id2label must be 0 to 1"),
    "a decoder": (STATE, {"is_decoder": True}, "is_decoder=True"),
    "relative": (STATE, {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
    "pruned heads": (STATE, {"pruned_heads": {"0": [1]}}, "pruned_heads"),
    "quantized": (STATE, {"quantization_config": {"bits": 4}}, "quantization_config"),
    "relu": (STATE, {"hidden_act": "relu"}, "hidden_act='relu' | gelu_new"),
    "a list for a name": (STATE, {"hidden_act": []}, "hidden_act=[]"),
    "heads": (STATE, {"num_attention_heads": 5}, "hidden_size=32, not divisible by num_attention_heads=5"),
    "a size in words": (STATE, {"hidden_size": "32"}, "hidden_size='32'"),
    "a negative size": (STATE, {"intermediate_size": -1}, "intermediate_size=-1"),
    "dropout of 1": (STATE, {"hidden_dropout_prob": 1}, "hidden_dropout_prob=1"),
    "no number": (STATE, {"layer_norm_eps": float("nan")}, "layer_norm_eps=nan"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_named(tmp_path, name):
    state, config, says = MISFITS[name]
    message = refusal(directory(tmp_path, state, **config))
    assert not [words for words in says.split(" | ") if words not in message], message


def test_activations_and_problem_types(tmp_path):
    for theirs, ours in (("gelu", "gelu_erf"), ("gelu_new", "gelu_tanh"), ("gelu_pytorch_tanh", "gelu_tanh")):
        assert open_huggingface(directory(tmp_path, hidden_act=theirs)).model.activation == ours
    said = {"problem_type": "single_label_classification", "id2label": {"0": "only"}}
    assert open_huggingface(directory(tmp_path, ENCODER | POOLER | ONE, **said)).head.kind == "classification"


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


LABELS = ("O", "B-X", "I-X")
HEADS = [
    None,
    HeadConfig(labels=LABELS),
    HeadConfig(kind="multilabel", labels=LABELS),
    *(HeadConfig(kind=kind) for kind in ("regression", "span", "choice")),
    HeadConfig(kind="tagging", labels=LABELS, crf=True),
    HeadConfig(kind="tagging", labels=LABELS, crf=True, features="weighted_all", lstm_size=5),
]


def sized(norm_position: str = "post") -> ModelConfig:
    return ModelConfig(vocab_size=11, hidden_size=12, num_layers=3, num_heads=2, norm_position=norm_position)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("names, norm_position", [(huggingface, "post"), (tf1, "post"), (tf1, "pre")])
def test_every_parameter_has_a_name_or_a_reason(names, head, norm_position):
    parameters = bert_parameters(sized(norm_position), PRETRAINING_PARTS, head)
    places = names.places(parameters, head)
    assert list(places) == [path for path in parameters if path in places]
    for path in {*parameters} - {*places}:
        foreign_head = path.startswith("head/") and names is tf1 and head.kind not in tf1.HEADS
        assert foreign_head or [why for start, why in names.ABSENT.items() if path.startswith(start)], path
    theirs = [name for each in places.values() for name in each.names]
    assert len(theirs) == len(set(theirs))
    assert {path: each.shape for path, each in places.items()} == {path: parameters[path].shape for path in places}


@pytest.mark.parametrize("names", [huggingface, tf1])
def test_a_parameter_without_a_name_is_an_error(names):
    gate = Parameter("encoder/gate/kernel", (Axis("layer", 3), Axis("hidden", 12), Axis("intermediate", 48)))
    with pytest.raises(UserError, match="encoder/gate/kernel.*--to=bert_jax"):
        names.places(bert_parameters(sized()) | table([gate]))


LAYER, HIDDEN, LABEL = Axis("layer", 3), Axis("hidden", 8), Axis("label", 5)
AXES = [(HIDDEN,), (HIDDEN, LABEL), (HIDDEN, Axis("heads", 2), Axis("head_size", 4))]


@pytest.mark.parametrize("axes", [*AXES, (*AXES[2][1:], HIDDEN), *((LAYER, *axes) for axes in AXES)])
@pytest.mark.parametrize("outputs_first", [False, True])
def test_parts_of_an_array_come_back_as_they_were_written(axes, outputs_first):
    values = np.random.default_rng(0).normal(size=[axis.size for axis in axes]).astype(np.float32)
    where = place_of(Parameter("x", axes), "x{}", outputs_first)
    stacked = axes[0] == LAYER
    files = {n: where.split_up(part) for n, part in zip(where.names, values if stacked else [values], strict=True)}
    if outputs_first and len(axes) == 2 and not stacked:
        np.testing.assert_array_equal(files["x{}"], values.T)
    for index in np.ndindex(*[2] * len(axes)):
        part = tuple(slice(1, axis.size) if cut else slice(0, 1) for axis, cut in zip(axes, index, strict=True))
        found = where.read(lambda name, index: files[name][index], part)
        np.testing.assert_array_equal(found, values[part])


SPECIALS = "[PAD] [unused1] [UNK] [CLS] [SEP] [MASK]".split()
PUNCTUATION = list(".,-'。，《》।،¿")
SCRIPTS_WORDS = {
    "multilingual": (
        "Straße Stra ##ßen Café caf ##é École naï ##ve die Der El niño "
        "Москва моск ##ов ##ский "
        "Ελλάδα λόγ ##ος سلام ال ##كتاب "
        "שלום ה ##ספר नम ##स्ते हिन्दी "
        "ไทย ภา ##ษา ##ไทย 한국 ##어 서울 東 京 カ ##タ ##カナ თბ "
        "##ილ Հայ ##երեն 19 ##87 ##9"
    ).split(),
    "chinese": "我 爱 北 京 天 安 门 年 的 语 言 ##京 ##天 龘 㐀 20 ##08 bert nba ##s 2 ##0 google".split(),
}
TEXTS = {
    "multilingual": [
        "Der Café-Straßen, Stra-café, die Straße; STRASSE",
        "École naïve, ¿El niño? ecole naive nino",
        "Москва московский москва",
        "Ελλάδα λόγος λογος",
        "سلام، الكتاب שלום הספר",
        "नमस्ते हिन्दी। ภาษาไทย ไทย",
        "한국어 서울 東京カタカナ。 თბილ Հայերեն 1987, 199",
    ],
    "chinese": [
        "我爱北京天安门，2008年的语言。",
        "我爱bert和BERT, NBA nbas 年google",  # capitals are no entries, and nothing lowers them
        "《龘》㐀 20年 2000",
    ],
}


def directory_of_scripts(place, name: str):
    """What transformers would have saved of a BERT with this vocabulary."""
    tokens = [*SPECIALS, *PUNCTUATION, *SCRIPTS_WORDS[name]]
    of_rows(place, len(tokens), tokens)
    (place / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, "model_max_length": 512}))
    return place


@pytest.mark.parametrize("name", SCRIPTS_WORDS)
def test_text_is_read_as_by_google_and_written_again(tmp_path, name):
    place, out = directory_of_scripts(tmp_path / "theirs", name), tmp_path / "out"
    stored = open_huggingface(place)
    tokenizer = stored.need_tokenizer()
    assert not tokenizer.lowercase and tokenizer.vocab_size == stored.model.vocab_size
    expected = [google(text, set(tokenizer.tokens), lowercase=False) for text in TEXTS[name]]
    assert [[tokenizer.tokens[i] for i in tokenizer.encode(text)] for text in TEXTS[name]] == expected
    words = [piece for row in expected for piece in row]
    assert 0 < words.count("[UNK]") < len(words) / 4
    assert len(set(SCRIPTS_WORDS[name]) - set(words)) < len(SCRIPTS_WORDS[name]) / 4
    bert_jax.convert(place, out, to="huggingface")
    assert (out / "vocab.txt").read_bytes() == (place / "vocab.txt").read_bytes()
    assert json.loads((out / "tokenizer_config.json").read_text())["do_lower_case"] is False
    written = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    assert [written.encode(text, add_special_tokens=False).tokens for text in TEXTS[name]] == expected
    again = open_huggingface(out)
    assert again.need_tokenizer().fingerprint == tokenizer.fingerprint
    for path, array in stored.arrays.items():
        np.testing.assert_array_equal(whole(again.arrays[path]), whole(array), err_msg=path)


def test_auto_tokenizer_reads_the_original_and_the_export_alike(peer, tmp_path):
    """Its BertTokenizer reads the original, whose files are its own."""
    requests, expected = [], []
    for name in SCRIPTS_WORDS:
        place, out = directory_of_scripts(tmp_path / name, name), tmp_path / f"{name} out"
        bert_jax.convert(place, out, to="huggingface")
        requests += [{"path": str(each), "texts": TEXTS[name]} for each in (place, out)]
        expected += 2 * [open_huggingface(place).need_tokenizer().encode_batch(TEXTS[name])]
    (tmp_path / "request.json").write_text(json.dumps({"models": [], "inputs": {}, "tokenizers": requests}))
    run_with_peer(peer, "open_with_transformers.py", tmp_path / "request.json", tmp_path / "result.npz")
    report = json.loads(str(np.load(tmp_path / "result.npz")["report"]))["tokenizers"]
    assert [each["ids"] for each in report] == expected
