"""Benchmark making batches (`bert-jax bench data`) and making token stores (`bert-jax bench prepare`).

The peers are the masking collator of transformers and its fast tokenizer.
"""

import dataclasses
import importlib.util
import itertools
import math
import pathlib
import tempfile
from typing import Any

import numpy as np

from bert_jax.config import resolve_phases
from bert_jax.config.checks import check_loader
from bert_jax.config.commands import DataBenchConfig, PrepareBenchConfig
from bert_jax.config.options import to_dict
from bert_jax.corpus.readers import find_sources, read_lines
from bert_jax.errors import UserError
from bert_jax.files import read_object
from bert_jax.tokenization.tokenizer import load_tokenizer
from bert_jax.tools.bench import turns
from bert_jax.training_data import open_corpus

GIVEN = 4  # batches of sequences that the collator goes through again and again
FORMS = {"pt": "collator of transformers, torch", "np": "collator of transformers, NumPy"}
PLAN_AGAIN = "write it again with bert-jax plan CONFIG --topology=NAME --output=FILE.json"
LINES = 1_000  # that a tokenizer gets at once
PREPARING = {
    "prepare": "bert-jax prepare, one worker",
    "tokenizer": "our tokenizer alone",
    "peer": "transformers' fast tokenizer",
}


def run_data(options: DataBenchConfig, words: list[str]) -> None:
    """Measure, print and write the result.

    Raises:
      UserError: the store or what is asked for cannot be used; this is found before the first round.
    """
    needs = needed(options)
    check_loader(options.data.loader)
    peer = turns.peer_versions(options)
    before = turns.load_average()
    with tempfile.TemporaryDirectory() as directory:
        ours = our_loaders(options)
        peers = collators(options, pathlib.Path(directory)) if peer else []
        waiting, played = turns.measured(options, [*ours, *peers])
    values = turns.recorded("data", words, (before, turns.load_average()), peer=peer)
    turns.show(data_report(options, needs, waiting, played, values), options.output)


def our_loaders(options: DataBenchConfig) -> list[turns.Contestant]:
    """Return our loader with the options of the run, its variants, and those of the grid."""
    contestants = []
    for name in dict.fromkeys((turns.OURS, *options.variant, *(grid() if options.grid else ()))):
        config, environment = turns.varied(options.run, "" if name == turns.OURS else name)
        check_loader(config.data.loader)
        contestants.append(turns.Contestant(name, turns.our_program("data"), {"config": to_dict(config)}, environment))
    return contestants


def grid() -> list[str]:
    """Return the variants that --grid adds; tf.data is one only where TensorFlow is installed."""
    loaders = ("plain", *(("tf.data",) if importlib.util.find_spec("tensorflow") else ()))
    choices = itertools.product(loaders, ("off", "on"), ("token", "whole_word"))
    return [f"data.loader={loader} data.packing={packing} masking.unit={unit}" for loader, packing, unit in choices]


def collators(options: DataBenchConfig, directory: pathlib.Path) -> list[turns.Contestant]:
    """Return the peer's collator in both of its forms, for the sequences of the run, which are written to `directory`.

    Raises:
      UserError: transformers' collator cannot mask as the options say.
    """
    if options.masking.unit == "span":
        raise UserError("peer=torch: the collator of transformers masks no spans; choose another --masking.unit")
    config = dataclasses.replace(
        turns.unpacked(options.run), masking=dataclasses.replace(options.masking, unit="token")
    )
    (phase,), (examples,) = resolve_phases(config), open_corpus(config).training
    tokenizer = examples.store.tokenizer()
    if tokenizer.kind != "wordpiece":
        raise UserError(
            f"peer=torch: {options.data.path} has a {tokenizer.kind} vocabulary, the collator needs WordPiece"
        )
    batch = examples.batch(np.arange(GIVEN * phase.batch_size))
    lengths, ids = batch["attention_mask"].sum(1), unmasked(batch)
    whole_word = options.masking.unit == "whole_word"
    if whole_word:  # it pads no offsets, so it takes full rows only
        chosen = lengths == phase.sequence_length
        if not chosen.any():
            raise UserError("peer=torch: no sequence is full, and the collator of transformers cannot pad whole words")
        ids, lengths = ids[chosen], lengths[chosen]
        batch = {"token_type_ids": batch["token_type_ids"][chosen]}
    sequences = {"input_ids": ids, "token_type_ids": batch["token_type_ids"], "lengths": lengths}
    np.savez(directory / "sequences.npz", allow_pickle=False, **sequences)
    tokenizer.save(directory / "tokenizer")
    job = {
        "sequences": str(directory / "sequences.npz"),
        "tokenizer": str(directory / "tokenizer"),
        "whole_word": whole_word,
        "rate": config.masking.rate,
        "length": phase.sequence_length,
        "batch_size": phase.batch_size,
    }
    program = turns.peer_program(options.peer_python, "data")
    return [turns.Contestant(name, program, job | {"form": form}, is_peer=True) for form, name in FORMS.items()]


