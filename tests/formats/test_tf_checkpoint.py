"""Google's TF1 checkpoints: written here by TensorFlow with the original's names, compared with its mathematics."""

import dataclasses
import math
import subprocess
import sys

import jax
import numpy as np
import numpy_bert
import pytest
from tf1_checkpoint import DATA, HEADS, HIDDEN, INDEX, LAYERS, POSITIONS, WIDE, WORDS, read, save, variables

from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig
from bert_jax.errors import UserError
from bert_jax.formats.tf1 import open_tf_checkpoint, write_tf_checkpoint
from bert_jax.models.bert import BertForPreTraining
from bert_jax.tokenization.tokenizer import load_tokenizer


def nested(arrays: dict[str, np.ndarray]) -> dict:
    tree = {}
    for path, value in arrays.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree


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
    assert stored.model == ModelConfig(
        vocab_size=WORDS,
        hidden_size=HIDDEN,
        num_layers=LAYERS,
        num_heads=HEADS,
        intermediate_size=WIDE,
        max_position_embeddings=POSITIONS,
        activation="gelu_tanh",
        layer_norm_epsilon=1e-12,
    )
    assert "global_step" in stored.ignored and len(stored.ignored) == 7 and stored.tokenizer.vocab_size == WORDS
    random = np.random.default_rng(1)
    batch = {
        "input_ids": random.integers(0, WORDS, (3, 10)),
        "token_type_ids": random.integers(0, 2, (3, 10)),
        "attention_mask": np.arange(10) < np.array([[10], [7], [4]]),
        "masked_positions": random.integers(0, 10, (3, 4)),
    }
    batch = {name: array.astype(np.int32) for name, array in batch.items()}
    output = jax.jit(BertForPreTraining(stored.model, ComputeConfig(dtype="float32")).apply)(
        nested(read(stored)), batch
    )
    words, pairs = original(values, batch)
    np.testing.assert_allclose(output.mlm_logits, words, atol=2e-5)
    np.testing.assert_allclose(output.next_sentence_logits, pairs, atol=2e-5)


def test_reading_needs_no_tensorflow(saved):
    code = (
        "import sys; from bert_jax.formats.tf1 import open_tf_checkpoint as load\n"
        f"array = load({str(saved[0])!r}).arrays['mlm/bias']; array.read((slice(None),))\n"
        "assert not {'tensorflow', 'jax'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
    assert sorted(file.name for file in (tmp_path / "again").iterdir()) == sorted(
        ["bert_config.json", "vocab.txt", "tokenizer_config.json", INDEX, DATA]
    )
    reader = tf.train.load_checkpoint(str(tmp_path / "again" / "bert_model.ckpt"))
    assert reader.get_variable_to_shape_map().keys() == values.keys()
    for name, value in values.items():
        expected = value[:WORDS] if name.endswith(("word_embeddings", "predictions/output_bias")) else value
        np.testing.assert_array_equal(reader.get_tensor(name), expected, err_msg=name)
    again = open_tf_checkpoint(tmp_path / "again")
    assert (again.model, again.head, again.tokenizer.fingerprint) == (stored.model, head, stored.tokenizer.fingerprint)
    for (path, first), second in zip(read(stored).items(), read(again).values(), strict=True):
        np.testing.assert_array_equal(first, second, err_msg=path)


def test_a_part_of_an_array_is_that_part_of_the_whole(saved):
    for path, array in open_tf_checkpoint(saved[0]).arrays.items():
        index = tuple(slice(size // 3, max(size - 1, 1)) for size in array.shape)
        np.testing.assert_array_equal(
            array.read(index), array.read((slice(None),) * len(array.shape))[index], err_msg=path
        )


def test_which_checkpoint_of_a_directory(saved, tmp_path):
    values = saved[1]
    for step in (500, 1000):
        save(tmp_path, values | {"bert/pooler/dense/bias": np.full(HIDDEN, step, np.float32)}, "model.ckpt", step)
    state, bias = tmp_path / "checkpoint", lambda path: int(read(open_tf_checkpoint(path))["pooler/bias"][0])
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
