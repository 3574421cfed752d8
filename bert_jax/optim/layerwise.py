"""Learning rates that fall from the top layer to the embeddings (Howard & Ruder 2018; Zhang et al. 2021)."""

import jax
import jax.numpy as jnp
import optax


def scale_by_depth(decay: float, num_layers: int) -> optax.GradientTransformation:
    """Multiplies updates by decay^d: d is 0 for head, pooler and top layer, 1 for the layer below it, …, num_layers for the
    embeddings."""

    def scaled(path, update):
        if path[0].key == "embeddings":
            return update * decay**num_layers
        if path[0].key == "encoder":
            factors = decay ** jnp.arange(num_layers - 1, -1, -1, dtype=update.dtype)
            return update * factors.reshape((num_layers,) + (1,) * (update.ndim - 1))
        return update

    return optax.stateless(lambda updates, params: jax.tree.map_with_path(scaled, updates))


def frozen_encoder() -> optax.GradientTransformation:
    """No update, weight decay included, for anything but the head and its CRF: the encoder only gives features."""
    return optax.stateless(
        lambda updates, params: {
            part: tree if part in ("head", "crf") else jax.tree.map(jnp.zeros_like, tree)
            for part, tree in updates.items()
        }
    )
