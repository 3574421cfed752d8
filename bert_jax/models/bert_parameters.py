"""The one table of the arrays of BERT and its relatives: embeddings, layers, heads of pre-training and of tasks.

It covers a discriminator with its generator too: which arrays belong to which of them, and which both use. `Layers`
also says what a training step keeps of the layers of one kind. Nothing outside the standard library is imported at the
top, so `bert-jax info` reads the table without loading jax.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Protocol

from bert_jax.config import (
    AttentionConfig,
    DisentangledConfig,
    EncoderConfig,
    HeadConfig,
    ModelConfig,
    ObjectiveConfig,
    RecurrentConfig,
    ReplacedTokens,
    Scaling,
    WordVectorsConfig,
)
from bert_jax.config.heads import HeadKind
from bert_jax.config.objective import EmbeddingSharing
from bert_jax.parameters import FLOAT32, LAYER_AXES, Axis, Parameter, ParameterTable, Use, linear, norm, table

ENCODER_PARTS = ("embeddings", "encoder", "final_norm")
"""Parts of an encoder; one has a final norm if its norms precede the branches, and no layers if it is a table alone."""
PRETRAINING_PARTS = ("pooler", "mlm", "next_sentence")
MODEL_PARTS = (*PRETRAINING_PARTS, "replaced_tokens", "span_boundary", "mask_decoder")
"""Parts that a model can have on its encoder; the last three are the heads of ELECTRA's discriminator and of SpanBERT,
and DeBERTa's decoder below the head for masked words."""
MASK_DECODER = "mask_decoder/position/table"
"""Path of the only array of DeBERTa's decoder."""
STATE_PROJECTION = "state_projection"
"""The part of a student whose states are compared with those of a teacher of another width: the map to that width. A
run trains it for its own teacher, so models that are made from the student do without."""
TOKEN_VECTORS = "token_vectors"
"""The part of a model with vectors of tokens: the map of their states to these."""
SPAN_PLACES, SPAN_PLACE_SIZE = 15, 200
"""Places of a span that have a vector, and its size, as in the command that SpanBERT's authors published."""
TASK_PARTS = ("head", "crf")
"""Parts of the head of a task."""
FACTORS = ("lora_a", "lora_b")
"""Last keys of the paths of the factors A [layers, inputs, rank] and B [layers, rank, outputs] of a change to a matrix
of the layers (LoRA); the keys before them are those of its module."""
MAPS: dict[str, Use] = {"query": "per_token", "key": "per_key", "value": "per_key", "distance": "uncounted"}
"""Maps of attention. That of distances is multiplied once per step, with a table, and does not grow with the batch."""
OF_TEXTS: tuple[HeadKind, ...] = ("classification", "multilabel", "regression")
"""Kinds of heads that answer a text, or a pair of texts, as a whole."""
POOLED: tuple[HeadKind, ...] = (*OF_TEXTS, "choice")
"""Kinds of heads that read the pooled first position; the others read every position."""
SHARE_ROWS = OF_TEXTS
"""Kinds of heads that score several texts in one row: those that read one vector of each."""


def pretraining_parts(config: EncoderConfig, objective: ObjectiveConfig | None = None) -> tuple[str, ...]:
    """Return those of MODEL_PARTS that a run of pre-training has."""
    more = () if objective is None else objective.parts
    if not config.has_layers:
        return more
    return (*(PRETRAINING_PARTS if config.pair_head else ("mlm",)), *more)


def bert_parameters(
    config: EncoderConfig,
    parts: tuple[str, ...] | None = None,
    head: HeadConfig | None = None,
    teacher_size: int | None = None,
) -> ParameterTable:
    """Return the table of a BERT.

    Args:
      config: sizes of the model; vocab_size=None counts as the vocabulary of BERT uncased.
      parts: those of MODEL_PARTS that the model has; a head that reads the pooler adds it. None: `pretraining_parts`.
      head: the head of a fine-tuned model.
      teacher_size: width of the states that a student maps its own to; None: it has no such map.
    """
    parts = pretraining_parts(config) if parts is None else parts
    if head is not None and reads_pooler(config, head):
        parts = (*parts, "pooler")
    task = {} if head is None else task_parameters(config, head)
    return {**encoder_parameters(config), **pretraining_parameters(config, parts, teacher_size), **task}


