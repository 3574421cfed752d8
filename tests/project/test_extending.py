"""The scripts of docs/extending.md, run as they are printed there: from outside the package.

Those of an objective and of a table of parameters are run by the tests of these subjects.
"""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_pretraining
from small_model import assert_trees_close, encoder_gradient, make_batch

import bert_jax
from bert_jax.config import (
    CheckpointConfig,
    ComputeConfig,
    Config,
    DataConfig,
    EvaluationConfig,
    ModelConfig,
    PhaseConfig,
)
from bert_jax.errors import UserError
from bert_jax.models.architecture import bert_architecture
from bert_jax.models.bert import with_head_gates
from bert_jax.models.costs import activation_bytes, parameter_counts
from bert_jax.models.kernels.plain import EVERYTHING
from bert_jax.parameters import Axis, Parameter, linear, table
from bert_jax.training.learner import Load, needed_bytes
from bert_jax.training.metrics import read_rows

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "extending.md"


SMALL = ModelConfig(vocab_size=61, hidden_size=16, num_layers=2, num_heads=2)
SCAN = ComputeConfig(layers="scan")  # every layer at every position, whatever the heads read


def test_a_head_from_outside_is_in_the_number_of_parameters_and_in_the_flops():
    code = PAGE.read_text(encoding="utf-8").split("A head with arrays of its own")[1].split("```python\n")[1]
    names = {"__name__": "guide"}
    exec(compile(code.split("```")[0], PAGE, "exec"), names)
    model, plain = names["WithOrder"](SMALL, SCAN, outputs=500), bert_jax.BertForPreTraining(SMALL, SCAN)
    made = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))
    without = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(plain.init, jax.random.key(0))))
    assert parameter_counts(model.parameters).pretraining == made == without + 16 * 500 + 500
    product = jax.jit(jnp.dot).lower(jnp.zeros((1, 16)), jnp.zeros((16, 500))).cost_analysis()["flops"]
    assert model.training_flops(40, 5) - plain.training_flops(40, 5) == 3 * product  # forward, and twice that backward


@dataclasses.dataclass(frozen=True)
class With(bert_jax.BertForPreTraining):
    """A model whose table has arrays of somebody's own."""

    more: tuple[Parameter, ...] = ()

    @property
    def parameters(self):
        return {**super().parameters, **table(self.more)}


HIDDEN, OUTPUTS, LAYER = Axis("hidden", 16), Axis("feature", 500), Axis("layer", 2)


@pytest.mark.parametrize(
    "added, products",
    [
        (linear("order/dense", (HIDDEN,), (OUTPUTS,)), 40),
        (linear("order/dense", (HIDDEN,), (OUTPUTS,), used="per_prediction"), 5),
        (linear("order/dense", (HIDDEN,), (OUTPUTS,), used="per_text"), 1),
        (linear("encoder/dense", (HIDDEN,), (OUTPUTS,), (LAYER,)), 40 * 2),
        (linear("encoder/dense", (HIDDEN,), (OUTPUTS,), (LAYER,), used="per_text"), 2),
        ([Parameter("order/weights", (HIDDEN, OUTPUTS))], 40),
        ([Parameter("order/lines", (OUTPUTS, HIDDEN), used="looked_up")], 0),
        ([Parameter("embeddings/line/table", (OUTPUTS, HIDDEN), embedding=True)], 0),
        ([Parameter("order/gain", (OUTPUTS, HIDDEN), decays=False)], 0),
        ([Parameter("order/bias", (Axis("vocab", 61),), decays=False, used="word_logits")], 5 * 61 / 500),
    ],
)
def test_an_array_from_outside_is_counted_as_often_as_it_says(added, products):
    """By hand, for a text of 40 tokens with 5 predictions: a product is 2 × 16 × 500 operations, three times."""
    one, plain = With(SMALL, SCAN, more=tuple(added)), bert_jax.BertForPreTraining(SMALL, SCAN)
    assert one.training_flops(40, 5) - plain.training_flops(40, 5) == 3 * 2 * 16 * 500 * products


@dataclasses.dataclass(frozen=True)
class WithScores(bert_jax.BertForPreTraining):
    """A model whose losses keep an array of scores in place of logits of all words."""

    def head_bytes(self, sequence_length, predictions, value_bytes):
        return value_bytes * sequence_length * predictions


def test_what_the_losses_of_a_model_from_outside_keep_counts_in_the_memory_of_a_step():
    load = Load(memory_bytes=None, moments=2, sequence_length=40, predictions=5, rows=3, split=1)
    one, plain = (
        needed_bytes(each(SMALL, SCAN), SCAN, load, "none") for each in (WithScores, bert_jax.BertForPreTraining)
    )
    logits = activation_bytes(SMALL, 40, 5).heads
    assert one - plain == 3 * (2 * 40 * 5 - logits)


