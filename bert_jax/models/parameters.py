"""The one table of a model's parameters: the path, the named axes and the shape of every array.

The partition over the mesh, the layers that LAMB and layer decay tell apart, weight decay, counts and memory, the names
in other formats and the table in docs/checkpoints.md all follow from it. Nothing outside the standard library is
imported at the top, so `bert-jax info` reads the table without loading jax.

A model of another architecture describes itself in the same way, with `Axis`, `Parameter`, `linear` and `norm`, and is
partitioned, optimized and counted like BERT, if it names its axes by AXIS_NAMES.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.errors import UserError

PRETRAINING_PARTS = ("pooler", "mlm", "next_sentence")
MODEL_PARTS = (*PRETRAINING_PARTS, "replaced_tokens")
"""Parts that a model can have on its encoder; the last is the head of ELECTRA's discriminator."""
TASK_PARTS = ("head", "crf")
FLOAT32 = 4  # bytes of a value
POOLED = ("classification", "regression", "choice")
"""Kinds of heads that read the pooled first position; the others read every position."""

AXIS_NAMES = (
    "later_layer",  # one entry per layer but the first
    "layer",  # one entry per layer
    *("hidden", "intermediate", "heads", "vocab", "embedding"),  # devices/sharding.py splits these
    *("head_size", "position", "token_type"),
    *("feature", "label", "pair_class", "mixed_layer", "lstm_state", "gate"),
)
"""The only names of axes, because one that is misspelt would leave its array whole on every device. "feature" is
for any axis that is to be whole and has no other name."""


class Axis(NamedTuple):
    name: str
    """One of AXIS_NAMES."""
    size: int


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One array of a model.

    Raises UserError if an axis has a name that is not in AXIS_NAMES.
    """

    path: str
    """Keys of the nested dict, joined by slashes."""
    axes: tuple[Axis, ...]
    """Name and size of each axis, in order."""
    decays: bool = True
    """Whether weight decay and, in LAMB, a trust ratio apply: not to biases and LayerNorm."""
    embedding: bool = False
    """Whether it is below the first layer, where layer decay is strongest."""

    def __post_init__(self):
        for axis in self.axes:
            if axis.name not in AXIS_NAMES:
                raise UserError(
                    f"the array {self.path} has an axis {axis.name!r}; the names of axes are {', '.join(AXIS_NAMES)}. "
                    "Choose the one that it is to be split like, or 'feature' if it is to be whole on every device"
                )

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each axis."""
        return tuple(axis.size for axis in self.axes)

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def part(self) -> str:
        """First key of the path: embeddings, encoder, pooler, …"""
        return self.path.split("/")[0]

    def axis(self, name: str) -> int | None:
        """Return the place of the first axis of that name; None if there is none."""
        return next((place for place, axis in enumerate(self.axes) if axis.name == name), None)

    @property
    def layer_axis(self) -> int | None:
        """Return the place of the axis with one entry per layer or per layer but the first; the last is the top."""
        return self.axis("later_layer") if self.axis("layer") is None else self.axis("layer")


ParameterTable = Mapping[str, Parameter]
"""Entries by path, in the order in which the model applies them."""


def table(entries: Iterable[Parameter]) -> ParameterTable:
    """Return the table of these entries."""
    return {entry.path: entry for entry in entries}


def linear(
    path: str, inputs: tuple[Axis, ...], outputs: tuple[Axis, ...], layers: tuple[Axis, ...] = (), bias: bool = True
):
    """Return the entries of an affine map: kernel [*layers, *inputs, *outputs] and bias [*layers, *outputs]."""
    yield Parameter(f"{path}/kernel", (*layers, *inputs, *outputs))
    if bias:
        yield Parameter(f"{path}/bias", (*layers, *outputs), decays=False)


def norm(path: str, hidden: Axis, layers: tuple[Axis, ...] = (), embedding: bool = False, bias: bool = True):
    """Return the entries of a norm: scale and bias, both [*layers, hidden]."""
    for name in ("scale", "bias") if bias else ("scale",):
        yield Parameter(f"{path}/{name}", (*layers, hidden), decays=False, embedding=embedding)


def pretraining_parts(config: ModelConfig) -> tuple[str, ...]:
    """Return those of PRETRAINING_PARTS that a run of pre-training has."""
    return PRETRAINING_PARTS if config.pair_head else ("mlm",)


def bert_parameters(
    config: ModelConfig, parts: tuple[str, ...] | None = None, head: HeadConfig | None = None
) -> ParameterTable:
    """Return the table of a BERT.

    Args:
      config: sizes of the model; vocab_size=None counts as the vocabulary of BERT uncased.
      parts: those of MODEL_PARTS that the model has; a head that reads the pooler adds it. None: `pretraining_parts`.
      head: the head of a fine-tuned model.
    """
    parts = pretraining_parts(config) if parts is None else parts
    if head is not None and reads_pooler(config, head):
        parts = (*parts, "pooler")
    task = {} if head is None else task_parameters(config, head)
    return {**encoder_parameters(config), **pretraining_parameters(config, parts), **task}


