"""DistilBERT of the width of BERT-mini: two of its four layers, without segments and without a pooler.

    bert-jax pretrain distilbert_mini --data.path=STORE --workdir=WORKDIR

Masked words alone: the terms of distillation are not here, so this trains DistilBERT's encoder without a teacher.
Steps and rate are those of bert_mini. Not measured.
"""

from bert_jax.config import Config, DataConfig, ModelConfig, OptimizerConfig, PhaseConfig


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            num_layers=2,
            hidden_size=256,
            num_heads=4,
            type_vocab_size=0,
            pair_head=False,
            pooler="relu",
            activation="gelu_erf",
        ),
        data=DataConfig(sentence_pairs="none"),
        phases=(PhaseConfig(steps=300_000, sequence_length=128, batch_size=256, learning_rate=7e-4),),
        optimizer=OptimizerConfig(name="adamw"),
    )
