"""Orders in which tokens are predicted, and who sees whom under them (Yang et al. 2019, section 2.2)."""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.models.chosen_positions import gather_positions
from bert_jax.models.kernels.contract import MASKED_SCORE


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Permutation:
    """The factorisation order of B rows, and which M of their positions are predicted."""

    order: jax.Array
    """int32 [B, L]: place of each token in the order. Tokens of one place see each other, as all those of place 0 do,
    which are given; each target has a place of its own, from 1."""
    targets: jax.Array
    """int32 [B, M]: the positions that are predicted. Unused slots hold any position; what they give counts nothing."""

    @classmethod
    def of(cls, batch: dict[str, jax.Array]) -> "Permutation":
        """Return that of a batch of `data.examples.permutations`."""
        return cls(batch["order"], batch["masked_positions"])

    @classmethod
    def hiding(cls, positions: jax.Array, length: int) -> "Permutation":
        """Return the one in which all of positions [B, M] are predicted from the others of a row, none from another."""
        rows = jnp.arange(positions.shape[0], dtype=positions.dtype)[:, None]
        return cls(jnp.zeros((positions.shape[0], length), jnp.int32).at[rows, positions].set(1), positions)

    @property
    def states(self) -> jax.Array:
        """int32 [B, M]: where the states are that predict the targets, after those of the tokens."""
        places = self.order.shape[1] + jnp.arange(self.targets.shape[1], dtype=jnp.int32)
        return jnp.broadcast_to(places, self.targets.shape)

    def seen_by_tokens(self) -> jax.Array:
        """Return bool [B, L, L]: whether the state of a token, which knows the token itself, sees the other one."""
        return self.order[:, None, :] <= self.order[:, :, None]

    def seen_by_targets(self) -> jax.Array:
        """Return bool [B, M, L]: whether the state that predicts a target, and must not know it, sees the token."""
        return self.order[:, None, :] < self.at_targets(self.order)[:, :, None]

    def at_targets(self, values: jax.Array) -> jax.Array:
        """Return values [B, L] at the targets: [B, M]."""
        return gather_positions(values[:, :, None], self.targets)[:, :, 0]


def hidden_unless(seen: jax.Array) -> jax.Array:
    """Return what is added to the scores of every head for `seen` [B, Q, L]: float32 [B, 1, Q, L]."""
    return jnp.where(seen, 0.0, MASKED_SCORE)[:, None]
