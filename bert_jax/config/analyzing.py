"""Options of `bert-jax analyze`, per analysis, as frozen dataclasses; standard library only.

The docstring of an analysis is its help: its usage, then what it does.
"""

import dataclasses
from typing import Literal

from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisConfig:
    """What all analyses share: the texts that the model reads, and where the result goes."""

    input: str
    """Texts: files, directories or globs, local or gs://, separated by commas, as for prepare. Each line that is not
    blank is one text."""
    output: str
    """Directory for result.json and the pictures. Started again with the same model, input and options, the command
    takes the result from there."""
    texts: int = 2_000
    """Number of texts to draw at random from the input. 0: all of them, in their order."""
    seed: int = 0
    """Seed of whatever is drawn at random."""
    batch_size: int = 32
    """Number of texts that the model reads at once."""
    max_length: int | None = None
    """Tokens per text, [CLS] and [SEP] included; longer texts are cut. None: as many as the model has positions."""
    format: Literal["auto", "text", "jsonl", "wikiextractor"] = "auto"
    """Format of the input. auto: by the file name, as for prepare."""
    text_field: str = "text"
    """Name of the field that holds the text in JSON lines."""


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
    vectors: Literal["mean", "cls", "token"] = "mean"
    """What represents a text in each layer. mean: the mean of its tokens. cls: the first token, [CLS]. token: one of
    its tokens, drawn at random, the same one in all layers; the two models then need the same tokenizer."""
    minibatch: int = 256
    """Number of texts from which the similarity is estimated at a time. The estimates are averaged; they are unbiased
    for any number from 4 on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class IsotropyConfig(AnalysisConfig):
    """analyze isotropy MODEL --input=FILE --output=DIR

    Measure how evenly the vectors of texts fill the space, layer by layer: mean cosines, the partition function, the
    spectrum of the covariance.

    MODEL is anything that bert_jax.load opens, such as a work directory or one checkpoint of it
    (RUN/checkpoints/step_000001000).
    """

    vectors: Literal["mean", "cls", "token"] = "mean"
    """What represents a text in each layer. mean: the mean of its tokens. cls: the first token, [CLS]. token: one of
    its tokens, drawn at random."""
    sts: str = ""
    """File of STS-B, dev.tsv or train.tsv, whose judgements are compared with the cosines of every layer, by mean and
    cls, before and after centring, component removal and whitening, which are fitted on the input. By default nothing
    is."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimilarityConfig(AnalysisConfig):
    """analyze similarity MODEL --input=FILE --output=DIR [--word=WORD --senses=FILE]

    Measure how much the vector of a word depends on its context, layer by layer, and whether the senses of one word
    come apart.

    MODEL is anything that bert_jax.load opens, such as a work directory or one checkpoint of it
    (RUN/checkpoints/step_000001000).
    """

    words: int = 100
    """Number of words to measure, drawn at random from those that occur in enough texts."""
    contexts: int = 16
    """Number of texts in which each of these words is measured."""
    word: str = ""
    """A word to look at in the texts of --senses, such as bank. By default none is."""
    senses: str = ""
    """File with a line for each text that has the word: a name for its sense, a tab, the text. Not needed without
    --word."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """analyze attention MODEL --text=TEXT --output=DIR [--pair=TEXT]

    Show who attends to whom in a text or a pair of texts: a page to explore every layer and head, and a picture of all.

    MODEL is anything that bert_jax.load opens, such as a work directory or one checkpoint of it
    (RUN/checkpoints/step_000001000).
    """

    text: str
    """The text that the model reads."""
    output: str
    """Directory for index.html, result.json and the pictures."""
    pair: str = ""
    """A second text, read after the first as a pair. By default there is none."""
    max_length: int | None = None
    """Tokens of the text, special ones included; a longer one is cut. None: as many as the model has positions."""


ANALYSES = {"cka": CkaConfig, "isotropy": IsotropyConfig, "similarity": SimilarityConfig, "attention": AttentionConfig}


def check_analysis(options: AnalysisConfig | AttentionConfig) -> None:
    """Raise a UserError if an option that all analyses share cannot work."""
    if isinstance(options, AttentionConfig):
        if not options.output.strip():
            raise UserError("output is empty; give the directory of the result")
        return
    for name, least in (("texts", 0), ("batch_size", 1)):
        if getattr(options, name) < least:
            raise UserError(f"{name}={getattr(options, name)} must be at least {least}")
    for name in ("input", "output"):
        if not getattr(options, name).strip():
            raise UserError(f"{name} is empty; give the {'texts' if name == 'input' else 'directory of the result'}")
    if isinstance(options, SimilarityConfig) and (not options.word) != (not options.senses):
        raise UserError(
            f"word={options.word or 'nothing'} and senses={options.senses or 'nothing'}: give both, "
            "--word=WORD --senses=FILE, or neither"
        )
