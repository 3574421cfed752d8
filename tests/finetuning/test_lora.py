"""Frozen layers by name, and low-rank adaptation: what learns, what keeps its bits, and what comes out."""

import dataclasses
import json
import pathlib
import re

import jax
import numpy as np
import pytest
from modern_models import MODERN, THIRD
from pretrained_model import every_array, random_params, stored_model
from processes import EXHAUSTIVE
from small_finetuning import Killed, assert_same_weights, run_config, weights
from small_model import compiled
from small_pretraining import finetune
from task_models import HEADS, MODEL, ROWS, make_batch

import bert_jax
from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import (
    ComputeConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    RecurrentConfig,
)
from bert_jax.config.finetuning import FinetuneConfig, LoraConfig, check_finetune, task_defaults
from bert_jax.config.tasks import TaskDataConfig
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.finetuning.lora import Adapters
from bert_jax.finetuning.programs import first_state, make_programs
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.models.task import BertForTask
from bert_jax.objectives.tasks import TaskObjective
from bert_jax.parameters import total_size
from bert_jax.training.optimizers import frozen_parts, learned_size, leaving, optimizer, stopped
from bert_jax.training.step import Program

HEAD = HEADS["classification"]
TYPES = {  # the tables of model types that differ in their layers
    "bert": ModelConfig(vocab_size=41, hidden_size=8, num_layers=3, num_heads=2),
    "modernbert": dataclasses.replace(MODERN, vocab_size=41, hidden_size=8, num_layers=3, num_heads=2),
    "deberta": dataclasses.replace(THIRD, vocab_size=41, hidden_size=8, num_layers=3, num_heads=2),
    "lstm": RecurrentConfig(vocab_size=41, hidden_size=8, num_layers=3),
}


@pytest.mark.parametrize("name", TYPES)
def test_layers_are_frozen_by_name(name):
    """Frozen are the tables below the layers, and of each array of layers the entries of those that are named."""
    table = bert_parameters(TYPES[name], (), HEAD)
    frozen = frozen_parts(("embeddings", "layers.0-1"), 3, table)
    learns = 0
    for path, entry in table.items():
        where = np.broadcast_to(frozen.get(path, False), entry.shape)
        if entry.embedding or path.startswith("embeddings/"):
            assert where.all(), path
        elif entry.axis("later_layer") == 0 or entry.axis("first_layer") == 0 or entry.axis("layer") == 0:
            numbers = {"later_layer": [1, 2], "first_layer": [0], "layer": [0, 1, 2]}[entry.axes[0].name]
            assert [row.all() for row in where] == [layer < 2 for layer in numbers], path
            assert all(row.all() == row.any() for row in where)
        else:
            assert not where.any(), path
        learns += (~where).sum()
    assert learned_size(frozen, table) == learns < total_size(table)
    assert frozen_parts(("layers.2", "layers.0"), 3, table).keys() == frozen_parts(("layers.1",), 3, table).keys() | {
        path for path in table if table[path].axis("first_layer") == 0
    }


@pytest.mark.parametrize(
    ("sharing", "names", "message"),
    [
        ("none", ("embedings",), "freeze='embedings' is no part that would learn here; these would: embeddings, enc"),
        ("none", ("layers.3",), "layers.0 to layers.2 (several: layers.0-1)"),
        ("none", ("layers.2-1",), "freeze='layers.2-1' is no part"),
        ("none", ("embeddings", "encoder", "pooler", "head"), "leaves nothing that learns"),
        ("all", ("layers.0",), "freeze=layers.0 needs separate parameters for each of 3 layers"),
    ],
)
def test_names_that_cannot_be_frozen(sharing, names, message):
    table = bert_parameters(dataclasses.replace(TYPES["bert"], sharing=sharing), (), HEAD)
    with pytest.raises(UserError, match=re.escape(message)):
        frozen_parts(names, 3, table)
    assert all(where.all() for where in frozen_parts(("encoder",), 3, table).values())


