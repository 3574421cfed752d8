"""An objective defined outside the package trains, is evaluated, shown and kept by its own names, on the same step."""

import dataclasses
import functools
import json
import pathlib
import re
import types

import jax
import numpy as np
import pytest
import small_pretraining
import tiny_run
from one_device import pretrain, run_evaluate
from outside_model import ReplacedTokens, TwoEncoders
from outside_objective import REPLACED, SMOOTH, SMOOTHING, OutsideObjective

import bert_jax
from bert_jax.checkpoints.record import rank, read_record
from bert_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    EvaluationConfig,
    MeshConfig,
    ModelConfig,
    PhaseConfig,
)
from bert_jax.data.mixtures import open_corpus
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.models.architecture import bert_architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.objectives import masked_words
from bert_jax.objectives.choice import default_objective, own_names
from bert_jax.objectives.objective import Term
from bert_jax.tools.doctor import check_run
from bert_jax.tools.report import is_samples
from bert_jax.tools.status import read_run
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.events import read_events
from bert_jax.training.metrics import read_rows
from bert_jax.training.optimizers import optimizer
from bert_jax.training.state import abstract_state, state_shardings
from bert_jax.training.step import make_train_step


@functools.cache
def one_step(micro_batches: int, make_objective=OutsideObjective) -> dict[str, float]:
    model, config = tiny_run.tiny(dropout=0.0)
    objective, transformation = make_objective(model), optimizer(config.optimizer, model.parameters)
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    abstract = abstract_state(objective.model, transformation, mesh)
    shardings = state_shardings(abstract)
    step = make_train_step(
        objective,
        transformation,
        mesh,
        shardings,
        clip_norm=1.0,
        micro_batches=micro_batches,
        schedule=lambda step: 0.1,
    )
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), abstract)
    state = dataclasses.replace(state, params=tiny_run.initial_parameters(model))
    batch = sharding.to_global(mesh, tiny_run.batch(0), tiny_run.BATCH)
    _, metrics = step(jax.device_put(state, shardings), batch)
    return {name: float(value) for name, value in metrics.items()}


def test_the_step_trains_it_in_parts_and_whole_and_its_loss_is_the_formula():
    metrics = one_step(1)
    assert one_step(4) == pytest.approx(metrics, rel=1e-5)
    model, _ = tiny_run.tiny(dropout=0.0)
    arrays = tiny_run.batch(0)
    logits = np.asarray(jax.jit(model.mlm_logits)(tiny_run.initial_parameters(model), arrays), np.float64)
    log = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    target = np.full(logits.shape, SMOOTHING / logits.shape[-1]) + (1 - SMOOTHING) * np.eye(64)[arrays["masked_ids"]]
    weights = arrays["masked_weights"]
    smooth = -(weights[:, :, None] * target * log).sum() / weights.sum()
    assert metrics["smooth_loss"] == pytest.approx(smooth, rel=1e-5)
    assert metrics["loss"] == pytest.approx(metrics["smooth_loss"] + 2 * metrics["replaced_loss"], rel=1e-6)
    own = masked_words.masked_word_sums(logits.astype(np.float32), arrays["masked_ids"], weights)
    assert metrics["smooth_accuracy"] == pytest.approx(float(own.correct / own.weight), abs=1e-6)
    assert not any(name.startswith(("mlm", "next")) for name in metrics)


