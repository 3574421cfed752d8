"""The table of parameters: compared with the arrays that models make, and what it is checked against."""

import dataclasses
import importlib
import itertools
import pathlib
import subprocess
import sys

import jax
import optax
import pytest
from described_models import HEADS, LABELS, MODELS, SMALL, detection, shapes, trained
from jax.sharding import PartitionSpec as P

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import HeadConfig, MeshConfig, OptimizerConfig
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import MODEL_PARTS, PRETRAINING_PARTS, bert_parameters
from bert_jax.models.costs import trained_parameters
from bert_jax.models.task import BertForTask
from bert_jax.parameters import (
    Axis,
    Parameter,
    entries,
    linear,
    norm,
    row_tables,
    state_entries,
    state_names,
    table,
    total_size,
)
from bert_jax.training.optimizers import optimizer
from bert_jax.training.state import abstract_state

ROOT = pathlib.Path(__file__).parents[2]
CONFIGS = sorted(path.stem for path in (ROOT / "configs").glob("*.py"))


def assert_equal(model) -> None:
    made = leaf_paths(shapes(model))
    assert {path: parameter.shape for path, parameter in model.parameters.items()} == {
        path: leaf.shape for path, leaf in made.items()
    }
    assert all(path == parameter.path for path, parameter in model.parameters.items())
    assert total_size(model.parameters) == sum(leaf.size for leaf in made.values())


@pytest.mark.parametrize("name", CONFIGS)
def test_what_every_shipped_configuration_trains_is_described(name, monkeypatch):
    """By the model, and by what `info` counts without one."""
    monkeypatch.syspath_prepend(str(ROOT))
    config = importlib.import_module(f"configs.{name}").get_config()
    model = dataclasses.replace(config.model, vocab_size=config.model.vocab_size or 30_522)
    config = dataclasses.replace(config, model=model)
    assert_equal(trained(config))
    assert trained_parameters(config) == trained(config).parameters


@pytest.mark.parametrize("name", MODELS)
def test_every_variant_of_the_encoder_is_described(name):
    for size in range(len(PRETRAINING_PARTS) + 1):
        for parts in itertools.combinations(PRETRAINING_PARTS, size):
            assert_equal(BertForPreTraining(MODELS[name], parts=parts))
    assert_equal(BertForPreTraining(MODELS[name], parts=MODEL_PARTS))


@pytest.mark.parametrize("embeddings", ["shared", "own", "disentangled"])
def test_a_discriminator_and_its_generator_are_described(embeddings):
    config = detection(embeddings)
    assert_equal(trained(config))
    assert trained_parameters(config) == trained(config).parameters


@pytest.mark.parametrize("model", ["default", "pre", "modern"])
@pytest.mark.parametrize("head", HEADS)
def test_every_variant_of_the_head_is_described(model, head):
    assert_equal(BertForTask(MODELS[model], HEADS[head]))


def test_tables_with_a_row_per_word_or_position():
    parameters = bert_parameters(SMALL, head=HEADS["tagging, CRF"])
    assert row_tables(parameters, "vocab") == ("embeddings/word/table", "mlm/bias")
    assert row_tables(parameters, "position") == ("embeddings/position/table",)


def abstract(*shape) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def test_an_array_that_the_table_does_not_know_is_an_error():
    model = BertForPreTraining(SMALL)
    tree = shapes(model)
    tree["encoder"]["feed_forward"]["gate"] = {"kernel": abstract(4, 24, 96)}
    with pytest.raises(UserError, match=r"encoder/feed_forward/gate/kernel \[4, 24, 96\] is not in .*`parameters`"):
        entries(model.parameters, tree)
    with pytest.raises(UserError, match="generator/pooler/kernel .* is not in"):
        entries(model.parameters, {"generator": {"pooler": {"kernel": abstract(24, 24)}}})


