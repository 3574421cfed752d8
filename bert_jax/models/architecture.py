"""The pieces an encoder is made of, and the one place where they are chosen from the configuration.

Each kind of encoder is a function that starts from the pieces that all have in common and replaces some. An
architecture of your own is one, too, passed to `BertForPreTraining` or `BertForTask`: it starts from the result of
`bert_architecture`, or from the pieces themselves, and replaces what differs; docs/extending.md has one with windows of
its own.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence

import jax
import jax.numpy as jnp

from bert_jax.config import (
    Alibi,
    AttentionConfig,
    ComputeConfig,
    EncoderConfig,
    ModelConfig,
    RecurrentConfig,
    Rope,
    WordVectorsConfig,
    XLNetConfig,
)
from bert_jax.errors import UserError
from bert_jax.models.bert_parameters import Layers, encoder_parameters
from bert_jax.models.block import Block, FeedForward, GatedFeedForward, Rotary, alibi_bias, causal_bias
from bert_jax.models.costs import scans
from bert_jax.models.deberta import Convolution
from bert_jax.models.embeddings import BLOCK, Embeddings, random_positions, sinusoidal_positions
from bert_jax.models.kernels import plain
from bert_jax.models.kernels.choice import PLATFORMS, attention_kernel, declared
from bert_jax.models.kernels.plain import EVERYTHING, AttentionKernel, AttentionMask, Kernel
from bert_jax.models.layers import (
    AddBias,
    Norm,
    NormForm,
    Product,
    cpu_product,
    fused_layer_norm,
    gelu_erf,
    gelu_tanh,
    in_float32,
    make_norm,
    plain_bias,
    plain_layer_norm,
    plain_product,
    product_bias,
    relu,
    relu_squared,
    tpu_product,
    wide_bias,
)
from bert_jax.models.lstm import RecurrentBlock
from bert_jax.models.stack import Layer, Stack
from bert_jax.models.xlnet import Permutation, Relations, TwoStreamBlock, WordEmbeddings
from bert_jax.parameters import ParameterTable

Activation = Callable[[jax.Array], jax.Array]
ACTIVATIONS: dict[str, Activation] = {
    "gelu_tanh": gelu_tanh,
    "gelu_erf": gelu_erf,
    "silu": jax.nn.silu,
    "relu": relu,
    "relu_squared": relu_squared,
    "tanh": jnp.tanh,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Architecture:
    """Embeddings, a stack of layers and an optional final norm; and how they are computed."""

    embeddings: Callable[[jax.Array], Embeddings | WordEmbeddings]
    """Makes, from a key, the module between ids and the first layer; its `word.table` is tied to the word logits."""
    stack: Stack
    """The layers, their attention kernel, parameter sharing and inputs per layer."""
    final_norm: Callable[[], Norm] | None
    """Makes the norm after the last layer; None for layers that end in one."""
    activation: Activation
    """Activation function of the heads of pre-training."""
    pooler: Activation
    """Activation function of the pooler."""
    parameters: ParameterTable
    """Every array of embeddings, layers and final norm; where layers share parameters, axis "layer" counts the sets."""
    dtype: jnp.dtype
    """Type of activations and matrix products; parameters, softmax and loss are float32."""
    product: Product = plain_product
    """The product in every affine map of the model."""
    add_bias: AddBias = plain_bias
    """The addition of a bias in them."""
    layer_norm: NormForm = plain_layer_norm
    """The computation of every layer normalization."""
    word_block: int | None = None
    """Number of words whose logits are one array when only their losses are asked for; None: all."""
    distance_bias: Callable[[jax.Array], jax.Array] | None = None
    """Addition to the scores of every layer, see `AttentionMask.distance_bias`; None: nothing."""
    relations: Callable[[AttentionMask, jax.Array, Permutation | None], Relations] | None = None
    """Makes, from the mask, the segments [B, L] and the order of pre-training, what blocks get in place of the mask;
    None: blocks get the mask, and there is no such order."""
    layers: Layers | None = None
    """Memory that the layers keep for the backward pass, and whether they attend; None: `layers_of` the configuration.
    Their arrays are those of `parameters`."""


def bert_architecture(config: EncoderConfig, compute: ComputeConfig) -> Architecture:
    """Return BERT as `config` varies it, computed as `compute` says. Every choice between pieces is made here."""
    match config:
        case RecurrentConfig():
            return _with_layers(config, compute, functools.partial(RecurrentBlock, config))
        case WordVectorsConfig():
            return _with_layers(config, compute, _no_block)
        case XLNetConfig():
            return xlnet_architecture(config, compute)
        case ModelConfig():
            return transformer_architecture(config, compute)


def _with_layers(config: EncoderConfig, compute: ComputeConfig, block: Callable[[jax.Array], Layer]) -> Architecture:
    """Return what encoders of all kinds have in common, around layers that `block` makes from a key."""
    form, dtype = _form_of_products(compute), computation_dtype(compute)
    # XLA sums rows of bfloat16 slowly on both.
    sums_as_products = form == "tpu" or (form == "cpu" and dtype == jnp.bfloat16)
    stack = Stack(
        block=block,
        num_layers=config.num_layers,
        attend=_attend(config, compute),
        scan=scans(config, compute),
        remat="none" if compute.remat == "auto" else compute.remat,
        sharing=config.set_of_layer if config.sharing == "all" else None,
        shared={
            "attention": ("attention", "attention_norm"),
            "feed_forward": ("feed_forward", "feed_forward_norm"),
        }.get(config.sharing, ()),
    )
    tables = {"random": random_positions, "sinusoidal": sinusoidal_positions}
    positions = None if config.position_table is None else tables[config.position_table.position_init]
    final_norm = functools.partial(make_norm, config, config.hidden_size)
    return Architecture(
        embeddings=functools.partial(Embeddings, config, positions=positions),
        stack=stack,
        final_norm=final_norm if config.norm_position == "pre" else None,
        activation=_activation(config.activation, compute),
        pooler=ACTIVATIONS[config.pooler],
        parameters=encoder_parameters(config),
        dtype=dtype,
        product={"cpu": cpu_product, "tpu": tpu_product}.get(form, plain_product),
        add_bias=product_bias if sums_as_products else wide_bias if form == "gpu" else plain_bias,
        layer_norm=fused_layer_norm if sums_as_products or form == "gpu" else plain_layer_norm,
        word_block=BLOCK if form == "cpu" else None,
    )


def _no_block(key: jax.Array) -> Layer:
    raise AssertionError(f"a model without layers makes none, but {key} asks for one")


def xlnet_architecture(config: XLNetConfig, compute: ComputeConfig) -> Architecture:
    """Return XLNet: words alone, and layers that get relations in place of a mask."""
    block = functools.partial(TwoStreamBlock, config, feed_forward=_feed_forward(config, compute))
    return dataclasses.replace(
        _with_layers(config, compute, block),
        embeddings=functools.partial(WordEmbeddings, config),
        relations=functools.partial(Relations.of, config.hidden_size),
    )


def transformer_architecture(config: ModelConfig, compute: ComputeConfig) -> Architecture:
    """Return BERT and those of its relatives whose blocks get a mask."""
    convolution = None
    if config.convolution is not None:
        activation = _activation(config.convolution.convolution_activation, compute)
        convolution = functools.partial(Convolution, config, activation=activation)
    feed_forward = _feed_forward(config, compute)
    usual = _with_layers(
        config, compute, functools.partial(Block, config, feed_forward=feed_forward, convolution=convolution)
    )
    tables = {"relative": config.disentangled, "relative_bias": config.relative_bias}
    shared_tables = [name for name, options in tables.items() if options is not None and config.parameter_sets > 1]
    stack = dataclasses.replace(
        usual.stack,
        layer_settings=_layer_settings(config),
        from_second=() if config.first_attention_norm else ("attention_norm",),
        first_only=() if config.convolution is None else ("convolution",),
        shared=(*usual.stack.shared, *shared_tables),
    )
    return dataclasses.replace(usual, stack=stack, distance_bias=_distance_bias(config))


def _feed_forward(config: AttentionConfig, compute: ComputeConfig) -> Callable[[jax.Array], Activation]:
    """Return what makes the feed-forward network of a block from a key."""
    if config.feed_forward == "plain":
        return functools.partial(FeedForward, config, activation=_activation(config.activation, compute))
    name = "silu" if config.feed_forward == "swiglu" else config.activation
    return functools.partial(GatedFeedForward, config, gated=_gated(name, compute))


def _activation(name: str, compute: ComputeConfig) -> Activation:
    """Return the function with a name, in the form of products."""
    form, function = _form_of_products(compute), ACTIVATIONS[name]
    # A GPU computes tanh again sooner than it writes and reads it.
    return in_float32(function) if form == "cpu" else jax.checkpoint(function) if form == "gpu" else function


def _gated(name: str, compute: ComputeConfig) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return activation(gate) ⊙ values, in the form of products; a GPU computes all of it again."""
    on_gpu = _form_of_products(compute) == "gpu"
    activation = ACTIVATIONS[name] if on_gpu else _activation(name, compute)
    gated = lambda gate, values: activation(gate) * values
    return jax.checkpoint(gated) if on_gpu else gated


