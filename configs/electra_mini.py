"""ELECTRA of the width of BERT-mini (4 layers, hidden size 256, tables 128 wide), for machines without accelerator.

    bert-jax pretrain electra_mini --data.path=STORE --workdir=WORKDIR

The recipe of electra_small with a generator of a quarter of the width and as many layers; steps, batch and rate are our
choice. docs/electra.md has a short run of it.
"""

from bert_jax.config import Config, DataConfig, MaskingConfig, OptimizerConfig, PhaseConfig, ReplacedTokens
from bert_jax.config.presets import electra_config


def get_config() -> Config:
    return Config(
        model=electra_config("mini"),
        data=DataConfig(sentence_pairs="adjacent", short_sequence_probability=0.05),
        masking=MaskingConfig(mask_share=0.85, random_share=0.0),
        objective=ReplacedTokens(),
        phases=(PhaseConfig(steps=300_000, sequence_length=128, batch_size=128, learning_rate=5e-4),),
        optimizer=OptimizerConfig(name="adamw"),
    )
