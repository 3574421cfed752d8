"""GloVe (Pennington et al. 2014) at BERT-mini's width: one vector per piece, from the counts of pairs, no layers.

    bert-jax count STORE --output=COUNTS
    bert-jax pretrain glove_mini --data.path=STORE --objective.static_vectors.counts=COUNTS --workdir=WORKDIR
    bert-jax finetune sst2 --init_from=WORKDIR --data.dir=SST-2 --workdir=TASK --learning_rate=5e-3

Not the original's: pieces in place of words; pairs in the order of the text, each with its share of the weight of its
cell, in place of cells in random order; Adam in place of AdaGrad; the vectors are those of words alone, to which the
original adds those of neighbours. Rows are cut like those of RoBERTa; windows end with them and with documents. The
whole run is not measured.
"""

from bert_jax.config import (
    Config,
    DataConfig,
    GloVe,
    GloVeConfig,
    OptimizerConfig,
    PhaseConfig,
    WordVectorsConfig,
)


def get_config() -> Config:
    return Config(
        model=WordVectorsConfig(
            hidden_size=256,
            hidden_dropout=0.0,
        ),
        data=DataConfig(sentence_pairs="none"),
        objective=GloVe(static_vectors=GloVeConfig(window=10)),
        phases=(PhaseConfig(steps=20_000, sequence_length=128, batch_size=128, learning_rate=1e-3),),
        optimizer=OptimizerConfig(name="adamw", weight_decay=0.0),
    )
