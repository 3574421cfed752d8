"""Pre-training of BERT and its family in JAX.

The names below are loaded on first use, so that importing the package, or asking a command for --help, stays instant.
"""

import importlib

_HOMES = {
    "Config": "config",
    "ModelConfig": "config",
    "DataConfig": "config",
    "MaskingConfig": "config",
    "PhaseConfig": "config",
    "OptimizerConfig": "config",
    "ScheduleConfig": "config",
    "MeshConfig": "config",
    "ComputeConfig": "config",
    "CheckpointConfig": "config",
    "EvaluationConfig": "config",
    "UserError": "errors",
    "model_config": "config.presets",
    "BertForPreTraining": "models.bert",
    "pretrain": "pretraining",
    "load": "pretrained.loading",
    "PretrainedModel": "pretrained.model",
    "convert": "pretrained.conversion",
    "open_store": "data.store.store",
    "Examples": "data.examples.examples",
    "load_tokenizer": "tokenization.tokenizer",
    "finetune": "finetuning.loop",
    "FinetuneConfig": "config.finetuning",
    "TaskDataConfig": "config.finetuning",
    "TaskOptions": "config.finetuning",
    "task_defaults": "config.finetuning",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'bert_jax' has no attribute {name!r}")
    return getattr(importlib.import_module(f"bert_jax.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
