"""Initialization of a new run from a stored model: what fits is loaded, tables are resized, the rest is fresh.

The model (init_from) is opened and checked before any of its arrays is read. Each row of a resized table is made of
stored rows that `RowSources` lists. A model with fewer layers can start from some layers of the stored one (Sanh et
al. 2019, section 2).
"""

import dataclasses
import re
from collections.abc import Collection
from typing import Any, get_args

import jax
import numpy as np
from rich.table import Table

from bert_jax.checkpoints.record import stored_fingerprint
from bert_jax.config import AttentionConfig, EncoderConfig, ModelConfig, ObjectiveConfig, ReplacedTokens
from bert_jax.config.model import OUTSIDE_THE_FUNCTION, RetrainedOption
from bert_jax.config.options import flattened, to_dict
from bert_jax.devices.placement import StoredArray, placed
from bert_jax.errors import UserError
from bert_jax.formats.stored import StoredModel, check_fit, left_out, with_generator
from bert_jax.models.bert_parameters import STATE_PROJECTION
from bert_jax.parameters import Parameter, ParameterTable, entries, row_tables
from bert_jax.pretrained.growth import Depth, Width, grown
from bert_jax.tokenization.tokenizer import Tokenizer


def with_layers(stored: StoredModel, layers: tuple[int, ...], student: EncoderConfig) -> StoredModel:
    """Return `stored` with some of its layers, in this order, and without what a student of its kind has not.

    A student without token types or without a head for pairs gets no such arrays; they are among `ignored`.

    Raises:
      UserError: there are no such layers, or they have parameters in common.
    """
    model, option = stored.model, f"init_from_layers={','.join(map(str, layers))}"
    width = 0 if model.convolution is None else model.convolution.convolution_width
    if model.sharing != "none" or not model.first_attention_norm or width:
        raise UserError(
            f"{option} needs layers with parameters of their own, all of one form, but {stored.path} has model.sharing="
            f"{model.sharing}, model.first_attention_norm={model.first_attention_norm}, model.convolution_width="
            f"{width}; take none, with --init_from_layers="
        )
    if model.valued_layers:
        raise UserError(
            f"{option} needs layers that can be anywhere, but those of {stored.path} add vectors of words to their "
            f"values (model.value_embeddings={model.value_embeddings}); take none, with --init_from_layers="
        )
    stored = of_layers(stored, layers, option)
    left_out = tuple(
        f"{part}/"
        for part, needed in (
            ("embeddings/token_type", student.type_vocab_size),
            ("pooler", student.pair_head),
            ("next_sentence", student.pair_head),
        )
        if not needed
    )
    arrays = {path: array for path, array in stored.arrays.items() if not path.startswith(left_out)}
    model = dataclasses.replace(
        stored.model,
        type_vocab_size=model.type_vocab_size if student.type_vocab_size else 0,
        pooler=model.pooler if student.pair_head else student.pooler,
    )
    ignored = (*stored.ignored, *sorted(path for path in stored.arrays if path not in arrays))
    return dataclasses.replace(stored, model=model, arrays=arrays, ignored=ignored)


def of_layers(stored: StoredModel, layers: tuple[int, ...], option: str) -> StoredModel:
    """Return `stored` with these layers, whose parameters are their own and of one form, in this order.

    Raises:
      UserError: there are no such layers; the message begins with `option`.
    """
    model, parameters = stored.model, stored.parameters
    if wrong := [layer for layer in layers if not 0 <= layer < model.num_layers]:
        raise UserError(f"{option}: {stored.path} has the layers 0 to {model.num_layers - 1}, and no layer {wrong[0]}")
    arrays = {
        path: array if parameters[path].layer_axis is None else _chosen(array, layers)
        for path, array in stored.arrays.items()
    }
    return dataclasses.replace(stored, model=dataclasses.replace(model, num_layers=len(layers)), arrays=arrays)


