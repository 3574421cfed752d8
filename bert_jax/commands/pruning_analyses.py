"""`bert-jax analyze prune`: layers taken away, printed, drawn, and the smaller model written."""

import functools
import os

import numpy as np
from etils import epath
from rich.console import Console
from rich.table import Table

from bert_jax.analysis.pictures import write_pictures
from bert_jax.analysis.pruning.kept_layers import keep_layers
from bert_jax.analysis.pruning.layer_removal import Pruning, prune
from bert_jax.analysis.pruning.pruning_pictures import draw_pruning
from bert_jax.analysis.saved_results import model_fingerprint
from bert_jax.analysis.task_scores import TaskScore
from bert_jax.commands.analysis_results import print_files, saved_or_computed
from bert_jax.commands.fine_tuned_scores import FineTunedScore
from bert_jax.config.analyses.pruning_options import PruneConfig
from bert_jax.config.task_options import TaskDataConfig
from bert_jax.errors import UserError
from bert_jax.pretrained.loading import load
from bert_jax.pretrained.model import PretrainedModel


def run_prune(path: str, options: PruneConfig) -> None:
    """Take layers away, print and draw what is lost, and write the smaller model into the output."""
    model = load(path)
    score = _score(model, options)
    compute = functools.partial(
        prune,
        model,
        depth=options.depth,
        vectors=options.vectors,
        draws=options.draws,
        score=score,
        score_name="" if score is None else score.name,
        seed=options.seed,
        batch_size=options.batch_size,
        max_length=options.max_length,
    )
    result = saved_or_computed(Pruning, "prune", [model], options, compute, more_input=options.task_data)
    pictures = write_pictures(draw_pruning(result), options.output, "prune")
    _print(result)
    print_files(options, pictures)
    _write_model(keep_layers(model, result.layers), result, epath.Path(options.output) / "model")


def _score(model: PretrainedModel, options: PruneConfig) -> TaskScore | FineTunedScore | None:
    """Return what measures a task: the model as it is if it has been fine-tuned, else its fine-tuning."""
    if not options.task_data:
        return None
    data = TaskDataConfig(dir=options.task_data)
    if model.head is not None:
        return TaskScore(model, data, options.task, options.batch_size)
    if not options.task:
        raise UserError(
            f"{model.path} is a pre-trained model, which is fine-tuned for a score; give --task=NAME, or a fine-tuned "
            "model"
        )
    return FineTunedScore(
        options.task,
        data,
        epath.Path(options.output) / "fine_tuned",
        epochs=options.epochs,
        learning_rate=options.learning_rate,
        seeds=options.seeds,
        seed=options.seed,
    )


def _print(result: Pruning) -> None:
    measures = {"CKA": "similarity", "MLM loss": "mlm_loss", "MLM accuracy": "mlm_accuracy", result.score_name: "score"}
    shown = {title: name for title, name in measures.items() if not np.isnan(getattr(result.curves[0], name)).all()}
    table = Table("removed", "layers kept (from 0)", *shown, title=f"{result.texts:,} texts guide the removal")
    for curve in result.curves:
        for number, layers in enumerate(curve.layers):
            values = (f"{getattr(curve, name)[number]:.3f}" for name in shown.values())
            label = f"{curve.order} {len(curve.layers[0]) - len(layers)}"
            table.add_row(label, ", ".join(map(str, layers)), *values)
        table.add_section()
    Console().print(table)


def _write_model(smaller: PretrainedModel, result: Pruning, directory: epath.Path) -> None:
    """Save the model, unless it is there; a model that is another one is left alone."""
    if directory.exists() and any(directory.iterdir()):
        if model_fingerprint(load(directory)) != model_fingerprint(smaller):
            raise UserError(
                f"{directory} holds a model that differs from this result; remove it, and the same command writes the "
                "new one without computing the result again"
            )
    else:
        smaller.save(directory)
    print(
        f"{os.fspath(directory)}: the model with the layers {', '.join(map(str, result.layers))}; continue with "
        f"bert-jax pretrain … --init_from={os.fspath(directory)} --model.num_layers={len(result.layers)}, finetune or "
        "convert"
    )
