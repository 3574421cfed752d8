"""Options of the analysis of spelling errors: noise."""

import dataclasses

from bert_jax.config.analyses.analysis_options import AnalysisConfig
from bert_jax.config.noise import EDITS, ErrorUnit, NoiseConfig, check_noise
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpellingConfig(AnalysisConfig):
    """analyze noise MODEL --input=FILE --output=DIR [--rates=0,0.05,0.1]

    Put spelling errors into texts, at several rates. Measure how well a pre-trained model still finds hidden words
    among them, or how well a fine-tuned one still answers, and into how many pieces the words break.

    MODEL is anything that bert_jax.load opens, such as a work directory or one checkpoint of it
    (RUN/checkpoints/step_000001000). The input of a fine-tuned model is the labelled dev set of its task: the file, or
    the directory of the files under their original names. All of it is read.
    """

    texts: int = 1_000
    """Number of texts to draw at random from the input. 0: all of them, in their order. A dev set is read in full."""
    max_length: int | None = 128
    """Tokens per text, [CLS] and [SEP] included; longer texts are cut, and the texts of a task as in its fine-tuning.
    None: as many as the model has positions."""
    rates: tuple[float, ...] = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
    """Probabilities of an error, ascending, separated by commas."""
    per: ErrorUnit = "character"
    """Unit of the rates. character: each letter or digit is edited with this probability. word: each word gets one
    edit with this probability."""
    kinds: tuple[str, ...] = EDITS
    """Edits to draw from: insert, delete, substitute, swap, neighbour (a key next to the right one)."""
    task: str = ""
    """Task of a fine-tuned MODEL. By default the one recorded with it."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work; called before a model is opened."""
        super().check()
        if not self.rates or any(low >= high for low, high in zip(self.rates, self.rates[1:], strict=False)):
            raise UserError(
                f"rates={','.join(map(str, self.rates))} must be ascending numbers, at least one, such as 0,0.05,0.1"
            )
        for rate in self.rates:
            check_noise(NoiseConfig(rate=rate, per=self.per, kinds=self.kinds), "")
