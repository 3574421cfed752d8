"""NeoBERT's encoder (28 layers, hidden size 768; Le Breton et al. 2025): RoPE, SwiGLU, RMSNorm, no biases.

    bert-jax pretrain neobert --data.path=STORE --workdir=WORKDIR

Its first phase, 1,024 tokens: 20 % of the tokens masked, all of them by [MASK]. Batch, warm-up, betas, epsilon and
clipping are those of the authors' repository (jobs/neobert.sh, conf/). Its optimizer file has a peak rate of 1e-4 and a
decay of 0.01; here they are 6e-4 and 0.1, which we attribute to the paper and could not read there again: set
--phases.0.learning_rate and --optimizer.weight_decay for the others. The rate of the published run falls over 900,000
steps and is constant for the last 100,000; here it falls to the last step. The published model has no transform in its
head and an output table of its own; this one has BERT's head. Not trained here: neither cost nor result is measured.
"""

from bert_jax.config import (
    Config,
    DataConfig,
    MaskingConfig,
    ModelConfig,
    OptimizerConfig,
    PhaseConfig,
    Rope,
    ScheduleConfig,
)


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            num_layers=28,
            intermediate_size=2_048,
            max_position_embeddings=1_024,
            type_vocab_size=0,
            pair_head=False,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            layer_norm_epsilon=1e-5,
            norm_position="pre",
            norm="rms_norm",
            use_bias=False,
            feed_forward="swiglu",
            positions=Rope(),
        ),
        data=DataConfig(sentence_pairs="none", packing="on"),
        masking=MaskingConfig(rate=0.2, mask_share=1.0, random_share=0.0),
        phases=(
            PhaseConfig(
                steps=1_000_000, sequence_length=1_024, batch_size=2_048, learning_rate=6e-4, warmup_steps=2_000
            ),
        ),
        optimizer=OptimizerConfig(name="adamw", beta2=0.95, epsilon=1e-8, weight_decay=0.1),
        schedule=ScheduleConfig(name="cosine", final_fraction=0.1),
    )
