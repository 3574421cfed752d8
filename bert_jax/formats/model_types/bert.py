"""BERT and types that keep most of its array names: RoBERTa and its like, MPNet, ALBERT, DistilBERT, ELECTRA.

ALBERT has one set of parameters for all layers, and narrow embeddings. DistilBERT has neither segments nor a pooler.
ELECTRA is the discriminator, with the generator's head if a file includes it. MPNet is a RoBERTa without segments whose
scores have a learned bias by distance.
"""

import dataclasses
from typing import Any

from etils import epath

from bert_jax.config import EncoderConfig, LearnedBias, WordVectorsConfig
from bert_jax.config.options import to_dict
from bert_jax.errors import UserError
from bert_jax.formats.model_types import definition

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
"""BERT's names below the prefix, which RoBERTa and ELECTRA kept."""


def as_in_bert(prefix: str, *left_out: str) -> dict[str, str]:
    """Return BERT's names below a prefix, without those of our modules that begin with one of `left_out`."""
    return {ours: f"{prefix}{theirs}" for ours, theirs in ENCODER.items() if not ours.startswith(left_out)}


BERT = definition.ModelType(
    name="bert",
    family="BERT",
    prefix="bert.",
    modules={
        **as_in_bert("bert."),
        **definition.MLM_HEAD,
        "next_sentence": "cls.seq_relationship",
    },
    heads=definition.HEADS,
    class_name="Bert",
    other_classes={
        "pretraining": "BertForPreTraining",
        "mlm": "BertForMaskedLM",
        "pairs": "BertForNextSentencePrediction",
    },
    decoder="cls.predictions.decoder",
    obstacles=lambda model: (
        definition.beyond_bert(model) + definition.true_options(type_vocab_size=model.type_vocab_size == 0)
    ),
    written_options=lambda model: {"position_embedding_type": "absolute"},
)


_ALBERT_SIZES = {
    **definition.usual(
        definition.SIZES, vocab_size=30_000, hidden_size=4_096, num_attention_heads=64, intermediate_size=16_384
    ),
    "embedding_size": ("embedding_size", 128),
}
_ALBERT_UNSUPPORTED = {
    "position_embedding_type": (None, "absolute"),
    "quantization_config": (None,),
    "is_decoder": (None, False),
}


def _albert_obstacles(model: EncoderConfig) -> tuple[str, ...]:
    own = ("embedding_size", "sharing", "layer_groups", "group_layers")
    return definition.beyond_bert(model, *own) + definition.true_options(
        embedding_size=model.embedding_size is None,
        sharing=model.sharing not in ("all", "none"),
        type_vocab_size=model.type_vocab_size == 0,
    )


