"""The names and layouts of BERT's parameters in Google's TF1 code of 2018, for both directions."""

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.errors import UserError
from bert_jax.formats.places import Place, place
from bert_jax.models.bert_parameters import PRETRAINING_PARTS, bert_parameters
from bert_jax.models.parameters import ParameterTable

MODULES = {
    "embeddings/word": "bert/embeddings/word_embeddings",
    "embeddings/position": "bert/embeddings/position_embeddings",
    "embeddings/token_type": "bert/embeddings/token_type_embeddings",
    "embeddings/norm": "bert/embeddings/LayerNorm",
    "encoder/attention/query": "bert/encoder/layer_{}/attention/self/query",
    "encoder/attention/key": "bert/encoder/layer_{}/attention/self/key",
    "encoder/attention/value": "bert/encoder/layer_{}/attention/self/value",
    "encoder/attention/output": "bert/encoder/layer_{}/attention/output/dense",
    "encoder/attention_norm": "bert/encoder/layer_{}/attention/output/LayerNorm",
    "encoder/feed_forward/intermediate": "bert/encoder/layer_{}/intermediate/dense",
    "encoder/feed_forward/output": "bert/encoder/layer_{}/output/dense",
    "encoder/feed_forward_norm": "bert/encoder/layer_{}/output/LayerNorm",
    "pooler": "bert/pooler/dense",
    "mlm/dense": "cls/predictions/transform/dense",
    "mlm/norm": "cls/predictions/transform/LayerNorm",
    "mlm": "cls/predictions/output",
    "next_sentence": "cls/seq_relationship/output",
}
"""Our modules → theirs, with {} for the layer."""
HEADS = {"classification": "output", "regression": "output", "span": "cls/squad/output"}
"""Kind of the head → their name (run_classifier.py, run_squad.py)."""
ABSENT = {
    "final_norm": "neither Google's TF1 code nor transformers' BERT has LayerNorm there",
    "crf": "Google's TF1 code has no CRF",
    "head/layer_": "Google's TF1 code has no BiLSTM",
    "head/mix": "Google's TF1 code does not mix layers",
}
"""Beginnings of paths that have no counterpart there, and the reasons. Nor have heads of kinds not in HEADS."""

_NORM = {"scale": "/gamma", "bias": "/beta"}
_DENSE = {"kernel": "/kernel", "bias": "/bias", "table": ""}
_OUTPUT = {"kernel": "_weights", "bias": "_bias"}  # the original multiplies by these weights transposed


def places(parameters: ParameterTable, head: HeadConfig | None = None) -> dict[str, Place]:
    """Return {our path: place} for every parameter except those below ABSENT and those of a head that is not in HEADS.

    Raises:
      UserError: MODULES does not name a parameter.
    """
    modules = MODULES | ({"head": HEADS[head.kind]} if head and head.kind in HEADS else {})
    found = {}
    for path, parameter in parameters.items():
        module, _, leaf = path.rpartition("/")
        if path.startswith(tuple(ABSENT)) or (module == "head" and module not in modules):
            continue
        if module not in modules:
            raise UserError(
                f"Google's TF1 code has no name for the parameter {path}, so this model cannot be written in that "
                "format; use --to=bert_jax, or give it a name in bert_jax/formats/tf_names.py"
            )
        name = modules[module]
        output = name.split("/")[-1] == "output"
        leaves = _NORM if name.endswith("LayerNorm") else _OUTPUT if output else _DENSE
        found[path] = place(parameter, name + leaves[leaf], outputs_first=output and leaf == "kernel")
    return found


def table(model: ModelConfig, head: HeadConfig | None = None) -> dict[str, Place]:
    """Return `places` for every parameter that a model of these sizes can have, including optional parts."""
    return places(bert_parameters(model, PRETRAINING_PARTS, head), head)
