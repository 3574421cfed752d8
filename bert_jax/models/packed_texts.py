"""Rows of several texts, each of which is computed as if it were alone."""

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedTexts:
    """Which positions of B rows belong to which of at most T texts."""

    ids: jax.Array
    """int32 [B, L]: number of the text, from 1; 0 for padding. A text attends to itself alone."""
    starts: jax.Array
    """int32 [B, T]: position of the first token of each text, which the pooler reads; 0 if there is no such text."""

    @classmethod
    def of(cls, batch: dict[str, jax.Array]) -> "PackedTexts | None":
        """Return those of a batch of packed rows; None if each row is one text."""
        return cls(batch["text_ids"], batch["text_starts"]) if "text_ids" in batch else None

    def positions(self) -> jax.Array:
        """Return int32 [B, L]: the position of each token within its text."""
        start = jnp.sum(jnp.where(self.belongs(), self.starts[:, None, :], 0), axis=-1)
        return jnp.arange(self.ids.shape[1])[None, :] - start

    def lengths(self) -> jax.Array:
        """Return int32 [B, T]: number of tokens of each text; 0 if there is no such text."""
        return jnp.sum(self.belongs(), axis=1)

    def ends(self) -> jax.Array:
        """Return int32 [B, T]: position of the last token of each text; 0 if there is no such text."""
        return jnp.maximum(self.starts + self.lengths() - 1, 0)

    def belongs(self) -> jax.Array:
        """Return bool [B, L, T]: whether the position belongs to the text."""
        number = 1 + jnp.arange(self.starts.shape[1], dtype=self.ids.dtype)
        return self.ids[:, :, None] == number[None, None, :]
