"""What every attention head does over a corpus: where it looks, which heads are alike, what it is worth."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from bert_jax.analysis.head_behaviour.attention_batches import batch_fitting
from bert_jax.analysis.head_behaviour.head_ablation import HeadAblation, head_ablation
from bert_jax.analysis.head_behaviour.head_distances import DivergenceSums, clusters_of, scaled_map
from bert_jax.analysis.head_behaviour.head_relations import HeadRelations, head_relations
from bert_jax.analysis.head_behaviour.head_statistics import HeadSums
from bert_jax.analysis.head_behaviour.parsed_text import ParsedText
from bert_jax.analysis.text_sample import windows
from bert_jax.console.progress_bar import progress_bar
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel

WINDOW = 256  # texts in memory at a time


@dataclasses.dataclass(frozen=True)
class HeadBehaviour:
    """Measures of N layers of A heads: float64 [N, A], means over tokens, unless something else is said.

    Clark et al. 2019, "What Does BERT Look At?", sections 3 to 6, measure the same.
    """

    previous: np.ndarray
    """Share of the attention of a token that goes to the token before it; of tokens that have one."""
    next: np.ndarray
    """Share that goes to the token after it."""
    itself: np.ndarray
    """Share that goes to the token itself."""
    cls: np.ndarray
    """Share that goes to [CLS]."""
    sep: np.ndarray
    """Share that goes to the separators [SEP] of the text, together."""
    punctuation: np.ndarray
    """Share that goes to all punctuation, of tokens of texts that have some."""
    distance: np.ndarray
    """Mean distance, in tokens, of what is attended to."""
    entropy: np.ndarray
    """Entropy of a token's attention in nats: 0 for a single token."""
    broadness: np.ndarray
    """exp(entropy) over the tokens of the text: 1 for attention to all tokens alike, little for a single one."""
    uniform: np.ndarray
    """[9]: what these nine would be for heads that attend to every token of a text alike."""
    divergence: np.ndarray
    """[N · A, N · A]: mean Jensen-Shannon divergence between the attention of two heads, in nats; layer by layer."""
    points: np.ndarray
    """[N · A, 2]: a map whose distances are about the roots of the divergences."""
    clusters: np.ndarray
    """[N · A]: the cluster of each head, from 0, the largest first."""
    ablation: HeadAblation
    """What the loss of masked words gains without each head."""
    relations: HeadRelations
    """Whether heads find syntactic heads and antecedents."""
    texts: int
    """Number of texts."""
    tokens: int
    """Number of their tokens, special ones included."""
    map_error: float
    """Largest difference between the last states of the first texts that were computed with and without returning the
    attention: rounding, if the maps are those of the faster computation."""
    model: str
    """Path of the model."""


def heads(
    model: PretrainedModel,
    texts: Iterable[str],
    trees: Sequence[ParsedText] = (),
    *,
    clusters: int = 4,
    ablation_texts: int = 200,
    seed: int = 0,
    batch_size: int = 32,
    max_length: int | None = None,
    progress: bool = True,
) -> HeadBehaviour:
    """Return what every attention head of a model does over texts.

    Args:
      model: a Transformer with a tokenizer.
      texts: one or more; they may be a stream of any length, of which a few hundred are in memory at a time.
      trees: parsed sentences (`read_parsed`), on which attention to syntactic heads and antecedents is measured.
      clusters: number of clusters of heads.
      ablation_texts: number of texts, the first ones, in which words are masked and predicted without each head. 0:
        none are.
      seed: of what is drawn at random.
      batch_size: number of texts that the model reads at once, fewer if their attention would not fit into memory.
      max_length: tokens per text; None: as many as the model has positions.
      progress: whether to show bars.

    Raises:
      UserError: the model has no heads, there are no texts, or an option cannot work.
    """
    _check(model, clusters, ablation_texts)
    layers, count = model.config.num_layers, model.config.num_heads
    sums = HeadSums(layers, count, model.need_tokenizer())
    between, held, number, error = DivergenceSums(layers * count, seed), [], 0, np.nan
    with progress_bar("texts", None, visible=progress) as move_to:
        for window in windows(texts, WINDOW):
            held += itertools.islice(window, max(0, ablation_texts - len(held)))
            size = batch_fitting(model, window, batch_size, max_length)
            error = _map_error(model, window[:size], max_length) if not number else error
            for numbers, part in model.encode_batches(
                window, attentions=True, batch_size=size, max_length=max_length, progress=False
            ):
                assert part.attentions is not None
                for row, ids in enumerate(part.input_ids):
                    length = int(part.attention_mask[row].sum())
                    weights = np.stack([layer[row, :, :length, :length] for layer in part.attentions])
                    sums.add(weights, ids[:length])
                    between.add(weights.reshape(layers * count, length, length))
                number += len(numbers)
                move_to(number)
    divergence = between.means()
    shared = {"batch_size": batch_size, "max_length": max_length, "progress": progress}
    return HeadBehaviour(
        *sums.means(),
        uniform=sums.uniform(),
        divergence=divergence,
        points=scaled_map(divergence),
        clusters=clusters_of(divergence, clusters).astype(np.float64),
        ablation=head_ablation(model, held, seed=seed, **shared),
        relations=head_relations(model, trees, **shared),
        texts=number,
        tokens=sums.tokens,
        map_error=error,
        model=model.path,
    )


def _check(model: PretrainedModel, clusters: int, ablation_texts: int) -> None:
    if model.config.layer == "lstm" or not model.config.num_layers:
        kind = "recurrent layers" if model.config.layer == "lstm" else "no layers"
        raise UserError(f"{model.path} has {kind} and no attention heads; give a Transformer")
    number = model.config.num_layers * model.config.num_heads
    if not 1 <= clusters <= number:
        raise UserError(f"clusters={clusters} must be from 1 to the {number} heads of {model.path}")
    if ablation_texts < 0:
        raise UserError(f"ablation_texts={ablation_texts} must be 0 or more")


def _map_error(model: PretrainedModel, texts: list[str], max_length: int | None) -> float:
    """Return the largest difference between states computed with and without returning the attention."""
    states = [
        model.encode(texts, attentions=attentions, max_length=max_length, progress=False).last_hidden_state
        for attentions in (False, True)
    ]
    return float(np.abs(states[0] - states[1]).max())
