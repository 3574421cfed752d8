"""Writes bert_oracle.npz: a small BertForPreTraining of Hugging Face transformers on PyTorch, run on parameters drawn here.

    python -m venv oracle && oracle/bin/pip install torch==2.13.0 transformers==5.23.0
    oracle/bin/python tests/oracles/make_bert_oracle.py

Only `main` needs torch; the tests import the rest to draw the same parameters and inputs. RandomState, because NumPy
promises that its stream never changes.
"""

import pathlib

import numpy as np

PATH = pathlib.Path(__file__).with_name("bert_oracle.npz")
SIZES = dict(vocab_size=97, hidden_size=32, num_layers=3, num_heads=4, intermediate_size=48, max_position_embeddings=20)
ACTIVATIONS = {"gelu_erf": "gelu", "gelu_tanh": "gelu_new"}
BATCH, LENGTH, PREDICTIONS = 3, 16, 5


def shapes() -> dict[str, tuple[int, ...]]:
    """Parameter path → shape, in the order in which values are drawn."""
    vocab, hidden, layers, heads, wide, positions = SIZES.values()
    head = hidden // heads
    result = {"embeddings/word/table": (vocab, hidden), "embeddings/position/table": (positions, hidden),
              "embeddings/token_type/table": (2, hidden), "pooler/kernel": (hidden, hidden), "pooler/bias": (hidden,),
              "mlm/dense/kernel": (hidden, hidden), "mlm/dense/bias": (hidden,), "mlm/bias": (vocab,),
              "next_sentence/kernel": (hidden, 2), "next_sentence/bias": (2,)}
    for name in ("query", "key", "value"):
        result |= {f"encoder/attention/{name}/kernel": (layers, hidden, heads, head),
                   f"encoder/attention/{name}/bias": (layers, heads, head)}
    result |= {"encoder/attention/output/kernel": (layers, heads, head, hidden),
               "encoder/attention/output/bias": (layers, hidden),
               "encoder/feed_forward/intermediate/kernel": (layers, hidden, wide),
               "encoder/feed_forward/intermediate/bias": (layers, wide),
               "encoder/feed_forward/output/kernel": (layers, wide, hidden),
               "encoder/feed_forward/output/bias": (layers, hidden)}
    for name, lead in (("embeddings/norm", ()), ("encoder/attention_norm", (layers,)), ("encoder/feed_forward_norm", (layers,)),
                       ("mlm/norm", ())):
        result |= {f"{name}/scale": (*lead, hidden), f"{name}/bias": (*lead, hidden)}
    return result


def draw_parameters() -> dict[str, np.ndarray]:
    """Flat {path: float32 array}; biases are not zero and scales not one, so that each of them shows in the outputs."""
    random = np.random.RandomState(20181011)
    return {path: (random.standard_normal(shape) * 0.2 + path.endswith("scale")).astype(np.float32)
            for path, shape in shapes().items()}


def draw_batch() -> dict[str, np.ndarray]:
    """A batch with two segments, padding at the end of two rows and one unused prediction slot."""
    random = np.random.RandomState(1018)
    lengths = np.array([LENGTH, 11, 13])[:, None]
    column = np.arange(LENGTH)[None, :]
    real = column < lengths
    # Id 0 stands at padding only: torch.nn.Embedding(padding_idx=0) drops that row's gradient.
    ids = np.where(real, random.randint(1, SIZES["vocab_size"], (BATCH, LENGTH)), 0)
    weights = np.ones((BATCH, PREDICTIONS), np.float32)
    weights[1, -1] = 0
    positions = np.stack([1 + random.permutation(10)[:PREDICTIONS] for _ in range(BATCH)])
    labels = random.randint(1, SIZES["vocab_size"], (BATCH, PREDICTIONS))
    used = weights > 0
    batch = dict(input_ids=ids, token_type_ids=(column >= 6) & real, attention_mask=real, masked_positions=positions * used,
                 masked_ids=labels * used, next_sentence_labels=np.array([0, 1, 1]))
    return {name: np.asarray(value, np.int32) for name, value in batch.items()} | {"masked_weights": weights}


def gradient_sample(gradient: np.ndarray) -> np.ndarray:
    """The norm of a gradient and seven of its values, evenly spaced."""
    flat = np.asarray(gradient, np.float64).ravel()
    return np.append(np.linalg.norm(flat), flat[np.linspace(0, flat.size - 1, 7).astype(int)])


