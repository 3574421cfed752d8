"""DeBERTa's enhanced mask decoder (He et al. 2021, section 3.2): how absolute positions reach masked words."""

import jax
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.models.embeddings import Embedding, position_vectors
from bert_jax.models.kernels.contract import AttentionMask
from bert_jax.models.layers import truncated_normal
from bert_jax.models.packed_texts import PackedTexts
from bert_jax.models.remat import with_remat
from bert_jax.models.stack import Layer, Stack

PASSES = 2


class MaskDecoder(nnx.Module):
    """Two passes of the encoder's last layer with queries of their own, and a table of absolute positions.

    In both, keys and values are the states that enter the last layer. The queries of the first are those states plus
    the absolute positions, and the queries of the second are the output of the first, as in the published code.
    """

    def __init__(self, config: ModelConfig, key: jax.Array):
        rows = (config.max_position_embeddings, config.hidden_size)
        self.position: Embedding = Embedding(truncated_normal(key, rows, config.initializer_range))

    def __call__(
        self,
        stack: Stack,
        block: Layer,
        x: jax.Array,
        mask: AttentionMask,
        dropout_key: jax.Array | None,
        texts: PackedTexts | None,
    ) -> jax.Array:
        """Return what the head for masked words reads, [B, L, H].

        Args:
          stack: how the layers are computed.
          block: the last layer.
          x: the states that enter it, [B, L, H].
          mask: as for the layers.
          dropout_key: None for no dropout.
          texts: where positions restart; None: each row is one text.
        """
        keys = (None,) * PASSES if dropout_key is None else jax.random.split(dropout_key, PASSES)
        arguments = stack.arguments(stack.num_layers - 1)

        def look(queries: jax.Array, key: jax.Array | None, block: Layer, x: jax.Array) -> jax.Array:
            return block(x, mask, key, stack.attend, False, queries=queries, **arguments)[0]

        look = with_remat(look, stack.remat, scanned=False)
        table = self.position.table[...]
        if texts is None:
            positions = table[None, : x.shape[1]]
        else:
            positions = position_vectors(table[: x.shape[1]], texts.positions(), x.dtype)
        queries = x + positions.astype(x.dtype)
        for key in keys:
            queries = look(queries, key, block, x)
        return queries
