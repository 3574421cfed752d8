"""`bert-jax evaluate`: measure a pre-trained model on the held-out documents of its store, or on another store.

The model is measured by its objective, together with the models that it was trained with (a generator, a teacher).
"""

import dataclasses
import functools
import json
from typing import Any

import jax
from absl import logging
from jax.sharding import Mesh
from rich.console import Console
from rich.table import Table

from bert_jax.checkpoints.workdir import read_settings
from bert_jax.config import (
    Config,
    DataConfig,
    EncoderConfig,
    LeftToRight,
    MaskedWords,
    ObjectiveConfig,
    Permutation,
    PhaseConfig,
    ReplacedTokens,
    TwoDirections,
    config_of_phase,
    phase_of_step,
    resolve_phases,
)
from bert_jax.config.checks import run_of
from bert_jax.config.options import differences, from_dict, from_record, is_among, options_recorded, to_dict
from bert_jax.data.mixtures import HeldOut, recorded_stores
from bert_jax.data.store import Store, open_store
from bert_jax.devices import sharding
from bert_jax.devices.hosts import decide
from bert_jax.errors import UserError, first_lines
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import GENERATOR
from bert_jax.objectives.distillation import Teacher
from bert_jax.objectives.objective import Objective, Term
from bert_jax.pretrained.model import PretrainedModel, load_with_generator
from bert_jax.pretrained.teacher import OPTION, open_teacher, teacher_is_there
from bert_jax.pretraining import MakeObjective, default_objective
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.learner import own_names
from bert_jax.training.step import Frozen
from bert_jax.training_data import Examples, held_out_examples

TEACHER = f"{OPTION}.teacher"


def _measured(
    model: PretrainedModel,
    generator: PretrainedModel | None,
    trained: Config,
    given: Config,
    mesh: Mesh,
    objective: MakeObjective | None,
) -> tuple[Objective, Config, dict[str, Any], Frozen]:
    """Return an objective, the options by which it was made, its parameters, and those of a teacher.

    `trained` are the options of the run, those that were given if the model was converted; of those that were `given`
    the computation and the teacher count.
    """
    params, teacher, is_given = model.params, None, objective is not None
    if objective is None and isinstance(trained.objective, ReplacedTokens):
        params, trained = _both(model, generator, trained, trained.objective)
    elif objective is None:
        _check_measurable(model, trained.objective, trained.data.has_pair_labels)
        teacher = _teacher(model, _taught(trained, given), mesh)
    if objective is None:
        objective = functools.partial(default_objective, teacher=None if teacher is None else teacher.model)
    made = objective(model.network, trained)
    _check_objective(model, own_names(made, is_given).get("objective"))
    return made, trained, params, () if teacher is None else (teacher.params,)


def _taught(trained: Config, given: Config) -> Config:
    """Return the options of a run with the computation and the teacher of those that were given."""
    objective, taught = trained.objective, given.objective.taught
    if isinstance(objective, MaskedWords):
        distillation = dataclasses.replace(objective.distillation, teacher="" if taught is None else taught.teacher)
        objective = dataclasses.replace(objective, distillation=distillation)
    return dataclasses.replace(trained, compute=given.compute, objective=objective)


def _teacher(model: PretrainedModel, config: Config, mesh: Mesh) -> Teacher[BertForPreTraining] | None:
    """Return the teacher that the options name; None, and a warning, if it is not where the run had it."""
    taught, run = config.objective.taught, model.history.get("run")
    path = "" if taught is None else taught.teacher
    recorded = (model.history.get("config") or {}).get("objective", {}).get("distillation", {}).get("teacher")
    if path and path == recorded and not decide(teacher_is_there(path), all):
        logging.warning(
            "the teacher of %s is no longer at %s, so nothing is compared with it; give --%s=DIR, or --%s= to measure "
            "without it",
            *(model.path, path, TEACHER, TEACHER),
        )
        return None
    phases, tokenizer = resolve_phases(config), model.need_tokenizer()
    teacher = open_teacher(taught, config.model, config.data, phases, config.compute, tokenizer, mesh)
    recorded_fingerprint = "none" if run is None else run.get("teacher") or "none"
    if teacher is not None and run is not None and teacher.fingerprint != recorded_fingerprint:
        raise UserError(
            f"--{TEACHER}={path} is not the teacher of {model.path} (the fingerprint of its arrays is "
            f"{teacher.fingerprint:.12}…, that of the run's {recorded_fingerprint:.12}…); give the teacher of the run, "
            f"or --{TEACHER}= to measure without it"
        )
    return teacher


def _both(
    model: PretrainedModel, generator: PretrainedModel | None, config: Config, objective: ReplacedTokens
) -> tuple[dict[str, Any], Config]:
    """Return the parameters of a discriminator and its generator, and options by which each has all of its own."""
    if generator is None:
        raise UserError(
            f"{model.path} is a discriminator without its generator, so nothing replaces tokens for it to find; "
            "evaluate the work directory of its run"
        )
    own = dataclasses.replace(objective.generator, embeddings="own")
    config = dataclasses.replace(config, objective=dataclasses.replace(objective, generator=own))
    return {**model.params, GENERATOR: generator.params}, config


