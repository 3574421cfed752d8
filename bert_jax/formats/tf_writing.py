"""Writes checkpoints that Google's TF1 code of 2018 reads; needs TensorFlow."""

import json
import os

import numpy as np
from etils import epath

from bert_jax.errors import UserError, need_extra
from bert_jax.formats import tf_names as names
from bert_jax.formats.stored import StoredModel
from bert_jax.formats.tf_checkpoint import CONFIG_FILE, LAYER_NORM_EPSILON, PREFIX, RATES, SIZES
from bert_jax.tokenization import vocabulary_file


def write_tf_checkpoint(stored: StoredModel, destination: str | os.PathLike[str]) -> None:
    """Write bert_config.json, bert_model.ckpt.* and the vocabulary into the new directory `destination`.

    Raises:
      UserError: the original's code could not compute this model, TensorFlow is not installed, or the files cannot be
        written.
    """
    _check_expressible(stored)
    need_extra("tensorflow", "tensorflow", "writing Google's TF1 format")
    destination, model = epath.Path(destination), stored.model
    vocabulary_file.make_directory(destination)
    values = {key: getattr(model, ours) for key, (ours, _) in (SIZES | RATES).items()}
    values |= {"intermediate_size": model.feed_forward_size, "hidden_act": "gelu"}
    vocabulary_file.write(destination / CONFIG_FILE, (json.dumps(values, indent=2, sort_keys=True) + "\n").encode())
    assert stored.tokenizer is not None  # _check_expressible has checked it
    stored.tokenizer.save(destination)
    _save(stored, destination / PREFIX)


def _check_expressible(stored: StoredModel) -> None:
    """Raise a UserError about what bert_config.json cannot express and the original would silently ignore."""
    model, head, away = stored.model, stored.head, "convert it with --to=huggingface, whose config.json can say so"
    if model.norm_position != "post":
        raise UserError(
            f"model.norm_position={model.norm_position}: {names.ABSENT['final_norm']}; keep the model in "
            "bert_jax's own format (--to=bert_jax)"
        )
    others = list(model.beyond_bert)
    others += ["padding_id"] * (model.padding_id is not None) + ["type_vocab_size"] * (not model.type_vocab_size)
    if others:
        raise UserError(
            f"model.{others[0]}={getattr(model, others[0])}: Google's TF1 code has BERT only; keep the model in "
            "bert_jax's own format (--to=bert_jax)"
        )
    if model.activation != "gelu_tanh":
        raise UserError(
            f"model.activation={model.activation}: Google's TF1 code has only the tanh approximation of GELU, "
            f"gelu_tanh; {away}"
        )
    if model.layer_norm_epsilon != LAYER_NORM_EPSILON:
        raise UserError(
            f"model.layer_norm_epsilon={model.layer_norm_epsilon}: Google's TF1 code has {LAYER_NORM_EPSILON} and "
            f"no option; {away}"
        )
    if head is not None and head.kind not in names.HEADS:
        raise UserError(
            f"the model has a head for {head.kind}: Google's TF1 code has none, only {', '.join(names.HEADS)}; "
            "convert it with --to=huggingface"
        )
    if stored.tokenizer is None:
        raise UserError(f"{stored.path} has no vocabulary, and a TF1 checkpoint needs its vocab.txt; put it there")
    if stored.tokenizer.kind != "wordpiece":
        raise UserError(
            "the vocabulary is a SentencePiece model: Google's TF1 code only reads WordPiece (vocab.txt); keep the "
            "model in bert_jax's own format (--to=bert_jax)"
        )
    if stored.tokenizer.vocab_size != model.vocab_size:
        raise UserError(
            f"{stored.path}: the vocabulary has {stored.tokenizer.vocab_size:,} entries, but the model "
            f"{model.vocab_size:,}; they do not belong together"
        )


def _save(stored: StoredModel, prefix: epath.Path) -> None:
    for name, value in (("TF_CPP_MIN_LOG_LEVEL", "2"), ("TF_ENABLE_ONEDNN_OPTS", "0")):
        os.environ.setdefault(name, value)  # otherwise it prints what it found in the processor
    import tensorflow as tf

    tensors = {}
    with tf.device("/CPU:0"):
        for path, place in names.table(stored.model, stored.head).items():
            if array := stored.arrays.get(path):
                values = np.asarray(array.read((slice(None),) * len(array.shape)), np.float32)
                for name, part in zip(place.names, [values] if place.layers is None else values, strict=True):
                    tensors[name] = tf.constant(place.split_up(part))
        try:
            tf.raw_ops.SaveV2(
                prefix=os.fspath(prefix),
                tensor_names=list(tensors),
                shape_and_slices=[""] * len(tensors),
                tensors=list(tensors.values()),
            )
        except tf.errors.OpError as error:
            raise UserError(f"cannot write {prefix}: {error.message.splitlines()[0]}") from None
