"""NeoBERT in float64 NumPy, from its paper (Le Breton et al. 2025, arXiv 2502.19587) and the arrays of its checkpoint.

Independent of bert_jax: features are turned as complex numbers, one head at a time.
"""

import json
import pathlib

import numpy as np
import safetensors.numpy

CONFIG = {
    **{"model_type": "neobert", "architectures": ["NeoBERTLMHead"], "hidden_size": 24, "num_hidden_layers": 3},
    **{"num_attention_heads": 3, "intermediate_size": 34, "vocab_size": 41, "max_length": 32, "norm_eps": 1e-5},
    **{"pad_token_id": 0, "embedding_init_range": 0.02, "decoder_init_range": 0.02},
}
WIDTH = 24  # two thirds of 34, rounded up to a multiple of 8


def arrays(labels: int = 0) -> dict[str, np.ndarray]:
    """Random parameters under the names of the checkpoint, with the head of a classifier in place of that of words."""
    random, hidden = np.random.RandomState(5), CONFIG["hidden_size"]
    shapes = {"model.encoder.weight": (CONFIG["vocab_size"], hidden), "model.layer_norm.weight": (hidden,)}
    for layer in range(CONFIG["num_hidden_layers"]):
        shapes |= {
            f"model.transformer_encoder.{layer}.{name}.weight": shape
            for name, shape in {
                **{"attention_norm": (hidden,), "qkv": (3 * hidden, hidden), "wo": (hidden, hidden)},
                **{"ffn_norm": (hidden,), "ffn.w12": (2 * WIDTH, hidden), "ffn.w3": (hidden, WIDTH)},
            }.items()
        }
    head = {"decoder.weight": (CONFIG["vocab_size"], hidden), "decoder.bias": (CONFIG["vocab_size"],)}
    of_texts = {"dense.weight": (hidden, hidden), "dense.bias": (hidden,)}
    of_texts |= {"classifier.weight": (labels, hidden), "classifier.bias": (labels,)}
    shapes |= of_texts if labels else head
    return {
        name: np.float32(random.randn(*shape) * 0.3 + (1 if "norm" in name else 0)) for name, shape in shapes.items()
    }


def save(directory: pathlib.Path, state: dict[str, np.ndarray], **changes) -> pathlib.Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | changes))
    safetensors.numpy.save_file(state, directory / "model.safetensors", {"format": "pt"})
    return directory


def states(p: dict[str, np.ndarray], ids: np.ndarray, mask: np.ndarray) -> tuple[list, list]:
    """States [B, L, H] of the embeddings and after each layer, the last one normalized, and attentions [B, A, L, L]."""
    x, heads, maps = p["model.encoder.weight"][ids], CONFIG["num_attention_heads"], []
    size = x.shape[-1] // heads
    turns = np.arange(ids.shape[1])[:, None] * 10_000.0 ** (-np.arange(0, size, 2) / size)
    wave, found = np.exp(1j * turns), [x]
    for layer in range(CONFIG["num_hidden_layers"]):
        of = {
            name: p[f"model.transformer_encoder.{layer}.{name}.weight"].T
            for name in ("attention_norm", "qkv", "wo", "ffn_norm", "ffn.w12", "ffn.w3")
        }
        joined, contexts, weights = _norm(x, of["attention_norm"]) @ of["qkv"], [], []
        for head in range(heads):  # the query, the key and the value of a head are next to each other
            query, key, value = np.split(joined[..., 3 * size * head : 3 * size * (head + 1)], 3, axis=-1)
            scores = _turned(query, wave) @ _turned(key, wave).transpose(0, 2, 1) / np.sqrt(size)
            scores = np.where(mask[:, None], scores, -np.inf)
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            weights.append(shares / shares.sum(-1, keepdims=True))
            contexts.append(weights[-1] @ value)
        x = x + np.concatenate(contexts, -1) @ of["wo"]
        gate, values = np.split(_norm(x, of["ffn_norm"]) @ of["ffn.w12"], 2, axis=-1)
        x = x + (gate / (1 + np.exp(-gate)) * values) @ of["ffn.w3"]
        found.append(x)
        maps.append(np.stack(weights, 1))
    return [*found[:-1], _norm(x, p["model.layer_norm.weight"])], maps


def logits(p: dict[str, np.ndarray], ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Those of all words at every position, or of the classes of each text."""
    last = states(p, ids, mask)[0][-1]
    if "decoder.weight" in p:
        return last @ p["decoder.weight"].T + p["decoder.bias"]
    dense = np.tanh(last[:, 0] @ p["dense.weight"].T + p["dense.bias"])
    return dense @ p["classifier.weight"].T + p["classifier.bias"]


def _turned(x: np.ndarray, wave: np.ndarray) -> np.ndarray:
    """Features 2i and 2i + 1 are the real and the imaginary part of a number."""
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * wave
    return np.stack([turned.real, turned.imag], -1).reshape(x.shape)


def _norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + CONFIG["norm_eps"]) * scale
