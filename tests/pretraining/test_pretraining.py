"""Pre-training: what is learned, what goes back, and memory that is too small."""

import dataclasses
import functools
import importlib.util
import json
import math
import pathlib
import shutil
import signal
import time

import jax
import numpy as np
import pytest
import small_pretraining
from poisoned_objective import poisoned
from processes import EXHAUSTIVE
from small_pretraining import DOES_NOT_FIT, MODEL, full_device, pretrain, rows, run_config, run_evaluate

from bert_jax import pretraining
from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import read_record
from bert_jax.cli.evaluate import default_config
from bert_jax.config import Config, ModelConfig, PhaseConfig, PrepareConfig
from bert_jax.config.pretraining import (
    CheckpointConfig,
    DataConfig,
    DoctorConfig,
    EvaluationConfig,
    FaultsConfig,
    MaskingConfig,
)
from bert_jax.data.preparation.prepare import run_prepare
from bert_jax.data.store import open_store
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.pretrained.averages import average
from bert_jax.pretrained.model import load
from bert_jax.tools.doctor import run_doctor
from bert_jax.training.events import Events, read_events
from bert_jax.training.metrics import Metrics, read_rows
from bert_jax.training.optimizers import optimizer
from bert_jax.training.state import create_state
from bert_jax.training.step import Program
from bert_jax.training_data import Examples, open_corpus, read_config


@pytest.mark.parametrize("seconds, times", [pytest.param(1e9, 1, marks=pytest.mark.slow), (-1, 3)])
def test_curves_are_drawn_at_the_end_and_at_some_evaluations(small_store, tmp_path, monkeypatch, seconds, times):
    drawn = []
    monkeypatch.setattr(pretraining, "PICTURE_SECONDS", seconds)
    monkeypatch.setattr("bert_jax.training.metrics.draw_curves", lambda *_, **__: drawn.append(1))
    config = run_config(small_store, tmp_path / "run")  # two evaluations
    pretrain(config)
    assert len(drawn) == times


def test_a_work_directory_holds_what_was_promised(finished):
    config, result = finished
    names = {path.name for path in pathlib.Path(config.workdir).iterdir()}
    assert {"config.json", "metrics.jsonl", "checkpoints", "tensorboard", "tokenizer", "curves.png"} <= names
    logged = read_rows(pathlib.Path(config.workdir) / "metrics.jsonl")
    train = [row for row in logged if row["kind"] == "train"]
    assert [row["step"] for row in train] == list(range(1, 13))
    assert {
        *("step", "loss", "mlm_loss", "mlm_accuracy", "next_sentence_loss", "next_sentence_accuracy", "learning_rate"),
        *("grad_norm", "tokens_per_second"),
    } <= train[-1].keys()
    assert [row["step"] for row in logged if row["kind"] == "evaluation"] == [6, 12]
    assert result.step == 12 and result.exit_code == 0
    for row in train:
        assert row["loss"] == pytest.approx(row["mlm_loss"] + row["next_sentence_loss"], rel=1e-6)
    steps = sorted(int(p.name.removeprefix("step_")) for p in (pathlib.Path(config.workdir) / "checkpoints").iterdir())
    assert steps == [8, 12]  # the last two; the best on held-out documents is the last


