"""Models of every form, with every part and head: what the table of parameters must describe."""

import dataclasses

import jax
from model_variants import variant

from bert_jax.config import Config, DisentangledConfig, GeneratorConfig, HeadConfig, ModelConfig, ReplacedTokens
from bert_jax.config.objective import EmbeddingSharing
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import pretraining_parts
from bert_jax.pretraining import default_objective

SMALL = ModelConfig(vocab_size=61, hidden_size=24, num_layers=4, num_heads=3, max_position_embeddings=20)
MODELS = {
    "default": SMALL,
    "pre": dataclasses.replace(SMALL, norm_position="pre"),
    "padded": dataclasses.replace(SMALL, vocab_pad_multiple=16),
    "wide": dataclasses.replace(SMALL, intermediate_size=40, type_vocab_size=3),
    "one layer, one head": dataclasses.replace(SMALL, num_layers=1, num_heads=1),
    "narrow": dataclasses.replace(SMALL, embedding_size=8, sharing="all", pooler="gelu_erf"),
    "narrow as wide": dataclasses.replace(SMALL, embedding_size=24, sharing="attention"),
    "no segments": dataclasses.replace(
        SMALL, type_vocab_size=0, sharing="feed_forward", pair_head=False, pooler="relu"
    ),
    "sinusoidal": variant(dataclasses.replace(SMALL, activation="gelu_erf"), position_init="sinusoidal"),
    "modern": variant(
        dataclasses.replace(SMALL, norm_position="pre", feed_forward="geglu", task_transform=True, type_vocab_size=0),
        **{
            "norm_bias": False,
            "use_bias": False,
            "first_attention_norm": False,
            "positions": "rope",
            "local_window": 3,
        },
    ),
    "groups of layers": variant(SMALL, sharing="all", layer_groups=2, group_layers=2, positions="learned_bias"),
    "one layer without its first norm": dataclasses.replace(
        SMALL, num_layers=1, norm_position="pre", first_attention_norm=False
    ),
    "root mean square": variant(
        dataclasses.replace(SMALL, norm="rms_norm", feed_forward="swiglu", task_transform=True), positions="alibi"
    ),
    "left to right": variant(dataclasses.replace(SMALL, direction="left_to_right"), padding_id=1),
    "recurrent": variant(
        dataclasses.replace(SMALL, type_vocab_size=0, embedding_size=8), layer="lstm", positions="none"
    ),
    "recurrent, one direction": variant(
        dataclasses.replace(SMALL, direction="left_to_right", sharing="all"), layer="lstm"
    ),
    "no layers": variant(SMALL, layer="none"),
    "xlnet": variant(dataclasses.replace(SMALL, type_vocab_size=0, activation="gelu_erf"), positions="xlnet"),
    "disentangled": variant(
        dataclasses.replace(SMALL, disentangled=DisentangledConfig(terms="c2p+p2c", max_distance=7, key_bias=False)),
        positions="none",
    ),
    "convolution": variant(SMALL, convolution_width=3),
    "disentangled, one map, convolution": variant(
        dataclasses.replace(
            SMALL,
            sharing="attention",
            disentangled=DisentangledConfig(
                terms="c2p", max_distance=9, buckets=4, shared_projections=True, table_norm=True
            ),
        ),
        convolution_width=5,
    ),
}


def detection(embeddings: EmbeddingSharing) -> Config:
    """A run of replaced-token detection whose generator shares its embeddings like this."""
    objective = ReplacedTokens(mask_decoder=True, generator=GeneratorConfig(embeddings=embeddings))
    return Config(model=MODELS["disentangled"], objective=objective)


LABELS = ("O", "B-X", "I-X")
FEATURES = (
    *("embeddings", "last", "second_to_last", "sum_last_four", "concat_last_four"),
    *("weighted_last_four", "weighted_all"),
)
HEADS = {
    "classification": HeadConfig(labels=LABELS),
    "regression": HeadConfig(kind="regression"),
    "span": HeadConfig(kind="span"),
    "choice": HeadConfig(kind="choice"),
    "tagging": HeadConfig(kind="tagging", labels=LABELS),
    "tagging, CRF": HeadConfig(kind="tagging", labels=LABELS, crf=True),
    **{
        f"{features}, CRF={crf}": HeadConfig(kind="tagging", labels=LABELS, crf=crf, features=features, lstm_size=5)
        for features in FEATURES
        for crf in (False, True)
    },
    **{
        f"{kind} on frozen layers": HeadConfig(
            kind=kind, labels=LABELS * (kind == "classification"), features="weighted_with_embeddings", lstm_size=5
        )
        for kind in ("classification", "regression", "span", "choice")
    },
}


def trained(config: Config):
    """The model that `pretrain` trains."""
    parts = pretraining_parts(config.model, config.objective)
    return default_objective(BertForPreTraining(config.model, parts=parts), config).model


def shapes(model) -> dict:
    return jax.eval_shape(model.init, jax.random.key(0))