def test_the_example_of_the_guide_is_such_an_objective():
    guide = (pathlib.Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
    (block,) = (block for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "SmoothedWords" in block)
    code, _ = block.split("bert_jax.pretrain(config")
    names = {"__name__": "guide"}
    exec(code, names)
    found, same = one_step(1, names["SmoothedWords"]), one_step(1)
    assert {name for name in found if name.endswith(("_loss", "_accuracy"))} == {"smooth_loss", "smooth_accuracy"}
    assert found["loss"] == found["smooth_loss"] == pytest.approx(same["smooth_loss"], rel=1e-6)
    assert found["smooth_accuracy"] == same["smooth_accuracy"]


@pytest.mark.slow
def test_a_model_of_two_encoders_trains_and_counts_its_own_operations(small_store, tmp_path, monkeypatch):
    monkeypatch.setattr("bert_jax.pretraining.peak_flops", lambda mesh: 1e12)
    config = small_pretraining.run_config(
        small_store,
        tmp_path / "run",
        phases=(PhaseConfig(steps=12, sequence_length=32, batch_size=16, learning_rate=1e-2, warmup_steps=0),),
        evaluation=EvaluationConfig(every_steps=12, sequences=16, batch_size=16, samples=2),
    )
    models = []

    def objective(model, config):
        models.append(TwoEncoders(model.config, model.compute))  # scanned, so that every position is computed
        return ReplacedTokens(models[0])

    result = pretrain(config, objective=objective)
    train = [row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "train"]
    assert train[-1]["mlm_loss"] < train[0]["mlm_loss"] and train[-1]["found_loss"] < train[0]["found_loss"]
    assert train[-1]["loss"] == pytest.approx(train[-1]["mlm_loss"] + 50 * train[-1]["found_loss"], rel=1e-6)
    assert list(result.evaluation) == ["mlm_loss", "mlm_accuracy", "found_loss", "found_accuracy"]
    (sampled,) = [row["samples"] for row in read_events(tmp_path / "run" / "events.jsonl") if row["event"] == "sampled"]
    assert len(sampled) == 2 and is_samples(sampled)
    last = open_corpus(config).training[0].batch(11 * 16 + np.arange(16))  # texts alone, without their padding
    lengths, predictions = last["attention_mask"].sum(1), (last["masked_weights"] > 0).sum(1)
    flops = sum(models[0].training_flops(int(n), int(m)) for n, m in zip(lengths, predictions))
    assert train[-1]["mfu"] == pytest.approx(train[-1]["sequences_per_second"] / 16 * flops / 1e12, rel=1e-5)
    assert train[-1]["token_share"] == pytest.approx(lengths.sum() / (16 * 32), rel=1e-6)


def of_words(model, config) -> OutsideObjective:
    return OutsideObjective(model, (dataclasses.replace(SMOOTH, of_words=True), REPLACED))


@pytest.mark.usefixtures("pictures")
def test_pretrain_logs_evaluates_draws_and_ranks_it_by_its_own_names(small_store, tmp_path, capsys):
    config = Config(
        model=ModelConfig(hidden_size=16, num_layers=1, num_heads=2, max_position_embeddings=32),
        data=DataConfig(path=str(small_store), held_out=0.1, loader="plain", sentence_pairs="none"),
        workdir=str(tmp_path / "run"),
        log_every_steps=1,
        phases=(PhaseConfig(steps=12, sequence_length=32, batch_size=16, learning_rate=1e-2, warmup_steps=0),),
        evaluation=EvaluationConfig(every_steps=6, sequences=32, batch_size=16),
        checkpoint=CheckpointConfig(every_steps=6),
    )
    result = pretrain(config, objective=of_words)
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    train, evaluations = ([row for row in rows if row["kind"] == kind] for kind in ("train", "evaluation"))
    assert [row["step"] for row in train] == list(range(1, 13)) and len(evaluations) == 2
    assert train[-1]["loss"] == pytest.approx(train[-1]["smooth_loss"] + 2 * train[-1]["replaced_loss"], rel=1e-6)
    assert train[-1]["loss"] < train[0]["loss"]
    names = ["smooth_loss", "smooth_perplexity", "smooth_accuracy", "replaced_loss", "replaced_accuracy"]
    assert list(result.evaluation) == names and set(evaluations[-1]) == {"kind", "step", *names}
    said = capsys.readouterr().out
    assert "smooth_perplexity" in said and "· smooth " in said and "· replaced " in said and "MLM" not in said
    assert (tmp_path / "run" / "curves.png").stat().st_size > 1000
    (newest,) = pathlib.Path(config.workdir, "checkpoints").glob("step_*12")
    assert rank(read_record(newest / "record"), "smooth_loss") == (0, result.evaluation["smooth_loss"])

    recorded = read_run(config.workdir)
    assert (recorded.main_loss, recorded.word_loss) == ("smooth_loss", "smooth_loss")
    assert [(term.label, term.weight, term.perplexity) for term in recorded.terms] == [
        ("smooth", 1.0, "smooth_perplexity"),
        ("replaced", 2.0, ""),
    ]
    assert any(check.seen.startswith("smooth_loss") for check in check_run(recorded))

    (start,) = json.loads((tmp_path / "run" / "run.json").read_text())["starts"]
    assert start["devices"] == 1 and said.startswith("1 × cpu\n")
    _is_measured_and_resumed_by_its_own_objective_alone(config, result)


def _is_measured_and_resumed_by_its_own_objective_alone(config: Config, result) -> None:
    name = re.escape("outside_objective.OutsideObjective (smooth, replaced)")
    with pytest.raises(UserError, match=f"holds a run with the objective {name}, but this start has the default"):
        pretrain(config)
    with pytest.raises(UserError, match=f"was trained for the objective {name}, but evaluate was given none"):
        run_evaluate(config.workdir, config)
    own = run_evaluate(config.workdir, config, objective=of_words)
    assert own.metrics == pytest.approx(result.evaluation, rel=1e-6) and list(own.unigram) == [
        "smooth_loss",
        "smooth_perplexity",
        "smooth_accuracy",
    ]
    bert_jax.convert(config.workdir, f"{config.workdir}-converted", to="bert_jax")
    with pytest.raises(UserError, match=f"was trained for the objective {name}, but evaluate was given none"):
        run_evaluate(f"{config.workdir}-converted", config)
    assert pretrain(config, objective=of_words).step == result.step


def test_the_frequencies_of_words_are_not_counted_for_terms_without_words(small_store, tmp_path):
    assert Evaluation.unigram(types.SimpleNamespace(terms=OutsideObjective.terms), training=None) == {}


@dataclasses.dataclass(frozen=True)
class Misspelt(OutsideObjective):
    def sums(self, *arguments):
        sums = super().sums(*arguments)
        return {"smooth": sums["smooth"], "replacd": sums["replaced"]}


def test_a_misspelt_term_is_refused_before_the_first_step():
    for micro_batches in (1, 4):
        with pytest.raises(UserError, match="have 'replacd', which is not one of its terms"):
            one_step(micro_batches, Misspelt)


def test_names_of_objectives_and_architectures():
    model, config = tiny_run.tiny()
    assert own_names(default_objective(model, config), is_given=False) == {}
    assert own_names(default_objective(model, config), is_given=True) == {
        "objective": "bert_jax.objectives.masked_words.PretrainingObjective (mlm, next_sentence)"
    }
    partial = functools.partial(windowed, window=3)
    other = default_objective(dataclasses.replace(model, architecture=partial), config)
    assert own_names(other, is_given=False) == {"architecture": f"{__name__}.windowed"}
    assert own_names(OutsideObjective(Wrapped(**vars(model))), is_given=True) == {
        "objective": "outside_objective.OutsideObjective (smooth, replaced)",
        "architecture": f"{__name__}.Wrapped",
    }
    unnamed = types.SimpleNamespace(model=model, terms=(Term(),))
    assert own_names(unnamed, is_given=True) == {"objective": "types.SimpleNamespace (loss)"}


def windowed(config, compute, window):
    return bert_architecture(config, compute)


class Wrapped(BertForPreTraining):
    pass


@pytest.mark.parametrize("part, parts", [("mlm", ("mlm",)), ("next_sentence", ("pooler", "next_sentence"))])
def test_a_model_with_one_head_is_trained_with_dropout_as_the_whole_one_is(part, parts):
    whole, config = tiny_run.tiny(dropout=0.3)
    params, batch, key = tiny_run.initial_parameters(whole), tiny_run.batch(0), jax.random.key(7)
    some = default_objective(dataclasses.replace(whole, parts=parts), config)
    own = {name: params[name] for name in ("embeddings", "encoder", *parts)}
    sums = jax.jit(some.sums)(own, batch, key)
    assert list(sums) == [part]
    whole_sums = jax.jit(default_objective(whole, config).sums)(params, batch, key)
    found, expected, undropped = (
        [float(value) for value in each[part]] for each in (sums, whole_sums, jax.jit(some.sums)(own, batch))
    )
    assert found == pytest.approx(expected, rel=1e-6)
    assert found[0] != pytest.approx(undropped[0], rel=1e-4)
