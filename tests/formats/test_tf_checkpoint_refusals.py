"""TF1 checkpoints that are damaged or lack something, and models that cannot be written as one."""

import dataclasses
import json
import types

import numpy as np
import pytest
from tf1_checkpoint import CONFIG, DATA, INDEX, WORDS, read, save, variables

from bert_jax.config import HeadConfig
from bert_jax.errors import UserError
from bert_jax.formats.tf1 import open_tf_checkpoint, write_tf_checkpoint


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
    "index of noise": (
        edit(INDEX, lambda data: np.random.default_rng(0).bytes(len(data))),
        "is damaged or not the index",
    ),
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
    with pytest.raises(UserError, match=message) as caught:
        read(open_tf_checkpoint(copy))
    assert "\n" not in str(caught.value)


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
        (dict(tokenizer=types.SimpleNamespace(kind="sentencepiece")), "SentencePiece"),
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
