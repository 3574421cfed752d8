"""Small checkpoints of TF1, by the original's names."""

import json

import numpy as np

HIDDEN, HEADS, LAYERS, WIDE, WORDS, POSITIONS = 12, 3, 2, 20, 37, 16
CONFIG = {
    "attention_probs_dropout_prob": 0.1,
    "directionality": "bidi",
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": WIDE,
    "max_position_embeddings": POSITIONS,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "pooler_fc_size": 768,
    "type_vocab_size": 2,
    "vocab_size": WORDS,
}
INDEX, DATA = "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"


def variables(words: int = WORDS, head: dict | None = None, pretraining: bool = True) -> dict[str, np.ndarray]:
    """Of a pre-training model, by the names and in the shapes that modeling.py and run_pretraining.py give them."""
    shapes = {
        f"bert/embeddings/{name}_embeddings": (rows, HIDDEN)
        for name, rows in (("word", words), ("position", POSITIONS), ("token_type", 2))
    }
    dense = {
        f"bert/encoder/layer_{n}/{name}": (inputs, outputs)
        for n in range(LAYERS)
        for name, inputs, outputs in (
            ("attention/self/query", HIDDEN, HIDDEN),
            ("attention/self/key", HIDDEN, HIDDEN),
            ("attention/self/value", HIDDEN, HIDDEN),
            ("attention/output/dense", HIDDEN, HIDDEN),
            ("intermediate/dense", HIDDEN, WIDE),
            ("output/dense", WIDE, HIDDEN),
        )
    }
    dense |= {"bert/pooler/dense": (HIDDEN, HIDDEN)}
    norms = ["bert/embeddings"]
    norms += [f"bert/encoder/layer_{n}/{name}" for n in range(LAYERS) for name in ("attention/output", "output")]
    if pretraining:
        dense |= {"cls/predictions/transform/dense": (HIDDEN, HIDDEN)}
        norms += ["cls/predictions/transform"]
        shapes |= {
            "cls/predictions/output_bias": (words,),
            "cls/seq_relationship/output_weights": (2, HIDDEN),
            "cls/seq_relationship/output_bias": (2,),
        }
    for name, shape in dense.items():
        shapes |= {f"{name}/kernel": shape, f"{name}/bias": shape[1:]}
    for name in norms:
        shapes |= {f"{name}/LayerNorm/gamma": (HIDDEN,), f"{name}/LayerNorm/beta": (HIDDEN,)}
    random = np.random.default_rng(0)
    return {
        name: (random.normal(size=shape) + name.endswith("gamma")).astype(np.float32)
        for name, shape in (shapes | (head or {})).items()
    }


def save(directory, values: dict, prefix: str = "bert_model.ckpt", step: int | None = None, **config) -> None:
    """As the original's training leaves it: a graph, a Saver, and the two text files beside."""
    import tensorflow as tf

    directory.mkdir(exist_ok=True)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, value in values.items():
            tf.compat.v1.get_variable(name, initializer=value)
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(directory / prefix), global_step=step, write_meta_graph=False)
    (directory / "bert_config.json").write_text(json.dumps(CONFIG | config))
    tokens = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(WORDS - 6))]
    (directory / "vocab.txt").write_text("\n".join(tokens) + "\n")
