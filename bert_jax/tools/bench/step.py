"""Benchmark the training step: ours, ours with other options, and torch's, in turns (`bert-jax bench step`)."""

import dataclasses
import math
import os
import pathlib
import tempfile
from typing import Any

import numpy as np

from bert_jax.config import Config, EncoderConfig, MaskedWords, ModelConfig, Phase, resolve_phases
from bert_jax.config.commands import StepBenchConfig
from bert_jax.config.options import to_dict
from bert_jax.devices.process import computing_variables, machine_memory, on_tpu
from bert_jax.errors import UserError, at_least
from bert_jax.formats.huggingface import to_json
from bert_jax.formats.model_types.bert import BERT
from bert_jax.formats.model_types.definition import ModelType, unlike_bert
from bert_jax.formats.model_types.modernbert import MODERNBERT
from bert_jax.tools.bench import turns
from bert_jax.training_data import open_corpus

PEERS = {"stock": "torch, stock", "tuned": "torch, tuned"}
PEER_HAS = ("norm_position", "scaled_outputs", "position_init", "padding_id")
"""Options of the model, in addition to those of later encoders, that its BERT has at their defaults alone."""
SYNTHETIC, STORED = 2, 8  # batches that a contestant goes through again and again
FIRST_WORD = 5  # ids below are special tokens


@dataclasses.dataclass(frozen=True)
class BatchFile:
    """Batches in a .npz file: each array has one more axis in front."""

    path: str
    positions: int
    """Positions of a batch, padding included."""
    useful: float
    """Positions of a batch that hold a token, on average."""
    predictions: float
    """Masked positions of a batch, on average."""

    @property
    def padding(self) -> float:
        """Share of the positions that are padding."""
        return 1 - self.useful / self.positions


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


@dataclasses.dataclass(frozen=True)
class Entry:
    """A contestant, and what a step of it does."""

    role: str
    """ours, variant, stock or tuned."""
    contestant: turns.Contestant
    batches: BatchFile


def run_step(options: StepBenchConfig, words: list[str]) -> None:
    """Measure, print and write the result.

    Raises:
      UserError: what is asked for cannot be measured here; this is found before the first round.
    """
    check_possible(options, words)
    peer = turns.peer_versions(options)
    before = turns.load_average()
    with tempfile.TemporaryDirectory() as directory:
        files = BatchFiles(pathlib.Path(directory), options.padding)
        starts = [_one_start(options, files) for _ in range(options.starts)]
    entries, waiting, _ = starts[-1]
    played = [[turn for part in parts for turn in part] for parts in zip(*(taken for *_, taken in starts), strict=True)]
    values = turns.recorded("step", words, (before, turns.load_average()), peer=peer)
    turns.show(step_report(options, entries, waiting, played, values), options.output)


def _one_start(
    options: StepBenchConfig, files: BatchFiles
) -> tuple[list[Entry], list[turns.Waiting], list[list[turns.Turn]]]:
    """Start all contestants, and return them and their turns."""
    entries = our_entries(options, files)

    def peers(facts: dict[str, Any]) -> list[turns.Contestant]:
        check_memory(options, facts)
        found = peer_entries(options, files, facts) if options.peer == "torch" else []
        entries.extend(found)
        return [entry.contestant for entry in found]

    return entries, *turns.measured(options, [entry.contestant for entry in entries], peers)


def check_possible(options: StepBenchConfig, words: list[str]) -> None:
    """Raise a UserError if the contestants cannot take turns on this machine, or torch cannot do the same work."""
    if options.platform in ("auto", "tpu") and on_tpu():
        if options.variant:
            raise UserError(
                "a TPU belongs to one process, so variants cannot take turns; measure each in a run of its own"
            )
        if options.peer != "none":
            raise UserError(f"peer={options.peer} is measured on CPU and GPU; on a TPU leave it out, or --platform=cpu")
    at_least(1, starts=options.starts)
    if not 0 <= options.padding < 1:
        raise UserError(f"padding={options.padding} must be at least 0 and less than 1")
    if not options.data.path and any("packing=on" in word for word in (*words, *options.variant)):
        raise UserError("data.packing=on: there is nothing to pack in a synthetic batch; give --data.path=STORE")
    if options.peer != "none" and (other := beyond_the_peer(options.run)):
        raise UserError(
            f"peer={options.peer}: transformers' BERT has no {', '.join(other)}; measure without --peer, or the model "
            "of 2018, or ModernBERT"
        )


ROOM = 0.8
"""Share of the machine's memory that all contestants may hold; the rest is for the system."""


