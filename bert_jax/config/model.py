"""Size and form of a model as frozen dataclasses: kinds of layers.

An encoder is one of four kinds, with exactly the options that it has: Transformer layers, which are BERT's and those of
most of its family (`ModelConfig`), XLNet's, recurrent ones, or none. Standard library only.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

from bert_jax.config.heads import TextState
from bert_jax.config.options import check_kinds, kinds, option
from bert_jax.config.positions import Alibi, Learned, LearnedBias, NoPositions, PositionTable, Rope
from bert_jax.errors import UserError, need_no_negative, need_positive, need_share


@dataclasses.dataclass(frozen=True, kw_only=True)
class Window:
    """Layers whose tokens see only those near them."""

    local_window: int = 64
    """Number of tokens that local layers see to either side. None: there are no local layers."""
    global_every: int = 3
    """Every n-th layer sees the whole sequence, beginning with the first; with 0 none does, and time and memory of the
    model grow linearly with the length."""
    global_tokens: int = 0
    """Number of tokens at the start of each text that see all of its tokens and that all of them see, also in local
    layers."""

    def of_layer(self, layer: int) -> int | None:
        """Return the number of tokens that a layer sees to either side; None: the whole sequence."""
        return None if self.global_every and layer % self.global_every == 0 else self.local_window

    def check(self, model: "ModelConfig") -> None:
        """Raise a UserError if the window restricts nothing."""
        need_no_negative(self, "model.", "global_every", "global_tokens")
        if not 0 < self.local_window < model.max_position_embeddings:
            raise UserError(
                f"model.local_window={self.local_window} must be between 1 and model.max_position_embeddings - 1 = "
                f"{model.max_position_embeddings - 1}; for a window that restricts nothing, set "
                "model.local_window=None"
            )

    def check_length(self, longest: int) -> None:
        """Raise a UserError if the window restricts nothing in the longest sequences of a run."""
        if self.local_window >= longest - 1:
            raise UserError(
                f"model.local_window={self.local_window} tokens to either side reach from one end of the longest "
                f"sequences to the other (sequence_length={longest}), so it restricts nothing; set it to "
                f"{longest - 2} at most, or to None"
            )
        if self.global_tokens >= longest:
            raise UserError(
                f"model.global_tokens={self.global_tokens} are all tokens of the longest sequences "
                f"(sequence_length={longest}), so a window restricts nothing; give fewer, such as 1"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DisentangledConfig:
    """Relative positions in the scores of attention (He et al. 2021, arXiv 2006.03654 and 2111.09543).

    In addition to content·content, a score has up to two terms: the content of the query with the relative position of
    the key (c2p), and the relative position of the query with the content of the key (p2c). The sum of n terms is
    divided by √(n·D) for heads of size D. All layers read one table of relative positions.
    """

    terms: Literal["c2p", "p2c", "c2p+p2c"] = "c2p+p2c"
    """Terms of the scores in addition to content·content. none: ordinary attention."""
    max_distance: int = 512
    """Distance from which all distances are treated alike (max_relative_positions in published files)."""
    buckets: int | None = None
    """Number of buckets for the distances to either side. Half of them are one distance each; the others grow
    logarithmically up to max_distance (version 2 and 3: 256). None: every distance below max_distance has its own
    (version 1)."""
    shared_projections: bool = False
    """Whether the content's query and key projections are also used for relative positions (version 3). Otherwise
    relative positions have projections of their own."""
    table_norm: bool = False
    """Whether a LayerNorm follows the table of relative positions (version 2 and 3)."""
    key_bias: bool = True
    """Whether the maps to keys add a bias. Version 1 has none, neither for content nor for relative positions."""

    @property
    def c2p(self) -> bool:
        """Whether the content of queries meets relative positions."""
        return self.terms in ("c2p", "c2p+p2c")

    @property
    def p2c(self) -> bool:
        """Whether the content of keys meets relative positions."""
        return self.terms in ("p2c", "c2p+p2c")

    @property
    def count(self) -> int:
        """Number of terms of a score, content·content included."""
        return 1 + self.c2p + self.p2c

    @property
    def reach(self) -> int:
        """Number R of relative positions to either side; the table has 2R rows."""
        return self.max_distance if self.buckets is None else self.buckets

    def check(self, model: "ModelConfig") -> None:
        """Raise a UserError if a value is out of range, or the model has another form than a DeBERTa."""
        if not isinstance(model.positions, NoPositions | Learned):
            raise UserError(
                f"model.positions={model.positions.chosen_by['positions']} cannot be combined with "
                f"model.disentangled.terms={self.terms}; set model.positions=none, as in DeBERTa, or learned"
            )
        for name in ("use_bias", "layer_bias"):
            if not getattr(model, name):
                raise UserError(
                    f"model.{name}=False cannot be combined with model.disentangled.terms, because no DeBERTa has that "
                    f"form; set model.{name}=True"
                )
        if model.key_heads != model.num_heads:
            raise UserError(
                f"model.key_value_heads={model.key_value_heads} cannot be combined with model.disentangled.terms, "
                "because no DeBERTa has that form; set model.key_value_heads=None"
            )
        if model.value_embeddings != "none":
            raise UserError(
                f"model.value_embeddings={model.value_embeddings} cannot be combined with model.disentangled.terms, "
                "because no DeBERTa has that form; set model.value_embeddings=none"
            )
        if model.query_key_norm:
            raise UserError(
                f"model.query_key_norm=True normalizes one of the products of a score, and model.disentangled.terms="
                f"{self.terms} adds others to it; set model.query_key_norm=False"
            )
        if self.max_distance < 1:
            raise UserError(f"model.disentangled.max_distance={self.max_distance} must be positive; DeBERTa has 512")
        if self.buckets is None:
            return
        if self.buckets < 2:
            raise UserError(
                f"model.disentangled.buckets={self.buckets} must be at least 2, since half of the buckets are one "
                "distance each; DeBERTa-v3 has 256, and None means a bucket for every distance"
            )
        if self.max_distance < self.buckets // 2 + 2:
            raise UserError(
                f"model.disentangled.max_distance={self.max_distance} leaves nothing for the wider half of "
                f"model.disentangled.buckets={self.buckets}; it must be at least {self.buckets // 2 + 2}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution of the embeddings, added to each token after the first layer (DeBERTa v2 in its larger sizes)."""

    convolution_width: int = 3
    """Number of neighbouring tokens, itself included, whose embeddings a convolution adds to each token after the first
    layer, where a norm follows (DeBERTa v2 in its two larger sizes: 3). 0: there is no convolution."""
    convolution_activation: Literal["tanh", "gelu_erf"] = "tanh"
    """Activation of that convolution; the published models have gelu_erf."""

    def check(self, model: "ModelConfig") -> None:
        """Raise a UserError if there can be no such convolution, or not in this model."""
        width, widest = self.convolution_width, 2 * model.max_position_embeddings - 1
        if width < 0 or width % 2 == 0 or width > widest:
            raise UserError(
                f"model.convolution_width={width} must be odd, so that as many tokens are seen on the left as on the "
                f"right, and at most {widest}, which reaches across the longest sequence; DeBERTa v2 has 3, and 0 "
                "means none"
            )
        for name, allowed, reason in (
            ("norm_position", "post", "has no norm after a layer"),
            ("direction", "both", "must not see the tokens after it"),
        ):
            if (value := getattr(model, name)) != allowed:
                raise UserError(
                    f"model.convolution_width={width} cannot be combined with model.{name}={value}, which {reason}; "
                    f"set model.convolution_width=0, or model.{name}={allowed}"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaling:
    """A base model, whose initial values and learning rates are to hold for wider and deeper ones (μP).

    The widths are those of Yang et al. 2022 (Tensor Programs V, arXiv 2203.03466), the depth that of Yang et al. 2023
    (VI, arXiv 2310.02244) or of Dey et al. 2025 (arXiv 2505.01618). All of it is in initial values and in a factor of
    each array's learning rate, so the model is an ordinary one once it is trained.
    """

    base_hidden_size: int = 128
    """Width of the base model, for which initializer_range and learning rates are meant. A model that is m times as
    wide has the same m times intermediate_size, embedding_size and, with heads of one size, num_heads; its kernels
    begin smaller and learn more slowly. None: nothing is scaled."""
    base_head_size: int | None = None
    """Size of the heads of the base model. Scores of larger heads begin as if they were divided by their size, not by
    its root. None: heads have the size of those, and a wider model has more of them."""
    base_num_layers: int | None = None
    """Number of layers of the base model. What each layer of a deeper model adds begins smaller, and layers learn more
    slowly. None: layers are as if the base had as many."""
    depth_exponent: float = option(0.5, of=("base_num_layers",))
    """Exponent of the depth in that: what a layer of a model r times as deep adds is divided by r^depth_exponent, and
    the rates of its inner maps by r^(1 − depth_exponent). 0.5 is that of Tensor Programs VI, 1 that of CompleteP (Dey
    et al. 2025)."""

    def width(self, model: "ModelConfig") -> float:
        """Return how many times as wide as the base a model is."""
        return model.hidden_size / self.base_hidden_size

    def depth(self, model: "ModelConfig") -> float:
        """Return how many times as deep as the base a model is."""
        return 1.0 if self.base_num_layers is None else model.num_layers / self.base_num_layers

    def scores(self, model: "ModelConfig") -> float:
        """Return by what scores are multiplied so that heads of D values divide by D, and those of the base by √D."""
        return 1.0 if self.base_head_size is None else math.sqrt(self.base_head_size / model.head_size)

    def check(self, model: "ModelConfig") -> None:
        """Raise a UserError if a value is out of range."""
        del model
        need_positive(self, "model.scaling.", "base_hidden_size", "base_head_size", "base_num_layers")
        if not 0.5 <= self.depth_exponent <= 1:
            raise UserError(
                f"model.scaling.depth_exponent={self.depth_exponent} must be from 0.5, with which what the layers add "
                "stays as large as it is in the base model, to 1"
            )


DEFAULT_VOCAB_SIZE = 30_522  # BERT uncased

RetrainedOption = Literal[
    "direction", "rope_theta", "rope_local_theta", "local_window", "global_every", "global_tokens"
]
"""Options that need no other parameters, but that others fit: training adapts these to another value."""

OUTSIDE_THE_FUNCTION = (
    *("vocab_size", "vocab_pad_multiple", "max_position_embeddings"),  # numbers of rows: what a row means stays
    *("hidden_dropout", "attention_dropout", "recurrent_dropout"),  # only while it is trained
    *("initializer_range", "scaled_outputs", "zero_outputs", "position_init"),  # only before it is trained
    "scaling",  # only before and while it is trained
    "pair_head",  # a head on top of the encoder, which a model has or lacks
)
"""Options of a model with which the same parameters compute the same function; with another value of any other, a
new one included, they compute another."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _EncoderOptions:
    """Options of every kind of encoder."""

    vocab_size: int | None = None
    """Number of entries of the vocabulary. None: taken from the token store."""
    vocab_pad_multiple: int = 1
    """The number of rows of the embedding table is rounded up to a multiple of this; 128 lets a pod shard it. The extra
    rows are never predicted."""
    hidden_size: int = 768
    """Width of each layer, and of the embeddings unless embedding_size is given."""
    max_position_embeddings: int = 512
    """Number of rows of the position table, hence the length of the longest sequence that the model can read (but see
    padding_id)."""
    activation: Literal["gelu_tanh", "gelu_erf", "silu", "relu_squared"] = "gelu_tanh"
    """Activation of plain feed-forward layers, of geglu's gates, and of the heads of pre-training. Google's code uses
    the tanh approximation of GELU; Hugging Face runs its checkpoints with the exact form (erf). NomicBERT has silu.
    relu_squared: max(x, 0)² (Primer; So et al. 2021, arXiv 2109.08668), with plain feed-forward layers only."""
    hidden_dropout: float = 0.1
    """Dropout rate on the embeddings and on both residual branches of each layer."""
    layer_norm_epsilon: float = 1e-12
    """Constant added to the variance in LayerNorm."""
    initializer_range: float = 0.02
    """Standard deviation of the normal distribution of initial weights before truncation at two standard deviations,
    which leaves 0.88 times this value."""
    pooler: Literal["tanh", "relu", "gelu_erf"] = "tanh"
    """Activation of the affine map of the first position that heads read: tanh (BERT), relu (DistilBERT) or gelu_erf
    (ELECTRA)."""
    norm: Literal["layer_norm", "rms_norm"] = "layer_norm"
    """The normalization. rms_norm divides by the root mean square; it does not centre and has no bias."""
    norm_bias: bool = True
    """Whether layer_norm adds a bias."""

    chosen_by: ClassVar[Mapping[str, str]] = {}
    """The options that choose it, and their values."""
    has_layers: ClassVar[bool] = True
    """Whether there are layers, through which the vector of a word depends on the words around it."""
    trains_specials: ClassVar[bool] = True
    """Whether [CLS] and [SEP] get a meaning in pre-training, so that the vector of a text is made of theirs too."""

    def __post_init__(self) -> None:
        check_kinds(self, "model.")

    @property
    def spelled(self) -> str:
        """The options that choose this kind, as errors name it: model.layer=lstm."""
        return " and ".join(f"model.{tag}={value}" for tag, value in self.chosen_by.items())

    @property
    def two_streams(self) -> bool:
        """Whether tokens are predicted in a second stream of states."""
        return False

    @property
    def two_directions(self) -> bool:
        """Whether there are networks in both directions, which never see each other's states."""
        return False

    @property
    def predicts_ahead(self) -> int:
        """Places from a state to the token that it predicts: 1 from left to right, else 0."""
        return 0

    @property
    def reads_last_token(self) -> bool:
        """Whether poolers and classifiers read the last token of a text instead of the first."""
        return False

    @property
    def text_state(self) -> TextState:
        """The state that stands for a text where nothing pools it otherwise."""
        return "last" if self.reads_last_token else "first"

    @property
    def score_terms(self) -> int:
        """Number of products of a score of attention."""
        return 1

    @property
    def global_tokens(self) -> int:
        """Number of tokens at the start of each text that see, and are seen by, all of its tokens in every layer."""
        return 0

    @property
    def attention_heads(self) -> int:
        """Number of attention heads of a layer; 0 for layers that do not attend."""
        return 0

    @property
    def head_size(self) -> int:
        """Width of one attention head; 0 where there is none."""
        return self.hidden_size // self.attention_heads if self.attention_heads else 0

    @property
    def needs_even_heads(self) -> bool:
        """Whether positions turn the features of a head in pairs."""
        return False

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Number of tokens that each layer that attends sees to either side; None: the whole sequence."""
        return ()

    @property
    def word_size(self) -> int:
        """Width of the embedding tables."""
        return self.hidden_size

    @property
    def position_table(self) -> PositionTable | None:
        """The table of positions that is added to the words, if there is one."""
        return None

    @property
    def relative_bias(self) -> LearnedBias | None:
        """What is added to the scores by distance and learned, if anything is."""
        return None

    @property
    def padding_id(self) -> int | None:
        """Token id from which positions count; see `Learned.padding_id`."""
        return None if self.position_table is None else self.position_table.padding_id

    @property
    def first_position(self) -> int:
        """Row of the position table that the first token of a text has."""
        return 0 if self.padding_id is None else self.padding_id + 1

    @property
    def longest_sequence(self) -> int:
        """Number of tokens of the longest sequence that the model can read."""
        return self.max_position_embeddings - self.first_position

    @property
    def position_limit(self) -> int | None:
        """Number of tokens that a table of positions has rows for; None: they enter as distances, which have no end."""
        return None if self.position_table is None else self.longest_sequence

    def need_vocab_size(self) -> int:
        """Return `vocab_size` of a model that is trained or stored; ValueError if it is None."""
        if self.vocab_size is None:
            raise ValueError("model.vocab_size is None; a run takes it from its token store")
        return self.vocab_size

    @property
    def usual_vocab_size(self) -> int:
        """Number of entries of the vocabulary of published models of this form."""
        return DEFAULT_VOCAB_SIZE

    @property
    def assumed_vocab_size(self) -> int:
        """`vocab_size` or, where there are no data to take it from, that of the published models of this form."""
        return self.usual_vocab_size if self.vocab_size is None else self.vocab_size

    @property
    def padded_vocab_size(self) -> int:
        """Number of rows of the embedding table."""
        size = self.assumed_vocab_size
        return -(-size // self.vocab_pad_multiple) * self.vocab_pad_multiple

    def check(self) -> None:
        """Raise a UserError if a value is out of range."""
        need_positive(
            self,
            "model.",
            *("hidden_size", "max_position_embeddings", "vocab_pad_multiple", "layer_norm_epsilon"),
            "initializer_range",
        )
        need_share(self, "model.", "hidden_dropout", below_one=True)
        if self.vocab_size is not None and self.vocab_size < 6:
            raise UserError(
                f"model.vocab_size={self.vocab_size} leaves no room for words in addition to the five special tokens"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LayerOptions(_EncoderOptions):
    """Options of every kind of encoder with layers."""

    num_layers: int = 12
    """Number of layers of the encoder."""
    type_vocab_size: int = 2
    """Number of segment embeddings; next-sentence pairs need two. 0: there is no such table, as in DistilBERT."""
    pair_head: bool = True
    """Whether pre-training has a pooler and a head for the labels of data.sentence_pairs. False: it has neither, as in
    RoBERTa, DistilBERT and ELECTRA, and a task that needs a pooler starts with a fresh one."""
    sharing: Literal["none", "attention", "feed_forward", "all"] = "none"
    """Parameters that all layers share, each with the norm after it: none (BERT), attention, feed_forward, or all
    (ALBERT)."""
    layer_groups: int = option(1, of=("sharing", "all"))
    """Number of groups of layers, one above the other, each of which shares its own (ALBERT's num_hidden_groups)."""
    group_layers: int = option(1, of=("sharing", "all"))
    """Number of layers with parameters of their own that a group repeats (ALBERT's inner_group_num)."""

    logit_cap: float | None = option(None, before=None)
    """Bound c of the logits of words, which become c · tanh(x / c) (soft-capped logits; Gemma 2, arXiv 2408.00118: 30).
    None: they have no bound."""

    @property
    def parameter_sets(self) -> int:
        """Number of sets of the parameters of a layer: one for each layer, or those that layers share."""
        return self.layer_groups * self.group_layers if self.sharing == "all" else self.num_layers

    @property
    def set_of_layer(self) -> tuple[int, ...]:
        """Number of the set of parameters of each layer."""
        if self.sharing != "all":
            return tuple(range(self.num_layers))
        rounds = self.num_layers // self.group_layers
        groups = [int(turn / (rounds / self.layer_groups)) for turn in range(rounds)]
        return tuple(group * self.group_layers + layer for group in groups for layer in range(self.group_layers))

    def check(self) -> None:
        super().check()
        need_positive(self, "model.", "num_layers", "layer_groups", "group_layers", "logit_cap")
        if self.num_layers % self.group_layers or self.layer_groups > self.num_layers // self.group_layers:
            raise UserError(
                f"model.num_layers={self.num_layers} must be a multiple of model.group_layers={self.group_layers}, at "
                f"least model.layer_groups={self.layer_groups} times"
            )
        need_no_negative(self, "model.", "type_vocab_size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _AttentionOptions(_LayerOptions):
    """Options of every kind of encoder whose layers are attention and a feed-forward network."""

    num_heads: int = 12
    """Number of attention heads per layer. hidden_size must be a multiple of it."""
    intermediate_size: int | None = None
    """Width of the feed-forward layer. None: four times hidden_size, as in every published BERT."""
    attention_dropout: float = 0.1
    """Dropout rate on the attention probabilities."""
    scaled_outputs: bool = False
    """Whether the initial weights of the maps that end a residual branch (the output of attention, and that of the
    feed-forward network) are divided by √(2 · num_layers), so that a deep model's states grow no more than a shallow
    one's, as in Megatron and ModernBERT."""
    zero_outputs: bool = option(False, before=False)
    """Whether the initial weights of those maps are 0 instead, so that at first no branch adds anything to the
    embeddings, as in Fixup (Zhang et al. 2019, arXiv 1901.09321). They learn from the first step on, and what is below
    them from the second."""
    feed_forward: Literal["plain", "geglu", "swiglu"] = "plain"
    """Form of the feed-forward network. plain: an activation between two affine maps. geglu, swiglu: the product with a
    third map that has the activation (GELU; SiLU; Shazeer 2020)."""

    @property
    def attention_heads(self) -> int:
        return self.num_heads

    @property
    def key_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.num_heads

    @property
    def windows(self) -> tuple[int | None, ...]:
        return (None,) * self.num_layers

    @property
    def output_range(self) -> float:
        """Standard deviation of the initial maps that end a residual branch."""
        if self.zero_outputs:
            return 0.0
        return self.initializer_range / (math.sqrt(2 * self.num_layers) if self.scaled_outputs else 1)

    @property
    def feed_forward_size(self) -> int:
        """Width of the feed-forward layer, also if `intermediate_size` is None."""
        return 4 * self.hidden_size if self.intermediate_size is None else self.intermediate_size

    def check(self) -> None:
        super().check()
        need_positive(self, "model.", "num_heads", "intermediate_size")
        need_share(self, "model.", "attention_dropout", below_one=True)
        if self.scaled_outputs and self.zero_outputs:
            raise UserError(
                "model.scaled_outputs=True divides the initial weights that model.zero_outputs=True sets to 0; set one "
                "of them to False"
            )
        if self.activation == "relu_squared" and self.feed_forward != "plain":
            raise UserError(
                f"model.activation=relu_squared belongs to plain feed-forward layers, not to the gates of "
                f"model.feed_forward={self.feed_forward}; set model.feed_forward=plain, or another activation"
            )
        if self.hidden_size % self.num_heads:
            fits = [h for h in range(1, self.hidden_size + 1) if self.hidden_size % h == 0]
            near = sorted(fits, key=lambda h: abs(h - self.num_heads))[:3]
            raise UserError(
                f"model.hidden_size={self.hidden_size} is not divisible by model.num_heads={self.num_heads}; "
                f"numbers of heads that fit: {', '.join(map(str, sorted(near)))}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _FormOptions(_LayerOptions):
    """Options of the kinds of encoder that come in several forms: Transformer layers and recurrent ones."""

    embedding_size: int | None = None
    """Width of the embedding tables; an affine map then takes it to hidden_size (ALBERT: 128). None: hidden_size,
    without a map."""
    norm_position: Literal["post", "pre"] = "post"
    """Whether LayerNorm follows each residual branch, or recurrent layer (post, as in BERT), or precedes it (pre)."""
    use_bias: bool = True
    """Whether the affine maps of attention and feed-forward layers, pooler and the transform of the
    masked-language-model head add a bias; that of the word logits always has one."""
    direction: Literal["both", "left_to_right"] = "both"
    """Tokens that each token sees: those on both sides (BERT), or itself and those before it, as in GPT and in the
    model without bidirectionality that the paper compares BERT with (section 5.1). Poolers and classifiers then read
    the last token of a text, the only one that sees all of it."""
    task_transform: bool = False
    """Whether the head of a task begins with a layer like that of the masked-language-model head (dense → activation →
    norm), as in ModernBERT, and there is no pooler."""
    positions: Learned | LearnedBias | Rope | Alibi | NoPositions = kinds(Learned())
    """Encoding of the order of the tokens."""

    @property
    def predicts_ahead(self) -> int:
        return int(self.direction == "left_to_right")

    @property
    def reads_last_token(self) -> bool:
        return self.predicts_ahead == 1

    @property
    def position_table(self) -> PositionTable | None:
        return self.positions if isinstance(self.positions, PositionTable) else None

    @property
    def relative_bias(self) -> LearnedBias | None:
        return self.positions if isinstance(self.positions, LearnedBias) else None

    @property
    def usual_vocab_size(self) -> int:
        forms = (
            (self.padding_id is not None and self.relative_bias is not None, 30_527),  # MPNet
            (self.padding_id is not None, 50_265),  # RoBERTa
            (self.sharing == "all", 30_000),  # ALBERT
            (self.task_transform, 50_368),  # ModernBERT
        )
        return next((size for fits, size in forms if fits), DEFAULT_VOCAB_SIZE)

    @property
    def word_size(self) -> int:
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    def check(self) -> None:
        super().check()
        need_positive(self, "model.", "embedding_size")
        self.positions.check(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(_FormOptions, _AttentionOptions):
    """The encoder of Devlin et al. 2018, section 3, and its Transformer relatives; the defaults are BERT-base."""

    chosen_by: ClassVar[Mapping[str, str]] = {"layer": "transformer"}
    layer_bias: bool = option(True, of=("feed_forward", "geglu", "swiglu"))
    """With feed_forward=geglu or swiglu, whether the maps within layers have the biases of use_bias. False: only
    those of pooler and heads have them, as in NomicBERT."""
    key_value_heads: int | None = option(None, of=("norm_position", "pre"))
    """With norm_position=pre, the number of heads of keys and values, of which num_heads must be a multiple: so many
    neighbouring heads of queries share each of them (grouped-query attention, Ainslie et al. 2023). None: num_heads, as
    in BERT."""
    embedding_norm: bool = option(True, of=("norm_position", "pre"))
    """With norm_position=pre, whether the sum of the embeddings is normalized. NeoBERT and EuroBERT do without."""
    query_key_norm: bool = option(False, before=False)
    """Whether queries and keys are divided by their root mean square in each head, with a scale that is learned, before
    positions turn them (QK-norm; Henry et al. 2020, arXiv 2010.04245), so that no score outgrows the softmax."""
    value_embeddings: Literal["none", "ends", "all"] = option("none", before="none")
    """Layers that add vectors of the words themselves to the values of their attention, times a factor of each layer
    that is learned and begins at 1: none, the first and the last (ends), or all (modded-nanogpt, Jordan et al. 2024).
    The vectors are a second table of words, the same for all those layers."""
    word_head: Literal["tied", "affine", "linear"] = option("tied", of=("norm_position", "pre"))
    """With norm_position=pre, the head that predicts masked words. tied: dense → activation → norm, and the word table
    with a bias (BERT). affine: a table of its own with a bias, and no layer before it (NeoBERT). linear: the same
    without the bias (EuroBERT)."""
    first_attention_norm: bool = option(True, of=("norm_position", "pre"))
    """With norm_position=pre, whether the first attention has a norm before it. ModernBERT has none there, because the
    embeddings have just been normalized."""
    window: Window | None = kinds(None, absent={"local_window": None})
    """Layers whose tokens see only those near them. None: every layer sees the whole sequence."""
    disentangled: DisentangledConfig | None = kinds(None, nested=True, absent={"terms": "none"})
    """Attention whose scores depend on relative positions (DeBERTa)."""
    convolution: Convolution | None = kinds(None, absent={"convolution_width": 0})
    """A convolution of the embeddings, added to each token after the first layer (DeBERTa v2 in its larger sizes)."""
    scaling: Scaling | None = kinds(None, nested=True, absent={"base_hidden_size": None}, before=None)
    """A base model, whose initial values and learning rates are to hold for this one, which is wider or deeper (μP)."""

    @property
    def spelled(self) -> str:
        return f"{super().spelled} and model.positions={self.positions.chosen_by['positions']}"

    @property
    def layers_have_bias(self) -> bool:
        """Whether the affine maps within layers add a bias."""
        return self.use_bias and self.layer_bias

    @property
    def key_heads(self) -> int:
        return self.num_heads if self.key_value_heads is None else self.key_value_heads

    @property
    def needs_even_heads(self) -> bool:
        return isinstance(self.positions, Rope)

    @property
    def valued_layers(self) -> range:
        """Numbers of the layers whose values vectors of words are added to."""
        step = max(1, self.num_layers - 1) if self.value_embeddings == "ends" else 1
        return range(0, 0 if self.value_embeddings == "none" else self.num_layers, step)

    @property
    def value_size(self) -> int:
        """Width of the values of all heads."""
        return self.key_heads * self.head_size

    @property
    def windows(self) -> tuple[int | None, ...]:
        return tuple(None if self.window is None else self.window.of_layer(layer) for layer in range(self.num_layers))

    @property
    def global_tokens(self) -> int:
        return 0 if self.window is None else self.window.global_tokens

    @property
    def score_terms(self) -> int:
        return 1 if self.disentangled is None else self.disentangled.count

    @property
    def output_range(self) -> float:
        layers = None if self.scaling is None else self.scaling.base_num_layers
        if layers is None or not self.scaled_outputs:
            return super().output_range
        return self.initializer_range / math.sqrt(2 * layers)  # the rest of the depth is that of `scaling`

    @property
    def usual_vocab_size(self) -> int:
        if self.disentangled is None or self.padding_id is not None:
            return super().usual_vocab_size
        return 50_265 if self.disentangled.buckets is None else 128_100

    def check(self) -> None:
        super().check()
        need_positive(self, "model.", "key_value_heads")
        if self.num_heads % self.key_heads:
            raise UserError(
                f"model.num_heads={self.num_heads} is not divisible by model.key_value_heads={self.key_heads}; give a "
                "divisor, or None for as many"
            )
        if not self.first_attention_norm and self.sharing != "none":
            raise UserError(
                f"model.first_attention_norm=False makes the first layer different, but with model.sharing="
                f"{self.sharing} layers share parameters; set model.sharing=none"
            )
        for part in (self.window, self.disentangled, self.convolution, self.scaling):
            if part is not None:
                part.check(self)


class _UniformLayers:
    """Constants of the kinds whose layers are all alike."""

    window: ClassVar[None] = None
    """No layer has a window."""
    disentangled: ClassVar[None] = None
    """Scores have no terms of relative positions as in DeBERTa."""
    convolution: ClassVar[None] = None
    """No convolution follows the first layer."""
    scaling: ClassVar[None] = None
    """Initial values and rates are those of the options, whatever the size."""
    first_attention_norm: ClassVar[bool] = True
    """All layers are of one form."""
    query_key_norm: ClassVar[bool] = False
    """No norms of queries and keys."""
    value_embeddings: ClassVar[Literal["none"]] = "none"
    """No layer adds vectors of words to its values."""
    valued_layers: ClassVar[range] = range(0)
    """No layer does."""
    value_size: ClassVar[int] = 0
    """There are no such vectors."""
    embedding_norm: ClassVar[bool] = True
    """The embeddings of a model with layers are normalized, except in XLNet."""
    word_head: ClassVar[Literal["tied"]] = "tied"
    """Words are predicted with the word table."""


class _FixedForm(_UniformLayers):
    """Constants of XLNets and encoders without layers."""

    embedding_size: ClassVar[None] = None
    """Embeddings are as wide as the layers."""
    norm_position: ClassVar[Literal["post"]] = "post"
    """There is no norm after the last layer."""
    direction: ClassVar[Literal["both"]] = "both"
    """Tokens are not read from left to right."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class XLNetConfig(_FixedForm, _AttentionOptions):
    """XLNet (Yang et al. 2019): tokens are predicted in a second stream of states, in a random order.

    Attention compares queries with the distance to each key, and with whether both are in the same segment. Embeddings
    are words alone and not normalized, logits of words have no transform, and poolers and classifiers read the last
    token.
    """

    chosen_by: ClassVar[Mapping[str, str]] = {"layer": "transformer", "positions": "xlnet"}
    use_bias: ClassVar[bool] = True
    """The affine maps outside attention add a bias."""
    layers_have_bias: ClassVar[bool] = True
    """So do those of the feed-forward networks."""
    task_transform: ClassVar[bool] = False
    """Heads of tasks read the pooler."""

    @property
    def two_streams(self) -> bool:
        return True

    @property
    def reads_last_token(self) -> bool:
        return True

    @property
    def score_terms(self) -> int:
        return 2

    @property
    def usual_vocab_size(self) -> int:
        return 32_000

    def check(self) -> None:
        super().check()
        if self.hidden_size % 2:
            raise UserError(
                f"model.hidden_size={self.hidden_size} is odd, but model.positions=xlnet encodes distances by as many "
                "sines as cosines; make it even"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentConfig(_UniformLayers, _FormOptions):
    """Recurrent networks in place of attention and feed-forward (LSTM, Hochreiter & Schmidhuber 1997), in float32.

    With direction=both, two networks of half the width, one in each direction, which never see each other's states
    (ELMo, Peters et al. 2018); otherwise one of the whole width (ULMFiT, Howard & Ruder 2018).
    """

    chosen_by: ClassVar[Mapping[str, str]] = {"layer": "lstm"}
    recurrent_dropout: float = 0.0
    """Dropout rate on the weights from state to state (DropConnect; Merity et al. 2018): the same ones for all tokens
    of all sequences of a batch, or of a micro-batch. Fine-tuning keeps the rate unless --dropout is given. ULMFiT has
    0.5."""
    sharing: Literal["none", "all"] = "none"
    """Whether all layers share their parameters."""
    positions: Learned | NoPositions = kinds(Learned())
    """Encoding of the order of the tokens."""

    @property
    def two_directions(self) -> bool:
        return self.direction == "both"

    @property
    def text_state(self) -> TextState:
        """The state of both ends, each of the direction that has read the text by then; else as elsewhere."""
        return "ends" if self.two_directions else super().text_state

    @property
    def direction_size(self) -> int:
        """Width of one direction of recurrent layers."""
        return self.hidden_size // 2 if self.two_directions else self.hidden_size

    def check(self) -> None:
        super().check()
        need_share(self, "model.", "recurrent_dropout", below_one=True)
        if self.two_directions and self.hidden_size % 2:
            raise UserError(
                f"model.hidden_size={self.hidden_size} cannot be divided between the two directions of "
                "model.layer=lstm; make it even"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordVectorsConfig(_FixedForm, _EncoderOptions):
    """No layers and no norm of the embeddings: a word has one vector everywhere; poolers read the mean of a text."""

    chosen_by: ClassVar[Mapping[str, str]] = {"layer": "none"}
    has_layers: ClassVar[bool] = False
    """There are none."""
    trains_specials: ClassVar[bool] = False
    """Special tokens are nobody's neighbours: their vectors stay as they were drawn."""
    num_layers: ClassVar[int] = 0
    """There are no layers."""
    type_vocab_size: ClassVar[int] = 0
    """There are no segments."""
    pair_head: ClassVar[bool] = False
    """There is no head for pairs."""
    sharing: ClassVar[Literal["none"]] = "none"
    """There are no layers that could share parameters."""
    parameter_sets: ClassVar[int] = 0
    """Number of sets of the parameters of a layer."""
    logit_cap: ClassVar[None] = None
    """There are no logits of words."""
    use_bias: bool = True
    """Whether the affine map of the pooler, and that of a task head with task_transform, add a bias."""
    task_transform: bool = False
    """Whether the head of a task begins with a layer (dense → activation → norm), and there is no pooler."""

    @property
    def text_state(self) -> TextState:
        """The mean of the words."""
        return "mean"


EncoderConfig = ModelConfig | XLNetConfig | RecurrentConfig | WordVectorsConfig
"""An encoder: one of the kinds, `--model.layer` and `--model.positions` on the command line."""
AttentionConfig = ModelConfig | XLNetConfig
"""An encoder whose layers attend."""
