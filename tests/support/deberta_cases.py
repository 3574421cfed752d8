"""Small DeBERTas of both versions, their sizes and inputs, the same on both sides of a comparison."""

import numpy as np
from oracle_directory import LABELS, SCORE, of_class

_RELATIVE = dict(relative_attention=True, pos_att_type=["c2p", "p2c"], pad_token_id=0)
_SMALL = _RELATIVE | dict(
    vocab_size=37,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=11,
    max_position_embeddings=12,
    position_biased_input=False,
)
_OTHER = _RELATIVE | dict(  # with absolute positions and segments
    vocab_size=31,
    hidden_size=10,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=7,
    max_position_embeddings=14,
    type_vocab_size=2,
)
_LARGER = _RELATIVE | dict(
    vocab_size=61,
    hidden_size=30,
    num_hidden_layers=3,
    num_attention_heads=3,
    intermediate_size=23,
    max_position_embeddings=64,
    position_biased_input=False,
)
_PUBLISHED = _LARGER | dict(  # as versions 2 and 3 were published, in small
    max_relative_positions=12, position_buckets=6, share_att_key=True, norm_rel_ebd="layer_norm"
)
_FIRST, _THIRD = {"max_relative_positions": 4}, {"position_buckets": 4, "share_att_key": True}

CASES = {
    "first": {  # as version 1 was published, in small: rows beyond its distances, three heads of 10
        "class": "DebertaForMaskedLM",
        "config": _LARGER | {"max_relative_positions": 5},
        "length": 19,
        "real": (19, 11, 14),
    },
    "segments": {  # one term, absolute positions too, segments, another activation
        "class": "DebertaForSequenceClassification",
        "config": _RELATIVE
        | LABELS
        | dict(
            vocab_size=41,
            hidden_size=14,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=17,
            max_position_embeddings=16,
            pos_att_type=["c2p"],
            type_vocab_size=2,
            hidden_act="gelu_new",
            layer_norm_eps=1e-3,
        ),
        "length": 13,
        "real": (9, 13),
    },
    "tags": {
        "class": "DebertaForTokenClassification",
        "config": _RELATIVE
        | LABELS
        | dict(
            vocab_size=37,
            hidden_size=9,
            num_hidden_layers=1,
            num_attention_heads=3,
            intermediate_size=11,
            max_position_embeddings=12,
            pos_att_type=["p2c"],
            position_biased_input=False,
        ),
        "length": 7,
        "real": (7, 4),
    },
    "third": {  # as version 3 was published, in small: rows beyond its buckets, and the other names of the head
        "class": "DebertaV2ForMaskedLM",
        "config": _PUBLISHED | {"legacy": False},
        "length": 21,
        "real": (21, 12, 5),
    },
    "second": {  # every option otherwise, and an odd number of buckets
        "class": "DebertaV2ForSequenceClassification",
        "config": _RELATIVE
        | LABELS
        | dict(
            vocab_size=41,
            hidden_size=14,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=17,
            max_position_embeddings=32,
            position_buckets=7,
            type_vocab_size=3,
            pooler_hidden_act="tanh",
            position_biased_input=True,
        ),
        "length": 25,
        "real": (25, 17),
    },
    "answers": {
        "class": "DebertaV2ForQuestionAnswering",
        "config": _RELATIVE
        | dict(
            vocab_size=37,
            hidden_size=12,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=11,
            max_position_embeddings=9,
            pos_att_type=["p2c"],
            norm_rel_ebd="layer_norm",
            position_biased_input=False,
        ),
        "length": 9,
        "real": (9, 5),
    },
    "convolved": {  # as v2-xlarge was published, in small
        "class": "DebertaV2ForMaskedLM",
        "config": _PUBLISHED | {"conv_kernel_size": 3, "conv_act": "gelu"},
        "length": 21,
        "real": (21, 12, 2),
    },
    "convolved texts": of_class(  # wider than some texts, and the activation that a file without conv_act means
        "DebertaV2ForSequenceClassification", _OTHER | _THIRD | LABELS | {"conv_kernel_size": 7}, 9, 3, 7
    ),
    # with these every class has two shapes
    "states of the first": of_class("DebertaModel", _SMALL | _FIRST, 7, 4),
    "other states of the first": of_class("DebertaModel", _OTHER | _FIRST, 5, 9),
    "other words of the first": of_class("DebertaForMaskedLM", _OTHER | _FIRST, 9, 5),
    "other texts of the first": of_class("DebertaForSequenceClassification", _SMALL | _FIRST | LABELS, 7, 5),
    "score of the first": of_class("DebertaForSequenceClassification", _SMALL | _FIRST | SCORE, 7, 4),
    "other score of the first": of_class("DebertaForSequenceClassification", _OTHER | _FIRST | SCORE, 6, 9),
    "other tags of the first": of_class("DebertaForTokenClassification", _OTHER | _FIRST | LABELS, 9, 7),
    "answers of the first": of_class("DebertaForQuestionAnswering", _SMALL | _FIRST, 8, 5),
    "other answers of the first": of_class("DebertaForQuestionAnswering", _OTHER | _FIRST, 5, 7),
    "states": of_class("DebertaV2Model", _SMALL, 7, 4),
    "other states": of_class("DebertaV2Model", _OTHER | _THIRD, 6, 9),
    "other words": of_class("DebertaV2ForMaskedLM", _OTHER | _THIRD, 9, 5),
    "other texts": of_class("DebertaV2ForSequenceClassification", _SMALL | LABELS, 7, 5),
    "score": of_class("DebertaV2ForSequenceClassification", _SMALL | SCORE, 7, 4),
    "other score": of_class("DebertaV2ForSequenceClassification", _OTHER | _THIRD | SCORE, 5, 9),
    "tags of the second": of_class("DebertaV2ForTokenClassification", _SMALL | LABELS, 6, 8),
    "other tags": of_class("DebertaV2ForTokenClassification", _OTHER | _THIRD | LABELS, 9, 7),
    "other answers": of_class("DebertaV2ForQuestionAnswering", _OTHER | _THIRD, 7, 9),
    "choices": of_class("DebertaV2ForMultipleChoice", _SMALL, 7, 4, 5, 6, choices=2),
    "other choices": of_class("DebertaV2ForMultipleChoice", _OTHER | _THIRD, 5, 9, 4, 7, 8, 6, choices=3),
}
DECODED = "third"
"""The case of which there are also the states of the enhanced mask decoder."""


def absolute_positions(hidden_size: int) -> np.ndarray:
    """The decoder's table [64, H], float32."""
    return np.random.RandomState(5).standard_normal((64, hidden_size)).astype(np.float32)


def inputs(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """input_ids, token_type_ids and attention_mask, int64 [rows, length], with padding."""
    case, random = CASES[name], np.random.RandomState(2021)
    mask = np.arange(case["length"])[None, :] < np.array(case["real"])[:, None]
    ids = np.where(mask, random.randint(3, case["config"]["vocab_size"], mask.shape), 0)
    types = random.randint(0, max(1, case["config"].get("type_vocab_size", 0)), mask.shape) * mask
    return ids.astype(np.int64), types.astype(np.int64), mask.astype(np.int64)
