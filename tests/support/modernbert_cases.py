"""Small ModernBERTs, their sizes and their inputs, the same on both sides of a comparison with transformers."""

import numpy as np
from oracle_directory import LABELS, SCORE, of_class

_IDS = dict(pad_token_id=0, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2)
_SMALL = _IDS | dict(
    vocab_size=41,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=9,
    local_attention=4,
    max_position_embeddings=16,
)
_OTHER = _IDS | dict(
    vocab_size=31,
    hidden_size=10,
    num_hidden_layers=3,
    num_attention_heads=1,
    intermediate_size=7,
    local_attention=2,
    max_position_embeddings=16,
    global_attn_every_n_layers=2,
    norm_bias=True,
)

CASES = {
    "words": {  # as published, in small: rows beyond the window, both kinds of layers, heads of 10
        "class": "ModernBertForMaskedLM",
        "config": _IDS
        | dict(
            vocab_size=61,
            hidden_size=30,
            num_hidden_layers=5,
            num_attention_heads=3,
            intermediate_size=23,
            local_attention=6,
            max_position_embeddings=64,
        ),
        "length": 19,
        "real": (19, 11, 14),
    },
    "mean": {  # every option otherwise
        "class": "ModernBertForSequenceClassification",
        "config": _IDS
        | LABELS
        | dict(
            vocab_size=53,
            hidden_size=24,
            num_hidden_layers=7,
            num_attention_heads=2,
            intermediate_size=17,
            local_attention=5,
            max_position_embeddings=40,
            layer_types=["full_attention", "sliding_attention"] * 3 + ["full_attention"],
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 2.5, "rope_theta": 5_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
            norm_bias=True,
            attention_bias=True,
            mlp_bias=True,
            classifier_bias=True,
            hidden_activation="gelu_pytorch_tanh",
            classifier_activation="gelu_pytorch_tanh",
            classifier_pooling="mean",
            norm_eps=1e-3,
        ),
        "length": 17,
        "real": (9, 17),
    },
    "first": {
        "class": "ModernBertForSequenceClassification",
        "config": _IDS
        | LABELS
        | dict(
            vocab_size=41,
            hidden_size=12,
            num_hidden_layers=2,
            num_attention_heads=1,
            intermediate_size=9,
            local_attention=2,
            max_position_embeddings=16,
        ),
        "length": 7,
        "real": (7, 4),
    },
    # with these every class has two shapes
    "states": of_class("ModernBertModel", _SMALL, 7, 4),
    "other states": of_class("ModernBertModel", _OTHER, 5, 9),
    "other words": of_class("ModernBertForMaskedLM", _OTHER, 9, 6),
    "tags": of_class("ModernBertForTokenClassification", _SMALL | LABELS, 9, 5),
    "other tags": of_class("ModernBertForTokenClassification", _OTHER | LABELS, 7, 9),
    "answers": of_class("ModernBertForQuestionAnswering", _SMALL, 6, 8),
    "other answers": of_class("ModernBertForQuestionAnswering", _OTHER, 9, 4),
    "choices": of_class("ModernBertForMultipleChoice", _SMALL, 7, 4, 5, 6, choices=2),
    "other choices": of_class("ModernBertForMultipleChoice", _OTHER, 5, 9, 4, 7, 8, 6, choices=3),
    "score": of_class("ModernBertForSequenceClassification", _SMALL | SCORE, 7, 4),
    "other score": of_class("ModernBertForSequenceClassification", _OTHER | SCORE, 5, 9),
}


def inputs(name: str) -> tuple[np.ndarray, np.ndarray]:
    """input_ids and attention_mask, int64 [rows, length], with padding."""
    case, random = CASES[name], np.random.RandomState(2024)
    mask = np.arange(case["length"])[None, :] < np.array(case["real"])[:, None]
    ids = np.where(mask, random.randint(3, case["config"]["vocab_size"], mask.shape), 0)
    return ids.astype(np.int64), mask.astype(np.int64)
