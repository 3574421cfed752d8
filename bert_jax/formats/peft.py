"""Adapters in the files of PEFT (adapter_config.json, adapter_model.safetensors): added to a model, and written.

PEFT keeps, for a linear layer W [outputs, inputs] of `transformers`, the factors lora_A [rank, inputs] and lora_B
[outputs, rank] of a change to it, and whole the modules that were trained as such (modules_to_save: a head). Here the
change is added to W as W is read, whatever the format of the model. What would compute something else than such a sum
is refused. Next to PEFT's files, head.json has the names of our head's labels, for which they have no place, or
embedding.json how the model makes vectors, which has no head; and task.json how it reads texts and answers.
"""

import dataclasses
import json
import math
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

from bert_jax import hub
from bert_jax.config import EmbeddingConfig, HeadConfig
from bert_jax.config.finetuning import FinetuneConfig, task_defaults
from bert_jax.config.options import from_dict, to_dict
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError, first_lines
from bert_jax.files import inside, read_object, write_atomically
from bert_jax.formats import huggingface, safetensors_files
from bert_jax.formats.huggingface_export import in_turns, type_of
from bert_jax.formats.model_types.definition import HeadKind, ModelType
from bert_jax.formats.safetensors_files import FLOATS, FileTensor
from bert_jax.formats.stored import Place, StoredModel, added, place_of
from bert_jax.models.bert_parameters import (
    FACTORS,
    MODEL_PARTS,
    OF_TEXTS,
    TASK_PARTS,
    bert_parameters,
    reads_pooler,
)
from bert_jax.parameters import ParameterTable

CONFIG, WEIGHTS, HEAD = "adapter_config.json", safetensors_files.ADAPTER, "head.json"
EMBEDDING, TASK = "embedding.json", "task.json"
PREFIX = "base_model.model."
TASKS: dict[str, HeadKind] = {"SEQ_CLS": "classification", "TOKEN_CLS": "tagging", "QUESTION_ANS": "span"}
"""PEFT's name of a task → the kind of its head."""
USUAL: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    **dict.fromkeys(
        (
            *(
                "use_dora",
                "use_qalora",
                "lora_bias",
                "trainable_token_indices",
                "layer_replication",
                "alora_invocation_tokens",
            ),
            *("target_parameters", "use_bdlora", "arrow_config", "monteclora_config"),
        ),
        (False, None, [], {}),
    ),
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal", "lora_ga"),
}
"""Keys of adapter_config.json → values with which the change is alpha / rank · B · A, and W that of the base."""
_FACTOR = re.compile(r"(.+)\.lora_([AB])(\.default)?\.weight")
_PLAIN = re.compile(r"[\w.]{1,200}")


@dataclasses.dataclass(frozen=True)
class AdapterConfig:
    """What adapter_config.json says about the change."""

    file: epath.Path
    base: str
    """Model that is adapted; "" if it is not said."""
    task: str
    rank: int
    alpha: float
    by_root: bool
    """Whether alpha is divided by the square root of the rank (rsLoRA), rather than by the rank."""
    ranks: Mapping[str, int]
    """Ends of the names of modules → rank in place of `rank`."""
    alphas: Mapping[str, float]
    """The same for alpha."""

    def rank_of(self, module: str) -> int:
        return next((rank for end, rank in self.ranks.items() if _ends(module, end)), self.rank)

    def scale_of(self, module: str) -> float:
        """Return the factor of the product of a module."""
        rank = self.rank_of(module)
        alpha = next((alpha for end, alpha in self.alphas.items() if _ends(module, end)), self.alpha)
        return alpha / (math.sqrt(rank) if self.by_root else rank)


