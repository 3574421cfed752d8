"""Text vectors of a directory of sentence-transformers, and the postprocesses saved with a model.

Such a directory is a Hugging Face directory with a list of modules, modules.json, and their settings: a Transformer,
a Pooling and often a Normalize; of a SparseEncoder a model of masked words and a SpladePooling; of a MultiVectorEncoder
a Transformer, a Dense, which has the map of the tokens, a MultiVectorMask and a Normalize. Anything else in that list
is not part of a BERT; `embed` then requires its options rather than return different vectors.

A postprocess is saved as postprocess/NAME.safetensors: two arrays, and what they belong to.
"""

import json
import os
import re
import string
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy
from etils import epath

from bert_jax.config import EmbeddingConfig
from bert_jax.config.heads import Pooling, SingleVector, TextVectors, TokenVectors, WordVector
from bert_jax.config.options import from_dict
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.files import inside, parse_object, read_contents, read_object, write_atomically
from bert_jax.formats.model_types.definition import flag
from bert_jax.formats.safetensors_files import FLOATS, open_file
from bert_jax.formats.stored import KINDS, Postprocess
from bert_jax.models.pooling import LAYERS_READ

CONFIG = "config.json"
FILE, SETTINGS_FILE, PROMPTS_FILE = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
KNOWN = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
OF_WORDS = (["Transformer", "SpladePooling"], ["MLMTransformer", "SpladePooling"])
OF_TOKENS = ["Transformer", "Dense", "MultiVectorMask", "Normalize"]
TOKENS = "token_embeddings"
"""Their name of the states of tokens, which a module reads and writes."""
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
    return None if found is None else str(found)


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
    if names not in (*KNOWN, *OF_WORDS, OF_TOKENS):
        return EmbeddingConfig(unsupported=f"the modules {', '.join(names) or 'none'}; known: {', '.join(KNOWN[-1])}")
    if modules[0][1] != "":
        return EmbeddingConfig(unsupported=f"a Transformer in the directory {modules[0][1]!r:.60}")
    settings = read_object(inside(directory, SETTINGS_FILE)) if (directory / SETTINGS_FILE).exists() else {}
    prompts = read_object(inside(directory, PROMPTS_FILE)) if (directory / PROMPTS_FILE).exists() else {}
    length = _max_length(settings, directory, positions)
    lowercase = flag(settings, "do_lower_case", False, directory / SETTINGS_FILE)
    values = {"max_length": length, "lowercase": lowercase, **_prompts(prompts)}
    own = [read_object(_within(directory, path)) for _, path in modules[1:] if (directory / path / CONFIG).exists()]
    problems = _differences(settings, prompts)
    if names not in KNOWN and len(own) < len(modules) - 1:
        raise UserError(f"{directory} lacks the settings of one of its modules {', '.join(names)}; fetch it again")
    if names in OF_WORDS:
        found = {"form": {"name": "words"}}
        problems += _word_differences(own[0], settings, prompts, names[0])
    elif names == OF_TOKENS:
        found, others = _token_form(own, settings, length, positions)
        problems += others
    else:
        pooling = read_object(_within(directory, modules[1][1]))
        found, others = _single_form(pooling, directory, hidden_size, modules)
        problems += others
        if not pooling.get("include_prompt", True) and _prompts(prompts):
            problems.append("include_prompt=False, which leaves the tokens of a prompt out of the pooling")
    if problems:
        return EmbeddingConfig(unsupported=" and ".join(problems))
    return from_dict(EmbeddingConfig, values | found)


def _single_form(
    pooling: dict[str, Any], directory: epath.Path, hidden_size: int, modules: list[tuple[str, str]]
) -> tuple[dict[str, Any], list[str]]:
    """Return options of EmbeddingConfig, and what is not supported; raise a UserError about another width."""
    width = pooling.get("word_embedding_dimension", pooling.get("embedding_dimension", hidden_size))
    if width != hidden_size:
        raise UserError(
            f"{directory / modules[1][1] / CONFIG} pools {width!r:.40} features but the model has "
            f"{hidden_size}; the files do not belong together"
        )
    mode = _mode(pooling)
    problems = [] if mode in POOLINGS.values() else [f"the pooling {mode:.60}"]
    return {"pooling": mode, "normalize": len(modules) == 3}, problems