def _chosen(array: StoredArray, layers: tuple[int, ...]) -> StoredArray:
    """Return an array of all layers, its first axis, with these alone."""

    def read(index: tuple[slice, ...]) -> np.ndarray:
        return np.concatenate([array.read((slice(layer, layer + 1), *index[1:])) for layer in layers[index[0]]])

    remark = f"layers {','.join(map(str, layers))} of {array.shape[0]}"
    return StoredArray((len(layers), *array.shape[1:]), array.dtype, read, remark)


@dataclasses.dataclass(frozen=True)
class RowSources:
    """Row i of a new table is the mean of the stored rows `pieces[starts[i]:starts[i + 1]]`."""

    pieces: np.ndarray
    """int64 [P]: numbers of stored rows."""
    starts: np.ndarray
    """int64 [R + 1], strictly ascending: every one of the R rows has a source."""
    remark: str
    """A note for people on how the table was resized; empty if every row stays where it was."""

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


REACH = (
    *("rope_theta", "rope_local_theta", "rope_scale", "rope_scaling", "rope_trained_length", "rope_beta_fast"),
    *("rope_beta_slow", "rope_amplitude", "local_window", "global_every", "global_tokens"),
)
"""Options that may differ in a run with more positions than the stored model, as they are how it reaches farther."""


@dataclasses.dataclass(frozen=True)
class Report:
    """The origin of every parameter. Sizes are numbers of values."""

    path: str
    kind: str
    loaded: dict[str, int]
    """Path → size of what was loaded as stored."""
    resized: dict[str, tuple[int, str]]
    """Path → size and how the array was made of the stored one."""
    fresh: dict[str, int]
    """Path → size of what the stored model lacks."""
    left_out: list[str]
    """What the run does not take of the stored model, in lines for people."""

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
        for line in self.left_out:
            result.add_row(*line.split(": ", 1), "", "")
        return result


def check_architecture(
    stored: StoredModel,
    config: EncoderConfig,
    option: str = "init_from",
    changes: Collection[str] = (),
    replaced: Collection[str] = (),
) -> None:
    """Raise one UserError that lists every option in which a run differs from the stored model, ready to paste.

    Args:
      option: the one that named the stored model: init_from, or that of a teacher, whose student may also start from
        random parameters.
      changes: options that may differ (init_from_changes).
      replaced: options of the run, by their dotted names, that its first phase replaces.
    """
    longer = config.max_position_embeddings > stored.model.max_position_embeddings
    differing = {
        name: values
        for name, values in function_differences(config, stored.model).items()
        if not (longer and name in REACH) and name not in changes
    }
    if differing:
        shown = "; ".join(f"model.{name} is {here} here and {there} there" for name, (here, there) in differing.items())
        there = {f"model.{name}": value for name, (_, value) in differing.items() if value != _ABSENT}
        if "model.direction" in there and "objective.name" in replaced:  # which reads in the direction that differs
            there["objective.name"] = "masked_words" if there["model.direction"] == "both" else "left_to_right"
        of_phase = {name: "phases.0." if name in replaced else "" for name in there}
        options = " ".join(f"--{of_phase[name]}{name}={value}" for name, value in there.items())
        random = "" if option == "init_from" else "; or, to start from random parameters, --init_from_layers="
        if not random and set(differing) <= set(get_args(RetrainedOption)):
            random = f"; or, to train it on as another function, --init_from_changes={','.join((*changes, *differing))}"
        elif not random and GROWING.issuperset(differing):
            random = "; or, to grow it, --init_from_depth or --init_from_width (docs/continue.md)"
        raise UserError(
            f"{option}={stored.path} is a different model from this configuration ({shown}). "
            f"To {'continue' if option == 'init_from' else 'start'} from it, add: {options}{random}"
        )


GROWING = frozenset(
    ("num_layers", "hidden_size", "num_heads", "key_value_heads", "intermediate_size", "embedding_size")
)
"""Options that differ between a model and one that has grown from it."""
_ABSENT = "absent"  # an option that a model of this kind does not have


