"""Write directories in the layout of Hugging Face `transformers`, with a model card; its Auto classes open them.

The card, README.md, describes the model, its training data and options, and its metrics; nothing is made up.
"""

import json
import math
import os
import re
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

from bert_jax.config import AttentionConfig
from bert_jax.config.options import to_dict
from bert_jax.data.manifest import Manifest, read_manifest
from bert_jax.data.mixtures import recorded_stores
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.files import write_atomically
from bert_jax.formats import huggingface, safetensors_files
from bert_jax.formats import huggingface as names
from bert_jax.formats.model_types import MODEL_TYPES, obstacles, type_to_write
from bert_jax.formats.model_types.definition import ModelType
from bert_jax.formats.sentence_transformers import class_of, write_embedding
from bert_jax.formats.stored import Place, StoredModel
from bert_jax.models.bert_parameters import TOKEN_VECTORS
from bert_jax.progress import track
from bert_jax.tokenization.directories import SPECIALS_FILE, complete_pipeline
from bert_jax.tokenization.json_vocabulary import NAMES
from bert_jax.tokenization.sentence_pieces import SentencePieces
from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.tokenization.vocabulary import CONFIG_FILE, JSON_FILE, write_file

PRIVATE = ("workdir", "cache")  # options that say where something was, not what


def model_card(stored: StoredModel, kind: ModelType, key: str, name: str) -> str:
    """Return Markdown with the front matter that the hub reads, without paths of the machine that trained the model."""
    opener, task = kind.openers[key]
    library = "transformers"
    if stored.makes_vectors:
        library, task = "sentence-transformers", "sentence-similarity"
    front = [
        "---",
        f"library_name: {library}",
        f"tags: [{kind.name}, bert_jax]",
        *([f"pipeline_tag: {task}"] if task else []),
        "---",
    ]
    sections = [
        f"# {name}",
        _summary(stored, kind),
        _usage(stored, kind, opener),
        "## Configuration",
        _table(_configuration(stored)),
        *_training(stored.history.get("config")),
        *_data(stored.history),
        *_metrics(stored.history),
        "## Limits",
        "Licence, languages and intended use are not recorded with a model: state them before you publish it.",
    ]
    return "\n".join(front) + "\n\n" + "\n\n".join(sections) + "\n"


def _summary(stored: StoredModel, kind: ModelType) -> str:
    parts = [kind.part_names[part] for part in stored.parts if part in kind.part_names]
    having = ", ".join([*parts, *([f"head for {stored.head.kind}"] if stored.head else [])])
    source, changed = _first_kind(stored)
    origin = {
        "huggingface": "brought from Hugging Face by bert_jax",
        "tf1": "brought from a TensorFlow 1 checkpoint by bert_jax",
        "bert_jax": f"trained with bert_jax to step {stored.history.get('step') or 0:,}",
    }.get(source, "of unknown origin")
    parameters = sum(math.prod(array.shape) for array in stored.arrays.values())
    since = f", as the {stored.averaged}" if stored.averaged else ""
    since += " and saved by model.save, before which its parameters may have been changed" if changed else ""
    return (
        f"An encoder of type {kind.family} with {having or 'no head'}, {origin}{since}; {parameters:,} parameters in "
        "float32."
    )


def _first_kind(stored: StoredModel) -> tuple[str, bool]:
    """Return the kind of the original of `stored`, through all copies, and whether model.save wrote one of them."""
    kind, changed, source = stored.kind, False, (stored.history.get("run") or {}).get("source")
    while isinstance(source, dict):
        kind, changed = str(source.get("kind")), changed or source.get("written_by") == "model.save"
        source = source.get("source")
    return kind, changed


def _usage(stored: StoredModel, kind: ModelType, opener: str) -> str:
    """Return Python that opens the model and, if it has one, its tokenizer."""
    # A bare class with a pooler of its own would draw one that is not in the file, or leave that in the file out.
    pooled = "pooler" in stored.parts
    told = opener == "AutoModel" and "pooler" in kind.modules and pooled != kind.has_pooler
    names = [*(["AutoTokenizer"] if stored.tokenizer else []), opener]
    trusted = ", trust_remote_code=True" if kind.remote_code else ""
    lines = [
        f"from transformers import {', '.join(sorted(names, key=str.lower))}\n",
        f'model = {opener}.from_pretrained("PATH"{f", add_pooling_layer={pooled}" if told else ""}{trusted})',
        *([f'tokenizer = AutoTokenizer.from_pretrained("PATH"{trusted})'] if stored.tokenizer else []),
    ]
    python = "\n".join(lines)
    vectors = (
        f'\n\nVectors of texts are made by `bert_jax.load("PATH").embed(texts)`, and by '
        f'`{class_of(stored.embedding.form)}("PATH").encode(texts)` of sentence-transformers.'
    )
    decoder = (
        " The classes of transformers do without the enhanced mask decoder, through which this model learned to "
        "predict masked words, so theirs are poor; `bert_jax.load` uses it."
    )
    return (
        f'```python\n{python}\n```\n\nor, in JAX, `bert_jax.load("PATH")`.'
        f"{decoder if 'mask_decoder' in stored.parts else ''}{vectors if stored.makes_vectors else ''}"
    )


