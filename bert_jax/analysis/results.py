"""One analysis from its options to its files: its result is computed or found again, printed and drawn.

`Analysis` does this for all of them. A result is computed only if none was saved
under the same key, which names everything it was computed from. Pictures are Matplotlib figures that need neither
global state nor a display.

`TaskScore` measures a fine-tuned model on its dev set, whichever of its layers are left. `FineTunedScore` fine-tunes
a pre-trained model first; its result is written to a file at once, and not computed again.
"""

import copy
import dataclasses
import functools
import inspect
import io
import itertools
import json
import os
import shutil
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from etils import epath
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter
from rich.console import Console
from rich.table import Table

from bert_jax.analysis.texts import texts_of
from bert_jax.config.analyses import AnalysisConfig
from bert_jax.config.finetuning import FinetuneConfig, task_defaults
from bert_jax.config.options import to_dict
from bert_jax.config.pretraining import NoiseConfig
from bert_jax.config.tasks import DataSourceConfig
from bert_jax.corpus.readers import find_sources
from bert_jax.errors import UserError
from bert_jax.files import checksum, near_path, read_object, sealed, unsealed, write_atomically
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.tasks import task_data

LONGEST_PATH = 40  # characters


def layer_names(count: int) -> list[str]:
    """Return the names of `count` hidden states: that of the embeddings, then the numbers of the layers."""
    return ["emb", *map(str, range(1, count))]


def write_pictures(figure: Figure, directory: str | os.PathLike[str], name: str) -> list[str]:
    """Write a figure as `name`.png and `name`.svg into a directory; return their names."""
    for suffix in ("png", "svg"):
        buffer = io.BytesIO()
        metadata = {"Date": None} if suffix == "svg" else None  # the same figure is the same file
        figure.savefig(buffer, format=suffix, dpi=150, metadata=metadata)
        write_atomically(epath.Path(directory) / f"{name}.{suffix}", buffer.getvalue())
    return [f"{name}.png", f"{name}.svg"]


def panels(
    size: tuple[float, float], heading: str, rows: int = 1, columns: int = 1, *, heading_size: int = 11, **options: Any
) -> tuple[Figure, Any]:
    """Return a figure with a heading, of a size in inches, and its panels, as `Figure.subplots` returns them."""
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    if heading:
        figure.suptitle(heading, fontsize=heading_size, parse_math=False)
    return figure, figure.subplots(rows, columns, **options)


def lines_by_layer(axes: Axes, title: str, series: Mapping[str, np.ndarray]) -> None:
    """Draw lines over the layers, one for each entry of `series`, float [layers + 1]."""
    for label, values in series.items():
        axes.plot(range(len(values)), values, marker="o", label=label)
        axes.set_xticks(range(len(values)), layer_names(len(values)))
    framed(axes, title, "layer")


def framed(axes: Axes, title: str = "", below: str = "", legend: int | None = None) -> None:
    """Give a panel a title and a label below it, a grid behind everything, and no upper and right edge.

    `legend` is the font size of a legend of the lines that have been drawn; by default there is none.
    """
    axes.set_title(title, loc="left", parse_math=False)
    axes.set_xlabel(below)
    for axis in (axes.xaxis, axes.yaxis):
        if isinstance(formatter := axis.get_major_formatter(), ScalarFormatter):
            formatter.set_useOffset(False)  # 6.901 and not 0.002 with +6.899 at the end of the axis
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    if legend:
        axes.legend(frameon=False, fontsize=legend)


def write_numbers(axes: Axes, matrix: np.ndarray) -> None:
    """Write the value of each cell of a heat map into it; – marks NaN."""
    for (row, column), value in np.ndenumerate(matrix):
        text = "–" if np.isnan(value) else f"{value:.2f}"
        colour = "white" if value < 0.6 else "black"
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color="black" if text == "–" else colour)


def short_path(path: str) -> str:
    """Return a path as seen from the current directory if that is shorter, or the end of it, which tells it apart."""
    path = near_path(path)
    return path if len(path) <= LONGEST_PATH else f"…{path[-LONGEST_PATH:]}"