def reads_pooler(config: EncoderConfig, head: HeadConfig) -> bool:
    """Return whether the head of a task reads BERT's pooler."""
    return head.kind in POOLED and not config.task_transform and not head.features


def encoder_parameters(config: EncoderConfig) -> ParameterTable:
    """Return the entries of embeddings, layers and final norm; "layer" has an entry for each set of parameters."""
    hidden = Axis("hidden", config.hidden_size)
    final_norm = norm("final_norm", hidden, bias=_norm_bias(config)) if config.norm_position == "pre" else ()
    return _scaled(config, [*_embeddings(config, hidden), *layers_of(config).parameters(), *final_norm])


def word_axis(config: EncoderConfig) -> Axis:
    """Return the axis of the features of the embedding tables."""
    return Axis("hidden" if config.embedding_size is None else "embedding", config.word_size)


def pretraining_parameters(
    config: EncoderConfig, parts: tuple[str, ...], teacher_size: int | None = None
) -> ParameterTable:
    """Return the entries of those of MODEL_PARTS that are in `parts`, and of the map to states of `teacher_size`."""
    hidden, vocab = Axis("hidden", config.hidden_size), Axis("vocab", config.padded_vocab_size)
    entries: list[Parameter] = []
    if "pooler" in parts:
        entries += linear("pooler", (hidden,), (hidden,), bias=config.use_bias, used="per_text")
    if "mlm" in parts and config.word_head == "tied":
        entries += _word_head("mlm", config, hidden, vocab)
    elif "mlm" in parts:
        entries += [Parameter("mlm/table", (vocab, hidden), used="per_prediction")]
        if config.word_head == "affine":
            entries += [Parameter("mlm/bias", (vocab,), decays=False)]
    if "next_sentence" in parts:
        entries += linear("next_sentence", (hidden,), (Axis("pair_class", 2),), used="per_text")
    if "replaced_tokens" in parts:
        entries += linear("replaced_tokens/dense", (hidden,), (hidden,))
        entries += linear("replaced_tokens/output", (hidden,), (Axis("feature", 1),))
    if "mask_decoder" in parts:
        rows = Axis("position", config.max_position_embeddings)
        entries += [Parameter(MASK_DECODER, (rows, hidden), used="looked_up")]
    if "span_boundary" in parts:
        places, place = Axis("feature", SPAN_PLACES), Axis("feature", SPAN_PLACE_SIZE)
        beside = Axis("feature", 2 * config.hidden_size + SPAN_PLACE_SIZE)
        entries += [Parameter("span_boundary/place/table", (places, place), used="looked_up")]
        entries += linear("span_boundary/dense", (beside,), (hidden,), (), config.use_bias, "per_prediction")
        entries += norm("span_boundary/norm", hidden, bias=_norm_bias(config))
        entries += _word_head("span_boundary/words", config, hidden, vocab)
    if teacher_size is not None:
        # Like all that a teacher adds to a step, its operations are not counted.
        wide = Axis("feature", teacher_size)
        entries += linear(STATE_PROJECTION, (hidden,), (wide,), bias=False, used="uncounted")
    return _scaled(config, entries)


def word_parameters(config: EncoderConfig, arrays: Mapping[str, tuple[str, ...]]) -> ParameterTable:
    """Return the entries of the `word_arrays` of an objective; those of one number per word do not decay."""
    axes = {"vocab": Axis("vocab", config.padded_vocab_size), "hidden": Axis("hidden", config.hidden_size)}
    return table(
        Parameter(path, tuple(axes[name] for name in names), decays=len(names) > 1, used="looked_up")
        for path, names in arrays.items()
    )


def _word_head(path: str, config: EncoderConfig, hidden: Axis, vocab: Axis):
    """Return the entries of a head that predicts words with the word table."""
    if not config.two_streams:
        yield from linear(f"{path}/dense", (hidden,), (word_axis(config),), (), config.use_bias, "per_prediction")
        yield from norm(f"{path}/norm", word_axis(config), bias=_norm_bias(config))
    yield Parameter(f"{path}/bias", (vocab,), decays=False, used="word_logits")


def task_parameters(config: EncoderConfig, head: HeadConfig) -> ParameterTable:
    """Return the entries of the head of a fine-tuned model and of its CRF; vectors have none."""
    # The BiLSTM on features has a width of its own, and reads an encoder that is not trained.
    return table(_head(config, head)) if head.features else _scaled(config, _head(config, head))


