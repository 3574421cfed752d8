"""MosaicBERT-base (12 layers, hidden size 768; Portes et al. 2023): BERT with ALiBi and GeGLU.

    bert-jax pretrain mosaicbert_base --data.path=STORE --workdir=WORKDIR

30 % of the tokens masked, one objective, 128 tokens, 286,720,000 sequences, as in the published
mosaic-bert-base-uncased.yaml; attention has no dropout. The published gated maps have no bias; here they do. The
published weight decay of 1e-5 is a share of the weights per step at the peak rate; weight_decay is multiplied by the
rate, so it is 1e-5 / 5e-4 here. Not trained here: neither cost nor result is measured.
"""

from bert_jax.config import (
    Alibi,
    Config,
    DataConfig,
    MaskingConfig,
    ModelConfig,
    OptimizerConfig,
    PhaseConfig,
    ScheduleConfig,
)


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            pair_head=False,
            activation="gelu_erf",
            attention_dropout=0.0,
            feed_forward="geglu",
            positions=Alibi(),
        ),
        data=DataConfig(sentence_pairs="none"),
        masking=MaskingConfig(rate=0.3),
        phases=(
            PhaseConfig(steps=70_000, sequence_length=128, batch_size=4_096, learning_rate=5e-4, warmup_steps=4_200),
        ),
        optimizer=OptimizerConfig(name="adamw", beta2=0.98, weight_decay=1e-5 / 5e-4),
        schedule=ScheduleConfig(name="linear_after_warmup", final_fraction=0.02),
    )
