"""ModernBERT-base (22 layers, hidden size 768; Warner et al. 2024): 149 M parameters, without the word table's padding.

    bert-jax pretrain modernbert_base --data.path=STORE --workdir=WORKDIR

Its first phase, 1,024 tokens: 30 % of the tokens masked, one objective, packed rows, StableAdamW, a constant rate after
the warm-up. The later phases, 8,192 tokens, continue from it with a larger base of the rotary positions:

    bert-jax pretrain modernbert_base --init_from=WORKDIR --workdir=LONG --data.path=STORE --sequence_length=8192 \
      --batch_size=576 --learning_rate=3e-4 --warmup_steps=0 --steps=… --model.max_position_embeddings=8192 \
      --model.rope_theta=160000 --model.rope_local_theta=10000 --ramp_batch_sizes= --ramp_steps=0 \
      --schedule.cooldown_steps=… --schedule.cooldown=one_minus_sqrt

Figures are those of the published modernbert-base-pretrain.yaml: 1,719 billion tokens, a warm-up of 3 billion, and a
batch that grows from 768 to 4,608 over 50 billion, here in five steps. Initial weights are Megatron's, as there
(model.scaled_outputs). Its vocabulary is a byte-level one of 50,368 entries and its attention output has dropout 0.1;
here the vocabulary is the store's (`train-vocab --method=byte_bpe --lowercase=False --family=modernbert` makes one of
that kind), and there is no dropout.
The published weight decay of 1e-5 is a share of the weights per step at the peak rate; weight_decay is multiplied by
the rate, so it is 1e-5 / 8e-4 here. Not trained here: neither cost nor result is measured.
"""

from bert_jax.config import Config, DataConfig, MaskingConfig, OptimizerConfig, PhaseConfig, ScheduleConfig
from bert_jax.config.presets import modernbert


def get_config() -> Config:
    return Config(
        model=modernbert(num_layers=22, hidden_size=768, intermediate_size=1_152),
        data=DataConfig(sentence_pairs="none", short_sequence_probability=0.0, packing="on"),
        masking=MaskingConfig(rate=0.3),
        phases=(
            PhaseConfig(
                steps=374_900,
                sequence_length=1_024,
                batch_size=4_608,
                ramp_batch_sizes=(768, 1_536, 2_304, 3_072, 3_840),
                ramp_steps=21_200,
                learning_rate=8e-4,
                warmup_steps=3_815,
            ),
        ),
        optimizer=OptimizerConfig(name="stable_adamw", beta2=0.98, weight_decay=1e-5 / 8e-4, clip_norm=0.0),
        schedule=ScheduleConfig(name="constant"),
    )
