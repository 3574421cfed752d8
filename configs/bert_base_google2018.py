"""BERT-base with every option as fixed in the code of 2018; docs/google2018.md names what that changes.

    bert-jax pretrain bert_base_google2018 --data.path=gs://BUCKET/store --workdir=gs://BUCKET/bert-base-2018

900,000 steps at length 128, then 100,000 at 512, as bert_base. No document is held out, so training prints no held-out
figures: give --data.eval_path=STORE another store for them. Time and result of this configuration: not measured.
"""

from bert_jax.config import Config, PhaseConfig
from bert_jax.config.presets import google2018, model_config


def get_config() -> Config:
    return google2018(
        Config(
            model=model_config("base"),
            phases=(
                PhaseConfig(steps=900_000, sequence_length=128, batch_size=256, max_predictions=20),
                PhaseConfig(steps=100_000, sequence_length=512, batch_size=256, max_predictions=77),
            ),
        )
    )
