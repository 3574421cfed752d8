"""XLNet's recipe at the size of BERT-mini (4 layers, hidden size 256), for one machine.

    bert-jax pretrain xlnet_mini --data.path=STORE --workdir=WORKDIR

A sixth of the tokens of every row of 128 is predicted, each from those before it in a random order of the row. The
rate for this size is our choice. Time and result of this configuration: not measured.
"""

from bert_jax.config import Config, DataConfig, MaskingConfig, OptimizerConfig, Permutation, PhaseConfig
from bert_jax.config.presets import xlnet_config


def get_config() -> Config:
    return Config(
        model=xlnet_config("mini"),
        data=DataConfig(sentence_pairs="none", short_sequence_probability=0.0, packing="off"),
        masking=MaskingConfig(rate=1 / 6),
        objective=Permutation(),
        phases=(
            PhaseConfig(steps=100_000, sequence_length=128, batch_size=64, learning_rate=1e-3, warmup_steps=1_000),
        ),
        optimizer=OptimizerConfig(epsilon=1e-6, weight_decay=0.01),
    )
