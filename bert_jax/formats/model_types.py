"""The model types of `transformers` that are read and written: what config.json says, and the names of the arrays.

A further one is a `ModelType` below and an entry of MODEL_TYPES; reading, writing, checks and messages follow from it.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from etils import epath

from bert_jax.config import ModelConfig
from bert_jax.errors import UserError
from bert_jax.formats import modernbert_options, smaller_encoders

HeadKind = Literal["classification", "regression", "choice", "span", "tagging"]

ENCODER = {
    "encoder/attention/query": "encoder.layer.{}.attention.self.query",
    "encoder/attention/key": "encoder.layer.{}.attention.self.key",
    "encoder/attention/value": "encoder.layer.{}.attention.self.value",
    "encoder/attention/output": "encoder.layer.{}.attention.output.dense",
    "encoder/attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "encoder/feed_forward/intermediate": "encoder.layer.{}.intermediate.dense",
    "encoder/feed_forward/output": "encoder.layer.{}.output.dense",
    "encoder/feed_forward_norm": "encoder.layer.{}.output.LayerNorm",
    "embeddings/word": "embeddings.word_embeddings",
    "embeddings/position": "embeddings.position_embeddings",
    "embeddings/token_type": "embeddings.token_type_embeddings",
    "embeddings/norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
}
"""BERT's names below the prefix, which RoBERTa kept."""
SIZES = {
    "vocab_size": ("vocab_size", 30_522),
    "hidden_size": ("hidden_size", 768),
    "num_hidden_layers": ("num_layers", 12),
    "num_attention_heads": ("num_heads", 12),
    "intermediate_size": ("intermediate_size", 3_072),
    "max_position_embeddings": ("max_position_embeddings", 512),
    "type_vocab_size": ("type_vocab_size", 2),
}
RATES = {
    "hidden_dropout_prob": ("hidden_dropout", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1),
    "layer_norm_eps": ("layer_norm_epsilon", 1e-12),
    "initializer_range": ("initializer_range", 0.02),
}
UNSUPPORTED = {
    "position_embedding_type": (None, "absolute"),
    "is_decoder": (None, False),
    "add_cross_attention": (None, False),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
    "embedding_size": (None,),
}


@dataclasses.dataclass(frozen=True)
class ModelType:
    """One value of `model_type` in config.json."""

    name: str
    prefix: str
    """Beginning of the names of the encoder's arrays, with a dot; those of a bare encoder lack it."""
    modules: Mapping[str, str]
    """Our modules → theirs, with {} for the layer."""
    heads: Mapping[HeadKind, Mapping[str, str]]
    """Kind of task head → the modules that have other names then, "head" always among them."""
    classes: Mapping[str, str]
    """Kind of task head, or "pretraining", "mlm", "pairs", "replaced_tokens" or "encoder" for models without one →
    their class."""
    decoder: str
    """Name of the output layer of the masked-language-model head: a second name of the word table and of a bias."""
    holds: Callable[[ModelConfig], bool]
    """Whether it computes what a model of this configuration does."""
    sizes: Mapping[str, tuple[str, int]] = dataclasses.field(default_factory=lambda: SIZES)
    """Key of config.json → field of ModelConfig, and what `transformers` takes where the key is absent."""
    rates: Mapping[str, tuple[str, float]] = dataclasses.field(default_factory=lambda: RATES)
    """The same for numbers from 0 to 1."""
    unsupported: Mapping[str, tuple] = dataclasses.field(default_factory=lambda: UNSUPPORTED)
    """Key → values that mean this model; with any other the directory is refused."""
    read_options: Callable[[dict[str, Any], epath.Path], dict[str, Any]] = lambda values, file: {}
    """Returns the further fields of ModelConfig, from the contents of config.json, the file."""
    written_options: Callable[[ModelConfig], dict[str, Any]] = lambda model: {}
    """Returns the further contents of config.json."""
    fused: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Last part of the name of a module there → number of modules of ours in it, which `modules` calls name:0, …"""
    activation: str = "hidden_act"
    """Key of the activation function in config.json."""
    usual_activation: str = "gelu"
    """What `transformers` takes where that key is absent."""
    classifier_dropout: str = "classifier_dropout"
    """Key of the dropout rate on the input of a task head."""
    classifier_pooling: bool = False
    """Whether config.json says what a task head reads: the first position or the mean."""

    @property
    def tied(self) -> dict[str, str]:
        """Second names of one array → the first."""
        return {
            f"{self.decoder}.weight": f"{self.modules['embeddings/word']}.weight",
            f"{self.decoder}.bias": f"{self.modules['mlm']}.bias",
        }

    @property
    def layer(self) -> re.Pattern[str]:
        """Matches the names of a layer's arrays; group 1 is its number."""
        before, _, _ = self.modules["encoder/attention/query"].partition("{}")
        return re.compile(rf"{re.escape(before)}(\d+)\.")


