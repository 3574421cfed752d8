"""Attention in torch, by its scaled-dot-product attention, forward and backward, on arrays like those that ours gets.

torch comes from the environment that runs this file; bert_jax is not imported there.
"""

# pyright: reportMissingImports=false

from collections.abc import Callable
from typing import Any

import torch
from serving import Refusal, peak_memory, serve


def prepare(job: dict[str, Any]) -> tuple[Callable[[int], object], dict[str, Any]]:
    """Return a function that computes attention and its gradients so many times, and facts."""
    torch.manual_seed(0)
    torch.set_num_threads(job["threads"])
    if job["device"] == "cuda" and not torch.cuda.is_available():
        raise Refusal(f"torch {torch.__version__} of this environment sees no GPU; install torch for CUDA there")
    batch, length, heads, size = job["shape"]
    options = {"dtype": getattr(torch, job["dtype"]), "device": job["device"]}
    # [B, L, A, D] as projections make them; torch computes on [B, A, L, D].
    arrays = [torch.randn(batch, length, heads, size, **options).requires_grad_() for _ in range(3)]
    visible = mask(job).to(job["device"])

    def work(units: int) -> None:
        for _ in range(units):
            query, key, value = (array.transpose(1, 2) for array in arrays)
            found = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=visible, dropout_p=job["dropout"]
            )
            torch.autograd.grad(found.float().square().sum(), arrays)
        if job["device"] == "cuda":
            torch.cuda.synchronize()

    work(1)
    facts = {"path": "torch", "peak_memory_bytes": peak_memory(), "versions": {"torch": torch.__version__}}
    return work, facts | {"threads": torch.get_num_threads()}


def mask(job: dict[str, Any]) -> Any:
    """Return which keys each query sees, bool [1, 1, 1 or L, L]: none of the padding, and those of its window."""
    length = job["shape"][1]
    places = torch.arange(length)
    visible = (places < length - round(length * job["padding"]))[None]
    if job["window"] is not None:
        near = (places[:, None] - places[None]).abs() <= job["window"]
        first = places < job["global_tokens"]
        visible = visible & (near | first[:, None] | first[None])
    return visible[None, None]


if __name__ == "__main__":
    serve(prepare)
