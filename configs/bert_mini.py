"""BERT-mini (4 layers, hidden size 256; Turc et al. 2019): an 11 M parameter encoder.

    bert-jax pretrain bert_mini --data.path=STORE --workdir=WORKDIR

One phase at length 128. The whole run is not measured; docs/experiments.md has half an hour of it on two CPU cores.
"""

from bert_jax.config import Config, OptimizerConfig, PhaseConfig
from bert_jax.config.presets import model_config


def get_config() -> Config:
    return Config(
        model=model_config("mini"),
        phases=(PhaseConfig(steps=300_000, sequence_length=128, batch_size=256, learning_rate=7e-4),),
        optimizer=OptimizerConfig(name="adamw"),
    )
