"""BERT-large as published (Devlin et al. 2018): 900,000 steps at length 128, then 100,000 at length 512.

    bert-jax pretrain bert_large --data.path=gs://BUCKET/store --workdir=gs://BUCKET/bert-large

The 2018 optimizer and one linear schedule over both phases, warm-up 10,000 steps, moments kept at the switch.
Layers are unrolled, which takes minutes to compile for TPUs, once per phase, and makes each step a quarter shorter
(docs/speed.md); --compute.layers=scan compiles in one minute.
Rows of the second phase are packed, 1.7 pairs in each on Wikipedia; --data.packing=off for one, as published.
Published: held-out perplexity 3.23 (table 6). Hardware then: 16 Cloud TPUs (64 chips), 4 days.
Time and result of this configuration: not measured.
"""

from bert_jax.config import ComputeConfig, Config, OptimizerConfig, PhaseConfig
from bert_jax.config.presets import model_config


def get_config() -> Config:
    return Config(
        model=model_config("large"),
        phases=(
            PhaseConfig(steps=900_000, sequence_length=128, batch_size=256, max_predictions=20),
            PhaseConfig(steps=100_000, sequence_length=512, batch_size=256, max_predictions=77),
        ),
        optimizer=OptimizerConfig(name="adamw_bert"),
        compute=ComputeConfig(layers="loop"),
    )
