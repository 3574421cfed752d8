"""The share of texts that are longer than the model reads, and the value of an option that keeps them whole."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Uncut:
    """Lengths of the texts of E examples before any of them was cut."""

    lengths: np.ndarray
    """int64 [E]: number of tokens of each sequence with its [CLS] and [SEP] (multiple choice: of the longest
    candidate's); for SQuAD, of each question alone."""
    limit: int
    """Maximum length; longer texts are cut to it."""
    noun: str
    """What is cut: texts, pairs or questions."""
    option: str = "max_length"
    """The option that sets `limit`."""
    most: int | None = None
    """Highest possible value of the option; None: as many tokens as the model has positions."""

    @property
    def share(self) -> float:
        """Share of the examples that are cut."""
        return float(np.mean(self.lengths > self.limit))

    def describe(self, split: str, allowed: str) -> str:
        """Return a sentence on how many examples of `split` (its name, or "") are longer than `allowed`."""
        return (
            f"{np.sum(self.lengths > self.limit):,} of {len(self.lengths):,} {split}{' ' * bool(split)}{self.noun} "
            f"({100 * self.share:.1f} %) are longer than {allowed} (median {np.median(self.lengths):.0f}) and are cut"
        )

    def advise(self, split: str, positions: int) -> str:
        """Return `describe` with the value of the option that cuts nothing or, if there is none, the fewest.

        Args:
          positions: number of positions of the model, the maximum length of a sequence.
        """
        longest, most = int(self.lengths.max()), positions if self.most is None else self.most
        if longest <= most:
            remedy = f"--options.{self.option}={longest} keeps all of them"
        elif most > self.limit:
            share = 100 * np.mean(self.lengths > most)
            remedy = f"--options.{self.option}={most}, the most there is room for, cuts {share:.1f} %"
        else:
            remedy = "there is room for no more"
        return f"{self.describe(split, f'options.{self.option}={self.limit} tokens')}; {remedy}"
