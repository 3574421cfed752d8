"""Randomly initialised RoBERTas and their inputs, drawn by NumPy alone: the same on both sides of a comparison.

The names and shapes of `transformers` stand here a second time, apart from the product's table.
"""

import numpy as np
from drawn_values import value

SIZES = {  # as config.json has them
    "odd": dict(
        vocab_size=53,
        hidden_size=15,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=23,
        max_position_embeddings=16,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        pad_token_id=1,
    ),
    "segments": dict(
        vocab_size=61,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=21,
        max_position_embeddings=17,
        type_vocab_size=2,
        layer_norm_eps=1e-5,
        pad_token_id=3,
    ),
}
LABELS = 3
PARTS = {  # class, or Regression: its parts beside the encoder
    "RobertaModel": ("pooler",),
    "RobertaForMaskedLM": ("lm_head",),
    "RobertaForSequenceClassification": ("classifier.dense", "classifier.out_proj"),
    "RobertaForTokenClassification": ("classifier",),
    "RobertaForQuestionAnswering": ("qa_outputs",),
    "RobertaForMultipleChoice": ("pooler", "classifier"),
    "Regression": ("classifier.dense", "classifier.out_proj"),
}


def class_name(name: str) -> str:
    return "RobertaForSequenceClassification" if name == "Regression" else name


def config_json(size: str, name: str = "RobertaForMaskedLM") -> dict:
    labels = {} if "Classification" not in name else {"id2label": {str(i): f"LABEL_{i}" for i in range(LABELS)}}
    if name == "Regression":
        labels = {"id2label": {"0": "LABEL_0"}, "problem_type": "regression"}
    return {"model_type": "roberta", "architectures": [class_name(name)], "hidden_act": "gelu", **SIZES[size], **labels}


def shapes(size: str, name: str) -> dict[str, tuple[int, ...]]:
    """Name → shape of every array that a file of this class has; tied ones once."""
    config = SIZES[size]
    hidden, wide, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    found = {
        "roberta.embeddings.word_embeddings.weight": (vocab, hidden),
        "roberta.embeddings.position_embeddings.weight": (config["max_position_embeddings"], hidden),
        "roberta.embeddings.token_type_embeddings.weight": (config["type_vocab_size"], hidden),
        **_both("roberta.embeddings.LayerNorm", (hidden,)),
    }
    for layer in range(config["num_hidden_layers"]):
        below = f"roberta.encoder.layer.{layer}"
        for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            found |= _both(f"{below}.{part}", (hidden, hidden))
        found |= _both(f"{below}.intermediate.dense", (wide, hidden)) | _both(f"{below}.output.dense", (hidden, wide))
        found |= _both(f"{below}.attention.output.LayerNorm", (hidden,)) | _both(f"{below}.output.LayerNorm", (hidden,))
    outputs = {"RobertaForQuestionAnswering": 2, "RobertaForMultipleChoice": 1, "Regression": 1}.get(name, LABELS)
    of_parts = {
        "pooler": _both("roberta.pooler.dense", (hidden, hidden)),
        "lm_head": {
            **_both("lm_head.dense", (hidden, hidden)),
            **_both("lm_head.layer_norm", (hidden,)),
            "lm_head.bias": (vocab,),
        },
        "classifier.dense": _both("classifier.dense", (hidden, hidden)),
        "classifier.out_proj": _both("classifier.out_proj", (outputs, hidden)),
        "classifier": _both("classifier", (outputs, hidden)),
        "qa_outputs": _both("qa_outputs", (outputs, hidden)),
    }
    for part in PARTS[name]:
        found |= of_parts[part]
    return found


def _both(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def state(size: str, name: str) -> dict[str, np.ndarray]:
    """Values that depend on size and name alone; a table of rows has one for the padding too."""
    return {key: value(size, key, shape) for key, shape in shapes(size, name).items()}


def batch(size: str) -> dict[str, np.ndarray]:
    """Four rows: a full one, one padded at the end, a pair in the second half, and one with padding in front."""
    config, random = SIZES[size], np.random.RandomState(7)
    pad, length = config["pad_token_id"], config["max_position_embeddings"] - config["pad_token_id"] - 1
    ids = random.randint(pad + 1, config["vocab_size"], (4, length))
    ids[1, 7:] = pad
    ids[2, 10:] = pad
    ids[3, :2] = pad
    types = np.zeros_like(ids)
    if config["type_vocab_size"] > 1:
        types[2, 5:10] = 1
    return {
        "input_ids": ids.astype(np.int32),
        "token_type_ids": types.astype(np.int32),
        "attention_mask": (ids != pad).astype(np.int32),
    }


def defined(size: str, name: str) -> np.ndarray | tuple:
    """Index of the logits that are defined: the last row begins with padding, and some heads read that position."""
    if name in ("RobertaForTokenClassification", "RobertaForQuestionAnswering"):
        return batch(size)["attention_mask"].astype(bool)
    return np.s_[:, :3] if name == "RobertaForMultipleChoice" else np.s_[:3]


def labels(size: str) -> np.ndarray:
    """Words to predict at two places of each row."""
    return np.random.RandomState(11).randint(4, SIZES[size]["vocab_size"], (4, 2)).astype(np.int32)


PLACES = np.array([[1, 8], [2, 5], [0, 9], [3, 10]], np.int32)
"""Where they are: all real tokens."""
