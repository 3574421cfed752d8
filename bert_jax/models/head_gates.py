"""A model with factors on its attention heads, which are an input of the computation and no parameter."""

import dataclasses

import jax

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.errors import UserError
from bert_jax.models.architecture import Architecture
from bert_jax.models.bert import BertForPreTraining


def with_head_gates(network: BertForPreTraining, gates: jax.Array) -> BertForPreTraining:
    """Return the network with what head a of layer n adds multiplied by `gates` [N, A], which may be traced.

    Raises:
      UserError: its layers are recurrent, and have no heads.
    """
    if network.config.layer == "lstm":
        raise UserError("the layers of this model are recurrent (model.layer=lstm) and have no heads to switch off")

    def architecture(config: ModelConfig, compute: ComputeConfig) -> Architecture:
        usual = network.architecture(config, compute)
        inputs = {**usual.stack.layer_inputs, "head_gates": gates}
        return dataclasses.replace(usual, stack=dataclasses.replace(usual.stack, layer_inputs=inputs))

    return dataclasses.replace(network, architecture=architecture)
