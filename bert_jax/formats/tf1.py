"""Checkpoints of Google's TF1 code of 2018: bert_config.json, bert_model.ckpt.*, vocab.txt, read and written.

Writing needs TensorFlow, reading does not: TensorFlow's own reader ends the whole process if an index is malformed (a
negative dimension is enough) and takes longer to import than BERT-base takes to read. Here every number is compared
with the lengths of the files before anything is allocated.

The format is version 2, since 2016. A checkpoint PREFIX is PREFIX.index, a table (LevelDB's format, not compressed)
from names to dtype, shape, shard, offset, size and checksum, and the shards PREFIX.data-0000i-of-0000N, raw
little-endian values.
"""

import dataclasses
import functools
import json
import math
import os
import re
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
from etils import epath

from bert_jax.config import EncoderConfig, HeadConfig, ModelConfig
from bert_jax.config.options import to_dict
from bert_jax.errors import UserError, first_lines, need_extra
from bert_jax.files import read_contents, read_object
from bert_jax.formats.model_types import definition
from bert_jax.formats.model_types.bert import ENCODER
from bert_jax.formats.model_types.definition import sizes_and_rates, unlike_bert, usual
from bert_jax.formats.stored import Place, StoredModel, place_of, without_padding
from bert_jax.models.bert_parameters import ENCODER_PARTS, PRETRAINING_PARTS, bert_parameters
from bert_jax.parameters import ParameterTable
from bert_jax.tokenization.sentence_pieces import fields, varint
from bert_jax.tokenization.tokenizer import load_tokenizer
from bert_jax.tokenization.vocabulary import WORDPIECE_FILE, make_directory, write_file

MODULES = {
    # transformers kept these, with dots: bert/encoder/layer_{}/attention/self/query is there encoder.layer.{}.…
    **{ours: f"bert/{theirs.replace('.{}', '_{}').replace('.', '/')}" for ours, theirs in ENCODER.items()},
    "mlm/dense": "cls/predictions/transform/dense",
    "mlm/norm": "cls/predictions/transform/LayerNorm",
    "mlm": "cls/predictions/output",
    "next_sentence": "cls/seq_relationship/output",
}
"""Our modules → theirs, with {} for the layer."""
HEADS = {"classification": "output", "regression": "output", "span": "cls/squad/output"}
"""Kind of the head → their name (run_classifier.py, run_squad.py)."""
ABSENT = {
    "final_norm": "neither Google's TF1 code nor transformers' BERT has LayerNorm there",
    "crf": "Google's TF1 code has no CRF",
    "head/layer_": "Google's TF1 code has no BiLSTM",
    "head/mix": "Google's TF1 code does not mix layers",
}
"""Beginnings of paths that have no counterpart there, and the reasons. Nor have heads of kinds not in HEADS."""

_NORM = {"scale": "/gamma", "bias": "/beta"}
_DENSE = {"kernel": "/kernel", "bias": "/bias", "table": ""}
_OUTPUT = {"kernel": "_weights", "bias": "_bias"}  # the original multiplies by these weights transposed


def places(parameters: ParameterTable, head: HeadConfig | None = None) -> dict[str, Place]:
    """Return {our path: place} for every parameter except those below ABSENT and those of a head that is not in HEADS.

    Raises:
      UserError: MODULES does not name a parameter.
    """
    modules = MODULES | ({"head": HEADS[head.kind]} if head and head.kind in HEADS else {})
    found = {}
    for path, parameter in parameters.items():
        module, _, leaf = path.rpartition("/")
        if path.startswith(tuple(ABSENT)) or (module == "head" and module not in modules):
            continue
        if module not in modules:
            raise UserError(
                f"Google's TF1 code has no name for the parameter {path}, so this model cannot be written in that "
                "format; use --to=bert_jax, or give it a name in bert_jax/formats/tf1.py"
            )
        name = modules[module]
        output = name.split("/")[-1] == "output"
        leaves = _NORM if name.endswith("LayerNorm") else _OUTPUT if output else _DENSE
        found[path] = place_of(parameter, name + leaves[leaf], outputs_first=output and leaf == "kernel")
    return found


def table(model: EncoderConfig, head: HeadConfig | None = None) -> dict[str, Place]:
    """Return `places` for every parameter that a model of these sizes can have, including optional parts."""
    return places(bert_parameters(model, PRETRAINING_PARTS, head), head)


FLOAT32 = 1  # DT_FLOAT of TensorFlow's types.proto
_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48  # bytes: two block handles, padding, and the magic number
_LONGEST_INDEX, _LONGEST_NAME = 1 << 24, 1 << 12  # BERT-large with both Adam slots: 100 kB and 80 characters
_MOST_ENTRIES, _MOST_DIMENSIONS = 1 << 14, 8  # 1,200 and 2; names with shared beginnings can grow a thousandfold
_POLYNOMIAL = np.uint32(0x82F63B78)  # of CRC-32C, reflected
_LANES = 8192  # a power of two