def token_parameters(config: EncoderConfig, size: int | None) -> ParameterTable:
    """Return the entries of the map of states to vectors of tokens with `size` features; None: there is no such map."""
    if size is None:
        return {}
    vectors = linear(TOKEN_VECTORS, (Axis("hidden", config.hidden_size),), (Axis("feature", size),), bias=False)
    return _scaled(config, vectors)


WIDE = ("hidden", "intermediate", "embedding", "heads")
"""Axes that are wider in a wider model; in the following arrays they have the name feature, or are read crosswise."""
WIDE_BY_PATH = {"head/dense/kernel": (True, True), "span_boundary/dense/kernel": (True, True)}
WIDE_BY_PATH |= {"head/kernel": (True, False), "mlm/table": (True, False)}
WORD_NORMS = ("mlm/norm/", "span_boundary/words/norm/")
"""Norms whose output is multiplied with the word table."""
QUERIES = ("encoder/attention/query", "encoder/attention/position_query")
BRANCH_ENDS = ("encoder/attention/output/", "encoder/feed_forward/output/")
"""Maps that end a residual branch."""
BRANCH_NORMS = ("encoder/attention_norm/", "encoder/feed_forward_norm/")


def _scaled(config: EncoderConfig, entries: Iterable[Parameter]) -> ParameterTable:
    """Return the table of these entries, with what `config.scaling` makes of initial values and rates.

    For a width of m times the base, a kernel with two wide sides has 1/√m of its initial values and 1/m of its rate, a
    map from states to a few outputs 1/m of both, and everything else is as in the base. Factors of the function are in
    initial values and rate too, since the updates of Adam and Muon do not depend on the scale of a gradient: with a
    weight c·w in place of c times w, both times c is the same training. They are 1/m of the word logits, in the norm
    before the word table, those of scores, in the queries, and that of a branch, in the map that ends it.
    """
    if not isinstance(config, ModelConfig) or config.scaling is None:
        return table(entries)
    scaling = config.scaling
    return table(_scaled_entry(config, scaling, entry) for entry in entries)


def _scaled_entry(config: ModelConfig, scaling: Scaling, entry: Parameter) -> Parameter:
    times, depth, exponent = scaling.width(config), scaling.depth(config), scaling.depth_exponent
    initial = rate = width = 1.0
    wide = _wide_sides(entry)
    if wide == (True, True):
        initial, rate, width = times**-0.5, 1 / times, times
    elif wide == (True, False) or entry.path.startswith(WORD_NORMS):
        initial, rate = 1 / times, 1 / times
    if entry.path.startswith(QUERIES):
        initial, rate = initial * scaling.scores(config), rate * scaling.scores(config)
    if entry.path.startswith(BRANCH_ENDS):
        initial, rate = initial * depth**-exponent, rate / depth
    elif config.norm_position == "post" and entry.path.startswith(BRANCH_NORMS):
        rate /= depth  # it is no part of a branch: all of it reaches the states
    elif entry.part == "encoder" and not entry.path.startswith("encoder/convolution/"):
        rate *= depth ** (exponent - 1)
    return dataclasses.replace(entry, initial=initial, rate=rate, width=width)


def _wide_sides(entry: Parameter) -> tuple[bool, bool]:
    """Return whether a map has more inputs, and more outputs, in a wider model; of what is no map, (False, True)."""
    if entry.path in WIDE_BY_PATH:
        return WIDE_BY_PATH[entry.path]
    axes = [axis.name in WIDE for axis in entry.axes if axis.name not in (*LAYER_AXES, "every_layer", "head_size")]
    if not entry.decays or len(axes) < 2:
        return False, True
    return (True, True) if sum(axes) > 1 else (axes[0], axes[-1])


