"""`bert-jax bench step`: our training step beside torch's, and beside itself with other options, in turns."""

import dataclasses
import os
import pathlib
import tempfile
from typing import Any

from bert_jax.bench.bench_record import Report, recorded, show, shown
from bert_jax.bench.contestants import Contestant, Turn, Waiting, our_program, peer_program, started, take_turns
from bert_jax.bench.machine import load_average
from bert_jax.bench.paired_ratios import Spread, ratio, seconds
from bert_jax.bench.peer_environment import peer_versions
from bert_jax.bench.step_batches import BatchFile, unpacked, with_vocabulary, write_batches
from bert_jax.bench.variants import OURS, varied
from bert_jax.config import Config, ModelConfig, resolve_phases
from bert_jax.config.benchmarking import StepBenchConfig
from bert_jax.config.json_form import to_dict
from bert_jax.data.preparation.workers import cores
from bert_jax.devices.hardware import on_tpu
from bert_jax.devices.host_process import computing_variables
from bert_jax.errors import UserError
from bert_jax.formats.huggingface_config import to_json

PEERS = {"stock": "torch, stock", "tuned": "torch, tuned"}
PEER_HAS = ("norm_position", "scaled_outputs", "position_init", "padding_id")
"""Options of the model, beside those of later encoders, that its BERT has at their defaults alone."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A contestant, and what a step of it does."""

    role: str
    """ours, variant, stock or tuned."""
    contestant: Contestant
    batches: BatchFile


def run_step(options: StepBenchConfig, words: list[str]) -> None:
    """Measure, print and write the result.

    Raises:
      UserError: what is asked for cannot be measured here; this is found before the first round.
    """
    check_possible(options, words)
    peer = peer_versions(options.peer_python) if options.peer == "torch" else None
    before = load_average()
    with tempfile.TemporaryDirectory() as directory:
        files = BatchFiles(pathlib.Path(directory), options.padding)
        starts = [_one_start(options, files) for _ in range(options.starts)]
    entries, waiting, _ = starts[-1]
    turns = [[turn for part in parts for turn in part] for parts in zip(*(taken for *_, taken in starts), strict=True)]
    values = recorded("step", words, (before, load_average()), peer=peer)
    show(report(options, entries, waiting, turns, values), options.output)


def _one_start(options: StepBenchConfig, files: "BatchFiles") -> tuple[list[Entry], list[Waiting], list[list[Turn]]]:
    """Start all contestants, and return them and their turns."""
    ours = our_entries(options, files)
    with started([entry.contestant for entry in ours]) as waiting:
        peers = peer_entries(options, files, waiting[0].facts) if options.peer == "torch" else []
        with started([entry.contestant for entry in peers]) as further:
            waiting += further
            return [*ours, *peers], waiting, take_turns(waiting, options.rounds, options.turn_seconds)


def check_possible(options: StepBenchConfig, words: list[str]) -> None:
    """Raise a UserError if the contestants cannot take turns on this machine, or torch cannot do the same work."""
    if options.platform in ("auto", "tpu") and on_tpu():
        if options.variant:
            raise UserError(
                "a TPU belongs to one process, so variants cannot take turns; measure each in a run of its own"
            )
        if options.peer != "none":
            raise UserError(f"peer={options.peer} is measured on CPU and GPU; on a TPU leave it out, or --platform=cpu")
    if options.starts < 1:
        raise UserError(f"starts={options.starts} must be at least 1")
    if not 0 <= options.padding < 1:
        raise UserError(f"padding={options.padding} must be at least 0 and less than 1")
    if not options.data.path and any("packing=on" in word for word in (*words, *options.variant)):
        raise UserError("data.packing=on: there is nothing to pack in a synthetic batch; give --data.path=STORE")
    if options.peer != "none" and (other := beyond_the_peer(options.run)):
        raise UserError(
            f"peer={options.peer}: transformers' BERT has no {', '.join(other)}; measure without --peer, or the model "
            "of 2018"
        )


def beyond_the_peer(config: Config) -> list[str]:
    """Return the options whose values make the step different from that of BERT's pre-training in transformers."""
    model, objective = config.model, config.objective
    names = [*model.beyond_bert, *(name for name in PEER_HAS if getattr(model, name) != getattr(ModelConfig, name))]
    found = [f"model.{name}={getattr(model, name)}" for name in names if name != "disentangled"]
    if model.disentangled.terms != "none":
        found.append(f"model.disentangled.terms={model.disentangled.terms}")
    if not model.type_vocab_size:
        found.append("model.type_vocab_size=0")
    if objective.name != "masked_words":
        found.append(f"objective.name={objective.name}")
    if objective.span_boundary_weight or objective.distillation.teacher:
        found.append("objective.span_boundary_weight and objective.distillation")
    return found


class BatchFiles:
    """The batches of all contestants; those with the same data share a file."""

    def __init__(self, directory: pathlib.Path, padding: float):
        self._directory, self._padding = directory, padding
        self._files: dict[Any, BatchFile] = {}

    def of(self, config: Config) -> BatchFile:
        """Return the file for these options, whose vocabulary has a size."""
        key = (config.data, config.masking, config.phases, config.model.vocab_size, config.seed)
        if key not in self._files:
            self._files[key] = write_batches(config, self._padding, self._directory / f"{len(self._files)}.npz")
        return self._files[key]


