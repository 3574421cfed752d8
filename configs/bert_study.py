"""A BERT that two CPU cores pre-train in minutes: 2 layers, hidden size 128, length 64; what the studies change.

    bert-jax pretrain bert_study --data.path=STORE --workdir=WORKDIR

Without dropout, because it sees its texts once. Wider initial weights, and rotary positions: with learned ones a
run this short ends on the plateau where a model knows frequencies and topics alone, and there is nothing to compare
(docs/studies.md has the figures). One text per row, no pairs.
"""

from bert_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    PhaseConfig,
    Rope,
)


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            hidden_size=128,
            num_layers=2,
            num_heads=4,
            max_position_embeddings=128,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            initializer_range=0.05,
            positions=Rope(),
        ),
        data=DataConfig(sentence_pairs="none"),
        phases=(PhaseConfig(steps=500, sequence_length=64, batch_size=32, learning_rate=2e-3, warmup_steps=50),),
        optimizer=OptimizerConfig(name="adamw"),
        checkpoint=CheckpointConfig(keep_last=1, keep_best=0),
        evaluation=EvaluationConfig(every_steps=0, sequences=1_024),
        log_every_steps=50,
    )
