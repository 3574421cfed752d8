"""DeBERTa and DeBERTa-v2 (also version 3): relative positions, and the layouts of their projections."""

from collections.abc import Collection
from typing import Any

from etils import epath

from bert_jax.config import DisentangledConfig, EncoderConfig, ModelConfig
from bert_jax.config.options import from_dict, to_dict
from bert_jax.errors import UserError
from bert_jax.formats.model_types import definition
from bert_jax.formats.model_types.bert import as_in_bert

_SIZES = definition.usual(definition.SIZES_WITHOUT_TYPES, vocab_size=50_265)
_LARGER = {"vocab_size": 128_100, "hidden_size": 1_536, "num_hidden_layers": 24}
_LARGER |= {"num_attention_heads": 24, "intermediate_size": 6_144}
_SECOND_SIZES = definition.usual(_SIZES, **_LARGER)
_RATES = definition.usual(definition.RATES, layer_norm_eps=1e-7)
_UNSUPPORTED = {
    "quantization_config": (None,),
    "is_decoder": (None, False),
    "talking_head": (None, False),
    "pooler_dropout": (None, 0),
}
_POOLERS = {"gelu": "gelu_erf", "tanh": "tanh", "relu": "relu"}
_CONVOLUTIONS = {"gelu": "gelu_erf", "tanh": "tanh"}
_TERMS = {("c2p",): "c2p", ("p2c",): "p2c", ("c2p", "p2c"): "c2p+p2c"}


def _obstacles(model: EncoderConfig, *own: str, **options: bool) -> tuple[str, ...]:
    """Return the options whose values no DeBERTa has, and those of `disentangled` that are true in `options`.

    `own` are options that one version has in addition.
    """
    return (
        *definition.beyond_bert(model, "positions", "pooler", "disentangled", *own),
        *definition.true_options(positions=to_dict(model).get("positions") not in ("none", "learned")),
        *(f"disentangled.{name}" for name in definition.true_options(terms=model.disentangled is None, **options)),
    )


def _obstacles_first(model: EncoderConfig) -> tuple[str, ...]:
    options = model.disentangled or DisentangledConfig(key_bias=False)
    return _obstacles(
        model,
        key_bias=options.key_bias,
        shared_projections=options.shared_projections,
        table_norm=options.table_norm,
        buckets=options.buckets is not None,
    )


def _obstacles_second(model: EncoderConfig) -> tuple[str, ...]:
    own = ("convolution_width", "convolution_activation")
    return _obstacles(model, *own, key_bias=model.disentangled is not None and not model.disentangled.key_bias)


