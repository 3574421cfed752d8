"""Options of the cleaning of a corpus, as a frozen dataclass; standard library only."""

import dataclasses
from typing import Literal

from bert_jax.errors import UserError

RULE_SETS = ("gopher", "c4")
"""Names of the published sets of rules about the quality of a document."""

SHORTEST_OVERLAP = 8
"""Words: evaluation texts with fewer are ordinary phrases and not searched for, as in GPT-3 (Brown et al. 2020)."""

LEAST_SIMILARITY = 0.5
"""Least value of clean.near_threshold."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CleaningConfig:
    """Repairs of a corpus, and removals from it: none by default. data/cleaning/cleaner.py has the order of
    the steps."""

    unicode: Literal["keep", "repair"] = "keep"
    """Treatment of the characters. repair: text that was decoded wrongly (“schÃ¶n”) is corrected, curly quotes and
    ligatures become plain, and the result is normalized to NFC."""
    languages: tuple[str, ...] = ()
    """Languages to keep, as ISO 639 codes such as en,de. A document whose most probable language is a different one is
    removed. Empty: every document is kept, and no language is identified."""
    quality: tuple[str, ...] = ()
    """Sets of rules that a document must satisfy: gopher (Rae et al. 2021), c4 (Raffel et al. 2020), or both, separated
    by a comma."""
    decontaminate: str = ""
    """Evaluation sets whose texts are removed from the corpus: files, or directories, of which only the files for
    development and testing are read; separated by commas. They are TSV, CSV, JSON, JSON lines (GLUE, SQuAD, …) or text
    with an item per line."""
    overlap: int = 13
    """Number of consecutive words that a paragraph must share with an evaluation set to be removed; used with
    decontaminate only. A shorter text, of at least 8 words, must occur in full."""
    contacts: Literal["keep", "remove"] = "keep"
    """Treatment of e-mail addresses and telephone numbers. remove: they are cut out of the text."""
    phone_region: str = "US"
    """Two-letter code of the country whose telephone numbers are recognized without +; used with contacts=remove only.
    """
    deduplicate: Literal["keep", "exact", "near"] = "keep"
    """Duplicates that are removed, after all other steps. exact: documents that are the same,
    and paragraphs of at least 100 characters. near: documents that are similar as well."""
    near_threshold: float = 0.8
    """Similarity from which documents are near duplicates, from 0.5 to 1; used with deduplicate=near only. It is the
    Jaccard similarity of their sets of five consecutive words, as MinHash estimates it."""

    @property
    def cleans(self) -> bool:
        """Whether there is anything to do to a document on its own."""
        return any(
            (
                self.unicode != "keep",
                self.languages,
                self.quality,
                self.decontaminate,
                self.contacts != "keep",
            )
        )

    @property
    def similarity(self) -> float | None:
        """The least similarity of near duplicates; None if they are not looked for."""
        return self.near_threshold if self.deduplicate == "near" else None


def check_cleaning(clean: CleaningConfig) -> None:
    """Raise a UserError that names option, value and remedy if a value can be seen to be wrong without a library."""
    unknown = [name for name in clean.quality if name not in RULE_SETS]
    if unknown or len(set(clean.quality)) < len(clean.quality):
        raise UserError(
            f"clean.quality={','.join(clean.quality)} must be some of {', '.join(RULE_SETS)}, each once; "
            "leave it out to keep every document"
        )
    if len(set(clean.languages)) < len(clean.languages):
        raise UserError(f"clean.languages={','.join(clean.languages)} names a language twice")
    if clean.overlap < SHORTEST_OVERLAP:
        raise UserError(f"clean.overlap={clean.overlap} must be at least {SHORTEST_OVERLAP} words; 13 is usual")
    if not LEAST_SIMILARITY <= clean.near_threshold <= 1:
        raise UserError(
            f"clean.near_threshold={clean.near_threshold} must be from {LEAST_SIMILARITY} to 1; 0.8 is usual, and "
            "documents that are less similar are different texts"
        )