def check_memory(options: StepBenchConfig, facts: dict[str, Any]) -> None:
    """Raise a UserError if so many processes that hold what ours does have no room in the memory of the machine."""
    number = 1 + len(options.variant) + (len(PEERS) if options.peer == "torch" else 0)
    (phase,), there = resolve_phases(options.run), machine_memory()
    held = facts.get("peak_memory_bytes", 0) * number
    if facts["platform"] == "cpu" and held > ROOM * there:
        fits = phase.batch_size >> math.ceil(math.log2(held / (ROOM * there)))
        raise UserError(
            f"{number} contestants with batches of {phase.batch_size} would hold about {held / 1e9:.0f} GB, as much as "
            f"ours each, but this machine has {there / 1e9:.0f} GB; give smaller batches, such as --batch_size="
            f"{max(1, fits)}, or measure fewer at once"
        )


def peer_type(model: EncoderConfig) -> ModelType:
    """Return the type of the peer's model: ModernBERT where it computes what `model` does, else BERT."""
    return MODERNBERT if isinstance(model, ModelConfig) and not MODERNBERT.obstacles(model) else BERT


def beyond_the_peer(config: Config) -> list[str]:
    """Return the options whose values make the step different from that of the peer's model in transformers."""
    model, objective = config.model, config.objective
    own, usual = to_dict(model), to_dict(ModelConfig())
    names = [*unlike_bert(model), *(name for name in PEER_HAS if name in own and own[name] != usual[name])]
    found = [f"model.{name}={own[name]}" for name in names if name != "disentangled"]
    if model.disentangled is not None:
        found.append(f"model.disentangled.terms={model.disentangled.terms}")
    if not model.type_vocab_size:
        found.append("model.type_vocab_size=0")
    if peer_type(model) is MODERNBERT:
        found = []
    if not isinstance(objective, MaskedWords):
        found.append(f"objective.name={objective.name}")
    elif objective.span_boundary_weight or objective.taught is not None:
        found.append("objective.span_boundary_weight and objective.distillation")
    return found


def our_entries(options: StepBenchConfig, files: BatchFiles) -> list[Entry]:
    """Return our step with the options of the run, then its variants."""
    entries = []
    for name in (turns.OURS, *options.variant):
        config, environment = turns.varied(options.run, "" if name == turns.OURS else name)
        config = with_vocabulary(config)
        file = files.of(config)
        job = {"config": to_dict(config), "batches": file.path, "platform": options.platform}
        contestant = turns.Contestant(name, turns.our_program("step"), job, environment)
        entries.append(Entry("ours" if name == turns.OURS else "variant", contestant, file))
    return entries


def peer_entries(options: StepBenchConfig, files: BatchFiles, facts: dict[str, Any]) -> list[Entry]:
    """Return torch's step as it is and tuned, on our device and in our data type; it has no packed rows."""
    config = with_vocabulary(turns.unpacked(options.run))
    file, entries = files.of(config), []
    for role, name in PEERS.items():
        job = peer_job(config, facts) | {"batches": file.path, "role": role, "compile": options.peer_compile}
        program = turns.peer_program(options.peer_python, "step")
        environment = computing_variables(os.environ) if role == "tuned" else {}  # as ours
        entries.append(Entry(role, turns.Contestant(name, program, job, environment, is_peer=True), file))
    return entries


def peer_job(config: Config, facts: dict[str, Any]) -> dict[str, Any]:
    """Return what a peer's process needs to do the work of `config`, where our process has given these facts."""
    (phase,), optimizer, kind = resolve_phases(config), config.optimizer, peer_type(config.model)
    architecture = kind.classes["mlm"] if kind is MODERNBERT else "BertForPreTraining"
    return {
        "model": to_json(config.model, None, architecture, 0, kind),
        **turns.as_ours(facts),
        "bfloat16": facts["dtype"] == "bfloat16",
        "micro_batches": phase.micro_batches,
        "learning_rate": phase.learning_rate,
        "betas": [optimizer.beta1, optimizer.beta2],
        "epsilon": optimizer.epsilon,
        "weight_decay": optimizer.weight_decay,
        "clip_norm": optimizer.clip_norm,
        "seed": config.seed,
    }