Result = typing.TypeVar("Result")


def model_fingerprint(model: PretrainedModel) -> str:
    """Return a checksum of everything that the answers of a model follow from: itself, and how it is computed."""
    return checksum({"model": model.fingerprint, "compute": to_dict(model.network.compute)})


def output_directory(path: str | os.PathLike[str]) -> epath.Path:
    """Return the directory, which is made if it is not there.

    Raises:
      UserError: it is a file, or cannot be made.
    """
    directory = epath.Path(path)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"output={os.fspath(path)} cannot be made: {error.strerror or error}; choose another directory"
        ) from None
    return directory


def save_result(file: epath.Path, key: dict[str, Any], result: Any) -> None:
    """Write a dataclass with arrays, and the key, of JSON types, of what it was computed from."""
    values = sealed({"key": key, "result": _plain(result)})
    write_atomically(file, (json.dumps(values, indent=1, allow_nan=False) + "\n").encode())


def saved_result(file: epath.Path, key: dict[str, Any], kind: type[Result]) -> Result | None:
    """Return the result with this key, a dataclass `kind`, that `save_result` wrote; None if there is none.

    Raises:
      UserError: the file is damaged, or was not written by `save_result`.
    """
    if not file.exists():
        return None
    remedy = "remove it, and the result is computed again"
    try:
        values = unsealed(read_object(file, remedy))
    except UserError as error:
        raise UserError(str(error) if remedy in str(error) else f"{file}: {error}; {remedy}") from None
    return _built(kind, values["result"]) if values.get("key") == json.loads(json.dumps(key)) else None


def _plain(value: Any) -> Any:
    """Return dataclasses as objects, arrays as nested lists, and numbers that are not finite as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _built(kind: Any, value: Any) -> Any:
    """Return what `_plain` made of a value of type `kind`; null in an array of floats is NaN."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _built(hints[name], each) for name, each in value.items()})
    if kind is np.ndarray:
        return np.array(value, np.float64)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:  # of something and None
        return None if value is None else _built(next(part for part in parts if part is not type(None)), value)
    if origin is tuple:
        kinds = [parts[0]] * len(value) if parts[-1] is ... else parts
        return tuple(_built(*pair) for pair in zip(kinds, value, strict=True))
    if origin is dict:
        return {name: _built(parts[1], each) for name, each in value.items()}
    return value


NOT_IN_KEY = "input train dev test other sts pairs clusters word senses task_data trees output batch_size".split()
"""Options whose values are not in the key of a result: files and models are in it by their contents."""


def call_with(function: Callable[..., Result], options: Any, *given: Any, **named: Any) -> Callable[..., Result]:
    """Return `function` with these arguments; its other keyword-only parameters get the options of the same names."""

    def call(*more: Any) -> Result:
        parameters = inspect.signature(function).parameters.values()
        wanted = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY and hasattr(options, each.name)}
        return function(*given, *more, **{name: getattr(options, name) for name in wanted} | named)

    return call


