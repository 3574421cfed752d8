"""Models with other options, by the names that the command line has for them."""

from typing import Any

from bert_jax.config import Config
from bert_jax.config.json_form import with_options
from bert_jax.config.model import EncoderConfig, ModelConfig


def variant(model: EncoderConfig | None = None, **options: Any) -> Any:
    """A model with other options, also those that choose its kind; by default of BERT-base."""
    spelled = {f"model.{name}": value for name, value in options.items()}
    return with_options(Config(model=ModelConfig() if model is None else model), spelled).model
