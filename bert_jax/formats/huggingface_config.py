"""Conversion between the config.json of `transformers` and our configuration, with checks."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

from etils import epath

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.config.encoder_heads import HeadPooling
from bert_jax.errors import UserError
from bert_jax.files import read_object
from bert_jax.formats.model_types import model_type
from bert_jax.formats.model_types.bert_type import BERT
from bert_jax.formats.model_types.definition import HeadKind, ModelType, flag
from bert_jax.formats.safetensors_files import inside
from bert_jax.models.bert_parameters import POOLED

FILE = "config.json"
ACTIVATIONS: dict[str, Literal["gelu_erf", "gelu_tanh"]] = {
    "gelu": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclasses.dataclass(frozen=True)
class HuggingFaceConfig:
    """A config.json: the model, and what it says about a task head."""

    kind: ModelType
    model: ModelConfig
    architecture: str | None
    problem: str | None
    labels: tuple[str, ...]
    """Labels in the order of the columns; () if the file names none."""
    classifier_dropout: float
    tied: bool
    pooling: HeadPooling = "cls"
    """What a task head reads, if the model type leaves it open."""


def read_config(directory: epath.Path) -> HuggingFaceConfig:
    """Read config.json; raise a UserError if it is broken or describes a model that is not known here."""
    file = inside(directory, FILE)
    values = read_object(file)
    kind = model_type(values, file)
    for key, allowed in kind.unsupported.items():
        if values.get(key) not in allowed:
            raise UserError(
                f"{file} has {key}={values[key]!r:.60}, which a model of type {kind.name} does not have here; only "
                f"{allowed[-1]!r} is supported"
            )
    activation = values.get(kind.activation, kind.usual_activation)
    if activation not in tuple(ACTIVATIONS):
        raise UserError(f"{file} has {kind.activation}={activation!r:.40}; supported are {', '.join(ACTIVATIONS)}")
    sizes: dict[str, Any] = {o: _size(values.get(key, default), key, file) for key, (o, default) in kind.sizes.items()}
    rates: dict[str, Any] = {o: _rate(values.get(key, default), key, file) for key, (o, default) in kind.rates.items()}
    if sizes["hidden_size"] % sizes["num_heads"]:
        raise UserError(
            f"{file} has hidden_size={sizes['hidden_size']}, not divisible by num_attention_heads={sizes['num_heads']}"
        )
    dropout, pooling = values.get(kind.classifier_dropout), values.get("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise UserError(f"{file} has classifier_pooling={pooling!r:.40}; supported are cls, mean")
    architectures = values.get("architectures") or [None]
    return HuggingFaceConfig(
        kind=kind,
        model=ModelConfig(**sizes, **rates, activation=ACTIVATIONS[activation], **kind.read_options(values, file)),
        architecture=architectures[0] if isinstance(architectures, list) else None,
        problem=values.get("problem_type"),
        labels=_labels(values.get("id2label") or {}, file),
        pooling=pooling if kind.classifier_pooling else "cls",
        tied=flag(values, "tie_word_embeddings", True, file),
        classifier_dropout=_rate(
            rates["hidden_dropout"] if dropout is None else dropout, kind.classifier_dropout, file
        ),
    )


def _size(value: Any, key: str, file: epath.Path) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
        raise UserError(f"{file} has {key}={value!r:.40} where a positive whole number is expected")
    return value


def _rate(value: Any, key: str, file: epath.Path) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1:
        raise UserError(f"{file} has {key}={value!r:.40} where a number from 0 to 1 is expected")
    return float(value)


def _labels(names: Any, file: epath.Path) -> tuple[str, ...]:
    """Return the values of id2label in the order of its keys, which must be "0", "1", …"""
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise UserError(f"{file} has id2label={names!r:.80} where an object from numbers to names is expected")
    keys = [str(number) for number in range(len(names))]
    if sorted(names) != sorted(keys):
        raise UserError(
            f"{file}: the keys of id2label must be 0 to {len(names) - 1}, found {', '.join(sorted(names))[:80]}"
        )
    return tuple(names[key] for key in keys)


def read_head(
    config: HuggingFaceConfig, outputs: int, kinds: Sequence[HeadKind], pooled: bool, file: epath.Path
) -> HeadConfig:
    """Return the head of a fine-tuned model.

    Args:
      outputs: number of rows of its kernel.
      kinds: those of the model type whose kernel has this name.
      pooled: whether the file has a pooler, which tagging and question answering do not have.
    """
    named: list[HeadKind] = [kind for kind in kinds if config.kind.classes[kind] == config.architecture]
    fitting: list[HeadKind] = sorted(kinds, key=lambda kind: (kind in POOLED) != pooled)
    kind = (named or fitting)[0]
    if config.problem == "multi_label_classification":
        raise UserError(
            f"{file} has problem_type='multi_label_classification': heads here choose one label, not several"
        )
    if kind == "classification" and (config.problem == "regression" or (outputs == 1 and config.problem is None)):
        kind = "regression"
    labels = config.labels or tuple(f"LABEL_{number}" for number in range(outputs))
    head = HeadConfig(
        kind=kind,
        labels=labels if kind in ("classification", "tagging") else (),
        dropout=config.classifier_dropout,
        pooling=config.pooling if kind in POOLED else "cls",
    )
    if head.outputs != outputs:
        raise UserError(
            f"{file} describes a head for {kind} with {head.outputs} outputs"
            + (f" ({', '.join(labels)[:80]})" if head.labels else "")
            + f", but the weights have {outputs}"
        )
    return head


def to_json(
    model: ModelConfig, head: HeadConfig | None, architecture: str, pad_id: int, kind: ModelType = BERT
) -> dict[str, Any]:
    """Return the contents of a config.json that `transformers` reads as this model."""
    activation = {"gelu_erf": "gelu", "gelu_tanh": "gelu_new"}[model.activation]
    values = {
        "model_type": kind.name,
        "architectures": [architecture],
        "dtype": "float32",
        kind.activation: activation,
        "pad_token_id": pad_id,
        "tie_word_embeddings": True,
        "use_cache": True,
    }
    values |= {key: getattr(model, ours) for key, (ours, _) in {**kind.sizes, **kind.rates}.items()}
    values |= {key: model.feed_forward_size for key, (ours, _) in kind.sizes.items() if ours == "intermediate_size"}
    values |= kind.written_options(model)
    if head is not None and kind.classifier_pooling:
        values["classifier_pooling"] = head.pooling
    if head is not None:
        values[kind.classifier_dropout] = head.dropout
        if head.kind == "regression":
            values |= {"problem_type": "regression", "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
        elif head.labels:
            values |= {
                "id2label": {str(number): label for number, label in enumerate(head.labels)},
                "label2id": {label: number for number, label in enumerate(head.labels)},
            }
    if not math.isfinite(model.layer_norm_epsilon):
        raise ValueError(f"layer_norm_epsilon={model.layer_norm_epsilon}")
    return dict(sorted(values.items()))
