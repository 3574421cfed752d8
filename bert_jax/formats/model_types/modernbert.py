"""Types with rotary positions: ModernBERT, of which some layers are local, its decoder, and NomicBERT.

The decoder reads from left to right. NomicBERT is BERT with gated networks; its arrays have the names of its authors,
which `transformers` reads and writes too.
"""

import dataclasses
import math
from typing import Any

from etils import epath

from bert_jax.config import EncoderConfig, ModelConfig, Rope
from bert_jax.config.options import to_dict
from bert_jax.errors import UserError
from bert_jax.formats.model_types import definition

_USUAL = {"vocab_size": 50_368, "num_hidden_layers": 22, "intermediate_size": 1_152, "max_position_embeddings": 8_192}
_RATES = {
    "embedding_dropout": ("hidden_dropout", 0.0),
    "attention_dropout": ("attention_dropout", 0.0),
    "norm_eps": ("layer_norm_epsilon", 1e-5),
    "initializer_range": ("initializer_range", 0.02),
}
_UNSUPPORTED = {"decoder_bias": (None, True), "quantization_config": (None,), "rope_scaling": (None,)}
_BIASES = ("attention_bias", "mlp_bias", "classifier_bias")
_TOKENS = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_ROTARY = ("rope_type", "rope_theta", "factor", "type")  # the last is an older name of the first
_FORM: dict[str, Any] = {
    "type_vocab_size": 0,
    "norm_position": "pre",
    "norm": "layer_norm",
    "positions": "rope",
    "feed_forward": "geglu",
    "first_attention_norm": False,
    "task_transform": True,
    "embedding_size": None,
    "sharing": "none",
    "pooler": "tanh",
}
"""Options that every ModernBERT has."""


def _decoder_obstacles(model: EncoderConfig) -> tuple[str, ...]:
    others = tuple(name for name in _obstacles(model) if name != "direction")
    return others + definition.true_options(direction=to_dict(model).get("direction") != "left_to_right")


def _obstacles(model: EncoderConfig) -> tuple[str, ...]:
    own = to_dict(model)
    others = tuple(name for name, value in _FORM.items() if own.get(name) != value)
    others += definition.true_options(global_tokens=model.global_tokens > 0)
    return others + definition.beyond_bert(model, *_FORM, "local_window", "norm_bias", "use_bias")


