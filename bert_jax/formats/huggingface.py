"""Directories in the layout of Hugging Face `transformers`: config.json, model.safetensors, vocabulary files."""

import json
import os
from typing import Any

import numpy as np
from etils import epath

from bert_jax.console.progress_bar import track
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.files import write_atomically
from bert_jax.formats import huggingface_config, safetensors_files
from bert_jax.formats import huggingface_names as names
from bert_jax.formats.model_card import model_card
from bert_jax.formats.model_types import MODEL_TYPES, type_to_write
from bert_jax.formats.model_types.definition import HeadKind, ModelType
from bert_jax.formats.places import Place
from bert_jax.formats.safetensors_files import FileTensor
from bert_jax.formats.sentence_transformers import read_embedding
from bert_jax.formats.stored import PARTS, StoredModel, without_padding
from bert_jax.formats.tokenizer_files import read_tokenizer, write_tokenizer
from bert_jax.models.bert_parameters import reads_pooler

ROWS_AT_ONCE = 4_096  # of a word table that is being compared


def open_huggingface(path: str | os.PathLike[str]) -> StoredModel:
    """Describe the BERT in a directory with config.json and model.safetensors (or shards); read none of its arrays.

    Accepts BertModel, with and without pooler, BertForPreTraining, MaskedLM, NextSentencePrediction,
    SequenceClassification, TokenClassification, QuestionAnswering and MultipleChoice, and the older names of
    parameters.

    Args:
      path: local or remote; a remote file of arrays is copied to the local temporary directory.

    Raises:
      UserError: it is a different kind of model, a file is damaged, or weights do not fit config.json or the
        vocabulary.
    """
    directory = epath.Path(path)
    config = huggingface_config.read_config(directory)
    stored = safetensors_files.open_directory(directory)
    kind = config.kind
    tensors, ignored = _known(stored, config, directory)
    head = _head(config, tensors, directory)
    layers, sets = (
        names.number_of_layers(tensors, kind),
        1 if config.model.sharing == "all" else config.model.num_layers,
    )
    if layers != sets:
        raise UserError(
            f"{directory / huggingface_config.FILE} has num_hidden_layers={config.model.num_layers}, but the "
            f"weights have {layers} layers"
        )
    places = names.table(config.model, head, kind)
    needed = {"pooler"} if head is not None and reads_pooler(config.model, head) else set()
    absent = {part for part in PARTS if part not in needed and not _has(tensors, places, part)}
    places = {path: place for path, place in places.items() if path.split("/")[0] not in absent}
    _check_fit(places, tensors, directory)
    _check_tied(config, tensors, "mlm" not in absent, directory)
    tokenizer = read_tokenizer(directory)
    model = without_padding(config.model, tokenizer, directory)
    wanted = {name for place in places.values() for name in place.names} | set(kind.tied)
    return StoredModel(
        kind="huggingface",
        path=os.fspath(path),
        model=model,
        tokenizer=tokenizer,
        head=head,
        embedding=read_embedding(directory, model.hidden_size, model.longest_sequence),
        arrays={
            path: _stored_array(place, tensors)
            for path, place in names.table(model, head, kind).items()
            if path in places
        },
        ignored=(*ignored, *sorted(name for name in tensors if name not in wanted)),
        history={"source": {"kind": "huggingface", "path": os.fspath(path), "architecture": config.architecture}},
    )


def _known(
    stored: dict[str, FileTensor], config: huggingface_config.HuggingFaceConfig, directory: epath.Path
) -> tuple[dict[str, FileTensor], list[str]]:
    """Return the arrays by their current names, and the names of buffers, which hold nothing learned."""
    kind, heads = config.kind, config.model.num_heads if config.kind.by_head else 1
    meanings = {name: names.canonical(name, kind) for name in stored if not names.BUFFERS.search(name)}
    bias = f"{kind.decoder}.bias"
    if bias in meanings and kind.tied[bias] not in meanings.values():
        meanings[bias] = kind.tied[bias]
    if twice := names.repeated(meanings):
        raise UserError(
            f"{directory} holds one parameter under two names, {twice[0][0]} and {twice[0][1]}; "
            f"{safetensors_files.AWAY}"
        )
    found = {name: stored[old] for old, name in meanings.items()}
    for fused, count in kind.fused.items():
        for name in [name for name in found if f".{fused}." in name]:
            _check_divisible(name, found[name], count * heads, directory)
            parts = found.pop(name).parts(count, heads)
            found |= {name.replace(f".{fused}.", f".{fused}:{number}."): part for number, part in enumerate(parts)}
    return found, sorted(name for name in stored if name not in meanings)


