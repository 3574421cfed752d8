"""Options of the analyses of words: similarity."""

import dataclasses

from bert_jax.config.analyses.analysis_options import AnalysisConfig
from bert_jax.errors import UserError


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
    """Word to look at in the texts of --senses, such as bank. By default there is none."""
    senses: str = ""
    """File with a line for each text that contains the word: a name for its sense, a tab, the text. It goes with
    --word."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work; called before a model is opened."""
        super().check()
        if (not self.word) != (not self.senses):
            raise UserError(
                f"word={self.word or 'nothing'} and senses={self.senses or 'nothing'}: give both, "
                "--word=WORD --senses=FILE, or neither"
            )