@dataclasses.dataclass(frozen=True)
class Variable:
    """One tensor of a checkpoint, not yet read."""

    name: str
    dtype: int
    """Number in TensorFlow's types.proto."""
    shape: tuple[int, ...]
    file: epath.Path
    offset: int
    size: int
    """Number of bytes."""
    checksum: int
    """Masked CRC-32C of those bytes."""

    def read(self) -> np.ndarray:
        """Return the float32 values of `shape`; raise a UserError if they are not those that were written."""
        with self.file.open("rb") as stream:
            stream.seek(self.offset)
            data = np.frombuffer(stream.read(self.size), np.uint8)
        if data.size != self.size or masked_crc32c(data) != self.checksum:
            raise UserError(
                f"{self.file} is damaged: the values of {self.name} do not match their checksum; fetch it again"
            )
        return data.view("<f4").reshape(self.shape)


def read_index(prefix: epath.Path) -> dict[str, Variable]:
    """Return the variables of the checkpoint by name, without reading values.

    Raises:
      UserError: there is no such checkpoint, a shard is missing or shorter than the index says, or the index is
        damaged.
    """
    file = prefix.parent / f"{prefix.name}.index"
    if not file.exists():
        raise UserError(f"no TensorFlow checkpoint at {prefix}: there is no {file.name} next to it")
    if file.stat().length > _LONGEST_INDEX:
        raise UserError(
            f"{file} has {file.stat().length:,} bytes; the index of a BERT needs fewer than {_LONGEST_INDEX:,}"
        )
    try:
        entries = _table(read_contents(file))
        header = _fields(entries.pop(b""))
        if header.get(2, 0):
            raise ValueError("big-endian values")
        variables = [_variable(name.decode(), entry, prefix, _number(header[1])) for name, entry in entries.items()]
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise UserError(
            f"{file} is damaged or not the index of a TensorFlow checkpoint ({error}); fetch it again"
        ) from None
    _check_shards(variables)
    return {variable.name: variable for variable in variables}


def _variable(name: str, entry: bytes, prefix: epath.Path, num_shards: int) -> Variable:
    """Parse a BundleEntryProto: dtype 1, shape 2, shard 3, offset 4, size 5, checksum 6, slices 7; zeros are absent."""
    found = _fields(entry)
    if 7 in found:
        raise ValueError(f"{name} is stored in slices")
    dtype, shard, offset, size = (_number(found.get(field, 0)) for field in (1, 3, 4, 5))
    checksum = int.from_bytes(found.get(6, b""), "little")
    dimensions = [_number(_fields(value).get(1, 0)) for value in fields(found.get(2, b"")).get(2, ())]
    if len(dimensions) > _MOST_DIMENSIONS:
        raise ValueError(f"{name} has {len(dimensions):,} dimensions")
    if shard >= num_shards:
        raise ValueError(f"{name} is in shard {shard} of {num_shards}")
    if dtype == FLOAT32 and 4 * math.prod(dimensions) != size:
        raise ValueError(f"{name} has shape {dimensions} but {size:,} bytes")
    file = prefix.parent / f"{prefix.name}.data-{shard:05d}-of-{num_shards:05d}"
    return Variable(name, dtype, tuple(dimensions), file, offset, size, checksum)


def _check_shards(variables: list[Variable]) -> None:
    ends = {}
    for variable in variables:
        ends[variable.file] = max(ends.get(variable.file, 0), variable.offset + variable.size)
    for file, end in ends.items():
        if not file.exists():
            raise UserError(f"{file} is missing; its index names it: fetch every file of the checkpoint")
        if file.stat().length < end:
            raise UserError(
                f"{file} is truncated: {file.stat().length:,} bytes, but its index needs {end:,}; fetch it again"
            )