def _embeddings(config: EncoderConfig, hidden: Axis):
    tables, width = [("word", Axis("vocab", config.padded_vocab_size))], word_axis(config)
    if config.two_streams:
        yield Parameter("embeddings/word/table", (tables[0][1], hidden), embedding=True)
        yield Parameter("embeddings/target", (Axis("feature", 1), Axis("feature", 1), hidden), embedding=True)
        return
    if config.position_table is not None:
        tables.append(("position", Axis("position", config.max_position_embeddings)))
    if config.type_vocab_size:
        tables.append(("token_type", Axis("token_type", config.type_vocab_size)))
    for name, rows in tables:
        yield Parameter(f"embeddings/{name}/table", (rows, width), embedding=True)
    if config.has_layers and config.embedding_norm:
        yield from norm("embeddings/norm", width, embedding=True, bias=_norm_bias(config))
    if config.embedding_size is not None:
        for entry in linear("embeddings/projection", (width,), (hidden,)):
            yield dataclasses.replace(entry, embedding=True)
    if config.valued_layers:
        values, layers = Axis("hidden", config.value_size), Axis("mixed_layer", len(config.valued_layers))
        yield Parameter("embeddings/value/table", (tables[0][1], values), embedding=True)
        yield Parameter("embeddings/value/scale", (layers,), decays=False, embedding=True)


EVERY_LAYER = Axis("every_layer", 1)
LESS = ("sel", "dots", "full")
"""Policies of recomputation that keep less than everything."""


class Layers(Protocol):
    """The layers of an encoder in plain numbers."""

    @property
    def keeps_all(self) -> bool:
        """Whether a compiled step keeps all that differentiation asks for, of unrolled layers too."""
        ...

    @property
    def no_attention(self) -> str:
        """The beginning of errors about layers that have no attention; empty for those that have."""
        ...

    def parameters(self) -> Iterable[Parameter]:
        """Return the entries of their arrays; "layer" has an entry for each set of parameters."""
        ...

    def kept(self, remat: str, value_bytes: int) -> tuple[int, int]:
        """Return the bytes that one of them keeps of a token for the backward pass, and of each score of all heads.

        Args:
          remat: the policy.
          value_bytes: of an activation.
        """
        ...


@dataclasses.dataclass(frozen=True)
class NoLayers:
    """No `Layers`, as of an encoder that is a table of words."""

    keeps_all: bool = False
    no_attention: str = "static word vectors (model.layer=none) have no layers"

    def parameters(self) -> Iterable[Parameter]:
        return ()

    def kept(self, remat: str, value_bytes: int) -> tuple[int, int]:
        del remat, value_bytes
        return 0, 0


@dataclasses.dataclass(frozen=True)
class RecurrentLayers:
    """The `Layers` of models/lstm.py, whose scan over time keeps all."""

    config: RecurrentConfig
    keeps_all: bool = True
    no_attention: str = "the layers of this model are recurrent (model.layer=lstm)"

    def parameters(self) -> Iterable[Parameter]:
        size = self.config.direction_size
        layers, gates = Axis("layer", self.config.parameter_sets), Axis("gate", 4 * size)
        for direction in ("forward", "backward") if self.config.two_directions else ("forward",):
            path = f"encoder/{direction}"
            yield Parameter(f"{path}/kernel", (layers, Axis("hidden", size), gates))
            yield Parameter(f"{path}/recurrent", (layers, Axis("lstm_state", size), gates))
            yield Parameter(f"{path}/bias", (layers, gates), decays=False)

    def kept(self, remat: str, value_bytes: int) -> tuple[int, int]:
        hidden = self.config.hidden_size
        inside = 12 * FLOAT32 * hidden  # the four gates before and after, states and sum
        return value_bytes * hidden + (0 if remat in LESS else inside), 0


