"""The text of a block as it is stored: documents without what the cleaning removes, each a list of paragraphs."""

import dataclasses

from bert_jax.data.cleaning.cleaner import Cleaner
from bert_jax.data.cleaning.step_record import StepRecord
from bert_jax.data.corpus.parsing import parse_block
from bert_jax.data.corpus.text_blocks import Block
from bert_jax.data.corpus.wrapping import join_lines
from bert_jax.data.store.manifest import Options
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class CleanText:
    """Contents of a block; see `parsing.BlockText` for the pieces. Pieces that were removed are empty."""

    pieces: list[list[str]]
    replaced: int
    removed: dict[str, int]
    records: list[StepRecord]  # what the steps of the cleaning did


class TextReader:
    """Reads blocks; calling it has no side effect."""

    def __init__(self, options: Options):
        """Prepare the cleaning, if any of it is wanted.

        Raises:
          UserError: the evaluation sets are not those of `options`.
        """
        self._options, clean = options, options.clean
        self._clean = Cleaner(clean, options.language) if clean.cleans else None
        contamination = self._clean and self._clean.contamination
        if contamination and contamination.fingerprint != options.evaluation_rows:
            raise UserError(f"clean.decontaminate={clean.decontaminate}: the files have changed; start again")

    def __call__(self, block: Block) -> CleanText:
        """Return the text of a block.

        Raises:
          UserError: see `parse_block`.
        """
        text = parse_block(block, self._options.text_field, self._options.bad_utf8)
        pieces, records = [], []
        for lines in text.pieces:
            if block.source.wrap_column:
                lines = join_lines(lines, block.source.wrap_column)
            if self._clean:
                cleaned = self._clean(lines)
                lines = cleaned.lines
                records += cleaned.records
            pieces.append(lines)
        return CleanText(pieces, text.replaced, text.removed, records)