@dataclasses.dataclass(frozen=True)
class Analysis(typing.Generic[Result]):
    """One kind of result of `bert-jax analyze`: how it is saved, printed and drawn."""

    name: str
    """Name in the key of the result."""
    kind: type[Result]
    """The dataclass that the result is."""
    tell: Callable[[Result], Iterable[Table | str]]
    """Returns the tables and lines to print."""
    draw: Mapping[str, Callable[[Result], Figure | str | None]]
    """Makes pictures, by their names without a suffix, and pages, by the names of their files; None is left out."""
    file: str = "result.json"
    """File of the result."""

    def run(self, options: Any, origin: dict[str, Any], compute: Callable[[], Result]) -> Result:
        """Return the result, and print it, draw it, and name its files.

        Args:
          options: of the analysis; `output` is the directory of the files.
          origin: everything else that the result follows from, of JSON types; in its key together with the options.
          compute: called only if the result was not saved before.
        """
        place = epath.Path(options.output)
        made = [each for each in (place, *place.parents) if not each.exists()]
        directory = output_directory(options.output)
        chosen = {field: value for field, value in dataclasses.asdict(options).items() if field not in NOT_IN_KEY}
        key = {"analysis": self.name, **origin, "options": chosen}
        result, known = saved_result(directory / self.file, key, self.kind), []
        if result is None:
            try:
                result = compute()
            except BaseException:
                for each in itertools.takewhile(lambda each: not any(each.iterdir()), made):
                    each.rmdir()  # what is refused leaves nothing
                raise
            save_result(directory / self.file, key, result)
        else:
            known = [f"{options.output}/{self.file} has this result already; it is not computed again"]
        files = [self.file]  # all of them before anything is shown: `bert-jax analyze … | head` ends there
        for name, make in self.draw.items():
            content = make(result)
            if isinstance(content, str):
                write_atomically(directory / name, content.encode())
                files.append(name)
            elif content is not None:
                files += write_pictures(content, directory, name)
        for part in (*known, *self.tell(result), f"{options.output}: {', '.join(files)}"):
            Console().print(part) if isinstance(part, Table) else print(part)
        return result

    def run_on_texts(
        self,
        options: AnalysisConfig,
        models: list[PretrainedModel],
        compute: Callable[[Iterable[str]], Result],
        more_input: str = "",
    ) -> Result:
        """Do the same for the result of models on the texts of the input, and of a file `more_input` if it is named."""
        sources = find_sources(options.input, options.format, text_field=options.text_field)
        further = find_sources(more_input) if more_input else []
        origin = {
            "models": [model_fingerprint(model) for model in models],
            "input": [source.identity for source in (*sources, *further)],
        }
        texts = functools.partial(texts_of, sources, options.texts, options.seed, options.text_field)
        return self.run(options, origin, lambda: compute(texts()))


def table(header: Iterable[str], rows: Iterable[Iterable[str]], title: str | None = None) -> Table:
    """Return a table to print."""
    made = Table(*header, title=title)
    for row in rows:
        made.add_row(*row)
    return made


def columns_table(columns: Iterable[tuple[str, str, Iterable[Any]]], title: str | None = None) -> Table:
    """Return a table to print of columns with a heading, a format and values each; – where there is no number."""
    headings, formats, values = zip(*columns, strict=True)
    shown = lambda value, form: "–" if value != value else format(value, form)
    return table(headings, (map(shown, row, formats) for row in zip(*values, strict=True)), title)


def layers_table(columns: Mapping[str, np.ndarray], digits: str = ".3f", title: str | None = None) -> Table:
    """Return a table with one row for each layer, the embeddings first; columns hold one number per layer."""
    layers = layer_names(len(next(iter(columns.values()))))
    return columns_table([("layer", "", layers), *((name, digits, each) for name, each in columns.items())], title)


