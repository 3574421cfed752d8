"""DistilBERT (Sanh et al. 2019): six layers of BERT-base, without segments and without a pooler.

    bert-jax pretrain distilbert --data.path=STORE --workdir=WORKDIR

Masked words alone: the terms of distillation are not here, so this trains DistilBERT's encoder without a teacher.
The paper's batch is about 4,000; steps and rate are our choice. Not measured.
"""

from bert_jax.config import Config, DataConfig, ModelConfig, OptimizerConfig, PhaseConfig


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            num_layers=6,
            type_vocab_size=0,
            pair_head=False,
            pooler="relu",
            activation="gelu_erf",
        ),
        data=DataConfig(sentence_pairs="none"),
        phases=(PhaseConfig(steps=125_000, sequence_length=512, batch_size=4_096, learning_rate=4e-4),),
        optimizer=OptimizerConfig(name="adamw"),
    )
