"""The encoder of one day on one GPU (16 layers, hidden size 768; Geiping & Goldstein 2023, "Cramming").

    bert-jax pretrain cramming --data.path=STORE --workdir=WORKDIR

The published crammed-bert.yaml and bert-o4.yaml: norms before each branch and gated feed-forward networks, whose gate
halves their width, without biases and dropout; 25 % of the tokens masked, one objective, a batch that grows over the
first 60 % of the run, and a rate that rises over three quarters of it and falls over the last. There a day decides how
long the run is; here it is 102,400,000 sequences. Theirs begins at a quarter of the peak rate, its positions are fixed,
and its head has no transform; this one begins at 0, learns positions and has BERT's head. Not trained here: neither
cost nor result is measured.
"""

from bert_jax.config import (
    Config,
    DataConfig,
    Learned,
    MaskingConfig,
    ModelConfig,
    OptimizerConfig,
    PhaseConfig,
    ScheduleConfig,
)


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            num_layers=16,
            max_position_embeddings=128,
            type_vocab_size=0,
            pair_head=False,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            norm_position="pre",
            use_bias=False,
            feed_forward="geglu",
            intermediate_size=1_536,
            positions=Learned(position_init="sinusoidal"),
        ),
        data=DataConfig(sentence_pairs="none", short_sequence_probability=0.0),
        masking=MaskingConfig(rate=0.25),
        phases=(
            PhaseConfig(
                steps=20_000,
                sequence_length=128,
                batch_size=8_192,
                ramp_batch_sizes=(2_048, 4_096, 6_144),
                ramp_steps=15_000,
                learning_rate=1e-3,
                warmup_steps=16_875,
            ),
        ),
        optimizer=OptimizerConfig(name="adamw", beta2=0.98, epsilon=1e-12, clip_norm=0.5),
        schedule=ScheduleConfig(name="linear_after_warmup"),
    )
