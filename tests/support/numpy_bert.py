"""BERT's forward pass and pre-training loss in float64 NumPy, written from the papers, independently of bert_jax.

Parameters are the same nested dict; matrices are flattened and heads run one at a time.
"""

import math

import numpy as np

erf = np.vectorize(math.erf)


def gelu(x, name):
    if name == "gelu_erf":
        return x * (1 + erf(x / math.sqrt(2))) / 2
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def norm(x, p, epsilon):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) * p["scale"] + p["bias"]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def self_attention(x, p, allowed):
    """x [B, L, H], allowed [B, L, L] or [B, 1, L]; returns output [B, L, H] and probabilities [B, A, L, L]."""
    heads, size = p["query"]["bias"].shape
    output, maps = p["output"]["bias"], []
    for head in range(heads):
        query, key, value = (x @ p[n]["kernel"][:, head] + p[n]["bias"][head] for n in ("query", "key", "value"))
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(size) - 10_000.0 * (1 - allowed)
        maps.append(softmax(scores))
        output = output + maps[-1] @ value @ p["output"]["kernel"][head]
    return output, np.stack(maps, axis=1)


def forward(params, config, batch, allowed=None):
    """Dict of hidden_states, last_hidden_state, attentions, pooled, mlm_logits [B, M, V] and next_sentence_logits.

    `allowed`: per layer 1 where a position (the middle axis) may attend to another, [B, L, L]. None: everywhere but to
    padding.
    """
    allowed = allowed or [batch["attention_mask"][:, None, :]] * config.num_layers
    p, epsilon = as_float64(params), config.layer_norm_epsilon
    length = batch["input_ids"].shape[1]
    x = p["embeddings"]["word"]["table"][batch["input_ids"]] + p["embeddings"]["position"]["table"][:length]
    x = norm(x + p["embeddings"]["token_type"]["table"][batch["token_type_ids"]], p["embeddings"]["norm"], epsilon)
    hidden_states, attentions = [x], []
    for index in range(config.num_layers):
        layer = select(p["encoder"], index)
        pre = config.norm_position == "pre"
        y = norm(x, layer["attention_norm"], epsilon) if pre else x
        y, maps = self_attention(y, layer["attention"], allowed[index])
        x = x + y if pre else norm(x + y, layer["attention_norm"], epsilon)
        wide = norm(x, layer["feed_forward_norm"], epsilon) if pre else x
        wide = gelu(dense(wide, layer["feed_forward"]["intermediate"]), config.activation)
        x = x + dense(wide, layer["feed_forward"]["output"])
        x = x if pre else norm(x, layer["feed_forward_norm"], epsilon)
        hidden_states.append(x)
        attentions.append(maps)
    x = norm(x, p["final_norm"], epsilon) if config.norm_position == "pre" else x
    pooled = np.tanh(dense(x[:, 0], p["pooler"]))
    masked = x[np.arange(len(x))[:, None], batch["masked_positions"]]
    masked = norm(gelu(dense(masked, p["mlm"]["dense"]), config.activation), p["mlm"]["norm"], epsilon)
    return {
        "hidden_states": hidden_states,
        "last_hidden_state": x,
        "attentions": attentions,
        "pooled": pooled,
        "mlm_logits": masked @ p["embeddings"]["word"]["table"].T + p["mlm"]["bias"],
        "next_sentence_logits": dense(pooled, p["next_sentence"]),
    }


def loss(params, config, batch, weight_epsilon=0.0, allowed=None):
    """Weighted mean of the masked-language-model loss plus mean of the next-sentence loss; `allowed`: as above.

    The original adds 1e-5 to the sum of weights: `weight_epsilon`.
    """
    output = forward(params, config, batch, allowed)
    log_words = np.log(softmax(output["mlm_logits"]))
    picked = np.take_along_axis(log_words, batch["masked_ids"][:, :, None], axis=-1)[:, :, 0]
    weights = batch["masked_weights"].astype(np.float64)
    log_next = np.log(softmax(output["next_sentence_logits"]))
    next_sentence = log_next[np.arange(len(log_next)), batch["next_sentence_labels"]]
    return -(weights * picked).sum() / (weights.sum() + weight_epsilon) - next_sentence.mean()


def dense(x, p):
    return x @ p["kernel"] + p["bias"]


def as_float64(tree):
    return {k: as_float64(v) for k, v in tree.items()} if isinstance(tree, dict) else np.asarray(tree, np.float64)


def select(tree, index):
    return {k: select(v, index) for k, v in tree.items()} if isinstance(tree, dict) else tree[index]
