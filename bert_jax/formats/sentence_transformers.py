"""Text vectors of a directory of sentence-transformers, and the postprocesses saved with a model.

Such a directory is a Hugging Face directory with a list of modules, modules.json, and their settings: a Transformer,
a Pooling and often a Normalize. Anything else in that list is not part of a BERT; `embed` then requires its options
rather than return different vectors.

A postprocess is saved as postprocess/NAME.safetensors: two arrays, and what they belong to.
"""

import json
import os
import re
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy
from etils import epath

from bert_jax.config import EmbeddingConfig
from bert_jax.config.heads import Pooling
from bert_jax.config.options import from_dict
from bert_jax.errors import UserError
from bert_jax.files import inside, parse_object, read_contents, read_object, write_atomically
from bert_jax.formats.model_types.definition import flag
from bert_jax.formats.safetensors_files import open_file
from bert_jax.formats.stored import KINDS, Postprocess
from bert_jax.models.pooling import LAYERS_READ

FILE, SETTINGS_FILE, PROMPTS_FILE = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
KNOWN = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
POOLINGS = {"cls": "cls", "mean": "mean", "max": "max", "mean_sqrt_len_tokens": "mean_sqrt_len"}
"""Names since version 5.3 ("pooling_mode": "mean") → ours."""
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Flags of older versions → our names, or theirs if we have none."""


def cross_encoder_activation(directory: epath.Path) -> str | None:
    """Return the name of the module that makes the answers of a CrossEncoder, if sentence-transformers 6 says one."""
    if not (directory / PROMPTS_FILE).exists():
        return None
    values = read_object(inside(directory, PROMPTS_FILE))
    found = values.get("activation_fn") if values.get("model_type") == "CrossEncoder" else None
    return found if isinstance(found, str) else None


def read_embedding(directory: epath.Path, hidden_size: int, positions: int) -> EmbeddingConfig:
    """Return how `embed` makes the vectors that sentence-transformers would; the defaults if there is no modules.json.

    What is not supported here is named in `unsupported`.

    Raises:
      UserError: a file is damaged, or the settings are those of a different model.
    """
    if not (directory / FILE).exists():
        return EmbeddingConfig()
    modules = _modules(inside(directory, FILE))
    names = [name for name, _ in modules]
    if names not in KNOWN:
        return EmbeddingConfig(unsupported=f"the modules {', '.join(names) or 'none'}; known: {', '.join(KNOWN[-1])}")
    if modules[0][1] != "":
        return EmbeddingConfig(unsupported=f"a Transformer in the directory {modules[0][1]!r:.60}")
    pooling = read_object(_within(directory, modules[1][1]))
    settings = read_object(inside(directory, SETTINGS_FILE)) if (directory / SETTINGS_FILE).exists() else {}
    prompts = read_object(inside(directory, PROMPTS_FILE)) if (directory / PROMPTS_FILE).exists() else {}
    width = pooling.get("word_embedding_dimension", pooling.get("embedding_dimension", hidden_size))
    if width != hidden_size:
        raise UserError(
            f"{directory / modules[1][1] / 'config.json'} pools {width!r:.40} features but the model has "
            f"{hidden_size}; the files do not belong together"
        )
    mode = _mode(pooling)
    length = _max_length(settings, directory, positions)
    lowercase = flag(settings, "do_lower_case", False, directory / SETTINGS_FILE)
    if problems := [
        *([] if mode in POOLINGS.values() else [f"the pooling {mode:.60}"]),
        *_differences(settings, prompts),
    ]:
        return EmbeddingConfig(unsupported=" and ".join(problems))
    values = {"pooling": mode, "normalize": len(modules) == 3, "max_length": length, "lowercase": lowercase}
    values |= _prompts(prompts)
    return from_dict(EmbeddingConfig, values)


def _modules(file: epath.Path) -> list[tuple[str, str]]:
    """Return (class, directory) of each module; classes outside sentence_transformers include their package."""
    try:
        values = json.loads(read_contents(file))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not JSON: {error}; fetch it again") from None
    if not isinstance(values, list) or not all(
        isinstance(value, dict) and isinstance(value.get("type"), str) and isinstance(value.get("path"), str)
        for value in values
    ):
        raise UserError(f'{file} must hold a list of objects with "type" and "path", not {values!r:.80}')
    return [
        (kind.rsplit(".")[-1] if kind.startswith("sentence_transformers.") else f"{kind:.60}", value["path"])
        for value in values
        for kind in [value["type"]]
    ]


def _within(directory: epath.Path, name: str) -> epath.Path:
    """Return the config.json in the subdirectory `name`, which must be a plain name."""
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name or not (directory / name).is_dir():
        raise UserError(
            f"{directory / FILE} refers to a module in {name!r:.80}, which is not a directory next to it; fetch the "
            "whole model again"
        )
    return inside(directory / name, "config.json")


def _mode(pooling: dict[str, Any]) -> str:
    """Return the kind of pooling; several, which sentence-transformers concatenates, are joined with "+"."""
    if "pooling_mode" in pooling:
        mode = pooling["pooling_mode"]
        return "+".join(POOLINGS.get(str(one), str(one)) for one in (mode if isinstance(mode, list) else [mode]))
    default = {"pooling_mode_mean_tokens": True}  # theirs
    return "+".join(name for flag, name in FLAGS.items() if pooling.get(flag, default.get(flag, False))) or "none"


def _differences(settings: dict[str, Any], prompts: dict[str, Any]) -> list[str]:
    """Return descriptions of other settings that would change the vectors."""
    found = [key for key in ("model_args", "tokenizer_args", "config_args") if settings.get(key)]
    name = prompts.get("default_prompt_name")
    texts = prompts.get("prompts")
    if name is not None and (not isinstance(texts, dict) or texts.get(str(name)) != ""):
        found.append(f"the default prompt {name!r:.40}, which precedes every text")
    return found


PROMPTS = {"query_prompt": ("query",), "document_prompt": ("document", "passage")}
"""Option of EmbeddingConfig → names that its text may have."""


def _prompts(settings: dict[str, Any]) -> dict[str, str]:
    """Return the texts that are put before queries and documents, where they are asked for."""
    texts = settings.get("prompts")
    texts = texts if isinstance(texts, dict) else {}
    found = {
        option: next((texts[name] for name in names if isinstance(texts.get(name), str)), "")
        for option, names in PROMPTS.items()
    }
    return {option: text for option, text in found.items() if text}


def _max_length(settings: dict[str, Any], directory: epath.Path, positions: int) -> int:
    """Return the maximum number of tokens per text: as set, else as the tokenizer says, never more than `positions`."""
    file, key = directory / SETTINGS_FILE, "max_seq_length"
    value = settings.get(key)
    if value is None:
        file, key = directory / "tokenizer_config.json", "model_max_length"
        value = read_object(inside(directory, file.name)).get(key) if file.exists() else None
    if value is None:
        return positions
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 5:
        raise UserError(f"{file} has {key}={value!r:.40} where a whole number from 5 is expected")
    return int(min(value, positions))


def write_embedding(embedding: EmbeddingConfig, hidden_size: int, positions: int, directory: epath.Path) -> None:
    """Write what makes the directory of a model of transformers one of sentence-transformers; see `read_embedding`.

    Vectors are compared by their cosines there, as here.
    """
    kinds = ["Transformer", "Pooling", *(["Normalize"] if embedding.normalize else [])]
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": f"{number}_{kind}" if number else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, kind in enumerate(kinds)
    ]
    pooling = dict.fromkeys(FLAGS, False) | {flag: True for flag, ours in FLAGS.items() if ours == embedding.pooling}
    files = {
        FILE: modules,
        f"{modules[1]['path']}/config.json": {"word_embedding_dimension": hidden_size, **pooling},
        SETTINGS_FILE: {"max_seq_length": embedding.max_length or positions, "do_lower_case": embedding.lowercase},
        PROMPTS_FILE: {
            "prompts": {"query": embedding.query_prompt, "document": embedding.document_prompt},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }
    for name, content in files.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


DIRECTORY, SUFFIX = "postprocess", ".safetensors"


def write_postprocesses(directory: str | os.PathLike[str], found: Mapping[str, Postprocess]) -> None:
    """Write each of them to its file below the directory of a model.

    Raises:
      UserError: a name that cannot be that of a file.
    """
    for name in found:
        if not re.fullmatch(r"\w[\w.-]{0,80}", name):
            raise UserError(f"a postprocess cannot be named {name!r:.100}; use letters, digits, _, - and .")
    for name, each in found.items():
        folder = epath.Path(directory) / DIRECTORY
        folder.mkdir(parents=True, exist_ok=True)
        # safetensors has strings next to its arrays, so all that belongs together is in one file.
        about = {"postprocess": json.dumps({"kind": each.kind, "layers": each.layers, "pooling": each.pooling})}
        arrays = {"mean": each.mean, "matrix": np.ascontiguousarray(each.matrix)}
        write_atomically(folder / f"{name}{SUFFIX}", safetensors.numpy.save(arrays, metadata=about))


def read_postprocesses(directory: str | os.PathLike[str]) -> dict[str, Postprocess]:
    """Return those that `write_postprocesses` wrote below the directory of a model, by name.

    Raises:
      UserError: a file is damaged, or bert_jax did not write it.
    """
    folder = epath.Path(directory) / DIRECTORY
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return {file.name.removesuffix(SUFFIX): _read(file) for file in files if file.name.endswith(SUFFIX)}


def _read(file: epath.Path) -> Postprocess:
    tensors, about = open_file(file), _about(file)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    mean, matrix = shapes.get("mean", ()), shapes.get("matrix", ())
    known = about.get("kind") in KINDS and about.get("layers") in LAYERS_READ
    if not known or about.get("pooling") not in typing.get_args(Pooling):
        raise UserError(f"{file} is not a postprocess of bert_jax: it says {about!r:.120}; remove it")
    if len(mean) != 1 or len(matrix) != 2 or mean[0] != matrix[0] or any(t.dtype != "F32" for t in tensors.values()):
        raise UserError(f"{file} is not a postprocess of bert_jax: its arrays are {shapes!r:.120}; remove it")
    arrays = (tensors[name].read((slice(None),) * len(shapes[name])) for name in ("mean", "matrix"))
    return Postprocess(about["kind"], about["layers"], about["pooling"], *arrays)


def _about(file: epath.Path) -> dict[str, Any]:
    """Return the object in the header of a file that `open_file` has checked."""
    contents = file.read_bytes()
    header = json.loads(contents[8 : 8 + int.from_bytes(contents[:8], "little")])
    try:
        about = parse_object(header.get("__metadata__", {}).get("postprocess", "").encode())
    except ValueError as error:
        raise UserError(f"{file} is not a postprocess of bert_jax: its description {error}; remove it") from None
    return {name: about.get(name) for name in ("kind", "layers", "pooling")}
