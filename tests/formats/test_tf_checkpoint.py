"""Checkpoints of TF1, whole, damaged, and made to mislead."""

import dataclasses
import json
import math
import types

import jax
import numpy as np
import numpy_bert
import pytest
from etils import epath
from flax.traverse_util import unflatten_dict
from fresh import loaded_by
from pretrained_model import every_array, whole
from tf1_checkpoint import CONFIG, DATA, HEADS, HIDDEN, INDEX, LAYERS, POSITIONS, WIDE, WORDS, save, variables

from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig
from bert_jax.errors import UserError
from bert_jax.formats.tf1 import masked_crc32c, open_tf_checkpoint, read_index, write_tf_checkpoint
from bert_jax.models.bert import BertForPreTraining
from bert_jax.tokenization.tokenizer import load_tokenizer


def original(values: dict[str, np.ndarray], batch: dict) -> tuple[np.ndarray, np.ndarray]:
    """Logits of modeling.py and run_pretraining.py, by their variables, in float64."""
    values = {name: value.astype(np.float64) for name, value in values.items()}
    dense = lambda x, name: x @ values[f"{name}/kernel"] + values[f"{name}/bias"]
    gelu = lambda x: numpy_bert.gelu(x, "gelu_tanh")
    norm = lambda x, name: numpy_bert.norm(
        x, {"scale": values[f"{name}/LayerNorm/gamma"], "bias": values[f"{name}/LayerNorm/beta"]}, 1e-12
    )
    word = values["bert/embeddings/word_embeddings"]
    rows, length = batch["input_ids"].shape
    x = word[batch["input_ids"]] + values["bert/embeddings/token_type_embeddings"][batch["token_type_ids"]]
    x = norm(x + values["bert/embeddings/position_embeddings"][:length], "bert/embeddings")
    for layer in (f"bert/encoder/layer_{number}" for number in range(LAYERS)):
        query, key, value = (
            dense(x, f"{layer}/attention/self/{name}").reshape(rows, length, HEADS, -1).transpose(0, 2, 1, 3)
            for name in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(HIDDEN // HEADS)
        weights = numpy_bert.softmax(scores - 10_000.0 * (1 - batch["attention_mask"][:, None, None, :]))
        context = (weights @ value).transpose(0, 2, 1, 3).reshape(rows, length, HIDDEN)
        x = norm(x + dense(context, f"{layer}/attention/output/dense"), f"{layer}/attention/output")
        x = norm(x + dense(gelu(dense(x, f"{layer}/intermediate/dense")), f"{layer}/output/dense"), f"{layer}/output")
    masked = x[np.arange(rows)[:, None], batch["masked_positions"]]
    masked = norm(gelu(dense(masked, "cls/predictions/transform/dense")), "cls/predictions/transform")
    pooled = np.tanh(dense(x[:, 0], "bert/pooler/dense"))
    return (
        masked @ word.T + values["cls/predictions/output_bias"],
        pooled @ values["cls/seq_relationship/output_weights"].T + values["cls/seq_relationship/output_bias"],
    )


def test_logits_are_those_of_the_original(saved):
    directory, values = saved
    stored = open_tf_checkpoint(directory)
    assert (stored.kind, stored.head, stored.parts) == ("tf1", None, ("pooler", "mlm", "next_sentence"))
    sizes = {"vocab_size": WORDS, "hidden_size": HIDDEN, "num_layers": LAYERS, "num_heads": HEADS}
    sizes |= {"intermediate_size": WIDE, "max_position_embeddings": POSITIONS}
    assert stored.model == ModelConfig(**sizes, activation="gelu_tanh", layer_norm_epsilon=1e-12)
    assert stored.ignored == () and stored.tokenizer.vocab_size == WORDS  # slots and global_step are no part of it
    random = np.random.default_rng(1)
    batch = {
        "input_ids": random.integers(0, WORDS, (3, 10)),
        "token_type_ids": random.integers(0, 2, (3, 10)),
        "attention_mask": np.arange(10) < np.array([[10], [7], [4]]),
        "masked_positions": random.integers(0, 10, (3, 4)),
    }
    batch = {name: array.astype(np.int32) for name, array in batch.items()}
    model = BertForPreTraining(stored.model, ComputeConfig(dtype="float32"))
    output = jax.jit(model.apply)(unflatten_dict(every_array(stored), sep="/"), batch)
    words, pairs = original(values, batch)
    np.testing.assert_allclose(output.mlm_logits, words, atol=2e-5)
    np.testing.assert_allclose(output.next_sentence_logits, pairs, atol=2e-5)


def test_reading_needs_no_tensorflow(saved):
    seen = loaded_by(
        "from bert_jax.formats.tf1 import open_tf_checkpoint as load\n"
        f"array = load({str(saved[0])!r}).arrays['mlm/bias']; array.read((slice(None),))"
    )
    assert "bert_jax.formats.tf1" in seen and not {"tensorflow", "jax"} & seen


HEAD_VARIABLES = {
    None: {},
    HeadConfig(labels=("LABEL_0", "LABEL_1", "LABEL_2")): {"output_weights": (3, HIDDEN), "output_bias": (3,)},
    HeadConfig(kind="regression"): {"output_weights": (1, HIDDEN), "output_bias": (1,)},
    HeadConfig(kind="span"): {"cls/squad/output_weights": (2, HIDDEN), "cls/squad/output_bias": (2,)},
}


@pytest.mark.parametrize("head", HEAD_VARIABLES, ids=lambda head: head.kind if head else "pretraining")
def test_round_trip_is_exact(head, tmp_path):
    """Also of a table with padded rows, which do not come back."""
    import tensorflow as tf

    values = variables(words=40, head=HEAD_VARIABLES[head], pretraining=head is None)
    save(tmp_path / "theirs", values, vocab_size=40)
    stored = open_tf_checkpoint(tmp_path / "theirs")
    assert stored.head == head and stored.model.vocab_size == WORDS
    write_tf_checkpoint(stored, tmp_path / "again")
    wanted = sorted(["bert_config.json", "vocab.txt", "tokenizer_config.json", INDEX, DATA])
    assert sorted(file.name for file in (tmp_path / "again").iterdir()) == wanted
    reader = tf.train.load_checkpoint(str(tmp_path / "again" / "bert_model.ckpt"))
    assert reader.get_variable_to_shape_map().keys() == values.keys()
    for name, value in values.items():
        expected = value[:WORDS] if name.endswith(("word_embeddings", "predictions/output_bias")) else value
        np.testing.assert_array_equal(reader.get_tensor(name), expected, err_msg=name)
    again = open_tf_checkpoint(tmp_path / "again")
    assert (again.model, again.head, again.tokenizer.fingerprint) == (stored.model, head, stored.tokenizer.fingerprint)
    for (path, first), second in zip(every_array(stored).items(), every_array(again).values(), strict=True):
        np.testing.assert_array_equal(first, second, err_msg=path)


def test_a_part_of_an_array_is_that_part_of_the_whole(saved):
    for path, array in open_tf_checkpoint(saved[0]).arrays.items():
        index = tuple(slice(size // 3, max(size - 1, 1)) for size in array.shape)
        np.testing.assert_array_equal(array.read(index), whole(array)[index], err_msg=path)


def test_which_checkpoint_of_a_directory(saved, tmp_path):
    values = saved[1]
    for step in (500, 1000):
        save(tmp_path, values | {"bert/pooler/dense/bias": np.full(HIDDEN, step, np.float32)}, "model.ckpt", step)
    state, bias = tmp_path / "checkpoint", lambda path: int(every_array(open_tf_checkpoint(path))["pooler/bias"][0])
    assert bias(tmp_path) == 1000
    state.write_text('model_checkpoint_path: "/where/it/was/trained/model.ckpt-500"\n')
    assert bias(tmp_path) == 500
    assert bias(tmp_path / "model.ckpt-1000") == bias(tmp_path / "model.ckpt-1000.index") == 1000
    for contents in (b"", b'model_checkpoint_path: "../model.ckpt-7"', b"\xff\xfe"):
        state.write_bytes(contents)
        with pytest.raises(UserError, match="holds 2 checkpoints .*model.ckpt-1000"):
            open_tf_checkpoint(tmp_path)
    (tmp_path / "model.ckpt-500.index").unlink()
    assert bias(tmp_path) == 1000


def test_casing_comes_back(saved, tmp_path):
    """vocab.txt does not say how text is cased; the file beside it does."""
    stored = open_tf_checkpoint(saved[0])
    (tmp_path / "vocab.txt").write_bytes((saved[0] / "vocab.txt").read_bytes())
    cased = load_tokenizer(tmp_path / "vocab.txt", lowercase=False)
    write_tf_checkpoint(dataclasses.replace(stored, tokenizer=cased), tmp_path / "out")
    assert open_tf_checkpoint(tmp_path / "out").tokenizer.lowercase is False and stored.tokenizer.lowercase


def edit(name: str, change):
    """Damage of the file `name`: its bytes go through `change`."""
    return lambda directory: (directory / name).write_bytes(change((directory / name).read_bytes()))


def configured(**options):
    return edit("bert_config.json", lambda _: json.dumps(CONFIG | options).encode())


def flipped(place: int):
    return lambda data: data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


BAD = {
    "nothing there": (lambda directory: (directory / INDEX).unlink(), "holds no TensorFlow checkpoint"),
    "no shard": (lambda directory: (directory / DATA).unlink(), "data-00000-of-00001 is missing"),
    "short shard": (edit(DATA, lambda data: data[:-1]), "is truncated: .* bytes, but its index needs"),
    "short index": (edit(INDEX, lambda data: data[:-1]), "is damaged or not the index"),
    "empty index": (edit(INDEX, lambda data: b""), "is damaged or not the index"),
    "noise": (edit(INDEX, lambda data: np.random.default_rng(0).bytes(len(data))), "is damaged or not the index"),
    "flipped index": (edit(INDEX, flipped(100)), "does not match its checksum"),
    "flipped value": (edit(DATA, flipped(100)), "the values of .* do not match their checksum"),
    "no configuration": (lambda directory: (directory / "bert_config.json").unlink(), "bert_config.json is missing"),
    "not JSON": (edit("bert_config.json", lambda data: data[:-2]), "is not JSON"),
    "deep JSON": (edit("bert_config.json", lambda data: b"[" * 100_000), "is not JSON"),
    "deep JSON of the tokenizer": (
        lambda directory: (directory / "tokenizer_config.json").write_text("[" * 100_000),
        "is not JSON",
    ),
    "a list": (edit("bert_config.json", lambda data: b"[]"), "must hold a JSON object"),
    "relu": (configured(hidden_act="relu"), "hidden_act='relu'; only 'gelu'"),
    "size as text": (configured(hidden_size="12"), "hidden_size='12' where a positive whole number"),
    "negative rate": (configured(hidden_dropout_prob=-1), "hidden_dropout_prob=-1 where a number from 0 to 1"),
    "no vocabulary size": (configured(vocab_size=None), "vocab_size=None"),
    "heads": (configured(num_attention_heads=5), "hidden_size=12, not divisible by num_attention_heads=5"),
    "width": (
        configured(intermediate_size=24),
        r"layer_0/intermediate/dense/kernel is \[12, 20\] where \[12, 24\] is expected",
    ),
    "layers": (configured(num_hidden_layers=10**9), "num_hidden_layers=1000000000, but .* weights of 2 layers"),
    "token types": (configured(type_vocab_size=16), r"token_type_embeddings is \[2, 12\] where \[16, 12\] is expected"),
    "other vocabulary": (edit("vocab.txt", lambda data: data + b"more\n"), "38 entries for a word table of 37 rows"),
    "vocabulary without specials": (edit("vocab.txt", lambda data: data[6:]), r"has no \[PAD\]"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_checkpoint_is_refused_in_one_line(name, copy):
    damage, message = BAD[name]
    damage(copy)
    with pytest.raises(UserError, match=message):
        every_array(open_tf_checkpoint(copy))


def test_missing_vocabulary_and_missing_parts(copy, tmp_path):
    (copy / "vocab.txt").unlink()
    assert open_tf_checkpoint(copy).tokenizer is None
    values = variables(pretraining=False)
    save(tmp_path / "encoder", values)
    assert open_tf_checkpoint(tmp_path / "encoder").parts == ("pooler",)
    del values["bert/pooler/dense/bias"], values["bert/encoder/layer_1/output/LayerNorm/beta"]
    save(tmp_path / "holes", values)
    message = r"layer_1/output/LayerNorm/beta \[12\] is missing; bert/pooler/dense/bias \[12\] is missing$"
    with pytest.raises(UserError, match=message):
        open_tf_checkpoint(tmp_path / "holes")
    save(tmp_path / "other", {"model/layer/kernel": np.zeros((2, 2), np.float32)})
    with pytest.raises(UserError, match="no variable whose name begins with bert/, only model/layer/kernel"):
        open_tf_checkpoint(tmp_path / "other")


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(activation="gelu_erf"), "model.activation=gelu_erf: .* --to=huggingface"),
        (dict(layer_norm_epsilon=1e-6), "model.layer_norm_epsilon=1e-06: .* --to=huggingface"),
        (dict(norm_position="pre"), r"model.norm_position=pre: .*--to=bert_jax"),
        (dict(direction="left_to_right", activation="gelu_erf"), "model.direction=left_to_right: .*--to=bert_jax"),
        (dict(vocab_size=WORDS + 1), "has 37 entries, but the model 38"),
        (dict(head=HeadConfig(kind="choice")), "a head for choice"),
        (dict(head=HeadConfig(kind="tagging", labels=("O", "B"), crf=True)), "a head for tagging"),
        (dict(tokenizer=None), "has no vocabulary"),
        (dict(tokenizer=types.SimpleNamespace(kind="sentencepiece")), "of the kind sentencepiece"),
    ],
)
def test_a_model_that_the_format_lacks_is_refused(options, message, saved, tmp_path):
    stored = open_tf_checkpoint(saved[0])
    of_model = {key: value for key, value in options.items() if hasattr(stored.model, key)}
    stored = dataclasses.replace(
        stored,
        model=dataclasses.replace(stored.model, **of_model),
        **{key: value for key, value in options.items() if key not in of_model},
    )
    with pytest.raises(UserError, match=message):
        write_tf_checkpoint(stored, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written(saved, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot make the directory"):
        write_tf_checkpoint(open_tf_checkpoint(saved[0]), tmp_path / "file" / "out")


def number(value: int) -> bytes:
    """A varint of 64 bits (protobuf.dev/programming-guides/encoding)."""
    value, parts = value % 2**64, []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def field(key: int, value) -> bytes:
    """A number, or bytes, of a protocol buffer."""
    if isinstance(value, int):
        return number(8 * key) + number(value)
    return number(8 * key + 2) + number(len(value)) + value


def variable(shape=(12, 10), dtype=1, shard=0, offset=0, size=480) -> bytes:
    dimensions = b"".join(field(2, field(1, length)) for length in shape)
    return b"".join(map(field, (1, 2, 3, 4, 5), (dtype, dimensions, shard, offset, size)))


def table(entries: dict[bytes, bytes], kind: bytes = b"\0", handle: bytes | None = None) -> bytes:
    """An index with right checksums, whatever it says."""
    blocks = b""

    def add(entries):
        nonlocal blocks
        body = b"".join(number(0) + number(len(key)) + number(len(v)) + key + v for key, v in entries.items())
        body += bytes(4) + (1).to_bytes(4, "little")
        where = number(len(blocks)) + number(len(body))
        blocks += body + kind + masked_crc32c(np.frombuffer(body + kind, np.uint8)).to_bytes(4, "little")
        return where

    data = add(entries)
    handles = add({}) + add({b"z": handle or data})
    return blocks + handles.ljust(40, b"\0") + 0xDB4775248B80FB57.to_bytes(8, "little")


HEADER = {b"": field(1, 1)}
HOSTILE = {  # most of these end the process of TensorFlow's own reader
    "ten terabytes": (table(HEADER | {b"w": variable((2**38, 10))}), r"shape \[274877906944, 10\] but 480 bytes"),
    "ten terabytes in both": (table(HEADER | {b"w": variable((2**38, 10), size=4 * 10 * 2**38)}), "is truncated"),
    "negative": (table(HEADER | {b"w": variable((-12, -10))}), "has shape"),
    "overflow": (table(HEADER | {b"w": variable((2**62, 2**62), size=0)}), "has shape"),
    "negative place": (table(HEADER | {b"w": variable(offset=-8)}), "is truncated"),
    "another shard": (table(HEADER | {b"w": variable(shard=99)}), "shard 99 of 1"),
    "slices": (table(HEADER | {b"w": variable() + field(7, b"")}), "in slices"),
    "no entry": (table(HEADER | {b"w": b"\xff\xff\xff"}), "is damaged"),
    "no number": (table(HEADER | {b"w": b"\x08" + b"\xff" * 20}), "does not end"),
    "no header": (table({b"w": variable()}), "is damaged"),
    "big-endian": (table({b"": field(1, 1) + field(2, 1)}), "big-endian"),
    "compressed": (table(HEADER, kind=b"\1"), "compressed"),
    "outside": (table(HEADER, handle=number(2**40) + number(100)), "outside the file"),
    "long name": (table(HEADER | {b"w" * 5000: variable()}), "does not fit"),
    "not text": (table(HEADER | {b"\xff": variable()}), "is damaged"),
    "too many": (table(HEADER | {number(i): b"" for i in range(1 << 14)}), "more than 16,384 entries"),
    "a product without end": (table(HEADER | {b"w": variable((2**62,) * 100_000)}), "100,000 dimensions"),
    "enormous": (bytes(2**24 + 1), "needs fewer than"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_index_is_refused(name, tmp_path):
    index, message = HOSTILE[name]
    (tmp_path / "m.index").write_bytes(index)
    (tmp_path / "m.data-00000-of-00001").write_bytes(bytes(480))
    with pytest.raises(UserError, match=message):
        read_index(epath.Path(tmp_path / "m"))


def test_the_table_of_the_hostile_cases_is_one(tmp_path):
    """TensorFlow reads it where it says nothing wrong, so the cases above fail for what they say."""
    import tensorflow as tf

    (tmp_path / "m.index").write_bytes(table(HEADER | {b"w": variable()}))
    (tmp_path / "m.data-00000-of-00001").write_bytes(bytes(480))
    assert tf.train.load_checkpoint(str(tmp_path / "m")).get_variable_to_shape_map() == {"w": [12, 10]}
    assert read_index(epath.Path(tmp_path / "m"))["w"].shape == (12, 10)
