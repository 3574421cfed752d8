"""README.md of an exported model: what it is, its training data and options, and its metrics; nothing is made up."""

import json
import math
import re
from typing import Any

from etils import epath

from bert_jax.config.json_form import to_dict
from bert_jax.data.store.manifest import Manifest, read_manifest
from bert_jax.errors import UserError
from bert_jax.formats.model_types.definition import ModelType
from bert_jax.formats.stored import StoredModel

PRIVATE = ("workdir", "cache")  # options that say where something was, not what


def model_card(stored: StoredModel, kind: ModelType, key: str, name: str) -> str:
    """Return Markdown with the front matter that the hub reads, without paths of the machine that trained the model."""
    opener, task = kind.openers[key]
    front = [
        "---",
        "library_name: transformers",
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
    since = " and saved by model.save, before which its parameters may have been changed" if changed else ""
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
    # A bare class with a pooler of its own would draw one that is not in the file.
    bare = opener == "AutoModel" and "pooler" in kind.modules and "pooler" not in stored.parts
    names = [*(["AutoTokenizer"] if stored.tokenizer else []), opener]
    lines = [
        f"from transformers import {', '.join(sorted(names, key=str.lower))}\n",
        f'model = {opener}.from_pretrained("PATH"{", add_pooling_layer=False" if bare else ""})',
        *(['tokenizer = AutoTokenizer.from_pretrained("PATH")'] if stored.tokenizer else []),
    ]
    python = "\n".join(lines)
    return f'```python\n{python}\n```\n\nor, in JAX, `bert_jax.load("PATH")`.'


def _configuration(stored: StoredModel) -> dict[str, Any]:
    values = to_dict(stored.model) | {"intermediate_size": stored.model.feed_forward_size}
    for name in ("vocab_pad_multiple", "scaled_outputs", "position_init"):  # they leave no trace in the exported model
        values.pop(name)
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
    """Return the manifest of the token store, or only its fingerprint if the store is out of reach."""
    recorded = (history.get("run") or {}).get("store_fingerprint")
    path = ((history.get("config") or {}).get("data") or {}).get("path")
    manifest = _manifest(path) if path else None
    if manifest is not None and manifest.fingerprint == recorded:
        counts = {name.replace("_", " "): f"{value:,}" for name, value in to_dict(manifest.counts).items()}
        sources = {
            f"source {number}": f"{_base_name(source.name)} ({source.format}, {source.bytes:,} bytes)"
            for number, source in enumerate(manifest.sources, 1)
        }
        return ["## Data", _table({"fingerprint": recorded, **counts, **sources})]
    return ["## Data", _table({"fingerprint of the token store": recorded})] if recorded else []


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
