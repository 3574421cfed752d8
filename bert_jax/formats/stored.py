"""A model in some directory before it is read: the form that loading, conversion and fine-tuning share.

Every reader (bert_jax checkpoints, Hugging Face, Google's TF1 files) describes its model with the parameter paths of
bert_jax, and every writer starts from the same description. A `Place` is the counterpart of a parameter in another
format: its name, and the order of its axes. The arrays are checked against those that the model's own configuration
requires. A run of replaced-token detection stores discriminator and generator in one checkpoint; each can be taken as
a model of its own. An affine map of a model's text vectors, such as whitening (Su et al. 2021) or the removal of the
strongest directions (Mu and Viswanath 2018), is fitted on some texts and stored with the model.
"""

import dataclasses
import math
import os
import typing
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import numpy as np
from absl import logging

from bert_jax.config import EmbeddingConfig, EncoderConfig, HeadConfig, MaskedWords, ObjectiveConfig
from bert_jax.config.heads import Combination, Pooling, SingleVector, TokenVectors, WordVector
from bert_jax.config.objective import GeneratorConfig, generator_model
from bert_jax.config.options import from_record, to_dict
from bert_jax.devices.placement import StoredArray, empty
from bert_jax.errors import UserError, first_lines
from bert_jax.models.bert_parameters import (
    DIFFERENCE,
    GENERATOR,
    MASK_DECODER,
    MODEL_PARTS,
    STATE_PROJECTION,
    TASK_PARTS,
    TOKEN_VECTORS,
    bert_parameters,
    difference_path,
    is_difference,
    is_shareable,
    token_parameters,
    word_parameters,
)
from bert_jax.parameters import Parameter, ParameterTable
from bert_jax.tokenization.tokenizer import Tokenizer

ReadPart = Callable[[str, tuple[slice, ...]], np.ndarray]
"""Reads (name of one of their arrays, a slice for each of its axes) → float32 values."""


