"""Every option of every command, as frozen dataclasses.

Only the standard library is imported here, so that `--help` is instant.
"""

from bert_jax.config.corpora import PrepareConfig, TrainVocabConfig
from bert_jax.config.model import DisentangledConfig, EmbeddingConfig, HeadConfig, ModelConfig
from bert_jax.config.objective import DistillationConfig, GeneratorConfig, ObjectiveConfig, StaticVectorsConfig
from bert_jax.config.pretraining import (
    CheckpointConfig,
    ComputeConfig,
    Config,
    DataConfig,
    EvaluationConfig,
    FaultsConfig,
    HostFaultsConfig,
    MaskingConfig,
    MeshConfig,
    OptimizerConfig,
    Phase,
    PhaseConfig,
    PretrainingNoiseConfig,
    ProfileConfig,
    ScheduleConfig,
    SinksConfig,
    max_predictions,
    resolve_phases,
    resolve_stages,
    schedule_length,
    warmup_steps,
)

__all__ = [
    "CheckpointConfig",
    "ComputeConfig",
    "Config",
    "DataConfig",
    "DisentangledConfig",
    "DistillationConfig",
    "EmbeddingConfig",
    "EvaluationConfig",
    "FaultsConfig",
    "GeneratorConfig",
    "HeadConfig",
    "HostFaultsConfig",
    "MaskingConfig",
    "MeshConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
    "Phase",
    "PhaseConfig",
    "PrepareConfig",
    "PretrainingNoiseConfig",
    "ProfileConfig",
    "ScheduleConfig",
    "SinksConfig",
    "StaticVectorsConfig",
    "TrainVocabConfig",
    "max_predictions",
    "resolve_phases",
    "resolve_stages",
    "schedule_length",
    "warmup_steps",
]