def read_adapter_config(directory: epath.Path) -> AdapterConfig:
    """Return what adapter_config.json says; raise a UserError if it is broken, or of another kind of adapter."""
    file = inside(directory, CONFIG)
    values = read_object(file)
    for key, usual in USUAL.items():
        found = values.get(key, usual[0])
        if not any(type(found) is type(each) and found == each for each in usual):
            shown = " or ".join(repr(each) for each in usual if each not in ([], {}))
            raise UserError(
                f"{file} has {key}={found!r:.60}, which is not supported here; only {shown} is. Merge the adapter "
                "where PEFT is (merge_and_unload), and give the model that this makes"
            )
    rank = _number(file, "r", values.get("r", 8), whole=True)
    alpha = _number(file, "lora_alpha", values.get("lora_alpha", 8))
    base, task = (values.get(key) or "" for key in ("base_model_name_or_path", "task_type"))
    if not isinstance(base, str) or not isinstance(task, str):
        raise UserError(f"{file}: base_model_name_or_path={base!r:.60} and task_type={task!r:.60} must be texts")
    return AdapterConfig(
        file=file,
        base=base,
        task=task,
        rank=int(rank),
        alpha=alpha,
        by_root=values.get("use_rslora") is True,
        ranks={end: int(value) for end, value in _pattern(file, "rank_pattern", values, True).items()},
        alphas=_pattern(file, "alpha_pattern", values, False),
    )


def _number(file: epath.Path, key: str, value: Any, whole: bool = False) -> float:
    kinds = (int,) if whole else (int, float)
    if type(value) not in kinds or not 0 < value < 2**31:
        raise UserError(f"{file} has {key}={value!r:.60}; expected a positive {'whole ' if whole else ''}number")
    return value


def _pattern(file: epath.Path, key: str, values: Mapping[str, Any], whole: bool) -> dict[str, float]:
    """Return a pattern of module names, of which only plain ends of names are read, no regular expressions."""
    found = values.get(key) or {}
    if not isinstance(found, dict):
        raise UserError(f"{file} has {key}={found!r:.60}; expected an object from names of modules to numbers")
    for name in found:
        if not _PLAIN.fullmatch(name):
            raise UserError(
                f"{file}: {key} has the regular expression {name!r:.60}; only ends of names of modules are read"
            )
    return {name: _number(file, f"{key}.{name}", value, whole) for name, value in found.items()}


def _ends(module: str, end: str) -> bool:
    return module == end or module.endswith(f".{end}")


@dataclasses.dataclass(frozen=True)
class _Files:
    """The arrays of an adapter, by the current names of `transformers`, without PEFT's additions."""

    factors: dict[str, dict[str, FileTensor]]
    """Name of a module → {"A": lora_A, "B": lora_B}."""
    whole: dict[str, FileTensor]
    """Arrays of modules that were trained whole."""


def _read_files(directory: epath.Path, kind: ModelType) -> _Files:
    if not (directory / WEIGHTS).exists():
        raise UserError(
            f"{directory} has no {WEIGHTS}; adapter_model.bin, a pickle, is not read. Save the adapter again with a "
            "newer PEFT: model.save_pretrained(DIRECTORY)"
        )
    file = inside(directory, WEIGHTS)
    factors: dict[str, dict[str, FileTensor]] = {}
    whole: dict[str, FileTensor] = {}
    for name, tensor in safetensors_files.open_file(file).items():
        bare = name.removeprefix(PREFIX)
        if bare == name or tensor.dtype not in FLOATS:
            raise UserError(
                f"{file}: {name!r:.120} ({tensor.dtype}) is no array of an adapter, whose names begin with {PREFIX} "
                f"and whose types are {', '.join(FLOATS)}"
            )
        if match := _FACTOR.fullmatch(bare):
            module = huggingface.canonical(f"{match[1]}.weight", kind).removesuffix(".weight")
            factors.setdefault(module, {})[match[2]] = tensor
        elif "lora_" in bare:
            raise UserError(
                f"{file} has {name!r:.120}; only lora_A and lora_B of linear layers are read, not those of embeddings, "
                "biases or magnitudes"
            )
        else:
            whole[huggingface.canonical(re.sub(r"\.modules_to_save(\.default)?\.", ".", bare), kind)] = tensor
    if not (factors or whole):
        raise UserError(f"{file} holds no arrays, so the adapter would change nothing; save it again")
    if lacking := [module for module, pair in factors.items() if len(pair) < 2]:
        raise UserError(f"{file} has only one of lora_A and lora_B of {lacking[0]!r:.120}")
    return _Files(factors, whole)


