"""Writes recipe_oracle.npz: attention with norms of queries and keys, and a z-loss of capped logits, in torch.

    python -m venv oracle && oracle/bin/pip install torch==2.13.0
    oracle/bin/python tests/oracles/make_recipe_oracle.py

In float64, with the gradients of automatic differentiation. Inputs are stored beside the results.
"""

import pathlib

import numpy as np
import torch
from torch.nn import functional

PATH = pathlib.Path(__file__).with_name("recipe_oracle.npz")
EPSILON, THETA = 1e-5, 10_000.0
CAP, WEIGHT = 1.5, 0.1


def turned(x: torch.Tensor) -> torch.Tensor:
    """x [B, A, L, D] in rotary positions, as pairs of complex numbers."""
    length, half = x.shape[2], x.shape[3] // 2
    angles = torch.arange(length)[:, None] * THETA ** (-torch.arange(half, dtype=x.dtype) / half)
    pairs = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def attention(x, query, key, value, output, query_scale, key_scale) -> torch.Tensor:
    """Kernels [H, A, D], [H, K, D], [H, K, D] and [A, D, H]; A is a multiple of K."""
    heads = [torch.einsum("blh,had->bald", x, kernel) for kernel in (query, key, value)]
    size = query.shape[-1]
    queries = turned(functional.rms_norm(heads[0], (size,), query_scale, EPSILON))
    keys = turned(functional.rms_norm(heads[1], (size,), key_scale, EPSILON))
    context = functional.scaled_dot_product_attention(queries, keys, heads[2], enable_gqa=True)
    return torch.einsum("bald,adh->blh", context, output)


def z_loss(x, table, bias, labels) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean loss of labels [N] from x [N, H], and that of the squared log-sums."""
    logits = CAP * torch.tanh((x @ table.T + bias) / CAP)
    return functional.cross_entropy(logits, labels), torch.logsumexp(logits, dim=1).square().mean()


def main() -> None:
    """Write the file."""
    random = np.random.default_rng(0)
    draw = lambda *shape: torch.tensor(np.float32(random.normal(size=shape)), dtype=torch.float64, requires_grad=True)
    names = ("x", "query", "key", "value", "output", "query_scale", "key_scale")
    shapes = ((2, 5, 24), (24, 4, 6), (24, 2, 6), (24, 2, 6), (4, 6, 24), (6,), (6,))
    given = {name: draw(*shape) for name, shape in zip(names, shapes, strict=True)}
    found = attention(**given)
    found.sin().sum().backward()
    arrays = {f"attention/{name}": each for name, each in given.items()} | {"attention/result": found}
    arrays |= {f"attention/gradient/{name}": each.grad for name, each in given.items()}
    of_words = {"x": draw(5, 8), "table": draw(11, 8), "bias": draw(11)}
    labels = torch.tensor([0, 3, 4, 10, 7])
    loss, square = z_loss(**of_words, labels=labels)
    (loss + WEIGHT * square).backward()
    arrays |= {f"words/{name}": each for name, each in of_words.items()} | {"words/labels": labels}
    arrays |= {f"words/gradient/{name}": each.grad for name, each in of_words.items()}
    arrays |= {"words/loss": loss, "words/square": square}
    found = {name: each.detach().numpy() for name, each in arrays.items()}
    types = {name: "f4" if each.dtype.kind == "f" else "i4" for name, each in found.items()}
    np.savez_compressed(PATH, **{name: each.astype(types[name]) for name, each in found.items()})


if __name__ == "__main__":
    main()