def test_an_array_of_another_shape_is_an_error():
    model = BertForPreTraining(SMALL)
    tree = shapes(model)
    tree["encoder"]["attention"]["query"]["kernel"] = abstract(24, 3, 8)  # of one layer, not stacked
    wanted = r"query/kernel is \[24, 3, 8\], .*axes \[layer=4, hidden=24, heads=3, head_size=8\]"
    with pytest.raises(UserError, match=wanted):
        entries(model.parameters, tree)
    tree["encoder"]["attention"]["query"]["kernel"] = abstract(4, 24, 8, 3)
    with pytest.raises(UserError, match=r"query/kernel is \[4, 24, 8, 3\]"):
        entries(model.parameters, tree)


class Gated(BertForPreTraining):
    """A model with one array more than its table says."""

    def init(self, key):
        params = super().init(key)
        params["encoder"]["gate"] = {"kernel": jax.numpy.zeros((4, 24, 96))}
        return params


@dataclasses.dataclass(frozen=True)
class Described(Gated):
    @property
    def parameters(self):
        gate = Parameter("encoder/gate/kernel", (Axis("layer", 4), Axis("hidden", 24), Axis("intermediate", 96)))
        return {**bert_parameters(self.config, self.parts), gate.path: gate}


def test_a_model_is_partitioned_and_optimized_by_the_table_that_it_brings():
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    lamb = OptimizerConfig(name="lamb")
    model = Gated(SMALL)
    with pytest.raises(UserError, match="encoder/gate/kernel"):
        abstract_state(model, optimizer(lamb, model.parameters), mesh)
    model = Described(SMALL)
    state = abstract_state(model, optimizer(lamb, model.parameters), mesh)
    for leaf in (state.params, state.optimizer_state[0].mu, state.optimizer_state[0].nu):
        assert leaf["encoder"]["gate"]["kernel"].sharding.spec == P(None, "fsdp", "tensor")


def test_moments_are_split_like_their_parameters_and_what_else_an_optimizer_keeps_is_whole_everywhere():
    parameters = bert_parameters(SMALL)
    moments, factored = ({"pooler": {"kernel": abstract(*shape)}} for shape in ((24, 24), (24,)))
    state = {"count": abstract(), "mu": moments, "rows": factored, "last": abstract(3)}
    found = state_entries(parameters, state)
    assert found["mu"]["pooler"]["kernel"].axes == parameters["pooler/kernel"].axes
    assert [found["count"].axes, found["rows"]["pooler"]["kernel"].axes, found["last"].axes] == [(), (), ()]
    assert state_names(parameters, state) == ["count", "last", "mu", "rows"]


def test_a_factored_optimizer_is_placed_on_a_mesh():
    factored = optax.chain(optax.scale_by_factored_rms(min_dim_size_to_factor=8), optax.trace(0.9))
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    state = abstract_state(BertForPreTraining(SMALL), factored, mesh)
    rows, trace = state.optimizer_state[0].v_row, state.optimizer_state[1].trace
    kernel = lambda tree: tree["encoder"]["feed_forward"]["intermediate"]["kernel"]
    assert kernel(rows).shape != kernel(state.params).shape and kernel(rows).sharding.is_fully_replicated
    assert kernel(trace).sharding.spec == kernel(state.params).sharding.spec == P(None, "fsdp", "tensor")


@dataclasses.dataclass(frozen=True)
class Promising(BertForPreTraining):
    """Its table has an array that it does not make."""

    @property
    def parameters(self):
        return {**super().parameters, **table(linear("encoder/gate", (Axis("hidden", 24),), (Axis("hidden", 24),)))}


def test_an_entry_without_an_array_is_an_error():
    model = Promising(SMALL)
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    with pytest.raises(UserError, match="has encoder/gate/kernel and 1 more, which the model does not return"):
        abstract_state(model, optimizer(OptimizerConfig(), model.parameters), mesh)


def test_a_misspelt_axis_is_an_error_and_names_those_there_are():
    with pytest.raises(UserError, match=r"encoder/gate/kernel has an axis 'hiden'; .* layer, hidden, intermediate,"):
        Parameter("encoder/gate/kernel", (Axis("layer", 4), Axis("hiden", 24)))