@dataclasses.dataclass(frozen=True)
class Place:
    """The counterpart of one of our parameters, with separate arrays for every layer.

    Their array, reshaped to `split` (its axes in their order, heads separate), has our axes in the order `axes`.
    """

    path: str
    """Path in our tree."""
    name: str
    """Their name, with {} for the layer if `layers` is not None."""
    split: tuple[int, ...]
    groups: tuple[int, ...]
    """Number of axes of `split` that each of their axes has become."""
    axes: tuple[int, ...]
    layers: int | None
    first: int = 0
    """Number of the first layer that has one."""
    group: int = 1
    """Number of layers of a group; `name` then has {} for the group and for the layer in it."""
    adjacent: bool = False
    """Whether features i and i + D/2 of a head of ours are 2i and 2i + 1 of theirs; the heads come first in `split`."""

    @property
    def names(self) -> list[str]:
        return [self.name] if self.layers is None else [self._named(row) for row in range(self.layers)]

    @property
    def part(self) -> str:
        """First key of our path."""
        return self.path.split("/")[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in our layout."""
        one = tuple(self.split[axis] for axis in self.axes)
        return one if self.layers is None else (self.layers, *one)

    @property
    def their_shape(self) -> tuple[int, ...]:
        """Shape of each of their arrays."""
        return tuple(math.prod(self.split[start:end]) for start, end in self._bounds())

    def read(self, read_part: ReadPart, index: tuple[slice, ...]) -> np.ndarray:
        """Return the part of our array that `index` names; only the necessary layers and rows are read."""
        bounds = [slice(*part.indices(size)) for part, size in zip(index, self.shape, strict=True)]
        if self.layers is None:
            return np.ascontiguousarray(self._read_one(read_part, self.name, bounds))
        layers = range(self.layers)[bounds[0]]
        values = empty(tuple(len(range(size)[part]) for part, size in zip(bounds, self.shape, strict=True)))
        for row, layer in enumerate(layers):
            values[row] = self._read_one(read_part, self._named(layer), bounds[1:])
        return values

    def array(self, read_part: ReadPart) -> StoredArray:
        """Return our array, of which `read_part` reads what is needed."""
        return StoredArray(self.shape, np.dtype(np.float32), lambda index: self.read(read_part, index))

    def split_up(self, values: np.ndarray) -> np.ndarray:
        """Return one of their arrays from ours (of one layer)."""
        values = values.transpose(np.argsort(self.axes))
        if self.adjacent:
            values = values.reshape(self.split[0], 2, self.split[1] // 2, *self.split[2:]).swapaxes(1, 2)
        return np.ascontiguousarray(values).reshape(self.their_shape)

    def _named(self, row: int) -> str:
        return self.name.format(*divmod(self.first + row, self.group))

    def _read_one(self, read_part: ReadPart, name: str, bounds: list[slice]) -> np.ndarray:
        wanted: list[slice] = [slice(None)] * len(self.split)
        for part, axis in zip(bounds, self.axes, strict=True):
            wanted[axis] = part
        outer, inner, shape = [], [], []
        for start, end in self._bounds():
            # Heads and head size share one axis there: whole heads are read, and the rest is cut afterwards.
            head, inside = wanted[start], self.split[start + 1 : end]
            outer.append(slice(head.start * math.prod(inside), head.stop * math.prod(inside)))
            shape += [max(0, head.stop - head.start), *inside]
            inner += [slice(None, None, head.step), *wanted[start + 1 : end]]
        values = read_part(name, tuple(outer)).reshape(shape)
        if self.adjacent:
            values = values.reshape(shape[0], shape[1] // 2, 2, *shape[2:]).swapaxes(1, 2).reshape(shape)
        return values[tuple(inner)].transpose(self.axes)

    def _bounds(self) -> list[tuple[int, int]]:
        """Return where each of their axes begins and ends in `split`."""
        ends = [sum(self.groups[:count]) for count in range(len(self.groups) + 1)]
        return list(zip(ends, ends[1:], strict=False))


def place_of(
    parameter: Parameter, name: str, outputs_first: bool = False, heads_apart: bool = False, group: int = 1
) -> Place:
    """Return the place of `parameter` under `name`, with heads and head size in one axis and separate layers.

    Args:
      outputs_first: whether they store the kernel as [outputs, inputs].
      heads_apart: whether they keep heads and head size in two axes, after that of the hidden features.
      group: see `Place`.
    """
    stacked = parameter.layer_axis == 0
    axes = parameter.axes[1:] if stacked else parameter.axes
    groups: list[list[int]] = []
    for number, axis in enumerate(axes):
        inside = axis.name == "head_size" and not heads_apart
        if inside or (number and axes[number - 1].name == "every_layer"):
            groups[-1].append(number)
        else:
            groups.append([number])
    if outputs_first:
        groups.reverse()
    if heads_apart and any(axis.name == "heads" for axis in axes):
        groups.sort(key=lambda group: axes[group[0]].name != "hidden")
    order = [number for group in groups for number in group]
    return Place(
        path=parameter.path,
        name=name,
        split=tuple(axes[number].size for number in order),
        groups=tuple(map(len, groups)),
        axes=tuple(order.index(number) for number in range(len(axes))),
        layers=parameter.axes[0].size if stacked else None,
        first=parameter.lowest_layer,
        group=group,
    )


PostprocessKind = Literal["whitening", "component_removal"]
KINDS: tuple[PostprocessKind, ...] = typing.get_args(PostprocessKind)


@dataclasses.dataclass(frozen=True, eq=False)
class Postprocess:
    """The map x ↦ (x - mean) · matrix of the vectors that `embed` returns with certain layers and pooling."""

    kind: PostprocessKind
    """whitening: the covariance becomes the identity (Su et al. 2021); component_removal: mean and strongest
    directions become zero (Mu and Viswanath 2018)."""
    layers: Combination
    """The `layers` of embed whose vectors it was fitted on."""
    pooling: Pooling
    """Their `pooling`."""
    mean: np.ndarray
    """float32 [H]: the mean of the vectors."""
    matrix: np.ndarray
    """float32 [H, K], for vectors of H values, which become K."""

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Return float32 [n, K] for the vectors [n, H]."""
        return ((vectors - self.mean).astype(np.float32) @ self.matrix).astype(np.float32)

    def check(self, layers: str, pooling: str) -> None:
        """Raise a UserError if `embed` makes other vectors than those that this was fitted on."""
        if (layers, pooling) != (self.layers, self.pooling):
            raise UserError(
                f"this {self.kind} was fitted on layers={self.layers!r}, pooling={self.pooling!r}, but embed has "
                f"layers={layers!r}, pooling={pooling!r}; give embed the same, or fit another"
            )


PADDED_TO = (8, 16, 32, 64, 100, 128)
"""Multiples to which the rows of a word table are rounded up: for accelerators' matrix units, where 128 is Megatron's,
and 100 in DeBERTa v3."""
WORD_ARRAYS = {path: axes for kind in typing.get_args(ObjectiveConfig) for path, axes in kind.word_arrays.items()}
"""The `word_arrays` of all objectives, of which a model has those that are there."""
PARTS = (
    *MODEL_PARTS,
    *dict.fromkeys(path.split("/")[0] for path in WORD_ARRAYS),
    STATE_PROJECTION,
    TOKEN_VECTORS,
    *TASK_PARTS,
)
"""Top-level names of the parameter tree that a model may lack; `embeddings` and `encoder` are always there."""


@dataclasses.dataclass(frozen=True)
class StoredModel:
    """The contents of a directory, as `open_stored` describes them."""

    kind: str
    """bert_jax, huggingface or tf1."""
    path: str
    model: EncoderConfig
    arrays: dict[str, StoredArray]
    """Arrays by path in our tree, e.g. encoder/attention/query/kernel [N, H, A, D]. Vocabulary rows beyond the
    tokenizer's are cut off; unknown names are in `ignored`."""
    tokenizer: Tokenizer | None = None
    """None if the directory has no vocabulary; code that needs one raises a UserError."""
    head: HeadConfig | None = None
    """The task head of a fine-tuned model; its arrays are head/kernel, head/bias (and crf/…)."""
    embedding: EmbeddingConfig = EmbeddingConfig()
    """How `embed` pools by default."""
    ignored: tuple[str, ...] = ()
    """Names of stored arrays that hold something learned and have no counterpart in our model."""
    doubt: str = ""
    """Why the words that its masked-language-model head predicts will be poor; "" if there is no reason."""
    postprocesses: dict[str, Postprocess] = dataclasses.field(default_factory=dict)
    """What `embed` can do to its vectors, by name."""
    beside: dict[str, StoredArray] = dataclasses.field(default_factory=dict)
    """Further arrays of a run of replaced-token detection: `arrays` are those of its discriminator, by the paths in its
    table of parameters: see formats/stored.py."""
    history: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Information for a model card: metrics, data manifest, step, source; whatever was found, as JSON types."""

    def without(self, *parts: str) -> "StoredModel":
        """Return the model without the arrays of these parts, such as those of a head."""
        arrays = {path: array for path, array in self.arrays.items() if path.split("/")[0] not in parts}
        return dataclasses.replace(self, arrays=arrays)

    def need_tokenizer(self, option: str = "") -> Tokenizer:
        """Return the tokenizer; raise a UserError, which names the option that gave the model, if it has none."""
        if self.tokenizer is None:
            raise UserError(
                f"{option}{self.path} has no vocabulary, so nobody can tell which words its ids are; put the "
                "vocab.txt (or SentencePiece .model) there that it was trained with"
            )
        return self.tokenizer

    @property
    def unread(self) -> tuple[int, ...]:
        """Ids that the vector of a text leaves out: the special tokens, but [UNK], of a model that trains none."""
        if self.model.trains_specials or self.tokenizer is None:
            return ()
        return tuple(sorted({*self.tokenizer.special_ids} - {self.tokenizer.unk_id}))

    @property
    def makes_vectors(self) -> bool:
        """Whether the model says how `embed` makes vectors, which sentence-transformers would make in the same way."""
        known = self.embedding != EmbeddingConfig() and not self.embedding.unsupported
        return known and self.head is None and self.model.trains_specials

    @property
    def has_form(self) -> bool:
        """Whether the model has the parameters with which its vectors are made."""
        form = self.embedding.form
        if isinstance(form, TokenVectors):
            return self.token_size == form.size
        return isinstance(form, SingleVector) or "mlm" in self.parts

    def need_head(self) -> HeadConfig:
        """Return the head of a model that was checked to have one; ValueError if it has none."""
        if self.head is None:
            raise ValueError(f"{self.path} has no task head")
        return self.head

    @property
    def architecture(self) -> str:
        """Class of `transformers` that the model was saved as, before all conversions; "" if it is unknown."""
        found = self._of_origin("architecture")
        return found if isinstance(found, str) else ""

    @property
    def carried(self) -> dict[str, dict[str, Any]]:
        """What a directory of `transformers` said, before all conversions, that nothing here reads: file → its keys."""
        found = self._of_origin("carried")
        return found if isinstance(found, dict) else {}

    @property
    def averaged(self) -> str:
        """What the parameters are an average of, such as "mean of 3 models"; "" if of nothing."""
        found = self.history.get("made_of") or self._of_origin("made_of")
        if not isinstance(found, dict) or not isinstance(found.get("models"), list):
            return ""
        return f"{(found.get('method') or {}).get('method')} of {len(found['models'])} models"

    def _of_origin(self, key: str) -> Any:
        """Return what the nearest of the model's sources says of itself; None if none does."""
        source = self.history.get("source") or (self.history.get("run") or {}).get("source")
        while isinstance(source, dict):
            if source.get(key) is not None:
                return source[key]
            source = source.get("source")
        return None

    @property
    def parts(self) -> tuple[str, ...]:
        """Those of PARTS that the model has."""
        return tuple(part for part in PARTS if any(path.startswith(part + "/") for path in self.arrays))

    @property
    def parameters(self) -> ParameterTable:
        """Path, named axes and shape of every array that a model of this configuration with these parts has."""
        parts, words = self.parts, word_parameters(self.model, WORD_ARRAYS)
        own = {path: entry for path, entry in words.items() if entry.part in parts}
        own |= token_parameters(self.model, self.token_size)
        return {**bert_parameters(self.model, parts, self.head, self.teacher_size), **own}

    @property
    def teacher_size(self) -> int | None:
        """Width of the states that a student maps its own to; None if it has no such map."""
        return self._width(STATE_PROJECTION)

    @property
    def token_size(self) -> int | None:
        """Number of features of the vectors of tokens; None if it has none."""
        return self._width(TOKEN_VECTORS)

    def _width(self, part: str) -> int | None:
        kernel = self.arrays.get(f"{part}/kernel")
        return None if kernel is None else kernel.shape[-1]


def describe_embedding(embedding: EmbeddingConfig) -> str:
    """Return a description of what `embed` does by default."""
    if embedding.unsupported:
        return f"needs pooling=…: sentence-transformers uses what is not supported here ({embedding.unsupported})"
    length = [] if embedding.max_length is None else [f"at most {embedding.max_length} tokens"]
    return ", ".join(
        [
            *_described(embedding),
            *length,
            *(["text in lower case"] if embedding.lowercase else []),
            *([f"after {embedding.query_prompt!r} if they are queries"] if embedding.query_prompt else []),
            *([f"after {embedding.document_prompt!r} if they are documents"] if embedding.document_prompt else []),
        ]
    )


def _described(embedding: EmbeddingConfig) -> list[str]:
    match form := embedding.form:
        case SingleVector():
            return [f"{embedding.pooling} of the last layer", *(["normalized"] if embedding.normalize else [])]
        case WordVector():
            return ["a weight for each word of the vocabulary"]
        case TokenVectors():
            masks = f", filled up with [MASK], {form.expansion}" if form.expansion != "none" else ""
            return [
                f"a vector of {form.size} features for each token",
                *(["but not for punctuation in documents"] if form.skip_punctuation else []),
                *([f"queries of {form.query_length} tokens{masks}"] if form.query_length else []),
            ]


def left_out(
    stored: StoredModel,
    parts: Collection[str] | None = None,
    vectors: bool = True,
    remedy: str = "",
    postprocesses: bool | None = None,
) -> list[str]:
    """Return what stays behind of a directory, and what speaks against its words: a line for people for each kind.

    Whatever opens a model says it in these words.

    Args:
      parts: those of PARTS that are taken; None: all.
      vectors: whether the way in which `embed` makes vectors is taken.
      remedy: what would take it, as the end of a line.
      postprocesses: whether what `embed` can do to its vectors is taken; None: if `vectors` is.
    """
    lost = [part for part in stored.parts if parts is not None and part not in parts]
    lines, embedding, maps = [f"left out: {_listed(lost)}"] if lost else [], stored.embedding, stored.postprocesses
    if embedding.unsupported or not (vectors or embedding == EmbeddingConfig()):
        lines.append(f"left out: how embed makes vectors ({describe_embedding(embedding)}){remedy}")
    if maps and not (vectors if postprocesses is None else postprocesses):
        lines.append(f"left out: postprocesses ({_listed(list(maps))}){remedy}")
    if stored.ignored:
        lines.append(f"left out: arrays that have no place here ({_listed(stored.ignored)})")
    if parts is None or "mlm" in parts:
        if "mask_decoder" in lost:
            lines.append("doubtful: its masked words, which need that decoder; --objective.mask_decoder takes it")
        if stored.doubt:
            lines.append(f"doubtful: {stored.doubt}")
    return lines


def warn_of_what_is_left_out(stored: StoredModel) -> None:
    """Log the lines of `left_out` about a model that is taken as a whole."""
    for line in left_out(stored):
        logging.warning("%s: %s", stored.path, line)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def check_vocabulary(
    entries: int, rows: int, path: str | os.PathLike[str], padded_to: tuple[int, ...] = PADDED_TO
) -> None:
    """Raise a UserError unless a word table of `rows` has a row per entry, or that number rounded up to a multiple."""
    padding = rows - entries
    if padding and not any(0 < padding < multiple and rows % multiple == 0 for multiple in padded_to):
        problem = f"{path} has a vocabulary of {entries:,} entries for a word table of {rows:,} rows"
        if padding < 0:
            raise UserError(f"{problem}; put the vocabulary there that the model was trained with")
        raise UserError(
            f"{problem}, and {rows:,} is not {entries:,} rounded up to a multiple of "
            f"{', '.join(map(str, padded_to[:-1]))} or {padded_to[-1]}, so the last {padding:,} rows are not "
            "padding: entries are missing. Put the vocabulary there that the model was trained with; if those rows "
            "are indeed unused, append a line for each to its vocab.txt ([unused1], [unused2], …)"
        )


def without_padding(
    model: EncoderConfig,
    tokenizer: Tokenizer | None,
    path: str | os.PathLike[str],
    padded_to: tuple[int, ...] = PADDED_TO,
) -> EncoderConfig:
    """Return `model` with the tokenizer's vocabulary size; warn that the remaining rows are cut off as padding.

    Raises:
      UserError: see `check_vocabulary`.
    """
    rows = model.need_vocab_size()
    if tokenizer is None or tokenizer.vocab_size == rows:
        return model
    check_vocabulary(tokenizer.vocab_size, rows, path, padded_to)
    logging.warning(
        "%s: %d rows of the word table beyond the %d entries of the vocabulary are taken for padding and cut off",
        path,
        rows - tokenizer.vocab_size,
        tokenizer.vocab_size,
    )
    return dataclasses.replace(model, vocab_size=tokenizer.vocab_size)


def check_fit(stored: StoredModel) -> None:
    """Raise a UserError if arrays and configuration disagree (naming the first) or the vocabulary does not fit."""
    wanted = {path: parameter.shape for path, parameter in stored.parameters.items()}
    lines = []
    for path in sorted({*wanted, *stored.arrays}):
        there = stored.arrays[path].shape if path in stored.arrays else None
        if there != wanted.get(path):
            lines.append(f"{path}: stored {_shape(there)}, by the configuration {_shape(wanted.get(path))}")
    if isinstance(form := stored.embedding.form, TokenVectors) and stored.token_size != form.size:
        there, size = stored.token_size or "none", form.size
        lines.append(f"{TOKEN_VECTORS}/kernel: stored {there} features of vectors, by the configuration {size}")
    if isinstance(form, WordVector) and "mlm" not in stored.parts:
        lines.append("mlm: none stored, but vectors of words are made by the head for masked words")
    if lines:
        raise UserError(
            f"the parameters in {stored.path} do not fit its configuration: {first_lines(lines, 3)}. {_remedy(stored)}"
        )
    if stored.tokenizer is not None:
        check_vocabulary(stored.tokenizer.vocab_size, stored.model.need_vocab_size(), stored.path)


def _remedy(stored: StoredModel) -> str:
    if stored.kind == "bert_jax":  # the configuration is in the checkpoint itself
        return (
            "They were made by an architecture or an objective from outside the package: `bert_jax.pretrain` resumes "
            "such a run with the same objective=…, but only BERT itself can be opened"
        )
    return "Put the configuration file that they were made with in the same directory"


def _shape(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else str(list(shape))


_BELOW = f"{GENERATOR}/"
_SIZES = {
    "hidden_size": "hidden_size",
    "num_layers": "num_layers",
    "num_heads": "num_heads",
    "intermediate_size": "feed_forward_size",
}
"""Option of GeneratorConfig → attribute of EncoderConfig that a run must have as the one that it continues from."""


def without_generator(arrays: dict[str, StoredArray]) -> tuple[dict[str, StoredArray], dict[str, StoredArray]]:
    """Return the arrays of the discriminator by the paths of any BERT, and the other arrays of a run.

    The latter, empty for other runs, are below "generator", or differences from the generator's tables.
    """
    beside = {
        path: array for path, array in arrays.items() if path.startswith(_BELOW) or path.endswith(f"/{DIFFERENCE}")
    }
    own = {path: array for path, array in arrays.items() if path not in beside}
    for path in [path.removeprefix(_BELOW) for path in beside]:
        if is_difference(path) and (difference := beside.get(difference_path(path))) is not None:
            own[path] = added(beside[_BELOW + path], difference)
    return own, beside


def generator_of(stored: StoredModel) -> StoredModel:
    """Return the generator of a run of replaced-token detection, a masked language model.

    Raises:
      UserError: `stored` is no such run.
    """
    if not any(path.startswith(_BELOW) for path in stored.beside):
        raise UserError(
            f"{stored.path} has no generator; the work directory of a run with objective.name=replaced_tokens has one "
            "(its converted discriminator has none)"
        )
    arrays = {path: array for path, array in stored.arrays.items() if is_shareable(path)}
    arrays |= {path.removeprefix(_BELOW): array for path, array in stored.beside.items() if path.startswith(_BELOW)}
    settings = stored.history["config"]
    generator, where = settings["objective"]["generator"], f"the record of {stored.path}"
    options = from_record(GeneratorConfig, generator, where, "objective.generator.")
    # Opened, evaluated and continued, it is a masked language model like any other.
    objective = MaskedWords(mask_decoder=_BELOW + MASK_DECODER in stored.beside)
    history = stored.history | {"config": settings | {"objective": to_dict(objective)}}
    return dataclasses.replace(
        stored, model=generator_model(stored.model, options), arrays=arrays, beside={}, history=history
    )


def with_generator(stored: StoredModel, model: EncoderConfig, generator: GeneratorConfig) -> StoredModel:
    """Return a model that a run of replaced-token detection starts from, with arrays under all paths of its table.

    A model without a generator gives its tables to that of the run, whose layers start fresh.

    Raises:
      UserError: the model has a generator, of other sizes than that of the run.
    """
    if not stored.beside:
        tables = {_BELOW + path: array for path, array in stored.arrays.items() if is_shareable(path)}
        return dataclasses.replace(stored, arrays=stored.arrays | tables)
    theirs, ours = generator_of(stored).model, generator_model(model, generator)
    differing = {
        option: (getattr(ours, name), getattr(theirs, name))
        for option, name in _SIZES.items()
        if getattr(ours, name) != getattr(theirs, name)
    }
    if differing:
        shown = "; ".join(f"{option} is {here} here and {there} there" for option, (here, there) in differing.items())
        options = " ".join(f"--objective.generator.{option}={there}" for option, (_, there) in differing.items())
        raise UserError(
            f"init_from={stored.path} has a different generator from this configuration ({shown}). To continue from "
            f"it, add: {options}"
        )
    own = {_BELOW + path: array for path, array in generator_of(stored).arrays.items()}
    return dataclasses.replace(stored, arrays=stored.arrays | own | stored.beside)


def added(first: StoredArray, second: StoredArray) -> StoredArray:
    """Return the sum of two arrays of one shape, made as it is read."""
    return StoredArray(first.shape, first.dtype, lambda index: first.read(index) + second.read(index))
