"""Long contexts as overlapping windows together with their question, as in run_squad.py of google-research/bert.

The original maps answers to tokens and back by searching for texts (`_improve_answer_span`, `get_final_text`); here the
character offsets of the tokenizer give the exact positions.
"""

import dataclasses
import functools
import unicodedata

import numpy as np

from bert_jax.config.task_options import TaskOptions
from bert_jax.data.sequences.features import Features
from bert_jax.data.sequences.lengths import Uncut
from bert_jax.errors import UserError
from bert_jax.tasks.squad.reading import Examples
from bert_jax.tokenization.segments import assembled, text_start
from bert_jax.tokenization.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Context:
    """The T tokens of one context."""

    ids: np.ndarray
    """int32 [T]."""
    starts: np.ndarray
    """int32 [T]: first character that each token came from."""
    ends: np.ndarray
    """int32 [T]: character after the last one that each token came from."""


@dataclasses.dataclass(frozen=True)
class SpanFeatures(Features):
    """[CLS] question [SEP] window [SEP] for every window of every question, and what reading answers needs.

    Position 0 stands for "no answer" in every format of pairs.
    """

    prefix: np.ndarray
    """int32 [E]: number of tokens before the window, [CLS] and [SEP] included."""
    suffix: int
    """Number of tokens after the window: its [SEP] and, where the class token is the last, this."""
    first: np.ndarray
    """int32 [E]: index of the window's first token among those of its context."""
    contexts: list[Context]
    options: TaskOptions


def features(examples: Examples, tokenizer: Tokenizer, options: TaskOptions) -> SpanFeatures:
    """Return every question with every window of its context, in order; a window without the answer is labelled (0, 0).

    Questions are cut after `max_query_length` tokens; windows start `doc_stride` tokens apart and fill the rest.

    Raises:
      UserError: max_length leaves no room for a context, or the tokenizer leaves nothing of a context.
    """
    between, suffix = [tokenizer.sep_id] * tokenizer.separators, 1 + tokenizer.class_last
    if options.max_length <= options.max_query_length + 2 + len(between):
        raise UserError(
            f"options.max_length={options.max_length} leaves no room next to a question of "
            f"options.max_query_length={options.max_query_length} tokens, [CLS] and {1 + len(between)} [SEP]; "
            f"it must be above {options.max_query_length + 2 + len(between)}"
        )
    contexts = [encode(text, tokenizer) for text in examples.contexts]
    queries = tokenizer.encode_batch([question.text for question in examples.questions])
    rows = []
    for example, (question, query) in enumerate(zip(examples.questions, queries, strict=True)):
        context, query = contexts[question.context], query[: options.max_query_length]
        if not len(context.ids):
            raise UserError(
                f"question {question.id}: the tokenizer leaves nothing of its context "
                f"{examples.contexts[question.context]!r:.80}; an answer must be a part of the context"
            )
        span = answer_tokens(context, *question.span) if question.span else None
        prefix = text_start(tokenizer) + len(query) + len(between)
        for first, length in windows(len(context.ids), options.max_length - prefix - suffix, options.doc_stride):
            ids, types = assembled(tokenizer, query, context.ids[first : first + length].tolist())
            types = _shared(types.tobytes())  # which would otherwise double the memory
            label = _label(span, first, length, prefix)
            rows.append((ids, types, label, example, prefix, first))
    ids, types, labels, *columns = zip(*rows, strict=True)
    example, prefix, first = (np.array(column, np.int32) for column in columns)
    uncut = Uncut(
        np.array([len(query) for query in queries]),
        options.max_query_length,
        "questions",
        "max_query_length",
        most=options.max_length - 3 - len(between),
    )  # beside [CLS], each [SEP] and one token of the context
    return SpanFeatures(
        list(ids),
        list(types),
        np.array(labels, np.int32) if examples.has_answers else None,
        example,
        options.max_length,
        prefix,
        suffix,
        first,
        contexts,
        options,
        uncut=uncut,
    )


def encode(text: str, tokenizer: Tokenizer) -> Context:
    """Tokenize one context. SentencePiece includes the space before a word in its first piece; `read` strips it."""
    ids, offsets = tokenizer.encode_with_offsets(text)
    offsets = np.array(offsets, np.int32).reshape(-1, 2)
    return Context(np.array(ids, np.int32), offsets[:, 0], offsets[:, 1])


def windows(tokens: int, room: int, step: int) -> list[tuple[int, int]]:
    """Return (first token, length) of each window over `tokens` tokens, at most `room` long and `step` apart.

    The last window is the first one that reaches the end. Hugging Face's `doc_stride` is the overlap, not the step.
    """
    step = min(step, room)
    count = 1 + max(0, -(-(tokens - room) // step))
    return [(index * step, min(room, tokens - index * step)) for index in range(count)]


def has_most_context(spans: list[tuple[int, int]]) -> list[np.ndarray]:
    """Return for each window bool [length]: the tokens that no other window shows with more context.

    Context is the smaller number of tokens to the left and right, plus 0.01 × length; the earlier window wins a tie.
    """
    if len(spans) == 1:
        return [np.ones(spans[0][1], bool)]
    position = np.arange(max(first + length for first, length in spans))
    scores = np.full((len(spans), len(position)), -np.inf)
    for row, (first, length) in zip(scores, spans, strict=True):
        inside = position[first : first + length]
        row[first : first + length] = np.minimum(inside - first, first + length - 1 - inside) + 0.01 * length
    best = scores.argmax(axis=0)
    return [best[first : first + length] == index for index, (first, length) in enumerate(spans)]


def answer_tokens(context: Context, start: int, end: int) -> tuple[int, int] | None:
    """Return (first, last) of the tokens that share a character with [start, end); None if none remains.

    An answer that begins or ends inside a token includes the whole token.
    """
    first = int(np.searchsorted(context.ends, start, side="right"))
    last = int(np.searchsorted(context.starts, end, side="left")) - 1
    return (first, last) if first <= last else None


def read(text: str, context: Context, first: int, last: int) -> str:
    """Return the characters of `text` that tokens first to last came from, without surrounding whitespace.

    Accents after the last letter are included: if the tokenizer strips accents, one that is a separate character
    belongs to no token.
    """
    end = int(context.ends[last])
    while end < len(text) and unicodedata.category(text[end]) == "Mn":
        end += 1
    return text[int(context.starts[first]) : end].strip()


def _label(span: tuple[int, int] | None, first: int, length: int, prefix: int) -> tuple[int, int]:
    if span is None or span[0] < first or span[1] >= first + length:
        return 0, 0
    return prefix + span[0] - first, prefix + span[1] - first


@functools.cache
def _shared(types: bytes) -> np.ndarray:
    """Return token_type_ids from their bytes, one array for all windows that have the same."""
    return np.frombuffer(types, np.int32)