def _check_divisible(name: str, tensor: FileTensor, count: int, directory: epath.Path) -> None:
    if not tensor.shape or tensor.shape[0] % count:
        raise UserError(f"{directory}: {name} is {list(tensor.shape)} and should hold {count} arrays of equal height")


def _has(tensors: dict[str, FileTensor], places: dict[str, Place], part: str) -> bool:
    return any(place.name in tensors for path, place in places.items() if path.startswith(part + "/"))


def _head(config: huggingface_config.HuggingFaceConfig, tensors: dict[str, FileTensor], directory: epath.Path):
    """Return the task head, which the names of the arrays show; None if there is none."""
    heads = config.kind.heads
    found: list[HeadKind] = [kind for kind, modules in heads.items() if f"{modules['head']}.weight" in tensors]
    if not found:
        return None
    modules = {**config.kind.modules, **heads[found[0]]}
    kinds: list[HeadKind] = [kind for kind in found if heads[kind]["head"] == modules["head"]]
    shape = tensors[f"{modules['head']}.weight"].shape
    return huggingface_config.read_head(
        config,
        outputs=shape[0] if shape else 0,
        kinds=kinds,
        pooled="pooler" in modules and f"{modules['pooler']}.weight" in tensors,
        file=directory / huggingface_config.FILE,
    )


def _check_fit(places: dict[str, Place], tensors: dict[str, FileTensor], directory: epath.Path) -> None:
    """Raise a UserError that names the first arrays that are missing, of the wrong shape, or not floating-point."""
    lines = []
    for place in places.values():
        for name in place.names:
            tensor = tensors.get(name)
            if tensor is None:
                lines.append(f"{name} is missing")
            elif tensor.shape != place.their_shape:
                lines.append(f"{name} is {list(tensor.shape)} where {list(place.their_shape)} is expected")
            elif tensor.dtype not in safetensors_files.FLOATS:
                lines.append(f"{name} is of type {tensor.dtype}, not {', '.join(safetensors_files.FLOATS)}")
    if lines:
        more = f"; and {len(lines) - 3} more" if len(lines) > 3 else ""
        raise UserError(
            f"the weights in {directory} do not fit its {huggingface_config.FILE}: {'; '.join(lines[:3])}{more}"
        )


def _check_tied(
    config: huggingface_config.HuggingFaceConfig, tensors: dict[str, FileTensor], has_mlm: bool, directory: epath.Path
) -> None:
    """Check that the output table of the masked-language-model head is the word table: BERT has one for both."""
    table = f"{config.kind.decoder}.weight"
    if has_mlm and not config.tied and table not in tensors:
        raise UserError(f"{directory} has tie_word_embeddings=false but no {table}; {safetensors_files.AWAY}")
    for copy, original in config.kind.tied.items():
        if copy in tensors and not _equal(tensors[copy], tensors.get(original, tensors[copy])):
            raise UserError(
                f"{directory}: {copy} differs from {original}; BERT uses one array for both, and a model with two "
                "cannot be loaded. To load only its encoder, save it as BertModel first"
            )


def _equal(one: FileTensor, other: FileTensor) -> bool:
    """Return whether two arrays hold the same values, comparing some rows at a time."""
    if one.shape != other.shape or not {one.dtype, other.dtype} <= set(safetensors_files.FLOATS) or not one.shape:
        return False
    bounds = (
        (slice(row, min(row + ROWS_AT_ONCE, one.shape[0])), *(slice(None) for _ in one.shape[1:]))
        for row in range(0, one.shape[0], ROWS_AT_ONCE)
    )
    return all(np.array_equal(one.read(index), other.read(index), equal_nan=True) for index in bounds)


def _stored_array(place: Place, tensors: dict[str, FileTensor]) -> StoredArray:
    def read_part(name: str, index: tuple[slice, ...]) -> np.ndarray:
        return tensors[name].read(index)

    return StoredArray(place.shape, np.dtype(np.float32), lambda index: place.read(read_part, index))


