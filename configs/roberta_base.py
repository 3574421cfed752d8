"""RoBERTa-base as published (Liu et al. 2019): masked words alone, 500,000 steps of 8,192 sequences.

    bert-jax train-vocab --input=CORPUS --output=VOCAB --method=byte_bpe --size=50265 --lowercase=False
    bert-jax prepare --input=CORPUS --vocab=VOCAB --output=gs://BUCKET/store
    bert-jax pretrain roberta_base --data.path=gs://BUCKET/store --workdir=gs://BUCKET/roberta-base

Full sentences across documents fill every row of 512 tokens; new masks in every epoch; no pairs, no short sequences.
The paper: batch 8,192, peak 6e-4, warm-up 24,000 of 500,000 steps, Adam with beta2 0.98, no clipping.
124,697,433 parameters with 50,265 pieces (bert-jax info roberta_base).
Time and result of this configuration: not measured.
"""

from bert_jax.config import Config, DataConfig, OptimizerConfig, PhaseConfig
from bert_jax.config.presets import roberta_config


def get_config() -> Config:
    return Config(
        model=roberta_config("base"),
        data=DataConfig(sentence_pairs="none", short_sequence_probability=0.0, packing="off"),
        phases=(
            PhaseConfig(steps=500_000, sequence_length=512, batch_size=8_192, learning_rate=6e-4, warmup_steps=24_000),
        ),
        optimizer=OptimizerConfig(beta2=0.98, epsilon=1e-6, weight_decay=0.01, clip_norm=0.0),
    )