def with_adapter(stored: StoredModel, path: str | os.PathLike[str]) -> StoredModel:
    """Return the model with the changes of the adapter in `path` added, and with its head if it has one.

    Raises:
      UserError: the directory holds no adapter of a kind that is known here, a file is damaged, or it is one of another
        model.
    """
    directory = epath.Path(path)
    if not (directory / CONFIG).exists():
        raise UserError(f"{directory} is no adapter of PEFT: it has no {CONFIG}")
    config, kind = read_adapter_config(directory), _kind(stored)
    files = _read_files(directory, kind)
    head = _head(stored, kind, files.whole, config)
    pooled = (head is not None and reads_pooler(stored.model, head)) or "pooler" in stored.parts
    parameters = bert_parameters(stored.model, ("pooler",) if pooled else (), head)
    if head is not None and head.kind in ("span", "tagging"):  # classes of transformers that have none
        parameters = {name: entry for name, entry in parameters.items() if entry.part != "pooler"}
    arrays = dict(stored.arrays)
    if head != stored.head:  # as a class of transformers with this head has no other
        others = {*TASK_PARTS, *MODEL_PARTS} - {"pooler"}
        arrays = {name: array for name, array in arrays.items() if name.split("/")[0] not in others}
    used: set[str] = set()
    for name, place in huggingface.places(parameters, head, kind, huggingface.group_of(stored.model)).items():
        _add(arrays, name, place, files, config, kind, stored.model.attention_heads, used)
    if unknown := sorted({*files.factors, *files.whole} - used):
        raise UserError(
            f"the adapter in {directory} changes {first_lines(unknown, 3)}, which {stored.path} (read as "
            f"{kind.name}) does not have; give the model that it was trained on"
        )
    embedding = stored.embedding
    if (directory / EMBEDDING).exists():
        embedding = from_dict(EmbeddingConfig, read_object(inside(directory, EMBEDDING)), "embedding.")
    history = {**stored.history, **_recorded_task(stored, directory), "adapter": os.fspath(directory)}
    return dataclasses.replace(stored, head=head, arrays=arrays, embedding=embedding, history=history)


def _recorded_task(stored: StoredModel, directory: epath.Path) -> dict[str, Any]:
    """Return the entries of a history about the task of an adapter, in place of those of its base; {} without any."""
    if not (directory / TASK).exists():
        return {}
    file = inside(directory, TASK)
    values = read_object(file)
    record = {"task": values.get("task"), "options": values.get("options")}
    task_defaults(from_dict(FinetuneConfig, record, f"{file}: ").task)
    if not isinstance(pairs := values.get("pairs"), bool | None):
        raise UserError(f"{file} has pairs={pairs!r:.60}; expected true, false or null")
    config = {**(stored.history.get("config") or {}), "finetune": record, "pairs": pairs}
    return {"config": config, "metrics": None}


def _kind(stored: StoredModel) -> ModelType:
    kind = type_of(stored)
    if kind is None:
        raise UserError(
            f"{stored.path} is a model that transformers does not have, so PEFT has no names for its matrices; "
            "its adapters are not read or written"
        )
    return kind


def _head(
    stored: StoredModel, kind: ModelType, whole: Mapping[str, FileTensor], config: AdapterConfig
) -> HeadConfig | None:
    """Return the head of the adapter, which head.json or its arrays tell; that of the model if it has none."""
    fitting: list[HeadKind] = [each for each, modules in kind.heads.items() if f"{modules['head']}.weight" in whole]
    if not fitting:
        return stored.head
    directory = config.file.parent
    if (directory / HEAD).exists():
        file = inside(directory, HEAD)
        found: HeadConfig = from_dict(HeadConfig, read_object(file), "head.")
        if found.kind not in fitting:
            raise UserError(f"{file} describes a head for {found.kind}, which is not the one in {WEIGHTS}")
        return found
    wanted = TASKS.get(config.task, fitting[0])
    chosen: HeadKind = wanted if wanted in fitting else fitting[0]
    shape = whole[f"{kind.heads[chosen]['head']}.weight"].shape
    outputs = shape[0] if shape else 0
    if stored.head is not None and stored.head.kind == chosen and stored.head.outputs == outputs:
        return stored.head
    if chosen == "classification" and outputs == 1:
        chosen = "regression"
    named = tuple(f"LABEL_{number}" for number in range(outputs)) if chosen in ("classification", "tagging") else ()
    reading = stored.carried.get(huggingface.FILE, {}).get("classifier_pooling", kind.usual_reading)
    pooling = kind.classifier_reads.get(reading) if isinstance(reading, str) else None
    return HeadConfig(kind=chosen, labels=named, pooling=pooling or "cls")