def hugging_face_names() -> dict[str, str]:
    """Our path → the other side's name, with {} for the layer."""
    layer = "bert.encoder.layer.{}."
    modules = {"pooler": "bert.pooler.dense", "mlm/dense": "cls.predictions.transform.dense",
               "next_sentence": "cls.seq_relationship", "encoder/attention/output": layer + "attention.output.dense",
               "encoder/feed_forward/intermediate": layer + "intermediate.dense",
               "encoder/feed_forward/output": layer + "output.dense",
               **{f"encoder/attention/{name}": layer + f"attention.self.{name}" for name in ("query", "key", "value")}}
    norms = {"embeddings/norm": "bert.embeddings.LayerNorm", "mlm/norm": "cls.predictions.transform.LayerNorm",
             "encoder/attention_norm": layer + "attention.output.LayerNorm",
             "encoder/feed_forward_norm": layer + "output.LayerNorm"}
    names = {f"embeddings/{name}/table": f"bert.embeddings.{name}_embeddings.weight"
             for name in ("word", "position", "token_type")}
    names |= {f"{ours}/kernel": f"{theirs}.weight" for ours, theirs in modules.items()}
    names |= {f"{ours}/scale": f"{theirs}.weight" for ours, theirs in norms.items()}
    names |= {f"{ours}/bias": f"{theirs}.bias" for ours, theirs in (modules | norms).items()}
    return names | {"mlm/bias": "cls.predictions.bias"}


def load_parameters(model, parameters: dict[str, np.ndarray]) -> None:
    """Copies ours into the torch model: kernels are [inputs, outputs] here and [outputs, inputs] there."""
    import torch
    targets = dict(model.named_parameters())
    for path, name in hugging_face_names().items():
        layers = parameters[path] if path.startswith("encoder/") else parameters[path][None]
        for index, value in enumerate(layers):
            target = targets.pop(name.format(index))
            if path.endswith("kernel"):
                inputs = target.shape[1]
                value = value.reshape(inputs, -1).T
            with torch.no_grad():
                target.copy_(torch.tensor(value.reshape(target.shape).copy()))
    assert not targets, f"not set: {list(targets)}"


def gradients(model) -> dict[str, np.ndarray]:
    """Gradients of the torch model by our paths and in our shapes."""
    theirs = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
    result = {}
    for path, name in hugging_face_names().items():
        count = SIZES["num_layers"] if path.startswith("encoder/") else 1
        parts = [theirs[name.format(index)] for index in range(count)]
        parts = [part.T for part in parts] if path.endswith("kernel") else parts
        result[path] = np.stack(parts).reshape(shapes()[path])
    return result


def run(activation: str) -> dict[str, np.ndarray]:
    """Outputs, loss and gradients of the torch model."""
    import torch
    from transformers import BertConfig, BertForPreTraining
    config = BertConfig(vocab_size=SIZES["vocab_size"], hidden_size=SIZES["hidden_size"], num_hidden_layers=SIZES["num_layers"],
                        num_attention_heads=SIZES["num_heads"], intermediate_size=SIZES["intermediate_size"],
                        max_position_embeddings=SIZES["max_position_embeddings"], type_vocab_size=2, hidden_act=activation,
                        layer_norm_eps=1e-12, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
                        tie_word_embeddings=True,
                        attn_implementation="eager")
    model = BertForPreTraining(config)
    load_parameters(model, draw_parameters())
    batch = draw_batch()
    rows = np.arange(BATCH)[:, None]
    labels = np.full((BATCH, LENGTH), -100)
    used = batch["masked_weights"] > 0
    labels[np.broadcast_to(rows, used.shape)[used], batch["masked_positions"][used]] = batch["masked_ids"][used]
    tensors = {name: torch.tensor(batch[name].astype(np.int64)) for name in ("input_ids", "token_type_ids", "attention_mask")}
    output = model(**tensors, labels=torch.tensor(labels), output_hidden_states=True, output_attentions=True,
                   next_sentence_label=torch.tensor(batch["next_sentence_labels"].astype(np.int64)))
    output.loss.backward()
    pooled = model.bert(**tensors).pooler_output
    result = {"loss": output.loss, "next_sentence_logits": output.seq_relationship_logits, "pooled": pooled,
              "mlm_logits": output.prediction_logits[torch.tensor(rows), torch.tensor(batch["masked_positions"])],
              "hidden_states": torch.stack(output.hidden_states), "attentions": torch.stack(output.attentions)}
    result = {name: value.detach().numpy() for name, value in result.items()}
    return result | {f"gradients/{path}": gradient_sample(gradient) for path, gradient in gradients(model).items()}


def main() -> None:
    arrays = {f"{ours}/{name}": value for ours, theirs in ACTIVATIONS.items() for name, value in run(theirs).items()}
    np.savez_compressed(PATH, **arrays)
    print(f"{PATH.name}: {PATH.stat().st_size:,} bytes, {len(arrays)} arrays")


if __name__ == "__main__":
    main()
