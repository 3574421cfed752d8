"""`bert-jax bench data`: how fast our loaders make batches, beside the masking collator of transformers, in turns."""

import dataclasses
import importlib.util
import itertools
import pathlib
import tempfile
from typing import Any

import numpy as np

from bert_jax.bench.bench_record import Report, recorded, show, shown
from bert_jax.bench.contestants import Contestant, Turn, Waiting, our_program, peer_program, started, take_turns
from bert_jax.bench.host_rates import needed
from bert_jax.bench.machine import load_average
from bert_jax.bench.paired_ratios import Spread, ratio, seconds
from bert_jax.bench.peer_environment import peer_versions
from bert_jax.bench.step_batches import unpacked
from bert_jax.bench.variants import OURS, varied
from bert_jax.config import resolve_phases
from bert_jax.config.benchmarking import DataBenchConfig
from bert_jax.config.json_form import to_dict
from bert_jax.data.examples.corpus import open_corpus
from bert_jax.data.examples.pipeline import check_loader
from bert_jax.errors import UserError

GIVEN = 4  # batches of sequences that the collator goes through again and again
FORMS = {"pt": "collator of transformers, torch", "np": "collator of transformers, NumPy"}


def run_data(options: DataBenchConfig, words: list[str]) -> None:
    """Measure, print and write the result.

    Raises:
      UserError: the store or what is asked for cannot be used; this is found before the first round.
    """
    needs = needed(options)
    check_loader(options.data.loader)
    peer = peer_versions(options.peer_python) if options.peer == "torch" else None
    before = load_average()
    with tempfile.TemporaryDirectory() as directory:
        ours = our_contestants(options)
        peers = collators(options, pathlib.Path(directory)) if peer else []
        with started([*ours, *peers]) as waiting:
            turns = take_turns(waiting, options.rounds, options.turn_seconds)
    values = recorded("data", words, (before, load_average()), peer=peer)
    show(report(options, needs, waiting, turns, values), options.output)


def our_contestants(options: DataBenchConfig) -> list[Contestant]:
    """Return our loader with the options of the run, its variants, and those of the grid."""
    contestants = []
    for name in dict.fromkeys((OURS, *options.variant, *(grid() if options.grid else ()))):
        config, environment = varied(options.run, "" if name == OURS else name)
        check_loader(config.data.loader)
        contestants.append(Contestant(name, our_program("data_contestant"), {"config": to_dict(config)}, environment))
    return contestants


def grid() -> list[str]:
    """Return the variants that --grid adds; tf.data is one only where TensorFlow is installed."""
    loaders = ("plain", *(("tf.data",) if importlib.util.find_spec("tensorflow") else ()))
    choices = itertools.product(loaders, ("off", "on"), ("token", "whole_word"))
    return [f"data.loader={loader} data.packing={packing} masking.unit={unit}" for loader, packing, unit in choices]


def collators(options: DataBenchConfig, directory: pathlib.Path) -> list[Contestant]:
    """Return the peer's collator in both of its forms, for the sequences of the run, which are written to `directory`.

    Raises:
      UserError: transformers' collator cannot mask as the options say.
    """
    if options.masking.unit == "span":
        raise UserError("peer=torch: the collator of transformers masks no spans; choose another --masking.unit")
    config = dataclasses.replace(unpacked(options.run), masking=dataclasses.replace(options.masking, unit="token"))
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
    program = peer_program(options.peer_python, "torch_collator.py")
    return [Contestant(name, program, job | {"form": form}, is_peer=True) for form, name in FORMS.items()]


def unmasked(batch: dict[str, np.ndarray]) -> np.ndarray:
    """Return the ids of a batch with every masked word in its place again."""
    ids, used = batch["input_ids"].copy(), batch["masked_weights"] > 0
    rows = np.broadcast_to(np.arange(len(ids))[:, None], used.shape)
    ids[rows[used], batch["masked_positions"][used]] = batch["masked_ids"][used]
    return ids


def report(
    options: DataBenchConfig,
    needs: dict[str, float],
    waiting: list[Waiting],
    turns: list[list[Turn]],
    values: dict[str, Any],
) -> Report:
    """Return the rates of each contestant, ratios, and how many cores the hosts that were named keep busy."""
    (phase,) = resolve_phases(options.run)
    found = [figures(one, taken, turns[0]) for one, taken in zip(waiting, turns, strict=True)]
    first = {key: found[0][key] for key in ("sequences_per_cpu_second", "sequences_per_second", "token_share")}
    peers = [entry for entry in found if entry["name"] in FORMS.values()]
    best = max(peers, key=lambda entry: entry["sequences_per_cpu_second"], default=None)
    cores = {name: rate / first["sequences_per_cpu_second"] for name, rate in needs.items()}
    return Report(
        {
            **values,
            **first,
            **({} if best is None else {"ratio_to_collator": best["ratio"].cpu.median, "collator": best["name"]}),
            "cores_busy": cores,
            "config": to_dict(options.run),
            "contestants": found,
        },
        f"Making batches: {phase.batch_size} × {phase.sequence_length}, {options.masking.unit}",
        (
            "contestant",
            "sequences/CPU s",
            "useful tokens/CPU s",
            "tokens among positions",
            "peak MiB",
            "first is faster by, CPU",
        ),
        [_row_of(entry, entry is found[0]) for entry in found],
        [
            f"Medians of {options.rounds} rounds with quartiles.",
            *(
                f"{name} takes {needs[name]:,.0f} sequences/s: {busy:.2f} cores are busy."
                for name, busy in cores.items()
            ),
        ],
    )


def figures(one: Waiting, taken: list[Turn], first: list[Turn]) -> dict[str, Any]:
    """Return what was found about one contestant, in comparison with the first."""
    wall, cpu = seconds(taken)
    return {
        "name": one.name,
        "sequences_per_cpu_second": one.facts["sequences"] / cpu.median,
        "sequences_per_second": one.facts["sequences"] / wall.median,
        "tokens_per_cpu_second": one.facts["tokens"] / cpu.median,
        "token_share": one.facts["token_share"],
        "cpu_seconds_per_batch": cpu,
        "peak_memory_bytes": max(turn.peak_memory_bytes for turn in taken),
        "ratio": ratio(first, taken),
        "facts": one.facts,
        "turns": taken,
    }


def _row_of(entry: dict[str, Any], is_first: bool) -> tuple[str, ...]:
    compared: Spread = entry["ratio"].cpu
    return (
        entry["name"],
        f"{entry['sequences_per_cpu_second']:,.0f}",
        f"{entry['tokens_per_cpu_second']:,.0f}",
        f"{entry['token_share']:.1%}",
        f"{entry['peak_memory_bytes'] / 2**20:,.0f}",
        "" if is_first else shown(compared, ".2f"),
    )