def our_entries(options: StepBenchConfig, files: BatchFiles) -> list[Entry]:
    """Return our step with the options of the run, then its variants."""
    entries = []
    for name in (OURS, *options.variant):
        config, environment = varied(options.run, "" if name == OURS else name)
        config = with_vocabulary(config)
        file = files.of(config)
        job = {"config": to_dict(config), "batches": file.path, "platform": options.platform}
        contestant = Contestant(name, our_program("step_contestant"), job, environment)
        entries.append(Entry("ours" if name == OURS else "variant", contestant, file))
    return entries


def peer_entries(options: StepBenchConfig, files: BatchFiles, facts: dict[str, Any]) -> list[Entry]:
    """Return torch's step as it is and tuned, on the device and in the data type of ours; it has no packed rows."""
    config = with_vocabulary(unpacked(options.run))
    file, entries = files.of(config), []
    for role, name in PEERS.items():
        job = peer_job(config, facts) | {"batches": file.path, "role": role, "compile": options.peer_compile}
        program = peer_program(options.peer_python, "torch_step.py")
        environment = computing_variables(os.environ) if role == "tuned" else {}  # as ours
        entries.append(Entry(role, Contestant(name, program, job, environment, is_peer=True), file))
    return entries


def peer_job(config: Config, facts: dict[str, Any]) -> dict[str, Any]:
    """Return what a peer's process needs to do the work of `config`, where ours has told these facts."""
    (phase,), optimizer = resolve_phases(config), config.optimizer
    return {
        "model": to_json(config.model, None, "BertForPreTraining", 0),
        "device": "cuda" if facts["platform"] == "gpu" else "cpu",
        "bfloat16": facts["dtype"] == "bfloat16",
        "threads": cores(),
        "micro_batches": phase.micro_batches,
        "learning_rate": phase.learning_rate,
        "betas": [optimizer.beta1, optimizer.beta2],
        "epsilon": optimizer.epsilon,
        "weight_decay": optimizer.weight_decay,
        "clip_norm": optimizer.clip_norm,
        "seed": config.seed,
    }


def report(
    options: StepBenchConfig,
    entries: list[Entry],
    waiting: list[Waiting],
    turns: list[list[Turn]],
    values: dict[str, Any],
) -> Report:
    """Return the figures of each contestant, and how many times as fast ours is as each other."""
    (phase,) = resolve_phases(options.run)
    found: list[dict[str, Any]] = [
        {
            **figures(entry, one, taken),
            "ratio": ratio(turns[0], taken, entries[0].batches.useful, entry.batches.useful),
        }
        for entry, one, taken in zip(entries, waiting, turns, strict=True)
    ]
    ours = {
        key: found[0][key] for key in ("tokens_per_second", "useful_tokens_per_second", "useful_tokens_per_cpu_second")
    }
    ratios = {
        f"{kind}ratio_to_{entry['role']}": getattr(entry["ratio"], clock).median
        for entry in found
        if entry["role"] in PEERS
        for kind, clock in (("", "wall"), ("cpu_", "cpu"))
    }
    facts = waiting[0].facts
    shape = f"batch {phase.batch_size} × {phase.sequence_length}, {facts['dtype']}"
    return Report(
        {**values, **ours, **ratios, "config": to_dict(options.run), "contestants": found},
        f"Training step: {options.model.num_layers} layers, hidden size {options.model.hidden_size}, {shape}",
        (
            "contestant",
            "useful tokens/s",
            "per CPU s",
            "padding",
            "s per step",
            "CPU s per step",
            "ours is faster by, wall",
            "CPU",
        ),
        [_row_of(entry) for entry in found],
        [
            f"Medians of {len(turns[0])} rounds with quartiles; a ratio is the median of those of neighbouring turns.",
            f"Ours: attention by {facts['attention']}; remat: {facts['remat']}; "
            + ("several texts in a row." if facts["packed"] else "one text or pair in a row."),
        ],
    )


def figures(entry: Entry, one: Waiting, taken: list[Turn]) -> dict[str, Any]:
    """Return what was found about one contestant."""
    wall, cpu = seconds(taken)
    return {
        "name": one.name,
        "role": entry.role,
        "seconds_per_step": wall,
        "cpu_seconds_per_step": cpu,
        "tokens_per_second": entry.batches.positions / wall.median,
        "useful_tokens_per_second": entry.batches.useful / wall.median,
        "useful_tokens_per_cpu_second": entry.batches.useful / cpu.median,
        "padding": entry.batches.padding,
        "predictions_per_step": entry.batches.predictions,
        "facts": one.facts,
        "turns": taken,
    }


def _row_of(entry: dict[str, Any]) -> tuple[str, ...]:
    compared = entry["ratio"]
    ratios = ("", "") if entry["role"] == "ours" else (shown(compared.wall, ".2f"), shown(compared.cpu, ".2f"))
    spread: Spread = entry["seconds_per_step"]
    return (
        entry["name"],
        f"{entry['useful_tokens_per_second']:,.0f}",
        f"{entry['useful_tokens_per_cpu_second']:,.0f}",
        f"{entry['padding']:.1%}",
        shown(spread, ".3f"),
        shown(entry["cpu_seconds_per_step"], ".3f"),
        *ratios,
    )
