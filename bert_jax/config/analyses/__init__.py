"""Options of `bert-jax analyze`, per analysis, as frozen dataclasses; standard library only.

The docstring of an analysis is its help: its usage, then what it does. Its `check` is called before a model is opened.
"""

from bert_jax.config.analyses.attention_options import AttentionConfig
from bert_jax.config.analyses.head_options import HeadsConfig
from bert_jax.config.analyses.layer_options import CkaConfig, IsotropyConfig
from bert_jax.config.analyses.mask_options import MaskGapConfig
from bert_jax.config.analyses.probe_options import ProbeConfig
from bert_jax.config.analyses.pruning_options import PruneConfig
from bert_jax.config.analyses.signal_options import InitConfig
from bert_jax.config.analyses.spelling_options import SpellingConfig
from bert_jax.config.analyses.word_options import SimilarityConfig

ANALYSES = {
    "attention": AttentionConfig,
    "cka": CkaConfig,
    "heads": HeadsConfig,
    "init": InitConfig,
    "isotropy": IsotropyConfig,
    "mask_gap": MaskGapConfig,
    "noise": SpellingConfig,
    "probe": ProbeConfig,
    "prune": PruneConfig,
    "similarity": SimilarityConfig,
}
