"""The names and layouts of BERT's parameters in `transformers`, for both directions.

PyTorch stores a kernel as [outputs, inputs] with the attention heads side by side, and every layer separately; ours are
[inputs, outputs] with a separate axis for the heads, and all layers of an encoder in one array.
"""

import collections
import re

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.errors import UserError
from bert_jax.formats.places import Place, place
from bert_jax.models.parameters import PRETRAINING_PARTS, ParameterTable, bert_parameters

WORD_TABLE = "bert.embeddings.word_embeddings.weight"
DECODER_TABLE, DECODER_BIAS = "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"
TIED = {DECODER_TABLE: WORD_TABLE, DECODER_BIAS: "cls.predictions.bias"}  # second names of one array
BUFFERS = re.compile(r"(^|\.)(position_ids|token_type_ids)$")
LAYER = re.compile(r"bert\.encoder\.layer\.(\d+)\.")
_OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}  # LayerNorm's, in files converted in 2018 and 2019

MODULES = {
    "embeddings/word": "bert.embeddings.word_embeddings",
    "embeddings/position": "bert.embeddings.position_embeddings",
    "embeddings/token_type": "bert.embeddings.token_type_embeddings",
    "embeddings/norm": "bert.embeddings.LayerNorm",
    "encoder/attention/query": "bert.encoder.layer.{}.attention.self.query",
    "encoder/attention/key": "bert.encoder.layer.{}.attention.self.key",
    "encoder/attention/value": "bert.encoder.layer.{}.attention.self.value",
    "encoder/attention/output": "bert.encoder.layer.{}.attention.output.dense",
    "encoder/attention_norm": "bert.encoder.layer.{}.attention.output.LayerNorm",
    "encoder/feed_forward/intermediate": "bert.encoder.layer.{}.intermediate.dense",
    "encoder/feed_forward/output": "bert.encoder.layer.{}.output.dense",
    "encoder/feed_forward_norm": "bert.encoder.layer.{}.output.LayerNorm",
    "pooler": "bert.pooler.dense",
    "mlm/dense": "cls.predictions.transform.dense",
    "mlm/norm": "cls.predictions.transform.LayerNorm",
    "mlm": "cls.predictions",
    "next_sentence": "cls.seq_relationship",
    "head": "classifier",
}
"""Our modules → theirs, with {} for the layer. That of a span head is qa_outputs."""

ABSENT = {
    "final_norm": "model.norm_position=pre: transformers' BERT only normalizes after each branch (post), so this model "
    "cannot be written for it",
    "crf": "the head of this model has a CRF, and transformers has no class for that; use --to=bert_jax",
    "head/layer_": "the head of this model has a BiLSTM, and transformers has no class for that; use --to=bert_jax",
    "head/mix": "the head of this model mixes layers, and transformers has no class for that; use --to=bert_jax",
}
"""Beginnings of paths that have no counterpart there, and the reasons."""


def places(parameters: ParameterTable, head: HeadConfig | None = None) -> dict[str, Place]:
    """Return {our path: place} for every parameter except those below ABSENT.

    Raises:
      UserError: MODULES does not name a parameter.
    """
    found = {}
    for path, parameter in parameters.items():
        if path.startswith(tuple(ABSENT)):
            continue
        module, _, leaf = path.rpartition("/")
        if module not in MODULES:
            raise UserError(
                f"transformers has no name for the parameter {path}, so this model cannot be written for it; use "
                "--to=bert_jax, or give it a name in bert_jax/formats/huggingface_names.py"
            )
        name = "qa_outputs" if module == "head" and head and head.kind == "span" else MODULES[module]
        name = f"{name}.{'bias' if leaf == 'bias' else 'weight'}"
        found[path] = place(parameter, name, outputs_first=leaf == "kernel")
    return found


def table(model: ModelConfig, head: HeadConfig | None = None) -> dict[str, Place]:
    """Return `places` for every parameter that a model of these sizes can have, including optional parts."""
    return places(bert_parameters(model, PRETRAINING_PARTS, head), head)


def absence(parameters: ParameterTable) -> str | None:
    """Return why transformers cannot hold a model with these parameters; None if it can."""
    return next((why for start, why in ABSENT.items() if any(path.startswith(start) for path in parameters)), None)


def canonical(name: str) -> str:
    """Return the current name of a parameter in BertForPreTraining: with "bert.", weight and bias, one decoder bias."""
    for old, new in _OLD_ENDINGS.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    if name.startswith(("embeddings.", "encoder.", "pooler.")):
        name = f"bert.{name}"
    return name


def number_of_layers(names) -> int:
    """Return the number of encoder layers that the names in a file mention."""
    layers = {match[1] for name in names if (match := LAYER.match(name))}
    return len(layers)


def repeated(names: dict[str, str]) -> list[tuple[str, str]]:
    """Return pairs of stored names of the same parameter; `names`: stored name → canonical name."""
    meanings = collections.defaultdict(list)
    for stored, name in names.items():
        meanings[name].append(stored)
    return [(stored[0], stored[1]) for stored in meanings.values() if len(stored) > 1]
