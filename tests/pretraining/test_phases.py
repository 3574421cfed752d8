"""Phases that change what is trained: masks, objective, direction, reach, dropout, packing, pairs, temperature."""

import dataclasses
import io
import pathlib
import signal

import jax
import jax.numpy as jnp
import numpy as np
import numpy_bert
import pytest
from etils import epath
from family_runs import MESHES, assert_same_losses
from forked_run import run
from model_variants import variant
from processes import EXHAUSTIVE
from rich.console import Console
from small_pretraining import (
    assert_resumed_exactly,
    nothing_held_out,
    pretrain,
    rows,
    run_config,
    run_evaluate,
    source_of,
)
from synthetic_store import SyntheticStore, random_documents, write_store

import bert_jax
from bert_jax.checkpoints.record import rank, read_record
from bert_jax.checkpoints.steps import StepDirectories
from bert_jax.checkpoints.workdir import read_json
from bert_jax.config import (
    Config,
    DataConfig,
    LeftToRight,
    MaskedDiffusion,
    MaskingConfig,
    ModelConfig,
    PhaseConfig,
    RecurrentConfig,
    ReplacedTokens,
    Rope,
    ScheduleConfig,
    TwoDirections,
    Window,
    config_of_phase,
    phase_of_step,
    resolve_phases,
)
from bert_jax.config.checks import check, check_new, resolve_mixtures
from bert_jax.config.options import from_dict, is_harmless, to_dict, with_options
from bert_jax.config.pretraining import (
    PHASE_GROUPS,
    CheckpointConfig,
    EvaluationConfig,
    PhaseData,
    PhaseMasking,
    PhaseModel,
    PhaseObjective,
    StatusConfig,
    phase_notes,
)
from bert_jax.console import parse
from bert_jax.data.masking import num_predictions
from bert_jax.data.store import open_store
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.formats.conversion import convert
from bert_jax.formats.opening import open_stored
from bert_jax.pretraining import described, make_learner
from bert_jax.tools.doctor import run_checks
from bert_jax.tools.replay import replay
from bert_jax.tools.report import events as table_of_events
from bert_jax.tools.report import figures, held_out, summary
from bert_jax.tools.status import read_run, run_status
from bert_jax.tools.status import status as run_facts
from bert_jax.training.events import read_events
from bert_jax.training.state import create_state
from bert_jax.training_data import Examples, open_corpus

LEFT_TO_RIGHT = {
    "objective": PhaseObjective(name="left_to_right"),
    "model": PhaseModel(direction="left_to_right"),
    "data": PhaseData(sentence_pairs="none"),
}
DIFFUSION = {
    "objective": PhaseObjective(name="masked_diffusion", min_rate=0.01),
    "data": PhaseData(sentence_pairs="none"),
}


def phase(**changes) -> PhaseConfig:
    usual = {"steps": 3, "sequence_length": 32, "batch_size": 8, "learning_rate": 1e-2, "warmup_steps": None}
    return PhaseConfig(**usual | changes)


def test_a_phase_sees_its_own_options_and_otherwise_those_of_the_run():
    """The recipe of mmBERT: rates 30, 15 and 5 %, temperatures 0.7, 0.5 and 0.3, languages added in the decay."""
    config = Config(
        model=ModelConfig(positions=Rope(), window=Window(local_window=8)),
        data=DataConfig(mixture="en,de", mixture_temperature=0.7),
        phases=(
            phase(masking=PhaseMasking(rate=0.3)),
            phase(data=PhaseData(mixture_temperature=0.5), model=PhaseModel(rope_theta=160_000.0, local_window=0)),
            phase(mixture="en,de,cy", data=PhaseData(mixture_temperature=0.3), masking=PhaseMasking(rate=0.05)),
        ),
    )
    seen = [config_of_phase(check(config), index) for index in range(3)]
    assert [each.masking.rate for each in seen] == [0.3, 0.15, 0.05]
    assert [each.data.mixture_temperature for each in seen] == [0.7, 0.5, 0.3]
    assert [[part.path for part in parts] for parts in resolve_mixtures(config)] == [["en", "de"]] * 2 + [
        ["en", "de", "cy"]
    ]
    assert [each.model.positions.rope_theta for each in seen] == [10_000.0, 160_000.0, 10_000.0]
    assert [each.model.window and each.model.window.local_window for each in seen] == [8, None, 8]
    assert [each.max_predictions for each in resolve_phases(config)] == [10, 5, 2]
    for index, each in enumerate(seen):
        assert config_of_phase(each, index) == each and from_dict(Config, to_dict(each)) == each
    assert config_of_phase(Config(), 0) == Config()
    assert phase_notes(config, 2) == ("masking.rate=0.05", "data.mixture_temperature=0.3")


