"""Initialization of a new run from a stored model: what fits is loaded, tables are resized, the rest stays fresh."""

import dataclasses
from typing import Any

import jax
import numpy as np
from rich.table import Table

from bert_jax.config import ModelConfig
from bert_jax.config.encoder import OUTSIDE_THE_FUNCTION
from bert_jax.config.json_form import flattened
from bert_jax.devices.placement import StoredArray, placed
from bert_jax.errors import UserError
from bert_jax.formats.stored import StoredModel
from bert_jax.models.parameters import Parameter, ParameterTable, entries, row_tables
from bert_jax.pretrained.row_sources import RowSources, position_sources, vocabulary_sources
from bert_jax.tokenization.tokenizer import Tokenizer

REACH = ("rope_theta", "rope_local_theta", "rope_scale", "local_window", "global_every", "global_tokens")
"""Options that may differ in a run with more positions than the stored model, as they are how it reaches farther."""


@dataclasses.dataclass(frozen=True)
class Report:
    """The origin of every parameter. Sizes are numbers of values."""

    path: str
    kind: str
    loaded: dict[str, int]
    """Path → size of what was loaded as stored."""
    resized: dict[str, tuple[int, str]]
    """Path → size and how the table was made."""
    fresh: dict[str, int]
    """Path → size of what the stored model lacks."""
    ignored: tuple[str, ...]
    """Stored arrays that have no counterpart in the run."""

    def table(self) -> Table:
        result = Table(title=f"parameters from {self.path} ({self.kind})")
        result.add_column("")
        result.add_column("arrays", overflow="fold")
        result.add_column("values", justify="right")
        result.add_column("remark", overflow="fold")
        for name, sizes in (("loaded", self.loaded), ("fresh", self.fresh)):
            for group, paths in _groups(sizes).items():
                result.add_row(name, group, f"{sum(sizes[path] for path in paths):,}", "")
        for remark in dict.fromkeys(remark for _, remark in self.resized.values()):
            sizes = {path: size for path, (size, other) in self.resized.items() if other == remark}
            result.add_row("resized", ", ".join(sizes), f"{sum(sizes.values()):,}", remark)
        if self.ignored:
            shown = ", ".join(self.ignored[:4]) + (
                f" and {len(self.ignored) - 4:,} more" if len(self.ignored) > 4 else ""
            )
            result.add_row("ignored", shown, "", "no place in this model")
        return result


def check_architecture(stored: StoredModel, config: ModelConfig, option: str = "init_from") -> None:
    """Raise one UserError that lists every option in which a run differs from the stored model, ready to paste.

    Args:
      option: the one that named the stored model: init_from, or that of a teacher, whose student may also start from
        random parameters.
    """
    longer = config.max_position_embeddings > stored.model.max_position_embeddings
    theirs = _function_options(stored.model)
    differing = {
        option: (ours, theirs[option])
        for option, ours in _function_options(config).items()
        if ours != theirs[option] and not (longer and option in REACH)
    }
    if differing:
        shown = "; ".join(
            f"model.{option} is {ours} here and {theirs} there" for option, (ours, theirs) in differing.items()
        )
        options = " ".join(f"--model.{option}={theirs}" for option, (_, theirs) in differing.items())
        random = "" if option == "init_from" else "; or, to start from random parameters, --init_from_layers="
        raise UserError(
            f"{option}={stored.path} is a different model from this configuration ({shown}). "
            f"To {'start' if random else 'continue'} from it, add: {options}{random}"
        )


def _function_options(config: ModelConfig) -> dict[str, Any]:
    """Return the values of the options that determine what given parameters compute, by their names below model."""
    values = {**dataclasses.asdict(config), "intermediate_size": config.feed_forward_size}
    return flattened({name: value for name, value in values.items() if name not in OUTSIDE_THE_FUNCTION})


def table_rows(stored: StoredModel, parameters: ParameterTable, tokenizer: Tokenizer) -> dict[str, RowSources]:
    """Return the sources of the rows of each table that depends on vocabulary or length, by path; read no array.

    Args:
      parameters: parameters of the run.

    Raises:
      UserError: there is no vocabulary, or it cannot be matched with that of `tokenizer`.
    """
    if stored.tokenizer is None:
        raise UserError(
            f"init_from={stored.path} has no vocabulary, so the word of each row of its table is unknown; "
            "put the vocab.txt (or SentencePiece .model) that it was trained with into that directory"
        )
    vocabulary = vocabulary_sources(stored.tokenizer, tokenizer, stored.path)
    sources = {path: vocabulary for path in row_tables(parameters, "vocab") if path in stored.arrays}
    for path in row_tables(parameters, "position"):
        if path in stored.arrays:
            rows = stored.arrays[path].shape[0], parameters[path].shape[0]
            sources[path] = position_sources(*rows, stored.model.first_position)
    return sources


def initialize(
    stored: StoredModel, parameters: ParameterTable, tokenizer: Tokenizer, fresh: Any
) -> tuple[dict[str, Any], Report]:
    """Return parameters for a run with `tokenizer`, made in place: each device reads its own part of the stored arrays.

    Args:
      stored: model from `open_stored` that has passed `check_fit` and `check_architecture`.
      parameters: table of the run's model.
      tokenizer: tokenizer of the new data. Rows of vocabulary tables beyond its entries (vocab_pad_multiple) stay
        fresh.
      fresh: freshly initialized parameters, on any mesh of any number of hosts; those that are not replaced are
        returned.

    Raises:
      UserError: as for `table_rows`.
    """
    sources = table_rows(stored, parameters, tokenizer)
    ignored = (*sorted({*stored.arrays} - {*parameters}), *stored.ignored)
    report = Report(path=stored.path, kind=stored.kind, loaded={}, resized={}, fresh={}, ignored=ignored)

    def one(parameter: Parameter, leaf: jax.Array) -> jax.Array:
        name, size = parameter.path, parameter.size
        array, rows = stored.arrays.get(name), sources.get(name)
        if array is None:
            report.fresh[name] = size
            return leaf
        if rows is None or not rows.remark:
            report.loaded[name] = size
        else:
            report.resized[name] = size, rows.remark
        return placed(leaf.shape, leaf.sharding, array.read if rows is None else _resizer(array, rows, leaf))

    return jax.tree.map(one, entries(parameters, fresh), fresh), report


def _resizer(array: StoredArray, rows: RowSources, fresh: jax.Array):
    """Return a reader of parts of a table whose rows come from `rows`; those after them are fresh, equally sharded."""

    def read(index: Any):
        start, stop, _ = index[0].indices(fresh.shape[0])
        known = min(stop, rows.num_rows)
        values = np.array(next(shard.data for shard in fresh.addressable_shards if shard.index == index))
        if start < known:
            values[: known - start] = rows.read(array, start, known, index[1:])
        return values

    return read


def _groups(paths: Any) -> dict[str, list[str]]:
    """Return `paths` by label: several below one top-level name are labelled with their number."""
    tops: dict[str, list[str]] = {}
    for path in paths:
        tops.setdefault(path.split("/")[0], []).append(path)
    return {f"{top}/… ({len(below)} arrays)" if len(below) > 1 else below[0]: below for top, below in tops.items()}