def _table(data: bytes) -> dict[bytes, bytes]:
    """Return keys and values of a LevelDB table."""
    footer = data[-_FOOTER:]
    if len(footer) < _FOOTER or int.from_bytes(footer[-8:], "little") != _MAGIC:
        raise ValueError("it does not end as an index does")
    _, at = _handle(footer, 0)
    entries, done = {}, 0
    for _, where in _block(data, _handle(footer, at)[0]):
        (offset, size), _ = _handle(where, 0)
        if offset < done:
            raise ValueError("blocks overlap")
        done = offset + size
        for name, entry in _block(data, (offset, size)):
            entries[name] = entry
            if len(entries) > _MOST_ENTRIES:
                raise ValueError(f"more than {_MOST_ENTRIES:,} entries")
    return entries


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Return ((offset, size), position after it)."""
    offset, at = varint(data, at)
    size, at = varint(data, at)
    return (offset, size), at


def _block(data: bytes, handle: tuple[int, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of a block: keys share their beginning with the previous key; restart points end the block."""
    offset, size = handle
    block, trailer = data[offset : offset + size], data[offset + size : offset + size + 5]
    if len(trailer) < 5 or size < 4:
        raise ValueError("a block is outside the file")
    if trailer[0]:
        raise ValueError("compressed blocks")
    if masked_crc32c(np.frombuffer(block + trailer[:1], np.uint8)) != int.from_bytes(trailer[1:], "little"):
        raise ValueError("a block does not match its checksum")
    key, at, end = b"", 0, size - 4 * (1 + int.from_bytes(block[-4:], "little"))
    while at < end:
        shared, at = varint(block, at)
        rest, at = varint(block, at)
        length, at = varint(block, at)
        key, value = key[:shared] + block[at : at + rest], block[at + rest : at + rest + length]
        at += rest + length
        if at > end or len(key) > _LONGEST_NAME:
            raise ValueError("an entry does not fit")
        yield key, value


def _fields(message: bytes) -> dict[int, Any]:
    """Return the last value of each field of a protocol buffer: a number, or bytes."""
    return {number: values[-1] for number, values in fields(message).items()}


def _number(value: Any) -> int:
    if isinstance(value, bytes):
        raise ValueError("bytes in place of a number")
    return value