def test_a_misspelt_use_is_an_error_and_names_those_there_are():
    with pytest.raises(UserError, match=r"order/kernel has used='per_sentence', .* per_prediction, per_text,"):
        Parameter("order/kernel", (Axis("hidden", 24),), used="per_sentence")


def test_a_large_array_without_an_axis_that_is_split_gets_a_remark():
    mesh, one = sharding.make_mesh(MeshConfig(data=4, fsdp=2)), sharding.make_mesh(MeshConfig())
    large, small = (Parameter("x/kernel", (Axis("layer", 2), Axis("feature", size))) for size in (2**15 + 1, 2**15))
    assert sharding.partition_spec(mesh, large) == (
        P(),
        ["no axis that is split (vocab, heads, intermediate, hidden, embedding)"],
    )
    assert sharding.partition_spec(mesh, small) == sharding.partition_spec(one, large) == (P(), [])


def test_two_axes_of_one_name_share_one_axis_of_the_mesh():
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    hidden, wide, layer = Axis("hidden", 8), Axis("intermediate", 16), Axis("layer", 2)
    specs = {
        entry.path: sharding.partition_spec(mesh, entry)[0]
        for entry in (*linear("square", (hidden,), (hidden,)), *linear("up", (hidden,), (wide,)), *norm("n", hidden))
    }
    assert specs["square/kernel"] == P("fsdp", None) and specs["up/kernel"] == P("fsdp", "tensor")
    assert specs["up/bias"] == P("tensor") and specs["n/scale"] == specs["square/bias"] == P()
    shared = Parameter("experts", (layer, Axis("heads", 4), wide, hidden))
    assert sharding.partition_spec(mesh, shared)[0] == P(None, "tensor", None, "fsdp")


def test_the_table_is_read_without_jax():
    code = "import sys, bert_jax.models.costs; sys.exit('jax' in sys.modules or 'flax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def documented() -> list[str]:
    """The table in docs/checkpoints.md: modules with equal arrays side by side share a row."""
    tagger = HeadConfig(kind="tagging", labels=LABELS, crf=True)
    bilstm = dataclasses.replace(tagger, crf=False, features="weighted_all")
    plain, features = (bert_parameters(MODELS["pre"], head=head) for head in (tagger, bilstm))
    modules: dict[str, list[Parameter]] = {}
    for path, parameter in {**plain, **features}.items():
        modules.setdefault(path.rpartition("/")[0], []).append(parameter)
    rows: dict[tuple, list[str]] = {}
    for module, arrays in modules.items():
        parent, _, name = module.rpartition("/")
        leaves = ",".join(parameter.path.rpartition("/")[2] for parameter in arrays)
        axes = ", ".join(f"[{', '.join(axis.name for axis in parameter.axes)}]" for parameter in arrays)
        rows.setdefault((parent, leaves, axes), []).append(name)
    return [
        f"| `{parent}{'/' if parent else ''}{braced(','.join(names))}/{braced(leaves)}` | {axes} |"
        for (parent, leaves, axes), names in rows.items()
    ]


def braced(names: str) -> str:
    return f"{{{names}}}" if "," in names else names


def test_the_documentation_shows_this_table():
    """Copy the rows of a failure into docs/checkpoints.md."""
    text = (ROOT / "docs" / "checkpoints.md").read_text()
    found = text.split("| path | axes |\n|---|---|\n")[1].split("\n\n")[0].splitlines()
    assert found == documented(), "\n".join(["expected:", *documented()])


def test_the_example_of_the_guide_describes_a_gate():
    text = (ROOT / "docs" / "extending.md").read_text().split("## The parameters of an architecture")[1]
    names: dict = {}
    exec(text.split("```python\n")[1].split("```")[0], names)
    parameters = BertForPreTraining(SMALL, architecture=names["gated"]).parameters
    added = {path: parameter.shape for path, parameter in parameters.items() if path not in bert_parameters(SMALL)}
    assert added == {
        "encoder/feed_forward/gate/kernel": (4, 24, 96),
        "encoder/feed_forward/gate/bias": (4, 96),
    }
