"""Randomly initialised BERTs and batches, drawn by NumPy alone: the same on both sides of a comparison with PyTorch.

RandomState, because NumPy promises that its stream never changes. The names of Hugging Face stand here a second time,
apart from the product's table, so that one checks the other.
"""

import zlib

import numpy as np

SIZES = {  # as ModelConfig takes them
    "smallest": dict(
        vocab_size=17, hidden_size=8, num_layers=2, num_heads=2, intermediate_size=12, max_position_embeddings=8
    ),
    "tiny": dict(
        vocab_size=97, hidden_size=32, num_layers=3, num_heads=4, intermediate_size=48, max_position_embeddings=20
    ),
    "odd": dict(
        vocab_size=61,
        hidden_size=15,
        num_layers=1,
        num_heads=3,
        intermediate_size=23,
        max_position_embeddings=17,
        type_vocab_size=3,
        layer_norm_epsilon=1e-5,
    ),
    "mini": dict(vocab_size=30_522, hidden_size=256, num_layers=4, num_heads=4),
    "base": dict(vocab_size=30_522),
}
DEFAULTS = dict(
    hidden_size=768,
    num_layers=12,
    num_heads=12,
    max_position_embeddings=512,
    type_vocab_size=2,
    layer_norm_epsilon=1e-12,
)
ACTIVATIONS = {"gelu_erf": "gelu", "gelu_tanh": "gelu_new"}  # ours: theirs
CASES = [
    ("tiny", "gelu_erf"),
    ("tiny", "gelu_tanh"),
    ("odd", "gelu_tanh"),
    ("mini", "gelu_erf"),
    ("base", "gelu_erf"),
    ("base", "gelu_tanh"),
]
SAMPLES = 32


def sizes(name: str) -> dict:
    """Every size of a model by ModelConfig's names."""
    values = DEFAULTS | SIZES[name]
    return {"intermediate_size": 4 * values["hidden_size"]} | values


def shapes(sizes: dict) -> dict[str, tuple[int, ...]]:
    """Parameter path → shape, in the order in which values are drawn."""
    vocab, hidden, layers, heads = (sizes[key] for key in ("vocab_size", "hidden_size", "num_layers", "num_heads"))
    head, wide = hidden // heads, sizes["intermediate_size"]
    result = {
        "embeddings/word/table": (vocab, hidden),
        "embeddings/position/table": (sizes["max_position_embeddings"], hidden),
        "embeddings/token_type/table": (sizes["type_vocab_size"], hidden),
        "pooler/kernel": (hidden, hidden),
        "pooler/bias": (hidden,),
        "mlm/dense/kernel": (hidden, hidden),
        "mlm/dense/bias": (hidden,),
        "mlm/bias": (vocab,),
        "next_sentence/kernel": (hidden, 2),
        "next_sentence/bias": (2,),
    }
    for name in ("query", "key", "value"):
        result |= {
            f"encoder/attention/{name}/kernel": (layers, hidden, heads, head),
            f"encoder/attention/{name}/bias": (layers, heads, head),
        }
    result |= {
        "encoder/attention/output/kernel": (layers, heads, head, hidden),
        "encoder/attention/output/bias": (layers, hidden),
        "encoder/feed_forward/intermediate/kernel": (layers, hidden, wide),
        "encoder/feed_forward/intermediate/bias": (layers, wide),
        "encoder/feed_forward/output/kernel": (layers, wide, hidden),
        "encoder/feed_forward/output/bias": (layers, hidden),
    }
    for name, lead in (
        ("embeddings/norm", ()),
        ("encoder/attention_norm", (layers,)),
        ("encoder/feed_forward_norm", (layers,)),
        ("mlm/norm", ()),
    ):
        result |= {f"{name}/scale": (*lead, hidden), f"{name}/bias": (*lead, hidden)}
    return result


def draw_parameters(sizes: dict) -> dict[str, np.ndarray]:
    """Flat {path: float32 array}; biases are not zero and scales not one, so that each of them shows in the outputs."""
    random = np.random.RandomState(20181011)
    spread = sizes["hidden_size"] ** -0.5  # keeps logits and attention scores near one, whatever the size
    return {
        path: (random.standard_normal(shape) * spread + path.endswith("scale")).astype(np.float32)
        for path, shape in shapes(sizes).items()
    }


