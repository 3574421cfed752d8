"""Processes that tests start: what they share, and waiting for them; a deadline ends what hangs, not what is slow."""

import importlib.metadata
import multiprocessing.forkserver
import os
import random
import socket
import subprocess
import time

# Compiling is most of the work of small models: without optimization, by XLA's preset for fast compilation, and each
# program as one module in which fusions are emitted directly, it takes a fraction of the time.
UNOPTIMIZED = (
    "--xla_backend_optimization_level=0 --xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_COMPILE "
    "--xla_cpu_parallel_codegen_split_count=1"
)
if importlib.metadata.version("jaxlib").startswith("0.10."):  # a later one has no such option, and ends the process
    UNOPTIMIZED += " --xla_cpu_use_fusion_emitters=false"

EXHAUSTIVE = "BERT_JAX_EXHAUSTIVE" in os.environ
"""Whether tests that take the same thing to more machines, meshes, losses or configurations take it to all of them."""

SECONDS = 1000  # less than pytest's own limit, which would end the worker's other tests too


def run(*words, **options) -> subprocess.CompletedProcess:
    """Run a program to its end: exit status, and what it printed."""
    return subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, **options)


def forks(module: str) -> multiprocessing.context.ForkServerContext:
    """Return the context whose processes are forked from one that has imported `module`, and that for no other."""
    context, server = multiprocessing.get_context("forkserver"), multiprocessing.forkserver._forkserver
    if server._preload_modules != [module]:
        server._stop()
        context.set_forkserver_preload([module])
    return context


def end_forks() -> None:
    """End the process that others are forked from, if there is one, and wait for it: its processor time is known."""
    multiprocessing.forkserver._forkserver._stop()


def wait_until(condition, alive=lambda: True, said=lambda: "") -> None:
    """Return as soon as `condition()` holds; fail with `said()` when `alive()` does not, or at the deadline."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert alive() and time.monotonic() < deadline, said()
        time.sleep(0.02)


def free_port() -> int:
    """Return a port that nothing listens on, below those that the system gives to other workers and connections."""
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def compiler_flags() -> str:
    """Return the options of XLA that these tests compile with, without the number of their virtual devices."""
    return " ".join(flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag)


def one_device(killed: bool = False) -> dict[str, str]:
    """Return the environment of a process with one device; it adds to the program cache unless it is to be killed."""
    adds = {} if killed else {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1"}
    return {**os.environ, "XLA_FLAGS": compiler_flags(), **adds}