def _word_differences(
    pooling: dict[str, Any], settings: dict[str, Any], prompts: dict[str, Any], transformer: str
) -> list[str]:
    """Return what is not supported of a SparseEncoder."""
    task = settings.get("transformer_task", "fill-mask" if transformer == "MLMTransformer" else "feature-extraction")
    wanted = {
        "pooling_strategy": (pooling.get("pooling_strategy", "max"), "max"),
        "activation_function": (pooling.get("activation_function", "relu"), "relu"),
        "transformer_task": (task, "fill-mask"),
        "max_active_dims": (prompts.get("max_active_dims"), None),
    }
    return [f"{name}={value!r:.40}" for name, (value, usual) in wanted.items() if value != usual]


def _token_form(
    modules: list[dict[str, Any]], settings: dict[str, Any], length: int, positions: int
) -> tuple[dict[str, Any], list[str]]:
    """Return options of EmbeddingConfig for a MultiVectorEncoder, and what is not supported.

    Args:
      modules: settings of the Dense, the MultiVectorMask and the Normalize.
      settings: those of the Transformer.
      length: maximum number of tokens of a text.
      positions: the most that there can be.
    """
    dense, mask, normalize = modules
    skipped, said = mask.get("skiplist_words"), settings.get("query_expansion")
    expansion = said if isinstance(said, dict) else {}
    query, document = (settings.get(f"{kind}_length") for kind in ("query", "document"))
    given = expansion.get("length", query)
    sizes = [value for value in (given, document, dense.get("out_features")) if value is not None]
    wanted = {
        "Dense": (dense.get("bias"), str(dense.get("activation_function")).rpartition(".")[2]) == (False, "Identity"),
        "use_residual": not dense.get("use_residual"),
        "module_input_name": dense.get("module_input_name") == normalize.get("module_input_name") == TOKENS,
        f"skiplist_words={skipped!r:.40}": skipped in ([], None)
        or (isinstance(skipped, list) and set(map(str, skipped)) == set(string.punctuation)),
        "skiplist_tasks": mask.get("skiplist_tasks", ["document"]) == ["document"],
        "keep_only_token_ids": not mask.get("keep_only_token_ids"),
        f"query_expansion={said!r:.80}": said in ({}, None)
        or (expansion.get("strategy") == "fixed" and expansion.get("token") in (None, "[MASK]", "<mask>")),
        "the lengths or the size": all(isinstance(size, int) and 0 < size < 2**20 for size in sizes)
        and (given is None or given >= 8)
        and isinstance(dense.get("out_features"), int),
    }
    problems = [name for name, fits in wanted.items() if not fits]
    if problems:
        return {}, problems
    of_documents = min(document or length, positions)
    of_queries = min(given or length, positions)
    seen = "seen" if expansion.get("attend") else "unseen"
    form = {
        "name": "tokens",
        "size": dense["out_features"],
        "query_length": of_queries if expansion or of_queries != of_documents else 0,
        "expansion": seen if expansion else "none",
        "skip_punctuation": bool(skipped),
    }
    return {"form": form, "max_length": of_documents}, []


def read_token_kernel(directory: epath.Path) -> StoredArray:
    """Return the map of the states to the vectors of tokens, [H, D], of a directory whose form is that.

    Raises:
      UserError: there is no such file of safetensors, or it holds no such map.
    """
    path = dict(_modules(inside(directory, FILE)))["Dense"]
    _within(directory, path)
    tensors = open_file(inside(directory / path, "model.safetensors"))
    tensor = tensors.get("linear.weight")
    if tensor is None or len(tensor.shape) != 2 or tensor.dtype not in FLOATS:
        raise UserError(f"{directory / path} holds no map linear.weight [features, states]; fetch the model again")

    def read(index: Any) -> np.ndarray:
        return np.ascontiguousarray(tensor.read((index[1], index[0])).T)

    return StoredArray((tensor.shape[1], tensor.shape[0]), np.dtype(np.float32), read)


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
    return inside(directory / name, CONFIG)


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


