"""Objectives and optimizers from outside the package."""

import dataclasses
import functools
import json
import pathlib
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_pretraining
from outside_model import ReplacedTokens, TwoEncoders
from outside_objective import REPLACED, SMOOTH, SMOOTHING, OutsideObjective
from pretrained_model import every_array
from small_model import compiled
from small_pretraining import assert_resumed_exactly, nothing_held_out, pretrain, rows, run_config, run_evaluate

import bert_jax
from bert_jax.checkpoints.record import rank, read_record
from bert_jax.config import Config, ModelConfig, PhaseConfig, resolve_phases
from bert_jax.config.pretraining import CheckpointConfig, DataConfig, EvaluationConfig, MeshConfig, OptimizerConfig
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.formats.opening import open_stored
from bert_jax.formats.own import open_checkpoint
from bert_jax.models.architecture import bert_architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.objectives import masked_words
from bert_jax.objectives.objective import Term
from bert_jax.objectives.static_vectors import WordVectors
from bert_jax.pretraining import default_objective, make_learner
from bert_jax.pretraining import pretrain as pretrain_on_all_devices
from bert_jax.tools.doctor import check_run
from bert_jax.tools.report import is_samples
from bert_jax.tools.status import read_run
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.events import read_events
from bert_jax.training.learner import own_names
from bert_jax.training.metrics import read_rows
from bert_jax.training.optimizers import average_of, given_optimizer, given_schedule, included, learning_rate, optimizer
from bert_jax.training.state import TrainState, abstract_state, state_shardings
from bert_jax.training.step import make_train_step, updated
from bert_jax.training_data import open_corpus, read_config


@functools.cache
def one_step(micro_batches: int, make_objective=OutsideObjective) -> dict[str, float]:
    model, config = small_pretraining.tiny(dropout=0.0)
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
    state = dataclasses.replace(state, params=small_pretraining.initial_parameters(model))
    batch = sharding.to_global(mesh, small_pretraining.batch(0), small_pretraining.BATCH)
    _, metrics = step(jax.device_put(state, shardings), batch)
    return {name: float(value) for name, value in metrics.items()}


def test_the_step_trains_it_in_parts_and_whole_and_its_loss_is_the_formula():
    metrics = one_step(1)
    assert one_step(4) == pytest.approx(metrics, rel=1e-5)
    model, _ = small_pretraining.tiny(dropout=0.0)
    arrays = small_pretraining.batch(0)
    logits = np.asarray(jax.jit(model.mlm_logits)(small_pretraining.initial_parameters(model), arrays), np.float64)
    log = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    target = np.full(logits.shape, SMOOTHING / logits.shape[-1]) + (1 - SMOOTHING) * np.eye(64)[arrays["masked_ids"]]
    weights = arrays["masked_weights"]
    smooth = -(weights[:, :, None] * target * log).sum() / weights.sum()
    assert metrics["smooth_loss"] == pytest.approx(smooth, rel=1e-5)
    assert metrics["loss"] == pytest.approx(metrics["smooth_loss"] + 2 * metrics["replaced_loss"], rel=1e-6)
    own = compiled(masked_words.masked_word_sums)(logits.astype(np.float32), arrays["masked_ids"], weights)
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
    phases = (PhaseConfig(steps=12, sequence_length=32, batch_size=16, learning_rate=1e-2, warmup_steps=0),)
    evaluation = EvaluationConfig(every_steps=12, sequences=16, batch_size=16, samples=2)
    config = small_pretraining.run_config(small_store, tmp_path / "run", phases=phases, evaluation=evaluation)
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
    expected = [("smooth", 1.0, "smooth_perplexity"), ("replaced", 2.0, "")]
    assert [(term.label, term.weight, term.perplexity) for term in recorded.terms] == expected
    assert any(check.seen.startswith("smooth_loss") for check in check_run(recorded))

    (start,) = json.loads((tmp_path / "run" / "run.json").read_text())["starts"]
    assert start["devices"] == 1 and "\n1 × cpu\n" in said and said.startswith("opening ")
    _is_measured_and_resumed_by_its_own_objective_alone(config, result)


def _is_measured_and_resumed_by_its_own_objective_alone(config: Config, result) -> None:
    name = re.escape("outside_objective.OutsideObjective (smooth, replaced)")
    with pytest.raises(UserError, match=f"holds a run with the objective {name}, but this start has the default"):
        pretrain(config)
    with pytest.raises(UserError, match=f"was trained for the objective {name}, but evaluate was given none"):
        run_evaluate(config.workdir, config)
    own = run_evaluate(config.workdir, config, objective=of_words)
    assert own.metrics == pytest.approx(result.evaluation, rel=1e-6)
    assert list(own.unigram) == ["smooth_loss", "smooth_perplexity", "smooth_accuracy"]
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
    model, config = small_pretraining.tiny()
    assert own_names(default_objective(model, config), is_given=False) == {}
    expected = {"objective": "bert_jax.objectives.masked_words.PretrainingObjective (mlm, next_sentence)"}
    assert own_names(default_objective(model, config), is_given=True) == expected
    partial = functools.partial(windowed, window=3)
    other = default_objective(dataclasses.replace(model, architecture=partial), config)
    assert own_names(other, is_given=False) == {"architecture": f"{__name__}.windowed"}
    assert own_names(OutsideObjective(Wrapped(**vars(model))), is_given=True) == {
        "objective": "outside_objective.OutsideObjective (smooth, replaced)",
        "architecture": f"{__name__}.Wrapped",
    }
    unnamed = types.SimpleNamespace(model=model, terms=(Term(),))
    assert own_names(unnamed, is_given=True) == {"objective": "types.SimpleNamespace (loss)"}
    unnamed.model = WordVectors(**{**vars(model), "parts": ()})  # which the package opens
    assert own_names(unnamed, is_given=True) == {"objective": "types.SimpleNamespace (loss)"}


