"""Tables of parameters: path, named axes and shape of every array, and the check of arrays against them.

The partition over the mesh, the layers that LAMB and layer decay tell apart, weight decay, counts and memory, the
names in other formats and the table in docs/checkpoints.md all follow from such a table. Nothing outside the standard
library is imported at the top, so `bert-jax info` reads it without loading jax.

A model of another architecture describes itself in the same way, with `Axis`, `Parameter`, `linear` and `norm`, and
is partitioned, optimized and counted like BERT, if it names its axes by AXIS_NAMES.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

from bert_jax.errors import UserError

FLOAT32 = 4  # bytes of a value
AXIS_NAMES = (
    "every_layer",  # one entry, which all layers use
    "first_layer",  # one entry, which the first layer alone uses
    "later_layer",  # one entry per layer but the first
    "layer",  # one entry per layer
    *("hidden", "intermediate", "heads", "vocab", "embedding"),  # devices/sharding.py splits these
    *("head_size", "position", "distance", "token_type"),
    *("feature", "label", "pair_class", "mixed_layer", "lstm_state", "gate"),
)
"""The only names of axes, because one that is misspelt would leave its array whole on every device. "feature" is
for any axis that is to be whole and has no other name."""
LAYER_AXES = ("layer", "first_layer", "later_layer")
"""Those with an entry for each layer that has such an array."""
Use = Literal["per_token", "per_key", "per_prediction", "per_text", "word_logits", "looked_up", "uncounted"]
"""What a step does with an array, from which its operations follow.

per_token, per_prediction and per_text: a product with the state of every token, of every position at which something
is predicted, or of every text; in the encoder, in every layer. per_key: like per_token, but not for states that see
tokens and are seen by none. word_logits: added to logits that are a product of every prediction with the word table.
looked_up: rows are chosen by ids of the batch. uncounted: added or scaled, or multiplied so seldom or so little that it
is not counted.
"""


class Axis(NamedTuple):
    """An axis of an array, by whose name it is split over devices."""

    name: str
    """One of AXIS_NAMES."""
    size: int
    """Number of entries."""


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One array of a model.

    Raises UserError if an axis has a name that is not in AXIS_NAMES, or `used` is none of `Use`.
    """

    path: str
    """Keys of the nested dict, joined by slashes."""
    axes: tuple[Axis, ...]
    """Name and size of each axis, in order."""
    decays: bool = True
    """Whether weight decay and, in LAMB, a trust ratio apply: not to biases and LayerNorm."""
    embedding: bool = False
    """Whether it is below the first layer, where layer decay is strongest."""
    used: Use | None = None
    """What a step does with it; None: see `use`."""
    initial: float = 1.0
    """Factor of its initial values."""
    rate: float = 1.0
    """Factor of its learning rate, for updates whose values are about 1, whatever their number, as those of Adam."""
    width: float = 1.0
    """Times that both sides of a map are as wide as those of the base model (`config.Scaling`)."""

    def __post_init__(self) -> None:
        for axis in self.axes:
            if axis.name not in AXIS_NAMES:
                raise UserError(
                    f"the array {self.path} has an axis {axis.name!r}; the names of axes are {', '.join(AXIS_NAMES)}. "
                    "Choose the one that it is to be split like, or 'feature' if it is to be whole on every device"
                )
        if self.used not in (None, *get_args(Use)):
            raise UserError(
                f"the array {self.path} has used={self.used!r}, so it is not known how often it is multiplied; set it "
                f"to one of {', '.join(get_args(Use))}"
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

    @property
    def use(self) -> Use:
        """What a step does with it: `used` or else looked_up below the first layer, uncounted without decay, otherwise
        per_token."""
        if self.used is None and self.decays:
            return "looked_up" if self.embedding else "per_token"
        return self.used or "uncounted"

    @property
    def matrix(self) -> tuple[int, int] | None:
        """Return (inputs, outputs) of the linear map of each layer of the encoder; None if it is none.

        Heads and their size are one axis of it. Tables of words, positions or segments are no maps.
        """
        if self.part != "encoder" or not self.decays or self.embedding or self.layer_axis is None:
            return None
        sizes, before = [], ""
        for axis in self.axes:
            if axis.name in ("vocab", "position", "distance", "token_type"):
                return None
            if axis.name == "head_size" and before == "heads":
                sizes[-1] *= axis.size
            elif axis.name not in LAYER_AXES:
                sizes.append(axis.size)
            before = axis.name
        return (sizes[0], sizes[1]) if len(sizes) == 2 else None

    def axis(self, name: str) -> int | None:
        """Return the place of the first axis of that name; None if there is none."""
        return next((place for place, axis in enumerate(self.axes) if axis.name == name), None)

    @property
    def layer_axis(self) -> int | None:
        """Return the place of the axis with an entry for each layer that has such an array; None if there is none."""
        return next((place for place, axis in enumerate(self.axes) if axis.name in LAYER_AXES), None)

    @property
    def lowest_layer(self) -> int:
        """Number of the layer that has the first entry of that axis."""
        return 0 if self.axis("later_layer") is None else 1


ParameterTable = Mapping[str, Parameter]
"""Entries by path, in the order in which the model applies them."""


def table(entries: Iterable[Parameter]) -> ParameterTable:
    """Return the table of these entries."""
    return {entry.path: entry for entry in entries}


def linear(
    path: str,
    inputs: tuple[Axis, ...],
    outputs: tuple[Axis, ...],
    layers: tuple[Axis, ...] = (),
    bias: bool = True,
    used: Use = "per_token",
) -> Iterator[Parameter]:
    """Return the entries of an affine map: kernel [*layers, *inputs, *outputs] and bias [*layers, *outputs].

    `used` says how often the kernel is multiplied.
    """
    yield Parameter(f"{path}/kernel", (*layers, *inputs, *outputs), used=used)
    if bias:
        yield Parameter(f"{path}/bias", (*layers, *outputs), decays=False)


def norm(
    path: str, hidden: Axis, layers: tuple[Axis, ...] = (), embedding: bool = False, bias: bool = True
) -> Iterator[Parameter]:
    """Return the entries of a norm: scale and bias, both [*layers, hidden]."""
    for name in ("scale", "bias") if bias else ("scale",):
        yield Parameter(f"{path}/{name}", (*layers, hidden), decays=False, embedding=embedding)


def with_axis(parameters: ParameterTable, axis: Axis) -> ParameterTable:
    """Return the table in which every axis with the name of `axis` has its size."""

    def resized(parameter: Parameter) -> Parameter:
        axes = tuple(axis if each.name == axis.name else each for each in parameter.axes)
        return dataclasses.replace(parameter, axes=axes)

    return table(map(resized, parameters.values()))


def with_initial_factors(parameters: ParameterTable, tree: Any) -> Any:
    """Return fresh arrays, a nested dict, each multiplied by its `Parameter.initial` if that is not 1."""
    import jax

    def one(path: Any, leaf: Any) -> Any:
        found = parameters.get(_joined(path))
        return leaf if found is None or found.initial == 1 else leaf * found.initial

    return jax.tree.map_with_path(one, tree)


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
            "(bert_jax/models/bert_parameters.py)"
        )
    if found.shape != tuple(shape):
        raise UserError(
            f"the array {path} is {list(shape)}, but the model's table of parameters has the axes "
            f"[{_described(found.axes)}] for it; give it that shape, or correct the table "
            "(bert_jax/models/bert_parameters.py)"
        )
    return found