@pytest.mark.parametrize(
    "name", ["adamw", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lamb", "stable_adamw")), "muon"]
)
def test_no_optimizer_moves_what_is_frozen(name):
    """With weight decay too; and an array that is frozen as a whole has no moments."""
    model = BertForTask(dataclasses.replace(MODEL, hidden_size=4, num_heads=1, intermediate_size=4), HEAD)
    table, params = model.parameters, random_params(model)
    frozen = frozen_parts(("embeddings", "layers.0"), MODEL.num_layers, table)
    rule = leaving(optimizer(OptimizerConfig(name=name, weight_decay=0.1), table), frozen)

    def step(params):
        gradients = jax.grad(lambda params: sum((leaf**2).sum() for leaf in jax.tree.leaves(stopped(frozen, params))))
        updates, state = rule.update(gradients(params), rule.init(params), params)
        return gradients(params), jax.tree.map(lambda p, u: p - 0.1 * u, params, updates), state

    gradients, after, state = compiled(step)(params)
    before, kept = leaf_paths(params), leaf_paths(state)
    for path, values in leaf_paths(after).items():
        where = np.broadcast_to(frozen.get(path, False), values.shape)
        assert values[where].tobytes() == before[path][where].tobytes(), path
        assert (values != before[path])[~where].all() and not leaf_paths(gradients)[path][where].any(), path
        assert any(name.endswith(path) for name in kept) != where.all(), path


def lora_config(**changes) -> FinetuneConfig:
    compute = ComputeConfig(dtype="float32")
    optimizer = OptimizerConfig(clip_norm=0.0)
    lora = LoraConfig(rank=2, alpha=6.0, targets=("query", "attention.output"))
    return FinetuneConfig(dropout=0.0, compute=compute, lora=lora, optimizer=optimizer, **changes)


def placed(mesh, step):
    batch = sharding.to_global(mesh, make_batch("classification", step), ROWS)
    return batch, *(sharding.on_every_device(mesh, value) for value in (np.float32(1e-2), np.uint32(0)))


def product(first, second):
    """A · B of each layer, by NumPy in float64."""
    return np.stack([np.tensordot(a, b, 1) for a, b in zip(first.astype(np.float64), second, strict=True)])


def test_the_factors_learn_what_the_chain_rule_says():
    """From the very base, with the gradients of the whole matrices; no other array of the encoder moves."""
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    base, config = stored_model(MODEL), lora_config(freeze=("layers.0", "pooler"))
    programs = make_programs(config, MODEL, HEAD, mesh, stored=base)
    state, report = first_state(config, base, programs, np.uint32(3))
    assert report is not None and sorted(report.loaded) == ["pooler/bias", "pooler/kernel"]
    first, arrays = jax.device_get(state.params), every_array(base)
    for path, values in leaf_paths(jax.device_get(programs.whole(state.params))).items():
        assert path.startswith("head") or np.array_equal(values, arrays[path]), path
    batch, *scalars = placed(mesh, 0)
    model, whole = programs.model, jax.device_get(programs.whole(state.params))
    state, _ = programs.train_step(state, batch, *scalars)
    objective = TaskObjective(model)
    loss = lambda params, batch: objective.sums(params, batch)[""].loss / objective.denominators(batch)[""]
    gradients = leaf_paths(compiled(jax.grad(loss))(whole, batch))

    learned, moments = leaf_paths(jax.device_get(state.params)), leaf_paths(jax.device_get(state.optimizer_state))
    assert not any("pooler" in name or "embeddings" in name for name in moments)
    for matrix, inputs in (("query", 1), ("output", 2)):
        path = f"encoder/attention/{matrix}"
        a = first["encoder"]["attention"][matrix]["lora_a"]
        assert abs(a).max() <= 16**-0.5 and a.std() == pytest.approx((3 * 16) ** -0.5, rel=0.2)
        (mu,) = (values for name, values in moments.items() if name.endswith(f"mu/{path}/lora_b"))
        axes = list(range(inputs))
        expected = [3.0 * np.tensordot(a[i], gradients[f"{path}/kernel"][i], (axes, axes)) for i in range(2)]
        np.testing.assert_allclose(mu[1] / 0.1, expected[1], rtol=1e-4, atol=1e-7)
        assert not mu[0].any() and not learned[f"{path}/lora_b"][0].any()
        assert learned[f"{path}/lora_b"][1].all() and np.array_equal(learned[f"{path}/lora_a"][0], a[0])
        made = leaf_paths(jax.device_get(programs.whole(state.params)))[f"{path}/kernel"]
        change = 3.0 * product(learned[f"{path}/lora_a"], learned[f"{path}/lora_b"])
        np.testing.assert_allclose(made, arrays[f"{path}/kernel"] + change, rtol=1e-6, atol=1e-6)
        assert np.array_equal(made[0], arrays[f"{path}/kernel"][0])


def test_what_is_adapted_and_how_it_is_split():
    """Every model type, with the matrices that it has; A is split like the inputs of its matrix, B like the outputs."""
    for sizes, count in ((TYPES["bert"], 6), (TYPES["modernbert"], 7), (TYPES["lstm"], 4)):
        adapters = Adapters(BertForTask(sizes, HEAD), LoraConfig(rank=2, targets=("all",)))
        assert len(adapters.targets) == count
        for path, entry in adapters.targets.items():
            a, b = adapters.factors(entry)
            assert (*a.axes[:-1], *b.axes[2:]) == entry.axes and a.axes[-1] == b.axes[1] and b.axes[0] == a.axes[0], (
                path
            )
    shared = Adapters(BertForTask(dataclasses.replace(TYPES["bert"], sharing="all"), HEAD), LoraConfig(rank=2))
    assert {entry.axes[0].size for entry in shared.targets.values()} == {1}
    with pytest.raises(
        UserError, match=r"'dense' is no matrix .* are attention.query, attention.key, .*; give some of"
    ):
        Adapters(BertForTask(TYPES["bert"], HEAD), LoraConfig(rank=2, targets=("dense",)))
    with pytest.raises(UserError, match="lora.rank=17, but no matrix of lora.targets has a rank above 8; give less"):
        Adapters(BertForTask(TYPES["bert"], HEAD), LoraConfig(rank=17))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora": LoraConfig(rank=-1)}, "lora.rank=-1 must be positive"),
        ({"lora": LoraConfig(rank=2, alpha=0.0)}, "lora.alpha=0.0 must be positive"),
        ({"lora": LoraConfig(alpha=2.0)}, "lora.alpha=2.0 has no effect without lora.rank"),
        ({"lora": LoraConfig(rank=2, targets=())}, "lora.targets is empty"),
        ({"lora": LoraConfig(rank=2), "random_weights": True}, "random_weights=True starts from random parameters"),
        ({"lora": LoraConfig(rank=2), "features": "last"}, "freezes the encoder anyway, so lora.rank=2 has nothing"),
        ({"lora": LoraConfig(rank=2), "reinitialize_layers": 1}, "makes random layers, which lora.rank=2 leaves"),
        ({"freeze": ("encoder",), "random_weights": True}, "some of which freeze=encoder leaves as they are"),
        ({"freeze": ("encoder",), "features": "last"}, "freezes the encoder anyway, so freeze=encoder has nothing"),
    ],
)
def test_options_that_do_not_go_together(changes, message):
    config = dataclasses.replace(task_defaults("sst2"), init_from="a", workdir="b", data=TaskDataConfig(dir="c"))
    with pytest.raises(UserError, match=re.escape(message)):
        check_finetune(dataclasses.replace(config, **changes))