def function_differences(first: EncoderConfig, second: EncoderConfig) -> dict[str, tuple[Any, Any]]:
    """Return both values of every option in which two models differ, so that the same parameters compute another
    function; "absent" is the value of one that a model does not have."""
    values = _function_options(first), _function_options(second)
    pairs = {name: tuple(each.get(name, _ABSENT) for each in values) for name in {**values[1], **values[0]}}
    return {name: (one, two) for name, (one, two) in pairs.items() if one != two}


def _function_options(config: EncoderConfig) -> dict[str, Any]:
    """Return the values of the options that determine what given parameters compute, by their names below model."""
    values = to_dict(config)
    if isinstance(config, AttentionConfig):
        values["intermediate_size"] = config.feed_forward_size
    if isinstance(config, ModelConfig) and config.key_heads == config.num_heads:
        values["key_value_heads"] = None
    return flattened({name: value for name, value in values.items() if name not in OUTSIDE_THE_FUNCTION})


def table_rows(stored: StoredModel, parameters: ParameterTable, tokenizer: Tokenizer) -> dict[str, RowSources]:
    """Return the sources of the rows of each table that depends on vocabulary or length, by path; read no array.

    Args:
      parameters: parameters of the run.

    Raises:
      UserError: there is no vocabulary, or it cannot be matched with that of `tokenizer`.
    """
    vocabulary = vocabulary_sources(stored.need_tokenizer("init_from="), tokenizer, stored.path)
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
    lost = left_out(stored, {path.split("/")[0] for path in parameters}, vectors=False)
    report = Report(path=stored.path, kind=stored.kind, loaded={}, resized={}, fresh={}, left_out=lost)

    def one(parameter: Parameter, leaf: jax.Array) -> jax.Array:
        name, size = parameter.path, parameter.size
        array, rows = stored.arrays.get(name), sources.get(name)
        if array is None:
            report.fresh[name] = size
            return leaf
        if remark := "; ".join(filter(None, [array.remark, "" if rows is None else rows.remark])):
            report.resized[name] = size, remark
        else:
            report.loaded[name] = size
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


def open_source(
    path: str,
    layers: tuple[int, ...],
    model: EncoderConfig,
    objective: ObjectiveConfig,
    resumed: bool,
    changes: Collection[str] = (),
    replaced: Collection[str] = (),
    depth: Depth = "same",
    width: Width = "same",
) -> StoredModel | None:
    """Return the model that init_from names; None without init_from, and for a resumed run, which ignores it.

    With `layers` it has these layers alone, and can be the teacher; with `depth` or `width` it has grown.

    Args:
      path: init_from.
      layers: init_from_layers.
      model: what starts from it.
      objective: for which that is trained.
      resumed: whether the run resumes.
      changes: init_from_changes.
      replaced: options of the run that its first phase replaces.
      depth: init_from_depth.
      width: init_from_width.

    Raises:
      UserError: there is no such model, or it has another architecture.
    """
    option = "init_from"
    if layers and not path and objective.taught is not None:
        path, option = objective.taught.teacher, "objective.distillation.teacher"
    if not path or resumed:
        return None
    from bert_jax.formats.opening import open_stored  # the readers of all formats, which most runs do not need

    source = open_stored(path)
    check_fit(source)
    source = source.without(STATE_PROJECTION)  # to a teacher that need not be that of this run
    source = with_layers(source, layers, model) if layers else source
    source = grown(source, model, depth, width)
    check_architecture(source, model, option, changes, replaced)
    if isinstance(objective, ReplacedTokens):
        return with_generator(source, model, objective.generator)
    return source


def source_fingerprint(source: StoredModel | None) -> dict[str, str | None]:
    """Return what must be equal on all hosts, wherever their copies of the model are."""
    return {"init_from_fingerprint": None if source is None else stored_fingerprint(source.arrays)}
