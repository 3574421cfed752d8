"""ModernBERT's parts and recipe at the size of BERT-mini (7 layers, hidden size 256): for machines without accelerator.

    bert-jax pretrain modernbert_mini --data.path=STORE --workdir=WORKDIR

Seven layers of feed-forward width 384 are one global layer and two rounds of two local ones and a global one. Windows
of 32 tokens to either side, in rows of 256. Weight decay is 1e-5 per step at the peak rate, as for the larger ones.
Initial weights are BERT's, with which its runs in the documentation were made (the larger ones: scaled_outputs).
docs/experiments.md has a short run of it.
"""

import dataclasses

from bert_jax.config import Config, DataConfig, MaskingConfig, OptimizerConfig, PhaseConfig, ScheduleConfig, Window
from bert_jax.config.presets import modernbert


def get_config() -> Config:
    model = modernbert(num_layers=7, hidden_size=256, intermediate_size=384)
    return Config(
        model=dataclasses.replace(
            model, max_position_embeddings=256, window=Window(local_window=32), scaled_outputs=False
        ),
        data=DataConfig(sentence_pairs="none", short_sequence_probability=0.0, packing="on"),
        masking=MaskingConfig(rate=0.3),
        phases=(PhaseConfig(steps=10_000, sequence_length=256, batch_size=64, learning_rate=1e-3, warmup_steps=500),),
        optimizer=OptimizerConfig(name="stable_adamw", beta2=0.98, weight_decay=1e-5 / 1e-3, clip_norm=0.0),
        schedule=ScheduleConfig(name="constant", cooldown_steps=2_000, cooldown="one_minus_sqrt"),
    )
