"""Benchmark fine-tuning, `encode` and `embed` (`bert-jax bench finetune`), and loading a model (`bert-jax bench load`).

The peer is transformers, which trains and encodes in the order and data type that are fastest for it. For the task
vectors it is sentence-transformers, with its own losses and `encode`, and in `bench load` with its first answer.
"""

import dataclasses
import functools
import json
import os
import pathlib
import statistics
import sys
import tempfile
from typing import Any

import numpy as np

from bert_jax import hub
from bert_jax.config.commands import FinetuneBenchConfig, LoadBenchConfig
from bert_jax.config.heads import SingleVector
from bert_jax.config.options import to_dict
from bert_jax.config.tasks import VectorOptions
from bert_jax.config.vectors import Cosent, InfoNce
from bert_jax.data.sequences import Features, TextFeatures
from bert_jax.devices.process import computing_variables
from bert_jax.errors import UserError
from bert_jax.finetuning.loop import with_embedding
from bert_jax.formats.huggingface_export import write_huggingface
from bert_jax.formats.opening import open_stored
from bert_jax.formats.stored import StoredModel, check_fit
from bert_jax.tasks.sentences import Sentences
from bert_jax.tasks.task_data import TaskData, read_task
from bert_jax.tasks.vectors import VectorExamples
from bert_jax.tools.bench import turns

WORKS = ("training", "encoding", "embedding")
VECTOR_WORKS = ("training", "embedding")
"""Works of the task vectors, whose model is made for vectors and not for states."""
STEPS_PER_UNIT = 16  # lengths differ from batch to batch
PARTS = ("imports", "load", "load_and_read", "first_answer", "from_the_start")


