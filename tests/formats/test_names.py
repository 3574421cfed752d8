"""Names in other formats: every parameter that a model can have has one, or a reason why not."""

import numpy as np
import pytest

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.errors import UserError
from bert_jax.formats import huggingface, tf1
from bert_jax.formats.stored import place_of
from bert_jax.models.bert_parameters import PRETRAINING_PARTS, bert_parameters
from bert_jax.parameters import Axis, Parameter, table

LABELS = ("O", "B-X", "I-X")
HEADS = [
    None,
    HeadConfig(labels=LABELS),
    *(HeadConfig(kind=kind) for kind in ("regression", "span", "choice")),
    HeadConfig(kind="tagging", labels=LABELS, crf=True),
    HeadConfig(kind="tagging", labels=LABELS, crf=True, features="weighted_all", lstm_size=5),
]


def sized(norm_position: str = "post") -> ModelConfig:
    return ModelConfig(vocab_size=11, hidden_size=12, num_layers=3, num_heads=2, norm_position=norm_position)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("names, norm_position", [(huggingface, "post"), (tf1, "post"), (tf1, "pre")])
def test_every_parameter_has_a_name_or_a_reason(names, head, norm_position):
    parameters = bert_parameters(sized(norm_position), PRETRAINING_PARTS, head)
    places = names.places(parameters, head)
    assert list(places) == [path for path in parameters if path in places]
    for path in {*parameters} - {*places}:
        foreign_head = path.startswith("head/") and names is tf1 and head.kind not in tf1.HEADS
        assert foreign_head or [why for start, why in names.ABSENT.items() if path.startswith(start)], path
    theirs = [name for each in places.values() for name in each.names]
    assert len(theirs) == len(set(theirs))
    assert {path: each.shape for path, each in places.items()} == {path: parameters[path].shape for path in places}


@pytest.mark.parametrize("names", [huggingface, tf1])
def test_a_parameter_without_a_name_is_an_error(names):
    gate = Parameter("encoder/gate/kernel", (Axis("layer", 3), Axis("hidden", 12), Axis("intermediate", 48)))
    with pytest.raises(UserError, match="encoder/gate/kernel.*--to=bert_jax"):
        names.places(bert_parameters(sized()) | table([gate]))


LAYER, HIDDEN, LABEL = Axis("layer", 3), Axis("hidden", 8), Axis("label", 5)
AXES = [(HIDDEN,), (HIDDEN, LABEL), (HIDDEN, Axis("heads", 2), Axis("head_size", 4))]


@pytest.mark.parametrize("axes", [*AXES, (*AXES[2][1:], HIDDEN), *((LAYER, *axes) for axes in AXES)])
@pytest.mark.parametrize("outputs_first", [False, True])
def test_parts_of_an_array_come_back_as_they_were_written(axes, outputs_first):
    values = np.random.default_rng(0).normal(size=[axis.size for axis in axes]).astype(np.float32)
    where = place_of(Parameter("x", axes), "x{}", outputs_first)
    stacked = axes[0] == LAYER
    files = {
        name: where.split_up(part) for name, part in zip(where.names, values if stacked else [values], strict=True)
    }
    if outputs_first and len(axes) == 2 and not stacked:
        np.testing.assert_array_equal(files["x{}"], values.T)
    for index in np.ndindex(*[2] * len(axes)):
        part = tuple(slice(1, axis.size) if cut else slice(0, 1) for axis, cut in zip(axes, index, strict=True))
        found = where.read(lambda name, index: files[name][index], part)
        np.testing.assert_array_equal(found, values[part])