def _attend(config: EncoderConfig, compute: ComputeConfig) -> Kernel:
    """Return the attention kernel of every layer; raise a UserError if the options name one that cannot compute it."""
    named = declared(compute.attention) if compute.attention in PLATFORMS else None
    if config.global_tokens and named is not None and "global_tokens" not in named.supports:
        raise UserError(
            f"compute.attention={compute.attention} does not support model.global_tokens={config.global_tokens}; set "
            "compute.attention=auto"
        )
    if config.disentangled is None and not config.two_streams:
        return attention_kernel(compute, attention_in_jax(compute))
    if compute.attention not in ("auto", "xla"):
        kind = (
            config.spelled if config.disentangled is None else f"model.disentangled.terms={config.disentangled.terms}"
        )
        raise UserError(
            f"compute.attention={compute.attention} does not support {kind}, whose scores have a bias that "
            "depends on queries and keys; set compute.attention=auto"
        )
    return Kernel(attention_in_jax(compute), EVERYTHING)


def attention_in_jax(compute: ComputeConfig) -> AttentionKernel:
    """Return `plain.attention`, with products in the form of all others where that is faster."""
    if _form_of_products(compute) == "cpu" and computation_dtype(compute) == jnp.bfloat16:
        return functools.partial(plain.attention, products=plain.CPU)
    return plain.attention