def run_finetune(options: FinetuneBenchConfig, words: list[str]) -> None:
    """Measure, print and write the result.

    Raises:
      UserError: the model or the data cannot be used; this is found before the first round.
    """
    _check_measurable(options)
    peer = turns.peer_versions(options)
    stored = open_stored(options.init_from)
    check_fit(stored)
    options = dataclasses.replace(options, options=with_embedding(options.run, stored).options)
    _need_single(options)
    data = read_task(options.run, stored.model, stored.need_tokenizer())
    texts, before = _texts(options, data), turns.load_average()
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        (place / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        if peer:
            write_for_peer(stored, data, place)
        peers = lambda facts: peer_contestants(options, data.head.outputs, facts, place) if peer else []
        waiting, played = turns.measured(options, our_contestants(options, place), peers)
    values = turns.recorded("finetune", words, (before, turns.load_average()), peer=peer, config=to_dict(options.run))
    turns.show(finetune_report(options, len(texts), waiting, played, values), options.output)


def _need_single(options: FinetuneBenchConfig) -> None:
    """Raise a UserError about vectors of tokens or words, which are made in other ways than those measured."""
    if isinstance(vectors := options.options, VectorOptions) and not isinstance(vectors.form, SingleVector):
        raise UserError(
            f"options.form.name={vectors.form.name}: only single vectors are measured; leave it out, and start from a "
            "model without such vectors"
        )


def works_of(options: FinetuneBenchConfig) -> tuple[str, ...]:
    """Return the kinds of work that are measured for a task."""
    return VECTOR_WORKS if isinstance(options.options, VectorOptions) else WORKS


def _texts(options: FinetuneBenchConfig, data: TaskData) -> list[str]:
    """Return the texts to encode; raise a UserError if the examples of the task are not made of such."""
    examples = data.train.examples
    if isinstance(examples, VectorExamples):
        return [text for texts in zip(*examples.texts, strict=True) for text in texts][: options.texts]
    if not isinstance(examples, Sentences):
        raise UserError(
            f"task={options.task}: only vectors and tasks on sentences and pairs can be measured, such as sst2, mrpc "
            "or text"
        )
    return examples.first[: options.texts]


def _check_measurable(options: FinetuneBenchConfig) -> None:
    """Raise a UserError about an option that would be ignored, or with which a peer would do other work than ours."""
    ours = {"gradual_unfreezing": options.gradual_unfreezing, "distillation.teacher": options.distillation.teacher}
    theirs = {
        "lora.rank": options.lora.rank,
        "freeze": ",".join(options.freeze),
        "features": options.features,
        "options.windows": getattr(options.options, "windows", ""),
    }
    if isinstance(options.options, VectorOptions):
        theirs |= _not_of_sentence_transformers(options, options.options)
    for name, value in (ours if options.peer == "none" else ours | theirs).items():
        if value:
            who = "the steps that are measured" if name in ours else f"those of --peer={options.peer}"
            raise UserError(f"{name}={value} is no part of {who}; leave it out")


def _not_of_sentence_transformers(options: FinetuneBenchConfig, vectors: VectorOptions) -> dict[str, object]:
    """Return what of the task vectors the peer's step does not have, by option; what is not asked for is empty."""
    loss = vectors.loss
    known = type(loss) in (InfoNce, Cosent)
    return {
        "options.loss.name": "" if known else loss.name,
        "options.loss.symmetric": isinstance(loss, InfoNce) and loss.symmetric,
        "options.dims": ",".join(map(str, vectors.dims)),
        "micro_batches": options.micro_batches if options.micro_batches > 1 else "",
    }


def our_contestants(options: FinetuneBenchConfig, place: pathlib.Path) -> list[turns.Contestant]:
    """Return our contestants, one for each kind of work."""
    job = {"config": to_dict(options.run), "steps_per_unit": STEPS_PER_UNIT, "texts": str(place / "texts.json")}
    program = turns.our_program("finetune")
    return [turns.Contestant(f"bert_jax, {work}", program, job | {"work": work}) for work in works_of(options)]


def peer_contestants(
    options: FinetuneBenchConfig, outputs: int, facts: dict[str, Any], place: pathlib.Path
) -> list[turns.Contestant]:
    """Return those of transformers or sentence-transformers, on the same weights and sequences, which `place` holds."""
    job = {
        "model": str(place / "model"),
        "sequences": str(place / "sequences.npz"),
        "texts": str(place / "texts.json"),
        **turns.as_ours(facts),
        "outputs": outputs,
        "batch_size": options.batch_size,
        "learning_rate": options.learning_rate,
        "max_length": options.max_length,
        "steps_per_unit": STEPS_PER_UNIT,
    }
    library = "transformers"
    if isinstance(vectors := options.options, VectorOptions):
        job["vectors"], library = {"pooling": vectors.embedding.pooling, **to_dict(vectors)}, "sentence-transformers"
    program = turns.peer_program(options.peer_python, "finetune")
    environment = computing_variables(os.environ)  # as ours
    return [
        turns.Contestant(f"{library}, {work}", program, job | {"work": work}, environment, is_peer=True)
        for work in works_of(options)
    ]


def write_for_peer(stored: StoredModel, data: TaskData, place: pathlib.Path) -> None:
    """Write the weights and the training sequences, tokenized by ours, so that both sides train on the same."""
    (place / "model").mkdir()
    write_huggingface(stored, place / "model", "benchmark")
    write_sequences(place / "sequences.npz", data.train.features, data.head.kind)


def write_sequences(file: pathlib.Path, features: Features, kind: str) -> None:
    """Write ids, segments and labels as torch takes them, the sequences one after the other, and their lengths.

    Of examples of several texts, the texts of each follow one another.
    """
    texts = features.texts() if isinstance(features, TextFeatures) else features
    labels = np.zeros(len(features)) if features.labels is None else np.asarray(features.labels)
    np.savez(
        file,
        allow_pickle=False,
        input_ids=np.concatenate(texts.input_ids).astype(np.int64),
        token_type_ids=np.concatenate(texts.token_type_ids).astype(np.int64),
        lengths=np.array([len(ids) for ids in texts.input_ids]),
        labels=labels.astype(np.float32 if kind in ("regression", "multilabel", "vectors") else np.int64),
    )


def finetune_report(
    options: FinetuneBenchConfig,
    texts: int,
    waiting: list[turns.Waiting],
    played: list[list[turns.Turn]],
    values: dict[str, Any],
) -> turns.Report:
    """Return each contestant's sequences per second; each is compared with bert_jax at the same work."""
    works = works_of(options)
    unit = {"training": STEPS_PER_UNIT * options.batch_size, "encoding": texts, "embedding": texts}
    found: list[dict[str, Any]] = []
    for number, (one, taken) in enumerate(zip(waiting, played, strict=True)):
        work = works[number % len(works)]
        wall, cpu = turns.seconds(taken)
        found.append(
            {
                "name": one.name,
                "work": work,
                "sequences_per_second": unit[work] / wall.median,
                "sequences_per_cpu_second": unit[work] / cpu.median,
                "total_sequences_per_cpu_second": unit[work] / turns.total_cpu_seconds(taken),
                "ratio": turns.ratio(played[number % len(works)], taken),
                "facts": one.facts,
                "turns": taken,
            }
        )
    ratios = {}
    for entry in found[len(works) :]:
        work, compared = entry["work"], entry["ratio"]
        ratios[f"ratio_{work}"], ratios[f"cpu_ratio_{work}"] = compared.wall.median, compared.cpu.median
        ratios[f"total_cpu_ratio_{work}"] = compared.total_cpu
    of_peer = lambda entry, cell: cell if "form" in entry["facts"] else ""
    rates = {f"{entry['work']}_sequences_per_second": entry["sequences_per_second"] for entry in found[: len(works)]}
    return turns.Report(
        {**values, **rates, **ratios, "contestants": found},
        f"Fine-tuning {options.task}, batch {options.batch_size}, and {texts:,} texts as "
        f"{'states and as ' * ('encoding' in works)}vectors",
        {
            "contestant": lambda entry: entry["name"],
            "sequences/s": lambda entry: f"{entry['sequences_per_second']:,.1f}",
            "per CPU s": lambda entry: f"{entry['sequences_per_cpu_second']:,.1f}",
            "in all": lambda entry: f"{entry['total_sequences_per_cpu_second']:,.1f}",
            "form": lambda entry: entry["facts"].get("form", ""),
            "ours is faster by, wall": lambda entry: of_peer(entry, turns.shown(entry["ratio"].wall, ".2f")),
            "CPU": lambda entry: of_peer(entry, turns.shown(entry["ratio"].cpu, ".2f")),
            "CPU, in all": lambda entry: of_peer(entry, f"{entry['ratio'].total_cpu:.2f}"),
        },
        [
            f"Medians of {options.rounds} rounds with quartiles, and all rounds together, since rounds differ where "
            "batches are grouped by length. The form of the peer is the fastest that was tried. An example of several "
            "texts counts once in training."
        ],
    )


def run_load(path: str, options: LoadBenchConfig, words: list[str]) -> None:
    """Measure, print and write the result.

    Raises:
      UserError: the model cannot be loaded; this is found before the first round.
    """
    peer = turns.peer_versions(options)
    path, *others = [hub.recorded_name(each) for each in (path, *options.also)]
    for each in (path, *others):
        stored = open_stored(each)
        if peer and each == path and stored.kind != "huggingface":
            raise UserError(f"peer=torch: transformers opens Hugging Face directories only, and {path} is not one")
    loading, *more = [_of_ours(f"bert_jax, {each}", "load", each) for each in (path, *others)]
    contestants = [loading]
    if peer:
        contestants.append(_of_peer(options, "transformers", "load", path))
        model = open_stored(path)
        if turns.SENTENCES in peer and model.tokenizer is not None and not model.embedding.unsupported:
            contestants.append(_of_ours(f"bert_jax, {FIRST_VECTOR}", "answer", path))
            contestants.append(_of_peer(options, f"{turns.SENTENCES}, {FIRST_VECTOR}", "answer", path))
    before = turns.load_average()
    with turns.started([*contestants, *more]) as waiting:
        played = turns.take_turns(waiting, options.rounds, 0)
    values = turns.recorded("load", words, (before, turns.load_average()), peer=peer, model=path)
    turns.show(load_report(options, waiting, played, values), options.output)


FIRST_VECTOR = "a first vector"
"""What a contestant that answers does, in its name."""


def _of_ours(name: str, word: str, path: str) -> turns.Contestant:
    return turns.Contestant(name, in_new_processes(sys.executable), load_job(turns.our_program(word, path)))


def _of_peer(options: LoadBenchConfig, name: str, word: str, path: str) -> turns.Contestant:
    job = load_job(turns.peer_program(options.peer_python, word, hub.local_path(path), file="serving.py"))
    return turns.Contestant(name, in_new_processes(options.peer_python), job, is_peer=True)


def in_new_processes(python: str) -> tuple[str, ...]:
    """Return the command of a contestant that runs the program of its job with `python`."""
    return turns.peer_program(python, "process", file="serving.py")


def load_job(command: tuple[str, ...]) -> dict[str, Any]:
    """Return the job of running a command; the interpreter is that of the contestant."""
    return {"program": command[1:]}


def load_report(
    options: LoadBenchConfig, waiting: list[turns.Waiting], played: list[list[turns.Turn]], values: dict[str, Any]
) -> turns.Report:
    """Return what each part takes, and how the first compares with the others from the start to the end.

    Those that answer are compared with the first one that does.
    """
    found: list[dict[str, Any]] = []
    first_of: dict[bool, list[turns.Turn]] = {}
    for one, taken in zip(waiting, played, strict=True):
        middle = lambda name, taken=taken: statistics.median(turn.found[name] for turn in taken)
        parts = {name: middle(name) for name in PARTS if name in taken[0].found}
        memory = middle("peak_memory_bytes")
        first = first_of.setdefault("first_answer" in parts, taken)
        compared = turns.ratio(first, taken)
        found.append(
            {"name": one.name, "seconds": parts, "peak_memory_bytes": memory, "ratio": compared, "turns": taken}
        )
    peers = {name: entry for entry in found if (name := entry["name"].split(",")[0]) != turns.OURS}
    ratios = {f"ratio_to_{name.replace('-', '_')}": entry["ratio"].wall.median for name, entry in peers.items()}
    is_first = lambda entry: any(entry["turns"] is taken for taken in first_of.values())
    of_others = lambda entry, spread: "" if is_first(entry) else turns.shown(spread, ".2f")
    return turns.Report(
        {**values, "seconds": found[0]["seconds"], **ratios, "contestants": found},
        "Loading a model in a new process",
        {
            "contestant": lambda entry: entry["name"],
            **{f"{part.replace('_', ' ')} s": functools.partial(_part, part) for part in PARTS},
            "peak MiB": lambda entry: f"{entry['peak_memory_bytes'] / 2**20:,.0f}",
            "first is faster by": lambda entry: of_others(entry, entry["ratio"].wall),
            "CPU": lambda entry: of_others(entry, entry["ratio"].cpu),
        },
        [
            f"Medians of {options.rounds} rounds; ratios are those of whole processes, their end included. The first "
            "is the first that does the same: loads all parameters, or loads the model and answers."
        ],
    )


def _part(part: str, entry: dict[str, Any]) -> str:
    return f"{entry['seconds'][part]:.2f}" if part in entry["seconds"] else ""
