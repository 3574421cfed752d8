"""Masked diffusion at BERT-mini's size (4 layers, hidden size 256; Sahoo et al. 2024, Nie et al. 2025).

    bert-jax pretrain diffusion_mini --data.path=STORE --workdir=WORKDIR

The rate of masks is drawn for each text, from nothing to all of it, so that the model can write as well as read
(`bert-jax generate WORKDIR`), and the loss is a bound on nats per token. Their models are of 110 M to 8 B parameters.
The whole run is not measured.
"""

import dataclasses

from bert_jax.config import Config, DataConfig, MaskedDiffusion, OptimizerConfig, PhaseConfig
from bert_jax.config.presets import model_config


def get_config() -> Config:
    return Config(
        model=dataclasses.replace(model_config("mini"), type_vocab_size=0, pair_head=False),
        data=DataConfig(sentence_pairs="none"),
        objective=MaskedDiffusion(),
        phases=(PhaseConfig(steps=300_000, sequence_length=128, batch_size=256, learning_rate=7e-4),),
        optimizer=OptimizerConfig(name="adamw"),
    )