def _read_first(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    return _checked(
        _options(values, _SIZES, file), DisentangledConfig(**_distances(values, file), key_bias=False), file
    )


def _read_second(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    hidden, heads = values.get("hidden_size", 1_536), values.get("num_attention_heads", 24)
    if (size := values.get("attention_head_size", hidden // heads)) != hidden // heads:
        raise UserError(
            f"{file} has attention_head_size={size!r:.40}, but {heads} heads of hidden_size={hidden} have "
            f"{hidden // heads} features here"
        )
    norm, buckets = values.get("norm_rel_ebd", "none"), _number(values, "position_buckets", -1, file)
    if norm not in ("none", "layer_norm"):
        raise UserError(f"{file} has norm_rel_ebd={norm!r:.40}; supported are none and layer_norm")
    options = DisentangledConfig(
        **_distances(values, file),
        buckets=buckets if buckets > 0 else None,
        shared_projections=definition.flag(values, "share_att_key", False, file),
        table_norm=norm == "layer_norm",
    )
    return _checked(_options(values, _SECOND_SIZES, file) | _convolution(values, file), options, file)


def _convolution(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    """Return the fields of EncoderConfig about the convolution of v2-xlarge and v2-xxlarge, if the file has one."""
    width = 0 if values.get("conv_kernel_size") is None else _number(values, "conv_kernel_size", 0, file)
    if width < 1:  # and then transformers reads no other of these keys
        return {}
    activation, groups = values.get("conv_act", "tanh"), values.get("conv_groups", 1)
    if activation not in tuple(_CONVOLUTIONS):
        raise UserError(f"{file} has conv_act={activation!r:.40}; supported are {', '.join(_CONVOLUTIONS)}")
    if groups != 1:
        raise UserError(
            f"{file} has conv_groups={groups!r:.40}; only 1 is supported, where every feature sees all others"
        )
    return {"convolution_width": width, "convolution_activation": _CONVOLUTIONS[activation]}


def _checked(model: dict[str, Any], options: DisentangledConfig, file: epath.Path) -> dict[str, Any]:
    """Return the fields of EncoderConfig; raise a UserError that names the file if they do not fit together."""
    model = {**model, "disentangled": to_dict(options)}
    described: ModelConfig = from_dict(ModelConfig, model)
    try:
        options.check(described)
        if described.convolution is not None:
            described.convolution.check(described)
    except UserError as error:
        raise UserError(f"{file} describes a model that is not possible here: {error}") from None
    return model


def _options(values: dict[str, Any], sizes: dict[str, tuple[str, int]], file: epath.Path) -> dict[str, Any]:
    """Return the fields of EncoderConfig that both versions have; raise a UserError for what is not supported."""
    hidden = values.get("hidden_size", sizes["hidden_size"][1])
    for key in ("embedding_size", "pooler_hidden_size"):
        if values.get(key, hidden) not in (hidden, None):
            raise UserError(f"{file} has {key}={values[key]!r:.40}; only that of hidden_size, {hidden}, is supported")
    pooler = values.get("pooler_hidden_act", "gelu")
    if pooler not in tuple(_POOLERS):
        raise UserError(f"{file} has pooler_hidden_act={pooler!r:.40}; supported are {', '.join(_POOLERS)}")
    types = _number(values, "type_vocab_size", 0, file)
    if types < 0:
        raise UserError(f"{file} has type_vocab_size={types} where 0 or more is expected")
    return {
        "type_vocab_size": types,
        "pair_head": False,
        "pooler": _POOLERS[pooler],
        "positions": "learned" if definition.flag(values, "position_biased_input", True, file) else "none",
    }


def _distances(values: dict[str, Any], file: epath.Path) -> dict[str, Any]:
    """Return which terms the scores have, and the distance from which on all are alike."""
    if not definition.flag(values, "relative_attention", False, file):
        raise UserError(
            f"{file} has relative_attention=false: a DeBERTa without relative positions, which no published model is"
        )
    terms = values.get("pos_att_type")
    terms = terms.lower().split("|") if isinstance(terms, str) else terms
    found = tuple(sorted(str(term).strip() for term in terms)) if isinstance(terms, list) else ()
    if found not in _TERMS:
        raise UserError(f"{file} has pos_att_type={values.get('pos_att_type')!r:.60}; supported are c2p, p2c or both")
    farthest = _number(values, "max_relative_positions", -1, file)
    longest = _number(values, "max_position_embeddings", 512, file)
    return {"terms": _TERMS[found], "max_distance": farthest if farthest > 0 else longest}


def _number(values: dict[str, Any], key: str, default: int, file: epath.Path) -> int:
    return definition.whole(values, key, default, file, "a whole number", least=-(2**31))


def _disentangled(model: EncoderConfig) -> DisentangledConfig:
    assert model.disentangled is not None  # or there would be an obstacle
    return model.disentangled


def _written_first(model: EncoderConfig) -> dict[str, Any]:
    """Return the further contents of config.json; `legacy` means the names of the head as they are written."""
    options = _disentangled(model)
    return {
        "relative_attention": True,
        "pos_att_type": options.terms.split("+"),
        "max_relative_positions": options.max_distance,
        "position_biased_input": model.position_table is not None,
        "type_vocab_size": model.type_vocab_size,
        "pooler_hidden_act": next(theirs for theirs, ours in _POOLERS.items() if ours == model.pooler),
        "pooler_hidden_size": model.hidden_size,
        "pooler_dropout": 0,
        "legacy": True,
    }


def _written_second(model: EncoderConfig) -> dict[str, Any]:
    options, convolution = _disentangled(model), {}
    if model.convolution is not None:
        ours = model.convolution.convolution_activation
        activation = next(theirs for theirs, name in _CONVOLUTIONS.items() if name == ours)
        convolution = {"conv_kernel_size": model.convolution.convolution_width, "conv_act": activation}
    return (
        _written_first(model)
        | convolution
        | {
            "position_buckets": -1 if options.buckets is None else options.buckets,
            "norm_rel_ebd": "layer_norm" if options.table_norm else "none",
            "share_att_key": options.shared_projections,
        }
    )


_LAYER = "deberta.encoder.layer.{}"
POSITIONS = "deberta.embeddings.position_embeddings"
"""The table of absolute positions: of the embeddings or, where these have none, of the enhanced mask decoder."""
_MODULES = {
    **as_in_bert("deberta.", "pooler", *(f"encoder/attention/{name}" for name in ("query", "key", "value"))),
    "encoder/relative": "deberta.encoder.rel_embeddings",
    "mask_decoder/position": POSITIONS,
    **definition.MLM_HEAD,
}
_OTHER_HEAD = {
    "lm_predictions.lm_head.dense.": "cls.predictions.transform.dense.",
    "lm_predictions.lm_head.LayerNorm.": "cls.predictions.transform.LayerNorm.",
    "lm_predictions.lm_head.bias": "cls.predictions.bias",
}
"""Names of the same masked-language-model head in published files, and in config.json with legacy=false."""


def _doubt(model: EncoderConfig, names: Collection[str]) -> str:
    """Return what speaks against the head of a directory with arrays of these names; "" if nothing does."""
    if any(name.startswith(DISCRIMINATOR) for name in names):
        return (
            f"{DISCRIMINATOR}* is the head of a discriminator, which learned to tell replaced tokens, not to predict "
            "words: those that its head for masked words gives will be poor; take its generator"
        )
    if model.position_table is None and f"{POSITIONS}.weight" not in names:
        return (
            f"a head for masked words without {POSITIONS}.weight: if it was trained with the enhanced mask decoder, as "
            "the published models were, which reads that table, its words will be poor"
        )
    return ""


_CLASSIFIER = {"pooler": "pooler.dense", "head": "classifier"}
_HEADS: dict[definition.HeadKind, dict[str, str]] = {
    **{kind: definition.HEADS[kind] for kind in ("span", "tagging")},
    **dict.fromkeys(definition.OF_TEXTS, _CLASSIFIER),
}
DISCRIMINATOR = "mask_predictions."
"""Beginning of the names of the head of replaced-token detection in published files of version 3."""
DEBERTA = definition.ModelType(
    name="deberta",
    family="DeBERTa",
    prefix="deberta.",
    modules={
        **_MODULES,
        "encoder/attention/query": f"{_LAYER}.attention.self.in_proj:0",
        "encoder/attention/key": f"{_LAYER}.attention.self.in_proj:1",
        "encoder/attention/value": f"{_LAYER}.attention.self.in_proj:2",
        "encoder/attention/position_key": f"{_LAYER}.attention.self.pos_proj",
        "encoder/attention/position_query": f"{_LAYER}.attention.self.pos_q_proj",
    },
    heads=_HEADS,
    class_name="Deberta",
    decoder="cls.predictions.decoder",
    obstacles=_obstacles_first,
    sizes=_SIZES,
    rates=_RATES,
    unsupported=_UNSUPPORTED | {"conv_kernel_size": (None, 0)},
    read_options=_read_first,
    written_options=_written_first,
    fused={"in_proj": 3},
    by_head=("in_proj",),
    renamed={".self.q_bias": ".self.in_proj:0.bias", ".self.v_bias": ".self.in_proj:2.bias"},
    also=_OTHER_HEAD,
    classifier_dropout="cls_dropout",
    doubt=_doubt,
)
DEBERTA_V2 = definition.ModelType(
    name="deberta-v2",
    family="DeBERTa-v2",
    prefix="deberta.",
    modules={
        **_MODULES,
        "encoder/relative/norm": "deberta.encoder.LayerNorm",
        "encoder/convolution/dense": "deberta.encoder.conv.conv",
        "encoder/convolution/norm": "deberta.encoder.conv.LayerNorm",
        "encoder/attention/query": f"{_LAYER}.attention.self.query_proj",
        "encoder/attention/key": f"{_LAYER}.attention.self.key_proj",
        "encoder/attention/value": f"{_LAYER}.attention.self.value_proj",
        "encoder/attention/position_key": f"{_LAYER}.attention.self.pos_key_proj",
        "encoder/attention/position_query": f"{_LAYER}.attention.self.pos_query_proj",
    },
    heads={**_HEADS, "choice": _CLASSIFIER},
    class_name="DebertaV2",
    decoder="cls.predictions.decoder",
    obstacles=_obstacles_second,
    sizes=_SECOND_SIZES,
    rates=_RATES,
    unsupported=_UNSUPPORTED,
    read_options=_read_second,
    written_options=_written_second,
    also=_OTHER_HEAD,
    classifier_dropout="cls_dropout",
    doubt=_doubt,
    padded_to=(1_000,),  # mDeBERTa v3: 251,000 rows
)
