"""Size and form of a model as frozen dataclasses: encoder, task head, text embedding, disentangled attention.

Standard library only.
"""

import dataclasses
import math
from typing import Literal

Combination = Literal[
    "last", "second_to_last", "sum_last_four", "concat_last_four", "weighted_last_four", "weighted_all"
]
"""Ways to combine several layers into one vector per token (models/pooling.py)."""
LayersRead = Literal["", "embeddings", Combination, "weighted_with_embeddings"]
"""Layers of a frozen encoder that a BiLSTM reads; "" for an encoder that is trained with its head."""
HeadPooling = Literal["cls", "mean"]
"""Input of the head of a task; see `HeadConfig.pooling`."""
TokenPooling = Literal["cls", "mean", "max", "mean_sqrt_len"]
"""Ways to combine the vectors of the tokens of a text; see `EmbeddingConfig.pooling`."""
Pooling = Literal[TokenPooling, "pooler"]
"""The same, or pooler: the vector of BERT's pooler."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The head on the encoder of a fine-tuned model; its parameters are head/kernel [H, C] and head/bias [C]."""

    kind: Literal["classification", "regression", "span", "choice", "tagging"] = "classification"
    """classification, regression and choice read the pooled [CLS]; span and tagging read every position."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of the columns (classification, tagging); empty for the other kinds."""
    dropout: float = 0.1
    """Dropout rate on the input of the head."""
    pooling: HeadPooling = "cls"
    """Input of classification, regression and choice in a model with task_transform: the first position, or the mean of
    all."""
    crf: bool = False
    """Whether a linear-chain CRF follows the scores (crf/transitions [C, C], crf/start [C], crf/end [C]); for tagging
    only."""
    features: LayersRead = ""
    """Layers of the frozen encoder that a two-layer BiLSTM reads, whose parameters are in head/ too (models/lstm.py;
    paper section 5.3). Kinds with one answer per text read the maximum of its outputs over the tokens. Empty: the
    encoder is trained."""
    lstm_size: int = 768
    """Width of the BiLSTM in each direction."""
    train_encoder: bool = False
    """Whether the encoder is trained with the BiLSTM after all, as that of the left-to-right model in the paper's
    table 5."""

    @property
    def outputs(self) -> int:
        """Number C of columns of head/kernel: one per label; 2 for span (start, end); 1 for regression and choice."""
        return {"span": 2, "regression": 1, "choice": 1}.get(self.kind) or len(self.labels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
    """Defaults of `model.embed`, which directories of sentence-transformers specify."""

    pooling: TokenPooling = "mean"
    """Vector of a text: that of [CLS], or the mean or the maximum of those of its tokens, or their sum divided by the
    square root of their number."""
    normalize: bool = False
    """Divide each vector by its Euclidean norm."""
    max_length: int | None = None
    """Maximum number of tokens per text, [CLS] and [SEP] included. None: as many as the model has positions."""
    lowercase: bool = False
    """Lowercase the text before it is tokenized, even with a cased vocabulary."""
    unsupported: str = ""
    """Description of what the directory asks for that is not supported; `embed` then requires an explicit pooling."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DisentangledConfig:
    """Relative positions in the scores of attention (He et al. 2021, arXiv 2006.03654 and 2111.09543).

    In addition to content·content, a score has up to two terms: the content of the query with the relative position of
    the key (c2p), and the relative position of the query with the content of the key (p2c). The sum of n terms is
    divided by √(n·D) for heads of size D. All layers read one table of relative positions.
    """

    terms: Literal["none", "c2p", "p2c", "c2p+p2c"] = "none"
    """Terms of the scores besides content·content. none: ordinary attention; the other options here have no effect."""
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


DEFAULT_VOCAB_SIZE = 30_522  # BERT uncased

OUTSIDE_THE_FUNCTION = (
    *("vocab_size", "vocab_pad_multiple", "max_position_embeddings"),  # numbers of rows: what a row means stays
    *("hidden_dropout", "attention_dropout", "recurrent_dropout"),  # only while it is trained
    *("initializer_range", "scaled_outputs", "position_init"),  # only before it is trained
    "pair_head",  # a head on top of the encoder, which a model has or lacks
)
"""Options of ModelConfig with which the same parameters compute the same function; with another value of any other, a
new one included, they compute another."""
OF_BERT = (
    *("hidden_size", "num_layers", "num_heads", "intermediate_size", "type_vocab_size"),
    *("activation", "layer_norm_epsilon", "norm_position", "padding_id"),
    *("rope_theta", "rope_local_theta", "rope_scale"),  # read only with positions=rope
    *("global_every", "global_tokens"),  # read only with local_window
)
"""Options in which BERT, RoBERTa and their like differ, or that have no effect on them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The encoder of Devlin et al. 2018, section 3; the defaults are BERT-base."""

    vocab_size: int | None = None
    """Number of entries of the vocabulary. None: taken from the token store."""
    vocab_pad_multiple: int = 1
    """The number of rows of the embedding table is rounded up to a multiple of this; 128 lets a pod shard it. The extra
    rows are never predicted."""
    hidden_size: int = 768
    """Width of each layer, and of the embeddings unless embedding_size is given."""
    embedding_size: int | None = None
    """Width of the three embedding tables; an affine map then takes it to hidden_size (ALBERT: 128). None: hidden_size,
    without a map."""
    num_layers: int = 12
    """Number of layers of the encoder."""
    num_heads: int = 12
    """Number of attention heads per layer. hidden_size must be a multiple of it."""
    intermediate_size: int | None = None
    """Width of the feed-forward layer. None: four times hidden_size, as in every published BERT."""
    max_position_embeddings: int = 512
    """Number of rows of the position table, hence the length of the longest sequence that the model can read (but see
    padding_id)."""
    type_vocab_size: int = 2
    """Number of segment embeddings; next-sentence pairs need two. 0: there is no such table, as in DistilBERT."""
    activation: Literal["gelu_tanh", "gelu_erf"] = "gelu_tanh"
    """Form of GELU in the feed-forward layers. Google's code uses the tanh approximation; Hugging Face runs its
    checkpoints with the exact form (erf)."""
    hidden_dropout: float = 0.1
    """Dropout rate on the embeddings and on both residual branches of each layer."""
    attention_dropout: float = 0.1
    """Dropout rate on the attention probabilities."""
    recurrent_dropout: float = 0.0
    """Dropout rate on the weights from state to state of layer=lstm (DropConnect; Merity et al. 2018): the same ones
    for all tokens of all sequences of a batch, or of a micro-batch. Fine-tuning keeps the rate unless --dropout
    is given. ULMFiT has 0.5."""
    layer_norm_epsilon: float = 1e-12
    """Constant added to the variance in LayerNorm."""
    initializer_range: float = 0.02
    """Standard deviation of the normal distribution of initial weights before truncation at two standard deviations,
    which leaves 0.88 times this value."""
    scaled_outputs: bool = False
    """Whether the initial weights of the maps that end a residual branch (the output of attention, and that of the
    feed-forward network) are divided by √(2 · num_layers), so that a deep model's states grow no more than a shallow
    one's, as in Megatron and ModernBERT."""
    norm_position: Literal["post", "pre"] = "post"
    """Whether LayerNorm follows each residual branch (post, as in BERT) or precedes it (pre)."""
    position_init: Literal["random", "sinusoidal"] = "random"
    """Initial value of the position table, which is learned either way."""
    padding_id: int | None = None
    """Token id P of the padding, from which positions count as in RoBERTa: a token has P + 1 + the number of real
    tokens before it, and padding has P, so the longest sequence has P + 1 tokens fewer than
    max_position_embeddings. None: positions are 0, 1, 2, … as in BERT."""
    sharing: Literal["none", "attention", "feed_forward", "all"] = "none"
    """Which parameters all layers share, each with the norm after it: none (BERT), attention, feed_forward, or all
    (ALBERT)."""
    pooler: Literal["tanh", "relu", "gelu_erf"] = "tanh"
    """Activation of the affine map of the first position that heads read: tanh (BERT), relu (DistilBERT) or gelu_erf
    (ELECTRA)."""
    pair_head: bool = True
    """Whether pre-training has a pooler and a head for the labels of data.sentence_pairs. False: it has neither, as in
    RoBERTa, DistilBERT and ELECTRA, and a task that needs a pooler starts with a fresh one."""
    positions: Literal["learned", "rope", "alibi", "xlnet", "none"] = "learned"
    """Encoding of the order of the tokens. learned: by a table that is added to the words. rope: queries and
    keys are turned by an angle that grows with their position (Su et al. 2021). alibi: scores fall with the distance
    (Press et al. 2022), as in MosaicBERT. xlnet: attention compares queries with the distance to each key, and with
    whether both are in the same segment (Yang et al. 2019). This option includes XLNet's embeddings, which are words
    alone and not normalized, logits of words without a transform, and poolers and classifiers that read the last token.
    none: not at all."""
    rope_theta: float = 10_000.0
    """Base of the wavelengths of rope in layers that see the whole sequence; longer sequences need a larger one."""
    rope_local_theta: float | None = None
    """Base of the wavelengths of rope in layers with a window. None: rope_theta."""
    rope_scale: float = 1.0
    """Factor by which positions are divided in layers that see the whole sequence, so that a model reads longer
    sequences than it was trained on (position interpolation, Chen et al. 2023)."""
    layer: Literal["transformer", "lstm", "none"] = "transformer"
    """Kind of layer. lstm: a recurrent network in place of attention and feed-forward (Hochreiter & Schmidhuber 1997),
    computed in float32; with direction=both, two networks of half the width, one in each direction, which never see
    each other's states (ELMo, Peters et al. 2018); otherwise one of the whole width (ULMFiT, Howard & Ruder 2018).
    none: there are no layers (num_layers=0) and no norm of the embeddings, so a word has one vector everywhere; poolers
    read the mean of a text."""
    direction: Literal["both", "left_to_right"] = "both"
    """Tokens that each token sees: those on both sides (BERT), or itself and those before it, as in GPT and in the
    model without bidirectionality that the paper compares BERT with (section 5.1). Poolers and classifiers then read
    the last token of a text, the only one that sees all of it."""
    local_window: int | None = None
    """Number of tokens that local layers see to either side. None: every layer sees the whole sequence."""
    global_every: int = 3
    """With local_window, every n-th layer sees the whole sequence, beginning with the first; with 0 none does, so that
    time and memory of the whole model grow linearly with the length."""
    global_tokens: int = 0
    """Number of tokens at the start of each text that see all of its tokens and that all of them see, also in local
    layers."""
    feed_forward: Literal["plain", "geglu", "swiglu"] = "plain"
    """Form of the feed-forward network. plain: an activation between two affine maps. geglu, swiglu: the product with a
    third map that has the activation (GELU; SiLU; Shazeer 2020)."""
    norm: Literal["layer_norm", "rms_norm"] = "layer_norm"
    """The normalization. rms_norm divides by the root mean square; it does not centre and has no bias."""
    norm_bias: bool = True
    """Whether layer_norm adds a bias."""
    use_bias: bool = True
    """Whether the affine maps of layers, pooler and the transform of the masked-language-model head add a bias; that
    of the word logits always has one."""
    first_attention_norm: bool = True
    """With norm_position=pre, whether the first attention has a norm before it. ModernBERT has none there, because the
    embeddings have just been normalized."""
    task_transform: bool = False
    """Whether the head of a task begins with a layer like that of the masked-language-model head (dense → activation →
    norm), as in ModernBERT, and there is no pooler."""
    disentangled: DisentangledConfig = DisentangledConfig()
    """Attention whose scores depend on relative positions (DeBERTa)."""
    convolution_width: int = 0
    """Number of neighbouring tokens, itself included, whose embeddings a convolution adds to each token after the first
    layer, where a norm follows (DeBERTa v2 in its two larger sizes: 3). 0: there is no convolution."""
    convolution_activation: Literal["tanh", "gelu_erf"] = "tanh"
    """Activation of that convolution; the published models have gelu_erf."""

    @property
    def beyond_bert(self) -> tuple[str, ...]:
        """Names of the options whose values make an encoder different from BERT, RoBERTa and their like."""
        return tuple(
            field.name
            for field in dataclasses.fields(self)
            if field.name not in (*OUTSIDE_THE_FUNCTION, *OF_BERT) and getattr(self, field.name) != field.default
        )

    @property
    def parameter_sets(self) -> int:
        """Number of sets of the parameters of a layer: one for each layer, or one that all layers share."""
        return 1 if self.sharing == "all" else self.num_layers

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Number of tokens that each layer sees to either side; None: the whole sequence."""
        every = self.global_every
        return tuple(
            None if self.local_window is None or every and layer % every == 0 else self.local_window
            for layer in range(self.num_layers)
        )

    @property
    def output_range(self) -> float:
        """Standard deviation of the initial maps that end a residual branch."""
        return self.initializer_range / (math.sqrt(2 * self.num_layers) if self.scaled_outputs else 1)

    @property
    def reads_last_token(self) -> bool:
        """Whether poolers and classifiers read the last token of a text instead of the first."""
        return self.direction == "left_to_right" or self.is_xlnet

    @property
    def is_xlnet(self) -> bool:
        """Whether it is an XLNet, whose tokens are predicted in a second stream of states."""
        return self.positions == "xlnet"

    @property
    def two_directions(self) -> bool:
        """Whether the layers are recurrent networks in both directions, which never see each other's states."""
        return self.layer == "lstm" and self.direction == "both"

    @property
    def direction_size(self) -> int:
        """Width of one direction of recurrent layers."""
        return self.hidden_size // 2 if self.two_directions else self.hidden_size

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def longest_sequence(self) -> int:
        """Number of tokens of the longest sequence that the model can read."""
        return self.max_position_embeddings - self.first_position

    @property
    def position_limit(self) -> int | None:
        """Number of tokens that a table of positions has rows for; None: they enter as distances, which have no end."""
        return self.longest_sequence if self.positions == "learned" else None

    @property
    def first_position(self) -> int:
        """Row of the position table that the first token of a text has."""
        return 0 if self.padding_id is None else self.padding_id + 1

    @property
    def word_size(self) -> int:
        """Width of the embedding tables, also if `embedding_size` is None."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def feed_forward_size(self) -> int:
        """Width of the feed-forward layer, also if `intermediate_size` is None."""
        return 4 * self.hidden_size if self.intermediate_size is None else self.intermediate_size

    def need_vocab_size(self) -> int:
        """Return `vocab_size` of a model that is trained or stored; ValueError if it is None."""
        if self.vocab_size is None:
            raise ValueError("model.vocab_size is None; a run takes it from its token store")
        return self.vocab_size

    @property
    def assumed_vocab_size(self) -> int:
        """`vocab_size` or, where there are no data to take it from, that of the published models of this form."""
        if self.vocab_size is not None:
            return self.vocab_size
        forms = (
            (self.padding_id is not None, 50_265),  # RoBERTa
            (self.is_xlnet, 32_000),
            (self.disentangled.terms != "none", 50_265 if self.disentangled.buckets is None else 128_100),  # DeBERTa
            (self.sharing == "all", 30_000),  # ALBERT
            (self.task_transform, 50_368),  # ModernBERT
        )
        return next((size for fits, size in forms if fits), DEFAULT_VOCAB_SIZE)

    @property
    def padded_vocab_size(self) -> int:
        """Number of rows of the embedding table."""
        size = self.assumed_vocab_size
        return -(-size // self.vocab_pad_multiple) * self.vocab_pad_multiple
