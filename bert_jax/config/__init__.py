"""Every option of every command, as frozen dataclasses.

Only the standard library is imported here, so that `--help` is instant.
"""

from bert_jax.config.options import (
    CheckpointConfig,
    ComputeConfig,
    Config,
    DataConfig,
    EmbeddingConfig,
    EvaluationConfig,
    HeadConfig,
    MaskingConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    PhaseConfig,
    PrepareConfig,
    ScheduleConfig,
    TrainVocabConfig,
    max_predictions,
    schedule_length,
    warmup_steps,
)

__all__ = [
    "CheckpointConfig",
    "ComputeConfig",
    "Config",
    "DataConfig",
    "EmbeddingConfig",
    "EvaluationConfig",
    "HeadConfig",
    "MaskingConfig",
    "MeshConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PhaseConfig",
    "PrepareConfig",
    "ScheduleConfig",
    "TrainVocabConfig",
    "max_predictions",
    "schedule_length",
    "warmup_steps",
]