def unmasked(batch: dict[str, np.ndarray]) -> np.ndarray:
    """Return the ids of a batch with every masked word in its place again."""
    ids, used = batch["input_ids"].copy(), batch["masked_weights"] > 0
    rows = np.broadcast_to(np.arange(len(ids))[:, None], used.shape)
    ids[rows[used], batch["masked_positions"][used]] = batch["masked_ids"][used]
    return ids


def data_report(
    options: DataBenchConfig,
    needs: dict[str, float],
    waiting: list[turns.Waiting],
    played: list[list[turns.Turn]],
    values: dict[str, Any],
) -> turns.Report:
    """Return the rates of each contestant, ratios, and how many cores the hosts that were named keep busy."""
    (phase,) = resolve_phases(options.run)
    found = [data_figures(one, taken, played[0]) for one, taken in zip(waiting, played, strict=True)]
    first = {key: found[0][key] for key in ("sequences_per_cpu_second", "sequences_per_second", "token_share")}
    peers = [entry for entry in found if entry["name"] in FORMS.values()]
    best = max(peers, key=lambda entry: entry["sequences_per_cpu_second"], default=None)
    cores = {name: rate / first["sequences_per_cpu_second"] for name, rate in needs.items()}
    return turns.Report(
        {
            **values,
            **first,
            **({} if best is None else {"ratio_to_collator": best["ratio"].cpu.median, "collator": best["name"]}),
            "cores_busy": cores,
            "config": to_dict(options.run),
            "contestants": found,
        },
        f"Making batches: {phase.batch_size} × {phase.sequence_length}, {options.masking.unit}",
        {
            "contestant": lambda entry: entry["name"],
            "sequences/CPU s": lambda entry: f"{entry['sequences_per_cpu_second']:,.0f}",
            "useful tokens/CPU s": lambda entry: f"{entry['tokens_per_cpu_second']:,.0f}",
            "tokens among positions": lambda entry: f"{entry['token_share']:.1%}",
            "peak MiB": lambda entry: f"{entry['peak_memory_bytes'] / 2**20:,.0f}",
            "first is faster by, CPU": lambda entry: (
                "" if entry is found[0] else turns.shown(entry["ratio"].cpu, ".2f")
            ),
        },
        [
            f"Medians of {options.rounds} rounds with quartiles.",
            *(
                f"{name} takes {needs[name]:,.0f} sequences/s: {busy:.2f} cores are busy."
                for name, busy in cores.items()
            ),
        ],
    )


def data_figures(one: turns.Waiting, taken: list[turns.Turn], first: list[turns.Turn]) -> dict[str, Any]:
    """Return what was found about one contestant, in comparison with the first."""
    wall, cpu = turns.seconds(taken)
    return {
        "name": one.name,
        "sequences_per_cpu_second": one.facts["sequences"] / cpu.median,
        "sequences_per_second": one.facts["sequences"] / wall.median,
        "tokens_per_cpu_second": one.facts["tokens"] / cpu.median,
        "token_share": one.facts["token_share"],
        "cpu_seconds_per_batch": cpu,
        "peak_memory_bytes": max(turn.peak_memory_bytes for turn in taken),
        "ratio": turns.ratio(first, taken),
        "facts": one.facts,
        "turns": taken,
    }


def needed(options: DataBenchConfig) -> dict[str, float]:
    """Return the sequences per second by the name of what needs them.

    Raises:
      UserError: a value of `need` is neither NAME=RATE nor the file of a plan that has the measured phase.
    """
    return dict(_of_plan(word, options) if word.endswith(".json") else _given(word) for word in options.need)


def _given(word: str) -> tuple[str, float]:
    name, _, rate = word.rpartition("=")
    try:
        found = float(rate)
    except ValueError:
        found = 0.0
    if not name or not 0 < found < math.inf:
        raise UserError(
            f"need={word} must be NAME=SEQUENCES_PER_SECOND, such as v5e:2x4=11000, or the file that bert-jax plan "
            "wrote, such as plan.json"
        )
    return name, found


