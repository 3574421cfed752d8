"""Writes finetuning_oracle.npz: 20 steps of BertForSequenceClassification in torch, on pairs like those of MRPC.

    oracle/bin/python tests/oracles/make_finetuning_oracle.py          # oracle/ as in make_huggingface_oracle.py

torch.optim.AdamW (no decay for biases and LayerNorm), clip_grad_norm_, get_linear_schedule_with_warmup, batches padded
to their longest row, dropout off. Stored: the loss of each step and the logits afterwards, in float64.
"""

import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import random_bert

PATH = pathlib.Path(__file__).with_name("finetuning_oracle.npz")
SIZES = random_bert.sizes("tiny")
EXAMPLES, BATCH, EPOCHS = 150, 16, 2  # ten steps an epoch, the last with six rows
RATE, WARMUP, EPSILON, DECAY, CLIP = 5e-4, 2, 1e-6, 0.01, 1.0


def draw_head() -> dict[str, np.ndarray]:
    random = np.random.RandomState(7)
    return {
        "head/kernel": random.standard_normal((SIZES["hidden_size"], 2)).astype(np.float32) / 4,
        "head/bias": random.standard_normal(2).astype(np.float32) / 4,
    }


def draw_pairs() -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Ids, segments and labels of EXAMPLES pairs, in the order in which both sides go through them in every epoch."""
    random = np.random.RandomState(8)
    lengths = random.randint(6, SIZES["max_position_embeddings"] + 1, EXAMPLES)
    ids = [random.randint(1, SIZES["vocab_size"], length).astype(np.int32) for length in lengths]
    types = [(np.arange(length) >= length // 2).astype(np.int32) for length in lengths]
    labels = np.array([entry[1:].max() % 2 for entry in ids], np.int32)
    return ids, types, labels


def run(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The loss of every step, and the logits of the first batch after them."""
    import torch
    import transformers

    config = transformers.BertConfig(
        **random_bert.config_json(SIZES, "gelu_erf"),
        hidden_dropout_prob=0.0,
        num_labels=2,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    model = transformers.BertForSequenceClassification(config).to(getattr(torch, dtype))
    head = draw_head()
    state = random_bert.to_hugging_face(random_bert.draw_parameters(SIZES))
    state |= {"classifier.weight": head["head/kernel"].T.copy(), "classifier.bias": head["head/bias"]}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(state[name]))
    plain = [p for name, p in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
    decayed = [p for name, p in model.named_parameters() if not (name.endswith("bias") or "LayerNorm" in name)]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}], lr=RATE, eps=EPSILON
    )
    steps = EPOCHS * -(-EXAMPLES // BATCH)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, WARMUP, steps)
    losses = []
    for step in range(steps):
        output = model(**batch(step % (steps // EPOCHS)))
        output.loss.backward()
        losses.append(output.loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return np.array(losses), model(**batch(0)).logits.detach().numpy().astype(np.float64)


def batch(number: int) -> dict:
    import torch

    ids, types, labels = (part[number * BATCH : (number + 1) * BATCH] for part in draw_pairs())
    length = max(map(len, ids))
    pad = lambda rows: torch.tensor(np.stack([np.pad(row, (0, length - len(row))) for row in rows]).astype(np.int64))
    return {
        "input_ids": pad(ids),
        "token_type_ids": pad(types),
        "attention_mask": pad([np.ones_like(row) for row in ids]),
        "labels": torch.tensor(labels.astype(np.int64)),
    }


def main() -> None:
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else PATH
    losses, logits = run("float64")
    narrow, _ = run("float32")
    np.savez_compressed(path, losses=losses, logits=logits)
    print(
        f"{path.name}: loss {losses[0]:.4f} to {losses[-1]:.4f}; "
        f"torch's float32 is off by {np.abs(narrow - losses).max():.1e}"
    )


if __name__ == "__main__":
    main()