@pytest.mark.slow
def test_a_corpus_in_which_nothing_can_be_predicted_is_trained_on_and_named(tmp_path, caplog, capsys):
    """Documents of one word, which has more pieces than may be masked."""
    corpus, vocab, store = tmp_path / "corpus.txt", tmp_path / "vocab.txt", tmp_path / "store"
    corpus.write_text("\n\n".join(["abcdefghijklmnopqrstuvwxyz"] * 60))
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocab.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters)]))
    run_prepare(PrepareConfig(input=str(corpus), vocab=str(vocab), output=str(store), sentences="lines", workers=1))
    words = [f"--data.path={store}", f"--workdir={tmp_path}/run", "--steps=3", "--batch_size=1", "--sequence_length=32"]
    sizes = ["--model.hidden_size=16", "--model.num_heads=2", "--model.num_layers=1"]
    held_out = [
        "--data.sentence_pairs=none",
        "--data.held_out=0.3",
        "--evaluation.every_steps=2",
        "--log_every_steps=1",
        "--data.loader=plain",
    ]
    result = small_pretraining.pretrain_by_words("bert_tiny", *words, *sizes, *held_out, "--masking.unit=whole_word")
    assert (result.step, result.evaluation, result.exit_code) == (3, {}, 0)
    assert Checkpoints(tmp_path / "run" / "checkpoints", read_only=True).latest_step() == 3
    told = [record.getMessage() for record in caplog.records if "to be predicted" in record.getMessage()]
    assert len(told) == 2 and told[0].startswith("step 1: ") and "held-out sequences" in told[1]
    capsys.readouterr()
    assert run_doctor(f"{tmp_path}/run", DoctorConfig()) == 1
    named = capsys.readouterr().out
    assert "evaluation of nothing" in named and "masks that select nothing" in named
    assert run_evaluate(f"{tmp_path}/run", read_config(f"{tmp_path}/run")).metrics == {}


def test_evaluation_is_the_same_every_time(finished):
    config, result = finished
    again = run_evaluate(config.workdir, config)
    assert (
        again.metrics
        == result.evaluation
        == {
            name: value
            for name, value in rows(config.workdir, "evaluation")[-1].items()
            if name not in ("kind", "step")
        }
    )
    assert again.step == 12 and again.num_sequences == 64
    assert again.unigram["mlm_loss"] > 0
    earlier = run_evaluate(f"{config.workdir}:8", default_config(f"{config.workdir}:8"))
    assert (earlier.step, earlier.unigram) == (8, again.unigram)
    assert earlier.metrics["mlm_loss"] > again.metrics["mlm_loss"]


def test_an_average_of_a_run_is_measured_as_the_run_was(finished, tmp_path):
    """That of a step with itself has its figures, on the documents that the run held out."""
    config, result = finished
    average([f"{config.workdir}:12", config.workdir], tmp_path / "average")
    measured = run_evaluate(str(tmp_path / "average"), default_config(str(tmp_path / "average")))
    assert (measured.step, measured.metrics) == (12, result.evaluation)


def test_evaluation_on_a_corpus_of_another_vocabulary_says_how_to_prepare_it(finished, small_store, tmp_path):
    config, _ = finished
    tokens = (small_store.parent / "vocab.txt").read_text().splitlines()
    (tmp_path / "vocab.txt").write_text("\n".join([*tokens, "hedgehog"]) + "\n")
    run_prepare(
        PrepareConfig(
            input=str(small_store.parent / "corpus.txt"),
            vocab=str(tmp_path / "vocab.txt"),
            output=str(tmp_path / "store"),
            sentences="lines",
            workers=1,
        )
    )
    other = dataclasses.replace(config, data=dataclasses.replace(config.data, path=str(tmp_path / "store")))
    with pytest.raises(UserError, match=f"prepare the corpus again with --vocab={config.workdir}/tokenizer"):
        run_evaluate(config.workdir, other)


def test_nothing_is_left_to_do(finished, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pretraining, "remark", lambda model: f"no counterpart of {model.num_layers} layers")
    shutil.copytree(finished[0].workdir, tmp_path / "run")
    config = dataclasses.replace(finished[0], workdir=str(tmp_path / "run"))
    before = rows(config.workdir)
    assert pretrain(config).evaluation == {}
    said = capsys.readouterr().out
    assert "raise the steps" in said and rows(config.workdir) == before
    assert f"no counterpart of {config.model.num_layers} layers\n" in said


