"""Low-rank adaptation (LoRA, Hu et al. 2021) of any encoder: what learns, and the model that it makes with its base.

Each adapted matrix W of the layers becomes W + alpha / rank · A · B, with an A and a B for each layer. The sum is made
once per part of a batch, before the model reads it, so no model knows of it. The base is no part of the train state:
the step takes it as it takes a teacher, so neither moments nor the checkpoints of a run have it. A starts with the
uniform distribution of a linear layer of PyTorch, as in PEFT, and B with zeros, so the first step is that of the base.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.config.finetuning import LoraConfig
from bert_jax.errors import UserError
from bert_jax.models.bert_parameters import ENCODER_PARTS, FACTORS
from bert_jax.models.protocol import Params
from bert_jax.models.task import BertForTask
from bert_jax.parameters import Axis, Parameter, ParameterTable, table


@dataclasses.dataclass(frozen=True)
class Adapters:
    """What learns of a model of a task: A and B of each adapted matrix, and all that is not the encoder's.

    It has the part of the interface of a `Model` that a train state needs.

    Raises UserError if the model has no matrix of the name of a target, or none that the rank would not exceed.
    """

    model: BertForTask
    options: LoraConfig

    def __post_init__(self) -> None:
        sides = [map(math.prod, (a.shape[1:-1], b.shape[2:])) for a, b in map(self.factors, self.targets.values())]
        if self.options.rank > (highest := max(map(min, sides))):
            raise UserError(
                f"lora.rank={self.options.rank}, but no matrix of lora.targets has a rank above {highest}; give less"
            )

    @functools.cached_property
    def targets(self) -> ParameterTable:
        """The matrices that are adapted, by path."""
        matrices = {
            path.removeprefix("encoder/").removesuffix("/kernel").replace("/", "."): path
            for path, parameter in self.model.parameters.items()
            if parameter.matrix is not None
        }
        chosen: dict[str, str] = {}
        for target in self.options.targets:
            found = {name: path for name, path in matrices.items() if target == "all" or _ends(name, target)}
            if not found:
                there = ", ".join(matrices) or "none"
                raise UserError(
                    f"lora.targets={target!r:.60} is no matrix of the layers of this model, which are {there}; give "
                    "some of them, or all"
                )
            chosen |= found
        return {path: self.model.parameters[path] for path in matrices.values() if path in chosen.values()}

    @functools.cached_property
    def parameters(self) -> ParameterTable:
        """See `Model.parameters`; A is split over the devices as the inputs of its matrix are, B as the outputs."""
        own = [entry for entry in self.model.parameters.values() if entry.part not in ENCODER_PARTS]
        return table([*(factor for entry in self.targets.values() for factor in self.factors(entry)), *own])

    def factors(self, matrix: Parameter) -> tuple[Parameter, Parameter]:
        """Return the entries of A and B of a matrix."""
        layers, *axes = matrix.axes
        inputs, outputs = (axes[:2], axes[2:]) if axes[0].name == "heads" else (axes[:1], axes[1:])
        path, rank = matrix.path.removesuffix("/kernel"), Axis("feature", self.options.rank)
        first = Parameter(f"{path}/{FACTORS[0]}", (layers, *inputs, rank), used=matrix.use)
        return first, Parameter(f"{path}/{FACTORS[1]}", (layers, rank, *outputs), used=matrix.use)

    def init(self, key: jax.Array) -> Params:
        """Return fresh parameters, those outside the encoder as the model itself makes them."""
        whole = self.model.init(key)
        params: dict[str, Any] = {}
        for number, entry in enumerate(self.targets.values()):
            first, second = self.factors(entry)
            bound = math.prod(first.shape[1:-1]) ** -0.5
            draw = jax.random.fold_in(jax.random.fold_in(key, np.uint32(2**31)), number)
            params[first.path] = jax.random.uniform(draw, first.shape, jnp.float32, -bound, bound)
            params[second.path] = jnp.zeros(second.shape, jnp.float32)
        return unflatten_dict(params, sep="/") | {
            part: arrays for part, arrays in whole.items() if part not in ENCODER_PARTS
        }

    def whole(self, params: Params, base: Params) -> Params:
        """Return the parameters of the model: those of `base`, an encoder, with the products added, and the others."""
        arrays: dict[str, Any] = dict(flatten_dict(base, sep="/"))
        own: dict[str, Any] = dict(flatten_dict(params, sep="/"))
        for path, entry in self.targets.items():
            first, second = (own.pop(factor.path) for factor in self.factors(entry))
            arrays[path] = arrays[path] + self.scale * _product(first, second)
        return unflatten_dict(arrays | own, sep="/")

    @property
    def scale(self) -> float:
        """Factor of the products."""
        return self.options.alpha / self.options.rank


def _ends(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _product(first: jax.Array, second: jax.Array) -> jax.Array:
    """Return A · B of each layer, with the axes of the inputs and of the outputs as they are, float32."""
    dimensions = (((first.ndim - 1,), (1,)), ((0,), (0,)))
    return jax.lax.dot_general(first, second, dimensions, precision=jax.lax.Precision.HIGHEST)
