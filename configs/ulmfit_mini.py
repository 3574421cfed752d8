"""ULMFiT's language model (Howard & Ruder 2018) at BERT-mini's width: three layers of LSTMs, from left to right.

    bert-jax pretrain ulmfit_mini --data.path=STORE --workdir=WORKDIR
    bert-jax finetune sst2 --init_from=WORKDIR --data.dir=SST-2 --workdir=TASK --gradual_unfreezing --epochs=5 \
      --layer_decay=0.385 --schedule.name=linear_after_warmup --schedule.final_fraction=0.03125

The second command is the paper's fine-tuning: the head first and a layer more in each epoch, each layer 2.6 times
slower than the one above it, and slanted triangular rates. Half of the weights from state to state are dropped in
every step (DropConnect), as in the paper. Not ULMFiT's: the other dropouts of AWD-LSTM, 1,150 states between embeddings
of 400, and the pooling of all states for classifiers, which here read the last. The whole run is not measured.
"""

from bert_jax.config import (
    Config,
    DataConfig,
    LeftToRight,
    NoPositions,
    OptimizerConfig,
    PhaseConfig,
    RecurrentConfig,
)


def get_config() -> Config:
    return Config(
        model=RecurrentConfig(
            hidden_size=256,
            num_layers=3,
            direction="left_to_right",
            positions=NoPositions(),
            type_vocab_size=0,
            pair_head=False,
            recurrent_dropout=0.5,
        ),
        data=DataConfig(sentence_pairs="none"),
        objective=LeftToRight(),
        phases=(PhaseConfig(steps=100_000, sequence_length=128, batch_size=128, learning_rate=1e-3),),
        optimizer=OptimizerConfig(name="adamw", weight_decay=0.0),
    )
