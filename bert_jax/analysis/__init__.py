"""Analyses of a loaded model on texts of the user's: functions that return objects with arrays, for notebooks.

`bert-jax analyze NAME MODEL …` runs the same functions, and leaves JSON and pictures.
"""

from bert_jax.analysis.attention_weights.attention_maps import AttentionMaps, attention
from bert_jax.analysis.attention_weights.attention_page import attention_page
from bert_jax.analysis.attention_weights.attention_pictures import draw_attention
from bert_jax.analysis.head_behaviour.head_ablation import HeadAblation, head_ablation
from bert_jax.analysis.head_behaviour.head_behaviour import HeadBehaviour, heads
from bert_jax.analysis.head_behaviour.head_pictures import (
    draw_head_ablation,
    draw_head_clusters,
    draw_head_relations,
    draw_heads,
)
from bert_jax.analysis.head_behaviour.head_relations import HeadRelations, head_relations
from bert_jax.analysis.head_behaviour.parsed_text import Mention, ParsedText, read_parsed
from bert_jax.analysis.layer_states.layer_isotropy import LayerIsotropy, isotropy
from bert_jax.analysis.layer_states.layer_pictures import (
    draw_layer_isotropy,
    draw_layer_similarity,
    draw_sentence_correlation,
)
from bert_jax.analysis.layer_states.layer_similarity import LayerSimilarity, cka
from bert_jax.analysis.layer_states.postprocess_fitting import fit_postprocess
from bert_jax.analysis.layer_states.sentence_correlation import SentenceCorrelation, sentence_correlation
from bert_jax.analysis.mask_memory.mask_overfitting import MaskGap, mask_gap
from bert_jax.analysis.mask_memory.mask_pictures import draw_mask_gap
from bert_jax.analysis.probing.layer_probes import LayerProbes, probe
from bert_jax.analysis.probing.probe_pictures import draw_probes
from bert_jax.analysis.probing.probing_task import ProbingTask, make_task
from bert_jax.analysis.probing.task_probes import TaskProbes
from bert_jax.analysis.probing.task_reading import read_probing_tasks
from bert_jax.analysis.probing.treebank_tasks import tagging_task
from bert_jax.analysis.pruning.kept_layers import keep_layers
from bert_jax.analysis.pruning.layer_removal import Pruning, RemovalCurve, prune
from bert_jax.analysis.pruning.pruning_pictures import draw_pruning
from bert_jax.analysis.signal.initialisation import Initialisation, init
from bert_jax.analysis.signal.signal_pictures import draw_initialisation, draw_positions
from bert_jax.analysis.spelling.noise_sums import SpellingNoise
from bert_jax.analysis.spelling.spelling_noise import noise
from bert_jax.analysis.spelling.spelling_pictures import draw_noise, draw_task_noise
from bert_jax.analysis.spelling.task_noise import TaskNoise, task_noise
from bert_jax.analysis.task_scores import TaskScore
from bert_jax.analysis.word_states.context_similarity import ContextSimilarity, similarity
from bert_jax.analysis.word_states.word_pictures import draw_context_similarity, draw_sense_similarity
from bert_jax.analysis.word_states.word_senses import SenseSimilarity, word_senses

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