@pytest.mark.slow
@pytest.mark.parametrize("broken_from, kept", [(7, [5, 6]), (1, [])])
def test_states_without_a_finite_loss_push_out_no_good_one(small_store, tmp_path, monkeypatch, broken_from, kept):
    """Every step and every evaluation is due to be saved; the run ends after ten steps in a row without an update."""

    def broken(*given, place, **options):
        for step, batch in enumerate(make(*given, **options), 1):
            yield place(
                batch | {"masked_weights": np.full_like(batch["masked_weights"], np.nan)}
                if step >= broken_from
                else batch
            )

    make = pretraining.batches
    monkeypatch.setattr(pretraining, "batches", broken)
    checkpoint = CheckpointConfig(every_steps=1, keep_last=2, keep_best=0)
    phases = (PhaseConfig(steps=30, sequence_length=32, batch_size=16, learning_rate=1e-3),)
    faults = FaultsConfig(rollbacks=0)
    config = run_config(small_store, tmp_path / "run", checkpoint=checkpoint, phases=phases, faults=faults)
    with pytest.raises(UserError, match="has not been finite for 10 steps"):
        pretrain(config)
    assert Checkpoints(tmp_path / "run" / "checkpoints", read_only=True).steps() == kept


def test_rates_do_not_count_what_is_no_training(small_store, tmp_path, monkeypatch):
    """The pipeline starts, a program compiles and states are saved, each in an hour more: no row counts them."""
    hour, hours, make = 3600, [], pretraining.batches

    def slow(function):
        def after_an_hour(*given, **options):
            hours.append(hour)
            return function(*given, **options)

        return after_an_hour

    def batches(*given, **options):
        hours.append(hour)
        yield from make(*given, **options)

    clock = lambda: time.perf_counter() + sum(hours)
    monkeypatch.setattr(pretraining, "Rates", functools.partial(pretraining.Rates, clock=clock))
    monkeypatch.setattr(pretraining, "batches", batches)
    monkeypatch.setattr(jax.stages.Lowered, "compile", slow(jax.stages.Lowered.compile))
    monkeypatch.setattr(Checkpoints, "save", slow(Checkpoints.save))
    evaluation = EvaluationConfig(every_steps=0, sequences=32, batch_size=32)
    config = run_config(small_store, tmp_path / "run", evaluation=evaluation)
    pretrain(config)
    logged = read_rows(tmp_path / "run" / "metrics.jsonl")
    counted = sum(1 / row["steps_per_second"] for row in logged if row["kind"] == "train")
    assert len(hours) == 7 and counted < hour  # pipeline, three programs, three saves


@pytest.mark.slow
@pytest.mark.parametrize("pairs", ["sop", "none"])
def test_other_objectives_run(small_store, tmp_path, pairs):
    phases = (PhaseConfig(steps=2, sequence_length=32, batch_size=16, learning_rate=1e-3),)
    config = run_config(small_store, tmp_path / pairs, masking=MaskingConfig(unit="whole_word"), phases=phases)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, sentence_pairs=pairs))
    result = pretrain(config)
    measured = run_evaluate(config.workdir, config).metrics
    for found in (result.evaluation, measured, rows(config.workdir)[-1]):
        of_pairs = {name for name in found if "sentence" in name}
        assert of_pairs == ({"sentence_order_loss", "sentence_order_accuracy"} if pairs == "sop" else set())


def test_fill_mask_gives_probabilities_for_every_mask(finished):
    config, _ = finished
    model = load(config.workdir)
    filled = model.fill_mask("The [MASK] grows in the [MASK].", top_k=200)
    assert len(filled) == 2
    for candidates in filled:
        assert sum(candidate.probability for candidate in candidates) == pytest.approx(1.0, abs=1e-4)
        assert [c.probability for c in candidates] == sorted((c.probability for c in candidates), reverse=True)
    with pytest.raises(UserError, match=r"there is no \[MASK\]"):
        model.fill_mask("nothing to fill in")
    with pytest.raises(UserError, match="the model takes 64"):
        model.fill_mask("[MASK] " * 100)


