"""Options that the analyses of texts share."""

import dataclasses
from typing import Literal

from bert_jax.errors import UserError

VectorKind = Literal["mean", "cls", "token"]
"""Vector that represents a text. mean: the mean over all tokens, [CLS] and [SEP] included, as `embed` does; cls: the
first token; token: one token that is neither, drawn at random."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisConfig:
    """Options of all analyses: the texts that the model reads, and the place of the result."""

    input: str
    """Texts: files, directories or globs, local or gs://, separated by commas, as for prepare. Each line that is not
    blank is one text."""
    output: str
    """Directory for result.json and the pictures. The same command with the same model and input reads an existing
    result from there."""
    texts: int = 2_000
    """Number of texts to draw at random from the input. 0: all of them, in their order."""
    seed: int = 0
    """Seed of everything that is drawn at random."""
    batch_size: int = 32
    """Number of texts that the model reads at once."""
    max_length: int | None = None
    """Tokens per text, [CLS] and [SEP] included; longer texts are cut. None: as many as the model has positions."""
    format: Literal["auto", "text", "jsonl", "wikiextractor"] = "auto"
    """Format of the input. auto: by the file name, as for prepare."""
    text_field: str = "text"
    """Name of the field that holds the text in JSON lines."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work; called before a model is opened."""
        for name, least in (("texts", 0), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise UserError(f"{name}={getattr(self, name)} must be at least {least}")
        for name in ("input", "output"):
            if not getattr(self, name).strip():
                raise UserError(
                    f"{name} is empty; give the {'texts' if name == 'input' else 'directory of the result'}"
                )