BASE, SPARSE = "sentence_transformers.models", "sentence_transformers.sparse_encoder.models"
MASK = "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"


def class_of(form: TextVectors) -> str:
    """Return the name of their class whose vectors have this form."""
    match form:
        case SingleVector():
            return "SentenceTransformer"
        case TokenVectors():
            return "MultiVectorEncoder"
        case WordVector():
            return "SparseEncoder"


def write_embedding(
    embedding: EmbeddingConfig, hidden_size: int, positions: int, directory: epath.Path, kernel: np.ndarray | None
) -> None:
    """Write what makes the directory of a model of transformers one of sentence-transformers; see `read_embedding`.

    Single vectors are compared by their cosines there, as here. `kernel` is the map [H, D] of vectors of tokens.
    """
    modules = _modules_of(embedding, hidden_size)
    listed = [
        {"idx": number, "name": str(number), "path": f"{number}_{name}" if number else "", "type": f"{package}.{name}"}
        for number, (package, name, _) in enumerate(modules)
    ]
    form, longest = embedding.form, embedding.max_length or positions
    settings: dict[str, Any] = {"max_seq_length": longest, "do_lower_case": embedding.lowercase}
    if isinstance(form, TokenVectors) and form.query_length:
        fill = {"strategy": "fixed", "attend": form.expansion == "seen", "length": form.query_length}
        own = {"query_length": form.query_length} if form.expansion == "none" else {"query_expansion": fill}
        settings |= {"document_length": longest, **own}
    prompts = {"query": embedding.query_prompt, "document": embedding.document_prompt}
    similarity = {"max_sim": "maxsim"}.get(form.similarities[0], form.similarities[0])
    files = {
        FILE: listed,
        SETTINGS_FILE: settings,
        PROMPTS_FILE: {
            "prompts": prompts,
            "default_prompt_name": None,
            "similarity_fn_name": similarity,
            **({} if isinstance(form, SingleVector) else {"model_type": class_of(form)}),
        },
        **{
            f"{entry['path']}/{CONFIG}": values
            for entry, (_, _, values) in zip(listed, modules, strict=True)
            if values is not None
        },
    }
    for name, content in files.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
    if kernel is not None:
        weights = safetensors.numpy.save({"linear.weight": np.ascontiguousarray(kernel.T)})
        write_atomically(directory / "1_Dense" / "model.safetensors", weights)


def _modules_of(embedding: EmbeddingConfig, hidden_size: int) -> list[tuple[str, str, dict[str, Any] | None]]:
    """Return package, class and settings of each module."""
    match form := embedding.form:
        case WordVector():
            pooling = {"pooling_strategy": "max", "activation_function": "relu"}
            return [(SPARSE, "MLMTransformer", None), (SPARSE, "SpladePooling", pooling)]
        case TokenVectors():
            names = {"module_input_name": TOKENS, "module_output_name": TOKENS}
            dense = {"in_features": hidden_size, "out_features": form.size, "bias": False, **names}
            dense["activation_function"] = "torch.nn.modules.linear.Identity"
            skipped = list(string.punctuation) if form.skip_punctuation else []
            mask = {"skiplist_words": skipped, "skiplist_tasks": ["document"], "keep_only_token_ids": None}
            package, name = MASK.rsplit(".", 1)
            return [
                (BASE, "Transformer", None),
                (BASE, "Dense", dense),
                (package, name, mask),
                (BASE, "Normalize", names),
            ]
        case SingleVector():
            pooling = dict.fromkeys(FLAGS, False) | {
                name: True for name, ours in FLAGS.items() if ours == embedding.pooling
            }
            found = [
                (BASE, "Transformer", None),
                (BASE, "Pooling", {"word_embedding_dimension": hidden_size, **pooling}),
            ]
            return [*found, *([(BASE, "Normalize", None)] if embedding.normalize else [])]


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
