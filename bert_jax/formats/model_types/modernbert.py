"""Types with rotary positions: ModernBERT, of which some layers are local, its decoder, NomicBERT, EuroBERT, NeoBERT.

The decoder reads from left to right. NomicBERT is BERT with gated networks; its arrays have the names of its authors,
which `transformers` reads and writes too. Of EuroBERT groups of heads may share keys and values. NeoBERT is no type of
`transformers`: its authors publish Python files for it with their model, by which `transformers` opens others too.
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
_ROTARY = (
    *("rope_type", "rope_theta", "factor", "type"),  # the last is an older name of the first
    *("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
    "truncate",
)
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
    others += definition.true_options(global_tokens=model.global_tokens > 0, **_scaling_obstacles(own))
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
    if _rope_type(local) != "default":
        raise UserError(
            f"{file} has rope_parameters={str(given)[:120]}; supported is 'default' in layers of {_LOCAL}, and in "
            f"those of {_GLOBAL} also {', '.join(_SCALINGS)}"
        )
    theta = every.get("rope_theta", values.get("global_rope_theta", 160_000.0))
    local_theta = local.get("rope_theta", values.get("local_rope_theta", 10_000.0))
    return {
        "rope_theta": _positive(theta, "rope_theta", file),
        "rope_local_theta": None if local_theta is None else _positive(local_theta, "rope_theta", file),
        **_scaling(every, values.get("max_position_embeddings", 8_192), file),
    }


_SCALINGS = ("linear", "dynamic", "yarn")
"""Types of rotary positions for longer sequences than a model was trained on, which have the same names here."""


def _rope_type(given: dict[str, Any]) -> str:
    return given.get("rope_type", given.get("type", "default"))


def _scaling(given: dict[str, Any], longest: int, file: epath.Path) -> dict[str, Any]:
    """Return how rotary positions are scaled, from the object that says it and max_position_embeddings."""
    kind = _rope_type(given)
    if kind == "default":
        return {}
    if kind not in _SCALINGS:
        raise UserError(
            f"{file} has rope_parameters of type {kind!r:.40}; supported are default, {', '.join(_SCALINGS)}"
        )
    if kind == "linear":
        return {"rope_scale": _positive(given.get("factor"), "factor", file)}
    if kind == "dynamic":
        found = {"rope_scale": _positive(given.get("factor"), "factor", file, 1), "rope_trained_length": longest}
        return {"rope_scaling": kind, **found}
    if given.get("truncate", True) is not True:
        raise UserError(f"{file} has truncate={given['truncate']!r:.40} in rope_parameters; only true is supported")
    trained = definition.whole(given, "original_max_position_embeddings", longest, file)
    factor = _positive(longest / trained if given.get("factor") is None else given["factor"], "factor", file, 1)
    slow = _positive(given.get("beta_slow") or 1, "beta_slow", file)
    return {
        "rope_scaling": kind,
        "rope_scale": factor,
        "rope_trained_length": trained,
        "rope_amplitude": _amplitude(given, factor, file),
        "rope_beta_slow": slow,
        "rope_beta_fast": _positive(given.get("beta_fast") or 32, "beta_fast", file, slow),
    }


def _amplitude(given: dict[str, Any], factor: float, file: epath.Path) -> float | None:
    """Return the attention factor of yarn; None for the usual one."""
    if given.get("attention_factor") is not None:
        return _positive(given["attention_factor"], "attention_factor", file)
    parts = [given.get(name) for name in ("mscale", "mscale_all_dim")]
    if not all(parts):
        return None
    above, below = (
        1 + _positive(part, name, file) * math.log(max(1, factor)) / 10
        for part, name in zip(parts, ("mscale", "mscale_all_dim"), strict=True)
    )
    return above / below


def _scaling_obstacles(own: dict[str, Any]) -> dict[str, bool]:
    """Return whether `transformers` takes another length for that of the training; `own` are the options of a model."""
    other = own.get("rope_trained_length") != own.get("max_position_embeddings")
    return {"rope_trained_length": own.get("rope_scaling") == "dynamic" and other}


def _written_rope(rope: Rope) -> dict[str, Any]:
    """Return rope_parameters of layers that see the whole sequence."""
    base = {"rope_theta": rope.rope_theta}
    if rope.rope_scaling == "linear" and rope.rope_scale == 1:
        return base | {"rope_type": "default"}
    found = base | {"rope_type": rope.rope_scaling, "factor": rope.rope_scale}
    if rope.rope_scaling != "yarn":
        return found
    usual = Rope()
    others = {
        "beta_fast": (rope.rope_beta_fast, usual.rope_beta_fast),
        "beta_slow": (rope.rope_beta_slow, usual.rope_beta_slow),
        "attention_factor": (rope.rope_amplitude, usual.rope_amplitude),
    }
    told = {key: value for key, (value, unsaid) in others.items() if value != unsaid}
    return found | {"original_max_position_embeddings": rope.rope_trained_length} | told


def _one_rope(values: dict[str, Any], usual: float, file: epath.Path, older: str = "rope_theta") -> dict[str, Any]:
    """Return the options of rotary positions that all layers have alike.

    They are in rope_parameters or, in older files, in rope_scaling with the base at the key `older` beside it; the
    base is `usual` where the file has none.
    """
    size = values.get("hidden_size", 768) // values.get("num_attention_heads", 12)
    if (found := values.get("head_dim")) not in (None, size):
        raise UserError(f"{file} has head_dim={found!r:.40}; only hidden_size / num_attention_heads is supported")
    if size % 2:
        raise UserError(f"{file} has heads of {size} features, which rotary positions cannot turn in pairs")
    scaling, parameters = (_object(values, key, _ROTARY, file) for key in ("rope_scaling", "rope_parameters"))
    given = scaling or parameters
    theta = given.get("rope_theta", values.get(older, usual))
    return {
        "positions": "rope",
        "rope_theta": _positive(theta, "rope_theta", file),
        **_scaling(given, values.get("max_position_embeddings", 2_048), file),
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


def _positive(value: Any, name: str, file: epath.Path, least: float = 0) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not max(least, 1e-30) <= value < math.inf:
        wanted = f"a number of at least {least:g}" if least else "a positive number"
        raise UserError(f"{file} has {name}={value!r:.40} of rotary positions where {wanted} is expected")
    return float(value)


def _written(model: ModelConfig) -> dict[str, Any]:
    """Return what config.json says of a model in addition to its sizes."""
    rope = model.positions
    assert isinstance(rope, Rope)  # or there would be an obstacle
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
            _GLOBAL: _written_rope(rope),
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
    own = to_dict(model)
    others = tuple(name for name, value in _NOMIC_FORM.items() if own.get(name) != value)
    others += definition.true_options(
        activation=model.activation != _NOMIC_GATES.get(own.get("feed_forward", ""), model.activation),
        feed_forward=own.get("feed_forward") not in _NOMIC_GATES,
        type_vocab_size=model.type_vocab_size == 0,
        **_scaling_obstacles(own),
    )
    return others + definition.beyond_bert(model, *_NOMIC_FORM, "feed_forward")


def _nomic_read(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    """Return the options that follow from config.json; raise a UserError for what our encoder does not have."""
    gate = values.get("hidden_act", "silu")
    forms = {definition.WRITTEN_ACTIVATIONS[ours]: form for form, ours in _NOMIC_GATES.items()}
    if gate not in forms:
        raise UserError(f"{file} has hidden_act={gate!r:.40}; supported are {', '.join(forms)}")
    return {
        **_NOMIC_FORM,
        "pair_head": False,
        "feed_forward": forms[gate],
        **_one_rope(values, 1_000.0, file, older="rotary_emb_base"),
    }


def _nomic_written(model: ModelConfig) -> dict[str, Any]:
    rope = model.positions
    assert isinstance(rope, Rope)  # or there would be an obstacle
    return {
        "head_dim": model.head_size,
        "rope_parameters": _written_rope(rope),
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
    heads={kind: definition.HEADS[kind] for kind in (*definition.OF_TEXTS, "tagging")},
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
    classifier_reads={"cls": "cls", "mean": "mean"},
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
    classifier_reads={},
    openers=definition.OPENERS | {"mlm": ("AutoModelForCausalLM", "text-generation")},
    part_names=definition.PART_NAMES | {"mlm": "language-model head"},
)


_GATED_FORM: dict[str, Any] = {
    "type_vocab_size": 0,
    "norm_position": "pre",
    "norm": "rms_norm",
    "positions": "rope",
    "embedding_norm": False,
}
"""Options that every EuroBERT and NeoBERT has: the layers of Llama, which see both sides."""


def _gated_obstacles(model: EncoderConfig, form: dict[str, Any], *free: str) -> tuple[str, ...]:
    own = to_dict(model)
    others = tuple(name for name, value in form.items() if own.get(name) != value)
    return others + definition.beyond_bert(model, *form, "norm_bias", *free)


_EURO_FORM = _GATED_FORM | {"pooler": "gelu_erf"}
_EURO_BIASES = ("attention_bias", "mlp_bias")
_EURO_HEADS = {True: "affine", False: "linear"}
"""Whether the maps within layers have biases → ModelConfig.word_head."""


def _euro_obstacles(model: EncoderConfig) -> tuple[str, ...]:
    own = to_dict(model)
    biased = bool(own.get("use_bias", True) and own.get("layer_bias", True))
    others = definition.true_options(
        feed_forward=own.get("feed_forward") not in ("swiglu", "geglu"),
        use_bias=not own.get("use_bias", True),  # the first layer of a head has one
        word_head=own.get("word_head") != _EURO_HEADS[biased],
        **_scaling_obstacles(own),
    )
    free = ("feed_forward", "layer_bias", "use_bias", "word_head", "key_value_heads")
    return others + _gated_obstacles(model, _EURO_FORM, *free)


def _euro_read(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    """Return the options that follow from config.json; raise a UserError for what our encoder does not have."""
    biases = {key: definition.flag(values, key, False, file) for key in _EURO_BIASES}
    if len(set(biases.values())) > 1:
        shown = ", ".join(f"{key}={value}" for key, value in biases.items())
        raise UserError(f"{file} has {shown}; only both of them or neither is supported")
    biased, heads = biases["mlp_bias"], values.get("num_attention_heads", 12)
    shared = heads if values.get("num_key_value_heads") is None else values["num_key_value_heads"]
    if not isinstance(shared, int) or isinstance(shared, bool) or shared < 1 or heads % shared:
        raise UserError(
            f"{file} has num_key_value_heads={shared!r:.40} where a divisor of num_attention_heads={heads} is expected"
        )
    return {
        **_EURO_FORM,
        "pair_head": False,
        "feed_forward": "swiglu" if values.get("hidden_act", "silu") == "silu" else "geglu",
        "layer_bias": biased,
        "word_head": _EURO_HEADS[biased],
        "key_value_heads": None if shared == heads else shared,
        **_one_rope(values, 10_000.0, file),
    }


def _euro_written(model: ModelConfig) -> dict[str, Any]:
    rope = model.positions
    assert isinstance(rope, Rope)  # or there would be an obstacle
    gate = "silu" if model.feed_forward == "swiglu" else definition.WRITTEN_ACTIVATIONS[model.activation]
    return {
        **dict.fromkeys(_EURO_BIASES, model.layers_have_bias),
        "hidden_act": gate,
        "num_key_value_heads": model.key_heads,
        "head_dim": model.head_size,
        "rope_parameters": _written_rope(rope),
        "tie_word_embeddings": False,
        "bos_token_id": 0,  # these three become those of the tokenizer
        "eos_token_id": 0,
        "mask_token_id": 0,
    }


_EURO_LAYER = "model.layers.{}"
_DENSE = {"pooler": "dense", "head": "classifier"}
EUROBERT = definition.ModelType(
    name="eurobert",
    family="EuroBERT",
    prefix="model.",
    modules={
        "embeddings/word": "model.embed_tokens",
        **{
            f"encoder/attention/{name}": f"{_EURO_LAYER}.self_attn.{name[0]}_proj" for name in ("query", "key", "value")
        },
        "encoder/attention/output": f"{_EURO_LAYER}.self_attn.o_proj",
        "encoder/attention_norm": f"{_EURO_LAYER}.input_layernorm",
        "encoder/feed_forward/gate": f"{_EURO_LAYER}.mlp.gate_proj",
        "encoder/feed_forward/intermediate": f"{_EURO_LAYER}.mlp.up_proj",
        "encoder/feed_forward/output": f"{_EURO_LAYER}.mlp.down_proj",
        "encoder/feed_forward_norm": f"{_EURO_LAYER}.post_attention_layernorm",
        "final_norm": "model.norm",
        "mlm": "lm_head",
    },
    heads={**dict.fromkeys(definition.OF_TEXTS, _DENSE), "tagging": {"head": "classifier"}},
    class_name="EuroBert",
    decoder="",
    obstacles=_euro_obstacles,
    sizes=definition.usual(definition.SIZES_WITHOUT_TYPES, vocab_size=128_256, max_position_embeddings=8_192),
    rates={
        "hidden_dropout": ("hidden_dropout", 0.0),
        "attention_dropout": ("attention_dropout", 0.0),
        "rms_norm_eps": ("layer_norm_epsilon", 1e-5),
        "initializer_range": ("initializer_range", 0.02),
    },
    unsupported={"quantization_config": (None,), "tie_word_embeddings": (None, False)},
    read_options=_euro_read,
    written_options=_euro_written,
    usual_activation="silu",
    classifier_reads={"bos": "cls", "late": None, "mean": None},
    usual_reading="late",
)


_NEO_FORM = _GATED_FORM | {
    "pooler": "tanh",
    "feed_forward": "swiglu",
    "layer_bias": False,
    "word_head": "affine",
    "rope_theta": 10_000.0,
}
_NEO_WIDTH = 8
"""Multiple to which NeoBERT rounds up two thirds of intermediate_size, the width of its networks."""


def _neo_obstacles(model: EncoderConfig) -> tuple[str, ...]:
    own = to_dict(model)
    others = definition.true_options(
        rope_scale=own.get("rope_scale", 1.0) != 1.0 or own.get("rope_scaling", "linear") != "linear",
        intermediate_size=isinstance(model, ModelConfig) and model.feed_forward_size % _NEO_WIDTH > 0,
    )
    return others + _gated_obstacles(model, _NEO_FORM)


def _neo_read(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    """Return the options that follow from config.json; raise a UserError for what our encoder does not have."""
    wide = definition.whole(values, "intermediate_size", 3_072, file)
    if (size := values.get("hidden_size", 768) // values.get("num_attention_heads", 12)) % 2:
        raise UserError(f"{file} has heads of {size} features, which rotary positions cannot turn in pairs")
    return {
        **_NEO_FORM,
        "pair_head": False,
        "attention_dropout": 0.0,
        "intermediate_size": _NEO_WIDTH * -(-(2 * wide // 3) // _NEO_WIDTH),
    }


def _neo_written(model: ModelConfig) -> dict[str, Any]:
    files = {"AutoConfig": "NeoBERTConfig", "AutoModel": "NeoBERT", "AutoModelForMaskedLM": "NeoBERTLMHead"}
    files |= {"AutoModelForSequenceClassification": "NeoBERTForSequenceClassification"}
    return {
        "intermediate_size": model.feed_forward_size * 3 // 2,
        "embedding_init_range": model.initializer_range,
        "tie_word_embeddings": False,
        "auto_map": {opener: f"chandar-lab/NeoBERT--model.{name}" for opener, name in files.items()},
    }


_NEO_LAYER = "model.transformer_encoder.{}"
NEOBERT = definition.ModelType(
    name="neobert",
    family="NeoBERT",
    prefix="model.",
    modules={
        "embeddings/word": "model.encoder",
        "encoder/attention/query": f"{_NEO_LAYER}.qkv:0",
        "encoder/attention/key": f"{_NEO_LAYER}.qkv:1",
        "encoder/attention/value": f"{_NEO_LAYER}.qkv:2",
        "encoder/attention/output": f"{_NEO_LAYER}.wo",
        "encoder/attention_norm": f"{_NEO_LAYER}.attention_norm",
        "encoder/feed_forward/gate": f"{_NEO_LAYER}.ffn.w12:0",
        "encoder/feed_forward/intermediate": f"{_NEO_LAYER}.ffn.w12:1",
        "encoder/feed_forward/output": f"{_NEO_LAYER}.ffn.w3",
        "encoder/feed_forward_norm": f"{_NEO_LAYER}.ffn_norm",
        "final_norm": "model.layer_norm",
        "mlm": "decoder",
    },
    heads=dict.fromkeys(definition.OF_TEXTS, _DENSE),
    class_name="NeoBERT",
    other_classes={"mlm": "NeoBERTLMHead", "encoder": "NeoBERT"},
    decoder="",
    obstacles=_neo_obstacles,
    sizes={
        **{key: size for key, size in definition.SIZES_WITHOUT_TYPES.items() if key != "max_position_embeddings"},
        "num_hidden_layers": ("num_layers", 28),
        "max_length": ("max_position_embeddings", 1_024),
    },
    rates={
        "dropout": ("hidden_dropout", 0.0),
        "norm_eps": ("layer_norm_epsilon", 1e-6),
        "decoder_init_range": ("initializer_range", 0.02),
    },
    unsupported={
        "quantization_config": (None,),
        "ngpt": (None, False),
        "rope": (None, True),
        "rms_norm": (None, True),
        "hidden_act": (None, "swiglu", "SwiGLU"),
    },
    read_options=_neo_read,
    written_options=_neo_written,
    fused={"qkv": 3, "w12": 2},
    by_head=("qkv",),
    adjacent=("encoder/attention/query", "encoder/attention/key"),
    activation="",
    usual_activation="silu",
    remote_code=True,
)
