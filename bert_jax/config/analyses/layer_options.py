"""Options of the analyses of layers: cka, isotropy."""

import dataclasses

from bert_jax.config.analyses.analysis_options import AnalysisConfig, VectorKind


@dataclasses.dataclass(frozen=True, kw_only=True)
class CkaConfig(AnalysisConfig):
    """analyze cka MODEL --input=FILE --output=DIR [--other=MODEL]

    Compare the layers of a model, or those of two models or checkpoints, by linear CKA: 1 where two layers represent
    texts alike up to rotation and scale, 0 where they have nothing in common.

    MODEL is anything that bert_jax.load opens, such as a work directory or one checkpoint of it
    (RUN/checkpoints/step_000001000).
    """

    other: str = ""
    """Model to compare with. By default the layers of MODEL are compared with one another."""
    vectors: VectorKind = "mean"
    """Vector that represents a text in each layer. mean: the mean of its tokens. cls: the first token, [CLS]. token:
    one of its tokens, drawn at random, the same one in all layers; the two models then need the same tokenizer."""
    minibatch: int = 256
    """Number of texts in each estimate of the similarity. The estimates are averaged; they are unbiased for any number
    of at least 4."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class IsotropyConfig(AnalysisConfig):
    """analyze isotropy MODEL --input=FILE --output=DIR

    Measure how evenly the vectors of texts fill the space, layer by layer: mean cosines, the partition function, the
    spectrum of the covariance.

    MODEL is anything that bert_jax.load opens, such as a work directory or one checkpoint of it
    (RUN/checkpoints/step_000001000).
    """

    vectors: VectorKind = "mean"
    """Vector that represents a text in each layer. mean: the mean of its tokens. cls: the first token, [CLS]. token:
    one of its tokens, drawn at random."""
    sts: str = ""
    """File of STS-B, dev.tsv or train.tsv. Its judgements are compared with the cosines of every layer, by mean and
    cls, before and after centring, component removal and whitening, all fitted on the input. By default there is no
    such comparison."""