@dataclasses.dataclass(frozen=True)
class AttentionLayers:
    """The `Layers` of BERT's relatives and of XLNet: attention and a feed-forward network."""

    config: AttentionConfig
    """Sizes of the model."""
    keeps_all: bool = False
    """See `Layers`."""
    no_attention: str = ""
    """See `Layers`."""

    def parameters(self) -> Iterable[Parameter]:
        """See `Layers`."""
        return _encoder(self.config)

    def kept(self, remat: str, value_bytes: int) -> tuple[int, int]:
        """See `Layers`."""
        config, hidden, wide = self.config, self.config.hidden_size, self.config.feed_forward_size
        shared = 2 * config.key_heads * config.head_size  # keys and values, before each group of queries has its own
        inner = wide if config.feed_forward == "plain" else 2 * wide  # between the kernels: with the gate
        # Norms keep three float32 arrays each, the activation function six of its width.
        everything = value_bytes * (6 * hidden + 5 * wide + inner) + hidden * 2 * 3 * FLOAT32
        variances = 2 * 2 * FLOAT32  # and means, of both norms
        if config.query_key_norm:
            everything += (hidden + shared // 2) * 3 * FLOAT32
            variances += (config.num_heads + config.key_heads) * FLOAT32
        if config.valued_layers:
            everything += value_bytes * config.value_size
        linear = {
            "sel": value_bytes * (5 * hidden + shared + inner) + variances,
            "dots": value_bytes * (4 * hidden + shared + inner),
            "full": value_bytes * hidden,
        }.get(remat, everything)
        return linear, config.num_heads * (FLOAT32 + value_bytes)


def layers_of(config: EncoderConfig) -> Layers:
    """Return the layers of an encoder, by its kind."""
    match config:
        case RecurrentConfig():
            return RecurrentLayers(config)
        case WordVectorsConfig():
            return NoLayers()
        case _:
            return AttentionLayers(config)


def _encoder(config: AttentionConfig):
    hidden = Axis("hidden", config.hidden_size)
    attention, feed_forward = (
        (Axis("layer", 1 if config.sharing == part else config.parameter_sets),)
        for part in ("attention", "feed_forward")
    )
    heads = (Axis("heads", config.num_heads), Axis("head_size", config.head_size))
    wide, bias, norm_bias = Axis("intermediate", config.feed_forward_size), config.layers_have_bias, _norm_bias(config)
    later = config.num_layers - 1
    normed = attention if config.first_attention_norm else (Axis("later_layer", later),)
    deberta = config.disentangled
    if deberta is not None:
        yield from _relative_positions(deberta, hidden, heads, attention)
    if config.relative_bias is not None:
        # It decays as tables do: softmax ignores a constant added to all buckets of a head, and decay removes it.
        rows = Axis("distance", config.relative_bias.bias_buckets)
        yield Parameter("encoder/relative_bias/table", (EVERY_LAYER, rows, heads[0]), embedding=True, used="uncounted")
    maps, attention_bias = ["query", "key", "value"], bias
    if config.two_streams:
        maps, attention_bias = [*maps, "distance"], False
        yield from _relative_attention(heads, attention)
    shared = (Axis("heads", config.key_heads), heads[1])
    for name in maps:
        of_map = shared if name in ("key", "value") else heads
        biased = attention_bias and (name != "key" or deberta is None or deberta.key_bias)
        yield from linear(f"encoder/attention/{name}", (hidden,), of_map, attention, biased, MAPS[name])
    if config.query_key_norm:
        for name in ("query_norm", "key_norm"):
            yield from norm(f"encoder/attention/{name}", heads[1], attention, bias=False)
    yield from linear("encoder/attention/output", heads, (hidden,), attention, attention_bias)
    if later or config.first_attention_norm:
        yield from norm("encoder/attention_norm", hidden, normed, bias=norm_bias)
    if config.feed_forward != "plain":
        yield from linear("encoder/feed_forward/gate", (hidden,), (wide,), feed_forward, bias)
    yield from linear("encoder/feed_forward/intermediate", (hidden,), (wide,), feed_forward, bias)
    yield from linear("encoder/feed_forward/output", (wide,), (hidden,), feed_forward, bias)
    yield from norm("encoder/feed_forward_norm", hidden, feed_forward, bias=norm_bias)
    if config.convolution is not None:
        first, places = (Axis("first_layer", 1),), Axis("feature", config.convolution.convolution_width)
        yield from linear("encoder/convolution/dense", (places, hidden), (hidden,), first, bias)
        yield from norm("encoder/convolution/norm", hidden, first, bias=norm_bias)


def _relative_positions(options: DisentangledConfig, hidden: Axis, heads: tuple[Axis, ...], layers: tuple[Axis, ...]):
    """Yield the entries of the table of relative positions, and of its maps to queries and keys."""
    once = (EVERY_LAYER,)
    rows = Axis("distance", 2 * options.reach)
    # The maps of the table are multiplied once per step, and it is read as a whole.
    yield Parameter("encoder/relative/table", (*once, rows, hidden), embedding=True, used="uncounted")
    if options.table_norm:
        yield from norm("encoder/relative/norm", hidden, once, embedding=True)
    if options.c2p and not options.shared_projections:
        yield from linear("encoder/attention/position_key", (hidden,), heads, layers, options.key_bias, "uncounted")
    if options.p2c and not options.shared_projections:
        yield from linear("encoder/attention/position_query", (hidden,), heads, layers, used="uncounted")


def _relative_attention(heads: tuple[Axis, Axis], layers: tuple[Axis, ...]):
    """Yield the entries of what XLNet compares with distances and segments."""
    for name in ("content_bias", "distance_bias", "segment_bias"):
        yield Parameter(f"encoder/attention/{name}", (*layers, *heads), decays=False)
    yield Parameter("encoder/attention/segments", (*layers, Axis("token_type", 2), *heads), used="uncounted")


def _norm_bias(config: EncoderConfig) -> bool:
    return config.norm == "layer_norm" and config.norm_bias


def _head(config: EncoderConfig, head: HeadConfig):
    if head.kind == "vectors":
        return
    label = Axis("label", head.outputs)
    if head.features:
        yield from _bilstm(config, head, label)
    else:
        hidden = Axis("feature", config.hidden_size)  # not "hidden": the head is small and stays whole on every device
        if config.task_transform:
            yield from linear("head/dense", (hidden,), (hidden,), (), config.use_bias, "per_prediction")
            yield from norm("head/norm", hidden, bias=_norm_bias(config))
        yield from linear("head", (hidden,), (label,), used="per_prediction")
    if head.crf:
        yield Parameter("crf/transitions", (label, label), used="uncounted")
        yield Parameter("crf/start", (label,), used="uncounted")
        yield Parameter("crf/end", (label,), used="uncounted")


def mixed_layers(config: EncoderConfig, head: HeadConfig) -> int:
    """Return how many states of a token head.features adds up with weights that are learned; 0 if it has none."""
    every = {"weighted_all": config.num_layers, "weighted_with_embeddings": config.num_layers + 1}
    return {"weighted_last_four": 4, **every}.get(head.features, 0)


def _bilstm(config: EncoderConfig, head: HeadConfig, label: Axis):
    features = Axis("feature", config.hidden_size * (4 if head.features == "concat_last_four" else 1))
    state, both = Axis("lstm_state", head.lstm_size), Axis("feature", 2 * head.lstm_size)
    gates = Axis("gate", 4 * head.lstm_size)
    for layer, inputs in enumerate((features, both)):
        for direction in ("forward", "backward"):
            path = f"head/layer_{layer}/{direction}"
            yield Parameter(f"{path}/kernel", (inputs, gates))
            yield Parameter(f"{path}/recurrent", (state, gates), used="uncounted")
            yield Parameter(f"{path}/bias", (gates,), decays=False)
    yield from linear("head", (both,), (label,), used="per_prediction")
    if mixed_layers(config, head):
        mixed = Axis("mixed_layer", mixed_layers(config, head))
        yield Parameter("head/mix/weights", (mixed,), used="uncounted")
        yield Parameter("head/mix/scale", (), used="uncounted")


GENERATOR = "generator"
"""First key of the paths of what is the generator's alone; the discriminator has the paths of any BERT."""
DIFFERENCE = "delta"
"""Last key of the paths of differences from the generator's tables, in place of table."""

DISCRIMINATOR_PARTS = ("replaced_tokens",)


def generator_parts(objective: ReplacedTokens) -> tuple[str, ...]:
    """Return the parts of a generator on its encoder; see MODEL_PARTS."""
    return ("mlm", *objective.parts)


def is_shareable(path: str) -> bool:
    """Return whether an array is of the embeddings, and not as wide as the layers of a part or their values."""
    return path.startswith("embeddings/") and not path.startswith(("embeddings/projection/", "embeddings/value/"))


def is_difference(path: str) -> bool:
    """Return whether a discriminator with disentangled embeddings stores a difference in place of this array."""
    return is_shareable(path) and path.endswith("/table")


def difference_path(path: str) -> str:
    """Return the path of the difference of the table at `path`."""
    return path.removesuffix("table") + DIFFERENCE


def joined(discriminator: ParameterTable, generator: ParameterTable, embeddings: EmbeddingSharing) -> ParameterTable:
    """Return the table of both parts; arguments are the tables of each on its own."""
    disentangled = embeddings == "disentangled"
    entries = [
        dataclasses.replace(entry, path=difference_path(path)) if disentangled and is_difference(path) else entry
        for path, entry in discriminator.items()
    ]
    entries += [
        dataclasses.replace(entry, path=f"{GENERATOR}/{path}")
        for path, entry in generator.items()
        if embeddings != "shared" or not is_shareable(path)
    ]
    return table(entries)
