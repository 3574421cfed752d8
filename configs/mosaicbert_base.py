"""MosaicBERT-base (12 layers, hidden size 768; Portes et al. 2023): BERT with ALiBi and GeGLU, without dropout.

    bert-jax pretrain mosaicbert_base --data.path=STORE --workdir=WORKDIR

30 % of the tokens masked, one objective, 128 tokens. The paper's gated maps have no bias; here they do. Not trained
here: neither cost nor result is measured.
"""

from bert_jax.config import Config, DataConfig, MaskingConfig, ModelConfig, OptimizerConfig, PhaseConfig, ScheduleConfig


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            pair_head=False,
            activation="gelu_erf",
            hidden_dropout=0.0,
            attention_dropout=0.0,
            feed_forward="geglu",
            positions="alibi",
        ),
        data=DataConfig(sentence_pairs="none"),
        masking=MaskingConfig(rate=0.3),
        phases=(
            PhaseConfig(steps=70_000, sequence_length=128, batch_size=4_096, learning_rate=5e-4, warmup_steps=4_200),
        ),
        optimizer=OptimizerConfig(name="adamw", beta2=0.98, weight_decay=1e-5),
        schedule=ScheduleConfig(name="linear_after_warmup", final_fraction=0.02),
    )