def _of_plan(file: str, options: DataBenchConfig) -> tuple[str, float]:
    """Return the machine of a plan, and the sequences per second of one host where its steps are fastest."""
    plan = read_object(file, PLAN_AGAIN)
    try:
        name, phase = str(plan["topology"]["name"]), plan["phases"][options.phase]
        length, rate = phase["phase"]["sequence_length"], _fastest(phase)
    except (KeyError, IndexError, TypeError, ValueError):
        raise UserError(f"need={file} holds no rate for phase {options.phase}; {PLAN_AGAIN}") from None
    if length != options.run.phases[0].sequence_length:
        raise UserError(
            f"need={file}: its phase {options.phase} has rows of {length} tokens, but the measured phase has "
            f"{options.run.phases[0].sequence_length}; choose another --phase, or {PLAN_AGAIN}"
        )
    return f"{name} ({file})", rate


def _fastest(phase: dict[str, Any]) -> float:
    """Return the rate at the optimistic end, which asks most of a host."""
    rate = float(phase["optimistic"]["sequences_per_host"])
    if not 0 < rate < math.inf:
        raise ValueError
    return rate


def run_prepare_benchmark(options: PrepareBenchConfig, words: list[str]) -> None:
    """Measure, print and write the result.

    Raises:
      UserError: the corpus or the vocabulary cannot be used; this is found before the first round.
    """
    peer = turns.peer_versions(options)
    tokenizer = load_tokenizer(options.vocab, options.lowercase)
    if peer and tokenizer.kind != "wordpiece":
        raise UserError(
            f"peer=torch: {options.vocab} is a {tokenizer.kind} vocabulary, but only WordPiece tokenizers can be "
            "compared"
        )
    before = turns.load_average()
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        text = place / "text.txt"
        size = write_text(options, text)
        run = dataclasses.replace(options.run, input=str(text), format="text", workers=1)
        job = {"config": to_dict(run), "lines": LINES, "directory": directory}
        program = turns.our_program("prepare")
        contestants = [
            turns.Contestant(PREPARING["prepare"], program, job | {"whole": True}),
            turns.Contestant(PREPARING["tokenizer"], program, job | {"whole": False}, {"RAYON_NUM_THREADS": "1"}),
        ]
        if peer:
            tokenizer.save(place / "tokenizer")
            vocab = str(place / "tokenizer" / "vocab.txt")
            job = {"vocab": vocab, "lowercase": tokenizer.lowercase, "text": str(text), "lines": LINES}
            program = turns.peer_program(options.peer_python, "prepare")
            contestants.append(turns.Contestant(PREPARING["peer"], program, job, is_peer=True))
        waiting, played = turns.measured(options, contestants)
    values = turns.recorded("prepare", words, (before, turns.load_average()), peer=peer, text_bytes=size)
    turns.show(prepare_report(options, size, waiting, played, values), options.output)


def write_text(options: PrepareBenchConfig, path: pathlib.Path) -> int:
    """Write the beginning of the corpus as plain text; return the number of bytes.

    Raises:
      UserError: there is no such corpus, or no text in it.
    """
    size = 0
    with path.open("w", encoding="utf-8") as file:
        for source in find_sources(options.input, options.format, text_field=options.text_field):
            for line in read_lines(source, options.text_field):
                size += len((line := line.rstrip("\n") + "\n").encode())
                file.write(line)
                if size >= options.max_bytes:
                    return size
    if not size:
        raise UserError(f"input={options.input} has no text")
    return size


def prepare_report(
    options: PrepareBenchConfig,
    size: int,
    waiting: list[turns.Waiting],
    played: list[list[turns.Turn]],
    values: dict[str, Any],
) -> turns.Report:
    """Return the rate of each contestant, and its share of the rate of our tokenizer alone."""
    found = []
    for one, taken in zip(waiting, played, strict=True):
        wall, cpu = turns.seconds(taken)
        found.append(
            {
                "name": one.name,
                "megabytes_per_cpu_second": size / 1e6 / cpu.median,
                "megabytes_per_second": size / 1e6 / wall.median,
                "ratio": turns.ratio(played[0], taken),
                "facts": one.facts,
                "turns": taken,
            }
        )
    return turns.Report(
        {
            **values,
            "megabytes_per_cpu_second": found[0]["megabytes_per_cpu_second"],
            "ratio_to_tokenizer": found[1]["ratio"].cpu.median,
            "contestants": found,
        },
        f"Preparing {size / 1e6:,.1f} MB of text",
        {
            "contestant": lambda entry: entry["name"],
            "MB/CPU s": lambda entry: f"{entry['megabytes_per_cpu_second']:,.2f}",
            "MB/s": lambda entry: f"{entry['megabytes_per_second']:,.2f}",
            "first is faster by, CPU": lambda entry: (
                "" if entry is found[0] else turns.shown(entry["ratio"].cpu, ".2f")
            ),
        },
        [f"Medians of {options.rounds} rounds with quartiles."],
    )
