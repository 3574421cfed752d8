"""Small DeBERTas of both kinds, and the published ones."""

import dataclasses

from model_variants import variant

from bert_jax.config import DisentangledConfig, ModelConfig

FIRST = variant(
    ModelConfig(
        vocab_size=61,
        hidden_size=24,
        num_layers=3,
        num_heads=3,
        intermediate_size=20,
        max_position_embeddings=64,
        type_vocab_size=0,
        activation="gelu_erf",
        layer_norm_epsilon=1e-7,
        pooler="gelu_erf",
        pair_head=False,
        disentangled=DisentangledConfig(terms="c2p+p2c", max_distance=5, key_bias=False),
    ),
    positions="none",
)
"""Version 1: distances from 5 on are alike."""
THIRD = dataclasses.replace(
    FIRST,
    disentangled=DisentangledConfig(
        terms="c2p+p2c", max_distance=12, buckets=6, shared_projections=True, table_norm=True
    ),
)
"""Version 3: 6 buckets to either side for distances up to 12."""
CONVOLVED = variant(THIRD, convolution_width=3, convolution_activation="gelu_erf")
"""Version 2 in its two larger sizes: a convolution beside the first layer."""

PUBLISHED_FIRST = dataclasses.replace(
    FIRST,
    vocab_size=50_265,
    hidden_size=768,
    num_layers=12,
    num_heads=12,
    intermediate_size=None,
    max_position_embeddings=512,
    disentangled=DisentangledConfig(terms="c2p+p2c", key_bias=False),
)
PUBLISHED_THIRD = dataclasses.replace(
    PUBLISHED_FIRST,
    vocab_size=128_100,
    disentangled=DisentangledConfig(terms="c2p+p2c", buckets=256, shared_projections=True, table_norm=True),
)
