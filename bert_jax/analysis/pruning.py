"""Removal of whole layers: the least needed by CKA, compared with the top layers and random ones.

Behind `bert-jax analyze prune`, which prints and draws the curves and writes the smaller model. A model with some of
its layers is an ordinary model.
"""

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from etils import epath
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from bert_jax.analysis import results
from bert_jax.analysis.layers import SMALLEST, HsicSums
from bert_jax.analysis.texts import check_vectors, in_batches, mask_words, text_arrays, token_weights, word_scores
from bert_jax.config.analyses import PruneConfig, VectorKind
from bert_jax.config.finetuning import task_defaults
from bert_jax.config.tasks import TaskDataConfig
from bert_jax.errors import UserError, at_least
from bert_jax.formats.opening import place
from bert_jax.models.costs import has_mask_decoder
from bert_jax.pretrained.initialization import of_layers
from bert_jax.pretrained.model import PretrainedModel, as_stored, load
from bert_jax.progress import progress_bar
from bert_jax.randomness import Stream, bits


def keep_layers(model: PretrainedModel, layers: Sequence[int]) -> PretrainedModel:
    """Return a model with some of the layers of `model`, in this order, and everything else that it has.

    It can be used, edited and saved like any other: `keep_layers(model, [0, 1, 3]).save("smaller")` is for pretrain
    --init_from, finetune and convert.

    Args:
      model: any model whose layers have parameters of their own.
      layers: numbers of its layers, from 0, as in `model.layers`; a layer may come twice.

    Raises:
      UserError: there is no such layer or none at all, or a layer cannot be taken away; see `check_removable`.
    """
    check_removable(model)
    if not layers:
        raise UserError(f"layers=[] leaves no layer of {model.path}; name some of 0 to {model.config.num_layers - 1}")
    return KeptLayers(model).fresh(tuple(int(layer) for layer in layers))


def check_removable(model: PretrainedModel) -> None:
    """Raise a UserError if the layers of a model are not interchangeable, or have no parameters of their own."""
    config, reason = model.config, ""
    if not config.num_layers:
        reason = "there is no layer"
    elif config.sharing != "none":
        reason = f"its layers share parameters (model.sharing={config.sharing})"
    elif not config.first_attention_norm:
        reason = "its first layer differs from the others (model.first_attention_norm=False)"
    elif config.valued_layers:
        reason = f"some add vectors of words to their values (model.value_embeddings={config.value_embeddings})"
    elif config.convolution is not None:
        width = config.convolution.convolution_width
        reason = f"a convolution is added to its first layer (model.convolution_width={width})"
    elif config.window is not None and config.window.global_every > 1:
        window = config.window
        reason = (
            f"one layer in {window.global_every} sees the whole sequence and the others {window.local_window} tokens "
            "to either side (model.local_window), so each has a place of its own"
        )
    if reason:
        raise UserError(f"no layer of {model.path} can be taken away: {reason}; give a model of layers of one kind")


class KeptLayers:
    """Models with some of the layers of one model; those of the same depth are compiled once."""

    def __init__(self, model: PretrainedModel):
        self._whole, self._stored = model, as_stored(model, model.params)
        self._of_depth: dict[int, PretrainedModel] = {}

    def __call__(self, layers: tuple[int, ...]) -> PretrainedModel:
        """Return a model that is valid until the next call for as many layers."""
        if layers == tuple(range(self._whole.config.num_layers)):
            return self._whole
        if len(layers) not in self._of_depth:
            self._of_depth[len(layers)] = self.fresh(layers)
        else:
            self._of_depth[len(layers)].params = place(self._chosen(layers), self._whole.mesh)
        return self._of_depth[len(layers)]

    def fresh(self, layers: tuple[int, ...]) -> PretrainedModel:
        """Return a separate model."""
        stored = self._chosen(layers)
        return PretrainedModel(stored, place(stored, self._whole.mesh), self._whole.mesh, self._whole.network.compute)

    def _chosen(self, layers: tuple[int, ...]):
        if len(layers) == 1 and has_mask_decoder(self._whole.network.parameters):
            raise UserError(
                f"{self._whole.path} predicts words by two passes of its last layer on top of another one "
                "(DeBERTa's enhanced mask decoder), so two layers must stay"
            )
        return of_layers(self._stored, layers, f"layers={list(layers)}")


MINIBATCH = 256  # texts per estimate of CKA, as in `cka`

Score = Callable[[PretrainedModel], float]
"""Measures a model with some of the layers, such as its accuracy in a task; higher is better."""


