"""ALBERT-xlarge (Lan et al. 2020): 24 layers of width 2,048, all with the same parameters.

    bert-jax pretrain albert_xlarge --data.path=STORE --workdir=WORKDIR

The paper's recipe: n-grams of up to three words and sentence order, LAMB, batch 4,096, peak rate 1.76e-3, warm-up
3,125 of 125,000 steps, without dropout as in version 2; STORE has a SentencePiece vocabulary of 30,000 entries.
Rows are packed, 1.7 pairs in each on Wikipedia; --data.packing=off for one, as published. Not measured.
"""

from bert_jax.config import Config, DataConfig, MaskingConfig, OptimizerConfig, PhaseConfig
from bert_jax.config.presets import albert_config


def get_config() -> Config:
    return Config(
        model=albert_config("xlarge"),
        data=DataConfig(sentence_pairs="sop"),
        masking=MaskingConfig(unit="ngram"),
        phases=(
            PhaseConfig(
                steps=125_000, sequence_length=512, batch_size=4_096, learning_rate=1.76e-3, warmup_steps=3_125
            ),
        ),
        optimizer=OptimizerConfig(name="lamb"),
    )
