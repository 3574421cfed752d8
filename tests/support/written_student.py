"""The work directory of a run that has drawn its parameters instead of learning them."""

import dataclasses
import pathlib

import started_workdir
from pretrained_model import random_params

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.config import Config
from bert_jax.config.json_form import to_dict
from bert_jax.data.store import open_store
from bert_jax.models.bert import BertForPreTraining


def write(config: Config, store: pathlib.Path, teacher: str) -> None:
    """Write step 2 of a run to its work directory; `teacher`: the fingerprint of the one that it learns from."""
    opened = open_store(str(store))
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=opened.vocab_size))
    with (
        started_workdir.opened(
            config.workdir, opened.tokenizer(), config, opened.fingerprint, {"teacher": teacher}
        ) as workdir,
        Checkpoints(workdir.checkpoints, config.checkpoint, run_id=workdir.run_id) as checkpoints,
    ):
        params = random_params(BertForPreTraining(config.model, parts=("mlm",)))
        checkpoints.save(2, {"params": params}, position={}, config=to_dict(config))