@dataclasses.dataclass(frozen=True)
class RemovalCurve:
    """A model that loses one layer after the other: D + 1 models, the whole one first."""

    order: str
    """cka, top, or random."""
    layers: tuple[tuple[int, ...], ...]
    """The layers that each model keeps, from 0."""
    similarity: np.ndarray
    """float64 [D + 1]: linear CKA between the last states of each model and those of the whole one."""
    mlm_loss: np.ndarray
    """float64 [D + 1]: cross-entropy of masked tokens in nats; NaN for a model without a head for them."""
    mlm_accuracy: np.ndarray
    """float64 [D + 1]: share of the masked tokens that are predicted, or NaN."""
    score: np.ndarray
    """float64 [D + 1]: what `score` returned for each model, or NaN."""


@dataclasses.dataclass(frozen=True)
class Pruning:
    """A model of N layers reduced to fewer, in several ways."""

    curves: tuple[RemovalCurve, ...]
    """The removal that CKA guides, that of the top layers, and those in random orders."""
    candidates: np.ndarray
    """float64 [D, N]: at each step of the guided removal, CKA between the last states of the whole model and those of
    the present one without each of its layers; NaN for a layer that is gone. The largest in a row goes."""
    model: str
    """Path of the model."""
    texts: int
    """Number of texts that guided the removal."""
    predictions: int
    """Number of masked tokens, in other texts, that losses and accuracies are of."""
    vectors: str
    """Kind of vector that represented a text: mean, cls or token."""
    score_name: str
    """Name of the measure `score`; "" if there was none."""

    @property
    def depths(self) -> list[int]:
        """Number of layers of each model of a curve."""
        return [len(layers) for layers in self.curves[0].layers]

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that the guided removal keeps at the target depth, for `keep_layers`."""
        return self.curves[0].layers[-1]


def prune(
    model: PretrainedModel,
    texts: Iterable[str],
    depth: int,
    *,
    vectors: VectorKind = "mean",
    draws: int = 3,
    score: Score | None = None,
    score_name: str = "score",
    seed: int = 0,
    batch_size: int = 32,
    max_length: int | None = 128,
    progress: bool = True,
) -> Pruning:
    """Return how a model does as it loses layers, down to a depth; nothing is trained, and `model` stays as it is.

    At each step the layer goes without which the last states of the model stay most similar to those of the whole
    model, by linear CKA over texts (the criterion of Pons et al. 2024, "Effective Layer Pruning Through Similarity
    Metric Perspective"); of two equally good ones, the upper. Removal of the top layers and in random orders is
    measured for comparison.

    Args:
      model: N layers of one kind with parameters of their own.
      texts: 8 or more, best in random order; they are held in memory. Every other one guides the removal, and on the
        rest masked words are predicted.
      depth: number of layers to end with, 1 to N - 1.
      vectors: what represents a text: see `cka`.
      draws: number of random orders.
      score: also measured for every model, such as `TaskScore`; None: nothing more is.
      score_name: what `score` measures.
      seed: of tokens to mask, tokens drawn and random orders.

    Raises:
      UserError: the depth is not below that of the model, layers cannot be taken away, or there are too few texts.
    """
    check_vectors(vectors)
    check_removable(model)
    count = model.config.num_layers
    if not 1 <= depth < count:
        raise UserError(
            f"depth={depth} must be at least 1 and below the {count} layers that {model.path} has, so that at least "
            "one layer is removed"
        )
    at_least(0, draws=draws)
    held = _several(texts)
    steps = range(depth, count)
    shuffled = [np.random.default_rng((seed, draw)).permutation(count).tolist() for draw in range(draws)]
    fixed = {"top": [_without(count, range(kept, count)) for kept in range(count, depth - 1, -1)]}
    random = [[_without(count, order[:gone]) for gone in range(count - depth + 1)] for order in shuffled]
    expected = sum(kept + 1 for kept in steps) + len({*itertools.chain(*fixed.values(), *random)})
    with progress_bar("models measured", expected + len(steps), visible=progress) as move_to:
        measured = _Measurements(model, held, vectors, score, seed, batch_size, max_length, move_to)
        guided, candidates = _guided(measured, count, depth)
        orders = [("cka", guided), ("top", fixed["top"]), *(("random", kept) for kept in random)]
        curves = tuple(_curve(measured, order, kept) for order, kept in orders)
    predictions = measured.predictions
    name = score_name if score is not None else ""
    return Pruning(curves, candidates, model.path, measured.texts, predictions, vectors, name)


def _several(texts: Iterable[str]) -> list[str]:
    held = [texts] if isinstance(texts, str) else list(texts)
    if len(held) < 2 * SMALLEST:
        raise UserError(
            f"pruning needs at least {2 * SMALLEST} texts, half to guide it and half to measure, not {len(held)}; "
            "give more"
        )
    return held


def _without(count: int, gone: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({*range(count)} - {*gone}))


def _guided(measured: "_Measurements", count: int, depth: int) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """Return what is kept after each step, and CKA [D, N] of all candidates."""
    kept, candidates = [tuple(range(count))], np.full((count - depth, count), np.nan)
    for row in candidates:
        for layer in kept[-1]:
            row[layer] = measured.similarity(tuple(other for other in kept[-1] if other != layer))
        comparable = np.nan_to_num(row, nan=-np.inf)
        gone = max(kept[-1], key=lambda layer: (comparable[layer], layer))
        kept.append(tuple(other for other in kept[-1] if other != gone))
    return kept, candidates


def _curve(measured: "_Measurements", order: str, kept: list[tuple[int, ...]]) -> RemovalCurve:
    scores = np.array([measured.scores(layers) for layers in kept])
    similarity = np.array([measured.similarity(layers) for layers in kept])
    return RemovalCurve(order, tuple(kept), similarity, scores[:, 0], scores[:, 1], scores[:, 2])


class _Measurements:
    """Measures of models with some of the layers, each taken once."""

    def __init__(
        self,
        model: PretrainedModel,
        texts: list[str],
        vectors: VectorKind,
        score: Score | None,
        seed: int,
        batch_size: int,
        max_length: int | None,
        move_to: Callable[[int], None],
    ):
        self._kept, self._score, self._batch_size, self._move_to = KeptLayers(model), score, batch_size, move_to
        guiding, rest = texts[::2], texts[1::2]
        self.texts: int = len(guiding)
        self._arrays = text_arrays(model, guiding, max_length)
        random = bits(seed, Stream.ANALYSED_TOKEN, np.arange(len(guiding)))
        self._arrays["shares"] = token_weights(self._arrays["attention_mask"], vectors, random)
        self._masked = mask_words(model, rest, seed=seed, max_length=max_length)
        self.predictions: int = 0 if self._masked is None else int(self._masked["masked_weights"].sum())
        self._similarities: dict[tuple[int, ...], float] = {}
        self._scores: dict[tuple[int, ...], tuple[float, float, float]] = {}
        self._whole = self._vectors(model)

    def similarity(self, layers: tuple[int, ...]) -> float:
        """Return CKA between the last states with these layers and with all."""
        if layers not in self._similarities:
            found = self._vectors(self._kept(layers))
            sums = HsicSums()
            for start in range(0, len(found), MINIBATCH):
                part = slice(start, start + MINIBATCH)
                if len(found[part]) == MINIBATCH or not sums.count:
                    sums.add(self._whole[part, None], found[part, None])
            self._similarities[layers] = float(sums.similarity()[0, 0])
            self._moved()
        return self._similarities[layers]

    def scores(self, layers: tuple[int, ...]) -> tuple[float, float, float]:
        """Return loss and accuracy of masked words, and the score; NaN for what is not measured."""
        if layers not in self._scores:
            model, words = self._kept(layers), None
            if self._masked is not None:
                words = word_scores(model, self._masked, self._batch_size)
            loss, accuracy = (np.nan, np.nan) if words is None else (words.loss, words.accuracy)
            self._scores[layers] = loss, accuracy, np.nan if self._score is None else self._score(model)
            self._moved()
        return self._scores[layers]

    def _vectors(self, model: PretrainedModel) -> np.ndarray:
        """Return float32 [n, H]: the vector of each guiding text in the last states."""
        found = []
        for batch in in_batches(self._arrays, self._batch_size):
            inputs = (batch[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
            states = model.encode_ids(*inputs, layers="last").last_hidden_state
            found.append(np.einsum("nlh,nl->nh", states, batch["shares"]))
        return np.concatenate(found)[: self.texts]

    def _moved(self) -> None:
        self._move_to(len(self._similarities) + len(self._scores))


STYLES = {"cka": ("#1f77b4", "guided by CKA"), "top": ("#d62728", "top layers"), "random": ("#8a8a8a", "random layers")}


def draw_pruning(result: Pruning) -> Figure:
    """Return a panel for each measure over the number of layers, and the candidates of every step of the removal."""
    names = {"similarity": "CKA with the whole model", "mlm_accuracy": "MLM accuracy", "score": result.score_name}
    shown = [name for name in names if not np.isnan(getattr(result.curves[0], name)).all()]
    steps, count = result.candidates.shape
    heading = f"{results.short_path(result.model)}: {result.texts:,} texts, vectors: {result.vectors}"
    widths = [*[1.0] * len(shown), (1.0 + 0.45 * count) / 4.0]
    size = (4.0 * len(shown) + 1.6 + 0.45 * count, 3.8)
    figure, (*curves, candidates) = results.panels(size, heading, 1, len(widths), width_ratios=widths)
    for axes, name in zip(curves, shown, strict=True):
        _curves(axes, result, name)
        results.framed(axes, names[name], "layers")
    curves[0].legend(frameon=False, fontsize=9)
    candidates.imshow(result.candidates, cmap="viridis", vmin=0.0, vmax=1.0)
    results.write_numbers(candidates, result.candidates)
    candidates.set_xticks(range(count), [str(layer + 1) for layer in range(count)])
    candidates.set_yticks(range(steps), [f"{depth - 1}" for depth in result.depths[:-1]])
    candidates.set_xlabel("layer left out, from 1")
    candidates.set_ylabel("layers left")
    candidates.set_title("CKA of each candidate", loc="left")
    return figure


def _curves(axes: Axes, result: Pruning, name: str) -> None:
    labelled: set[str] = set()
    for curve in (*result.curves[2:], *result.curves[:2]):  # the random ones below the others
        colour, label = STYLES[curve.order]
        width = 1.0 if curve.order == "random" else 2.0
        axes.plot(
            result.depths,
            getattr(curve, name),
            marker="o",
            markersize=4,
            color=colour,
            linewidth=width,
            label=None if label in labelled else label,
        )
        labelled.add(label)
    axes.set_xticks(result.depths)
    axes.invert_xaxis()


def _told(result: Pruning) -> list[Table]:
    measures = {"CKA": "similarity", "MLM loss": "mlm_loss", "MLM accuracy": "mlm_accuracy", result.score_name: "score"}
    shown = {title: name for title, name in measures.items() if not np.isnan(getattr(result.curves[0], name)).all()}
    made = Table("removed", "layers kept (from 0)", *shown, title=f"{result.texts:,} texts guide the removal")
    for curve in result.curves:
        for number, layers in enumerate(curve.layers):
            values = (f"{getattr(curve, name)[number]:.3f}" for name in shown.values())
            label = f"{curve.order} {len(curve.layers[0]) - len(layers)}"
            made.add_row(label, ", ".join(map(str, layers)), *values)
        made.add_section()
    return [made]


PRUNE = results.Analysis("prune", Pruning, _told, {"prune": draw_pruning})


def run_prune(path: str, options: PruneConfig, fine_tune: results.FineTune) -> None:
    """Take layers away, print and draw what is lost, and write the smaller model into the output."""
    model = load(path)
    score = _score(model, options, fine_tune)
    given = {"score": score, "score_name": "" if score is None else score.name}
    compute = results.call_with(prune, options, model, depth=options.depth, **given)
    result = PRUNE.run_on_texts(options, [model], compute, options.task_data)
    _write_model(keep_layers(model, result.layers), result, epath.Path(options.output) / "model")


def _score(
    model: PretrainedModel, options: PruneConfig, fine_tune: results.FineTune
) -> results.TaskScore | results.FineTunedScore | None:
    """Return what measures a task: the model as it is if it has been fine-tuned, else its fine-tuning."""
    if not options.task_data:
        return None
    data = TaskDataConfig(dir=options.task_data)
    if model.head is not None:
        return results.TaskScore(model, data, options.task, options.batch_size)
    if not options.task:
        raise UserError(
            f"{model.path} is a pre-trained model, which is fine-tuned for a score; give --task=NAME, or a fine-tuned "
            "model"
        )
    own = dataclasses.replace(task_defaults(options.task).data, dir=options.task_data)
    given = {name: getattr(options, name) for name in ("epochs", "learning_rate", "seeds", "seed")}
    return results.FineTunedScore(options.task, own, epath.Path(options.output) / "fine_tuned", fine_tune, **given)


def _write_model(smaller: PretrainedModel, result: Pruning, directory: epath.Path) -> None:
    """Save the model, unless it is there; a different model there is left alone."""
    if directory.exists() and any(directory.iterdir()):
        if results.model_fingerprint(load(directory)) != results.model_fingerprint(smaller):
            raise UserError(
                f"{directory} holds a model that differs from this result; remove it, and the same command writes the "
                "new one without computing the result again"
            )
    else:
        smaller.save(directory)
    print(
        f"{os.fspath(directory)}: the model with the layers {', '.join(map(str, result.layers))}; continue with "
        f"bert-jax pretrain … --init_from={os.fspath(directory)} --model.num_layers={len(result.layers)}, finetune or "
        "convert"
    )
