"""Analyses of a loaded model on the user's texts: functions that return objects with arrays, for notebooks.

`bert-jax analyze NAME MODEL …` runs the same functions, and writes JSON and pictures. Where a function does not say
otherwise, `batch_size` is the number of texts that the model reads at once, `max_length` the number of tokens per text
(None: as many as the model has positions), and `progress` tells whether to show a bar.
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
from bert_jax.analysis.vector_tasks import VectorScores, vector_scores
from bert_jax.analysis.widths import WidthChanges, draw_widths, width_changes
from bert_jax.analysis.words import (
    ContextSimilarity,
    SenseSimilarity,
    draw_context_similarity,
    draw_sense_similarity,
    similarity,
    word_senses,
)

__all__ = ["AttentionMaps", "attention", "attention_page", "draw_attention", "HeadAblation", "HeadBehaviour"]
__all__ += ["HeadRelations", "Mention", "ParsedText", "draw_head_ablation", "draw_head_clusters", "draw_head_relations"]
__all__ += ["draw_heads", "head_ablation", "head_relations", "heads", "read_parsed", "LayerIsotropy", "LayerSimilarity"]
__all__ += ["SentenceCorrelation", "cka", "draw_layer_isotropy", "draw_layer_similarity", "draw_sentence_correlation"]
__all__ += ["fit_postprocess", "isotropy", "sentence_correlation", "MaskGap", "draw_mask_gap", "mask_gap"]
__all__ += ["LayerProbes", "TaskProbes", "draw_probes", "probe", "ProbingTask", "make_task", "read_probing_tasks"]
__all__ += ["tagging_task", "Pruning", "RemovalCurve", "draw_pruning", "keep_layers", "prune", "TaskScore"]
__all__ += ["Initialisation", "draw_initialisation", "draw_positions", "init", "SpellingNoise", "TaskNoise"]
__all__ += ["draw_noise", "draw_task_noise", "noise", "task_noise", "ContextSimilarity", "SenseSimilarity"]
__all__ += ["draw_context_similarity", "draw_sense_similarity", "similarity", "word_senses", "VectorScores"]
__all__ += ["vector_scores", "WidthChanges", "draw_widths", "width_changes"]
