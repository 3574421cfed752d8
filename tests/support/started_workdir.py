"""Work directories that a run of pre-training has begun to write."""

from bert_jax.checkpoints.workdir import open_pretraining
from bert_jax.config import Config, ModelConfig, PhaseConfig
from bert_jax.config.json_form import from_dict, to_dict

CONFIG = Config(
    model=ModelConfig(num_layers=2), phases=(PhaseConfig(steps=90), PhaseConfig(steps=10, sequence_length=512))
)


def start(path, tokenizer, config=CONFIG, store="store-1"):
    open_pretraining(path, config, store_fingerprint=store, tokenizer=tokenizer).release()


def changed(**options) -> Config:
    """CONFIG with dotted options replaced: changed(**{"phases.1.steps": 20})."""
    values = to_dict(CONFIG)
    for name, value in options.items():
        *parents, last = name.split(".")
        part = values
        for parent in parents:
            part = part[int(parent) if parent.isdigit() else parent]
        part[int(last) if last.isdigit() else last] = value
    return from_dict(Config, values)
