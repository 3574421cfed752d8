"""A block that the package does not know."""

import dataclasses

from bert_jax.models.block import Block


class LocalBlock(Block):
    """BERT's block, attending within a window that each layer is given."""

    def __call__(self, x, mask, dropout_key, attend, collect, window):
        return super().__call__(x, dataclasses.replace(mask, window=window), dropout_key, attend, collect)
