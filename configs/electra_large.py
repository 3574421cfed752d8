"""ELECTRA-large as published (Clark et al. 2020, appendix A): 400,000 steps of 2,048 sequences of 512 tokens.

    bert-jax pretrain electra_large --data.path=gs://BUCKET/store --workdir=gs://BUCKET/electra-large

A discriminator of the sizes of BERT-large, and a generator of a quarter of its width (256) and 24 layers. 25 % of the
tokens are predicted; peak 2e-4, warm-up 10,000 steps; otherwise the recipe of electra_base, with what differs there.
335,142,913 parameters of the discriminator, 51,295,290 of the generator with the tables that it shares.
Fine-tuning in the paper: --layer_decay=0.9. Time and result of this configuration: not measured.
"""

from bert_jax.config import Config, DataConfig, MaskingConfig, OptimizerConfig, PhaseConfig, ReplacedTokens
from bert_jax.config.presets import electra_config


def get_config() -> Config:
    return Config(
        model=electra_config("large"),
        data=DataConfig(sentence_pairs="adjacent", short_sequence_probability=0.05),
        masking=MaskingConfig(rate=0.25, mask_share=0.85, random_share=0.0),
        objective=ReplacedTokens(),
        phases=(
            PhaseConfig(steps=400_000, sequence_length=512, batch_size=2_048, learning_rate=2e-4, warmup_steps=10_000),
        ),
        optimizer=OptimizerConfig(name="adamw_bert"),
    )