def _check_measurable(model: PretrainedModel, objective: ObjectiveConfig, has_pair_labels: bool) -> None:
    own = {path.split("/")[0] for path in objective.word_arrays}
    parts = {*model.network.parts, *(own & {*model.params})}
    if not (own or {"mlm"}) <= parts and not (has_pair_labels and {"pooler", "next_sentence"} <= parts):
        wanted = "neighbours of words" if own else "masked words or pairs" if has_pair_labels else "masked words"
        raise UserError(
            f"{model.path} has no head for {wanted} "
            f"(apart from the encoder: {', '.join(sorted(parts)) or 'nothing'}), so there is nothing to evaluate; "
            "convert the pre-trained model with --parts=all, or fine-tune this one"
        )


def _check_objective(model: PretrainedModel, given: str | None) -> None:
    """Raise a UserError if the run was trained for an objective from outside, and another one would be measured."""
    trained = (model.history.get("run") or {}).get("objective")
    if trained not in (None, given):
        raise UserError(
            f"{model.path} was trained for the objective {trained}, but evaluate was given "
            f"{f'the objective {given}' if given else 'none and would measure that of the options'}; call "
            "bert_jax.evaluate(workdir, config, objective=…) in Python with the one that pretrain was given"
        )


USED = ("data.path", "data.cache", "evaluation.", "compute.", "mesh.", TEACHER)
"""Options that have an effect on the figures of a run, which is measured as it was trained."""


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """What `evaluate` measured."""

    step: int
    """Step of the checkpoint; 0 if the model has none."""
    num_sequences: int
    """Number of sequences measured."""
    metrics: dict[str, float]
    """Loss, perplexity and accuracy of each task, by the names of metrics.jsonl."""
    unigram: dict[str, float]
    """mlm_loss, perplexity and mlm_accuracy of word frequencies alone, with the same masks; {} without the MLM head."""


def default_config(workdir: str) -> Config:
    """Return the configuration to evaluate the model in `workdir`, or RUN:STEP, with, before other options.

    That of a run is recorded, without its mixture, of which one store is to be named. A converted model has none: it
    gets the defaults, at a sequence length, with pairs and with an objective that fit its form.

    Raises:
      UserError: `workdir` is not a work directory, or that of a fine-tuned model.
    """
    values = read_settings(run_of(workdir))
    if {"finetune", "head"} & values.keys():
        raise UserError(
            f"{workdir} holds a fine-tuned model, but evaluate measures the objectives of pre-training; its "
            "figures are in results.json, and `bert-jax predict` scores a file that has answers"
        )
    if "model" not in values:
        raise UserError(
            f"{workdir}/config.json has no model, so {workdir} is not a work directory of bert_jax; convert the "
            f"model first: bert-jax convert {workdir} NEW --to=bert_jax"
        )
    options = options_recorded(values)
    if _is_run(values):
        return _without_mixture(from_record(Config, options, f"{workdir}/config.json"))
    config = from_dict(Config, options)
    model, objective = config.model, _fitting_objective(config.model)
    length = min(PhaseConfig().sequence_length, model.longest_sequence)
    pairs = "nsp" if objective.masks_words and model.type_vocab_size > 1 and model.pair_head else "none"
    return dataclasses.replace(
        config,
        phases=(PhaseConfig(sequence_length=length),),
        data=dataclasses.replace(config.data, sentence_pairs=pairs),
        objective=objective,
    )


def _without_mixture(config: Config) -> Config:
    temperature = DataConfig().mixture_temperature
    data = dataclasses.replace(config.data, mixture="", mixture_temperature=temperature)
    phases = tuple(
        dataclasses.replace(phase, mixture="", data=dataclasses.replace(phase.data, mixture_temperature=None))
        for phase in config.phases
    )
    return dataclasses.replace(config, data=data, phases=phases)


def _fitting_objective(model: EncoderConfig) -> ObjectiveConfig:
    """Return the objective that a model of this form is trained for."""
    if model.two_directions:
        return TwoDirections()
    if model.two_streams:
        return Permutation()
    return LeftToRight() if model.predicts_ahead else MaskedWords()


def check_used(workdir: str, config: Config) -> None:
    """Raise a UserError if `config` differs from that of the run in `workdir` in an option that has no effect."""
    if not _is_run(read_settings(run_of(workdir))):
        return
    changes = differences(to_dict(default_config(workdir)), to_dict(config))
    if unused := [line for line in changes if not is_among(line.split(": ", 1)[0], USED)]:
        raise UserError(
            f"{workdir} is measured as it was trained, so these changes have no effect: {first_lines(unused)}; leave "
            "them out, or train with them"
        )


