"""BERT-small (4 layers, hidden size 512; Turc et al. 2019): a 29 M parameter encoder.

    bert-jax pretrain bert_small --data.path=STORE --workdir=WORKDIR

One phase at length 128. Cost and result of the whole run: not measured.
"""

from bert_jax.config import Config, OptimizerConfig, PhaseConfig
from bert_jax.config.presets import model_config


def get_config() -> Config:
    return Config(
        model=model_config("small"),
        phases=(PhaseConfig(steps=500_000, sequence_length=128, batch_size=256, learning_rate=5e-4),),
        optimizer=OptimizerConfig(name="adamw"),
    )
