"""ELECTRA-base as published (Clark et al. 2020, appendix A): 766,000 steps of 256 sequences of 512 tokens.

    bert-jax pretrain electra_base --data.path=gs://BUCKET/store --workdir=gs://BUCKET/electra-base

A discriminator of the sizes of BERT-base, and a generator of a third of its width (256) and 12 layers. Peak 2e-4,
warm-up 10,000 steps; otherwise the recipe of electra_small, with what differs there. Rows are packed
(--data.packing=off for one text in each, as published).
109,483,009 parameters of the discriminator, 33,740,602 of the generator with the tables that it shares.
Fine-tuning in the paper: --layer_decay=0.8. Time and result of this configuration: not measured.
"""

from bert_jax.config import Config, DataConfig, MaskingConfig, OptimizerConfig, PhaseConfig, ReplacedTokens
from bert_jax.config.objective import GeneratorConfig
from bert_jax.config.presets import electra_config


def get_config() -> Config:
    return Config(
        model=electra_config("base"),
        data=DataConfig(sentence_pairs="adjacent", short_sequence_probability=0.05),
        masking=MaskingConfig(mask_share=0.85, random_share=0.0),
        objective=ReplacedTokens(generator=GeneratorConfig(hidden_size=256)),
        phases=(
            PhaseConfig(steps=766_000, sequence_length=512, batch_size=256, learning_rate=2e-4, warmup_steps=10_000),
        ),
        optimizer=OptimizerConfig(name="adamw_bert"),
    )