def run_evaluate(
    workdir: str, config: Config, devices: sharding.Devices = None, objective: MakeObjective | None = None
) -> Evaluated:
    """Measure the newest checkpoint of `workdir`, or one step, on the store at `config.data.path`; print the metrics.

    On the store that it was trained on it is measured on the held-out documents; on any other store, on all documents.
    The training data of a converted model are unknown: it is measured on all documents, with the objectives and the
    length of `config`. The losses of a student include those of the teacher that `config` names, if it is there.

    Args:
      workdir: of a pre-training run, or one of its steps as RUN:STEP, or of a converted model.
      config: the options; `default_config(workdir)` has those of the run.
      devices: devices of the mesh; by default every device of every process.
      objective: as `pretrain` takes it; a run that was trained with one is measured with the same one.

    Raises:
      UserError: there is no checkpoint or store, the store was made with a different vocabulary, the model has no
        head to measure, the run was trained for another objective, or the teacher is not the one that it had.
    """
    mesh = sharding.make_mesh(config.mesh, devices)
    model, generator = load_with_generator(workdir, mesh=mesh, compute=config.compute)
    is_run = _is_run(model.history.get("config") or {})
    trained = config
    if is_run:
        trained = from_record(Config, options_recorded(model.history["config"]), f"the record of {workdir}")
    index = phase_of_step(trained, model.history.get("step") or 0)
    trained = config_of_phase(trained, index)
    made, trained, params, frozen = _measured(model, generator, trained, config, mesh, objective)
    store, same = _open_store(config, model, is_run, trained.data.mixture)
    split = "held_out" if same and trained.data.held_out and not trained.data.eval_path else "all"
    if same and split == "all":
        logging.warning(
            "%s is the store that %s was trained on, without held-out documents: these are figures on training data",
            config.data.path,
            workdir,
        )
    # The split and the objectives are the run's own; the given options choose the store and how much of it.
    path, config = config.data.path, dataclasses.replace(trained, evaluation=config.evaluation)
    phase = resolve_phases(config)[index]
    shardings = jax.tree.map(lambda leaf: leaf.sharding, params)
    held_out = held_out_examples(config, phase, (HeldOut("", store, split),))
    evaluation = Evaluation(made, config.evaluation, held_out, {"": 1.0}, mesh, shardings, frozen)
    metrics = evaluation.run(params)
    unigram = {}
    if any(term.of_words and term.loss in metrics for term in evaluation.terms):
        unigram = evaluation.unigram(Examples(store, config, phase, split="train" if same else "all"))
    evaluated = Evaluated(model.history.get("step") or 0, evaluation.num_sequences, metrics, unigram)
    documents = "held-out documents" if split == "held_out" else "all documents"
    if not is_run:
        documents += (
            "; what it was trained on is unknown, it may have seen them. Sequences of "
            f"{resolve_phases(config)[0].sequence_length} tokens, data.sentence_pairs={config.data.sentence_pairs}"
        )
    _print(evaluated, evaluation.terms, workdir, path, documents)
    return evaluated


def _open_store(config: Config, model: PretrainedModel, is_run: bool, mixture: str) -> tuple[Store, bool]:
    """Return the store at data.path, and whether the run was trained on it; UserError if its vocabulary is another."""
    if not config.data.path:
        stores = f", such as one of {mixture}" if mixture else ""
        raise UserError(f"data.path is missing: it is the store to measure {model.path} on{stores}")
    store = open_store(config.data.path, config.data.cache)
    if store.manifest.tokenizer.fingerprint != model.need_tokenizer().fingerprint:
        raise UserError(
            f"{config.data.path} was prepared with a vocabulary different from that of {model.path}; prepare the "
            f"corpus again with --vocab={model.path}/tokenizer"
        )
    return store, is_run and store.fingerprint in recorded_stores(model.history.get("run") or {})


def _is_run(values: dict[str, Any]) -> bool:
    """Return whether the configuration is that of a pre-training run; that of a converted model has only sizes."""
    return "phases" in values


def _print(evaluated: Evaluated, terms: tuple[Term, ...], workdir: str, path: str, documents: str) -> None:
    console, table = Console(highlight=False), Table()
    console.print(
        f"{workdir}, step {evaluated.step:,}, on {evaluated.num_sequences:,} sequences of {path} ({documents})",
        markup=False,
        soft_wrap=True,
    )
    for column in ("", "model", "word frequencies alone"):
        table.add_column(column, justify="left" if not column else "right")
    titles = {name: title for term in terms for name, title in _titles(term).items()}
    for name in evaluated.metrics:
        form = "{:.2%}" if name.endswith("accuracy") else "{:.4f}" if name.endswith("loss") else "{:.2f}"
        cells = (form.format(part[name]) if name in part else "" for part in (evaluated.metrics, evaluated.unigram))
        table.add_row(titles.get(name, name), *cells)
    console.print(table)
    print(json.dumps({"step": evaluated.step, **evaluated.metrics}))


def _titles(term: Term) -> dict[str, str]:
    """Return the titles of what an evaluation reports of a term, by their names."""
    title = term.title or term.name or "objective"
    return {term.loss: f"{title}: loss", term.accuracy: f"{title}: accuracy", term.perplexity: f"{title}: perplexity"}
