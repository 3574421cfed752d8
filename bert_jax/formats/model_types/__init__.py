"""Model types of `transformers` that are read and written: their config.json, and the names of their arrays.

To add one, define a `ModelType` in a file here and an entry of MODEL_TYPES; reading, writing, checks and messages
follow.
"""

from typing import Any

from etils import epath

from bert_jax.config import EncoderConfig
from bert_jax.config.options import flattened, to_dict
from bert_jax.errors import UserError
from bert_jax.formats.model_types.bert import ALBERT, BERT, CAMEMBERT, DISTILBERT, ELECTRA, MPNET, ROBERTA, XLM_ROBERTA
from bert_jax.formats.model_types.deberta import DEBERTA, DEBERTA_V2
from bert_jax.formats.model_types.definition import ModelType
from bert_jax.formats.model_types.modernbert import EUROBERT, MODERNBERT, MODERNBERT_DECODER, NEOBERT, NOMIC_BERT
from bert_jax.formats.model_types.xlnet import XLNET

MODEL_TYPES = {
    each.name: each
    for each in (
        *(BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, MODERNBERT, ALBERT, DISTILBERT, ELECTRA),
        *(DEBERTA, DEBERTA_V2, XLNET, NOMIC_BERT, MODERNBERT_DECODER, EUROBERT, NEOBERT, MPNET),
    )
}
"""All that are known, by name."""


def model_type(values: dict[str, Any], file: epath.Path) -> ModelType:
    """Return the model type of the contents of a config.json; raise a UserError that names those that are known."""
    name = values.get("model_type", "bert")
    if not isinstance(name, str) or name not in MODEL_TYPES:
        raise UserError(
            f"{file} describes a model of type {name!r:.40}; the types that can be loaded are {', '.join(MODEL_TYPES)}"
        )
    return MODEL_TYPES[name]


def type_to_write(model: EncoderConfig, family: str = "", architecture: str = "") -> ModelType | None:
    """Return the model type of `transformers` that computes what `model` does; None if there is none.

    Of several, such as RoBERTa and CamemBERT, it is that of the `architecture` that the model came from, a class of
    `transformers`, or of the `family` of its vocabulary, or the first.
    """
    fitting = [each for each in MODEL_TYPES.values() if not each.obstacles(model)]
    origins = [each for each in fitting if architecture in each.classes.values()]
    related = [each for each in fitting if each.name == family]
    return next(iter([*origins, *related, *fitting]), None)


def obstacles(model: EncoderConfig) -> str:
    """Return the options of `model` whose values no type of `transformers` has, and those that the nearest lack.

    Of a model that does not attend it is its kind alone: whatever else it has, no type is near it.
    """
    if not model.attention_heads:
        return f"none has {model.spelled}"
    missing = {name: kind.obstacles(model) for name, kind in MODEL_TYPES.items()}
    fewest = min(map(len, missing.values()))
    everywhere = [option for option in min(missing.values(), key=len) if all(option in m for m in missing.values())]
    nearest: dict[str, list[str]] = {}
    for name, options in missing.items():
        others = _values(model, [option for option in options if option not in everywhere])
        if others and len(options) == fewest:
            nearest.setdefault(others, []).append(name)
    none = [f"none has {_values(model, everywhere)}"] if everywhere else []
    lacking = [f"{', '.join(names)} without {options}" for options, names in nearest.items()]
    return "; ".join([*none, *([f"nearest are {', and '.join(lacking)}"] if lacking else [])])


def remark(model: EncoderConfig) -> str:
    """Return that `transformers` has no counterpart of a model, and why, for the start of a run; "" if it has one."""
    if type_to_write(model) is not None:
        return ""
    return (
        "no model type of transformers computes the same, so convert --to=huggingface will refuse this model "
        f"({obstacles(model)}); bert_jax.load opens it, and convert --to=bert_jax writes a directory to pass on"
    )


def _values(model: EncoderConfig, options: list[str]) -> str:
    values = flattened(to_dict(model))
    return " and ".join(f"model.{name}={values.get(name, getattr(model, name, 'none'))}" for name in options)