@pytest.mark.slow
@pytest.mark.optimized
def test_thirty_two_sequences_are_learned_by_heart(small_store):
    """32 sequences with one fixed mask each, dropout off: accuracy on them rises above 0.99."""
    steps, store = 300, open_store(small_store)
    config = Config(
        model=dataclasses.replace(MODEL, vocab_size=store.vocab_size, hidden_dropout=0.0, attention_dropout=0.0),
        phases=(PhaseConfig(steps=steps, sequence_length=32, batch_size=32, learning_rate=3e-3),),
        masking=MaskingConfig(static_masks=1),
    )
    model = BertForPreTraining(config.model)
    mesh, _, step = small_pretraining.compiled(model, config, small_pretraining.SINGLE)
    state = create_state(model, optimizer(config.optimizer, model.parameters), mesh, seed=0)
    batch = sharding.to_global(mesh, Examples(store, config).batch(np.arange(32)), 32)
    for _ in range(steps):
        state, metrics = step(state, batch)
    assert float(metrics["mlm_accuracy"]) > 0.99 and float(metrics["next_sentence_accuracy"]) == 1.0


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"data": DataConfig(path="STORE", loader="tf.data")}, r"data.loader=tf.data needs tensorflow, .*loader=plain"),
        ({"workdir": "gs://bucket/run"}, r"gs://bucket/run needs gcsfs, .*bert_jax\[gcs\]"),
        ({"data": DataConfig(path="gs://bucket/store")}, r"gs://bucket/store needs gcsfs"),
        ({"data": DataConfig(path="STORE", eval_path="gs://bucket/other")}, r"gs://bucket/other needs gcsfs"),
    ],
    ids=["tf.data", "workdir", "store", "evaluation store"],
)
def test_a_missing_library_is_named_before_anything_is_written(small_store, tmp_path, monkeypatch, changes, message):
    config = dataclasses.replace(run_config(small_store, tmp_path / "run"), **changes)
    if config.data.path == "STORE":
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, path=str(small_store)))
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("tensorflow", "gcsfs") else find_spec(name)
    )
    with pytest.raises(UserError, match=message):
        pretrain(config)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.optimized
def test_a_run_learns_what_the_corpus_has_to_teach(small_store, tmp_path):
    """Half of the words follow from the others: held-out accuracy rises far above that of word frequencies alone."""
    config = run_config(
        small_store,
        tmp_path / "learns",
        log_every_steps=100,
        evaluation=EvaluationConfig(every_steps=0, sequences=128),
        checkpoint=CheckpointConfig(every_steps=700, keep_best=0),
        phases=(PhaseConfig(steps=700, sequence_length=32, batch_size=32, learning_rate=3e-3, warmup_steps=50),),
    )
    pretrain(config)
    evaluated = run_evaluate(config.workdir, config)
    assert evaluated.metrics["mlm_accuracy"] > evaluated.unigram["mlm_accuracy"] + 0.2
    assert evaluated.metrics["mlm_loss"] < evaluated.unigram["mlm_loss"] - 1.2


BATCH = 16


def config_of(store, workdir, steps: int = 10, **changes):
    phase = PhaseConfig(steps=steps, sequence_length=32, batch_size=BATCH, learning_rate=1e-3, warmup_steps=2)
    settings = {
        "phases": (phase,),
        "checkpoint": CheckpointConfig(every_steps=2, keep_last=20, keep_best=0),
        "evaluation": EvaluationConfig(every_steps=0, sequences=32, batch_size=32),
        "faults": FaultsConfig(max_skipped_steps=2),
    }
    return run_config(store, workdir, **settings | changes)


def arrays(config, step: int) -> dict[str, str]:
    """Fingerprints of everything in a checkpoint."""
    record = read_record(pathlib.Path(config.workdir) / f"checkpoints/step_{step:09}/record")
    return {path: entry["fingerprint"] for path, entry in record["arrays"].items()}


def position(config, step: int) -> dict:
    return read_record(pathlib.Path(config.workdir) / f"checkpoints/step_{step:09}/record")["position"]


def happened(config, *events: str) -> list[dict]:
    return [row for row in read_events(f"{config.workdir}/events.jsonl") if row["event"] in events]