_TASKS: dict[HeadKind, str] = {
    "classification": "SequenceClassification",
    "regression": "SequenceClassification",
    "choice": "MultipleChoice",
    "span": "QuestionAnswering",
    "tagging": "TokenClassification",
}
_CLASSIFIER, _SPAN = {"head": "classifier"}, {"head": "qa_outputs"}
_HEADS: dict[HeadKind, dict[str, str]] = {**dict.fromkeys(_TASKS, _CLASSIFIER), "span": _SPAN}

BERT = ModelType(
    name="bert",
    prefix="bert.",
    modules={
        **{ours: f"bert.{theirs}" for ours, theirs in ENCODER.items()},
        "mlm/dense": "cls.predictions.transform.dense",
        "mlm/norm": "cls.predictions.transform.LayerNorm",
        "mlm": "cls.predictions",
        "next_sentence": "cls.seq_relationship",
    },
    heads=_HEADS,
    classes={
        **{kind: f"BertFor{theirs}" for kind, theirs in _TASKS.items()},
        "pretraining": "BertForPreTraining",
        "mlm": "BertForMaskedLM",
        "pairs": "BertForNextSentencePrediction",
        "encoder": "BertModel",
    },
    decoder="cls.predictions.decoder",
    holds=lambda model: model.padding_id is None and model.type_vocab_size > 0 and not model.beyond_bert,
    written_options=lambda model: {"position_embedding_type": "absolute"},
)


