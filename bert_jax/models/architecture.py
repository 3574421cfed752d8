"""The pieces an encoder is made of, and the one place where they are chosen from the configuration.

An architecture of your own is a function like `bert_architecture`, passed to `BertForPreTraining` or `BertForTask`. It
starts from the result of that function, or from the pieces themselves, and replaces what differs; docs/extending.md has
one with windows of its own.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence

import jax
import jax.numpy as jnp

from bert_jax.config import (
    Alibi,
    ComputeConfig,
    EncoderConfig,
    ModelConfig,
    RecurrentConfig,
    Rope,
    WordVectorsConfig,
    XLNetConfig,
)
from bert_jax.errors import UserError
from bert_jax.models.bert_parameters import encoder_parameters
from bert_jax.models.block import Block, FeedForward, GatedFeedForward, Rotary, alibi_bias, causal_bias
from bert_jax.models.deberta import Convolution
from bert_jax.models.embeddings import BLOCK, Embeddings, random_positions, sinusoidal_positions
from bert_jax.models.kernels import plain
from bert_jax.models.kernels.choice import PLATFORMS, attention_kernel, declared
from bert_jax.models.kernels.plain import EVERYTHING, AttentionKernel, AttentionMask, Kernel
from bert_jax.models.layer_plan import scans
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
    tpu_product,
    wide_bias,
)
from bert_jax.models.lstm import RecurrentBlock
from bert_jax.models.stack import Layer, Stack
from bert_jax.models.xlnet import Permutation, Relations, TwoStreamBlock, WordEmbeddings
from bert_jax.parameters import ParameterTable

Activation = Callable[[jax.Array], jax.Array]
ACTIVATIONS: dict[str, Activation] = {"gelu_tanh": gelu_tanh, "gelu_erf": gelu_erf, "relu": relu, "tanh": jnp.tanh}
ACTIVATIONS |= {"silu": jax.nn.silu}  # of gates


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


def bert_architecture(config: EncoderConfig, compute: ComputeConfig) -> Architecture:
    """Return BERT as `config` varies it, computed as `compute` says. Every choice between pieces is made here."""
    form, dtype = _form_of_products(compute), computation_dtype(compute)
    # XLA sums rows of bfloat16 slowly on both.
    sums_as_products = form == "tpu" or (form == "cpu" and dtype == jnp.bfloat16)
    stack = Stack(
        block=_block(config, form),
        num_layers=config.num_layers,
        attend=_attend(config, compute),
        scan=scans(config, compute),
        remat="none" if compute.remat == "auto" else compute.remat,
        layer_settings=_layer_settings(config),
        from_second=() if config.first_attention_norm else ("attention_norm",),
        first_only=() if config.convolution is None else ("convolution",),
        sharing=(0,) * config.num_layers if config.sharing == "all" else None,
        shared=_shared(config),
    )
    tables = {"random": random_positions, "sinusoidal": sinusoidal_positions}
    positions = None if config.position_table is None else tables[config.position_table.position_init]
    if isinstance(config, XLNetConfig):
        embeddings = functools.partial(WordEmbeddings, config)
    else:
        embeddings = functools.partial(Embeddings, config, positions=positions)
    final_norm = functools.partial(make_norm, config, config.hidden_size)
    return Architecture(
        embeddings=embeddings,
        stack=stack,
        final_norm=final_norm if config.norm_position == "pre" else None,
        activation=_activation(config.activation, form),
        pooler=ACTIVATIONS[config.pooler],
        parameters=encoder_parameters(config),
        dtype=dtype,
        product={"cpu": cpu_product, "tpu": tpu_product}.get(form, plain_product),
        add_bias=product_bias if sums_as_products else wide_bias if form == "gpu" else plain_bias,
        layer_norm=fused_layer_norm if sums_as_products or form == "gpu" else plain_layer_norm,
        word_block=BLOCK if form == "cpu" else None,
        distance_bias=_distance_bias(config),
        relations=functools.partial(Relations.of, config.hidden_size) if config.two_streams else None,
    )


def _activation(name: str, form: str) -> Activation:
    """Return an activation function in a form of products."""
    function = ACTIVATIONS[name]
    # A GPU computes tanh again sooner than it writes and reads it.
    return in_float32(function) if form == "cpu" else jax.checkpoint(function) if form == "gpu" else function


def _gated(name: str, form: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return activation(gate) ⊙ values in a form of products; on a GPU, the backward pass keeps both, and no more."""
    function = ACTIVATIONS[name] if form == "gpu" else _activation(name, form)
    gated = lambda gate, values: function(gate) * values
    return jax.checkpoint(gated) if form == "gpu" else gated


def _block(config: EncoderConfig, form: str) -> Callable[[jax.Array], Layer]:
    """Return what makes a block from a key, in a form of products."""
    if isinstance(config, RecurrentConfig):
        return functools.partial(RecurrentBlock, config)
    if isinstance(config, WordVectorsConfig):
        return _no_block
    if config.feed_forward == "plain":
        feed_forward = functools.partial(FeedForward, config, activation=_activation(config.activation, form))
    else:
        name = "silu" if config.feed_forward == "swiglu" else config.activation
        feed_forward = functools.partial(GatedFeedForward, config, gated=_gated(name, form))
    if isinstance(config, XLNetConfig):
        return functools.partial(TwoStreamBlock, config, feed_forward=feed_forward)
    convolution = None
    if config.convolution is not None:
        function = _activation(config.convolution.convolution_activation, form)
        convolution = functools.partial(Convolution, config, activation=function)
    return functools.partial(Block, config, feed_forward=feed_forward, convolution=convolution)


def _no_block(key: jax.Array) -> Layer:
    raise AssertionError(f"a model without layers makes none, but {key} asks for one")


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


def _distance_bias(config: EncoderConfig) -> Callable[[jax.Array], jax.Array] | None:
    """Return what distances add to the scores of every layer, see `Architecture.distance_bias`."""
    if not isinstance(config, ModelConfig):
        return None
    alibi = functools.partial(alibi_bias, config.num_heads) if isinstance(config.positions, Alibi) else None
    if config.direction == "both":
        return alibi
    return causal_bias if alibi is None else lambda distance: alibi(distance) + causal_bias(distance)


def _shared(config: EncoderConfig) -> tuple[str, ...]:
    """Return the parts of the blocks that are the same in all layers, while others are each layer's own."""
    shared = {
        "attention": ("attention", "attention_norm"),
        "feed_forward": ("feed_forward", "feed_forward_norm"),
    }.get(config.sharing, ())
    relative = config.disentangled is not None and config.sharing != "all"
    return (*shared, "relative") if relative else shared


def _layer_settings(config: EncoderConfig) -> dict[str, Sequence[Hashable]]:
    """Return the arguments of the blocks that differ between layers, or from BERT."""
    settings: dict[str, Sequence[Hashable]] = {}
    if not isinstance(config, ModelConfig):
        return settings
    if config.window is not None:
        settings["window"] = config.windows
    if isinstance(config.positions, Rope):
        rope = config.positions
        whole, local = Rotary(rope.rope_theta, rope.rope_scale), Rotary(rope.local_theta)
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