def _add(
    arrays: dict[str, StoredArray],
    path: str,
    place: Place,
    files: _Files,
    config: AdapterConfig,
    kind: ModelType,
    heads: int,
    used: set[str],
) -> None:
    """Put into `arrays` what an adapter makes of the array at `path`, and into `used` the names of what was used."""
    if there := [name for name in place.names if name in files.whole]:
        for name in place.names:
            _need_shape(config, name, files.whole.get(name), place.their_shape)
        arrays[path] = place.array(lambda name, index: files.whole[name].read(index))
        used.update(there)
    changes: dict[str, tuple[float, FileTensor, FileTensor]] = {}
    for name in place.names:
        module, _, number = name.removesuffix(".weight").partition(":")
        if (pair := files.factors.get(module)) is None or not name.endswith(".weight"):
            continue
        fused = module.rpartition(".")[2]
        count, turns = kind.fused.get(fused, 1), heads if fused in kind.by_head else 1
        outputs, inputs = place.their_shape if len(place.their_shape) == 2 else (0, 0)
        rank = config.rank_of(module)
        _need_shape(config, f"{module}.lora_A", pair["A"], (rank, inputs))
        _need_shape(config, f"{module}.lora_B", pair["B"], (count * outputs, rank))
        second = pair["B"].parts(count, turns)[int(number)] if number else pair["B"]
        changes[name] = config.scale_of(module), pair["A"], second
        used.add(module)
    if changes:
        if path not in arrays:
            raise UserError(f"the adapter in {config.file.parent} changes {path}, which its model does not have")
        arrays[path] = added(arrays[path], place.array(lambda name, index: _change(changes, name, index)))


def _need_shape(config: AdapterConfig, name: str, tensor: FileTensor | None, shape: tuple[int, ...]) -> None:
    if tensor is None or tensor.shape != shape:
        found = "missing" if tensor is None else str(list(tensor.shape))
        raise UserError(
            f"{config.file.parent / WEIGHTS}: {name} is {found} where {list(shape)} is expected, for the model that is "
            f"adapted and the ranks in {CONFIG}"
        )


def _change(
    changes: Mapping[str, tuple[float, FileTensor, FileTensor]], name: str, index: tuple[slice, ...]
) -> np.ndarray:
    """Return a part of the change to an array [outputs, inputs] of theirs: zeros where none is adapted."""
    if name not in changes:
        (_, first, second), *_ = changes.values()
        shape = (second.shape[0], first.shape[1])
        return np.zeros([len(range(size)[part]) for size, part in zip(shape, index, strict=True)], np.float32)
    scale, first, second = changes[name]
    rows, columns = second.read((index[0], slice(None))), first.read((slice(None), index[1]))
    return np.float32(scale) * (rows @ columns)


