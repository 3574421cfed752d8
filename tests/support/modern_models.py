"""Small encoders with the parts of ModernBERT and of DeBERTa, and the published ones."""

import dataclasses

import numpy as np
from model_variants import variant

from bert_jax.config import DisentangledConfig, ModelConfig

SMALL = ModelConfig(vocab_size=61, hidden_size=24, num_heads=3, intermediate_size=20, max_position_embeddings=64)
PLAIN = dataclasses.replace(SMALL, type_vocab_size=0, activation="gelu_erf")
GATED = dataclasses.replace(PLAIN, num_layers=5, layer_norm_epsilon=1e-5, norm_position="pre", feed_forward="geglu")
BARE = dataclasses.replace(GATED, norm_bias=False, use_bias=False, first_attention_norm=False, task_transform=True)
MODERN = variant(BARE, positions="rope", rope_theta=160_000.0, rope_local_theta=10_000.0, local_window=2)
"""Layers 0 and 3 see everything; with 5 layers neither a scan over all nor one over whole rounds of 3 fits."""

BASE = dataclasses.replace(MODERN, vocab_size=50_368, hidden_size=768, num_layers=22, num_heads=12)
PUBLISHED = variant(BASE, intermediate_size=1_152, max_position_embeddings=8_192, local_window=64)
"""ModernBERT-base."""
PUBLISHED_LARGE = dataclasses.replace(
    PUBLISHED, hidden_size=1_024, num_layers=28, num_heads=16, intermediate_size=2_624
)


def rows(length: int, real: tuple[int, ...], vocab_size: int = 61) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """input_ids, token_type_ids and attention_mask of rows with so many real tokens each."""
    random = np.random.default_rng(7)
    mask = np.arange(length)[None, :] < np.array(real)[:, None]
    ids = np.where(mask, random.integers(1, vocab_size, mask.shape), 0).astype(np.int32)
    return ids, np.zeros_like(ids), mask.astype(np.int32)


TERMS = DisentangledConfig(terms="c2p+p2c", max_distance=5, key_bias=False)
POOLED = dataclasses.replace(PLAIN, num_layers=3, layer_norm_epsilon=1e-7, pooler="gelu_erf", pair_head=False)
FIRST = variant(dataclasses.replace(POOLED, disentangled=TERMS), positions="none")
"""Version 1: distances from 5 on are alike."""
BUCKETS = DisentangledConfig(terms="c2p+p2c", max_distance=12, buckets=6, shared_projections=True, table_norm=True)
THIRD = dataclasses.replace(FIRST, disentangled=BUCKETS)
"""Version 3: 6 buckets to either side for distances up to 12."""
CONVOLVED = variant(THIRD, convolution_width=3, convolution_activation="gelu_erf")
"""Version 2 in its two larger sizes: a convolution beside the first layer."""

LONG = dataclasses.replace(FIRST, vocab_size=50_265, hidden_size=768, num_layers=12, num_heads=12)
LONG_TERMS = DisentangledConfig(terms="c2p+p2c", key_bias=False)
PUBLISHED_FIRST = dataclasses.replace(
    LONG, intermediate_size=None, max_position_embeddings=512, disentangled=LONG_TERMS
)
PUBLISHED_THIRD = dataclasses.replace(
    PUBLISHED_FIRST,
    vocab_size=128_100,
    disentangled=DisentangledConfig(terms="c2p+p2c", buckets=256, shared_projections=True, table_norm=True),
)