@pytest.fixture(scope="module")
def expected(small_store, tmp_path_factory):
    """What the others should become: a run in which nothing goes wrong, on data without the batches of steps 5 to 7."""
    config = config_of(small_store, tmp_path_factory.mktemp("rollback") / "expected")

    def with_a_gap(examples, first: int, size: int, mine: np.ndarray, number: int, place, **options):
        for step in range(number):
            start = first + step * size
            yield place(examples.batch(start + (3 * BATCH if start >= 4 * BATCH else 0) + mine))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining, "batches", with_a_gap)
        pretrain(config, objective=poison(config))  # the same program, which never meets its marks
    return config


def poison(config, factor: float = math.nan):
    """The batches of steps 6 and 7 go wrong; the checkpoint before them is that of step 4."""
    return poisoned(config, (5 * BATCH, 6 * BATCH), factor)


def assert_as_expected(config, expected):
    assert rows(config.workdir) == rows(expected.workdir)
    assert arrays(config, 10) == arrays(expected, 10)
    assert position(config, 10) == {"phase": 0, "examples_seen": 13 * BATCH, "skipped": [[0, 4 * BATCH, 7 * BATCH]]}
    assert "skipped" not in position(config, 4)


@pytest.mark.slow
def test_a_run_goes_on_behind_batches_that_are_not_finite(small_store, tmp_path, expected):
    config = config_of(small_store, tmp_path / "run")
    assert pretrain(config, objective=poison(config)).step == 10
    assert_as_expected(config, expected)
    (rollback,) = happened(config, "rollback")
    assert (rollback["from_step"], rollback["to_step"], rollback["span"]) == (7, 4, [0, 4 * BATCH, 7 * BATCH])
    wanted = [(6, 1, "nan"), (7, 2, "nan")]
    assert [(row["step"], row["in_a_row"], row["loss"]) for row in happened(config, "skipped")] == wanted


@pytest.mark.slow
def test_a_run_goes_back_to_a_local_save_that_is_newer_than_the_checkpoint(small_store, tmp_path, expected):
    local_path = str(tmp_path / "local")
    kept = CheckpointConfig(every_steps=3, keep_last=20, keep_best=0, local_path=local_path, local_every_steps=4)
    config = config_of(small_store, tmp_path / "run", checkpoint=kept)
    assert pretrain(config, objective=poison(config)).step == 10
    assert rows(config.workdir) == rows(expected.workdir) and arrays(config, 10) == arrays(expected, 10)
    (rollback,) = happened(config, "rollback")
    assert (rollback["from_step"], rollback["to_step"]) == (7, 4)
    assert [row["step"] for row in happened(config, "saved_locally")] == [4, 8]  # and 8 only once


class Death(BaseException):
    """The process ends here."""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["restored", *(["deleting", "stepping"] if EXHAUSTIVE else [])])
def test_a_run_that_dies_around_a_rollback_becomes_the_same(small_store, tmp_path, monkeypatch, expected, moment):
    config = config_of(small_store, tmp_path / "run")

    def die(*unused, **options):
        raise Death

    write = Metrics.write

    def die_at_step_five(self, step, values, kind="train"):
        if step == 5 and happened(config, "rollback"):
            raise Death
        write(self, step, values, kind)

    with monkeypatch.context() as patch:
        if moment == "deleting":
            patch.setattr(
                Checkpoints,
                "restore",
                lambda self, state, restore=Checkpoints.restore: (
                    die() if happened(config, "skipped") else restore(self, state)
                ),
            )
        elif moment == "restored":
            patch.setattr(Metrics, "rewind", die)
        else:
            patch.setattr(Metrics, "write", die_at_step_five)
        with pytest.raises(Death):
            pretrain(config, objective=poison(config))
    assert pretrain(config, objective=poison(config)).step == 10
    assert_as_expected(config, expected)
    assert len(happened(config, "start")) == 2 and happened(config, "rollback")[-1]["to_step"] == 4