def reads_pooler(config: ModelConfig, head: HeadConfig) -> bool:
    """Return whether the head of a task reads BERT's pooler."""
    return head.kind in POOLED and not config.task_transform


def encoder_parameters(config: ModelConfig) -> ParameterTable:
    """Return the entries of embeddings, layers and final norm; where layers share parameters, "layer" has size 1."""
    hidden = Axis("hidden", config.hidden_size)
    final_norm = norm("final_norm", hidden, bias=_norm_bias(config)) if config.norm_position == "pre" else ()
    return table([*_embeddings(config, hidden), *_encoder(config, hidden), *final_norm])


def word_axis(config: ModelConfig) -> Axis:
    """Return the axis of the features of the embedding tables."""
    return Axis("hidden" if config.embedding_size is None else "embedding", config.word_size)


def pretraining_parameters(config: ModelConfig, parts: tuple[str, ...]) -> ParameterTable:
    """Return the entries of those of MODEL_PARTS that are in `parts`."""
    hidden, vocab = Axis("hidden", config.hidden_size), Axis("vocab", config.padded_vocab_size)
    entries: list[Parameter] = []
    if "pooler" in parts:
        entries += linear("pooler", (hidden,), (hidden,), bias=config.use_bias)
    if "mlm" in parts:
        entries += linear("mlm/dense", (hidden,), (word_axis(config),), bias=config.use_bias)
        entries += norm("mlm/norm", word_axis(config), bias=_norm_bias(config))
        entries += [Parameter("mlm/bias", (vocab,), decays=False)]
    if "next_sentence" in parts:
        entries += linear("next_sentence", (hidden,), (Axis("pair_class", 2),))
    if "replaced_tokens" in parts:
        entries += linear("replaced_tokens/dense", (hidden,), (hidden,))
        entries += linear("replaced_tokens/output", (hidden,), (Axis("feature", 1),))
    return table(entries)


def task_parameters(config: ModelConfig, head: HeadConfig) -> ParameterTable:
    """Return the entries of the head of a fine-tuned model and of its CRF."""
    return table(_head(config, head))


def _embeddings(config: ModelConfig, hidden: Axis):
    tables, width = [("word", Axis("vocab", config.padded_vocab_size))], word_axis(config)
    if config.positions == "learned":
        tables.append(("position", Axis("position", config.max_position_embeddings)))
    if config.type_vocab_size:
        tables.append(("token_type", Axis("token_type", config.type_vocab_size)))
    for name, rows in tables:
        yield Parameter(f"embeddings/{name}/table", (rows, width), embedding=True)
    yield from norm("embeddings/norm", width, embedding=True, bias=_norm_bias(config))
    if config.embedding_size is not None:
        for entry in linear("embeddings/projection", (width,), (hidden,)):
            yield dataclasses.replace(entry, embedding=True)


def _encoder(config: ModelConfig, hidden: Axis):
    attention, feed_forward = (
        (Axis("layer", 1 if config.sharing in (part, "all") else config.num_layers),)
        for part in ("attention", "feed_forward")
    )
    heads = (Axis("heads", config.num_heads), Axis("head_size", config.head_size))
    wide, bias, norm_bias = Axis("intermediate", config.feed_forward_size), config.use_bias, _norm_bias(config)
    normed = attention if config.first_attention_norm else (Axis("later_layer", config.num_layers - 1),)
    for name in ("query", "key", "value"):
        yield from linear(f"encoder/attention/{name}", (hidden,), heads, attention, bias)
    yield from linear("encoder/attention/output", heads, (hidden,), attention, bias)
    yield from norm("encoder/attention_norm", hidden, normed, bias=norm_bias)
    if config.feed_forward != "plain":
        yield from linear("encoder/feed_forward/gate", (hidden,), (wide,), feed_forward, bias)
    yield from linear("encoder/feed_forward/intermediate", (hidden,), (wide,), feed_forward, bias)
    yield from linear("encoder/feed_forward/output", (wide,), (hidden,), feed_forward, bias)
    yield from norm("encoder/feed_forward_norm", hidden, feed_forward, bias=norm_bias)


def _norm_bias(config: ModelConfig) -> bool:
    return config.norm == "layer_norm" and config.norm_bias


def _head(config: ModelConfig, head: HeadConfig):
    label = Axis("label", head.outputs)
    if head.features:
        yield from _bilstm(config, head, label)
    else:
        hidden = Axis("feature", config.hidden_size)  # not "hidden": the head is small and stays whole on every device
        if config.task_transform:
            yield from linear("head/dense", (hidden,), (hidden,), bias=config.use_bias)
            yield from norm("head/norm", hidden, bias=_norm_bias(config))
        yield from linear("head", (hidden,), (label,))
    if head.crf:
        yield Parameter("crf/transitions", (label, label))
        yield Parameter("crf/start", (label,))
        yield Parameter("crf/end", (label,))