def check_complete(parameters: ParameterTable, tree: Any) -> None:
    """Raise a UserError if the table has an entry for which `tree`, a nested dict of arrays, has no array."""
    import jax

    there = {_joined(path) for path, _ in jax.tree.leaves_with_path(tree)}
    if lacking := [path for path in parameters if path not in there]:
        more = f" and {len(lacking) - 1} more" if lacking[1:] else ""
        raise UserError(
            f"the model's table of parameters has {lacking[0]}{more}, which the model does not return; have its "
            "`init` return it, or remove it from the table that the model gives as `parameters`"
        )


def entries(parameters: ParameterTable, tree: Any) -> Any:
    """Return a tree like `tree`, a nested dict of arrays, with the entry of each in its place.

    Raises:
      UserError: see `entry`.
    """
    import jax

    return jax.tree.map_with_path(lambda path, leaf: entry(parameters, _joined(path), leaf.shape), tree)


def state_entries(parameters: ParameterTable, optimizer_state: Any) -> Any:
    """Return a tree like `optimizer_state` with the entry of each array in its place.

    The path of a moment ends with that of its parameter (0/mu/pooler/kernel), and it has the same shape. Any other
    array, such as a counter or a factored moment, gets an entry without axes, and so is whole on every device.
    """
    import jax

    def one(path: Any, leaf: Any) -> Parameter:
        name = _joined(path)
        found = _owner(parameters, name)
        return (
            Parameter(name, ()) if found is None or found.shape != leaf.shape else dataclasses.replace(found, path=name)
        )

    return jax.tree.map_with_path(one, optimizer_state)


def state_names(parameters: ParameterTable, optimizer_state: Any) -> list[str]:
    """Return the names of what an optimizer keeps, without the paths of the parameters: 0/count, 0/mu, 0/nu."""
    import jax

    names = (_joined(path) for path, _ in jax.tree.leaves_with_path(optimizer_state))
    owners = ((name, _owner(parameters, name)) for name in names)
    return sorted({name if owner is None else name.removesuffix(f"/{owner.path}") for name, owner in owners})


def _owner(parameters: ParameterTable, name: str) -> Parameter | None:
    """Return the parameter with whose path the path of an array ends."""
    keys = name.split("/")
    ends = ("/".join(keys[start:]) for start in range(len(keys)))
    return next((parameters[end] for end in ends if end in parameters), None)


def _described(axes: tuple[Axis, ...]) -> str:
    return ", ".join(f"{axis.name}={axis.size}" for axis in axes)


def _joined(path: Any) -> str:
    import jax

    return jax.tree_util.keystr(path, simple=True, separator="/")
