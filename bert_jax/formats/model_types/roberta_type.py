"""RoBERTa, XLM-RoBERTa and CamemBERT."""

from typing import Any

from etils import epath

from bert_jax.config import ModelConfig
from bert_jax.errors import UserError
from bert_jax.formats.model_types.bert_type import ENCODER
from bert_jax.formats.model_types.definition import (
    HEADS,
    SIZES,
    TASKS,
    UNSUPPORTED,
    ModelType,
    beyond_bert,
    true_options,
)

_UNSUPPORTED = UNSUPPORTED | {"hidden_act": (None, "gelu")}  # that of the word head, whatever config.json says


def _obstacles(model: ModelConfig) -> tuple[str, ...]:
    """Return the options whose values RoBERTa does not have."""
    return beyond_bert(model, "padding_id") + true_options(
        padding_id=model.padding_id is None,
        type_vocab_size=model.type_vocab_size == 0,
        activation=model.activation != "gelu_erf",
    )


def _padding_id(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    found = values.get("pad_token_id", 1)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise UserError(
            f"{file} has pad_token_id={found!r:.40}, from which positions are counted; expected an id, such as 1"
        )
    return {"padding_id": found, "pair_head": False}


def _like_roberta(name: str, family: str, of_class: str) -> ModelType:
    """Return the type of RoBERTa's encoder and heads under another name, with classes of another prefix."""
    return ModelType(
        name=name,
        family=family,
        prefix="roberta.",
        modules={
            **{ours: f"roberta.{theirs}" for ours, theirs in ENCODER.items()},
            "mlm/dense": "lm_head.dense",
            "mlm/norm": "lm_head.layer_norm",
            "mlm": "lm_head",
        },
        heads=HEADS
        | dict.fromkeys(  # a dense layer with tanh on the first token: our pooler
            ("classification", "regression"), {"pooler": "classifier.dense", "head": "classifier.out_proj"}
        ),
        classes={
            **{kind: f"{of_class}For{theirs}" for kind, theirs in TASKS.items()},
            "mlm": f"{of_class}ForMaskedLM",
            "encoder": f"{of_class}Model",
        },
        decoder="lm_head.decoder",
        obstacles=_obstacles,
        sizes=SIZES | {"vocab_size": ("vocab_size", 50_265)},
        unsupported=_UNSUPPORTED,
        read_options=_padding_id,
        written_options=lambda model: {
            "pad_token_id": model.padding_id,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "position_embedding_type": "absolute",
        },
    )


ROBERTA = _like_roberta("roberta", "RoBERTa", "Roberta")
XLM_ROBERTA = _like_roberta("xlm-roberta", "XLM-RoBERTa", "XLMRoberta")
CAMEMBERT = _like_roberta("camembert", "CamemBERT", "Camembert")