def write_huggingface(stored: StoredModel, destination: str | os.PathLike[str], name: str) -> None:
    """Write `stored` into the existing directory `destination`, so that the Auto classes of transformers open it.

    Parameters are written as float32, one after the other; the class named in config.json is the one that has exactly
    the parameters of `stored`, if there is one. `name` is the title of the model card (README.md).

    Raises:
      UserError: transformers has no such model (pre-LN, a CRF), or tokenizer.json cannot express the vocabulary's
        options.
    """
    directory = epath.Path(destination)
    kind = _kind(stored)
    key = _class(stored)
    if key not in kind.classes:
        raise UserError(
            f"transformers has no class for a model of type {kind.name} with {', '.join(stored.parts)}; use "
            "--parts=mlm, --parts=encoder or --to=bert_jax"
        )
    tokenizer = stored.tokenizer
    pad_id = tokenizer.pad_id if tokenizer else 0
    config = huggingface_config.to_json(stored.model, stored.head, kind.classes[key], pad_id, kind)
    prefix = kind.prefix if key == "encoder" else ""  # a bare encoder's names have no prefix
    arrays = {}
    places = names.places(stored.parameters, stored.head, kind)
    for path in sorted(stored.arrays, key=list(places).index):  # so that a model gives the same file from every source
        array = stored.arrays[path]
        for layer, theirs in enumerate(places[path].names):
            given = names.written(theirs.removeprefix(prefix), kind)
            arrays[given] = (places[path].their_shape, _their_values(places[path], array, layer))
    arrays = _fused(arrays, kind, stored.model.num_heads if kind.by_head else 1)
    written = safetensors_files.write_file(directory / safetensors_files.FILE, arrays)
    for _ in track(written, "writing parameters", len(arrays)):
        pass
    write_atomically(directory / huggingface_config.FILE, (json.dumps(config, indent=2) + "\n").encode())
    if tokenizer is not None:
        write_tokenizer(tokenizer, directory, stored.model.longest_sequence)
    card = model_card(stored, kind, key, name)
    write_atomically(directory / "README.md", card.encode())


def _fused(arrays: dict[str, Any], kind: ModelType, heads: int) -> dict[str, Any]:
    """Return the arrays with those that the model type keeps in one put together; name → (shape, values).

    Their modules take turns so many times.
    """
    found = {}
    for name, (shape, values) in arrays.items():
        whole, _, rest = name.partition(":")
        if not rest:
            found[name] = (shape, values)
        elif rest.startswith("0."):
            count = kind.fused[whole.rpartition(".")[2]]
            parts = [arrays[f"{whole}:{number}.{rest[2:]}"][1] for number in range(count)]
            height = (count * shape[0], *shape[1:])
            found[f"{whole}.{rest[2:]}"] = height, lambda parts=parts: _in_turns([part() for part in parts], heads)
    return found


def _in_turns(parts: list[np.ndarray], heads: int) -> np.ndarray:
    """Return arrays of equal shape in one, cut into so many pieces along the first axis that take turns."""
    pieces = np.stack([part.reshape(heads, -1, *part.shape[1:]) for part in parts], axis=1)
    return pieces.reshape(-1, *parts[0].shape[1:])


def _their_values(place: Place, array: StoredArray, layer: int):
    """Return a function that reads one array in their layout."""
    index = (slice(None),) * len(array.shape)
    if place.layers is None:
        return lambda: place.split_up(array.read(index))
    return lambda: place.split_up(array.read((slice(layer, layer + 1), *index[1:]))[0])


def _kind(stored: StoredModel) -> ModelType:
    """Return the model type to write; raise a UserError if there is none that computes the same."""
    kind = type_to_write(stored.model)
    if why := names.absence(stored.parameters, kind):
        raise UserError(why)
    if kind is None:
        raise UserError(
            f"no model type of transformers that is known here ({', '.join(MODEL_TYPES)}) computes what {stored.path} "
            "does, so it cannot be written for it; use --to=bert_jax"
        )
    return kind


def _class(stored: StoredModel) -> str:
    """Return the key of ModelType.classes of the class with these parts or, if none has, that with most of them."""
    if stored.head is not None:
        return stored.head.kind
    has_mlm, has_pairs = "mlm" in stored.parts, "next_sentence" in stored.parts
    if "replaced_tokens" in stored.parts:
        return "replaced_tokens"
    if has_mlm:
        return "pretraining" if has_pairs else "mlm"
    return "pairs" if has_pairs else "encoder"