GIVEN = {  # for each option that a phase replaces a value, and what else the run must have
    "masking.unit": ("whole_word", {}),
    "masking.rate": (0.4, {}),
    "masking.mask_share": (0.6, {}),
    "masking.random_share": (0.2, {}),
    "masking.replacement": ("span", {}),
    "masking.span_continue": (0.5, {"masking.unit": "span"}),
    "masking.span_max_words": (4, {"masking.unit": "span"}),
    "masking.ngram_max": (2, {"masking.unit": "ngram"}),
    "masking.static_masks": (3, {}),
    "masking.loss_epsilon": (1e-5, {}),
    "objective.name": ("masked_diffusion", {"data.sentence_pairs": "none"}),
    "objective.mlm_weight": (0.5, {}),
    "objective.sentence_pair_weight": (2.0, {}),
    "objective.span_boundary_weight": (0.5, {}),
    "objective.next_word_weight": (0.5, {"objective.name": "two_directions"}),
    "objective.previous_word_weight": (0.5, {"objective.name": "two_directions"}),
    "objective.z_loss_weight": (1e-4, {}),
    "objective.min_rate": (0.1, {"objective.name": "masked_diffusion"}),
    "model.direction": ("left_to_right", {}),
    "model.rope_theta": (500.0, {"model.positions": "rope"}),
    "model.rope_local_theta": (50.0, {"model.positions": "rope", "model.local_window": 8}),
    "model.local_window": (4, {"model.positions": "rope", "model.local_window": 8}),
    "model.global_every": (2, {"model.positions": "rope", "model.local_window": 8}),
    "model.hidden_dropout": (0.3, {}),
    "model.attention_dropout": (0.3, {}),
    "data.packing": ("on", {}),
    "data.sentence_pairs": ("sop", {}),
    "data.mixture_temperature": (0.3, {"data.mixture": "en,de"}),
}


def test_a_phase_sees_every_option_as_the_same_option_of_the_run():
    fields = {group: dataclasses.fields(getattr(PhaseConfig(), group)) for group in PHASE_GROUPS}
    assert GIVEN.keys() == {f"{group}.{each.name}" for group in PHASE_GROUPS for each in fields[group]}
    for name, (value, others) in GIVEN.items():
        run = with_options(Config(phases=(phase(), phase())), others)
        of_phase = with_options(run, {f"phases.1.{name}": value})
        assert config_of_phase(of_phase, 1) == with_options(run, {name: value}) != run, name
        assert dataclasses.replace(config_of_phase(of_phase, 0), phases=run.phases) == run, name


def test_the_phase_of_a_step_is_the_one_that_took_it():
    config = Config(phases=(phase(steps=3), phase(steps=2)))
    assert [phase_of_step(config, step) for step in range(7)] == [0, 0, 0, 0, 1, 1, 1]


def test_masks_and_errors_mean_nothing_to_a_phase_that_predicts_every_word():
    config = Config(data=DataConfig(noise=dataclasses.replace(DataConfig().noise, rate=0.1)))
    masking = dataclasses.replace(config.masking, rate=0.4, unit="whole_word")
    phases = phase(**LEFT_TO_RIGHT), phase(objective=PhaseObjective(mlm_weight=0.5)), phase(**DIFFUSION)
    config = check(dataclasses.replace(config, masking=masking, phases=phases))
    first, second, third = (config_of_phase(config, index) for index in range(3))
    assert (first.objective, first.model.direction, first.data.noise.rate) == (LeftToRight(), "left_to_right", 0)
    assert (second.masking, second.data) == (masking, config.data)
    assert resolve_phases(third)[2] == resolve_phases(config)[2]  # where the weight of phase 1 would mean nothing
    assert (third.objective, third.masking) == (MaskedDiffusion(min_rate=0.01), MaskingConfig())
    assert third.data.noise == config.data.noise  # errors are read beside what is masked
    assert [each.max_predictions for each in resolve_phases(config)] == [31, 13, 32]
    assert phase_notes(config, 1) == ("objective.mlm_weight=0.5", "starts pooler and head for pairs afresh")


