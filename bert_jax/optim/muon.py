"""Muon: momentum whose singular values are all made about 1, for the matrices of the layers (Jordan et al. 2024).

Each layer of a stacked kernel is a matrix of its own, and the heads of a kernel are columns (or rows) of one matrix.
Word, position and segment tables, heads, norms and biases follow Adam, as in the published code.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.config import OptimizerConfig
from bert_jax.models.parameters import Parameter, ParameterTable, entries

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic polynomial that the published code applies to the singular values. It takes those above
about 0.01 to between 0.7 and 1.2, rather than to 1."""
ITERATIONS = 5
UPDATE_SIZE = 0.2
"""Root mean square of an update without the learning rate, about that of Adam (Liu et al. 2025, arXiv 2502.16982), so
that both halves share one learning rate and weight decay. The published code multiplies by √max(1, outputs/inputs)
instead, and gives matrices a learning rate of their own."""


def scale_by_muon(config: OptimizerConfig, parameters: ParameterTable) -> optax.GradientTransformation:
    """Return orthogonalized Nesterov momentum for `Parameter.matrix`, and the direction of Adam for all others."""

    def orthogonal(entry: Parameter, momentum: jax.Array) -> jax.Array:
        assert entry.matrix is not None
        inputs, outputs = entry.matrix
        matrices = orthogonalized(momentum.reshape(-1, inputs, outputs))
        return matrices.reshape(momentum.shape) * (UPDATE_SIZE * max(inputs, outputs) ** 0.5)

    def kinds(tree: Any) -> dict[str, Any]:
        return jax.tree.map(lambda entry: "other" if entry.matrix is None else "matrix", entries(parameters, tree))

    orthogonalize = optax.stateless(lambda updates, _: jax.tree.map(orthogonal, entries(parameters, updates), updates))
    return optax.partition(
        {
            "matrix": optax.chain(optax.trace(config.momentum, nesterov=True), orthogonalize),
            "other": optax.scale_by_adam(config.beta1, config.beta2, config.epsilon),
        },
        kinds,
    )


def orthogonalized(matrices: jax.Array) -> jax.Array:
    """Return U S Vᵀ for each U Σ Vᵀ of `matrices` [N, I, O], with all of S about 1, by Newton–Schulz iteration.

    In float32, which the matrix units of TPUs and of NVIDIA GPUs round to fewer bits; the published code uses bfloat16.
    """
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices if wide else matrices.transpose(0, 2, 1)
    x = x / (jnp.linalg.norm(x, axis=(1, 2), keepdims=True) + 1e-7)
    first, third, fifth = COEFFICIENTS
    for _ in range(ITERATIONS):
        square = x @ x.transpose(0, 2, 1)
        x = first * x + (third * square + fifth * square @ square) @ x
    return x if wide else x.transpose(0, 2, 1)