def test_what_would_stay_random_is_refused():
    mesh, base = sharding.make_mesh(MeshConfig(), jax.devices()[:1]), stored_model(MODEL, ("mlm",))
    for changes, message in (
        ({"freeze": ("pooler",)}, "somewhere has no pooler/kernel, which would stay random; leave out pooler"),
        ({"freeze": ("layers.0-1",), "reinitialize_layers": 1}, "would leave random what reinitialize_layers=1 makes"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            make_programs(FinetuneConfig(**changes), MODEL, HEAD, mesh, stored=base)


def losses(mesh, micro_batches, **changes):
    base, config = stored_model(MODEL), lora_config(micro_batches=micro_batches)
    config = dataclasses.replace(config, **changes)
    programs = make_programs(config, MODEL, HEAD, mesh, stored=base)
    state, _ = first_state(config, base, programs, np.uint32(3))
    found = []
    for step in range(3):
        state, values = programs.train_step(state, *placed(mesh, step))
        found.append(float(values["loss"]))
    return found, leaf_paths(jax.device_get(programs.whole(state.params)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{}, {"lora": LoraConfig(), "freeze": ("embeddings", "layers.0")}], ids=["lora", "freeze"]
)
def test_meshes_and_micro_batches_learn_the_same(changes):
    alone, one = losses(sharding.make_mesh(MeshConfig(), jax.devices()[:1]), 1, **changes)
    shared, other = losses(sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), jax.devices()[:8]), 2, **changes)
    np.testing.assert_allclose(shared, alone, rtol=5e-6)
    for path in one:
        np.testing.assert_allclose(other[path], one[path], rtol=1e-4, atol=1e-5, err_msg=path)


