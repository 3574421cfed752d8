"""The parameters of a loaded model, which notebooks edit and train: checked and placed before anything reads them."""

import operator
from typing import Any

import jax
import numpy as np

from bert_jax.checkpoints.fingerprint import leaf_paths
from bert_jax.errors import UserError


class Parameters:
    """A nested dict `tree` of float32 arrays, whose entries may be exchanged, and all of it by `replace`."""

    def __init__(self, tree: dict[str, Any]):
        self.tree: dict[str, Any] = tree
        self._structure = jax.tree.structure(tree)
        self._shardings = jax.tree.map(lambda leaf: leaf.sharding, tree)
        self._wanted = {path: _kind(leaf) for path, leaf in leaf_paths(tree).items()}
        self._good = jax.tree.leaves(tree)  # arrays of JAX, which nobody can change

    def replace(self, tree: dict[str, Any]) -> None:
        """Replace the parameters with `tree`, a pytree of NumPy or JAX arrays with the same names, shapes and dtype."""
        self.tree = self._placed(tree)
        self._good = jax.tree.leaves(self.tree)

    def current(self) -> dict[str, Any]:
        """Return `tree` in its current state, on the devices of the model.

        Raises:
          UserError: an entry was added, removed, or exchanged for one with a different shape or dtype; names the first.
        """
        leaves, structure = jax.tree.flatten(self.tree)
        if structure == self._structure and all(map(operator.is_, leaves, self._good)):
            return self.tree
        return self._placed(self.tree)

    def _placed(self, tree: dict[str, Any]) -> dict[str, Any]:
        leaves = leaf_paths(tree)
        self._check({path: _kind(leaf) for path, leaf in leaves.items()})
        return jax.device_put(
            jax.tree.unflatten(self._structure, [leaves[path] for path in self._wanted]), self._shardings
        )

    def _check(self, found: dict[str, str]) -> None:
        differing = [path for path in sorted({*self._wanted, *found}) if found.get(path) != self._wanted.get(path)]
        if differing:
            path, more = differing[0], f" (and {len(differing) - 1} more differ)" if len(differing) > 1 else ""
            raise UserError(
                f"params: {path} is {found.get(path, 'missing')}, but the model has "
                f"{self._wanted.get(path, 'no such parameter')}{more}; keep the names, shapes and dtype of "
                "model.params, for example with jax.tree.map or .astype(np.float32)"
            )


def not_finite(tree: dict[str, Any]) -> list[str]:
    """Return the paths of the arrays in which a value is NaN or infinite."""
    return [path for path, leaf in leaf_paths(tree).items() if not np.isfinite(np.asarray(leaf)).all()]


def _kind(leaf: Any) -> str:
    return f"{getattr(leaf, 'dtype', type(leaf).__name__)}{list(np.shape(leaf))}"
