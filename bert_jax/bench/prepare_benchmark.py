"""`bert-jax bench prepare`: MB of text for each CPU second, beside the tokenizer alone, in turns."""

import dataclasses
import pathlib
import tempfile
from typing import Any

from bert_jax.bench.bench_record import Report, recorded, show, shown
from bert_jax.bench.contestants import Contestant, Turn, Waiting, our_program, peer_program, started, take_turns
from bert_jax.bench.machine import load_average
from bert_jax.bench.paired_ratios import Spread, ratio, seconds
from bert_jax.bench.peer_environment import peer_versions
from bert_jax.config.benchmarking import PrepareBenchConfig
from bert_jax.config.json_form import to_dict
from bert_jax.data.corpus.readers import find_sources, read_lines
from bert_jax.errors import UserError
from bert_jax.tokenization.tokenizer import load_tokenizer

LINES = 1_000  # that a tokenizer gets at once
NAMES = {
    "prepare": "bert-jax prepare, one worker",
    "tokenizer": "our tokenizer alone",
    "peer": "transformers' fast tokenizer",
}


def run_prepare_benchmark(options: PrepareBenchConfig, words: list[str]) -> None:
    """Measure, print and write the result.

    Raises:
      UserError: the corpus or the vocabulary cannot be used; this is found before the first round.
    """
    peer = peer_versions(options.peer_python) if options.peer == "torch" else None
    tokenizer = load_tokenizer(options.vocab, options.lowercase)
    if peer and tokenizer.kind != "wordpiece":
        raise UserError(
            f"peer=torch: {options.vocab} is a {tokenizer.kind} vocabulary, but only WordPiece tokenizers can be "
            "compared"
        )
    before = load_average()
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        text = place / "text.txt"
        size = write_text(options, text)
        run = dataclasses.replace(options.run, input=str(text), format="text", workers=1)
        job = {"config": to_dict(run), "lines": LINES, "directory": directory}
        program = our_program("prepare_contestant")
        contestants = [
            Contestant(NAMES["prepare"], program, job | {"whole": True}),
            Contestant(NAMES["tokenizer"], program, job | {"whole": False}, {"RAYON_NUM_THREADS": "1"}),
        ]
        if peer:
            tokenizer.save(place / "tokenizer")
            vocab = str(place / "tokenizer" / "vocab.txt")
            job = {"vocab": vocab, "lowercase": tokenizer.lowercase, "text": str(text), "lines": LINES}
            program = peer_program(options.peer_python, "torch_tokenizer.py")
            contestants.append(Contestant(NAMES["peer"], program, job, is_peer=True))
        with started(contestants) as waiting:
            turns = take_turns(waiting, options.rounds, options.turn_seconds)
    values = recorded("prepare", words, (before, load_average()), peer=peer, text_bytes=size)
    show(report(options, size, waiting, turns, values), options.output)


def write_text(options: PrepareBenchConfig, path: pathlib.Path) -> int:
    """Write the beginning of the corpus as plain text; return the number of bytes.

    Raises:
      UserError: there is no such corpus, or no text in it.
    """
    size = 0
    with path.open("w", encoding="utf-8") as file:
        for source in find_sources(options.input, options.format):
            for line in read_lines(source, options.text_field):
                size += len((line := line.rstrip("\n") + "\n").encode())
                file.write(line)
                if size >= options.max_bytes:
                    return size
    if not size:
        raise UserError(f"input={options.input} has no text")
    return size


def report(
    options: PrepareBenchConfig, size: int, waiting: list[Waiting], turns: list[list[Turn]], values: dict[str, Any]
) -> Report:
    """Return the rate of each contestant, and its share of the rate of our tokenizer alone."""
    found = []
    for one, taken in zip(waiting, turns, strict=True):
        wall, cpu = seconds(taken)
        found.append(
            {
                "name": one.name,
                "megabytes_per_cpu_second": size / 1e6 / cpu.median,
                "megabytes_per_second": size / 1e6 / wall.median,
                "ratio": ratio(turns[0], taken),
                "facts": one.facts,
                "turns": taken,
            }
        )
    compared: list[Spread] = [entry["ratio"].cpu for entry in found]
    return Report(
        {
            **values,
            "megabytes_per_cpu_second": found[0]["megabytes_per_cpu_second"],
            "ratio_to_tokenizer": compared[1].median,
            "contestants": found,
        },
        f"Preparing {size / 1e6:,.1f} MB of text",
        ("contestant", "MB/CPU s", "MB/s", "first is faster by, CPU"),
        [
            (
                entry["name"],
                f"{entry['megabytes_per_cpu_second']:,.2f}",
                f"{entry['megabytes_per_second']:,.2f}",
                shown(spread, ".2f") if number else "",
            )
            for number, (entry, spread) in enumerate(zip(found, compared, strict=True))
        ],
        [f"Medians of {options.rounds} rounds with quartiles."],
    )
