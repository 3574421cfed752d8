"""Checkpoints of Google's TF1 code of 2018: bert_config.json, bert_model.ckpt.*, vocab.txt.

They are read here, without TensorFlow (see `tensor_bundle`), and written by `tf_writing`.
"""

import os
import re

import numpy as np
from etils import epath

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.config.json_form import first_lines
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.files import read_object
from bert_jax.formats import tf_names as names
from bert_jax.formats.places import Place
from bert_jax.formats.stored import StoredModel, without_padding
from bert_jax.formats.tensor_bundle import FLOAT32, Variable, read_index
from bert_jax.models.bert_parameters import ENCODER_PARTS
from bert_jax.tokenization import vocabulary_file
from bert_jax.tokenization.tokenizer import load_tokenizer

CONFIG_FILE, PREFIX = "bert_config.json", "bert_model.ckpt"
LAYER_NORM_EPSILON = 1e-12  # of tf.contrib.layers.layer_norm; not an option in the original

SIZES = {  # theirs: ours, default of the original's BertConfig (which has 16 token types, unlike every released file)
    "vocab_size": ("vocab_size", None),
    "hidden_size": ("hidden_size", 768),
    "num_hidden_layers": ("num_layers", 12),
    "num_attention_heads": ("num_heads", 12),
    "intermediate_size": ("intermediate_size", 3_072),
    "max_position_embeddings": ("max_position_embeddings", 512),
    "type_vocab_size": ("type_vocab_size", 16),
}
RATES = {
    "hidden_dropout_prob": ("hidden_dropout", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1),
    "initializer_range": ("initializer_range", 0.02),
}


def open_tf_checkpoint(path: str | os.PathLike[str]) -> StoredModel:
    """Describe the checkpoint that a directory holds or a prefix names, without reading its arrays.

    Args:
      path: a directory with bert_config.json, vocab.txt and one checkpoint (of several, the one that its file
        `checkpoint` names), or the prefix of a checkpoint, such as …/model.ckpt-1000, with those two files beside it.

    Raises:
      UserError: there is no such checkpoint, files are damaged, or files do not belong together.
    """
    prefix = _find_prefix(epath.Path(path))
    variables = read_index(prefix)
    config = _read_config(prefix.parent / CONFIG_FILE)
    vocabulary = prefix.parent / vocabulary_file.WORDPIECE_FILE
    tokenizer = load_tokenizer(vocabulary) if vocabulary.exists() else None
    head = _head(variables)
    places = names.table(config, head)
    parts = {*ENCODER_PARTS} | {place.part for place in places.values() if place.name in variables}
    present = {path: place for path, place in places.items() if place.part in parts}
    _check_fit(present, variables, config, prefix)
    model = without_padding(config, tokenizer, prefix)
    used = {name for place in present.values() for name in place.names}
    return StoredModel(
        kind="tf1",
        path=os.fspath(path),
        model=model,
        tokenizer=tokenizer,
        head=head,
        arrays={
            path: _stored_array(place, variables) for path, place in names.table(model, head).items() if path in present
        },
        ignored=tuple(sorted(variables.keys() - used)),
        history={"source": {"kind": "tf1", "path": os.fspath(path), "checkpoint": prefix.name}},
    )


def _find_prefix(path: epath.Path) -> epath.Path:
    if not path.is_dir():
        return path.parent / re.sub(r"\.(index|data-\d{5}-of-\d{5})$", "", path.name)
    found = sorted(file.name.removesuffix(".index") for file in path.glob("*.index"))
    if not found:
        raise UserError(
            f"{path} holds no TensorFlow checkpoint: expected {PREFIX}.index and {PREFIX}.data-00000-of-00001"
        )
    if len(found) == 1:
        return path / found[0]
    state = path / "checkpoint"
    text = state.read_bytes().decode(errors="replace") if state.exists() else ""
    named = re.search(r'^model_checkpoint_path: "(?:[^"\n]*/)?([^"/\n]+)"', text, re.M)
    if named and named[1] in found:
        return path / named[1]
    raise UserError(
        f"{path} holds {len(found)} checkpoints ({', '.join(found[:3])}{', …' * (len(found) > 3)}) and no file "
        f"`checkpoint` that names one of them; give the prefix of the one you mean, for example {path / found[-1]}"
    )


