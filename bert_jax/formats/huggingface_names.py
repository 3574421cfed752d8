"""What `transformers` calls the parameters of BERT, and how they lie there: one table for both directions.

PyTorch keeps a kernel as [outputs, inputs] with the heads of attention side by side, and every layer by itself; ours are
[inputs, outputs] with an axis of their own for the heads, and the layers of an encoder share one array.
"""

import collections
import dataclasses
import re

import numpy as np

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.devices.placement import empty
from bert_jax.formats.safetensors_files import FileTensor

WORD_TABLE = "bert.embeddings.word_embeddings.weight"
DECODER_TABLE, DECODER_BIAS = "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"
TIED = {DECODER_TABLE: WORD_TABLE, DECODER_BIAS: "cls.predictions.bias"}  # second names of one array
BUFFERS = re.compile(r"(^|\.)(position_ids|token_type_ids)$")
LAYER = re.compile(r"bert\.encoder\.layer\.(\d+)\.")
_OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}  # of LayerNorm, in files converted in 2018 and 2019


@dataclasses.dataclass(frozen=True)
class Place:
    """Where one of our parameters is on the other side.

    An array of theirs, reshaped to `split` (its axes in their order, heads apart), has our axes in the order `axes`.
    """

    name: str
    """With {} for the layer, if `layers` is not None."""
    split: tuple[int, ...]
    groups: tuple[int, ...]
    """How many axes of `split` each of their axes has become."""
    axes: tuple[int, ...]
    layers: int | None = None

    @property
    def names(self) -> list[str]:
        return [self.name] if self.layers is None else [self.name.format(layer) for layer in range(self.layers)]

    @property
    def shape(self) -> tuple[int, ...]:
        """In our layout."""
        one = tuple(self.split[axis] for axis in self.axes)
        return one if self.layers is None else (self.layers, *one)

    @property
    def their_shape(self) -> tuple[int, ...]:
        """Of each array on the other side."""
        ends = np.cumsum((0, *self.groups))
        return tuple(int(np.prod(self.split[start:end])) for start, end in zip(ends, ends[1:]))

    def read(self, tensors: dict[str, FileTensor], index: tuple[slice, ...]) -> np.ndarray:
        """The part of our array that `index` names; only the layers and rows it needs are read."""
        bounds = [slice(*part.indices(size)) for part, size in zip(index, self.shape, strict=True)]
        if self.layers is None:
            return np.ascontiguousarray(self._read_one(tensors[self.name], bounds))
        layers = range(self.layers)[bounds[0]]
        shape = tuple(len(range(size)[part]) for part, size in zip(bounds, self.shape))
        values = empty(shape)
        for row, layer in enumerate(layers):
            values[row] = self._read_one(tensors[self.name.format(layer)], bounds[1:])
        return values

    def _read_one(self, tensor: FileTensor, bounds: list[slice]) -> np.ndarray:
        wanted: list[slice] = [slice(None)] * len(self.split)
        for part, axis in zip(bounds, self.axes):
            wanted[axis] = part
        outer, inner, shape, first = [], [], [], 0
        for count in self.groups:
            # Heads and head size lie in one axis of theirs: whole heads are read, the rest is cut afterwards.
            block = int(np.prod(self.split[first + 1 : first + count]))
            head = wanted[first]
            outer.append(slice(head.start * block, head.stop * block))
            shape += [max(0, head.stop - head.start), *self.split[first + 1 : first + count]]
            inner += [slice(None, None, head.step), *wanted[first + 1 : first + count]]
            first += count
        return tensor.read(tuple(outer)).reshape(shape)[tuple(inner)].transpose(self.axes)

    def split_up(self, values: np.ndarray) -> np.ndarray:
        """One array of theirs from ours (of one layer)."""
        return np.ascontiguousarray(values.transpose(np.argsort(self.axes))).reshape(self.their_shape)


def table(model: ModelConfig, head: HeadConfig | None = None) -> dict[str, Place]:
    """Our path → place, for every parameter that a model of these sizes can have, parts it may lack included."""
    hidden, wide, heads, size = model.hidden_size, model.feed_forward_size, model.num_heads, model.head_size
    layer, n = "bert.encoder.layer.{}.", model.num_layers
    places = {}

    def vector(path, name, length, layers=None):
        places[path] = Place(name, (length,), (1,), (0,), layers)

    def linear(path, name, inputs, outputs, layers=None):
        places[f"{path}/kernel"] = Place(f"{name}.weight", (outputs, inputs), (1, 1), (1, 0), layers)
        vector(f"{path}/bias", f"{name}.bias", outputs, layers)

    def norm(path, name, layers=None):
        vector(f"{path}/scale", f"{name}.weight", hidden, layers)
        vector(f"{path}/bias", f"{name}.bias", hidden, layers)

    for kind, rows in (
        ("word", model.vocab_size),
        ("position", model.max_position_embeddings),
        ("token_type", model.type_vocab_size),
    ):
        places[f"embeddings/{kind}/table"] = Place(
            f"bert.embeddings.{kind}_embeddings.weight", (rows, hidden), (1, 1), (0, 1)
        )
    norm("embeddings/norm", "bert.embeddings.LayerNorm")
    for kind in ("query", "key", "value"):
        path, name = f"encoder/attention/{kind}", f"{layer}attention.self.{kind}"
        places[f"{path}/kernel"] = Place(f"{name}.weight", (heads, size, hidden), (2, 1), (2, 0, 1), n)
        places[f"{path}/bias"] = Place(f"{name}.bias", (heads, size), (2,), (0, 1), n)
    name = f"{layer}attention.output.dense"
    places["encoder/attention/output/kernel"] = Place(f"{name}.weight", (hidden, heads, size), (1, 2), (1, 2, 0), n)
    vector("encoder/attention/output/bias", f"{name}.bias", hidden, n)
    norm("encoder/attention_norm", f"{layer}attention.output.LayerNorm", n)
    linear("encoder/feed_forward/intermediate", f"{layer}intermediate.dense", hidden, wide, n)
    linear("encoder/feed_forward/output", f"{layer}output.dense", wide, hidden, n)
    norm("encoder/feed_forward_norm", f"{layer}output.LayerNorm", n)
    linear("pooler", "bert.pooler.dense", hidden, hidden)
    linear("mlm/dense", "cls.predictions.transform.dense", hidden, hidden)
    norm("mlm/norm", "cls.predictions.transform.LayerNorm")
    vector("mlm/bias", "cls.predictions.bias", model.vocab_size)
    linear("next_sentence", "cls.seq_relationship", hidden, 2)
    if head is not None:
        linear("head", "qa_outputs" if head.kind == "span" else "classifier", hidden, head.outputs)
    return places


def canonical(name: str) -> str:
    """The name as BertForPreTraining and its sisters have it today: with "bert.", weight and bias, one bias of the decoder."""
    for old, new in _OLD_ENDINGS.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    if name.startswith(("embeddings.", "encoder.", "pooler.")):
        name = f"bert.{name}"
    return name


def number_of_layers(names) -> int:
    """Layers of the encoder that the names of a file speak of."""
    layers = {match[1] for name in names if (match := LAYER.match(name))}
    return len(layers)


def repeated(names: dict[str, str]) -> list[tuple[str, str]]:
    """Pairs of stored names that mean one parameter; `names`: stored name → canonical name."""
    meanings = collections.defaultdict(list)
    for stored, name in names.items():
        meanings[name].append(stored)
    return [(stored[0], stored[1]) for stored in meanings.values() if len(stored) > 1]
