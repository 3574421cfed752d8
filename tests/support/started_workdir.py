"""Work directories that a run of pre-training has begun to write."""

from bert_jax.checkpoints.workdir import PRETRAINING, WorkDirectory, open_workdir
from bert_jax.config import Config, ModelConfig, PhaseConfig
from bert_jax.config.json_form import from_dict, to_dict

CONFIG = Config(
    model=ModelConfig(num_layers=2), phases=(PhaseConfig(steps=90), PhaseConfig(steps=10, sequence_length=512))
)


def opened(path, tokenizer, config=CONFIG, store="store-1", names=None, devices=None) -> WorkDirectory:
    """Take a directory as `pretrain` does; `names`: what it must have in common with an earlier start as well."""
    identity = {"store_fingerprint": store, "tokenizer_fingerprint": tokenizer.fingerprint} | (names or {})
    local = config.checkpoint.local_path
    return open_workdir(path, PRETRAINING, identity, to_dict(config), tokenizer, local_path=local, devices=devices)


def start(path, tokenizer, config=CONFIG, store="store-1"):
    opened(path, tokenizer, config, store).release()


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
