"""Reads how a directory of sentence-transformers makes one vector per text: modules.json and the modules' settings.

Such a directory is a Hugging Face directory with a list of modules: a Transformer, a Pooling and often a Normalize.
Anything else in that list is not part of a BERT; `embed` then requires its options rather than return different
vectors.
"""

import json
from typing import Any

from etils import epath

from bert_jax.config import EmbeddingConfig
from bert_jax.config.json_form import from_dict
from bert_jax.errors import UserError
from bert_jax.files import read_object
from bert_jax.formats.model_types.definition import flag
from bert_jax.formats.safetensors_files import inside

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
    length, lowercase = (
        _max_length(settings, directory, positions),
        flag(settings, "do_lower_case", False, directory / SETTINGS_FILE),
    )
    if problems := [
        *([] if mode in POOLINGS.values() else [f"the pooling {mode:.60}"]),
        *_differences(settings, prompts),
    ]:
        return EmbeddingConfig(unsupported=" and ".join(problems))
    values = {"pooling": mode, "normalize": len(modules) == 3, "max_length": length, "lowercase": lowercase}
    return from_dict(EmbeddingConfig, values)


def _modules(file: epath.Path) -> list[tuple[str, str]]:
    """Return (class, directory) of each module; classes outside sentence_transformers include their package."""
    try:
        values = json.loads(file.read_text())
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
