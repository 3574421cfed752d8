"""What the forward pass of a layer keeps, and what the backward pass computes again."""

from collections.abc import Callable
from typing import Any, Literal

import jax

Remat = Literal["none", "sel", "dots", "full"]
"""Policies of ComputeConfig.remat, but for auto, which is one of them."""

# What blocks name (checkpoint_name). Kept, they leave to the backward pass only what costs no product with a kernel:
# attention between its projections, norms, activations and dropout.
SELECTED = (
    *("query", "key", "value", "attention_output", "attention_sum"),
    *("gate", "intermediate", "feed_forward_sum", "convolution", "mean", "variance"),
)

REMAT_POLICIES = {
    "sel": jax.checkpoint_policies.save_only_these_names(*SELECTED),
    # Products with a kernel are kept; those of attention, which grow with the square of the length, are computed again.
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


def with_remat(step: Callable[..., Any], policy: Remat, scanned: bool) -> Callable[..., Any]:
    """Return `step`, of which the backward pass computes again what the policy says."""
    if policy == "none":
        return step
    return jax.checkpoint(step, policy=REMAT_POLICIES[policy], prevent_cse=not scanned)
