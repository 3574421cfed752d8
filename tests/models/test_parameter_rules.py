"""The partition, weight decay and layers of every array, compared with rules by path that are written by hand."""

import re

import pytest
from described_models import HEADS, MODELS, SMALL, detection, shapes, trained
from jax.sharding import PartitionSpec as P

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import MeshConfig
from bert_jax.devices import sharding
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import MODEL_PARTS
from bert_jax.models.task import BertForTask
from bert_jax.training.optimizers import included

# The axes by hand: the first rule that matches.
RULES = (
    (r"(embeddings/word|^contexts)/(table|delta)$", P("tensor", "fsdp")),
    (r"(embeddings|mask_decoder)/(position|token_type)/(table|delta)$", P(None, "fsdp")),
    (r"embeddings/target$|relative/table$", P(None, None, "fsdp")),
    (r"attention/(query|key|value|distance|position_key|position_query)/kernel$", P(None, "fsdp", "tensor", None)),
    (
        r"attention/((query|key|value|position_key|position_query)/|(content|distance|segment)_)bias$",
        P(None, "tensor", None),
    ),
    (r"attention/segments$", P(None, None, "tensor", None)),
    (r"attention/output/kernel$", P(None, "tensor", None, "fsdp")),
    (r"feed_forward/(intermediate|gate)/kernel$", P(None, "fsdp", "tensor")),
    (r"feed_forward/(intermediate|gate)/bias$", P(None, "tensor")),
    (r"feed_forward/output/kernel$", P(None, "tensor", "fsdp")),
    (r"encoder/(forward|backward)/kernel$", P(None, "fsdp", None)),
    (r"convolution/dense/kernel$", P(None, None, "fsdp", None)),
    (r"span_boundary/dense/kernel$", P(None, "fsdp")),
    (r"(projection|pooler|(mlm|words|tokens)/dense|tokens/output|next_sentence)/kernel$", P("fsdp", None)),
    (r"(mlm|words)/bias$|^context_biases/", P("tensor")),
    (r"", P()),
)
EXCLUDED = re.compile(r"(^|[/_])bias$|norm/scale$|^context_biases/")


def spec_by_rules(mesh, path: str, shape: tuple[int, ...]) -> P:
    rule = next(spec for pattern, spec in RULES if re.search(pattern, path))
    return P(*(None if axis and size % mesh.shape[axis] else axis for axis, size in zip(rule, shape)))


def every_model():
    yield from (BertForPreTraining(config, parts=MODEL_PARTS) for config in MODELS.values())
    yield trained(detection("disentangled"))
    yield from (BertForTask(config, head) for config in (SMALL, MODELS["pre"]) for head in HEADS.values())


@pytest.mark.parametrize(
    "mesh", [MeshConfig(), MeshConfig(fsdp=2, tensor=2), MeshConfig(data=1, fsdp=8), MeshConfig(data=2, tensor=4)]
)
def test_partition_equals_the_rules_by_path(mesh):
    mesh = sharding.make_mesh(mesh)
    for model in every_model():
        for path, parameter in model.parameters.items():
            assert sharding.partition_spec(mesh, parameter)[0] == spec_by_rules(mesh, path, parameter.shape), path


def test_decay_and_layers_equal_the_rules_by_path():
    for model in every_model():
        for path, parameter in model.parameters.items():
            assert parameter.decays == (EXCLUDED.search(path) is None), path
            below = re.search(r"(^|/)(embeddings|encoder/relative)/", path)
            layers = re.search(r"(^|/)encoder/", path) and not below
            assert parameter.layer_axis == (0 if layers else None), path
            assert parameter.embedding == bool(below), path
        tree = included(model.parameters, shapes(model))
        assert leaf_paths(tree) == {path: EXCLUDED.search(path) is None for path in leaf_paths(tree)}