@pytest.mark.slow
def test_a_run_that_is_stopped_among_skipped_steps_counts_on(small_store, tmp_path, monkeypatch, expected):
    """SIGTERM arrives as the first step is skipped: the state that is saved then is not one to go back to."""
    config = config_of(small_store, tmp_path / "run")
    write = Events.write

    def stop(self, event, step, **details):
        write(self, event, step, **details)
        if event == "skipped":
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Events, "write", stop)
        stopped = pretrain(config, objective=poison(config))
    assert stopped.exit_code == 143 and stopped.step in (6, 7)
    if stopped.step == 6:
        assert position(config, 6)["guard"] == {"skipped": 1}
    assert pretrain(config, objective=poison(config)).step == 10
    assert_as_expected(config, expected)


@pytest.mark.slow
def test_a_spike_is_rolled_back(small_store, tmp_path, monkeypatch):
    """Of ten times the loss before, at step 7 of a window of at least four losses."""
    monkeypatch.setattr("bert_jax.training.reporter.FEWEST", 4)
    config = config_of(small_store, tmp_path / "run", faults=FaultsConfig(spike_threshold=50))
    objective = poisoned(config, (6 * BATCH,), 10.0)
    assert pretrain(config, objective=objective).step == 10
    (rollback,) = happened(config, "rollback")
    assert (rollback["from_step"], rollback["to_step"], rollback["span"]) == (7, 6, [0, 6 * BATCH, 7 * BATCH])
    assert "is a spike" in rollback["reason"]
    assert [row["step"] for row in rows(config.workdir)] == list(range(1, 11))
    assert max(row["loss"] for row in rows(config.workdir)) < 7
    losses = [row["loss"] for row in rows(config.workdir)]
    assert position(config, 10)["guard"]["losses"] == losses
    # Interrupted after step 8, it becomes the same: the losses of the window come from the checkpoint.
    for step in (10,):
        (pathlib.Path(config.workdir) / f"checkpoints/step_{step:09}").rename(tmp_path / "later")
    before = rows(config.workdir)
    assert pretrain(config, objective=objective).step == 10
    assert rows(config.workdir) == before and position(config, 10)["guard"]["losses"] == losses


@pytest.mark.slow
def test_a_run_that_may_not_go_back_stops_with_a_report(small_store, tmp_path):
    config = config_of(small_store, tmp_path / "run", faults=FaultsConfig(max_skipped_steps=2, rollbacks=0))
    message = "not been finite for 2 steps up to 7, and none of the 0 rollbacks is left"
    with pytest.raises(UserError, match=message) as error:
        pretrain(config, objective=poison(config))
    file = pathlib.Path(config.workdir) / "fault_at_step_7.json"
    assert str(file) in str(error.value) and "the newest checkpoint is step 4" in str(error.value)
    report = json.loads(file.read_text(), parse_constant=pytest.fail)
    assert report["steps"] == [6, 7] and report["positions"] == [5 * BATCH, 7 * BATCH]
    assert [row["position"] for row in report["last_batch"]] == list(range(6 * BATCH, 7 * BATCH))
    examples = open_corpus(config).training[0]
    batch = examples.batch(np.array([6 * BATCH]))
    ids = batch["input_ids"][0][batch["attention_mask"][0] > 0]
    assert report["last_batch"][0]["text"] == examples.store.tokenizer().decode(ids.tolist())
    norms = report["parameter_norms"]
    assert norms.keys() == report["gradient_norms"].keys() and report["gradient_norms"]["mlm/bias"] == "nan"
    assert happened(config, "failed")[0]["error"].startswith("loss or gradient has not been finite")


@pytest.mark.slow
def test_before_the_first_checkpoint_there_is_nothing_to_go_back_to(small_store, tmp_path):
    config = config_of(small_store, tmp_path / "run", checkpoint=CheckpointConfig(every_steps=100))
    with pytest.raises(UserError, match="for 2 steps up to 7, and no checkpoint is older"):
        pretrain(config, objective=poison(config))
    assert (pathlib.Path(config.workdir) / "fault_at_step_7.json").exists()