def _distance_bias(config: ModelConfig) -> Callable[[jax.Array], jax.Array] | None:
    """Return what distances add to the scores of every layer, see `Architecture.distance_bias`."""
    alibi = functools.partial(alibi_bias, config.num_heads) if isinstance(config.positions, Alibi) else None
    if config.direction == "both":
        return alibi
    return causal_bias if alibi is None else lambda distance: alibi(distance) + causal_bias(distance)


def _layer_settings(config: ModelConfig) -> dict[str, Sequence[Hashable]]:
    """Return the arguments of the blocks that differ between layers, or from BERT."""
    settings: dict[str, Sequence[Hashable]] = {}
    if config.window is not None:
        settings["window"] = config.windows
    if isinstance(config.positions, Rope):
        rope = config.positions
        whole, local = Rotary(rope), Rotary(Rope(rope_theta=rope.local_theta))
        settings["rotary"] = [whole if window is None else local for window in config.windows]
    if not config.first_attention_norm:
        settings["attention_norm"] = [layer > 0 for layer in range(config.num_layers)]
    if config.convolution is not None:
        settings["convolved"] = [layer == 0 for layer in range(config.num_layers)]
    return settings


def _form_of_products(compute: ComputeConfig) -> str:
    """Return plain, cpu, gpu or tpu; auto is that of the devices of this process (ComputeConfig.products)."""
    if compute.products != "auto":
        return compute.products
    platform = jax.default_backend()
    if platform == "cpu":  # whose form would move activations if they were split over devices
        return "cpu" if jax.device_count() == 1 else "plain"
    return platform if platform in ("gpu", "tpu") else "plain"


def computation_dtype(compute: ComputeConfig) -> jnp.dtype:
    """Return the type of activations and matrix products; auto is that of the platform of this process."""
    name = compute.dtype
    if name == "auto":
        name = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    return jnp.dtype(name)