def _padding_id(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    found = values.get("pad_token_id", 1)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise UserError(f"{file} has pad_token_id={found!r:.40}, from which positions count; expected an id, as 1")
    return {"padding_id": found, "pair_head": False}


def _like_roberta(name: str, of_class: str) -> ModelType:
    """Return the type of RoBERTa's encoder and heads under another name, with classes of another prefix."""
    return ModelType(
        name=name,
        prefix="roberta.",
        modules={
            **{ours: f"roberta.{theirs}" for ours, theirs in ENCODER.items()},
            "mlm/dense": "lm_head.dense",
            "mlm/norm": "lm_head.layer_norm",
            "mlm": "lm_head",
        },
        heads=_HEADS
        | dict.fromkeys(  # a dense layer with tanh on the first token: our pooler
            ("classification", "regression"), {"pooler": "classifier.dense", "head": "classifier.out_proj"}
        ),
        classes={
            **{kind: f"{of_class}For{theirs}" for kind, theirs in _TASKS.items()},
            "mlm": f"{of_class}ForMaskedLM",
            "encoder": f"{of_class}Model",
        },
        decoder="lm_head.decoder",
        holds=lambda model: model.padding_id is not None and model.type_vocab_size > 0 and not model.beyond_bert,
        sizes=SIZES | {"vocab_size": ("vocab_size", 50_265)},
        read_options=_padding_id,
        written_options=lambda model: {
            "pad_token_id": model.padding_id,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "position_embedding_type": "absolute",
        },
    )


ROBERTA = _like_roberta("roberta", "Roberta")
XLM_ROBERTA = _like_roberta("xlm-roberta", "XLMRoberta")
CAMEMBERT = _like_roberta("camembert", "Camembert")

_MODERNBERT_HEAD = {"head/dense": "head.dense", "head/norm": "head.norm", "head": "classifier"}
MODERNBERT = ModelType(
    name="modernbert",
    prefix="model.",
    modules={
        "embeddings/word": "model.embeddings.tok_embeddings",
        "embeddings/norm": "model.embeddings.norm",
        "encoder/attention/query": "model.layers.{}.attn.Wqkv:0",
        "encoder/attention/key": "model.layers.{}.attn.Wqkv:1",
        "encoder/attention/value": "model.layers.{}.attn.Wqkv:2",
        "encoder/attention/output": "model.layers.{}.attn.Wo",
        "encoder/attention_norm": "model.layers.{}.attn_norm",
        "encoder/feed_forward/gate": "model.layers.{}.mlp.Wi:0",
        "encoder/feed_forward/intermediate": "model.layers.{}.mlp.Wi:1",
        "encoder/feed_forward/output": "model.layers.{}.mlp.Wo",
        "encoder/feed_forward_norm": "model.layers.{}.mlp_norm",
        "final_norm": "model.final_norm",
        "mlm/dense": "head.dense",
        "mlm/norm": "head.norm",
        "mlm": "decoder",
    },
    heads=dict.fromkeys(_TASKS, _MODERNBERT_HEAD),
    classes={
        **{kind: f"ModernBertFor{theirs}" for kind, theirs in _TASKS.items()},
        "mlm": "ModernBertForMaskedLM",
        "encoder": "ModernBertModel",
    },
    decoder="decoder",
    holds=modernbert_options.holds,
    sizes=modernbert_options.SIZES,
    rates=modernbert_options.RATES,
    unsupported=modernbert_options.UNSUPPORTED,
    read_options=modernbert_options.read,
    written_options=modernbert_options.written,
    fused={"Wqkv": 3, "Wi": 2},
    activation="hidden_activation",
    classifier_pooling=True,
)

_ALBERT_LAYER = "albert.encoder.albert_layer_groups.{}.albert_layers.0"
ALBERT = ModelType(
    name="albert",
    prefix="albert.",
    modules={
        **{ours: f"albert.{theirs}" for ours, theirs in ENCODER.items() if ours.startswith("embeddings/")},
        "embeddings/projection": "albert.encoder.embedding_hidden_mapping_in",
        **{f"encoder/attention/{name}": f"{_ALBERT_LAYER}.attention.{name}" for name in ("query", "key", "value")},
        "encoder/attention/output": f"{_ALBERT_LAYER}.attention.dense",
        "encoder/attention_norm": f"{_ALBERT_LAYER}.attention.LayerNorm",
        "encoder/feed_forward/intermediate": f"{_ALBERT_LAYER}.ffn",
        "encoder/feed_forward/output": f"{_ALBERT_LAYER}.ffn_output",
        "encoder/feed_forward_norm": f"{_ALBERT_LAYER}.full_layer_layer_norm",
        "pooler": "albert.pooler",
        "mlm/dense": "predictions.dense",
        "mlm/norm": "predictions.LayerNorm",
        "mlm": "predictions",
        "next_sentence": "sop_classifier.classifier",
    },
    heads=_HEADS,
    classes={
        **{kind: f"AlbertFor{theirs}" for kind, theirs in _TASKS.items()},
        "pretraining": "AlbertForPreTraining",
        "mlm": "AlbertForMaskedLM",
        "encoder": "AlbertModel",
    },
    decoder="predictions.decoder",
    holds=smaller_encoders.albert_holds,
    sizes=smaller_encoders.ALBERT_SIZES,
    rates=smaller_encoders.ALBERT_RATES,
    unsupported=smaller_encoders.ALBERT_UNSUPPORTED,
    read_options=smaller_encoders.read_albert,
    written_options=smaller_encoders.written_albert,
    usual_activation="gelu_new",
    classifier_dropout="classifier_dropout_prob",
)

_DISTILBERT_LAYER = "distilbert.transformer.layer.{}"
_PRE_CLASSIFIER = {"pooler": "pre_classifier", "head": "classifier"}
_DISTILBERT_HEADS: dict[HeadKind, dict[str, str]] = {
    "classification": _PRE_CLASSIFIER,
    "regression": _PRE_CLASSIFIER,
    "choice": _PRE_CLASSIFIER,
}
DISTILBERT = ModelType(
    name="distilbert",
    prefix="distilbert.",
    modules={
        "embeddings/word": "distilbert.embeddings.word_embeddings",
        "embeddings/position": "distilbert.embeddings.position_embeddings",
        "embeddings/norm": "distilbert.embeddings.LayerNorm",
        "encoder/attention/query": f"{_DISTILBERT_LAYER}.attention.q_lin",
        "encoder/attention/key": f"{_DISTILBERT_LAYER}.attention.k_lin",
        "encoder/attention/value": f"{_DISTILBERT_LAYER}.attention.v_lin",
        "encoder/attention/output": f"{_DISTILBERT_LAYER}.attention.out_lin",
        "encoder/attention_norm": f"{_DISTILBERT_LAYER}.sa_layer_norm",
        "encoder/feed_forward/intermediate": f"{_DISTILBERT_LAYER}.ffn.lin1",
        "encoder/feed_forward/output": f"{_DISTILBERT_LAYER}.ffn.lin2",
        "encoder/feed_forward_norm": f"{_DISTILBERT_LAYER}.output_layer_norm",
        "mlm/dense": "vocab_transform",
        "mlm/norm": "vocab_layer_norm",
        "mlm": "vocab_projector",
    },
    heads=_HEADS | _DISTILBERT_HEADS,
    classes={
        **{kind: f"DistilBertFor{theirs}" for kind, theirs in _TASKS.items()},
        "mlm": "DistilBertForMaskedLM",
        "encoder": "DistilBertModel",
    },
    decoder="vocab_projector",
    holds=smaller_encoders.distilbert_holds,
    sizes=smaller_encoders.DISTILBERT_SIZES,
    rates=smaller_encoders.DISTILBERT_RATES,
    unsupported=smaller_encoders.DISTILBERT_UNSUPPORTED,
    read_options=smaller_encoders.read_distilbert,
    activation="activation",
    classifier_dropout="seq_classif_dropout",
)

_ELECTRA_CLASSIFIER = {"pooler": "classifier.dense", "head": "classifier.out_proj"}
_ELECTRA_HEADS: dict[HeadKind, dict[str, str]] = {
    "classification": _ELECTRA_CLASSIFIER,
    "regression": _ELECTRA_CLASSIFIER,
    "choice": {"pooler": "sequence_summary.summary", "head": "classifier"},
}
ELECTRA = ModelType(
    name="electra",
    prefix="electra.",
    modules={
        **{ours: f"electra.{theirs}" for ours, theirs in ENCODER.items() if ours != "pooler"},
        "embeddings/projection": "electra.embeddings_project",
        "mlm/dense": "generator_predictions.dense",
        "mlm/norm": "generator_predictions.LayerNorm",
        "mlm": "generator_lm_head",
        "replaced_tokens/dense": "discriminator_predictions.dense",
        "replaced_tokens/output": "discriminator_predictions.dense_prediction",
    },
    heads=_HEADS | _ELECTRA_HEADS,
    classes={
        **{kind: f"ElectraFor{theirs}" for kind, theirs in _TASKS.items()},
        "mlm": "ElectraForMaskedLM",
        "replaced_tokens": "ElectraForPreTraining",
        "encoder": "ElectraModel",
    },
    decoder="generator_lm_head",
    holds=smaller_encoders.electra_holds,
    sizes=smaller_encoders.ELECTRA_SIZES,
    unsupported=smaller_encoders.ELECTRA_UNSUPPORTED,
    read_options=smaller_encoders.read_electra,
    written_options=smaller_encoders.written_electra,
)

MODEL_TYPES = {
    each.name: each for each in (BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, MODERNBERT, ALBERT, DISTILBERT, ELECTRA)
}
"""All that are known, by name; a model is written as the first that holds it."""


def model_type(values: dict[str, Any], file: epath.Path) -> ModelType:
    """Return the model type of the contents of a config.json; raise a UserError that names those that are known."""
    name = values.get("model_type", "bert")
    if not isinstance(name, str) or name not in MODEL_TYPES:
        raise UserError(
            f"{file} describes a model of type {name!r:.40}; the types that can be loaded are {', '.join(MODEL_TYPES)}"
        )
    return MODEL_TYPES[name]


def type_to_write(model: ModelConfig) -> ModelType | None:
    """Return the model type of `transformers` that computes what `model` does; None if there is none."""
    return next((each for each in MODEL_TYPES.values() if each.holds(model)), None)
