"""Losses between a student and a teacher and their gradients, by torch, as DistilBERT's published code calls it.

    python tests/oracles/make_distillation_oracle.py     # in an environment with torch 2.13.0

It writes distillation_oracle.npz beside this file. Nothing of bert_jax is imported.
"""

import pathlib

import numpy as np
import torch

ROWS, LENGTH, WORDS, WIDTH, HEADS, LAYERS, TEMPERATURE = 2, 5, 11, 6, 2, 3, 2.0


def main() -> None:
    random = np.random.RandomState(3)
    lengths = np.array([5, 3])
    mask = np.arange(LENGTH) < lengths[:, None]
    pairs = mask[:, :, None] & mask[:, None, :]
    drawn = {
        "logits": 3 * random.randn(ROWS, LENGTH, WORDS),
        "teacher_logits": 3 * random.randn(ROWS, LENGTH, WORDS),
        "states": random.randn(LAYERS, ROWS, LENGTH, WIDTH),
        "teacher_states": random.randn(LAYERS, ROWS, LENGTH, WIDTH),
    }
    for name in ("maps", "teacher_maps"):
        scores = np.exp(random.randn(LAYERS, ROWS, HEADS, LENGTH, LENGTH)) * mask[None, :, None, None, :]
        drawn[name] = scores / scores.sum(-1, keepdims=True)
    given = {name: values.astype(np.float32) for name, values in drawn.items()}
    ours = {name: torch.tensor(given[name], requires_grad=True) for name in ("logits", "states", "maps")}
    theirs = {name: torch.tensor(given[f"teacher_{name}"]) for name in ours}
    chosen = torch.tensor(mask)
    soft = [torch.nn.functional.log_softmax(ours["logits"][chosen] / TEMPERATURE, dim=-1)]
    soft.append(torch.nn.functional.softmax(theirs["logits"][chosen] / TEMPERATURE, dim=-1))
    last = [each["states"][-1][chosen] for each in (ours, theirs)]
    where = torch.tensor(pairs)[None, :, None].expand(LAYERS, ROWS, HEADS, LENGTH, LENGTH)
    losses = {
        "soft_targets": torch.nn.KLDivLoss(reduction="batchmean")(*soft) * TEMPERATURE**2,
        "cosine": torch.nn.CosineEmbeddingLoss(reduction="mean")(*last, torch.ones(len(last[0]))),
        "hidden": torch.nn.functional.mse_loss(*(each["states"][:, chosen] for each in (ours, theirs))),
        "attention": torch.nn.functional.mse_loss(*(each["maps"][where] for each in (ours, theirs))),
    }
    found = {**given, "mask": mask}
    for name, loss in losses.items():
        of = {"soft_targets": "logits", "attention": "maps"}.get(name, "states")
        found[f"{name}_loss"] = loss.detach().numpy()
        found[f"{name}_gradient"] = torch.autograd.grad(loss, ours[of])[0].numpy()
    np.savez_compressed(pathlib.Path(__file__).with_name("distillation_oracle.npz"), **found)


if __name__ == "__main__":
    main()