def _bilstm(config: ModelConfig, head: HeadConfig, label: Axis):
    features = Axis("feature", config.hidden_size * (4 if head.features == "concat_last_four" else 1))
    state, both = Axis("lstm_state", head.lstm_size), Axis("feature", 2 * head.lstm_size)
    gates = Axis("gate", 4 * head.lstm_size)
    for layer, inputs in enumerate((features, both)):
        for direction in ("forward", "backward"):
            path = f"head/layer_{layer}/{direction}"
            yield Parameter(f"{path}/kernel", (inputs, gates))
            yield Parameter(f"{path}/recurrent", (state, gates))
            yield Parameter(f"{path}/bias", (gates,), decays=False)
    yield from linear("head", (both,), (label,))
    if head.features.startswith("weighted"):
        count = 4 if head.features == "weighted_last_four" else config.num_layers
        yield Parameter("head/mix/weights", (Axis("mixed_layer", count),))
        yield Parameter("head/mix/scale", ())


def with_axis(parameters: ParameterTable, axis: Axis) -> ParameterTable:
    """Return the table in which every axis with the name of `axis` has its size."""

    def resized(parameter: Parameter) -> Parameter:
        axes = tuple(axis if each.name == axis.name else each for each in parameter.axes)
        return dataclasses.replace(parameter, axes=axes)

    return table(map(resized, parameters.values()))


def total_size(parameters: ParameterTable) -> int:
    """Return the total number of values of all arrays."""
    return sum(parameter.size for parameter in parameters.values())


def row_tables(parameters: ParameterTable, axis: str) -> tuple[str, ...]:
    """Return the paths of the arrays whose rows (first axis) belong to `axis`: for "vocab", one row per word."""
    return tuple(path for path, parameter in parameters.items() if parameter.axis(axis) == 0)


def entry(parameters: ParameterTable, path: str, shape: tuple[int, ...]) -> Parameter:
    """Return the entry of the array at `path`.

    Raises:
      UserError: the table has no such path, or a different shape for it.
    """
    if (found := parameters.get(path)) is None:
        raise UserError(
            f"the array {path} {list(shape)} is not in the model's table of parameters, so it is not known how to "
            "split it over devices or whether it decays; add it to the table that the model gives as `parameters` "
            "(bert_jax/models/parameters.py)"
        )
    if found.shape != tuple(shape):
        raise UserError(
            f"the array {path} is {list(shape)}, but the model's table of parameters has the axes "
            f"[{_described(found.axes)}] for it; give it that shape, or correct the table "
            "(bert_jax/models/parameters.py)"
        )
    return found


def check_complete(parameters: ParameterTable, tree) -> None:
    """Raise a UserError if the table has an entry for which `tree`, a nested dict of arrays, has no array."""
    import jax

    there = {_joined(path) for path, _ in jax.tree.leaves_with_path(tree)}
    if lacking := [path for path in parameters if path not in there]:
        more = f" and {len(lacking) - 1} more" if lacking[1:] else ""
        raise UserError(
            f"the model's table of parameters has {lacking[0]}{more}, which the model does not make; have its `init` "
            "return it, or remove it from the table that the model gives as `parameters`"
        )


def entries(parameters: ParameterTable, tree):
    """Return a tree like `tree`, a nested dict of arrays, with the entry of each in its place.

    Raises:
      UserError: see `entry`.
    """
    import jax

    return jax.tree.map_with_path(lambda path, leaf: entry(parameters, _joined(path), leaf.shape), tree)


def state_entries(parameters: ParameterTable, optimizer_state):
    """Return a tree like `optimizer_state` with the entry of each array in its place.

    The path of a moment ends with that of its parameter (0/mu/pooler/kernel). A scalar, such as a counter, gets an
    entry without axes.

    Raises:
      UserError: an array belongs to no parameter, or has a shape that differs from its parameter's.
    """
    import jax

    def one(path, leaf) -> Parameter:
        name = _joined(path)
        if leaf.ndim == 0:
            return Parameter(name, ())
        keys = name.split("/")
        ends = ("/".join(keys[start:]) for start in range(len(keys)))
        found = next((parameters[end] for end in ends if end in parameters), None)
        if found is None or found.shape != tuple(leaf.shape):
            owner = "no parameter" if found is None else f"the parameter {found.path} [{_described(found.axes)}]"
            raise UserError(
                f"the optimizer keeps an array {name} {list(leaf.shape)}, which belongs to {owner}, so nobody can "
                "tell how to split it over devices; use an optimizer whose state has the shape of its parameters or is "
                "scalar (a factored one, such as Adafactor, cannot be used)"
            )
        return dataclasses.replace(found, path=name)

    return jax.tree.map_with_path(one, optimizer_state)


def _described(axes: tuple[Axis, ...]) -> str:
    return ", ".join(f"{axis.name}={axis.size}" for axis in axes)


def _joined(path) -> str:
    import jax

    return jax.tree_util.keystr(path, simple=True, separator="/")
