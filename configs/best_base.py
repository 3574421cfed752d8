"""The best recipe found here, at the size of ModernBERT-base (22 layers, hidden size 768): a day of one accelerator.

    bert-jax pretrain best_base --data.path=STORE --workdir=WORKDIR

`best_mini` with the layers of `modernbert_base`, in rows of 1,024 tokens; docs/modern_encoders.md has what `plan` says
of a v5e and an H100. Its rate and initial weights are ModernBERT's. Not trained here.
"""

from bert_jax.config import Config, DataConfig, MaskingConfig, OptimizerConfig, PhaseConfig, ScheduleConfig
from bert_jax.config.presets import left_to_right_first, modernbert


def get_config() -> Config:
    whole = PhaseConfig(
        steps=50_000,
        sequence_length=1_024,
        batch_size=128,
        micro_batches=4,
        learning_rate=8e-4,
        warmup_steps=1_500,
    )
    return Config(
        model=modernbert(num_layers=22, hidden_size=768, intermediate_size=1_152),
        data=DataConfig(sentence_pairs="none", short_sequence_probability=0.0, packing="on"),
        masking=MaskingConfig(rate=0.3),
        phases=left_to_right_first(whole, 0.25),
        optimizer=OptimizerConfig(name="stable_adamw", beta2=0.98, weight_decay=1e-5 / 8e-4, clip_norm=0.0),
        schedule=ScheduleConfig(name="constant", cooldown_steps=10_000, cooldown="one_minus_sqrt"),
    )
