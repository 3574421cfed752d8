"""Every option of every command, as frozen dataclasses.

Only the standard library is imported here, so that `--help` is instant.
"""

from bert_jax.config.encoder import ModelConfig
from bert_jax.config.encoder_heads import EmbeddingConfig, HeadConfig
from bert_jax.config.faults import FaultsConfig, HostFaultsConfig
from bert_jax.config.generator import GeneratorConfig
from bert_jax.config.noise import PretrainingNoiseConfig
from bert_jax.config.objectives import ObjectiveConfig
from bert_jax.config.optimization import OptimizerConfig, ScheduleConfig
from bert_jax.config.options import (
    CheckpointConfig,
    ComputeConfig,
    Config,
    DataConfig,
    EvaluationConfig,
    MaskingConfig,
    MeshConfig,
    PhaseConfig,
)
from bert_jax.config.phases import Phase, max_predictions, resolve_phases, resolve_stages, schedule_length, warmup_steps
from bert_jax.config.preparing import PrepareConfig, TrainVocabConfig
from bert_jax.config.relative_attention import DisentangledConfig
from bert_jax.config.static_vectors import StaticVectorsConfig
from bert_jax.config.teachers import DistillationConfig
from bert_jax.config.watching import ProfileConfig, SinksConfig

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
