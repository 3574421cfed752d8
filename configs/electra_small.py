"""ELECTRA-small as published (Clark et al. 2020): 1,000,000 steps at length 128.

    bert-jax pretrain electra_small --data.path=gs://BUCKET/store --workdir=gs://BUCKET/electra-small

A generator of a quarter of the width (64) and 12 layers shares tables and norm of the embeddings with the
discriminator. The paper: 4 days on one V100; batch 128, peak 5e-4, warm-up 10,000 steps, the optimizer of 2018. 15 % of
the tokens are predicted, of which the generator sees 85 % as [MASK] and the others as they are, as in the published
code.
13,549,057 parameters of the discriminator, 4,620,026 of the generator with the tables that it shares (bert-jax info).

Most rows are two segments of a document, one after the other, as in the published code. What differs: 5 % of the
documents, not of the rows, are cut to a random shorter length; masked places are drawn without replacement; the linear
decay and the warm-up are not multiplied. Fine-tuning in the paper: learning rates that fall by 0.8 per layer
(--layer_decay=0.8). Time and result of this configuration: not measured.
"""

from bert_jax.config import Config, DataConfig, MaskingConfig, OptimizerConfig, PhaseConfig, ReplacedTokens
from bert_jax.config.presets import electra_config


def get_config() -> Config:
    return Config(
        model=electra_config("small"),
        data=DataConfig(sentence_pairs="adjacent", short_sequence_probability=0.05),
        masking=MaskingConfig(mask_share=0.85, random_share=0.0),
        objective=ReplacedTokens(),
        phases=(
            PhaseConfig(steps=1_000_000, sequence_length=128, batch_size=128, learning_rate=5e-4, warmup_steps=10_000),
        ),
        optimizer=OptimizerConfig(name="adamw_bert"),
    )
