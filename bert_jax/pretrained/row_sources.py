"""The stored rows of which each row of a resized table is made."""

import dataclasses
import re

import numpy as np

from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.tokenization.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class RowSources:
    """Row i of a new table is the mean of the stored rows `pieces[starts[i]:starts[i + 1]]`."""

    pieces: np.ndarray
    """int64 [P]: numbers of stored rows."""
    starts: np.ndarray
    """int64 [R + 1], strictly ascending: every one of the R rows has a source."""
    remark: str
    """How the table was resized, for people; empty if every row stays where it was."""

    @property
    def num_rows(self) -> int:
        return len(self.starts) - 1

    def read(self, stored: StoredArray, start: int, stop: int, rest: tuple[slice, ...]) -> np.ndarray:
        """Return rows start to stop, `rest` indexing the other axes, float32; read only the stored rows they span."""
        starts = self.starts[start : stop + 1]
        pieces = self.pieces[starts[0] : starts[-1]]
        first = int(pieces.min())
        rows = np.asarray(stored.read((slice(first, int(pieces.max()) + 1), *rest)), np.float32)
        sums = np.add.reduceat(rows[pieces - first], starts[:-1] - starts[0])
        return sums / np.diff(starts).astype(np.float32).reshape(-1, *(1,) * (rows.ndim - 1))


def vocabulary_sources(old: Tokenizer, new: Tokenizer, path: str) -> RowSources:
    """Return rows of the word table and of the MLM bias for `new`, from a model at `path` that was made with `old`.

    Entries are matched by their text, special tokens by their role, wherever they are. A new entry is the mean of what
    `old` read in its place, and so is its bias: a logit is affine in (row, bias), so in every context the new logit is
    the mean of its pieces' logits and never above the highest of them. With a bias of 0, or a small random row, a new
    word would start near logit 0, whereas the trained words that do not fit are far below, and would be predicted
    everywhere (Hewitt 2021, "Initializing new word embeddings for pretrained language models").

    Raises:
      UserError: the vocabularies differ in kind or casing, or have no entry in common.
    """
    if old.kind != new.kind or old.lowercase != new.lowercase:
        shown = [f"{'uncased' if one.lowercase else 'cased'} {one.kind}" for one in (old, new)]
        raise UserError(
            f"init_from={path} was trained with {shown[0]} text, but data.path was prepared as {shown[1]} text: "
            "its words would be different words. Prepare the corpus with that model's vocabulary, or one extended "
            f"from it, and --lowercase={str(old.lowercase).lower()}"
        )
    ids, roles = (
        {token: i for i, token in enumerate(old.tokens)},
        dict(zip(new.special_ids, old.special_ids, strict=True)),
    )
    known = {
        i: roles[i] if i in roles else ids[token] for i, token in enumerate(new.tokens) if i in roles or token in ids
    }
    if not any(i not in roles and not re.fullmatch(r"\[unused\d+\]", new.tokens[i]) for i in known):
        raise UserError(
            f"init_from={path} has no entry of its vocabulary of {old.vocab_size:,} in common with the one of "
            f"{new.vocab_size:,} that data.path was prepared with, so none of its knowledge of words could be used; "
            "prepare the corpus with that model's vocabulary, or leave init_from out"
        )
    spelled = [[known[i]] if i in known else old.spell(token) for i, token in enumerate(new.tokens)]
    return _sources(spelled, _vocabulary_remark(old, known, spelled))


def position_sources(old: int, new: int, first: int = 0) -> RowSources:
    """Return rows of the position table: the first ones stay, later ones repeat rows `first` + 1 to `old` - 1 in order.

    Attention of a trained BERT looks at neighbours by their distance, which repeated rows keep everywhere but at the
    seam. Interpolated rows would change every distance, and fresh ones have to be learned: Longformer (Beltagy et al.
    2020, table 5) measures, in bits per character before any further training, 10.3 with fresh rows from 512 to 4,096,
    1.96 with repeated ones, and 1.85 for the original model. Row `first`, that of the first token, is not repeated, as
    only [CLS] was ever there.
    """
    rows = np.arange(new)
    second = min(first + 1, old - 1)
    pieces = np.where(rows < old, rows, second + (rows - old) % (old - second))
    remark = (
        ""
        if new == old
        else (
            f"{old:,} → {new:,} rows: "
            + (f"rows from {old:,} on repeat rows {second:,} to {old - 1:,}" if new > old else "the last ones cut off")
        )
    )
    return RowSources(pieces, np.arange(new + 1), remark)


def _sources(rows: list[list[int]], remark: str) -> RowSources:
    starts = np.cumsum([0, *map(len, rows)])
    return RowSources(np.fromiter((piece for row in rows for piece in row), np.int64, starts[-1]), starts, remark)


def _vocabulary_remark(old: Tokenizer, known: dict[int, int], spelled: list[list[int]]) -> str:
    """Return a summary of the entries in numbers; "" if old and new are the same."""
    moved = sum(i != source for i, source in known.items())
    new = [row for i, row in enumerate(spelled) if i not in known]
    unknown = sum(row == [old.unk_id] for row in new)
    left_out = old.vocab_size - len(set(known.values()))
    if not (moved or new or left_out):
        return ""
    parts = [f"{old.vocab_size:,} → {len(spelled):,} entries: {len(known) - moved:,} kept"]
    if moved:
        parts.append(f"{moved:,} moved to another id")
    if new:
        pieces = sum(map(len, new)) / len(new)
        parts.append(
            f"{len(new):,} new, each the mean of its pieces ({pieces:.1f} on average"
            + (f"; {unknown:,} were [UNK])" if unknown else ")")
        )
    if left_out:
        parts.append(f"{left_out:,} left out")
    return ", ".join(parts)