def draw_batch(sizes: dict, length: int = 16, predictions: int = 5) -> dict[str, np.ndarray]:
    """Three rows with two segments, padding at the end of two of them and one unused prediction slot."""
    random = np.random.RandomState(1018)
    rows, column = 3, np.arange(length)[None, :]
    real = column < np.array([length, 11, 13])[:, None]
    # Id 0 stands at padding only: torch.nn.Embedding(padding_idx=0) drops that row's gradient.
    ids = np.where(real, random.randint(1, sizes["vocab_size"], (rows, length)), 0)
    weights = np.ones((rows, predictions), np.float32)
    weights[1, -1] = 0
    positions = np.stack([1 + random.permutation(10)[:predictions] for _ in range(rows)])
    labels = random.randint(1, sizes["vocab_size"], (rows, predictions))
    used = weights > 0
    batch = dict(
        input_ids=ids,
        token_type_ids=(column >= 6) & real,
        attention_mask=real,
        masked_positions=positions * used,
        masked_ids=labels * used,
        next_sentence_labels=np.array([0, 1, 1]),
    )
    return {name: np.asarray(value, np.int32) for name, value in batch.items()} | {"masked_weights": weights}


def sample(values, name: str) -> np.ndarray:
    """float64 [1 + SAMPLES]: the norm of an array and values at places drawn from the quantity's name."""
    flat = np.asarray(values, np.float64).ravel()
    places = np.random.RandomState(zlib.crc32(name.encode())).randint(0, flat.size, SAMPLES)
    return np.append(np.linalg.norm(flat), flat[places])


def hugging_face_names() -> dict[str, str]:
    """Our path → the other side's name, with {} for the layer."""
    layer = "bert.encoder.layer.{}."
    modules = {
        "pooler": "bert.pooler.dense",
        "mlm/dense": "cls.predictions.transform.dense",
        "next_sentence": "cls.seq_relationship",
        "encoder/attention/output": layer + "attention.output.dense",
        "encoder/feed_forward/intermediate": layer + "intermediate.dense",
        "encoder/feed_forward/output": layer + "output.dense",
        **{f"encoder/attention/{name}": layer + f"attention.self.{name}" for name in ("query", "key", "value")},
    }
    norms = {
        "embeddings/norm": "bert.embeddings.LayerNorm",
        "mlm/norm": "cls.predictions.transform.LayerNorm",
        "encoder/attention_norm": layer + "attention.output.LayerNorm",
        "encoder/feed_forward_norm": layer + "output.LayerNorm",
    }
    names = {
        f"embeddings/{name}/table": f"bert.embeddings.{name}_embeddings.weight"
        for name in ("word", "position", "token_type")
    }
    names |= {f"{ours}/kernel": f"{theirs}.weight" for ours, theirs in modules.items()}
    names |= {f"{ours}/scale": f"{theirs}.weight" for ours, theirs in norms.items()}
    names |= {f"{ours}/bias": f"{theirs}.bias" for ours, theirs in (modules | norms).items()}
    return names | {"mlm/bias": "cls.predictions.bias"}


def to_hugging_face(parameters: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The state dict of BertForPreTraining: kernels are [inputs, outputs] here and [outputs, inputs] there."""
    state = {}
    for path, name in hugging_face_names().items():
        for layer, value in enumerate(parameters[path] if path.startswith("encoder/") else parameters[path][None]):
            if path.endswith("kernel"):
                outputs = value.shape[-1] if "attention/output" in path or value.ndim == 2 else value[0].size
                value = value.reshape(-1, outputs).T
            elif path.startswith("encoder/"):
                value = value.ravel()
            state[name.format(layer)] = np.ascontiguousarray(value)
    return state


def from_hugging_face(state: dict[str, np.ndarray], sizes: dict) -> dict[str, np.ndarray]:
    """The inverse of `to_hugging_face`, for gradients."""
    result = {}
    for path, name in hugging_face_names().items():
        count = sizes["num_layers"] if path.startswith("encoder/") else 1
        parts = [state[name.format(index)] for index in range(count)]
        parts = [part.T for part in parts] if path.endswith("kernel") else parts
        result[path] = np.stack(parts).reshape(shapes(sizes)[path])
    return result


def config_json(sizes: dict, activation: str) -> dict:
    """The config.json that goes with these sizes."""
    return {
        "model_type": "bert",
        "architectures": ["BertForPreTraining"],
        "hidden_act": ACTIVATIONS[activation],
        "num_hidden_layers": sizes["num_layers"],
        "num_attention_heads": sizes["num_heads"],
        "layer_norm_eps": sizes["layer_norm_epsilon"],
        "tie_word_embeddings": True,
        **{
            key: sizes[key]
            for key in ("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings", "type_vocab_size")
        },
    }
