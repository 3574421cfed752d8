"""The encoder of one day on one GPU (12 layers, hidden size 768; Geiping & Goldstein 2023, "Cramming").

    bert-jax pretrain cramming --data.path=STORE --workdir=WORKDIR

BERT-base with norms before each branch and gated feed-forward networks, without biases and dropout; 25 % of the tokens
masked, one objective, a rate that rises for half of the run and falls for the other, as their one-cycle. As in the
paper, the gate halves the width of the network. Their batch grows over the run; here it is constant. Not trained here:
neither cost nor result is measured.
"""

from bert_jax.config import Config, DataConfig, MaskingConfig, ModelConfig, OptimizerConfig, PhaseConfig, ScheduleConfig


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            max_position_embeddings=128,
            type_vocab_size=0,
            pair_head=False,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            norm_position="pre",
            use_bias=False,
            feed_forward="geglu",
            intermediate_size=1_536,
            position_init="sinusoidal",
        ),
        data=DataConfig(sentence_pairs="none", short_sequence_probability=0.0),
        masking=MaskingConfig(rate=0.25),
        phases=(
            PhaseConfig(steps=50_000, sequence_length=128, batch_size=2_048, learning_rate=1e-3, warmup_steps=25_000),
        ),
        optimizer=OptimizerConfig(name="adamw", beta2=0.98, epsilon=1e-12, clip_norm=0.5),
        schedule=ScheduleConfig(name="linear_after_warmup"),
    )
