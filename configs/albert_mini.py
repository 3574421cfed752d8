"""ALBERT of the width of BERT-mini (4 layers, hidden size 256): what all layers share is one layer.

    bert-jax pretrain albert_mini --data.path=STORE --workdir=WORKDIR

One phase at length 128, n-grams of up to three words and sentence order (Lan et al. 2020). The rate for AdamW is our
choice. Not measured.
"""

from bert_jax.config import Config, DataConfig, MaskingConfig, OptimizerConfig, PhaseConfig
from bert_jax.config.presets import albert_config


def get_config() -> Config:
    return Config(
        model=albert_config("mini"),
        data=DataConfig(sentence_pairs="sop"),
        masking=MaskingConfig(unit="ngram"),
        phases=(PhaseConfig(steps=300_000, sequence_length=128, batch_size=256, learning_rate=7e-4),),
        optimizer=OptimizerConfig(name="adamw"),
    )
