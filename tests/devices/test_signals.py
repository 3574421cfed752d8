"""Stop signals anywhere in a run, in separate processes: they act at once, say what is saved, and lose nothing."""

import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import processes
import pytest
from processes import SECONDS, wait_until
from small_pretraining import pretrain, rows, run_config

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.config import CheckpointConfig, EvaluationConfig
from bert_jax.config.options import to_dict
from bert_jax.devices.signals import Stopped, StopSignals
from bert_jax.training.evaluation import Evaluation, Part

# What a run is busy with for as long as the test wants; the number of seconds ends a process that nobody has ended.
COMPILES = """
import time, jax
def compile_(*unused, **options):
    print("XLA is busy", flush=True)
    time.sleep(3600)
jax.stages.Lowered.compile = compile_
"""
RESTORES = """
import time
from bert_jax.checkpoints.checkpoint import Checkpoints
def restore(*unused):
    print("Orbax is busy", flush=True)
    for _ in range(36000): time.sleep(0.1)
Checkpoints.restore = restore
"""
DESTROYS = """
import time
from bert_jax.checkpoints.checkpoint import Checkpoints
class Slow:
    def __del__(self):
        print("a destructor is busy", flush=True)
        for _ in range(36000): time.sleep(0.1)
def restore(*unused):
    Slow()
Checkpoints.restore = restore
"""
EVALUATES = """
import itertools, time
from bert_jax.training.evaluation import Evaluation, Part
make = Part.batches
def batches(self, mesh):
    first = next(make(self, mesh))
    print("evaluating", flush=True)
    for _ in range(36000):
        time.sleep(0.1)
        yield first
Evaluation.unigram = lambda *unused: {"mlm_loss": 1.0, "perplexity": 2.7, "mlm_accuracy": 0.1}
Part.batches = batches
"""
HANGS = EVALUATES.replace("        yield first", "    yield first")


class Process:
    """`bert-jax pretrain` with the source code `busy` run before it."""

    def __init__(self, config, busy: str):
        file, self._log = (pathlib.Path(config.workdir).with_suffix(suffix) for suffix in (".json", ".log"))
        file.write_text(json.dumps(to_dict(config)))
        code = (
            f"{busy}\nimport sys\nfrom bert_jax.cli import main\n"
            f"sys.argv = ['bert-jax', 'pretrain', {str(file)!r}]\nmain()"
        )
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code], env=processes.one_device(), stdout=log, stderr=subprocess.STDOUT
            )

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._process.kill()
        self._process.wait()

    @property
    def output(self) -> str:
        return self._log.read_text()

    def wait_for(self, text: str) -> None:
        self.wait_until(lambda: text in self.output)

    def wait_until(self, condition) -> None:
        wait_until(condition, lambda: self._process.poll() is None, lambda: self.output)

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def exit_code(self) -> int:
        """Of a process that ends long before what it was busy with."""
        return self._process.wait(SECONDS)


def steps(config) -> list[int]:
    return Checkpoints(pathlib.Path(config.workdir) / "checkpoints", read_only=True).steps()


@pytest.fixture
def config(small_store, tmp_path):
    evaluation = EvaluationConfig(every_steps=6, sequences=64, batch_size=32)
    checkpoint = CheckpointConfig(every_steps=4, keep_last=5)
    return run_config(small_store, tmp_path / "run", evaluation=evaluation, checkpoint=checkpoint)


@pytest.mark.parametrize(
    "busy, text, number, code",
    [
        (COMPILES, "XLA is busy", signal.SIGTERM, 143),
        pytest.param(RESTORES, "Orbax is busy", signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param(DESTROYS, "a destructor is busy", signal.SIGTERM, 143, marks=pytest.mark.slow),
    ],
)
def test_before_the_first_step_it_leaves_at_once(config, busy, text, number, code):
    with Process(config, busy) as process:
        process.wait_for(text)
        process.send(number)
        assert process.exit_code() == code, process.output
    assert process.output.endswith("stopping: nothing needs to be saved\n")
    assert steps(config) == [] and rows(config.workdir) == []


@pytest.mark.slow
def test_an_evaluation_is_left_between_two_batches_and_its_step_saved(config):
    with Process(config, EVALUATES) as process:
        process.wait_for("evaluating")
        process.send(signal.SIGTERM)
        assert process.exit_code() == 143, process.output
    assert "stopping after this step, saving step 6\n" in process.output
    assert process.output.endswith("saved step 6; the same command resumes\n")
    assert steps(config) == [4, 6] and rows(config.workdir, "evaluation") == []


@pytest.mark.slow
def test_a_second_interrupt_quits_and_says_what_is_lost(config):
    with Process(config, HANGS) as process:
        process.wait_for("evaluating")
        process.send(signal.SIGINT)
        process.wait_for("press Ctrl-C again")
        process.wait_until(lambda: steps(config) == [4])  # written in the background
        process.send(signal.SIGINT)
        assert process.exit_code() == 130, process.output
    assert process.output.endswith("quitting without saving: the steps after step 4 are lost\n")
    assert steps(config) == [4]


@pytest.mark.slow
@pytest.mark.parametrize("stopped_at", [6, 12])
def test_an_evaluation_that_was_left_is_made_by_the_next_start(config, finished, monkeypatch, stopped_at):
    """Also the last one, after which no step is left to make; and no start makes it twice."""
    whole, evaluation = finished[0], finished[1].evaluation
    make, evaluations = Part.batches, itertools.count(1)

    def interrupted(self, mesh):
        first, second = make(self, mesh)
        yield first
        if next(evaluations) == stopped_at / 6:
            os.kill(os.getpid(), signal.SIGTERM)
        yield second

    with monkeypatch.context() as patch:
        patch.setattr(Part, "batches", interrupted)
        patch.setattr(Evaluation, "unigram", lambda *unused: None)
        left = pretrain(config)
    assert (left.step, left.evaluation, left.exit_code) == (stopped_at, {}, 143)
    assert [row["step"] for row in rows(config.workdir, "evaluation")] == list(range(6, stopped_at, 6))
    resumed = pretrain(config)
    assert (resumed.step, resumed.evaluation, resumed.exit_code) == (12, evaluation, 0)
    assert pretrain(config).evaluation == {}
    for kind in ("train", "evaluation"):
        assert rows(config.workdir, kind) == rows(whole.workdir, kind)


def test_handlers_are_given_back_and_nothing_is_stopped_without_a_signal():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopSignals() as signals:
        signals.check()
        assert signals.wait(lambda: 7) == 7
    assert signals.exit_code == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_is_no_exception_that_a_reader_of_files_could_take_for_damage(capfd):
    with StopSignals() as signals:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        except Exception:
            pytest.fail("taken for damage")
    assert signals.exit_code == 143 and not issubclass(Stopped, Exception)
    assert capfd.readouterr().err == "stopping: nothing needs to be saved\n"


def test_after_the_first_check_it_waits_for_the_next(capfd):
    reached = []
    with StopSignals() as signals:
        signals.check()
        signals.saving = 1234
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("the end of the step")
        signals.check()
        reached.append("the next step")
    assert signals.exit_code == 130 and reached == ["the end of the step"]
    assert (
        capfd.readouterr().err
        == "stopping after this step, saving step 1,234 (press Ctrl-C again to quit without saving)\n"
    )
