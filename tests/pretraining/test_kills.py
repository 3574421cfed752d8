"""kill -9 at random moments, inside saves and rollbacks too: what is left in the end is what nobody interrupted.

`BERT_JAX_KILLS=20 pytest -n0 -m slow tests/pretraining/test_kills.py -s` kills twenty times and says at which moments.
"""

import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from typing import Literal

import pytest
from processes import EXHAUSTIVE, one_device, wait_until
from small_pretraining import rows, run_config

from bert_jax.checkpoints.record import read_record
from bert_jax.config import CheckpointConfig, DataConfig, EvaluationConfig, FaultsConfig, PhaseConfig
from bert_jax.config.options import to_dict
from bert_jax.training.events import read_events

pytestmark = pytest.mark.optimized

KILLS = int(os.environ.get("BERT_JAX_KILLS", "3"))
STEPS, BATCH = 25 * KILLS, 16
POISONED = tuple(batch for first in range(14, STEPS, 27) for batch in (first, first + 1))
"""Batches whose loss is not finite; two in a row make the run roll back."""
PROGRAM = f"""
import math, os, sys
sys.path[:0] = {[str(pathlib.Path(__file__).parents[1] / "support")]}
import jax
from poisoned_objective import poisoned
from bert_jax.console import load_config
from bert_jax.pretraining import pretrain

def run(file, log, adds):
    for stream in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    if not adds:  # a process that is killed as it writes would leave a torn program in the cache
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e9)
    config = load_config(file)
    pretrain(config, objective=poisoned(config, {[batch * BATCH for batch in POISONED]}, math.nan))

for line in sys.stdin:
    child = os.fork()
    if not child:
        code = 1
        try:
            run(*line.split()[:2], adds=line.split()[2] == "adds")
            code = 0
        finally:
            os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Each line of its input starts a run in a process of its own, which has imported everything already."""


class Run:
    """One run, in as many processes as it takes."""

    def __init__(self, store, workdir: pathlib.Path, starter: subprocess.Popen, packing: Literal["on", "off"]):
        phase = PhaseConfig(steps=STEPS, sequence_length=32, batch_size=BATCH, learning_rate=1e-3, warmup_steps=2)
        config = run_config(
            store,
            workdir,
            data=DataConfig(path=str(store), held_out=0.1, packing=packing),
            phases=(phase,),
            checkpoint=CheckpointConfig(every_steps=3, keep_last=4, keep_best=0),
            evaluation=EvaluationConfig(every_steps=25, sequences=32, batch_size=32),
            faults=FaultsConfig(max_skipped_steps=2, rollbacks=10),
        )
        self.workdir, self.file, self._starter = workdir, workdir.with_suffix(".json"), starter
        self.file.write_text(json.dumps(to_dict(config)))

    def start(self, adds: bool = False) -> int:
        """Start a process and return its id; `wait` must follow."""
        assert self._starter.stdin is not None
        words = (self.file, self.workdir.with_suffix(".log"), "adds" if adds else "reads")
        self._starter.stdin.write(" ".join(map(str, words)) + "\n")
        self._starter.stdin.flush()
        return self._answer()

    def wait(self) -> int:
        """Return the exit code of the process."""
        return self._answer()

    def _answer(self) -> int:
        assert self._starter.stdout is not None
        return int(self._starter.stdout.readline())

    def finish(self) -> None:
        self.start(adds=True)
        assert self.wait() == 0, self.log()

    def log(self) -> str:
        return self.workdir.with_suffix(".log").read_text()

    def events(self, *names: str) -> list[dict]:
        return [row for row in read_events(self.workdir / "events.jsonl") if row["event"] in names]

    def moment(self) -> str:
        """What a process that has just been killed was doing."""
        if any(self.workdir.glob("checkpoints/*tmp*")):
            return "inside a save"
        last = self.events("start", "skipped", "rollback", "saved", "compiled")[-1]
        if last["event"] == "skipped" and last["in_a_row"] == 2:
            return "inside a rollback"
        return f"after the event {last['event']} of step {last['step']}"

    def result(self) -> tuple[list[dict], list[dict], dict]:
        record = read_record(self.workdir / f"checkpoints/step_{STEPS:09}/record")
        return rows(self.workdir), rows(self.workdir, "evaluation"), record["arrays"] | record["position"]


def kill(run: Run, event: str, chance: random.Random) -> str:
    """Start the run and kill it a little after a new row of this event; return what it was doing."""
    before, process = len(run.events(event)), run.start()
    is_over = lambda: not pathlib.Path(f"/proc/{process}").exists()
    try:
        wait_until(lambda: len(run.events(event)) > before or is_over(), said=run.log)
        time.sleep(chance.random() * 0.3)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        code = run.wait()
    return "after its end" if code == 0 else run.moment()


@pytest.fixture
def starter():
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=one_device(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["on", *(["off"] if EXHAUSTIVE else [])])
def test_killing_a_run_changes_nothing(small_store, tmp_path, starter, packing):
    whole, killed = (Run(small_store, tmp_path / name, starter, packing) for name in ("whole", "killed"))
    whole.finish()
    assert len(whole.events("rollback")) == len(POISONED) // 2 and whole.result()[2]["examples_seen"] > STEPS * BATCH
    chance = random.Random(0)
    for number in range(KILLS):
        event = ("skipped", "saved", "compiled")[number % 3]
        print(f"kill {number + 1} of {KILLS}: {kill(killed, event, chance)}", flush=True)
    killed.finish()
    assert len(killed.events("start")) == KILLS + 1
    assert killed.result() == whole.result()
    print(f"{KILLS} of {KILLS} kills: {STEPS} losses, evaluations and all arrays are the same to the bit")
