"""A model with some of its layers, as an ordinary model."""

from collections.abc import Sequence

from bert_jax.errors import UserError
from bert_jax.formats.opening import place
from bert_jax.models.costs import has_mask_decoder
from bert_jax.pretrained.layer_selection import of_layers
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.pretrained.saved_model import as_stored


def keep_layers(model: PretrainedModel, layers: Sequence[int]) -> PretrainedModel:
    """Return a model with some of the layers of `model`, in this order, and everything else that it has.

    It can be used, edited and saved like any other: `keep_layers(model, [0, 1, 3]).save("smaller")` is for pretrain
    --init_from, finetune and convert.

    Args:
      model: any model whose layers have parameters of their own.
      layers: numbers of its layers, from 0, as in `model.layers`; a layer may come twice.

    Raises:
      UserError: there is no such layer or none at all, or a layer cannot be taken away; see `check_removable`.
    """
    check_removable(model)
    if not layers:
        raise UserError(f"layers=[] leaves no layer of {model.path}; name some of 0 to {model.config.num_layers - 1}")
    return KeptLayers(model).fresh(tuple(int(layer) for layer in layers))


def check_removable(model: PretrainedModel) -> None:
    """Raise a UserError if the layers of a model are not interchangeable, or have no parameters of their own."""
    config, reason = model.config, ""
    if config.layer == "none":
        reason = "there is no layer"
    elif config.sharing != "none":
        reason = f"its layers share parameters (model.sharing={config.sharing})"
    elif not config.first_attention_norm:
        reason = "its first layer differs from the others (model.first_attention_norm=False)"
    elif config.convolution_width:
        reason = f"a convolution is added to its first layer (model.convolution_width={config.convolution_width})"
    elif config.local_window is not None and config.global_every > 1:
        reason = (
            f"one layer in {config.global_every} sees the whole sequence and the others {config.local_window} tokens "
            "to either side (model.local_window), so each has a place of its own"
        )
    if reason:
        raise UserError(f"no layer of {model.path} can be taken away: {reason}; give a model of layers of one kind")


class KeptLayers:
    """Models with some of the layers of one model; those of the same depth are compiled once."""

    def __init__(self, model: PretrainedModel):
        self._whole, self._stored = model, as_stored(model, model.params)
        self._of_depth: dict[int, PretrainedModel] = {}

    def __call__(self, layers: tuple[int, ...]) -> PretrainedModel:
        """Return a model that is valid until the next call for as many layers."""
        if layers == tuple(range(self._whole.config.num_layers)):
            return self._whole
        if len(layers) not in self._of_depth:
            self._of_depth[len(layers)] = self.fresh(layers)
        else:
            self._of_depth[len(layers)].params = place(self._chosen(layers), self._whole.mesh)
        return self._of_depth[len(layers)]

    def fresh(self, layers: tuple[int, ...]) -> PretrainedModel:
        """Return a model of its own."""
        stored = self._chosen(layers)
        return PretrainedModel(stored, place(stored, self._whole.mesh), self._whole.mesh, self._whole.network.compute)

    def _chosen(self, layers: tuple[int, ...]):
        if len(layers) == 1 and has_mask_decoder(self._whole.network.parameters):
            raise UserError(
                f"{self._whole.path} predicts words by two passes of its last layer on top of another one "
                "(DeBERTa's enhanced mask decoder), so two layers must stay"
            )
        return of_layers(self._stored, layers, f"layers={list(layers)}")