@pytest.mark.slow
def test_a_later_phase_goes_back_into_the_earlier_one(small_store, tmp_path):
    """Its first two batches are bad: the end of the first phase is restored, and the second begins behind them."""
    phases = tuple(PhaseConfig(steps=4, sequence_length=32, batch_size=size, learning_rate=1e-3) for size in (16, 8))
    config = config_of(small_store, tmp_path / "run", phases=phases)
    examples = open_corpus(config).training[1]
    marks = [int(examples.batch(start + np.arange(8))["input_ids"].sum()) for start in (0, 8)]
    make = poisoned(config, (0, BATCH), math.nan)
    objective = lambda model, config: dataclasses.replace(make(model, config), marks=tuple(marks))
    assert pretrain(config, objective=objective).step == 8
    (rollback,) = happened(config, "rollback")
    assert (rollback["from_step"], rollback["to_step"], rollback["span"]) == (6, 4, [1, 0, 16])
    assert position(config, 8) == {"phase": 1, "examples_seen": 48, "skipped": [[1, 0, 16]]}


def small(store, place) -> Config:
    model = ModelConfig(hidden_size=16, num_layers=1, num_heads=2, max_position_embeddings=32)
    data = DataConfig(path=str(store), held_out=0.1, loader="plain")
    phases = (PhaseConfig(steps=2, sequence_length=32, batch_size=16),)
    return Config(model=model, data=data, workdir=str(place / "run"), phases=phases)


def test_a_phase_that_does_not_fit_ends_with_advice(small_store, tmp_path, monkeypatch, capsys):
    def too_large(self, *arguments, **options):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Used 18.92G of 15.75G hbm. Exceeded hbm capacity.")

    monkeypatch.setattr(Program, "prepare", too_large)
    with pytest.raises(UserError) as raised:
        pretrain(small(small_store, tmp_path))
    said = str(raised.value)
    assert said.startswith("phase 0 does not fit into the memory of a device (the program needs 18.92 GiB, 15.75 GiB")
    assert "--compute.remat=sel or full" in said and "--phases.0.micro_batches=2" in said and "\n" not in said
    told = capsys.readouterr().out
    assert "remat: none" in told and "phase 0: attention by xla\n" in told


def test_a_first_state_that_does_not_fit_ends_with_advice(small_store, tmp_path, monkeypatch):
    monkeypatch.setattr("bert_jax.pretraining.create_state", full_device)
    message = f"^the state of the run {DOES_NOT_FIT}; what helps: a smaller model; chips with"
    with pytest.raises(UserError, match=message):
        pretrain(small(small_store, tmp_path))


def test_a_checkpoint_that_does_not_fit_is_not_taken_for_a_damaged_one(finished, tmp_path, monkeypatch):
    shutil.copytree(finished[0].workdir, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/step_000000012")
    left = {path: path.read_bytes() for path in (tmp_path / "run/checkpoints").rglob("*") if path.is_file()}
    config = dataclasses.replace(finished[0], workdir=str(tmp_path / "run"))
    monkeypatch.setattr("bert_jax.checkpoints.record.placed", full_device)
    message = f"^the state of the run {DOES_NOT_FIT}; what helps: a smaller model; chips with"
    with pytest.raises(UserError, match=message):
        pretrain(config)
    assert left == {path: path.read_bytes() for path in (tmp_path / "run/checkpoints").rglob("*") if path.is_file()}


class TooLarge:
    """A jitted function for which there is no memory."""

    def lower(self, *arguments):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8597736080 bytes.")


def test_an_evaluation_that_does_not_fit_is_not_blamed_on_the_phase(small_store, tmp_path, monkeypatch):
    monkeypatch.setattr("bert_jax.training.evaluation.make_sums_step", lambda *arguments: TooLarge())
    with pytest.raises(UserError, match=r"^an evaluation batch of \d+ sequences .* a smaller --evaluation.batch_size$"):
        pretrain(small(small_store, tmp_path))
