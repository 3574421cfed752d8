"""Held-out evaluation: the same documents, pairs and masks every time."""

import dataclasses
import json
import math

import jax
import numpy as np
from absl import logging
from rich.console import Console
from rich.table import Table

from bert_jax.checkpoints.workdir import read_settings
from bert_jax.config import Config, PhaseConfig
from bert_jax.config.json_form import from_dict, options_recorded
from bert_jax.data.examples.examples import Examples
from bert_jax.data.examples.pipeline import batches
from bert_jax.data.store.store import open_store
from bert_jax.devices import sharding
from bert_jax.devices.signals import StopSignals
from bert_jax.errors import UserError
from bert_jax.pretrained.loading import load
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.training.program import Program
from bert_jax.training.step import make_eval_step

EVALUATION_SEED = 2019  # of pairs, lengths and masks; not the run's seed, so that runs with different seeds compare
UNIGRAM_SEQUENCES = 20_000


class Evaluation:
    """Sequences of one split at the length of one phase, with fixed masks; `run` measures parameters on them."""

    def __init__(self, model, config: Config, phase_index: int, store, split: str, mesh, shardings):
        self.examples = Examples(store, config, phase_index, split=split, seed=EVALUATION_SEED)
        self.mesh = mesh
        rows = mesh.shape["data"] * mesh.shape["fsdp"]
        wanted = min(config.evaluation.sequences, self.examples.num_examples(0))
        # Equal batches that the mesh divides; a handful of sequences may fall off the end, or come twice where there are too few.
        self.num_batches = -(-wanted // config.evaluation.batch_size)
        self.batch_size = max(1, wanted // self.num_batches // rows) * rows
        self._step = Program(make_eval_step(model, mesh, shardings))

    @property
    def num_sequences(self) -> int:
        return self.num_batches * self.batch_size

    def run(self, params, signals: StopSignals | None = None) -> dict[str, float]:
        """mlm_loss (nats per predicted token), perplexity, mlm_accuracy and, with pairs, next_sentence_loss and …_accuracy.

        A model without one of the two heads has no figures for it.

        Raises:
          Stopped: by `signals`, before any of the batches.
        """
        totals: dict[str, float] = {}
        for batch in self._batches():
            batch = sharding.to_global(self.mesh, batch, self.batch_size)
            if signals is not None:
                signals.check()
                self._step.prepare(params, batch, signals=signals)
            for name, value in jax.device_get(self._step(params, batch)).items():
                totals[name] = totals.get(name, 0.0) + float(value)
        metrics = {}
        if "mlm_weight" in totals:
            mlm_loss = totals["mlm_loss"] / totals["mlm_weight"]
            metrics |= {
                "mlm_loss": mlm_loss,
                "perplexity": math.exp(min(mlm_loss, 700.0)),
                "mlm_accuracy": totals["mlm_correct"] / totals["mlm_weight"],
            }
        if "next_sentence_count" in totals:
            metrics |= {
                "next_sentence_loss": totals["next_sentence_loss"] / totals["next_sentence_count"],
                "next_sentence_accuracy": totals["next_sentence_correct"] / totals["next_sentence_count"],
            }
        return metrics

    def unigram(self, training: Examples) -> dict[str, float]:
        """What a model that ignores the context reaches on the same masks: word frequencies of `training`, add-one smoothed."""
        counts = np.ones(training.store.vocab_size)
        size = min(256, training.num_examples(0))
        for batch in batches(training, 0, size, np.arange(size), UNIGRAM_SEQUENCES // size, loader="plain"):
            counts += np.bincount(batch["masked_ids"][batch["masked_weights"] > 0], minlength=len(counts))
        targets = np.concatenate([batch["masked_ids"][batch["masked_weights"] > 0] for batch in self._batches()])
        mlm_loss = -float(np.log(counts[targets] / counts.sum()).mean())
        return {
            "mlm_loss": mlm_loss,
            "perplexity": math.exp(mlm_loss),
            "mlm_accuracy": float((targets == counts.argmax()).mean()),
        }

    def _batches(self):
        # Always the plain loader: no second TensorFlow pipeline beside the training one, and the batches are the same.
        return batches(
            self.examples,
            0,
            self.batch_size,
            sharding.host_rows(self.mesh, self.batch_size),
            self.num_batches,
            loader="plain",
        )


@dataclasses.dataclass(frozen=True)
class Evaluated:
    step: int
    num_sequences: int
    metrics: dict[str, float]
    unigram: dict[str, float]
    """mlm_loss, perplexity and mlm_accuracy of word frequencies alone, on the same masks; {} for a model without the head."""


def default_config(workdir: str) -> Config:
    """Return the configuration that the model in `workdir` is evaluated with, before options of the command line.

    A run has its own. A converted model has none: it gets the defaults, at a sequence length and with pairs that fit its sizes.

    Raises:
      UserError: not a work directory, or that of a fine-tuned model.
    """
    values = read_settings(workdir)
    if {"finetune", "head"} & values.keys():
        raise UserError(
            f"{workdir} holds a fine-tuned model, and evaluate measures the objectives of pre-training; its "
            "figures are in results.json, and `bert-jax predict` scores a file that has answers"
        )
    if "model" not in values:
        raise UserError(
            f"{workdir}/config.json has no model, so {workdir} is not one of our work directories; convert what it holds first: "
            f"bert-jax convert {workdir} NEW --to=bert_jax"
        )
    config = from_dict(Config, options_recorded(values))
    if _is_run(values):
        return config
    length = min(PhaseConfig().sequence_length, config.model.max_position_embeddings)
    pairs = "nsp" if config.model.type_vocab_size > 1 else "none"
    return dataclasses.replace(
        config,
        phases=(PhaseConfig(sequence_length=length),),
        data=dataclasses.replace(config.data, sentence_pairs=pairs),
    )


def run_evaluate(workdir: str, config: Config) -> Evaluated:
    """Measures the newest checkpoint of `workdir` on the store at `config.data.path`, prints and returns the figures.

    On the store it was trained on it is measured on its held-out documents; on any other store, on all documents. What a
    converted model was trained on is unknown: it is measured on all documents, with the objectives and the length of `config`.

    Raises:
      UserError: no checkpoint, no store, a store made with another vocabulary, or a model without a head to measure.
    """
    mesh = sharding.make_mesh(config.mesh)
    model = load(workdir, mesh=mesh, compute=config.compute)
    is_run = _is_run(model.history.get("config") or {})
    trained = from_dict(Config, model.history["config"]) if is_run else config
    _check_measurable(model, trained.data.sentence_pairs)
    store = open_store(config.data.path, config.data.cache)
    if store.manifest.tokenizer.fingerprint != model.need_tokenizer().fingerprint:
        raise UserError(
            f"{config.data.path} was prepared with another vocabulary than {workdir} was trained with; prepare the "
            f"corpus again with --vocab={workdir}/tokenizer"
        )
    same = is_run and store.fingerprint == (model.history.get("run") or {}).get("store_fingerprint")
    split = "held_out" if same and trained.data.held_out and not trained.data.eval_path else "all"
    if same and split == "all":
        logging.warning(
            "%s is the store that %s was trained on, without held-out documents: these are figures on training data",
            config.data.path,
            workdir,
        )
    # The split and the objectives are the run's own; options given now choose the store and how much of it.
    path, config = config.data.path, dataclasses.replace(trained, evaluation=config.evaluation)
    last = len(config.phases) - 1
    shardings = jax.tree.map(lambda leaf: leaf.sharding, model.params)
    evaluation = Evaluation(model.network, config, last, store, split, mesh, shardings)
    metrics = evaluation.run(model.params)
    training = Examples(store, config, last, split="train" if same else "all")
    evaluated = Evaluated(
        model.history.get("step") or 0,
        evaluation.num_sequences,
        metrics,
        evaluation.unigram(training) if "mlm_loss" in metrics else {},
    )
    documents = "held-out documents" if split == "held_out" else "all documents"
    if not is_run:
        documents += (
            "; what it was trained on is unknown, it may have seen them. Sequences of "
            f"{config.phases[0].sequence_length} tokens, data.sentence_pairs={config.data.sentence_pairs}"
        )
    _print(evaluated, workdir, path, documents)
    return evaluated


def _check_measurable(model: PretrainedModel, sentence_pairs: str) -> None:
    parts = set(model.network.parts)
    if "mlm" not in parts and (sentence_pairs == "none" or not {"pooler", "next_sentence"} <= parts):
        wanted = "masked words" if sentence_pairs == "none" else "masked words or pairs"
        raise UserError(
            f"{model.path} has no head for {wanted} "
            f"(beside the encoder: {', '.join(sorted(parts)) or 'nothing'}), so there is nothing to evaluate; "
            "convert the pre-trained model with --parts=all, or fine-tune this one"
        )


def _is_run(values: dict) -> bool:
    """Whether the configuration beside a model is that of a pre-training run; a converted model has only its sizes."""
    return "phases" in values


def _print(evaluated: Evaluated, workdir: str, path: str, documents: str) -> None:
    console, table = Console(highlight=False), Table()
    console.print(
        f"{workdir}, step {evaluated.step:,}, on {evaluated.num_sequences:,} sequences of {path} ({documents})",
        markup=False,
        soft_wrap=True,
    )
    for column in ("", "model", "word frequencies alone"):
        table.add_column(column, justify="left" if not column else "right")
    for name, label, form in (
        ("mlm_loss", "MLM loss (nats)", "{:.4f}"),
        ("perplexity", "MLM perplexity", "{:.2f}"),
        ("mlm_accuracy", "MLM accuracy", "{:.2%}"),
        ("next_sentence_loss", "sentence pair loss", "{:.4f}"),
        ("next_sentence_accuracy", "sentence pair accuracy", "{:.2%}"),
    ):
        if name in evaluated.metrics:
            table.add_row(
                label,
                *(form.format(part[name]) if name in part else "" for part in (evaluated.metrics, evaluated.unigram)),
            )
    console.print(table)
    print(json.dumps({"step": evaluated.step, **evaluated.metrics}))
