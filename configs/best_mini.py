"""The best recipe found here, at the size of BERT-mini (7 layers, hidden size 256).

    bert-jax pretrain best_mini --data.path=STORE --workdir=WORKDIR

ModernBERT's layers and recipe, as in `modernbert_mini`, with a first quarter of the steps that predicts the next word
from left to right, wide initial weights and a high rate. On the store of docs/family.md, this is the run in its table.
"""

import dataclasses

from bert_jax.config import Config, DataConfig, MaskingConfig, OptimizerConfig, PhaseConfig, ScheduleConfig, Window
from bert_jax.config.presets import left_to_right_first, modernbert


def get_config() -> Config:
    model = modernbert(num_layers=7, hidden_size=256, intermediate_size=384)
    whole = PhaseConfig(steps=8_890, sequence_length=64, batch_size=16, learning_rate=1e-3, warmup_steps=444)
    return Config(
        model=dataclasses.replace(
            model,
            max_position_embeddings=256,
            window=Window(local_window=32),
            scaled_outputs=False,
            initializer_range=0.05,
        ),
        data=DataConfig(sentence_pairs="none", short_sequence_probability=0.0, packing="on"),
        masking=MaskingConfig(rate=0.3),
        phases=left_to_right_first(whole, 0.25),
        optimizer=OptimizerConfig(name="stable_adamw", beta2=0.98, weight_decay=1e-5 / 1e-3, clip_norm=0.0),
        schedule=ScheduleConfig(name="constant", cooldown_steps=1_778, cooldown="one_minus_sqrt"),
    )