def _albert_read(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    """Return which parameters the layers share; num_hidden_layers counts the rounds of a group's layers."""
    rounds, groups, inner = (
        definition.whole(values, key, usual, file)
        for key, usual in (("num_hidden_layers", 12), ("num_hidden_groups", 1), ("inner_group_num", 1))
    )
    if groups > rounds:
        raise UserError(f"{file} has num_hidden_groups={groups}, more than num_hidden_layers={rounds}")
    if groups == rounds and inner == 1:
        return {"sharing": "none"}
    return {"sharing": "all", "num_layers": rounds * inner, "layer_groups": groups, "group_layers": inner}


def _albert_written(model: EncoderConfig) -> dict[str, Any]:
    assert not isinstance(model, WordVectorsConfig)  # or there would be an obstacle
    groups = model.layer_groups if model.sharing == "all" else model.num_layers
    rounds = model.num_layers // model.group_layers
    return {"num_hidden_layers": rounds, "num_hidden_groups": groups, "inner_group_num": model.group_layers}


_ALBERT_LAYER = "albert.encoder.albert_layer_groups.{}.albert_layers.{}"
ALBERT = definition.ModelType(
    name="albert",
    family="ALBERT",
    prefix="albert.",
    modules={
        **as_in_bert("albert.", "encoder/", "pooler"),
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
    heads=definition.HEADS,
    class_name="Albert",
    other_classes={"pretraining": "AlbertForPreTraining"},
    decoder="predictions.decoder",
    obstacles=_albert_obstacles,
    sizes=_ALBERT_SIZES,
    rates=definition.usual(definition.RATES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    unsupported=_ALBERT_UNSUPPORTED,
    read_options=_albert_read,
    written_options=_albert_written,
    usual_activation="gelu_new",
    classifier_dropout="classifier_dropout_prob",
    part_names=definition.PART_NAMES | {"next_sentence": "sentence-order head"},
)


_DISTILBERT_SIZES = {
    "vocab_size": ("vocab_size", 30_522),
    "dim": ("hidden_size", 768),
    "n_layers": ("num_layers", 6),
    "n_heads": ("num_heads", 12),
    "hidden_dim": ("intermediate_size", 3_072),
    "max_position_embeddings": ("max_position_embeddings", 512),
}
_DISTILBERT_RATES = {
    "dropout": ("hidden_dropout", 0.1),
    "attention_dropout": ("attention_dropout", 0.1),
    "initializer_range": ("initializer_range", 0.02),
}
_EPSILON = 1e-12  # of its norms; config.json does not say it
_DISTILBERT_UNSUPPORTED = {"quantization_config": (None,)}


def _distilbert_obstacles(model: EncoderConfig) -> tuple[str, ...]:
    return definition.beyond_bert(model, "pooler") + definition.true_options(
        type_vocab_size=model.type_vocab_size > 0,
        pooler=model.pooler != "relu",
        layer_norm_epsilon=model.layer_norm_epsilon != _EPSILON,
    )


_DISTILBERT_FORM = {"type_vocab_size": 0, "pair_head": False, "pooler": "relu", "layer_norm_epsilon": _EPSILON}
_DISTILBERT_LAYER = "distilbert.transformer.layer.{}"
_PRE_CLASSIFIER = {"pooler": "pre_classifier", "head": "classifier"}
DISTILBERT = definition.ModelType(
    name="distilbert",
    family="DistilBERT",
    prefix="distilbert.",
    modules={
        **as_in_bert("distilbert.", "encoder/", "pooler", "embeddings/token_type"),
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
    heads=definition.HEADS | dict.fromkeys((*definition.OF_TEXTS, "choice"), _PRE_CLASSIFIER),
    class_name="DistilBert",
    decoder="vocab_projector",
    obstacles=_distilbert_obstacles,
    sizes=_DISTILBERT_SIZES,
    rates=_DISTILBERT_RATES,
    unsupported=_DISTILBERT_UNSUPPORTED,
    read_options=lambda values, file: _DISTILBERT_FORM,
    activation="activation",
    classifier_dropout="seq_classif_dropout",
)


_ELECTRA_UNSUPPORTED = {
    "position_embedding_type": (None, "absolute"),
    "quantization_config": (None,),
    "is_decoder": (None, False),
    "hidden_act": (None, "gelu_python", "gelu"),  # that of the generator's head, whatever config.json says
    "summary_type": (None, "first"),
    "summary_use_proj": (None, True),
    "summary_activation": (None, "gelu"),
}


def _electra_obstacles(model: EncoderConfig) -> tuple[str, ...]:
    return definition.beyond_bert(model, "embedding_size", "pooler") + definition.true_options(
        embedding_size=model.embedding_size == model.hidden_size,
        pooler=model.pooler != "gelu_erf",
        activation=model.activation != "gelu_erf",
        type_vocab_size=model.type_vocab_size == 0,
    )


def _electra_read(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    """Return the width of the embeddings, which have a map only where it is not that of the layers."""
    width = definition.whole(values, "embedding_size", 128, file)
    narrow = width != values.get("hidden_size", 256)
    return {"embedding_size": width if narrow else None, "pooler": "gelu_erf", "pair_head": False}


_DENSE_FIRST: dict[definition.HeadKind, dict[str, str]] = dict.fromkeys(
    definition.OF_TEXTS, {"pooler": "classifier.dense", "head": "classifier.out_proj"}
)
"""Heads of which the first layer, on the first token, is our pooler."""
ELECTRA = definition.ModelType(
    name="electra",
    family="ELECTRA",
    prefix="electra.",
    modules={
        **as_in_bert("electra.", "pooler"),
        "embeddings/projection": "electra.embeddings_project",
        "mlm/dense": "generator_predictions.dense",
        "mlm/norm": "generator_predictions.LayerNorm",
        "mlm": "generator_lm_head",
        "replaced_tokens/dense": "discriminator_predictions.dense",
        "replaced_tokens/output": "discriminator_predictions.dense_prediction",
    },
    heads={**definition.HEADS, **_DENSE_FIRST, "choice": {"pooler": "sequence_summary.summary", "head": "classifier"}},
    class_name="Electra",
    other_classes={"mlm": "ElectraForMaskedLM", "replaced_tokens": "ElectraForPreTraining"},
    decoder="generator_lm_head",
    obstacles=_electra_obstacles,
    sizes=definition.usual(definition.SIZES, hidden_size=256, num_attention_heads=4, intermediate_size=1_024),
    unsupported=_ELECTRA_UNSUPPORTED,
    read_options=_electra_read,
    written_options=lambda model: {
        "embedding_size": model.word_size,
        "summary_type": "first",
        "summary_activation": "gelu",
    },
)


# That of the word head, whatever config.json says.
_ROBERTA_UNSUPPORTED = definition.UNSUPPORTED | {"hidden_act": (None, "gelu_python", "gelu")}


def _roberta_obstacles(model: EncoderConfig) -> tuple[str, ...]:
    return definition.beyond_bert(model, "padding_id") + definition.true_options(
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


def _like_roberta(name: str, family: str, class_name: str) -> definition.ModelType:
    """Return the type of RoBERTa's encoder and heads under another name, with classes of another prefix."""
    return definition.ModelType(
        name=name,
        family=family,
        prefix="roberta.",
        modules={
            **as_in_bert("roberta."),
            "mlm/dense": "lm_head.dense",
            "mlm/norm": "lm_head.layer_norm",
            "mlm": "lm_head",
        },
        heads=definition.HEADS | _DENSE_FIRST,
        class_name=class_name,
        decoder="lm_head.decoder",
        obstacles=_roberta_obstacles,
        sizes=definition.usual(definition.SIZES, vocab_size=50_265),
        unsupported=_ROBERTA_UNSUPPORTED,
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


# What its class has whatever config.json says: exact GELU in the word head, the buckets, and the id of the padding.
_MPNET_UNSUPPORTED = {
    "quantization_config": (None,),
    "hidden_act": (None, "gelu_python", "gelu"),
    "relative_attention_num_buckets": (None, 32),
    "pad_token_id": (None, 1),
}
_MPNET_POSITIONS = LearnedBias(padding_id=1, bias_buckets=32, bias_max_distance=128)
_MPNET_FORM = {"type_vocab_size": 0, "pair_head": False, **to_dict(_MPNET_POSITIONS)}


def _mpnet_obstacles(model: EncoderConfig) -> tuple[str, ...]:
    ours, theirs = (to_dict(bias) for bias in (model.relative_bias or LearnedBias(), _MPNET_POSITIONS))
    return definition.beyond_bert(model, "padding_id", "positions") + definition.true_options(
        positions=model.relative_bias is None,
        padding_id=model.padding_id != 1,
        type_vocab_size=model.type_vocab_size > 0,
        activation=model.activation != "gelu_erf",
        **{name: ours[name] != theirs[name] for name in ("bias_buckets", "bias_max_distance")},
    )


_MPNET_LAYER = "mpnet.encoder.layer.{}.attention"
MPNET = dataclasses.replace(
    ROBERTA,
    name="mpnet",
    family="MPNet",
    prefix="mpnet.",
    modules={
        **as_in_bert("mpnet.", "embeddings/token_type"),
        **{
            f"encoder/attention/{name}": f"{_MPNET_LAYER}.attn.{name[0]}"
            for name in ("query", "key", "value", "output")
        },
        "encoder/attention_norm": f"{_MPNET_LAYER}.LayerNorm",
        "encoder/relative_bias": "mpnet.encoder.relative_attention_bias",
        "mlm/dense": "lm_head.dense",
        "mlm/norm": "lm_head.layer_norm",
        "mlm": "lm_head",
    },
    class_name="MPNet",
    obstacles=_mpnet_obstacles,
    sizes=definition.usual(definition.SIZES_WITHOUT_TYPES, vocab_size=30_527),
    unsupported=_MPNET_UNSUPPORTED,
    read_options=lambda values, file: _MPNET_FORM,
    written_options=lambda model: {
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "relative_attention_num_buckets": 32,
    },
)
