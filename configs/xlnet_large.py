"""XLNet-large (Yang et al. 2019, arXiv 1906.08237): permutation language modelling with two streams of states.

    bert-jax pretrain xlnet_large --data.path=STORE --workdir=WORKDIR

The paper, appendix A.4.1: 24 layers, hidden size 1,024; batch 8,192, peak 4e-4, warm-up 40,000 of 500,000 steps, linear
decay, Adam epsilon 1e-6, weight decay 0.01, dropout 0.1, K = 6. 360,300,800 parameters with 32,000 pieces (bert-jax
info xlnet_large --model.vocab_size=32000).
Where this differs from the paper: no memory in training (its mem_len is 384), no second copy of the data that
runs backwards (bi_data), rows of one text instead of two of which half do not belong together, one order for the whole
row instead of one for each half, and dropout in BERT's places (not on encodings of distances and after the last
layer).
Time and result of this configuration: not measured.
"""

from bert_jax.config import (
    Config,
    DataConfig,
    MaskingConfig,
    OptimizerConfig,
    Permutation,
    PhaseConfig,
    ScheduleConfig,
)
from bert_jax.config.presets import xlnet_config


def get_config() -> Config:
    return Config(
        model=xlnet_config("large"),
        data=DataConfig(sentence_pairs="none", short_sequence_probability=0.0, packing="off"),
        masking=MaskingConfig(rate=1 / 6),
        objective=Permutation(),
        phases=(
            PhaseConfig(steps=500_000, sequence_length=512, batch_size=8_192, learning_rate=4e-4, warmup_steps=40_000),
        ),
        optimizer=OptimizerConfig(epsilon=1e-6, weight_decay=0.01),
        schedule=ScheduleConfig(name="linear_after_warmup"),
    )
