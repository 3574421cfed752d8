"""Write directories in the layout of Hugging Face `transformers`, which its Auto classes open."""

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
from bert_jax.formats.model_types import MODEL_TYPES, obstacles, type_to_write
from bert_jax.formats.model_types.definition import ModelType
from bert_jax.formats.places import Place
from bert_jax.formats.stored import StoredModel
from bert_jax.formats.tokenizer_files import write_tokenizer
from bert_jax.tokenization.sentence_pieces import SentencePieceTokenizer


def write_huggingface(stored: StoredModel, destination: str | os.PathLike[str], name: str) -> None:
    """Write `stored` into the existing directory `destination`, so that the Auto classes of transformers open it.

    Parameters are written as float32, one after the other; the class named in config.json is the one that has exactly
    the parameters of `stored`, if there is one. `name` is the title of the model card (README.md).

    Raises:
      UserError: transformers has no such model (ALiBi, a CRF), or tokenizer.json cannot express the vocabulary's
        options.
    """
    directory = epath.Path(destination)
    kind = _kind(stored)
    key = _class(stored)
    if key not in kind.classes:
        there = {"mlm": "mlm" in stored.parts, "generator": bool(stored.beside), "encoder": True}
        writable = ", ".join(f"--parts={part}" for part, found in there.items() if found)
        raise UserError(
            f"transformers has no class for a model of type {kind.name} with {', '.join(stored.parts)}; use "
            f"{writable} or --to=bert_jax"
        )
    tokenizer = stored.tokenizer
    pad_id = tokenizer.pad_id if tokenizer else 0
    config = huggingface_config.to_json(stored.model, stored.head, kind.classes[key], pad_id, kind)
    if tokenizer is not None and config.get("bos_token_id") is not None:
        config |= {"bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
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
        write_tokenizer(tokenizer, directory, stored.model.longest_sequence, stored.model.type_vocab_size > 0)
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
    family = stored.tokenizer.family.name if isinstance(stored.tokenizer, SentencePieceTokenizer) else ""
    kind = type_to_write(stored.model, family, stored.architecture)
    if kind is None:
        raise UserError(
            f"no model type of transformers that is known here ({', '.join(MODEL_TYPES)}) computes what {stored.path} "
            f"does: {obstacles(stored.model)}. It cannot be written for transformers; use --to=bert_jax"
        )
    if why := names.absence(stored.parameters, kind):
        raise UserError(why)
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
