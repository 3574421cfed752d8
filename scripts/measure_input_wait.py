"""How long a host waits for its batches, as a share of its steps, if its devices take so many sequences per second.

    python scripts/measure_input_wait.py CONFIG --data.path=STORE --rates=5000,10000,20000 [--steps=100] [OPTIONS]

The devices are pretended: a step takes the time that the rate says. As in `bert-jax pretrain`, a step is dispatched
while the one before is computed, and this process sleeps until that one ends; what counts is the time in which the
devices have nothing to do. Batches are made by the pipeline of `bert-jax pretrain`, with its options and its allocator,
and placed on this machine's device. The pipeline has been filled before the first step that counts. Only the options of
the first phase count.
"""

import argparse
import contextlib
import os
import resource
import time

import numpy as np

from bert_jax.config import resolve_phases
from bert_jax.console.command_line import configured
from bert_jax.data.examples.corpus import open_corpus
from bert_jax.data.examples.pipeline import batches
from bert_jax.devices import sharding
from bert_jax.devices.host_process import start_anew
from bert_jax.devices.transfer import narrowed

WARM_UP = 20  # steps before those that count


def main() -> None:
    start_anew(os.environ)  # as `bert-jax pretrain` does
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--rates", default="10000")
    parser.add_argument("--steps", type=int, default=100)
    own, words = parser.parse_known_args()
    config = configured(words, "measure_input_wait.py CONFIG", __doc__ or "")
    corpus, mesh = open_corpus(config), sharding.make_mesh(config.mesh)
    phase, steps = resolve_phases(config)[0], own.steps
    bound = max(corpus.store.vocab_size, phase.sequence_length + 1)
    print(f"length {phase.sequence_length}, batches of {phase.batch_size}, loader {config.data.loader}")
    print("| sequences per second | ms of a step | ms of waiting | share | CPU ms |\n|---|---|---|---|---|")
    for rate in map(float, own.rates.split(",")):
        stream = batches(
            corpus.training[0],
            0,
            phase.batch_size,
            np.arange(phase.batch_size),
            steps + WARM_UP + 100,
            loader=config.data.loader,
            prefetch=config.data.prefetch,
            place=lambda rows: sharding.to_global(mesh, narrowed(rows, bound), phase.batch_size),
        )
        waited, spent = _waits(stream, phase.batch_size / rate, steps)
        step = phase.batch_size / rate
        print(f"| {rate:,.0f} | {1e3 * step:.1f} | {1e3 * waited:.2f} | {waited / step:.1%} | {1e3 * spent:.1f} |")


def _waits(stream, step_seconds: float, steps: int) -> tuple[float, float]:
    """Return the mean seconds per step in which the devices have nothing to do, and of the processor's work."""
    with contextlib.closing(stream):
        for _ in range(WARM_UP):
            next(stream)
            time.sleep(step_seconds)
        idle, begun, before = 0.0, _cpu_seconds(), 0.0
        end = time.perf_counter()
        for _ in range(steps):
            next(stream)
            dispatched = time.perf_counter()
            idle += max(0.0, dispatched - end)
            before, end = end, max(dispatched, end) + step_seconds
            time.sleep(max(0.0, before - time.perf_counter()))
        return idle / steps, (_cpu_seconds() - begun) / steps


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
