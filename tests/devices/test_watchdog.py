"""When a run counts as stuck, by the ticks of a clock in the test's hand, and what a stuck process does."""

import os
import subprocess
import sys
import threading

from processes import SECONDS

from bert_jax.devices.hosts import EXIT_CODE, where
from bert_jax.devices.signals import BEYOND_SLOWEST_SECONDS, FIRST_STEPS, PATIENCE_SECONDS, Progress
from bert_jax.training.reporter import Guard


def patience(progress: Progress) -> float:
    """Seconds after which the run counts as stuck, if nothing happens from now on."""
    seconds = 0
    while not progress.tick(1):
        seconds += 1
    return seconds


def after(*durations: float, timeout: float | None = None) -> Progress:
    """A run that has taken steps of these seconds."""
    progress = Progress(timeout)
    for seconds in durations:
        progress.tick(seconds)
        progress.step()
    return progress


def test_a_step_may_take_five_minutes_more_than_the_slowest():
    assert BEYOND_SLOWEST_SECONDS == 300
    assert patience(after(1, 40, 2, 3)) == 340
    assert patience(after(*[1] * FIRST_STEPS)) == 301
    assert patience(after(*[1] * (FIRST_STEPS - 1))) == PATIENCE_SECONDS  # nobody knows yet what is slow


def test_a_given_bound_holds_from_the_second_step_on():
    assert patience(after(timeout=20)) == PATIENCE_SECONDS
    assert patience(after(5, timeout=20)) == 20
    assert patience(after(5, 90, timeout=20)) == 20


def test_compiling_and_saving_have_their_own_time():
    progress = after(1, 1, 1, 1)
    progress.begin("compilation")
    assert patience(progress) == PATIENCE_SECONDS

    progress = after(1, 1, 1, 1, timeout=20)
    progress.tick(19)
    progress.begin("save")
    assert patience(progress) == PATIENCE_SECONDS  # the first
    progress.waited = 50.0
    progress.step()
    assert patience(progress) == 20  # a step again, whatever a save takes
    progress.step()
    progress.begin("save")
    assert patience(progress) == 350


STUCK = """
import sys, time
from bert_jax.devices import signals as watchdog
watchdog.TICK_SECONDS = 0.05
with watchdog.Watchdog(float(sys.argv[1])) as dog:
    watchdog.REPORT_SECONDS = 0.5
    def report(seconds, place):
        print(f"reported {seconds > 1} {place}", flush=True)
        time.sleep(float(sys.argv[2]))  # the disk hangs too
    dog.report = report
    for _ in range(3):
        dog.step()
    def waits_for_ever():
        time.sleep(float(sys.argv[2]))
    waits_for_ever()
print("left")
"""


def run(timeout: float, sleep: float) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", STUCK, str(timeout), str(sleep)], capture_output=True, text=True, timeout=SECONDS
    )


def test_a_stuck_process_ends_with_its_stacks():
    done = run(2, 10_000)  # seconds that no busy machine takes for the steps before it is stuck
    assert done.returncode == EXIT_CODE, done.stderr
    assert done.stdout == "reported True code outside bert_jax\n"
    assert "error: no progress for" in done.stderr and "Start the job again" in done.stderr
    assert "in waits_for_ever" in done.stderr  # the stack


def test_a_process_that_is_not_watched_takes_its_time():
    done = run(0, 1)
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr


def test_the_exit_code_is_that_of_sysexits():
    """EX_TEMPFAIL: neither 2 (a mistake) nor 130 and 143 (signals), after which nobody should start again."""
    assert EXIT_CODE == os.EX_TEMPFAIL


def test_the_place_is_the_innermost_line_of_the_package():
    reached, go_on = threading.Event(), threading.Event()

    class Losses(list):
        def __iter__(self):
            reached.set()
            go_on.wait()
            return super().__iter__()

    thread = threading.Thread(target=Guard, args=(None, {"losses": Losses()}))
    thread.start()
    try:
        assert reached.wait(SECONDS)
        assert where(thread).startswith("bert_jax/training/reporter.py:") and where(thread).endswith(" in __init__")
        assert where(threading.current_thread()).endswith(" in where")
    finally:
        go_on.set()
        thread.join()
    assert where(thread) == "code outside bert_jax"
