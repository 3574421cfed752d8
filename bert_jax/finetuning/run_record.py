"""What config.json, every checkpoint and results.json record of the runs of a command."""

import dataclasses
from typing import Any

import numpy as np

from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.json_form import to_dict
from bert_jax.finetuning.collapse import collapsed
from bert_jax.finetuning.plan import Run
from bert_jax.finetuning.programs import Programs
from bert_jax.models.task import BertForTask
from bert_jax.tasks.task_data import TaskData
from bert_jax.training.task_reporter import TaskReporter


def settings(config: FinetuneConfig, programs: Programs, data: TaskData, run: Run | None = None) -> dict[str, Any]:
    """Return what config.json and every checkpoint record; for a run, with its own hyper-parameters."""
    if run is not None:
        config = dataclasses.replace(config, **dataclasses.asdict(run))
    return {
        "model": to_dict(programs.model.config),
        "head": to_dict(programs.model.head),
        "compute": to_dict(config.compute),
        "finetune": to_dict(config),
        "pairs": data.pairs,
        **({} if run is None else {"run": run.name}),
    }


def run_record(
    run: Run,
    config: FinetuneConfig,
    data: TaskData,
    programs: Programs,
    reporter: TaskReporter,
    dev: dict[int, dict[str, Any]],
    counted: int,
) -> dict[str, Any]:
    """Return what results.json records of a run.

    Args:
      dev: evaluations by step.
      counted: step of the weights that count.
    """
    loss, skipped = reporter.tail_loss, reporter.totals["skipped"]
    return {
        "run": run.name,
        "setting": run.setting,
        "seed": run.seed,
        "metrics": dev[counted]["metrics"],
        "collapsed": collapsed(data.head, data.train.features, dev[counted]["ignored"], loss, skipped),
        "step": counted,
        "steps": max(dev),
        "training_loss": loss if np.isfinite(loss) else None,
        "epochs": [{"epoch": epoch, **dev[step]["metrics"]} for epoch, step in enumerate(sorted(dev), 1)],
        "keep": config.keep,
        "hyperparameters": _hyperparameters(run, config, programs.model),
    }


def _hyperparameters(run: Run, config: FinetuneConfig, model: BertForTask) -> dict[str, Any]:
    return {
        "batch_size": run.batch_size,
        "learning_rate": run.learning_rate,
        "epochs": run.epochs,
        "warmup_share": config.warmup_share,
        "schedule": config.schedule.name,
        "optimizer": config.optimizer.name,
        "weight_decay": config.optimizer.weight_decay,
        "layer_decay": config.layer_decay,
        "gradual_unfreezing": config.gradual_unfreezing,
        "reinitialize_layers": config.reinitialize_layers,
        "hidden_dropout": model.config.hidden_dropout,
        "attention_dropout": model.config.attention_dropout,
        "head_dropout": model.head.dropout,
        "crf": model.head.crf,
        "features": model.head.features,
        "train_encoder": model.head.train_encoder,
        "dtype": str(model.encoder.dtype),
        "max_length": config.options.max_length,
        "bucket_window": config.bucket_window,
        "select": config.select,
    }
