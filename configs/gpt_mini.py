"""A left-to-right Transformer at BERT-mini's size (4 layers, hidden size 256), as GPT (Radford et al. 2018).

    bert-jax pretrain gpt_mini --data.path=STORE --workdir=WORKDIR

It is what BERT's paper compares bidirectionality with (section 5.1): BERT's layers, each token seeing itself and those
before it, every token predicted from those before. Tasks read the last token of a text. Not GPT's: the vocabulary
(the store's, in place of 40,000 byte pairs), and the transform before the word logits. The whole run is not measured.
"""

import dataclasses

from bert_jax.config import Config, DataConfig, LeftToRight, OptimizerConfig, PhaseConfig
from bert_jax.config.presets import model_config


def get_config() -> Config:
    model = dataclasses.replace(model_config("mini"), direction="left_to_right", type_vocab_size=0, pair_head=False)
    return Config(
        model=model,
        data=DataConfig(sentence_pairs="none"),
        objective=LeftToRight(),
        phases=(PhaseConfig(steps=100_000, sequence_length=128, batch_size=256, learning_rate=7e-4),),
        optimizer=OptimizerConfig(name="adamw"),
    )