def _configuration(stored: StoredModel) -> dict[str, Any]:
    assert isinstance(stored.model, AttentionConfig)  # or there would be an obstacle
    values = to_dict(stored.model) | {"intermediate_size": stored.model.feed_forward_size}
    # They leave no trace in the exported model.
    for name in ("vocab_pad_multiple", "scaled_outputs", "zero_outputs", "scaling", "position_init"):
        values.pop(name, None)
    if stored.tokenizer is not None:
        values["vocabulary"] = f"{stored.tokenizer.kind}, {'uncased' if stored.tokenizer.lowercase else 'cased'}"
        values["vocabulary fingerprint"] = stored.tokenizer.fingerprint
    if stored.head is not None and stored.head.labels:
        values["labels"] = ", ".join(stored.head.labels)
    return values


def _training(config: dict[str, Any] | None) -> list[str]:
    """Return all options of the run except those of the model, which are above."""
    options = {key: value for key, value in (config or {}).items() if key not in ("model", "head", "compute")}
    return ["## Training", f"```json\n{json.dumps(_without_paths(options), indent=2)}\n```"] if options else []


def _without_paths(value: Any):
    if isinstance(value, dict):
        return {key: _without_paths(entry) for key, entry in value.items() if key not in PRIVATE}
    if isinstance(value, list):
        return [_without_paths(entry) for entry in value]
    return _base_name(value) if isinstance(value, str) else value


def _base_name(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]


def _data(history: dict[str, Any]) -> list[str]:
    """Return the manifest of the token store, or only fingerprints of several stores or of one that is out of reach."""
    stores = recorded_stores(history.get("run") or {})
    path = ((history.get("config") or {}).get("data") or {}).get("path")
    manifest = _manifest(path) if path else None
    if manifest is not None and stores == [manifest.fingerprint]:
        counts = {name.replace("_", " "): f"{value:,}" for name, value in to_dict(manifest.counts).items()}
        sources = {
            f"source {number}": f"{_base_name(source.name)} ({source.format}, {source.bytes:,} bytes)"
            for number, source in enumerate(manifest.sources, 1)
        }
        return ["## Data", _table({"fingerprint": manifest.fingerprint, **counts, **sources})]
    name = "fingerprint of the token store" + "s" * (len(stores) > 1)
    return ["## Data", _table({name: ", ".join(stores)})] if stores else []


def _manifest(path: str) -> Manifest | None:
    try:
        return read_manifest(epath.Path(path))
    except (UserError, OSError, ImportError):  # moved, on another machine, or remote without its client library
        return None


def _metrics(history: dict[str, Any]) -> list[str]:
    metrics = history.get("metrics")
    return ["## Metrics", _table({name: f"{value:.6g}" for name, value in metrics.items()})] if metrics else []


def _table(values: dict[str, Any]) -> str:
    def cell(value: Any) -> str:
        return re.sub(r"[\s|<>`]+", " ", str(value)).strip()

    return "\n".join(["| | |", "|---|---|", *(f"| {cell(key)} | {cell(value)} |" for key, value in values.items())])


