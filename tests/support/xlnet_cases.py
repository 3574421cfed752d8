"""Small XLNets, their sizes and their inputs, the same on both sides of a comparison with transformers."""

import numpy as np
from oracle_directory import LABELS, SCORE, of_class

_ODD = dict(vocab_size=61, d_model=30, n_layer=3, n_head=3, d_inner=23)
_EVEN = dict(vocab_size=41, d_model=12, n_layer=2, n_head=2, d_inner=9, ff_activation="gelu_new", layer_norm_eps=1e-3)
_SMALL = dict(vocab_size=31, d_model=14, n_layer=1, n_head=2, d_inner=11)

CASES = {
    "orders": {  # both streams, an odd length
        "class": "XLNetLMHeadModel",
        "config": _ODD,
        "length": 13,
        "real": (13, 8, 11),
        "targets": ((2, 3, 9), (4, 1, 6), (0, 10, 5)),
    },
    "words": of_class("XLNetLMHeadModel", _EVEN, 7, 10),
    "states": of_class("XLNetModel", _EVEN, 7, 4),
    "other states": of_class("XLNetModel", _SMALL, 5, 9, side="left"),
    "texts": of_class("XLNetForSequenceClassification", _ODD | LABELS, 11, 5, 8, side="left"),
    "other texts": of_class("XLNetForSequenceClassification", _SMALL | LABELS, 6, 9, side="left"),
    "score": of_class("XLNetForSequenceClassification", _EVEN | SCORE, 7, 4, side="left"),
    "other score": of_class("XLNetForSequenceClassification", _SMALL | SCORE, 5, 9, side="left"),
    "tags": of_class("XLNetForTokenClassification", _EVEN | LABELS, 9, 5),
    "other tags": of_class("XLNetForTokenClassification", _SMALL | LABELS, 7, 9, side="left"),
    "answers": of_class("XLNetForQuestionAnsweringSimple", _EVEN, 6, 8),
    "other answers": of_class("XLNetForQuestionAnsweringSimple", _SMALL, 9, 4),
    "choices": of_class("XLNetForMultipleChoice", _EVEN, 7, 4, 5, 6, side="left", choices=2),
    "other choices": of_class("XLNetForMultipleChoice", _SMALL, 5, 9, 4, 7, 8, 6, side="left", choices=3),
}
MEMORY = {  # of some cases: lengths of the segments before that of `inputs`, mem_len and reuse_len
    "orders": {"before": (6,), "mem_len": None, "reuse_len": None},
    "words": {"before": (7, 5), "mem_len": 9, "reuse_len": 4},
}


def inputs(name: str) -> dict[str, np.ndarray]:
    """input_ids, token_type_ids and attention_mask, int64 [rows, length], with padding on the side of the case.

    Where targets are predicted also targets [rows, M], order [rows, length] and what follows of it, written out:
    perm_mask [rows, length, length], 1 where the row's token must not see the column's, and target_mapping.
    """
    case, random = CASES[name], np.random.RandomState(2024)
    length, real = case["length"], np.array(case["real"])
    column = np.arange(length)[None, :]
    left = case.get("side") == "left"
    mask = column >= length - real[:, None] if left else column < real[:, None]
    ids = np.where(mask, random.randint(3, case["config"]["vocab_size"], mask.shape), 0)
    types = np.where(mask, np.where(column == length - 1, 2, column >= 4), 3)
    found = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    if targets := case.get("targets"):
        order = np.zeros_like(ids)
        for row, places in enumerate(targets):
            order[row, list(places)] = 1 + np.arange(len(places))  # in the order in which they are given
        order[0, 7] = 5  # one that is not predicted and has its place after all targets
        hidden, mapping = np.zeros((*ids.shape, length)), np.zeros((len(ids), len(targets[0]), length))
        for row in range(len(ids)):
            for i in range(length):
                for j in range(length):
                    # transformers lets every token see itself in the content stream, whatever this says
                    hidden[row, i, j] = order[row, j] >= order[row, i] > 0 or order[row, j] > order[row, i] == 0
            mapping[row, np.arange(len(targets[row])), targets[row]] = 1
        found |= {"order": order, "targets": np.array(targets), "perm_mask": hidden, "target_mapping": mapping}
    return {key: value.astype(np.float32 if value.ndim == 3 else np.int64) for key, value in found.items()}


def segments(name: str) -> list[dict[str, np.ndarray]]:
    """The inputs of consecutive segments without padding, of two kinds of tokens, and `inputs`, the last segment."""
    case, random, last = CASES[name], np.random.RandomState(77), inputs(name)
    rows, found = len(last["input_ids"]), []
    for length in MEMORY[name]["before"]:
        ids = random.randint(3, case["config"]["vocab_size"], (rows, length))
        types = np.tile(np.arange(length) % 2, (rows, 1))
        found.append({"input_ids": ids, "token_type_ids": types, "attention_mask": np.ones_like(ids)})
    return [*found, last]