def windowed(config, compute, window):
    return bert_architecture(config, compute)


class Wrapped(BertForPreTraining):
    pass


@pytest.mark.parametrize("part, parts", [("mlm", ("mlm",)), ("next_sentence", ("pooler", "next_sentence"))])
def test_a_model_with_one_head_is_trained_with_dropout_as_the_whole_one_is(part, parts):
    whole, config = small_pretraining.tiny(dropout=0.3)
    params, batch, key = small_pretraining.initial_parameters(whole), small_pretraining.batch(0), jax.random.key(7)
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


STEPS = 4


def config(store, workdir, **changes):
    phase = PhaseConfig(steps=STEPS, sequence_length=32, batch_size=16, learning_rate=1e-3, warmup_steps=2)
    more = {"phases": (phase,), "data": nothing_held_out(store)} | changes
    return run_config(store, workdir, checkpoint=CheckpointConfig(every_steps=1, keep_last=9, keep_best=0), **more)


def pulled_back(rate: float) -> optax.GradientTransformation:
    """Pulls parameters to where they began, which it remembers."""

    def update(updates, state, params):
        return jax.tree.map(lambda u, p, first: u + rate * (p - first), updates, params, state["first"]), state

    return optax.GradientTransformation(lambda params: {"first": params}, update)


def of_the_pooler(params) -> dict:
    """Noise for every array would be most of what is compiled."""
    return jax.tree.map_with_path(lambda path, _: path[0].key == "pooler", params)


EVERYTHING = optax.chain(
    optax.scale_by_factored_rms(min_dim_size_to_factor=8),  # arrays of other shapes than those of parameters
    optax.trace(0.9),  # moments
    optax.masked(optax.add_noise(1e-3, 0.5, 7), of_the_pooler),  # a random key
    pulled_back(0.1),  # parameters
)
falling = lambda step: 1e-3 / (1 + step)


@pytest.mark.slow
def test_what_the_options_mean_can_be_given(finished, tmp_path):
    options, _ = finished
    adam, parameters = OptimizerConfig(), BertForPreTraining(read_config(options.workdir).model).parameters
    direction = optax.chain(
        optax.scale_by_adam(adam.beta1, adam.beta2, adam.epsilon),
        optax.add_decayed_weights(adam.weight_decay, mask=functools.partial(included, parameters)),
    )
    given = dataclasses.replace(options, workdir=str(tmp_path / "given"), optimizer=OptimizerConfig(name="lamb"))
    schedule = functools.partial(learning_rate, options.schedule, resolve_phases(options))
    small_pretraining.pretrain(given, optimizer=direction, schedule=schedule)
    found, expected = rows(given.workdir), rows(options.workdir)
    assert [row["learning_rate"] for row in found] == [row["learning_rate"] for row in expected]
    losses = [[row["loss"] for row in each] for each in (found, expected)]
    assert len(losses[0]) == 12
    np.testing.assert_allclose(*losses, rtol=1e-6)


@pytest.fixture(scope="module")
def everything(small_store, tmp_path_factory):
    """A run of EVERYTHING with an average of its weights."""
    workdir = tmp_path_factory.mktemp("given") / "run"
    options = config(small_store, workdir, optimizer=OptimizerConfig(ema_decay=0.9))
    small_pretraining.pretrain(options, optimizer=EVERYTHING, schedule=falling)
    return options


def values(path, weights="last") -> dict[str, np.ndarray]:
    return every_array(open_checkpoint(path, weights))


def test_a_resumed_run_takes_the_same_steps(everything):
    whole, last = rows(everything.workdir), f"{everything.workdir}/checkpoints/step_{STEPS:09d}"
    assert len({row["loss"] for row in whole}) == STEPS
    before = {weights: values(last, weights) for weights in ("last", "ema")}
    assert_resumed_exactly(everything, (3, 4), optimizer=EVERYTHING, schedule=falling)
    for weights, arrays in before.items():
        jax.tree.map(np.testing.assert_array_equal, values(last, weights), arrays)
    assert any((before["last"][name] != before["ema"][name]).any() for name in before["ema"])