def _read(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    """Return the options that follow from config.json; raise a UserError for what our encoder does not have."""
    heads, size = values.get("num_attention_heads", 12), values.get("hidden_size", 768)
    if size // heads % 2:
        raise UserError(f"{file} has heads of {size // heads} features, which rotary positions cannot turn in pairs")
    transform, activation = (values.get(f"{part}_activation", "gelu") for part in ("classifier", "hidden"))
    if transform != activation:
        raise UserError(
            f"{file} has classifier_activation={transform!r:.40} and hidden_activation={activation!r:.40}; only equal "
            "ones are supported"
        )
    return {
        **_FORM,
        "pair_head": False,
        "norm_bias": definition.flag(values, "norm_bias", False, file),
        "use_bias": _biases(values, file),
        **_windows(values, file),
        **_rotary(values, file),
    }


def _read_decoder(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    """Return the same of a decoder, whose windows count the token itself."""
    found = _read(values, file)
    if (width := found["local_window"]) is not None and width < 2:
        raise UserError(f"{file} has local_attention={values['local_attention']!r:.40} where at least 4 is expected")
    return found | {"direction": "left_to_right", "local_window": None if width is None else width - 1}


def _biases(values: dict[str, Any], file: epath.Path) -> bool:
    found = {key: definition.flag(values, key, False, file) for key in _BIASES}
    if len(set(found.values())) > 1:
        shown = ", ".join(f"{key}={value}" for key, value in found.items())
        raise UserError(f"{file} has {shown}; only all of them or none is supported")
    return found[_BIASES[0]]


def _windows(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    """Return which layers are local: by layer_types, or by global_attn_every_n_layers as in older files."""
    layers = values.get("num_hidden_layers", 22)
    width = definition.whole(values, "local_attention", 128, file, "a number of at least 2 tokens", least=2)
    every = definition.whole(values, "global_attn_every_n_layers", 3, file, "a positive number")
    kinds = values.get("layer_types") or _layer_types(layers, every)
    if kinds == _layer_types(layers, 1):
        return {"local_window": None}
    fitting = [count for count in (0, *range(2, layers + 1)) if kinds == _layer_types(layers, count)]
    if not fitting:
        raise UserError(
            f"{file} has layer_types={str(kinds)[:80]}…; only every n-th layer as {_GLOBAL}, beginning with the "
            f"first, or none, and the others as {_LOCAL} is supported"
        )
    return {"local_window": width // 2, "global_every": fitting[0]}


def _layer_types(layers: int, every: int) -> list[str]:
    return [_GLOBAL if every and layer % every == 0 else _LOCAL for layer in range(layers)]


def _rotary(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    """Return the rotary bases: by rope_parameters, or by global_rope_theta and local_rope_theta as in older files."""
    given = _object(values, "rope_parameters", (_GLOBAL, _LOCAL), file)
    every, local = (_object(given, layers, _ROTARY, file) for layers in (_GLOBAL, _LOCAL))
    kind, local_kind = (each.get("rope_type", each.get("type", "default")) for each in (every, local))
    if kind not in ("default", "linear") or local_kind != "default":
        raise UserError(
            f"{file} has rope_parameters={str(given)[:120]}; supported are 'default' and, in layers of {_GLOBAL}, "
            "'linear' with a factor"
        )
    theta = every.get("rope_theta", values.get("global_rope_theta", 160_000.0))
    local_theta = local.get("rope_theta", values.get("local_rope_theta", 10_000.0))
    return {
        "rope_theta": _positive(theta, "rope_theta", file),
        "rope_local_theta": None if local_theta is None else _positive(local_theta, "rope_theta", file),
        "rope_scale": _positive(every.get("factor"), "factor", file) if kind == "linear" else 1.0,
    }


def _object(values: dict[str, Any], key: str, known: tuple[str, ...], file: epath.Path) -> dict[str, Any]:
    """Return the object at `key`, empty where it is missing or null; a UserError if it has other keys than `known`."""
    found = values.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise UserError(f"{file} has {key}={found!r:.40} where an object with {', '.join(known)} is expected")
    if unknown := [name for name in found if name not in known]:
        raise UserError(f"{file} has {unknown[0]!r:.40} in {key}; supported are {', '.join(known)}")
    return found


def _positive(value: Any, name: str, file: epath.Path) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise UserError(f"{file} has {name}={value!r:.40} of rotary positions where a positive number is expected")
    return float(value)


def _written(model: ModelConfig) -> dict[str, Any]:
    """Return what config.json says of a model in addition to its sizes."""
    rope = model.positions
    assert isinstance(rope, Rope)  # or there would be an obstacle
    scaled = {"rope_type": "linear", "factor": rope.rope_scale} if rope.rope_scale != 1 else {"rope_type": "default"}
    return {
        **dict.fromkeys(_BIASES, model.use_bias),
        "norm_bias": model.norm_bias,
        **dict.fromkeys(_TOKENS),  # its defaults are ids of its own vocabulary; the tokenizer's files have those here
        "decoder_bias": True,
        "mlp_dropout": model.hidden_dropout,
        "classifier_activation": definition.WRITTEN_ACTIVATIONS[model.activation],
        "local_attention": 128 if model.window is None else 2 * model.window.local_window,
        "layer_types": [_GLOBAL if window is None else _LOCAL for window in model.windows],
        "rope_parameters": {
            _GLOBAL: {"rope_theta": rope.rope_theta, **scaled},
            _LOCAL: {"rope_theta": rope.local_theta, "rope_type": "default"},
        },
    }


_NOMIC_SIZES = definition.usual(definition.SIZES, vocab_size=30_528, max_position_embeddings=2_048)
_NOMIC_RATES = definition.usual(definition.RATES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
_NOMIC_OLDER = {
    **{"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"},
    **{"n_inner": "intermediate_size", "n_positions": "max_position_embeddings"},
    **{"layer_norm_epsilon": "layer_norm_eps", "resid_pdrop": "hidden_dropout_prob"},
    "attn_pdrop": "attention_probs_dropout_prob",
}
_NOMIC_UNSUPPORTED = {
    "quantization_config": (None,),
    "activation_function": (None, "swiglu"),
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), (None, False)),
    **dict.fromkeys(("prenorm", "parallel_block", "use_rms_norm", "causal", "rotary_emb_interleaved"), (None, False)),
    **dict.fromkeys(("rotary_emb_scale_base", "rotary_scaling_factor"), (None,)),
    "rotary_emb_fraction": (None, 1, 1.0),
    "moe_every_n_layers": (None, 0),
}
_NOMIC_FORM: dict[str, Any] = {"norm_position": "post", "positions": "rope", "pooler": "tanh", "layer_bias": False}
_NOMIC_GATES = {"swiglu": "silu", "geglu": "gelu_erf"}
"""Feed-forward network → the activation of its gate, which is that of the masked-language-model head."""


def _nomic_obstacles(model: EncoderConfig) -> tuple[str, ...]:
    own, rope = to_dict(model), {"rope_theta", "rope_local_theta", "rope_scale"}
    others = tuple(name for name, value in _NOMIC_FORM.items() if own.get(name) != value)
    others += definition.true_options(
        activation=model.activation != _NOMIC_GATES.get(own.get("feed_forward", ""), model.activation),
        feed_forward=own.get("feed_forward") not in _NOMIC_GATES,
        rope_scale=own.get("rope_scale", 1.0) != 1.0,
        type_vocab_size=model.type_vocab_size == 0,
    )
    return others + definition.beyond_bert(model, *_NOMIC_FORM, "feed_forward", *rope)


def _nomic_read(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    """Return the options that follow from config.json; raise a UserError for what our encoder does not have."""
    heads, size = values.get("num_attention_heads", 12), values.get("hidden_size", 768)
    if (found := values.get("head_dim")) not in (None, size // heads):
        raise UserError(f"{file} has head_dim={found!r:.40}; only hidden_size / num_attention_heads is supported")
    if size // heads % 2:
        raise UserError(f"{file} has heads of {size // heads} features, which rotary positions cannot turn in pairs")
    gate = values.get("hidden_act", "silu")
    forms = {definition.WRITTEN_ACTIVATIONS[ours]: form for form, ours in _NOMIC_GATES.items()}
    if gate not in forms:
        raise UserError(f"{file} has hidden_act={gate!r:.40}; supported are {', '.join(forms)}")
    rope = _object(values, "rope_parameters", _ROTARY, file)
    if (kind := rope.get("rope_type", rope.get("type", "default"))) != "default":
        raise UserError(f"{file} has rope_parameters of type {kind!r:.40}; supported is 'default'")
    theta = rope.get("rope_theta", values.get("rotary_emb_base", 1_000.0))
    return {
        **_NOMIC_FORM,
        "pair_head": False,
        "feed_forward": forms[gate],
        "rope_theta": _positive(theta, "rope_theta", file),
    }


def _nomic_written(model: ModelConfig) -> dict[str, Any]:
    rope = model.positions
    assert isinstance(rope, Rope)  # or there would be an obstacle
    return {
        "head_dim": model.head_size,
        "rope_parameters": {"rope_theta": rope.rope_theta, "rope_type": "default"},
        "bos_token_id": None,
        "eos_token_id": None,
    }


_NOMIC_LAYER = "nomic_bert.encoder.layers.{}"
NOMIC_BERT = definition.ModelType(
    name="nomic_bert",
    family="NomicBERT",
    prefix="nomic_bert.",
    modules={
        "embeddings/word": "nomic_bert.embeddings.word_embeddings",
        "embeddings/token_type": "nomic_bert.embeddings.token_type_embeddings",
        "embeddings/norm": "nomic_bert.emb_ln",
        "encoder/attention/query": f"{_NOMIC_LAYER}.attn.Wqkv:0",
        "encoder/attention/key": f"{_NOMIC_LAYER}.attn.Wqkv:1",
        "encoder/attention/value": f"{_NOMIC_LAYER}.attn.Wqkv:2",
        "encoder/attention/output": f"{_NOMIC_LAYER}.attn.out_proj",
        "encoder/attention_norm": f"{_NOMIC_LAYER}.norm1",
        "encoder/feed_forward/gate": f"{_NOMIC_LAYER}.mlp.fc12",
        "encoder/feed_forward/intermediate": f"{_NOMIC_LAYER}.mlp.fc11",
        "encoder/feed_forward/output": f"{_NOMIC_LAYER}.mlp.fc2",
        "encoder/feed_forward_norm": f"{_NOMIC_LAYER}.norm2",
        "pooler": "nomic_bert.pooler.dense",
        "mlm/dense": "cls.predictions.transform.dense",
        "mlm/norm": "cls.predictions.transform.layer_norm",
        "mlm": "cls.predictions",
    },
    heads={kind: definition.HEADS[kind] for kind in ("classification", "regression", "tagging")},
    class_name="NomicBert",
    decoder="cls.predictions.decoder",
    obstacles=_nomic_obstacles,
    sizes=_NOMIC_SIZES,
    rates=_NOMIC_RATES,
    unsupported=_NOMIC_UNSUPPORTED,
    read_options=_nomic_read,
    written_options=_nomic_written,
    fused={"Wqkv": 3},
    older=_NOMIC_OLDER,
    also={"bert.": "nomic_bert."},
    usual_activation="silu",
    has_pooler=False,
)


def _written_decoder(model: ModelConfig) -> dict[str, Any]:
    window = {} if model.window is None else {"local_attention": 2 * (model.window.local_window + 1)}
    tokens = dict.fromkeys(_TOKENS, 0)  # whole numbers there; the first two become those of the tokenizer
    return _written(model) | window | tokens


_HEAD = {"head/dense": "head.dense", "head/norm": "head.norm", "head": "classifier"}
MODERNBERT = definition.ModelType(
    name="modernbert",
    family="ModernBERT",
    prefix="model.",
    modules={
        "embeddings/word": "model.embeddings.tok_embeddings",
        "embeddings/norm": "model.embeddings.norm",
        "encoder/attention/query": "model.layers.{}.attn.Wqkv:0",
        "encoder/attention/key": "model.layers.{}.attn.Wqkv:1",
        "encoder/attention/value": "model.layers.{}.attn.Wqkv:2",
        "encoder/attention/output": "model.layers.{}.attn.Wo",
        "encoder/attention_norm": "model.layers.{}.attn_norm",
        "encoder/feed_forward/gate": "model.layers.{}.mlp.Wi:0",
        "encoder/feed_forward/intermediate": "model.layers.{}.mlp.Wi:1",
        "encoder/feed_forward/output": "model.layers.{}.mlp.Wo",
        "encoder/feed_forward_norm": "model.layers.{}.mlp_norm",
        "final_norm": "model.final_norm",
        "mlm/dense": "head.dense",
        "mlm/norm": "head.norm",
        "mlm": "decoder",
    },
    heads=dict.fromkeys(definition.TASKS, _HEAD),
    class_name="ModernBert",
    decoder="decoder",
    obstacles=_obstacles,
    sizes=definition.usual(definition.SIZES_WITHOUT_TYPES, **_USUAL),
    rates=_RATES,
    unsupported=_UNSUPPORTED,
    read_options=_read,
    written_options=_written,
    fused={"Wqkv": 3, "Wi": 2},
    activation="hidden_activation",
    classifier_pooling=True,
)
MODERNBERT_DECODER = dataclasses.replace(
    MODERNBERT,
    name="modernbert-decoder",
    family="ModernBERT's decoder",
    modules={
        **MODERNBERT.modules,
        **{f"encoder/attention/{name}": f"model.layers.{{}}.attn.{name[0]}_proj" for name in ("query", "key", "value")},
        "mlm/dense": "lm_head.dense",
        "mlm/norm": "lm_head.norm",
    },
    heads={},  # theirs has a bias only where all maps have one, which ours always has
    class_name="ModernBertDecoder",
    other_classes={"mlm": "ModernBertDecoderForCausalLM"},
    obstacles=_decoder_obstacles,
    read_options=_read_decoder,
    written_options=_written_decoder,
    fused={"Wi": 2},
    classifier_pooling=False,
    openers=definition.OPENERS | {"mlm": ("AutoModelForCausalLM", "text-generation")},
    part_names=definition.PART_NAMES | {"mlm": "language-model head"},
)
