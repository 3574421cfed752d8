"""Skip-gram with negative sampling (Mikolov et al. 2013) at BERT-mini's width: one vector per piece, no layers.

    bert-jax pretrain skipgram_mini --data.path=STORE --workdir=WORKDIR
    bert-jax finetune sst2 --init_from=WORKDIR --data.dir=SST-2 --workdir=TASK --learning_rate=5e-3

Not word2vec's: pieces in place of words, means over batches with Adam in place of a gradient step per pair, and random
words that a row shares. Rows are cut like those of RoBERTa; windows end with them and with documents. The whole run is
not measured.
"""

from bert_jax.config import (
    Config,
    DataConfig,
    OptimizerConfig,
    PhaseConfig,
    SkipGram,
    SkipGramConfig,
    WordVectorsConfig,
)


def get_config() -> Config:
    return Config(
        model=WordVectorsConfig(
            hidden_size=256,
            hidden_dropout=0.0,
        ),
        data=DataConfig(sentence_pairs="none"),
        objective=SkipGram(static_vectors=SkipGramConfig(subsampling=1e-4)),
        phases=(PhaseConfig(steps=20_000, sequence_length=128, batch_size=128, learning_rate=1e-3),),
        optimizer=OptimizerConfig(name="adamw", weight_decay=0.0),
    )