def write_adapter(
    directory: epath.Path,
    stored: StoredModel,
    learned: Mapping[str, np.ndarray],
    parameters: ParameterTable,
    *,
    scale: float,
    base: str,
    task: dict[str, Any] | None = None,
) -> None:
    """Write an adapter, which PEFT reads, into `directory`.

    Args:
      stored: the whole model, of which only the description is read.
      learned: the factors of the changes, and whatever was trained whole, by path.
      parameters: their table.
      scale: factor of the products.
      base: path of the model that was adapted, or its name on the hub.
      task: name and options of what it was trained on, and whether texts are pairs; None if that is not known.

    Raises:
      UserError: transformers has no such model, or no name for one of the arrays.
    """
    kind, head, model = _kind(stored), stored.head, stored.model
    modules, group = {**kind.modules, **({} if head is None else kind.heads[head.kind])}, huggingface.group_of(model)
    bare = kind.prefix if head is None else ""  # names of a bare encoder have no prefix
    whole = {path: entry for path, entry in parameters.items() if not path.endswith(FACTORS)}
    arrays, saved = {}, []
    for path, place in huggingface.places(whole, head, kind, group).items():
        if place.part == "pooler" and head is not None and head.kind in ("span", "tagging"):
            continue
        arrays[huggingface.written(place.name, kind)] = place.split_up(learned[path])
        saved.append(_module_to_save(place.name.rpartition(".")[0], kind))
    if lost := [path for path in whole if path.startswith(tuple(huggingface.ABSENT))]:
        raise UserError(f"PEFT has no place for {lost[0]}: {huggingface.absence(whole, kind)}")
    found: dict[str, dict[int, tuple[np.ndarray, np.ndarray]]] = {}
    for path in (path for path in parameters if path.endswith(FACTORS[0])):
        ours = path.removesuffix(f"/{FACTORS[0]}")
        if ours not in modules:
            raise UserError(f"PEFT adapts linear layers, which {ours} is none of in transformers' {kind.family}")
        theirs = f"{modules[ours].removeprefix(bare)}.weight"
        first, second = (
            dataclasses.replace(
                place_of(parameters[f"{ours}/{key}"], theirs, outputs_first=True, group=group),
                adjacent=key == FACTORS[1] and ours in kind.adjacent,
            )
            for key in FACTORS
        )
        for layer, name in enumerate(first.names):
            module, _, number = name.removesuffix(".weight").partition(":")
            pair = (place.split_up(learned[place.path][layer]) for place in (first, second))
            found.setdefault(module, {})[int(number or 0)] = (next(pair), next(pair))
    ranks = _put_factors(arrays, found, kind, model.attention_heads)
    rank = min(ranks.values())
    wide = {module: each for module, each in ranks.items() if each != rank}
    base = base if hub.model_name(base) else os.path.abspath(base)
    values = _config_values(base, head, rank, scale, [*ranks], [*dict.fromkeys(saved)], wide)
    own = (EMBEDDING, to_dict(stored.embedding)) if head is None else (HEAD, to_dict(head))
    files = {CONFIG: values, own[0]: own[1], **({TASK: task} if task else {})}
    _write(directory, files, {f"{PREFIX}{name}": array for name, array in arrays.items()})


def _put_factors(
    arrays: dict[str, np.ndarray],
    found: Mapping[str, Mapping[int, tuple[np.ndarray, np.ndarray]]],
    kind: ModelType,
    heads: int,
) -> dict[str, int]:
    """Put the factors of each module into `arrays`, and return its rank.

    A module that holds several of our matrices has the factors of all that are adapted, side by side.
    """
    ranks = {}
    for module, parts in found.items():
        fused = module.rpartition(".")[2]
        count, turns = kind.fused.get(fused, 1), heads if fused in kind.by_head else 1
        (first, second), *_ = parts.values()
        if count > 1:
            first = np.concatenate([a for a, _ in parts.values()])
            blocks = np.zeros((count, second.shape[0], len(first)), np.float32)
            for turn, (number, (a, b)) in enumerate(parts.items()):
                blocks[number, :, turn * len(a) : (turn + 1) * len(a)] = b
            second = in_turns(list(blocks), turns)
        arrays |= {f"{module}.lora_A.weight": first, f"{module}.lora_B.weight": second}
        ranks[module] = len(first)
    return ranks


def _module_to_save(module: str, kind: ModelType) -> str:
    """Return the module that PEFT is to train whole: of a head, the outermost, as its own classes name it."""
    return module if module.startswith(kind.prefix) else module.split(".")[0]


def _config_values(
    base: str,
    head: HeadConfig | None,
    rank: int,
    scale: float,
    modules: list[str],
    saved: list[str],
    wide: Mapping[str, int],
) -> dict[str, Any]:
    by_kind: dict[str, str] = {ours: theirs for theirs, ours in TASKS.items()}
    by_kind |= dict.fromkeys(OF_TEXTS, "SEQ_CLS")
    return {
        "peft_type": "LORA",
        "task_type": "FEATURE_EXTRACTION" if head is None else by_kind.get(head.kind),
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": scale * rank,
        "lora_dropout": 0.0,
        "target_modules": modules,
        "modules_to_save": saved or None,
        "rank_pattern": dict(wide),
        "alpha_pattern": {module: scale * each for module, each in wide.items()},
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
    }


def _write(directory: epath.Path, files: Mapping[str, dict[str, Any]], arrays: dict[str, np.ndarray]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    stream = {name: (array.shape, lambda array=array: array) for name, array in sorted(arrays.items())}
    for _ in safetensors_files.write_file(directory / WEIGHTS, stream):
        pass
    for file, content in files.items():
        write_atomically(directory / file, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
