"""Checks that the options of a fine-tuning fit together, before anything is read; errors name option and remedy."""

import math

from bert_jax.config.checks import check_mesh, check_optimizer, check_schedule
from bert_jax.config.faults import check_host_faults
from bert_jax.config.finetuning import FinetuneConfig, task_defaults
from bert_jax.config.noise import check_noise
from bert_jax.config.ranges import need_divisible, need_positive
from bert_jax.config.task_options import PACKED, check_task_data, check_task_options
from bert_jax.config.teachers import check_task_distillation
from bert_jax.errors import UserError, need_cloud_storage


def check_finetune(config: FinetuneConfig) -> FinetuneConfig:
    """Return `config` if its values fit together; raise a UserError that names option, value and remedy otherwise."""
    task_defaults(config.task)
    _check_places(config)
    check_task_data(config.task, config.data)
    _check_numbers(config)
    _check_noise(config)
    _check_layers(config)
    _check_head(config)
    if config.packing and config.task not in PACKED:
        raise UserError(f"packing is for tasks on sentences and pairs ({', '.join(PACKED)}), not for {config.task}")
    check_task_distillation(config.distillation, config.crf)
    check_task_options(config.options)
    check_optimizer(config.optimizer)
    if config.optimizer.ema_decay:
        raise UserError(
            f"optimizer.ema_decay={config.optimizer.ema_decay} averages the weights of pre-training only; leave it out"
        )
    check_schedule(config.schedule)
    check_mesh(config.mesh)
    check_host_faults(config.faults)
    return config


def _check_places(config: FinetuneConfig) -> None:
    """Check that the directories are given, and can be reached with what is installed."""
    for name, value, meaning in (
        ("init_from", config.init_from, "the checkpoint to start from"),
        ("workdir", config.workdir, "a directory for the results"),
    ):
        if not value:
            raise UserError(f"--{name} is missing: give {meaning}")
    data = config.data
    for path in (config.init_from, config.workdir, data.dir, data.train, data.dev, data.test, data.tfds_dir):
        need_cloud_storage(path)


def _check_numbers(config: FinetuneConfig) -> None:
    """Check the values that have a range of their own, and that batches divide into micro-batches."""
    need_positive(
        config,
        "",
        "epochs",
        "batch_size",
        "micro_batches",
        "learning_rate",
        "seeds",
        "bucket_window",
        "eval_batch_size",
        "save_every_steps",
        "log_every_steps",
        "lstm_size",
    )
    for name in ("grid_batch_sizes", "grid_learning_rates", "grid_epochs"):
        if not getattr(config, name):
            raise UserError(f"{name} is empty; the paper's is {getattr(FinetuneConfig(), name)}")
        for value in getattr(config, name):
            if not 0 < value < math.inf:
                raise UserError(f"{name}={value} must be positive")
    sizes = [("grid_batch_sizes", size) for size in config.grid_batch_sizes]
    for name, size in sizes if config.grid else [("batch_size", config.batch_size)]:
        need_divisible("", name, size, config.micro_batches)
    for name, low, high in (("warmup_share", 0, 1), ("head_dropout", 0, 0.999), ("dropout", 0, 0.999)):
        value = getattr(config, name)
        if value is not None and not low <= value <= high:
            raise UserError(f"{name}={value} must be between {low} and {high}")
    if not 0 <= config.seed < 2**31:
        raise UserError(f"seed={config.seed} must be between 0 and {2**31 - 1}")


def _check_noise(config: FinetuneConfig) -> None:
    check_noise(config.noise, "noise.")
    if config.noise.rate and config.task.startswith("squad"):
        raise UserError(
            f"noise.rate={config.noise.rate} would move the answers of {config.task}, which are positions in the text; "
            "set noise.rate=0"
        )


def _check_layers(config: FinetuneConfig) -> None:
    """Check which layers learn, how fast, and from which parameters."""
    if not 0 < config.layer_decay <= 1:
        raise UserError(
            f"layer_decay={config.layer_decay} must be above 0 and at most 1 (1: all layers learn at the same rate)"
        )
    if config.reinitialize_layers < 0:
        raise UserError(f"reinitialize_layers={config.reinitialize_layers} must not be negative")
    if config.gradual_unfreezing and config.features:
        raise UserError(
            f"features={config.features} freezes the encoder for the whole run, so gradual_unfreezing=True has nothing "
            "to do; leave one of them out"
        )
    if config.gradual_unfreezing and config.reinitialize_layers:
        raise UserError(
            f"reinitialize_layers={config.reinitialize_layers} makes random layers, which gradual_unfreezing=True "
            "leaves random during the first epoch; leave one of them out"
        )


def _check_head(config: FinetuneConfig) -> None:
    """Check the CRF, and the BiLSTM on an encoder that is frozen or trained."""
    if config.crf and config.task != "ner":
        raise UserError(f"crf belongs to tagging (task ner), not to {config.task}; leave --crf out")
    if config.features and config.reinitialize_layers:
        raise UserError(
            f"reinitialize_layers={config.reinitialize_layers} makes random layers, which features={config.features} "
            "leaves untrained; leave one of them out"
        )
    if config.train_encoder and not config.features:
        raise UserError(
            "train_encoder=True is for an encoder below a BiLSTM: give features=last too, or leave it out, since "
            "without features the encoder is trained anyway"
        )