LORA = LoraConfig(rank=4, alpha=8.0)


@pytest.fixture(scope="module")
def adapted(pretrained, tmp_path_factory):
    """A finished run with LoRA: its configuration and results."""
    config = run_config(pretrained, tmp_path_factory.mktemp("lora") / "whole", lora=LORA, learning_rate=1e-2)
    return config, finetune(config).results


@pytest.mark.slow
def test_a_run_leaves_a_whole_model_and_a_small_adapter(adapted, pretrained, capfd):
    config, results = adapted
    assert results["metrics"]["accuracy"] > 0.8 and results["hyperparameters"]["lora"]["rank"] == 4
    before, after = weights(pretrained / "pretrained"), weights(config.workdir)
    moved = {path for path in after if path in before and not np.array_equal(after[path], before[path])}
    assert moved == {"encoder/attention/query/kernel", "encoder/attention/value/kernel", "pooler/kernel", "pooler/bias"}
    told = json.loads((adapter_of(config) / "adapter_config.json").read_text())
    assert (told["r"], told["lora_alpha"], told["task_type"]) == (4, 8.0, "SEQ_CLS")
    assert "bert.encoder.layer.1.attention.self.query" in told["target_modules"]
    texts = ["The garden.", "A ship at sea."]  # shorter than the 16 tokens that fine-tuning reads
    exact = {"compute": ComputeConfig(dtype="float32")}
    whole = bert_jax.load(config.workdir, **exact).predict(texts)
    added = bert_jax.load(pretrained / "pretrained", adapter=adapter_of(config), **exact)
    for found in (added.predict(texts), bert_jax.load(adapter_of(config), **exact).predict(texts)):
        assert [one.name for one in found] == [one.name for one in whole]
        for label, expected in zip(found, whole, strict=True):
            np.testing.assert_allclose([*label.probabilities.values()], [*expected.probabilities.values()], rtol=1e-5)


def adapter_of(config) -> pathlib.Path:
    return pathlib.Path(config.workdir) / "adapter"


def kill(config, monkeypatch, calls: int) -> None:
    """Begin a run that dies at the call of a program of this number."""
    call, seen = Program.__call__, []

    def killed(program, state, *rest):
        seen.append(len(rest))
        if len(seen) == calls:
            raise Killed
        return call(program, state, *rest)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Program, "__call__", killed)
        finetune(config)


@pytest.mark.slow
def test_an_interrupted_run_ends_the_same(adapted, pretrained, tmp_path, monkeypatch):
    config = dataclasses.replace(adapted[0], workdir=str(tmp_path / "killed"), save_every_steps=7)
    kill(config, monkeypatch, 25)
    (states,) = (tmp_path / "killed/runs").iterdir()
    size = sum(file.stat().st_size for file in (states / "training").rglob("*") if file.is_file())
    finetune(config)
    assert_same_weights(adapted[0].workdir, config.workdir)
    one, other = ((adapter_of(each) / "adapter_model.safetensors").read_bytes() for each in (adapted[0], config))
    assert one == other and size < 4 * 2**20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lamb", *(["adamw_bert", "muon"] if EXHAUSTIVE else [])])
def test_frozen_layers_keep_their_bits_through_a_run(pretrained, tmp_path, name, monkeypatch, capfd):
    """Of a run that was interrupted and resumed."""
    rule = OptimizerConfig(name=name, weight_decay=0.1)
    config = run_config(pretrained, tmp_path / "run", freeze=("embeddings", "layers.0"), optimizer=rule, epochs=1)
    config = dataclasses.replace(config, save_every_steps=5)
    kill(config, monkeypatch, 13)
    finetune(config)
    assert " parameters learn (" in capfd.readouterr().out
    before, after = weights(pretrained / "pretrained"), weights(tmp_path / "run")
    for path, array in after.items():
        if path.startswith("embeddings"):
            assert array.tobytes() == before[path].tobytes(), path
        elif path.startswith("encoder"):
            assert array[0].tobytes() == before[path][0].tobytes() and (array[1] != before[path][1]).any(), path