def script(section: str) -> str:
    """The first script of a section of the guide."""
    return PAGE.read_text(encoding="utf-8").split(f"## {section}\n")[1].split("```python\n")[1].split("```")[0]


def run_config(store: pathlib.Path, workdir: pathlib.Path, **changes) -> Config:
    return Config(
        model=ModelConfig(hidden_size=16, num_layers=2, num_heads=2, max_position_embeddings=32, **changes),
        compute=SCAN,
        data=DataConfig(path=str(store), held_out=0.0, loader="plain"),
        workdir=str(workdir),
        log_every_steps=1,
        phases=(PhaseConfig(steps=8, sequence_length=32, batch_size=16, learning_rate=1e-2, warmup_steps=0),),
        evaluation=EvaluationConfig(every_steps=8, sequences=16, batch_size=16),
        checkpoint=CheckpointConfig(every_steps=8),
    )


def losses_of(workdir: pathlib.Path) -> list[float]:
    return [row["mlm_loss"] for row in read_rows(workdir / "metrics.jsonl") if row["kind"] == "train"]


def counted_maps(monkeypatch) -> list[str]:
    """Return a list that grows with each call of what the kernel of the guide is made of."""
    calls, mapped = [], jax.lax.map
    monkeypatch.setattr(jax.lax, "map", lambda *given: calls.append("a query at a time") or mapped(*given))
    return calls


