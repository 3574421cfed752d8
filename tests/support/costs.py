"""Plugin of pytest: CPU seconds of each test and what they went into, in a CSV file and as tables at the end.

    python -m pytest --costs FILE …

Each test adds one line when it ends, its fixtures included: a fixture of a module or session is charged to the first
test that asks for it, and an import to the first that imports. Columns: seconds of wall time; CPU seconds of the
process that runs the tests (own) and of processes that it waited for (children); seconds of wall time in which JAX
traced, lowered and compiled (traces within traces count twice); numbers of programs compiled and of processes started.
Not charged are processes that nobody waits for; those of a fork server are charged to the last test.

The file is written anew. All workers of xdist write to it, and the tables are of all of them.
"""

import collections
import csv
import os
import pathlib
import resource
import sys
import time

import pytest

COLUMNS = ("wall", "own", "children", "trace", "lower", "compile", "programs", "processes")
EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")
FILES = 40  # the most expensive, in the second table

counted = dict.fromkeys(COLUMNS[3:], 0.0)


def pytest_addoption(parser) -> None:
    parser.addoption("--costs", metavar="FILE", help="Write the CPU seconds of each test to this CSV file.")


def pytest_sessionstart(session) -> None:
    """Begin to count."""
    if session.config.getoption("costs") is None:
        return
    import jax  # not above: tests/conftest.py sets what it reads as it is imported

    jax.monitoring.register_event_duration_secs_listener(_add_duration)
    sys.addaudithook(_add_process)
    if not hasattr(session.config, "workerinput"):  # not a worker of xdist
        pathlib.Path(session.config.getoption("costs")).unlink(missing_ok=True)


def _add_duration(event: str, seconds: float, **_) -> None:
    if event in EVENTS:
        counted[EVENTS[event]] += seconds
        counted["programs"] += EVENTS[event] == "compile"


def _add_process(event: str, _) -> None:
    if event in STARTS:
        counted["processes"] += 1


def _now() -> tuple[float, ...]:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic(), time.process_time(), children.ru_utime + children.ru_stime, *counted.values()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    before = _now()
    result = yield
    if item.config.getoption("costs") is None:
        return result
    spent = [f"{after - start:.3f}" for after, start in zip(_now(), before)]
    with open(item.config.getoption("costs"), "a", encoding="utf-8", newline="") as file:
        csv.writer(file).writerow([item.nodeid, *spent])
    return result


def pytest_terminal_summary(terminalreporter, config) -> None:
    place = config.getoption("costs")
    for line in tables(place) if place is not None and os.path.exists(place) else ():
        terminalreporter.write_line(line)


def tables(place: os.PathLike) -> list[str]:
    """Return the table by folder and that of the most expensive files, as lines of Markdown."""
    with open(place, encoding="utf-8", newline="") as file:
        lines = [(name.split("::")[0], [float(value) for value in values]) for name, *values in csv.reader(file)]
    folders = lambda file: "/".join(pathlib.PurePosixPath(file).parts[:2])
    return ["", *_table("folder", lines, folders), "", *_table("file", lines, lambda file: file)[: FILES + 3]]


def _table(title: str, lines: list[tuple[str, list[float]]], group) -> list[str]:
    sums: dict[str, list[float]] = collections.defaultdict(lambda: [0.0] * (len(COLUMNS) + 1))
    for file, values in lines:
        for name in (group(file), "all"):
            sums[name] = [total + value for total, value in zip(sums[name], [*values, 1])]
    rows = sorted(sums.items(), key=lambda row: -row[1][1] - row[1][2])
    return [
        "| " + " | ".join((title, *COLUMNS, "tests")) + " |",
        "|---|" + "---:|" * (len(COLUMNS) + 1),
        *("| " + " | ".join((name, *(f"{value:,.0f}" for value in values))) + " |" for name, values in rows),
    ]