def test_a_resumed_run_must_be_given_the_same(everything):
    other = optax.chain(EVERYTHING, optax.trace(0.9))
    for given, said in (
        ({"schedule": falling}, "but this start has the default optimizer"),
        ({"optimizer": other, "schedule": falling}, r"\(0/0/count.*the optimizer that pretrain is given in Python"),
        ({"optimizer": EVERYTHING}, f"the schedule {__name__}.<lambda>, but this start has the default schedule"),
        ({"optimizer": EVERYTHING, "schedule": optax.constant_schedule(1.0)}, "the schedule optax.*constant_schedule"),
    ):
        with pytest.raises(UserError, match=said):
            small_pretraining.pretrain(everything, **given)


def test_a_run_from_a_model_begins_with_a_state_of_its_parameters(everything, tmp_path):
    """Not with one of the parameters that it would have drawn."""
    begun = dataclasses.replace(everything, workdir=str(tmp_path / "next"), init_from=everything.workdir, seed=5)
    stored = every_array(open_stored(everything.workdir))
    small_pretraining.pretrain(begun, optimizer=pulled_back(1.0), schedule=lambda step: 1.0 * (step > 0))
    kernel = "encoder/attention/query/kernel"
    first = values(f"{begun.workdir}/checkpoints/step_000000001")[kernel]
    np.testing.assert_array_equal(first, stored[kernel])  # the rate of step 0 is 0
    # p − 1 · (gradient + p − first) = first − gradient: clipped gradients are small, other parameters are not.
    second = values(f"{begun.workdir}/checkpoints/step_000000002")[kernel]
    init = BertForPreTraining(read_config(begun.workdir).model).init
    drawn = jax.jit(lambda key: init(key)["encoder"]["attention"]["query"]["kernel"])(jax.random.key(0))
    assert 0 < np.linalg.norm(second - first) < 1 < np.linalg.norm(drawn - first)


MESHES = [MeshConfig(data=2, fsdp=2, tensor=2), MeshConfig(data=1, fsdp=8)]


def test_its_state_is_split_as_the_parameters_are(everything):
    sized, mesh = read_config(everything.workdir), sharding.make_mesh(MESHES[0])
    learner = make_learner(sized, mesh, optimizer=EVERYTHING)
    factored, moments, noise, first = learner.abstract.optimizer_state.optimizer
    split = lambda leaf: leaf.sharding.spec
    for tree in (moments.trace, first["first"]):
        assert jax.tree.map(split, tree) == jax.tree.map(split, learner.abstract.params)
    whole = jax.tree.leaves((noise, factored.count, factored.v_row["encoder"]["feed_forward"]))
    assert all(leaf.sharding.is_fully_replicated for leaf in whole)
    assert learner._moments >= 3  # the trace, the first parameters, the average; and something of the factored ones


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: f"{mesh.data}x{mesh.fsdp}x{mesh.tensor}")
def test_on_any_mesh_the_steps_are_those_of_one_device(mesh, everything, tmp_path):
    options = dataclasses.replace(everything, workdir=str(tmp_path / "run"), mesh=mesh)
    options = dataclasses.replace(options, checkpoint=CheckpointConfig(every_steps=100))
    pretrain_on_all_devices(options, optimizer=EVERYTHING, schedule=falling)
    found, expected = ([row["loss"] for row in rows(each.workdir)] for each in (options, everything))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_gradient_that_is_not_finite_changes_nothing():
    params = {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(4)}
    rule = given_optimizer(EVERYTHING, {})
    state = TrainState(step=jnp.int32(3), params=params, optimizer_state=rule.init(params))
    step = jax.jit(lambda state, slopes, loss: updated(state, slopes, loss, rule, jnp.float32(0.1), 1.0))
    good = jax.tree.map(jnp.ones_like, params)
    bad = good | {"b": jnp.array([1.0, jnp.nan, 1.0, 1.0])}
    for slopes, loss in ((bad, 1.0), (good, jnp.inf)):
        found, metrics = step(state, slopes, jnp.float32(loss))
        assert metrics["skipped"] == 1 and found.step == 4
        for one, other in zip(jax.tree.leaves(found)[1:], jax.tree.leaves(state)[1:], strict=True):
            np.testing.assert_array_equal(one, other)
    found, metrics = step(state, good, jnp.float32(1.0))
    assert metrics["skipped"] == 0 and not np.array_equal(found.params["a"], params["a"])


def test_the_state_has_arrays_of_its_own():
    """A step gives the memory of parameters and state away, so they may not share it."""
    params = {"a": jnp.arange(3.0)}
    state = jax.jit(given_optimizer(pulled_back(1.0), {}).init)(params)
    assert state["first"]["a"].unsafe_buffer_pointer() != params["a"].unsafe_buffer_pointer()
    assert average_of(state) is None


def test_what_is_no_optimizer_or_no_schedule_is_refused():
    with pytest.raises(UserError, match="optimizer='lion' is no optax.GradientTransformation"):
        given_optimizer("lion", {})  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match=r"schedule returns an array \[2\] for a step"):
        given_schedule(lambda step: jnp.stack([step, step]))
    assert given_schedule(lambda step: 3)(jnp.int32(0)).dtype == jnp.float32