def _read_config(file: epath.Path) -> ModelConfig:
    if not file.exists():
        raise UserError(
            f"{file} is missing; copy the one that the model was trained with, from the directory of the checkpoint "
            "that training started from"
        )
    values = read_object(file)
    if values.get("hidden_act", "gelu") != "gelu":
        raise UserError(
            f"{file} has hidden_act={values['hidden_act']!r:.40}; only 'gelu', which every released "
            "BERT has, can be loaded"
        )
    options = {}
    for key, (ours, default) in (SIZES | RATES).items():
        value = values.get(key, default)
        if isinstance(value, bool) or not (
            isinstance(value, int) and 0 < value < 2**31
            if key in SIZES
            else isinstance(value, (int, float)) and 0 <= value < 1
        ):
            kind = "a positive whole number" if key in SIZES else "a number from 0 to 1"
            raise UserError(f"{file} has {key}={value!r:.40} where {kind} is expected")
        options[ours] = value if key in SIZES else float(value)
    if options["hidden_size"] % options["num_heads"]:
        raise UserError(
            f"{file} has hidden_size={options['hidden_size']}, not divisible by "
            f"num_attention_heads={options['num_heads']}"
        )
    # The original's "gelu" is the tanh approximation.
    return ModelConfig(**options, activation="gelu_tanh", layer_norm_epsilon=LAYER_NORM_EPSILON)


def _head(variables: dict[str, Variable]) -> HeadConfig | None:
    if "cls/squad/output_weights" in variables:
        return HeadConfig(kind="span")
    if "output_weights" not in variables:
        return None
    outputs = (*variables["output_weights"].shape, 0)[0]
    if outputs == 1:
        return HeadConfig(kind="regression")
    return HeadConfig(kind="classification", labels=tuple(f"LABEL_{number}" for number in range(min(outputs, 1 << 16))))


def _check_fit(
    present: dict[str, Place], variables: dict[str, Variable], model: ModelConfig, prefix: epath.Path
) -> None:
    """Raise a UserError that names the first variables that are missing or differ from the configuration."""
    layers = {match[1] for name in variables if (match := re.match(r"bert/encoder/layer_(\d+)/", name))}
    if not any(name.startswith("bert/") for name in variables):
        raise UserError(
            f"{prefix} has no variable whose name begins with bert/, only {', '.join(sorted(variables)[:3])}, …; "
            "only checkpoints of Google's TF1 code are supported, not those of other programs"
        )
    if len(layers) != model.num_layers:
        raise UserError(
            f"{prefix.parent / CONFIG_FILE} has num_hidden_layers={model.num_layers}, but {prefix.name} has "
            f"weights of {len(layers)} layers"
        )
    lines = []
    for place in present.values():
        expected = place.their_shape
        for name in place.names:
            variable = variables.get(name)
            if variable is None:
                lines.append(f"{name} {list(expected)} is missing")
            elif variable.shape != expected:
                lines.append(f"{name} is {list(variable.shape)} where {list(expected)} is expected")
            elif variable.dtype != FLOAT32:
                lines.append(f"{name} is of TensorFlow's type {variable.dtype}, not {FLOAT32} (float32)")
    if lines:
        raise UserError(f"the weights in {prefix} do not fit {CONFIG_FILE}: {first_lines(lines, 3)}")


def _stored_array(place: Place, variables: dict[str, Variable]) -> StoredArray:
    def read_part(name: str, index: tuple[slice, ...]) -> np.ndarray:
        return variables[name].read()[index]

    return StoredArray(place.shape, np.dtype(np.float32), lambda index: place.read(read_part, index))