def test_the_kernel_of_the_guide_gives_the_loss_and_the_gradient_of_plain_attention(monkeypatch):
    """Of two layers; the runs that the script begins are slow tests."""
    monkeypatch.setattr(bert_jax, "pretrain", lambda *given, **options: None, raising=False)
    calls, names = counted_maps(monkeypatch), {"config": None, "__name__": "guide"}
    exec(compile(script("An attention kernel"), PAGE, "exec"), names)
    config, compute = dataclasses.replace(SMALL, attention_dropout=0.0), ComputeConfig(layers="scan", dtype="float32")
    batch = make_batch(config)
    inputs = batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]
    own = names["objective"](bert_jax.BertForPreTraining(config, compute), Config(model=config)).model
    plain = bert_jax.BertForPreTraining(config, compute, ())
    params, loss, gradient = encoder_gradient(dataclasses.replace(own, parts=()), inputs)
    assert calls
    calls.clear()
    _, expected, slopes = encoder_gradient(plain, inputs, params)
    assert not calls and float(loss) == pytest.approx(float(expected), rel=1e-5)
    assert_trees_close(gradient, slopes, rtol=1e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_kernel_of_the_guide_computes_every_layer_or_what_it_lacks_is_computed_by_plain_attention(
    dropout, small_store, tmp_path, monkeypatch
):
    """With dropout, to the last bit."""
    monkeypatch.setattr(bert_jax, "pretrain", small_pretraining.pretrain, raising=False)
    calls = counted_maps(monkeypatch)
    code, made = script("An attention kernel"), "Kernel(by_query, supports=(), otherwise=attention)"
    assert made in code
    losses = []
    for name, kernel in (("own", made), ("plain", "Kernel(attention, EVERYTHING)")):
        config = run_config(small_store, tmp_path / name, attention_dropout=dropout)
        exec(
            compile(code.replace(made, kernel), PAGE, "exec"),
            {"config": config, "EVERYTHING": EVERYTHING, "__name__": "guide"},
        )
        assert (len(calls) > 0) == (name == "own" and dropout == 0)
        losses.append(losses_of(tmp_path / name))
        calls.clear()
    assert len(losses[0]) == 8 and (not dropout or losses[0] == losses[1])
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_the_kind_of_layer_of_the_guide_trains(small_store, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bert_jax, "pretrain", small_pretraining.pretrain, raising=False)
    names = {"config": run_config(small_store, tmp_path / "run"), "__name__": "guide"}
    exec(compile(script("A kind of layer"), PAGE, "exec"), names)
    said = " ".join(capsys.readouterr().out.split())
    assert "phase 0: layers and attention as guide.fourier has them" in said and "attention by" not in said
    losses = losses_of(tmp_path / "run")
    assert len(losses) == 8 and np.mean(losses[-2:]) < np.mean(losses[:2])
    model = bert_jax.BertForPreTraining(SMALL, SCAN, architecture=names["fourier"])
    assert not any(path.startswith("encoder/attention") for path in model.parameters)
    with pytest.raises(UserError, match="the architecture guide.fourier, but this start has the default architecture"):
        small_pretraining.pretrain(names["config"])


def guide_layers(monkeypatch) -> dict:
    """Return the names that the script of a kind of layer defines."""
    monkeypatch.setattr(bert_jax, "pretrain", lambda *given, **options: None, raising=False)
    names = {"config": None, "__name__": "guide"}
    exec(compile(script("A kind of layer"), PAGE, "exec"), names)
    return names


@pytest.mark.parametrize("compute, passes", [(SCAN, 2), (ComputeConfig(layers="loop"), 2 + 1)])
def test_the_layers_of_the_guide_count_with_what_they_say_that_they_keep(compute, passes, monkeypatch):
    """By hand: without the scores of two heads in two layers, and of the layer at work if the compiler sees it alone,
    each in float32 and, as probabilities, in bfloat16."""
    layers = guide_layers(monkeypatch)["FourierLayers"]

    def without_scores(config, compute):
        return dataclasses.replace(bert_architecture(config, compute), layers=layers(config))

    load = Load(memory_bytes=None, moments=2, sequence_length=40, predictions=5, rows=3, split=1)
    compute = dataclasses.replace(compute, dtype="bfloat16")
    models = (
        bert_jax.BertForPreTraining(SMALL, compute, architecture=each) for each in (bert_architecture, without_scores)
    )
    plain, own = (needed_bytes(model, compute, load, "none") for model in models)
    assert plain - own == 3 * passes * 2 * 40**2 * (4 + 2)


def test_the_layers_of_the_guide_say_that_they_have_no_heads(monkeypatch):
    model = bert_jax.BertForPreTraining(SMALL, architecture=guide_layers(monkeypatch)["fourier"])
    with pytest.raises(UserError, match="mix tokens by a Fourier transform and have no heads to switch off"):
        with_head_gates(model, jnp.ones((2, 2)))


def test_the_optimizer_and_the_schedule_of_the_guide_train_and_resume(small_store, tmp_path, monkeypatch):
    monkeypatch.setattr(bert_jax, "pretrain", small_pretraining.pretrain, raising=False)
    names = {"config": run_config(small_store, tmp_path / "run"), "__name__": "guide"}
    exec(compile(script("An optimizer"), PAGE, "exec"), names)
    rows = [row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "train"]
    assert np.mean([row["mlm_loss"] for row in rows[-2:]]) < np.mean([row["mlm_loss"] for row in rows[:2]])
    rates = [1e-3 / np.sqrt(1 + step / 100) for step in range(8)]
    np.testing.assert_allclose([row["learning_rate"] for row in rows], rates, rtol=1e-6)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["schedule"] == "guide.falling"
    assert run["optimizer"] == "optax.transforms._combining.chain (0/count, 0/mu)"
    given = {"optimizer": names["direction"], "schedule": names["falling"]}
    for missing, said in (
        ("optimizer", "the optimizer optax.*, but this start has"),
        ("schedule", "guide.falling, but"),
    ):
        with pytest.raises(UserError, match=f"{said}.*the {missing} that pretrain is given in Python"):
            small_pretraining.pretrain(names["config"], **{name: e for name, e in given.items() if name != missing})
    assert small_pretraining.pretrain(names["config"], **given).step == 8


def test_the_architecture_of_the_guide_trains(small_store, tmp_path, monkeypatch):
    code, config = script("An architecture"), run_config(small_store, tmp_path / "run")
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, held_out=0.1))
    monkeypatch.setattr(bert_jax, "pretrain", small_pretraining.pretrain, raising=False)
    exec(compile(code, PAGE, "exec"), {"config": config, "__name__": "guide"})
    rows, losses = read_rows(tmp_path / "run" / "metrics.jsonl"), losses_of(tmp_path / "run")
    assert len(losses) == 8 and np.mean(losses[-2:]) < np.mean(losses[:2])
    assert ["mlm_loss" in row for row in rows if row["kind"] == "evaluation"] == [True]
    _is_resumed_and_restored_as_itself_alone(code, config, tmp_path)


def _is_resumed_and_restored_as_itself_alone(code: str, config: Config, tmp_path: pathlib.Path) -> None:
    names = {"config": config, "__name__": "guide"}
    exec(compile(code, PAGE, "exec"), names)
    workdir, said = config.workdir, "holds a model of the architecture guide.local_bert, and only a BERT can be opened"
    for opened in (workdir, next(pathlib.Path(workdir, "checkpoints").glob("step_*"))):
        with pytest.raises(UserError, match=said):
            bert_jax.load(opened)
    with pytest.raises(UserError, match=said):
        small_pretraining.run_evaluate(workdir, config)
    with pytest.raises(UserError, match=said):
        bert_jax.convert(workdir, tmp_path / "converted", to="huggingface")
    with pytest.raises(UserError, match=said):
        small_pretraining.pretrain(dataclasses.replace(config, workdir=str(tmp_path / "next"), init_from=workdir))
    with pytest.raises(UserError, match="the architecture guide.local_bert, but this start has the default arch"):
        small_pretraining.pretrain(config)
    assert small_pretraining.pretrain(config, objective=names["objective"]).step == 8