def masked_crc32c(data: np.ndarray) -> int:
    """Return the CRC-32C (Castagnoli) of uint8 `data`, rotated and shifted as TensorFlow stores it.

    The data is cut into lanes that advance together by four bytes, and adjacent lanes are then joined in pairs: the
    register after A and B is the register after A, moved over len(B) zeros, XOR the register after B alone. Moving is
    linear, so 32 more lanes that start from single bits and see only zeros find the operator along the way.
    """
    low, high = _advance_tables()
    width = -(-data.size // (4 * _LANES))
    padded = np.zeros(4 * _LANES * width, np.uint8)  # leading zeros leave an empty register as it is
    padded[padded.size - data.size :] = data
    padded[padded.size - data.size :][:4] ^= 255
    words = np.zeros((width, _LANES + 32), np.uint32)
    words[:, :_LANES] = padded.view("<u4").reshape(_LANES, width).T
    state = np.concatenate([np.zeros(_LANES, np.uint32), np.uint32(1) << np.arange(32, dtype=np.uint32)])
    for row in words:
        state ^= row
        # Every index is inside the table; `wrap` only avoids the check, which would take most of the time.
        state = low.take(state & 0xFFFF, mode="wrap") ^ high.take(state >> 16, mode="wrap")
    lanes, operator = state[:_LANES], state[_LANES:]
    while lanes.size > 1:
        lanes = _apply(operator, lanes[::2]) ^ lanes[1::2]
        operator = _apply(operator, operator)
    crc = int(lanes[0]) ^ 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@functools.cache
def _advance_tables() -> tuple[np.ndarray, np.ndarray]:
    """Return what registers with only the lower, or upper, 16 bits become after four zero bytes: 2 × uint32 [65536]."""
    tables = np.arange(65_536, dtype=np.uint32) << np.array([[0], [16]], np.uint32)
    for _ in range(32):
        tables = (tables >> 1) ^ (tables & 1) * _POLYNOMIAL
    return tables[0], tables[1]


def _apply(operator: np.ndarray, registers: np.ndarray) -> np.ndarray:
    """Apply a linear map, given by its images of the 32 single bits, to registers."""
    bits = registers[:, None] >> np.arange(32, dtype=np.uint32) & 1
    return np.bitwise_xor.reduce(bits * operator, axis=1)


CONFIG_FILE, PREFIX = "bert_config.json", "bert_model.ckpt"
LAYER_NORM_EPSILON = 1e-12  # of tf.contrib.layers.layer_norm; not an option in the original

# The original's BertConfig has 16 token types, unlike every released file.
SIZES = usual(definition.SIZES, vocab_size=None, type_vocab_size=16)
RATES = {key: rate for key, rate in definition.RATES.items() if key != "layer_norm_eps"}


def open_tf_checkpoint(path: str | os.PathLike[str]) -> StoredModel:
    """Describe the checkpoint that a directory holds or a prefix names, without reading its arrays.

    Args:
      path: a directory with bert_config.json, vocab.txt and one checkpoint (of several, the one that its file
        `checkpoint` names), or the prefix of a checkpoint, such as …/model.ckpt-1000, with those two files next to it.

    Raises:
      UserError: there is no such checkpoint, files are damaged, or files do not belong together.
    """
    prefix = _find_prefix(epath.Path(path))
    variables = read_index(prefix)
    config = _read_config(prefix.parent / CONFIG_FILE)
    vocabulary = prefix.parent / WORDPIECE_FILE
    tokenizer = load_tokenizer(vocabulary) if vocabulary.exists() else None
    head = _head(variables)
    places = table(config, head)
    parts = {*ENCODER_PARTS} | {place.part for place in places.values() if place.name in variables}
    present = {path: place for path, place in places.items() if place.part in parts}
    _check_fit(present, variables, config, prefix)
    model = without_padding(config, tokenizer, prefix)
    used = {name for place in present.values() for name in place.names}
    learned = {name for name, variable in variables.items() if variable.shape and not _is_slot(name, variables)}
    return StoredModel(
        kind="tf1",
        path=os.fspath(path),
        model=model,
        tokenizer=tokenizer,
        head=head,
        arrays={
            path: place.array(lambda name, index: variables[name].read()[index])
            for path, place in table(model, head).items()
            if path in present
        },
        ignored=tuple(sorted(learned - used)),
        history={"source": {"kind": "tf1", "path": os.fspath(path), "checkpoint": prefix.name}},
    )


def _is_slot(name: str, variables: Collection[str]) -> bool:
    """Return whether a variable is what an optimizer keeps of another, by whose name its own begins."""
    return name.rpartition("/")[0] in variables


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
    text = read_contents(state).decode(errors="replace") if state.exists() else ""
    named = re.search(r'^model_checkpoint_path: "(?:[^"\n]*/)?([^"/\n]+)"', text, re.M)
    if named and named[1] in found:
        return path / named[1]
    raise UserError(
        f"{path} holds {len(found)} checkpoints ({', '.join(found[:3])}{', …' * (len(found) > 3)}) and no file "
        f"`checkpoint` that names one of them; give the prefix of the one you mean, for example {path / found[-1]}"
    )


def _read_config(file: epath.Path) -> EncoderConfig:
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
    options = sizes_and_rates(values, SIZES, RATES, file)
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
    present: dict[str, Place], variables: dict[str, Variable], model: EncoderConfig, prefix: epath.Path
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


def write_tf_checkpoint(stored: StoredModel, destination: str | os.PathLike[str]) -> None:
    """Write bert_config.json, bert_model.ckpt.* and the vocabulary into the new directory `destination`.

    Raises:
      UserError: the original's code could not compute this model, TensorFlow is not installed, or the files cannot be
        written.
    """
    _check_expressible(stored)
    need_extra("tensorflow", "tensorflow", "writing Google's TF1 format")
    destination, model = epath.Path(destination), stored.model
    make_directory(destination)
    assert isinstance(model, ModelConfig)  # _check_expressible has checked it
    values = {key: getattr(model, ours) for key, (ours, _) in (SIZES | RATES).items()}
    values |= {"intermediate_size": model.feed_forward_size, "hidden_act": "gelu"}
    write_file(destination / CONFIG_FILE, (json.dumps(values, indent=2, sort_keys=True) + "\n").encode())
    assert stored.tokenizer is not None  # _check_expressible has checked it
    stored.tokenizer.save(destination)
    _save(stored, destination / PREFIX)


def _check_expressible(stored: StoredModel) -> None:
    """Raise a UserError about what bert_config.json cannot express and the original would silently ignore."""
    model, head, away = stored.model, stored.head, "convert it with --to=huggingface, whose config.json can say so"
    if model.norm_position != "post":
        raise UserError(
            f"model.norm_position={model.norm_position}: {ABSENT['final_norm']}; keep the model in "
            "bert_jax's own format (--to=bert_jax)"
        )
    others = list(unlike_bert(model))
    others += ["padding_id"] * (model.padding_id is not None) + ["type_vocab_size"] * (not model.type_vocab_size)
    if others:
        raise UserError(
            f"model.{others[0]}={to_dict(model).get(others[0])}: Google's TF1 code has BERT only; keep the model in "
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
    if head is not None and head.kind not in HEADS:
        raise UserError(
            f"the model has a head for {head.kind}: Google's TF1 code has none, only {', '.join(HEADS)}; "
            "convert it with --to=huggingface"
        )
    if stored.tokenizer is None:
        raise UserError(f"{stored.path} has no vocabulary, and a TF1 checkpoint needs its vocab.txt; put it there")
    if stored.tokenizer.kind != "wordpiece":
        raise UserError(
            f"the vocabulary is of the kind {stored.tokenizer.kind}: Google's TF1 code only reads WordPiece as BERT's "
            "own (vocab.txt); keep the model in bert_jax's own format (--to=bert_jax)"
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
        for path, place in table(stored.model, stored.head).items():
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
