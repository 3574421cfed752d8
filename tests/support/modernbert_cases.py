"""Small ModernBERTs, their parameters and their inputs, the same on both sides of a comparison with transformers."""

import json
import pathlib
import zlib

import numpy as np
import safetensors.numpy

_IDS = dict(pad_token_id=0, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2)
_LABELS = {"id2label": {"0": "no", "1": "yes", "2": "so"}, "label2id": {"no": 0, "yes": 1, "so": 2}}

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
        | _LABELS
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
        | _LABELS
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
    "tags": {
        "class": "ModernBertForTokenClassification",
        "config": _IDS
        | _LABELS
        | dict(
            vocab_size=41,
            hidden_size=12,
            num_hidden_layers=2,
            num_attention_heads=3,
            intermediate_size=9,
            local_attention=4,
            max_position_embeddings=16,
        ),
        "length": 9,
        "real": (9, 5),
    },
}


def draw(shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """Parameters by name: no bias of zero, no scale of one, so that each shows in the outputs."""
    found = {}
    for name, shape in shapes.items():
        random = np.random.RandomState(zlib.crc32(name.encode()))
        norm_scale = "norm" in name and name.endswith("weight")
        spread = 0.3 if len(shape) == 1 else shape[-1] ** -0.5
        found[name] = (random.standard_normal(shape) * spread + norm_scale).astype(np.float32)
    return found


def inputs(name: str) -> tuple[np.ndarray, np.ndarray]:
    """input_ids and attention_mask, int64 [rows, length], with padding."""
    case, random = CASES[name], np.random.RandomState(2024)
    mask = np.arange(case["length"])[None, :] < np.array(case["real"])[:, None]
    ids = np.where(mask, random.randint(3, case["config"]["vocab_size"], mask.shape), 0)
    return ids.astype(np.int64), mask.astype(np.int64)


def state_of(oracle, name: str) -> dict[str, np.ndarray]:
    """Every array of a case, by its name there."""
    return draw(json.loads(str(oracle[f"{name}/shapes"])))


def save(oracle, name: str, directory: pathlib.Path, **changes) -> pathlib.Path:
    """Write the directory that transformers would have saved; None removes a key of config.json."""
    config = json.loads(str(oracle[f"{name}/config"])) | changes
    directory.mkdir(exist_ok=True)
    kept = {key: value for key, value in config.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(kept))
    safetensors.numpy.save_file(state_of(oracle, name), directory / "model.safetensors")
    return directory
