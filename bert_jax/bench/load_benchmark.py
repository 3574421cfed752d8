"""`bert-jax bench load`: loading a model in a new process, beside transformers, in turns."""

import statistics
import sys
from typing import Any

from bert_jax.bench.bench_record import Report, recorded, show, shown
from bert_jax.bench.contestants import Contestant, Turn, Waiting, our_program, peer_program, started, take_turns
from bert_jax.bench.machine import load_average
from bert_jax.bench.paired_ratios import ratio
from bert_jax.bench.peer_environment import peer_versions
from bert_jax.config.benchmarking import LoadBenchConfig
from bert_jax.errors import UserError
from bert_jax.formats.opening import open_stored

PARTS = ("imports", "load", "load_and_read", "from_the_start")


def run_load(path: str, options: LoadBenchConfig, words: list[str]) -> None:
    """Measure, print and write the result.

    Raises:
      UserError: the model cannot be loaded; this is found before the first round.
    """
    peer = peer_versions(options.peer_python) if options.peer == "torch" else None
    for each in (path, *options.also):
        stored = open_stored(each)
        if peer and each == path and stored.kind != "huggingface":
            raise UserError(f"peer=torch: transformers opens Hugging Face directories only, and {path} is not one")
    ours = [
        Contestant(
            f"bert_jax, {each}", peer_program(sys.executable, "fresh_process.py"), job(our_program("load_once"), each)
        )
        for each in (path, *options.also)
    ]
    theirs = peer_program(options.peer_python, "torch_load.py")
    program = peer_program(options.peer_python, "fresh_process.py")
    peers = [Contestant("transformers", program, job(theirs, path), is_peer=True)] if peer else []
    before = load_average()
    with started([ours[0], *peers, *ours[1:]]) as waiting:
        turns = take_turns(waiting, options.rounds, 0)
    values = recorded("load", words, (before, load_average()), peer=peer, model=path)
    show(report(options, waiting, turns, values), options.output)


def job(command: tuple[str, ...], path: str) -> dict[str, Any]:
    """Return the job of running a program on a model; the interpreter is that of the contestant."""
    return {"program": [*command[1:], path]}


def report(options: LoadBenchConfig, waiting: list[Waiting], turns: list[list[Turn]], values: dict[str, Any]) -> Report:
    """Return what each part takes, and how the first compares with the others from the start to the end."""
    found = []
    for one, taken in zip(waiting, turns, strict=True):
        middle = lambda name, taken=taken: statistics.median(turn.found[name] for turn in taken)
        seconds = {name: middle(name) for name in PARTS}
        memory = middle("peak_memory_bytes")
        compared = ratio(turns[0], taken)
        found.append(
            {"name": one.name, "seconds": seconds, "peak_memory_bytes": memory, "ratio": compared, "turns": taken}
        )
    peers = [entry for entry in found if entry["name"] == "transformers"]
    return Report(
        {
            **values,
            "seconds": found[0]["seconds"],
            **({"ratio_to_transformers": peers[0]["ratio"].wall.median} if peers else {}),
            "contestants": found,
        },
        "Loading a model in a new process",
        (
            "contestant",
            "imports s",
            "load s",
            "load and read s",
            "from the start s",
            "peak MiB",
            "first is faster by",
            "CPU",
        ),
        [
            (
                entry["name"],
                *(f"{entry['seconds'][name]:.2f}" for name in PARTS),
                f"{entry['peak_memory_bytes'] / 2**20:,.0f}",
                *(
                    shown(getattr(entry["ratio"], clock), ".2f") if entry is not found[0] else ""
                    for clock in ("wall", "cpu")
                ),
            )
            for entry in found
        ],
        [f"Medians of {options.rounds} rounds; ratios are those of whole processes, their end included."],
    )
