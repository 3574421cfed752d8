"""Models with other options, by the names that the command line has for them."""

import dataclasses
from typing import Any

from bert_jax.config import Config
from bert_jax.config.model import EncoderConfig, ModelConfig
from bert_jax.config.options import to_dict, with_options


def variant(model: EncoderConfig | None = None, **options: Any) -> Any:
    """A model with other options, also those that choose its kind; by default of BERT-base."""
    spelled = {}
    for name, value in options.items():
        value = to_dict(value) if dataclasses.is_dataclass(value) else value
        below = value if isinstance(value, dict) else {"": value}
        spelled |= {f"model.{name}.{key}".removesuffix("."): each for key, each in below.items()}
    return with_options(Config(model=ModelConfig() if model is None else model), spelled).model
