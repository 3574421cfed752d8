"""Options of the analyses of attention: attention."""

import dataclasses

from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """analyze attention MODEL --text=TEXT --output=DIR [--pair=TEXT]

    Show who attends to whom in a text or a pair of texts: a page to explore every layer and head, and a picture of all.

    MODEL is anything that bert_jax.load opens, such as a work directory or one checkpoint of it
    (RUN/checkpoints/step_000001000).
    """

    text: str
    """Text that the model reads."""
    output: str
    """Directory for index.html, result.json and the pictures."""
    pair: str = ""
    """Second text, read after the first as a pair. By default there is none."""
    max_length: int | None = None
    """Maximum number of tokens, special ones included; a longer text is cut. None: as many as the model has
    positions."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work; called before a model is opened."""
        if not self.output.strip():
            raise UserError("output is empty; give the directory of the result")
