"""Analyses of a loaded model on texts of the user's: functions that return objects with arrays, for notebooks.

`bert-jax analyze NAME MODEL …` runs the same functions, and leaves JSON and pictures.
"""

from bert_jax.analysis.layer_isotropy import LayerIsotropy, isotropy
from bert_jax.analysis.layer_similarity import LayerSimilarity, cka
from bert_jax.analysis.pictures import draw_layer_isotropy, draw_layer_similarity
from bert_jax.analysis.postprocess_fitting import fit_postprocess

__all__ = [
    "LayerIsotropy",
    "LayerSimilarity",
    "cka",
    "draw_layer_isotropy",
    "draw_layer_similarity",
    "fit_postprocess",
    "isotropy",
]
