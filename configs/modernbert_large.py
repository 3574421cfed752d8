"""ModernBERT-large (28 layers, hidden size 1,024; Warner et al. 2024): 395 M parameters.

    bert-jax pretrain modernbert_large --data.path=STORE --workdir=WORKDIR

As configs/modernbert_base.py, with the rates of the paper: 5e-4 for 900 billion tokens, a tenth of that for the rest.
The paper's batch grows from 448 over the first 10 billion tokens and its model starts from tiles of the base model's
weights; here the batch is constant, and the weights are random without --init_from=BASE --init_from_width=tile
--init_from_depth=spread. Weight decay is that of the paper, 1e-5 per step at 5e-4 and 1e-6 at 5e-5. Not trained here:
neither cost nor result is measured.
"""

from bert_jax.config import Config, DataConfig, MaskingConfig, OptimizerConfig, PhaseConfig, ScheduleConfig
from bert_jax.config.presets import modernbert


def get_config() -> Config:
    return Config(
        model=modernbert(num_layers=28, hidden_size=1_024, intermediate_size=2_624),
        data=DataConfig(sentence_pairs="none", short_sequence_probability=0.0, packing="on"),
        masking=MaskingConfig(rate=0.3),
        phases=(
            PhaseConfig(steps=178_000, sequence_length=1_024, batch_size=4_928, learning_rate=5e-4, warmup_steps=400),
            PhaseConfig(steps=162_000, sequence_length=1_024, batch_size=4_928, learning_rate=5e-5),
        ),
        optimizer=OptimizerConfig(name="stable_adamw", beta2=0.98, weight_decay=1e-5 / 5e-4, clip_norm=0.0),
        schedule=ScheduleConfig(name="constant"),
    )
