"""Analyses of a loaded model on the user's texts: functions that return objects with arrays, for notebooks.

`bert-jax analyze NAME MODEL …` runs the same functions, and writes JSON and pictures.
"""

from bert_jax.analysis.attention_maps import AttentionMaps, attention, attention_page, draw_attention
from bert_jax.analysis.head_behaviour import (
    HeadAblation,
    HeadBehaviour,
    HeadRelations,
    Mention,
    ParsedText,
    draw_head_ablation,
    draw_head_clusters,
    draw_head_relations,
    draw_heads,
    head_ablation,
    head_relations,
    heads,
    read_parsed,
)
from bert_jax.analysis.layers import (
    LayerIsotropy,
    LayerSimilarity,
    SentenceCorrelation,
    cka,
    draw_layer_isotropy,
    draw_layer_similarity,
    draw_sentence_correlation,
    fit_postprocess,
    isotropy,
    sentence_correlation,
)
from bert_jax.analysis.mask_memory import MaskGap, draw_mask_gap, mask_gap
from bert_jax.analysis.probes import LayerProbes, TaskProbes, draw_probes, probe
from bert_jax.analysis.probing_tasks import ProbingTask, make_task, read_probing_tasks, tagging_task
from bert_jax.analysis.pruning import Pruning, RemovalCurve, draw_pruning, keep_layers, prune
from bert_jax.analysis.results import TaskScore
from bert_jax.analysis.signal import Initialisation, draw_initialisation, draw_positions, init
from bert_jax.analysis.spelling import SpellingNoise, TaskNoise, draw_noise, draw_task_noise, noise, task_noise
from bert_jax.analysis.words import (
    ContextSimilarity,
    SenseSimilarity,
    draw_context_similarity,
    draw_sense_similarity,
    similarity,
    word_senses,
)

__all__ = [
    "AttentionMaps",
    "ContextSimilarity",
    "Initialisation",
    "HeadAblation",
    "HeadBehaviour",
    "HeadRelations",
    "LayerIsotropy",
    "LayerProbes",
    "LayerSimilarity",
    "MaskGap",
    "Mention",
    "ParsedText",
    "ProbingTask",
    "Pruning",
    "RemovalCurve",
    "SenseSimilarity",
    "SentenceCorrelation",
    "SpellingNoise",
    "TaskNoise",
    "TaskProbes",
    "TaskScore",
    "attention",
    "attention_page",
    "cka",
    "draw_attention",
    "draw_context_similarity",
    "draw_initialisation",
    "draw_head_ablation",
    "draw_head_clusters",
    "draw_head_relations",
    "draw_heads",
    "draw_layer_isotropy",
    "draw_layer_similarity",
    "draw_mask_gap",
    "draw_noise",
    "draw_probes",
    "draw_positions",
    "draw_pruning",
    "draw_sense_similarity",
    "draw_sentence_correlation",
    "draw_task_noise",
    "fit_postprocess",
    "init",
    "head_ablation",
    "head_relations",
    "heads",
    "isotropy",
    "keep_layers",
    "make_task",
    "mask_gap",
    "noise",
    "probe",
    "prune",
    "read_parsed",
    "read_probing_tasks",
    "sentence_correlation",
    "similarity",
    "tagging_task",
    "task_noise",
    "word_senses",
]