ROPE = {"model": ModelConfig(positions=Rope())}
WRONG = {
    "a direction that sees the answer": (
        {"phases": (phase(**LEFT_TO_RIGHT | {"model": PhaseModel()}),)},
        r"phases\.0 replaces: objective\.name=left_to_right .* model\.direction=both it would see the answer",
    ),
    "pairs": (
        {"phases": (phase(**LEFT_TO_RIGHT | {"data": PhaseData()}),)},
        r"phases\.0 replaces: .* reads single texts, but data\.sentence_pairs=nsp",
    ),
    "masks of nothing": (
        {"phases": (phase(**LEFT_TO_RIGHT, masking=PhaseMasking(rate=0.2)),)},
        r"phases\.0 replaces: .* masks none, so masking\.rate=0\.2 has no effect",
    ),
    "a number of predictions": (
        {"phases": (phase(**LEFT_TO_RIGHT, max_predictions=5),)},
        r"phases\.0\.max_predictions=5 has no effect",
    ),
    "rope where there is none": (
        {"phases": (phase(model=PhaseModel(rope_theta=2e4)),)},
        r"phases\.0 replaces: model\.rope_theta=20000\.0 belongs to model\.positions=rope",
    ),
    "a window as long as the rows": (
        ROPE | {"phases": (phase(), phase(model=PhaseModel(local_window=40)))},
        r"model\.local_window=40 .*sequence_length=32",
    ),
    "a base for windows where there are none": (
        {"model": ModelConfig(positions=Rope(), window=Window(local_window=8))}
        | {"phases": (phase(model=PhaseModel(local_window=0, rope_local_theta=2e4)),)},
        r"phases\.0\.model\.rope_local_theta=20000\.0 is the base of rope in layers with a window",
    ),
    "a window of less than nothing": (
        ROPE | {"phases": (phase(model=PhaseModel(local_window=-3)),)},
        r"phases\.0\.model\.local_window=-3 must be .* 0 for none",
    ),
    "an option without effect": (
        {"phases": (phase(masking=PhaseMasking(ngram_max=2)),)},
        r"phases\.0 replaces: masking\.ngram_max=2 belongs to masking\.unit=ngram",
    ),
    "a weight of another objective": (
        {"phases": (phase(objective=PhaseObjective(next_word_weight=1.0)),)},
        r"phases\.0 replaces: objective\.next_word_weight=1\.0 belongs to objective\.name=two_directions",
    ),
    "a temperature without a mixture": (
        {"phases": (phase(data=PhaseData(mixture_temperature=0.5)),)},
        r"phases\.0 replaces: data\.mixture_temperature=0\.5 has no effect without data\.mixture",
    ),
    "a temperature beside weights": (
        {"data": DataConfig(mixture="a=1,b=2"), "phases": (phase(data=PhaseData(mixture_temperature=0.5)),)},
        r"phases\.0\.data\.mixture_temperature=0\.5, but data\.mixture=a=1,b=2 says",
    ),
    "a z-loss where there is none": (
        {"phases": (phase(**DIFFUSION | {"objective": PhaseObjective(name="masked_diffusion", z_loss_weight=1e-4)}),)},
        r"phases\.0 replaces: objective\.z_loss_weight=0\.0001 belongs to objective\.name=",
    ),
    "a generator": (
        {
            "objective": ReplacedTokens(),
            "model": ModelConfig(pair_head=False),
            "data": DataConfig(sentence_pairs="none"),
            "phases": (phase(), phase(objective=PhaseObjective(name="masked_words"))),
        },
        r"phases\.1\.objective\.name=masked_words needs other arrays than objective\.name=replaced_tokens",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_a_phase_is_said_in_one_line(case):
    changes, message = WRONG[case]
    with pytest.raises(UserError, match=message) as error:
        check(Config(**changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("length, rate, room", [(32, 0.3, 10), (512, 0.15, 76), (10, 0.15, 2), (32, 0.5, 16)])
def test_a_new_run_has_room_for_what_a_full_row_predicts(length, rate, room):
    """As masking counts it, up to the one of 77 that published runs leave out; a run that resumes may have less."""
    wanted = num_predictions(np.array([length]), rate, length)[0]
    assert room == (76 if wanted == 77 else wanted)
    masking = PhaseMasking(rate=rate)
    fits, small = (phase(sequence_length=length, masking=masking, max_predictions=most) for most in (room, room - 1))
    check_new(check(Config(phases=(fits, fits))))
    config = check(Config(phases=(fits, small)))
    says = (
        rf"phases\.1\.max_predictions={room - 1} cannot hold the {wanted} tokens that phases\.1\.masking\.rate={rate} "
    )
    with pytest.raises(UserError, match=rf"{says}predicts in a row of {length}; raise it to {wanted}"):
        check_new(config)


def test_phases_that_would_train_different_arrays_are_refused_before_anything_is_compiled():
    model = RecurrentConfig(hidden_size=16, num_layers=1, vocab_size=64, pair_head=False)
    phases = (phase(), phase(model=PhaseModel(direction="left_to_right")))
    config = check(Config(model=model, data=DataConfig(sentence_pairs="none"), phases=phases))
    with pytest.raises(UserError, match=r"phases\.1\.model\.direction=left_to_right would have phases 0 and 1 train"):
        make_learner(config, sharding.make_mesh(config.mesh, jax.devices()[:1]))


def test_what_an_earlier_phase_has_used_may_not_change():
    for name in ("masking.rate", "objective.name", "model.direction", "model.rope_theta", "data.packing"):
        assert not is_harmless(Config, f"phases.0.{name}: None → 1")


def test_the_best_step_is_that_of_the_latest_phase_by_its_own_loss():
    record = lambda number, **metrics: {"position": {"phase": number}, "metrics": metrics}
    names = "next_word_loss", "mlm_loss"
    assert rank(record(0, next_word_loss=3.0), names) == (0, 3.0)
    assert rank(record(1, next_word_loss=1.0, mlm_loss=2.0), names) == (-1, 2.0)
    assert rank(record(1, next_word_loss=1.0), names) is None
    assert rank(record(4, mlm_loss=2.0), "mlm_loss") == (-4, 2.0) and rank(record(0, mlm_loss=2.0), "") is None


def test_masks_are_those_of_the_phase(small_store):
    """Predicted, masked and random tokens, counted over 512 rows, against the options; left to right, every token."""
    shares = PhaseMasking(rate=0.3, mask_share=0.5, random_share=0.25)
    phases = phase(), phase(masking=shares), phase(masking=PhaseMasking(rate=0.05))
    phases = *phases, phase(**LEFT_TO_RIGHT), phase(**DIFFUSION)
    config = run_config(small_store, "", phases=phases)
    store = open_store(small_store)
    tokenizer = store.tokenizer()
    for index, (rate, masked, kept) in enumerate([(0.15, 0.8, 0.1), (0.3, 0.5, 0.25), (0.05, 0.8, 0.1)]):
        examples = Examples(store, check(config), index)
        batch = examples.batch(np.arange(512))
        lengths, used = batch["attention_mask"].sum(1), batch["masked_weights"] > 0
        np.testing.assert_array_equal(used.sum(1), np.maximum(1, np.rint(rate * lengths)))  # the original's rule
        shown = np.take_along_axis(batch["input_ids"], batch["masked_positions"], 1)[used]
        deviation = 5 * np.sqrt(0.25 / used.sum())  # five standard deviations of a share, at most
        assert np.mean(shown == tokenizer.mask_id) == pytest.approx(masked, abs=deviation)
        assert np.mean(shown == batch["masked_ids"][used]) == pytest.approx(kept, abs=deviation + 1 / 200)
    batch = Examples(store, config, 3).batch(np.arange(64))
    assert (batch["masked_weights"].sum(1) == batch["attention_mask"].sum(1) - 1).all()
    assert not (batch["input_ids"] == tokenizer.mask_id).any()
    batch = Examples(store, config, 4).batch(np.arange(64))
    hidden = (batch["input_ids"] == tokenizer.mask_id).sum(1)
    assert np.array_equal((batch["masked_weights"] > 0).sum(1), hidden) and len(set(hidden.tolist())) > 15


MODEL = ModelConfig(
    hidden_size=16, num_layers=1, num_heads=2, max_position_embeddings=32, hidden_dropout=0.0, attention_dropout=0.0
)


def left_to_right_first(store, workdir, **changes) -> Config:
    """Three steps left to right, then three of masked words and pairs with fresh moments, at a constant rate."""
    masking = PhaseMasking(rate=0.3, unit="whole_word")
    second = phase(masking=masking, moments="reset", schedule="restart", warmup_steps=0)
    base = run_config(
        store,
        workdir,
        model=MODEL,
        schedule=ScheduleConfig(name="constant"),
        phases=(phase(**LEFT_TO_RIGHT, warmup_steps=0), second),
        evaluation=EvaluationConfig(every_steps=0, sequences=32, batch_size=32),
        checkpoint=CheckpointConfig(every_steps=1, keep_last=10),
    )
    return dataclasses.replace(base, **changes)


@pytest.fixture(scope="module")
def trained(small_store, tmp_path_factory):
    config = left_to_right_first(small_store, tmp_path_factory.mktemp("phases") / "run")
    pretrain(config)
    return config


def alone(config: Config, index: int, step: int = 0, fresh: bool = False, schedule=None) -> list[dict[str, float]]:
    """Return the metrics of the first phase of `config`, which replaces nothing, without a run.

    Args:
      index: number of the phase in the run of `config.workdir`, which decides the order of its examples.
      step: of that run, from whose state it begins.
      fresh: whether it begins with moments of zero.
      schedule: instead of that of the options.
    """
    mesh = sharding.make_mesh(config.mesh, jax.devices()[:1])
    corpus = open_corpus(dataclasses.replace(config, seed=config.seed + (index << 32)))
    model = dataclasses.replace(config.model, vocab_size=corpus.store.vocab_size)
    learner = make_learner(dataclasses.replace(config, model=model), mesh, schedule=schedule)
    if step:
        run_id = read_json(epath.Path(config.workdir) / "run.json")["run_id"]
        state = StepDirectories(f"{config.workdir}/checkpoints", run_id).read(step, learner.abstract).state
    else:
        state = create_state(learner.objective.model, learner.optimizer, mesh, config.seed)
    if fresh:
        state = dataclasses.replace(state, optimizer_state=jax.tree.map(jnp.zeros_like, state.optimizer_state))
    found, seen = [], 0
    for stage in (each for each in learner.stages if each.index == 0):
        take, size = learner.train_step(stage), stage.batch_size
        for _ in range(stage.steps):
            batch = corpus.training[0].batch(np.arange(seen, seen + size))
            state, values = take(state, sharding.to_global(mesh, batch, size))
            found.append({name: float(jax.device_get(value)) for name, value in values.items()})
            seen += size
    return found


def assert_logged(logged: list[dict[str, float]], found: list[dict[str, float]]) -> None:
    """Check rows of a run against metrics that are computed in another way, to the last bit."""
    assert len(logged) == len(found)
    for row, values in zip(logged, found, strict=True):
        names = row.keys() - {"kind", "step", "skipped"}
        assert {name: row[name] for name in names} == {name: values[name] for name in names}, row["step"]


def test_the_losses_of_each_phase_are_those_of_a_run_of_its_objective_alone(trained):
    """From the same parameters on the same examples, with options of the run in place of those of phases."""
    plain = dataclasses.replace(trained, phases=(phase(warmup_steps=0),))
    first = dataclasses.replace(
        plain,
        objective=LeftToRight(),
        model=dataclasses.replace(MODEL, direction="left_to_right"),
        data=dataclasses.replace(trained.data, sentence_pairs="none"),
    )
    second = dataclasses.replace(plain, masking=dataclasses.replace(trained.masking, rate=0.3, unit="whole_word"))
    logged = rows(trained.workdir)
    assert_logged(logged, alone(first, 0) + alone(second, 1, step=3, fresh=True))
    assert {"next_word_loss"} == {name for row in logged[:3] for name in row if name.endswith("_loss")}
    assert {"mlm_loss", "next_sentence_loss"} == {name for row in logged[3:] for name in row if name.endswith("_loss")}


def test_a_stored_step_is_opened_as_the_phase_that_took_it_computed_it(trained, tmp_path):
    """Its direction decides whether the first state knows of the last token."""
    steps = {step: f"{trained.workdir}/checkpoints/step_{step:09d}" for step in (1, 3, 4, 6)}
    directions = {step: open_stored(path).model.direction for step, path in steps.items()}
    assert directions == {1: "left_to_right", 3: "left_to_right", 4: "both", 6: "both"}
    ids = np.array([[2, 10, 11, 12], [2, 10, 11, 13]], np.int32)
    batch = {"input_ids": ids, "token_type_ids": 0 * ids, "attention_mask": 0 * ids + 1}
    model = bert_jax.load(steps[3])
    states = jax.jit(model.network.encode)(model.params, *batch.values()).last_hidden_state[:, 1]
    assert np.array_equal(states[0], states[1])
    convert(steps[3], tmp_path / "converted", to="bert_jax")
    assert open_stored(str(tmp_path / "converted")).model.direction == "left_to_right"
    assert open_stored(trained.workdir).history["config"]["model"]["direction"] == "both"


def test_a_trained_run_is_continued_by_its_own_options_with_what_the_message_says(trained, tmp_path):
    """Its first phase reads from left to right, and what it has learned reads both ways."""
    mesh = sharding.make_mesh(trained.mesh, jax.devices()[:1])
    again = dataclasses.replace(trained, workdir=str(tmp_path / "run"), init_from=trained.workdir)
    with pytest.raises(UserError, match="model.direction is left_to_right here and both there") as caught:
        described(again, mesh)
    given = str(caught.value).partition("add: ")[2].partition("; or,")[0].split()
    assert given == ["--phases.0.model.direction=both", "--phases.0.objective.name=masked_words"]
    learner = described(parse(again, given, "bert-jax pretrain"), mesh).learner
    assert [each.model.config.direction for each in learner.objectives] == ["both", "both"]


def test_status_report_and_doctor_know_the_phase(trained):
    told = [row for row in read_events(f"{trained.workdir}/events.jsonl") if row["event"] == "phase"]
    assert [(row["phase"], row["step"], row["objective"]) for row in told] == [
        (0, 0, "left_to_right"),
        (1, 3, "masked_words"),
    ]
    assert told[1]["afresh"] == ["the moments of the optimizer", "pooler and head for pairs"]
    history = read_run(trained.workdir)
    assert {term.name for term in history.terms} == {"next_word", "mlm", "next_sentence"}
    assert (history.main_loss, history.word_loss) == ("mlm_loss", "mlm_loss")
    output = io.StringIO()
    facts = run_status(trained.workdir, StatusConfig(), Console(file=output, width=200, highlight=False))
    assert facts["phase"]["number"] == 1 and facts["phase"]["begin"] == 3
    assert "1 (of 2): steps 4 to 6, length 32, masking.unit=whole_word, masking.rate=0.3" in output.getvalue()
    assert facts["held_out"].keys() >= {"mlm_loss", "next_sentence_loss"} and facts["alarms"] == []
    checks = {each.name: each for each in run_checks(history, trained, None)}
    assert not checks["evaluation of nothing"].is_wrong and not checks["masks that select nothing"].is_wrong
    runs = {"run": history}
    assert [row[2] for row in table_of_events(runs).rows].count("phase") == 2
    assert [row[1:3] for row in held_out(runs).rows] == [["last", "6, phase 1"]]
    assert [row[2] for row in summary(runs, 0.0).rows] == ["6 of 6, phase 1 (of 2)"]
    for metric, begin in ("next_word_loss", 0), ("mlm_loss", 3):  # each where it is trained for
        drawn = figures(runs)[metric]["layout"]["shapes"]
        (value,) = [row[metric] for row in history.happened("baseline") if metric in row]
        lines = [(shape["x0"], shape["x1"], shape["y0"]) for shape in drawn if shape["line"]["dash"] == "dot"]
        assert lines == [(begin, begin + 3, value)]


@pytest.mark.parametrize("step, number, begin", [(2, 0, 0), (3, 1, 3), (5, 1, 3)])
def test_status_is_that_of_the_phase_of_the_next_step(trained, tmp_path, step, number, begin):
    """At the step at which a phase ends, the next one is told, with the figures of the one that is over."""
    history = read_run(trained.workdir)
    rows = [row for row in history.rows if row["step"] <= step]
    facts = run_facts(dataclasses.replace(history, path=epath.Path(tmp_path), rows=rows), now=0.0)
    assert (facts["step"], facts["finished"]) == (step, False)
    assert (facts["phase"]["number"], facts["phase"]["begin"], facts["phase"]["end"]) == (number, begin, begin + 3)
    assert ("next_word_loss" in facts["training"], "mlm_loss" in facts["training"]) == (step <= 3, step > 3)


def test_a_run_resumes_exactly_at_the_switch(trained):
    assert_resumed_exactly(trained, (4, 5, 6))
    moved = dataclasses.replace(trained.phases[0], model=PhaseModel(), objective=PhaseObjective(), data=PhaseData())
    with pytest.raises(UserError, match=r"phases\.0\.model\.direction: left_to_right → None"):
        pretrain(dataclasses.replace(trained, phases=(moved, trained.phases[1])))


def test_a_model_may_change_its_direction_where_that_is_asked_for(trained):
    step = f"{trained.workdir}/checkpoints/step_000000003"
    config = dataclasses.replace(trained, init_from=step, model=dataclasses.replace(MODEL, vocab_size=200))
    config = dataclasses.replace(config, phases=(phase(),))
    with pytest.raises(
        UserError,
        match=r"model\.direction is both here and left_to_right there.* add: "
        r"--model\.direction=left_to_right; or, .* --init_from_changes=direction",
    ):
        source_of(config)
    with pytest.raises(UserError, match="model.norm_position is pre here"):
        model = dataclasses.replace(config.model, norm_position="pre")
        source_of(dataclasses.replace(config, model=model, init_from_changes=("direction",)))


def test_a_model_of_one_direction_starts_a_run_as_the_network_of_both(trained, small_store, tmp_path):
    """The first loss is that of the model in NumPy on the same parameters, which sees every token."""
    step = f"{trained.workdir}/checkpoints/step_000000003"
    config = run_config(
        small_store,
        tmp_path / "run",
        model=MODEL,
        data=nothing_held_out(small_store),
        phases=(phase(steps=1, warmup_steps=0),),
        init_from=step,
        init_from_changes=("direction",),
    )
    pretrain(config)
    batch = Examples(open_store(small_store), config, 0).batch(np.arange(8))
    params = bert_jax.load(step).params
    ((row,), wanted) = rows(config.workdir), numpy_bert.loss(params, MODEL, batch)
    assert row["loss"] == pytest.approx(wanted, rel=3e-6)
    earlier = np.tril(np.ones((32, 32))) * batch["attention_mask"][:, None, :]
    assert abs(numpy_bert.loss(params, MODEL, batch, allowed=[earlier]) - wanted) > 1e-4
    recorded = read_run(config.workdir).settings
    assert (recorded["model"]["direction"], recorded["init_from_changes"]) == ("both", ["direction"])
    assert open_stored(config.workdir).model.direction == "both" and open_stored(step).model.direction != "both"


REPLACED = (
    {"objective.name": "left_to_right", "model.direction": "left_to_right", "data.sentence_pairs": "none"},
    {"masking.unit": "span", "masking.rate": 0.3, "masking.mask_share": 0.6, "masking.random_share": 0.3}
    | {"objective.sentence_pair_weight": 2.0},
    {"model.rope_theta": 500.0, "model.rope_local_theta": 50.0, "model.local_window": 4, "model.global_every": 3}
    | {"model.hidden_dropout": 0.0, "model.attention_dropout": 0.2, "data.packing": "on", "masking.rate": 0.05}
    | {"data.sentence_pairs": "none", "data.mixture_temperature": 3.0, "objective.mlm_weight": 0.5},
    {"objective.span_boundary_weight": 0.5, "data.sentence_pairs": "none"},
    {"objective.name": "masked_diffusion", "objective.min_rate": 0.1, "data.sentence_pairs": "none"},
    {"masking.static_masks": 2, "masking.loss_epsilon": 0.5, "objective.z_loss_weight": 0.1}
    | {"data.sentence_pairs": "sop"},
)
"""For each phase of `every_kind` the options of the run that it replaces."""
ENDS = (2, 5, 7, 9, 12, 15)
RATES = (*[1e-2] * 9, 0, 2.5e-3, 5e-3, *[1e-3] * 3)


def without_replaced(stores, workdir) -> Config:
    """Six phases that differ in moments, mixture, length, batches, rate and schedule."""
    wiki, books = stores
    longer = {"sequence_length": 48, "batch_size": 16, "ramp_batch_sizes": (8,), "ramp_steps": 1}
    phases = (
        phase(steps=2),
        phase(moments="reset"),
        phase(steps=2),
        phase(steps=2),
        phase(**longer, mixture=f"{books}=1,{wiki}=3", learning_rate=5e-3, schedule="restart", warmup_steps=2),
        phase(batch_size=16, mixture=f"{books}=1", learning_rate=1e-3),
    )
    window = Window(local_window=8, global_every=2)
    model = ModelConfig(
        hidden_size=32, num_layers=3, num_heads=2, max_position_embeddings=64, positions=Rope(), window=window
    )
    return run_config(
        "",
        workdir,
        model=model,
        data=DataConfig(mixture=f"{wiki},{books}", eval_path=str(wiki), loader="plain"),
        phases=phases,
        schedule=ScheduleConfig(name="constant"),
        evaluation=EvaluationConfig(every_steps=2, sequences=32, batch_size=32),
        checkpoint=CheckpointConfig(every_steps=1, keep_last=20),
    )


def every_kind(stores, workdir) -> Config:
    """Phases that replace options of every kind, given as on the command line."""
    config = without_replaced(stores, workdir)
    for index, options in enumerate(REPLACED):
        config = with_options(config, {f"phases.{index}.{name}": value for name, value in options.items()})
    return config


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Two of one vocabulary."""
    sizes, place = {"wiki": random_documents(40, 1), "books": random_documents(6, 2, 5)}, tmp_path_factory.mktemp("two")
    return [write_store(SyntheticStore(sizes[name], seed), place / name, 1000) for seed, name in enumerate(sizes)]


@pytest.fixture(scope="module")
def switched(stores, tmp_path_factory):
    config = every_kind(stores, tmp_path_factory.mktemp("switched") / "run")
    pretrain(config)
    return config


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(REPLACED)))
def test_what_a_phase_replaces_acts_as_the_same_options_of_a_run(stores, switched, index):
    """From the state at the switch, to the last bit; a second phase gives the run its head of the same name."""
    plain = without_replaced(stores, switched.workdir)
    heads = phase(
        objective=PhaseObjective(name="masked_words", span_boundary_weight=1.0),
        model=PhaseModel(direction="both"),
        data=PhaseData(sentence_pairs="none"),
    )
    own = dataclasses.replace(plain.phases[index], moments="keep", schedule="continue")
    config = with_options(dataclasses.replace(plain, phases=(own, heads)), REPLACED[index])
    begin, rates = (0, *ENDS)[index], jnp.array(RATES, jnp.float32)
    found = alone(config, index, begin, fresh=plain.phases[index].moments == "reset", schedule=lambda step: rates[step])
    assert_logged(rows(switched.workdir)[begin : ENDS[index]], found)


@pytest.mark.slow
def test_phases_weigh_the_directions_of_an_lstm(small_store, tmp_path):
    """As runs with these weights do, to the last bit; the loss is their sum."""
    model = variant(dataclasses.replace(MODEL, type_vocab_size=0, pair_head=False), layer="lstm", positions="none")
    weights = {"next_word_weight": 0.5, "previous_word_weight": 2.0}
    run = run_config(
        small_store,
        tmp_path / "run",
        model=model,
        objective=TwoDirections(),
        data=dataclasses.replace(nothing_held_out(small_store), sentence_pairs="none"),
        schedule=ScheduleConfig(name="constant"),
        phases=(phase(warmup_steps=0), phase(objective=PhaseObjective(**weights))),
        checkpoint=CheckpointConfig(every_steps=3, keep_last=2),
    )
    pretrain(run)
    first = dataclasses.replace(run, phases=(phase(warmup_steps=0),))
    second = dataclasses.replace(first, objective=TwoDirections(**weights))
    logged = rows(run.workdir)
    assert_logged(logged, alone(first, 0) + alone(second, 1, step=3))
    for row, (ahead, back) in zip(logged, [(1, 1)] * 3 + [(0.5, 2)] * 3, strict=True):
        assert row["loss"] == pytest.approx(ahead * row["next_word_loss"] + back * row["previous_word_loss"], rel=1e-6)


@pytest.mark.slow
def test_every_kind_of_switch_is_resumed_exactly(switched):
    assert [row["step"] for row in rows(switched.workdir, "evaluation")] == [2, 4, 6, 8, 10, 12, 14, 15]
    for saved in (2, 7, 10):  # two switches and behind one; a test of kills begins behind 4, 8 and 12
        assert_resumed_exactly(switched, range(saved + 1, ENDS[-1] + 1))
    newest = read_record(max(pathlib.Path(switched.workdir, "checkpoints").glob("step_*")) / "record")["metrics"]
    on = Config(data=DataConfig(path=switched.data.eval_path), evaluation=switched.evaluation)
    measured = run_evaluate(switched.workdir, on).metrics  # by the objective and the masks of the last phase
    assert measured == pytest.approx(newest, rel=1e-5) and "sentence_order_loss" in measured
    for logged in rows(switched.workdir, "evaluation")[:-1]:  # and earlier steps by those of the phase that took them
        measured = run_evaluate(f"{switched.workdir}:{logged['step']}", on).metrics
        assert measured == pytest.approx({name: logged[name] for name in logged.keys() - {"kind", "step"}}, rel=1e-5)


@pytest.mark.slow
def test_steps_of_every_kind_are_replayed_exactly(switched):
    for steps, begin, count in ("1:7", 0, 7), ("8:15", 7, 8):  # the second from the checkpoint at a switch
        found = replay(switched.workdir, steps, devices=jax.devices()[:1])
        assert (found.begin, found.compared, found.equal, found.obstacles) == (begin, count, count, ())


@pytest.mark.slow
def test_phases_of_every_kind_have_the_losses_of_one_device_on_meshes(switched, tmp_path):
    assert_same_losses(switched, MESHES if EXHAUSTIVE else MESHES[:1], tmp_path, rtol=1e-5)


@pytest.mark.slow
def test_a_run_that_is_killed_around_its_switches_is_resumed_exactly(stores, tmp_path):
    whole, killed = (
        dataclasses.replace(config, checkpoint=dataclasses.replace(config.checkpoint, every_steps=2))
        for config in (every_kind(stores, tmp_path / name) for name in ("whole", "killed"))
    )
    assert run(whole)[0] == 0
    for step in (4, 8, 12):  # each start is killed soon after a step that it has not taken before
        assert run(killed, dies_after=step)[0] == -signal.SIGKILL
    code, output = run(killed)
    assert code == 0 and "resuming from step" in output, output
    assert rows(killed.workdir) == rows(whole.workdir) and len(rows(whole.workdir)) == 15
    assert rows(killed.workdir, "evaluation") == rows(whole.workdir, "evaluation")