def write_huggingface(stored: StoredModel, destination: str | os.PathLike[str], name: str) -> None:
    """Write `stored` into the existing directory `destination`, so that the Auto classes of transformers open it.

    Parameters are written as float32, one after the other; the class named in config.json is the one that has exactly
    the parameters of `stored`, if there is one. `name` is the title of the model card (README.md).

    Raises:
      UserError: transformers has no such model (ALiBi, a CRF), or tokenizer.json cannot express the vocabulary's
        options.
    """
    directory = epath.Path(destination)
    kernel, stored = stored.arrays.get(f"{TOKEN_VECTORS}/kernel"), stored.without(TOKEN_VECTORS)
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
    config = huggingface.to_json(stored.model, stored.head, kind.classes[key], pad_id, kind)
    if tokenizer is not None:
        ids = {"bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id, "mask_token_id": tokenizer.mask_id}
        config |= {key: number for key, number in ids.items() if config.get(key) is not None}
    if (carried := stored.carried.get(huggingface.FILE, {})).get("model_type") == kind.name:
        config = dict(sorted({**config, **carried}.items()))
    prefix = kind.prefix if key == "encoder" else ""  # a bare encoder's names have no prefix
    arrays = {}
    places = names.places(stored.parameters, stored.head, kind, names.group_of(stored.model))
    for path in sorted(stored.arrays, key=list(places).index):  # so that a model gives the same file from every source
        array = stored.arrays[path]
        for layer, theirs in enumerate(places[path].names):
            given = names.written(theirs.removeprefix(prefix), kind)
            arrays[given] = (places[path].their_shape, _their_values(places[path], array, layer))
    arrays = _fused(arrays, kind, stored.model.attention_heads)
    written = safetensors_files.write_file(directory / safetensors_files.FILE, arrays)
    for _ in track(written, "writing parameters", len(arrays)):
        pass
    write_atomically(directory / huggingface.FILE, (json.dumps(config, indent=2) + "\n").encode())
    if tokenizer is not None:
        longest, has_segments = stored.model.longest_sequence, stored.model.type_vocab_size > 0
        write_tokenizer(tokenizer, directory, longest, has_segments, stored.carried)
    if stored.makes_vectors:
        own = None if kernel is None else kernel.read((slice(None), slice(None)))
        write_embedding(stored.embedding, stored.model.hidden_size, stored.model.longest_sequence, directory, own)
    card = model_card(stored, kind, key, name)
    write_atomically(directory / "README.md", card.encode())


def write_tokenizer(
    tokenizer: Tokenizer,
    directory: epath.Path,
    max_length: int,
    has_segments: bool = True,
    carried: Mapping[str, Mapping[str, Any]] = types.MappingProxyType({}),
) -> None:
    """Write the vocabulary with the files that AutoTokenizer looks for.

    tokenizer.json has our own normalization, not BertNormalizer, which differs from Google's
    (bert_jax/tokenization/wordpiece.py); therefore the class named is the plain PreTrainedTokenizerFast, which takes
    the file as it is: BertTokenizer would replace it with its own.

    Args:
      max_length: number of tokens that the model takes; a smaller one in `carried` is kept.
      has_segments: a model without them may refuse token_type_ids in transformers; its tokenizer does not return them.
      carried: name of a file → further keys, as the model's source had them.
    """
    tokenizer.save(directory)
    vocabulary = tokenizer.vocabulary
    names = dict(zip(NAMES, (tokenizer.tokens[i] for i in tokenizer.special_ids), strict=True))
    if (fast := complete_pipeline(vocabulary)) is not None:
        write_file(directory / JSON_FILE, fast.to_str(pretty=True).encode())
    segments = ["token_type_ids"] if has_segments and tokenizer.separators == 1 else []
    given = carried.get(CONFIG_FILE, {})
    limit = given.get("model_max_length")
    config = {
        "model_input_names": ["input_ids", *segments, "attention_mask"],
        "clean_up_tokenization_spaces": tokenizer.kind == "wordpiece",
        **({"padding_side": "left"} if tokenizer.class_last else {}),
        **given,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "kind": tokenizer.kind,
        "do_lower_case": tokenizer.lowercase,
        "model_max_length": min(max_length, limit) if isinstance(limit, int) and limit > 0 else max_length,
        **vocabulary.options(),
        **names,
    }
    for name, content in ((CONFIG_FILE, config), (SPECIALS_FILE, {**carried.get(SPECIALS_FILE, {}), **names})):
        write_file(directory / name, (json.dumps(content, indent=2) + "\n").encode())


def _fused(arrays: dict[str, Any], kind: ModelType, heads: int) -> dict[str, Any]:
    """Return the arrays with those that the model type keeps in one put together; name → (shape, values).

    Their modules take turns once, or once for each of so many heads.
    """
    found = {}
    for name, (shape, values) in arrays.items():
        whole, _, rest = name.partition(":")
        if not rest:
            found[name] = (shape, values)
        elif rest.startswith("0."):
            name = whole.rpartition(".")[2]
            count, turns = kind.fused[name], heads if name in kind.by_head else 1
            parts = [arrays[f"{whole}:{number}.{rest[2:]}"][1] for number in range(count)]
            height = (count * shape[0], *shape[1:])
            found[f"{whole}.{rest[2:]}"] = (
                height,
                lambda parts=parts, turns=turns: in_turns([part() for part in parts], turns),
            )
    return found


def in_turns(parts: list[np.ndarray], heads: int) -> np.ndarray:
    """Return arrays of equal shape in one, cut into so many pieces along the first axis that take turns."""
    pieces = np.stack([part.reshape(heads, -1, *part.shape[1:]) for part in parts], axis=1)
    return pieces.reshape(-1, *parts[0].shape[1:])


def _their_values(place: Place, array: StoredArray, layer: int):
    """Return a function that reads one array in their layout."""
    index = (slice(None),) * len(array.shape)
    if place.layers is None:
        return lambda: place.split_up(array.read(index))
    return lambda: place.split_up(array.read((slice(layer, layer + 1), *index[1:]))[0])


def type_of(stored: StoredModel) -> ModelType | None:
    """Return the model type of transformers that computes what a model does; None if there is none."""
    vocabulary = stored.tokenizer and stored.tokenizer.vocabulary
    family = vocabulary.family.name if isinstance(vocabulary, SentencePieces) else ""
    return type_to_write(stored.model, family, stored.architecture)


def _kind(stored: StoredModel) -> ModelType:
    """Return the model type to write; raise a UserError if there is none that computes the same."""
    kind = type_of(stored)
    if kind is None:
        raise UserError(
            f"no model type of transformers that is known here ({', '.join(MODEL_TYPES)}) computes what {stored.path} "
            f"does: {obstacles(stored.model)}. It cannot be written for transformers; use --to=bert_jax, which "
            "bert_jax.load opens"
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
