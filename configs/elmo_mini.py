"""ELMo's language models (Peters et al. 2018) at BERT-mini's width: two layers of LSTMs, 128 features per direction.

    bert-jax pretrain elmo_mini --data.path=STORE --workdir=WORKDIR
    bert-jax finetune sst2 --init_from=WORKDIR --data.dir=SST-2 --workdir=TASK --features=weighted_with_embeddings \
      --learning_rate=1e-3

Each token is predicted from those before it and, by LSTMs of their own, from those after it. The second command uses
the weighted sum of embeddings and layers as the paper does, as features of another network; without --features the
whole model is trained. Not ELMo's: pieces in place of characters, states that are not projected down from wider cells,
and a vocabulary small enough for the whole softmax. The whole run is not measured.
"""

from bert_jax.config import (
    Config,
    DataConfig,
    NoPositions,
    OptimizerConfig,
    PhaseConfig,
    RecurrentConfig,
    TwoDirections,
)


def get_config() -> Config:
    return Config(
        model=RecurrentConfig(
            hidden_size=256,
            num_layers=2,
            positions=NoPositions(),
            type_vocab_size=0,
            pair_head=False,
        ),
        data=DataConfig(sentence_pairs="none"),
        objective=TwoDirections(),
        phases=(PhaseConfig(steps=100_000, sequence_length=128, batch_size=128, learning_rate=1e-3),),
        optimizer=OptimizerConfig(name="adamw", weight_decay=0.0, clip_norm=10.0),
    )
