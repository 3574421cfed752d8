"""A configuration of two phases that is tiny."""

from bert_jax.config import Config, ModelConfig, PhaseConfig

TINY = Config(
    model=ModelConfig(hidden_size=16, num_layers=1, num_heads=2, vocab_size=64, max_position_embeddings=32),
    phases=(PhaseConfig(steps=10, sequence_length=16, batch_size=8), PhaseConfig(steps=10, sequence_length=32)),
)
