"""A finished or running pre-training run, opened for reading: model, parameters, tokenizer, configuration."""

import dataclasses
import os

import jax
from etils import epath

from bert_jax.checkpoint import Checkpoints
from bert_jax.config import Config, from_dict
from bert_jax.models.bert import BertForPreTraining
from bert_jax.tokenization import Tokenizer, load_tokenizer


@dataclasses.dataclass(frozen=True)
class Run:
    config: Config
    model: BertForPreTraining
    params: dict
    tokenizer: Tokenizer
    step: int


def open_run(workdir: str | os.PathLike, where=None) -> Run:
    """Reads the newest good checkpoint of a work directory; needs no TensorFlow and no accelerator.

    Args:
      workdir: local or gs://.
      where: None for the first device, or a function from the tree of jax.ShapeDtypeStruct to one of shardings.

    Raises:
      UserError: not a work directory, no checkpoint yet, or all of them damaged.
    """
    checkpoints = Checkpoints(epath.Path(workdir) / "checkpoints", read_only=True)
    config = from_dict(Config, checkpoints.read_config())
    model = BertForPreTraining(config.model, config.compute)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    if where is not None:
        shapes = jax.tree.map(lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, where(shapes))
    restored = checkpoints.restore_params(shapes)
    return Run(config=config, model=model, params=restored.state, step=restored.step,
               tokenizer=load_tokenizer(epath.Path(workdir) / "tokenizer"))
