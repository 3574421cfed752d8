"""Commands on one of the eight virtual devices, as on a laptop, for which a program compiles sooner than for all."""

import jax

from bert_jax import pretraining
from bert_jax.cli import evaluate
from bert_jax.console import configured
from bert_jax.finetuning import loop, prediction


def pretrain(config, **options):
    return pretraining.pretrain(config, devices=jax.devices()[:1], **options)


def pretrain_by_words(*words: str):
    """As the command line reads them."""
    return pretrain(configured(list(words), "pretrain CONFIG", ""))


def finetune(task, **options):
    return loop.finetune(task, devices=jax.devices()[:1], **options)


def run_predict(workdirs: str, config):
    return prediction.run_predict(workdirs, config, devices=jax.devices()[:1])


def run_evaluate(workdir: str, config, **options):
    return evaluate.run_evaluate(workdir, config, devices=jax.devices()[:1], **options)
