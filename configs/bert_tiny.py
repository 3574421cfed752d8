"""BERT-tiny (2 layers, hidden size 128; Turc et al. 2019): a 4.4 M parameter encoder.

    bert-jax pretrain bert_tiny --data.path=STORE --workdir=WORKDIR

One phase at length 128. Cost and result of the whole run: not measured.
"""

from bert_jax.config import Config, OptimizerConfig, PhaseConfig
from bert_jax.config.presets import model_config


def get_config() -> Config:
    return Config(
        model=model_config("tiny"),
        phases=(PhaseConfig(steps=200_000, sequence_length=128, batch_size=256, learning_rate=1e-3),),
        optimizer=OptimizerConfig(name="adamw"),
    )
