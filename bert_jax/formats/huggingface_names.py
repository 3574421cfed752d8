"""The names and layouts of a model's parameters in `transformers`, for both directions.

PyTorch stores a kernel as [outputs, inputs] with the attention heads side by side, and every layer separately; ours are
[inputs, outputs] with a separate axis for the heads, and all layers of an encoder in one array.
"""

import collections
import re
from typing import Any

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.errors import UserError
from bert_jax.formats.model_types.bert_type import BERT
from bert_jax.formats.model_types.definition import ModelType
from bert_jax.formats.places import Place, place
from bert_jax.models.bert_parameters import MODEL_PARTS, bert_parameters
from bert_jax.models.parameters import ParameterTable

BUFFERS = re.compile(r"(^|\.)(position_ids|token_type_ids)$")
_OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}  # LayerNorm's, in files converted in 2018 and 2019

ABSENT = {
    "crf": "the head of this model has a CRF, and transformers has no class for that; use --to=bert_jax",
    "head/layer_": "the head of this model has a BiLSTM, and transformers has no class for that; use --to=bert_jax",
    "head/mix": "the head of this model mixes layers, and transformers has no class for that; use --to=bert_jax",
}
"""Beginnings of paths that have no counterpart there, and the reasons."""


def places(parameters: ParameterTable, head: HeadConfig | None = None, kind: ModelType = BERT) -> dict[str, Place]:
    """Return {our path: place} for every parameter except those below ABSENT.

    Raises:
      UserError: the model type does not name a parameter.
    """
    found, modules = {}, {**kind.modules, **(kind.heads[head.kind] if head else {})}
    for path, parameter in parameters.items():
        if path in kind.arrays:
            found[path] = place(parameter, kind.arrays[path], heads_apart=True)
            continue
        module, _, leaf = path.rpartition("/")
        if module not in modules and path.startswith(tuple(ABSENT)):
            continue
        if module not in modules:
            raise UserError(
                f"transformers has no name for the parameter {path} of a model of type {kind.name}, so this model "
                "cannot be written for it; use --to=bert_jax, or give it a name in bert_jax/formats/model_types"
            )
        name = f"{modules[module]}.{'bias' if leaf == 'bias' else 'weight'}"
        found[path] = place(parameter, name, outputs_first=leaf == "kernel")
    return found


def table(model: ModelConfig, head: HeadConfig | None = None, kind: ModelType = BERT) -> dict[str, Place]:
    """Return `places` for every parameter that such a model can have in `transformers`, including optional parts."""
    taken = set(kind.heads[head.kind].values()) if head else set()  # ModernBERT's task heads have names of its MLM head
    there = {ours.split("/")[0] for ours, theirs in kind.modules.items() if theirs in taken}
    named = {ours.split("/")[0] for ours in kind.modules}
    parts = tuple(part for part in MODEL_PARTS if part in named and part not in there)
    return places(bert_parameters(model, parts, head), head, kind)


def absence(parameters: ParameterTable, kind: ModelType) -> str | None:
    """Return why transformers cannot hold a model of this type with these parameters; None if it can."""
    paths = [path for path in parameters if path.rpartition("/")[0] not in kind.modules]
    return next((why for start, why in ABSENT.items() if any(path.startswith(start) for path in paths)), None)


def canonical(name: str, kind: ModelType = BERT) -> str:
    """Return the current name of a parameter in a model with a head: with the prefix, weight and bias."""
    for old, new in _OLD_ENDINGS.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    for theirs, ours in kind.renamed.items():
        name = name.removesuffix(theirs) + ours if name.endswith(theirs) else name
    for other, ours in kind.also.items():
        name = ours + name.removeprefix(other) if name.startswith(other) else name
    known = (*kind.modules.values(), *kind.arrays.values())
    bare = {theirs.removeprefix(kind.prefix).split(".")[0] for theirs in known if kind.prefix in theirs}
    return f"{kind.prefix}{name}" if name.split(".")[0] in bare else name


def written(name: str, kind: ModelType) -> str:
    """Return the name in a file of an array that `places` names."""
    for theirs, ours in kind.renamed.items():
        name = name.removesuffix(ours) + theirs if name.endswith(ours) else name
    return name


def number_of_layers(names: Any, kind: ModelType = BERT) -> int:
    """Return the number of encoder layers that the names in a file mention."""
    return len({match[1] for name in names if (match := kind.layer.match(name))})


def repeated(names: dict[str, str]) -> list[tuple[str, str]]:
    """Return pairs of stored names of the same parameter; `names`: stored name → canonical name."""
    meanings = collections.defaultdict(list)
    for stored, name in names.items():
        meanings[name].append(stored)
    return [(stored[0], stored[1]) for stored in meanings.values() if len(stored) > 1]
