"""Hugging Face directories: the numbers of `transformers`, and its names for every class."""

import huggingface_errors
import ml_dtypes
import numpy as np
import pytest
import random_bert
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
    sharded,
    whole,
)

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.formats import huggingface, safetensors_files
from bert_jax.formats.huggingface import open_huggingface
from bert_jax.formats.safetensors_files import FileTensor


@pytest.mark.parametrize(
    "name, activation",
    [
        pytest.param(*case, marks=pytest.mark.slow) if case[0] in ("base", "mini") else case
        for case in random_bert.CASES
    ],
)
def test_outputs_loss_and_gradients_are_those_of_transformers(name, activation):
    """Our float32 is as close to PyTorch's float64 as PyTorch's float32 is: 32 samples and the norm of each array."""
    for quantity, found in huggingface_errors.compare(name, activation).items():
        assert found.error <= 8 * found.their_largest_error + 8 * 2**-23 * found.size, quantity
        if not quantity.endswith(
            "key/bias"
        ):  # the gradient of a key's bias is zero in exact arithmetic: only rounding is left
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
    stored = open_huggingface(
        directory(tmp_path, state, **{"architectures": [name], "hidden_dropout_prob": 0.2, **config})
    )
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
    assert stored.ignored == ("bert.embeddings.position_ids", "extra.weight")
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
    part = place.read(
        lambda name, index: tensors[name].read(index), (slice(1, 2), slice(None), slice(2, 3), slice(None))
    )
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
        np.testing.assert_array_equal(tensors[name].read((slice(None),) * value.ndim), value)


def test_names_the_other_table_has_too():
    """The product's table and the test's own agree on every name and shape."""
    places = huggingface.name_table(ModelConfig(**SIZES))
    names = {path: place.name for path, place in places.items()}
    assert names == random_bert.hugging_face_names()
    for place in places.values():
        for name in place.names:
            assert STATE[name].shape == place.their_shape