def step_report(
    options: StepBenchConfig,
    entries: list[Entry],
    waiting: list[turns.Waiting],
    played: list[list[turns.Turn]],
    values: dict[str, Any],
) -> turns.Report:
    """Return the figures of each contestant, and how many times as fast ours is as each other."""
    (phase,) = resolve_phases(options.run)
    found: list[dict[str, Any]] = [
        {
            **step_figures(entry, one, taken),
            "ratio": turns.ratio(played[0], taken, entries[0].batches.useful, entry.batches.useful),
        }
        for entry, one, taken in zip(entries, waiting, played, strict=True)
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
    of_others = lambda entry, spread: "" if entry["role"] == "ours" else turns.shown(spread, ".2f")
    facts = waiting[0].facts
    shape = f"batch {phase.batch_size} × {phase.sequence_length}, {facts['dtype']}"
    return turns.Report(
        {**values, **ours, **ratios, "config": to_dict(options.run), "contestants": found},
        f"Training step: {options.model.num_layers} layers, hidden size {options.model.hidden_size}, {shape}",
        {
            "contestant": lambda entry: entry["name"],
            "useful tokens/s": lambda entry: f"{entry['useful_tokens_per_second']:,.0f}",
            "per CPU s": lambda entry: f"{entry['useful_tokens_per_cpu_second']:,.0f}",
            "padding": lambda entry: f"{entry['padding']:.1%}",
            "s per step": lambda entry: turns.shown(entry["seconds_per_step"], ".3f"),
            "CPU s per step": lambda entry: turns.shown(entry["cpu_seconds_per_step"], ".3f"),
            "ours is faster by, wall": lambda entry: of_others(entry, entry["ratio"].wall),
            "CPU": lambda entry: of_others(entry, entry["ratio"].cpu),
        },
        [
            f"Medians of {len(played[0])} rounds with quartiles; a ratio is the median of those of neighbouring turns.",
            f"Ours: attention by {facts['attention']}; remat: {facts['remat']}; "
            + ("several texts in a row." if facts["packed"] else "one text or pair in a row."),
        ],
    )


def step_figures(entry: Entry, one: turns.Waiting, taken: list[turns.Turn]) -> dict[str, Any]:
    """Return what was found about one contestant."""
    wall, cpu = turns.seconds(taken)
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


def with_vocabulary(config: Config) -> Config:
    """Return `config` with the size of its vocabulary: the store's if it names one, else its own or BERT's.

    Synthetic batches are not packed, whatever the configuration says.
    """
    size = config.model.assumed_vocab_size
    if config.data.path:
        size = open_corpus(config).store.vocab_size
    else:
        config = turns.unpacked(config)
    return dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=size))


def write_batches(config: Config, padding: float, path: pathlib.Path) -> BatchFile:
    """Write the batches of the only phase of `config`, whose vocabulary has a size, to `path`.

    Args:
      config: options of the run; with data.path the batches are the first ones of that store.
      padding: share of padding in synthetic batches.
    """
    (phase,) = resolve_phases(config)
    if config.data.path:
        (examples,) = open_corpus(config).training
        batches = [examples.batch(number * phase.batch_size + np.arange(phase.batch_size)) for number in range(STORED)]
    else:
        batches = [synthetic_batch(config, phase, padding, seed) for seed in range(SYNTHETIC)]
    arrays = {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}
    np.savez(path, allow_pickle=False, **arrays)
    mean = lambda name: float(np.mean([np.count_nonzero(batch[name]) for batch in batches]))
    return BatchFile(str(path), phase.tokens_per_step, mean("attention_mask"), mean("masked_weights"))


def synthetic_batch(config: Config, phase: Phase, padding: float, seed: int) -> dict[str, np.ndarray]:
    """Return a batch of random words in which every row has the same length and every prediction slot is used."""
    random = np.random.default_rng(seed)
    rows, length = phase.batch_size, phase.sequence_length
    text = max(2, length - round(length * padding))
    masked = min(phase.max_predictions, text - 1)
    ids = random.integers(FIRST_WORD, config.model.need_vocab_size(), (rows, length), np.int32)
    attention_mask = np.broadcast_to(np.arange(length) < text, (rows, length)).astype(np.int32)
    positions = np.zeros((rows, phase.max_predictions), np.int32)
    words = np.tile(np.arange(1, text), (rows, 1))  # the first is [CLS]
    positions[:, :masked] = np.sort(random.permuted(words, axis=1)[:, :masked], axis=1)
    weights = np.broadcast_to(np.arange(phase.max_predictions) < masked, positions.shape).astype(np.float32)
    batch = {
        "input_ids": ids * attention_mask,
        "token_type_ids": (np.arange(length) > text // 2).astype(np.int32) * attention_mask,
        "attention_mask": attention_mask,
        "masked_positions": positions,
        "masked_ids": np.take_along_axis(ids, positions, 1) * weights.astype(np.int32),
        "masked_weights": weights,
    }
    if config.data.has_pair_labels:
        batch["next_sentence_labels"] = random.integers(0, 2, rows, np.int32)
    if "order" in config.objective.arrays(length):  # the predicted words in turn, after all others
        batch["order"] = np.zeros_like(ids)
        order = np.broadcast_to(np.arange(1, masked + 1, dtype=np.int32), (rows, masked))
        np.put_along_axis(batch["order"], positions[:, :masked], order, 1)
    return batch