class TaskScore:
    """The main metric of a fine-tuned model on the dev set of its task: a `score` for `prune`."""

    def __init__(self, model: PretrainedModel, data: DataSourceConfig, task: str = "", batch_size: int = 32):
        """Read the dev set, as in the model's own evaluation.

        Args:
          model: the fine-tuned model.
          data: where the examples are; columns that are not given are those of the fine-tuning.
          task: name of the task; "": the one that the model records.
          batch_size: number of sequences that a model reads at once.

        Raises:
          UserError: the model has no task head or one of another kind, or the data cannot be read or have no labels.
        """
        if model.head is None:
            raise UserError(f"{model.path} has no task head to score; fine-tune it first")
        if not (task := task or task_data.recorded_task(model.history)):
            raise UserError(f"{model.path} does not say which task it is for; give --task=NAME")
        self._family, self._batch_size = task_data.family_for(task, model.head, model.path), batch_size
        files = {name: getattr(data, name) for name in ("dir", "train", "dev", "test", "tfds", "hub")}
        data = dataclasses.replace(
            task_data.recorded_config(model.history, task, model.head).data.without_files(), **files
        )
        self._examples = self._family.load(task, data, "dev", model.head.labels)
        if not self._examples.has_answers:
            raise UserError(f"the dev set of {task} has no labels, so nothing can be scored; give a labelled one")
        self.examples: int = len(self._examples)
        options = task_data.recorded_options(model.history, task, model.config.longest_sequence, model.head)
        self._options = options
        self._features = self._family.features(self._examples, model.need_tokenizer(), options)
        self._metric, *_ = self._family.metrics(self._examples)
        self.name: str = f"{task} {self._metric}"

    def __call__(self, model: PretrainedModel) -> float:
        """Return the metric of a model with the same head and tokenizer."""
        logits = model.task_scores(self._features, batch_size=self._batch_size)
        return self._family.score(self._examples, self._features, logits)[self._metric]

    def with_noise(self, model: PretrainedModel, noise: NoiseConfig, seed: int = 0) -> "TaskScore":
        """Return the same score on texts with spelling errors; raise a UserError if the task cannot have any."""
        other = copy.copy(self)
        other._examples = task_data.noisy_examples(self._examples, noise, seed)
        other._features = self._family.features(other._examples, model.need_tokenizer(), self._options)
        return other

    def input_ids(self) -> list[np.ndarray]:
        """Return the ids of every sequence that a model reads, int32 [L] each."""
        return [ids for entry in self._features.input_ids for ids in (entry if isinstance(entry, list) else [entry])]


@dataclasses.dataclass(frozen=True)
class FineTuned:
    """Scores on the dev set after fine-tuning a model."""

    score: float
    """The main metric, a mean over the seeds."""
    metrics: dict[str, float]
    """All metrics of the run with the best one."""


FineTune = Callable[[FinetuneConfig], Any]
"""`bert_jax.finetune`, which a command gives: an analysis does not know the loops that train."""


class FineTunedScore:
    """A `score` for `prune`: a model is fine-tuned, and what it then reaches on the dev set counts.

    A result is written at once, and not computed again; a fine-tuning that was interrupted resumes where it stopped.
    The weights are not kept.
    """

    def __init__(
        self,
        task: str,
        data: DataSourceConfig,
        directory: str | os.PathLike[str],
        fine_tune: FineTune,
        **options: Any,
    ):
        """Take a task, its files, a directory for the results, what fine-tunes, and fields of FinetuneConfig."""
        self._config: FinetuneConfig = dataclasses.replace(task_defaults(task), data=data, **options)
        self._directory, self._fine_tune = epath.Path(directory), fine_tune
        self.name: str = f"{task}, fine-tuned"

    def __call__(self, model: PretrainedModel) -> float:
        """Return the main metric after fine-tuning `model`."""
        fingerprint = model_fingerprint(model)
        key = {"model": fingerprint, "config": to_dict(self._config)}
        place = self._directory / f"{model.config.num_layers}_layers_{fingerprint[:12]}"
        file = place.parent / f"{place.name}.json"
        found = saved_result(file, key, FineTuned)
        if found is None:
            found = self._trained(model, place)
            save_result(file, key, found)
            shutil.rmtree(place)
        return found.score

    def _trained(self, model: PretrainedModel, place: epath.Path) -> FineTuned:
        if not (place / "model").exists():
            model.save(place / "model")
        length = min(self._config.max_length, model.config.longest_sequence)
        config = dataclasses.replace(
            self._config,
            init_from=os.fspath(place / "model"),
            workdir=os.fspath(place / "run"),
            options=dataclasses.replace(self._config.options, max_length=length),
        )
        result = self._fine_tune(config)
        if result.exit_code:
            raise SystemExit(result.exit_code)
        if not result.results:
            raise UserError(f"fine-tuning in {result.path} left no result; start the same command again")
        mean = result.results["settings"][0]["mean"][result.results["main_metric"]]
        return FineTuned(mean, result.results["metrics"])
