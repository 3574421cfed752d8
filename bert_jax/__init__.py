"""Pre-training of BERT and its family in JAX.

The names below are loaded on first use, so that importing the package, or asking a command for --help, stays instant.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import bert_jax.analysis as analysis  # noqa: F401 (a package, which has public names of its own)
    from bert_jax.analysis.vector_tasks import MtebEncoder
    from bert_jax.cli.evaluate import run_evaluate as evaluate
    from bert_jax.config import (
        Alibi,
        CheckpointConfig,
        ComputeConfig,
        Config,
        Convolution,
        DataConfig,
        DisentangledConfig,
        DistillationConfig,
        EvaluationConfig,
        FaultsConfig,
        GeneratorConfig,
        GloVe,
        GloVeConfig,
        HeadConfig,
        Learned,
        LearnedBias,
        LeftToRight,
        MaskedWords,
        MaskingConfig,
        MeshConfig,
        ModelConfig,
        NoPositions,
        OptimizerConfig,
        Permutation,
        PhaseConfig,
        PrepareConfig,
        PretrainingNoiseConfig,
        ProfileConfig,
        RecurrentConfig,
        ReplacedTokens,
        Rope,
        ScheduleConfig,
        SinksConfig,
        SkipGram,
        SkipGramConfig,
        TrainVocabConfig,
        TwoDirections,
        Window,
        WordVectorsConfig,
        XLNetConfig,
    )
    from bert_jax.config.finetuning import FinetuneConfig, InputFormConfig, LoraConfig, PredictConfig, task_defaults
    from bert_jax.config.heads import SingleVector, TokenVectors, WordVector
    from bert_jax.config.objective import TaskLossConfig
    from bert_jax.config.options import with_options
    from bert_jax.config.presets import model_config
    from bert_jax.config.ranking import BinaryLoss, LambdaLoss, ListNet, MarginLoss, SoftmaxLoss
    from bert_jax.config.search import (
        ExactSearch,
        FaissFlat,
        FaissHnsw,
        FaissIvf,
        IndexConfig,
        MineConfig,
        SearchConfig,
    )
    from bert_jax.config.serving import EngineOptions, ServeConfig
    from bert_jax.config.tasks import (
        ChoiceOptions,
        DataSourceConfig,
        DiagnosticOptions,
        RankingDataConfig,
        RankingOptions,
        SentenceOptions,
        Squad2Options,
        SquadOptions,
        TaggingDataConfig,
        TaggingOptions,
        TaskDataConfig,
        TextDataConfig,
        VectorDataConfig,
        VectorOptions,
        XnliDataConfig,
    )
    from bert_jax.config.vectors import (
        Angle,
        Cosent,
        CosineRegression,
        InfoNce,
        InheritedForm,
        KlDivergence,
        MarginMse,
        SparsityConfig,
        Triplet,
    )
    from bert_jax.data.preparation.prepare import run_prepare as prepare
    from bert_jax.data.preparation.vocabularies import run_train_vocab as train_vocab
    from bert_jax.data.store import open_store
    from bert_jax.errors import UserError
    from bert_jax.finetuning.loop import finetune
    from bert_jax.finetuning.prediction import run_predict as predict
    from bert_jax.finetuning.together import finetune_together
    from bert_jax.models.bert import BertForPreTraining
    from bert_jax.pretrained.model import PretrainedModel, load
    from bert_jax.pretrained.precision import quantize_embeddings
    from bert_jax.pretraining import pretrain
    from bert_jax.tokenization.tokenizer import Tokenizer, load_tokenizer
    from bert_jax.tools.export.directory import convert, export_model
    from bert_jax.tools.replay import replay
    from bert_jax.tools.search.index import Hit, SearchIndex
    from bert_jax.tools.search.index import run_index as index
    from bert_jax.tools.search.search import SearchResults
    from bert_jax.tools.search.search import run_mine as mine
    from bert_jax.tools.search.search import run_search as search
    from bert_jax.tools.serving.notebook import serve
    from bert_jax.training_data import Examples


__version__ = "0.1.0"


_HOMES = {  # public name: its module, with its name there if that differs
    "Alibi": "config",
    "Angle": "config.vectors",
    "BertForPreTraining": "models.bert",
    "BinaryLoss": "config.ranking",
    "CheckpointConfig": "config",
    "ChoiceOptions": "config.tasks",
    "ComputeConfig": "config",
    "Config": "config",
    "Convolution": "config",
    "Cosent": "config.vectors",
    "CosineRegression": "config.vectors",
    "DataConfig": "config",
    "DataSourceConfig": "config.tasks",
    "DiagnosticOptions": "config.tasks",
    "DisentangledConfig": "config",
    "DistillationConfig": "config",
    "EngineOptions": "config.serving",
    "EvaluationConfig": "config",
    "ExactSearch": "config.search",
    "Examples": "training_data",
    "FaissFlat": "config.search",
    "FaissHnsw": "config.search",
    "FaissIvf": "config.search",
    "FaultsConfig": "config",
    "FinetuneConfig": "config.finetuning",
    "GeneratorConfig": "config",
    "GloVe": "config",
    "GloVeConfig": "config",
    "HeadConfig": "config",
    "Hit": "tools.search.index",
    "IndexConfig": "config.search",
    "InfoNce": "config.vectors",
    "InheritedForm": "config.vectors",
    "InputFormConfig": "config.finetuning",
    "KlDivergence": "config.vectors",
    "LambdaLoss": "config.ranking",
    "Learned": "config",
    "LearnedBias": "config",
    "LeftToRight": "config",
    "ListNet": "config.ranking",
    "LoraConfig": "config.finetuning",
    "MarginLoss": "config.ranking",
    "MarginMse": "config.vectors",
    "MaskedWords": "config",
    "MaskingConfig": "config",
    "MeshConfig": "config",
    "MineConfig": "config.search",
    "ModelConfig": "config",
    "MtebEncoder": "analysis.vector_tasks",
    "NoPositions": "config",
    "OptimizerConfig": "config",
    "Permutation": "config",
    "PhaseConfig": "config",
    "PredictConfig": "config.finetuning",
    "PrepareConfig": "config",
    "PretrainedModel": "pretrained.model",
    "PretrainingNoiseConfig": "config",
    "ProfileConfig": "config",
    "RankingDataConfig": "config.tasks",
    "RankingOptions": "config.tasks",
    "RecurrentConfig": "config",
    "ReplacedTokens": "config",
    "Rope": "config",
    "ScheduleConfig": "config",
    "SearchConfig": "config.search",
    "SearchIndex": "tools.search.index",
    "SearchResults": "tools.search.search",
    "SentenceOptions": "config.tasks",
    "ServeConfig": "config.serving",
    "SingleVector": "config.heads",
    "SinksConfig": "config",
    "SkipGram": "config",
    "SkipGramConfig": "config",
    "SoftmaxLoss": "config.ranking",
    "SparsityConfig": "config.vectors",
    "Squad2Options": "config.tasks",
    "SquadOptions": "config.tasks",
    "TaggingDataConfig": "config.tasks",
    "TaggingOptions": "config.tasks",
    "TaskDataConfig": "config.tasks",
    "TaskLossConfig": "config.objective",
    "TextDataConfig": "config.tasks",
    "TokenVectors": "config.heads",
    "Tokenizer": "tokenization.tokenizer",
    "TrainVocabConfig": "config",
    "Triplet": "config.vectors",
    "TwoDirections": "config",
    "UserError": "errors",
    "VectorDataConfig": "config.tasks",
    "VectorOptions": "config.tasks",
    "Window": "config",
    "WordVector": "config.heads",
    "WordVectorsConfig": "config",
    "XLNetConfig": "config",
    "XnliDataConfig": "config.tasks",
    "convert": "tools.export.directory",
    "evaluate": "cli.evaluate:run_evaluate",
    "export_model": "tools.export.directory",
    "finetune": "finetuning.loop",
    "finetune_together": "finetuning.together",
    "index": "tools.search.index:run_index",
    "load": "pretrained.model",
    "load_tokenizer": "tokenization.tokenizer",
    "mine": "tools.search.search:run_mine",
    "model_config": "config.presets",
    "open_store": "data.store",
    "predict": "finetuning.prediction:run_predict",
    "prepare": "data.preparation.prepare:run_prepare",
    "pretrain": "pretraining",
    "quantize_embeddings": "pretrained.precision",
    "replay": "tools.replay",
    "search": "tools.search.search:run_search",
    "serve": "tools.serving.notebook",
    "task_defaults": "config.finetuning",
    "train_vocab": "data.preparation.vocabularies:run_train_vocab",
    "with_options": "config.options",
}
_PACKAGES = ("analysis",)
"""Packages that have public names of their own."""

__all__ = [
    "Alibi",
    "Angle",
    "BertForPreTraining",
    "BinaryLoss",
    "CheckpointConfig",
    "ChoiceOptions",
    "ComputeConfig",
    "Config",
    "Convolution",
    "Cosent",
    "CosineRegression",
    "DataConfig",
    "DataSourceConfig",
    "DiagnosticOptions",
    "DisentangledConfig",
    "DistillationConfig",
    "EngineOptions",
    "EvaluationConfig",
    "ExactSearch",
    "Examples",
    "FaissFlat",
    "FaissHnsw",
    "FaissIvf",
    "FaultsConfig",
    "FinetuneConfig",
    "GeneratorConfig",
    "GloVe",
    "GloVeConfig",
    "HeadConfig",
    "Hit",
    "IndexConfig",
    "InfoNce",
    "InheritedForm",
    "InputFormConfig",
    "KlDivergence",
    "LambdaLoss",
    "Learned",
    "LearnedBias",
    "LeftToRight",
    "ListNet",
    "LoraConfig",
    "MarginLoss",
    "MarginMse",
    "MaskedWords",
    "MaskingConfig",
    "MeshConfig",
    "MineConfig",
    "ModelConfig",
    "MtebEncoder",
    "NoPositions",
    "OptimizerConfig",
    "Permutation",
    "PhaseConfig",
    "PredictConfig",
    "PrepareConfig",
    "PretrainedModel",
    "PretrainingNoiseConfig",
    "ProfileConfig",
    "RankingDataConfig",
    "RankingOptions",
    "RecurrentConfig",
    "ReplacedTokens",
    "Rope",
    "ScheduleConfig",
    "SearchConfig",
    "SearchIndex",
    "SearchResults",
    "SentenceOptions",
    "ServeConfig",
    "SingleVector",
    "SinksConfig",
    "SkipGram",
    "SkipGramConfig",
    "SoftmaxLoss",
    "SparsityConfig",
    "Squad2Options",
    "SquadOptions",
    "TaggingDataConfig",
    "TaggingOptions",
    "TaskDataConfig",
    "TaskLossConfig",
    "TextDataConfig",
    "TokenVectors",
    "Tokenizer",
    "TrainVocabConfig",
    "Triplet",
    "TwoDirections",
    "UserError",
    "VectorDataConfig",
    "VectorOptions",
    "Window",
    "WordVector",
    "WordVectorsConfig",
    "XLNetConfig",
    "XnliDataConfig",
    "convert",
    "evaluate",
    "export_model",
    "finetune",
    "finetune_together",
    "index",
    "load",
    "load_tokenizer",
    "mine",
    "model_config",
    "open_store",
    "predict",
    "prepare",
    "pretrain",
    "quantize_embeddings",
    "replay",
    "search",
    "serve",
    "task_defaults",
    "train_vocab",
    "with_options",
]


if not TYPE_CHECKING:  # or type checkers would accept any name

    def __getattr__(name: str):
        if name in _PACKAGES:
            return importlib.import_module(f"bert_jax.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'bert_jax' has no attribute {name!r}")
        module, _, attribute = _HOMES[name].partition(":")
        return getattr(importlib.import_module(f"bert_jax.{module}"), attribute or name)


def __dir__() -> list[str]:
    return [*globals(), *__all__, *_PACKAGES]
