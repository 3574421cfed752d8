"""Sentences of CoNLL-U files: words, the head and relation of each, and the antecedents of mentions if they are marked.

Antecedents come from `Entity=` in the last column, as in CorefUD and GUM: `Entity=(e1-person` begins a mention of e1,
`e1)` ends it, `(e1-person)` is one of a single word.
"""

import dataclasses
import os
import re

from bert_jax.analysis.tree_columns import HEAD, RELATION, heads_of
from bert_jax.config.task_options import TaskDataConfig
from bert_jax.errors import UserError
from bert_jax.tasks.ner import conll

_MORE = 10  # the last column of CoNLL-U
_BRACKET = re.compile(r"\((?P<begun>[^()\-\[|]+)[^()]*(?P<single>\))?|(?P<ended>[^()\-\[|]+)[^()]*\)")


@dataclasses.dataclass(frozen=True)
class Mention:
    """A mention of something that was mentioned before in the sentence; each mention is named by its syntactic head."""

    word: int
    """Place of the mention."""
    antecedents: tuple[int, ...]
    """Places of the earlier mentions of the same thing."""
    nearest: int
    """Place of the earlier mention, of anything, that is nearest."""


@dataclasses.dataclass(frozen=True)
class ParsedText:
    """A sentence of W words."""

    words: tuple[str, ...]
    """The words."""
    heads: tuple[int, ...]
    """Place of the head of each word; -1: it is the root."""
    relations: tuple[str, ...]
    """Relation of each word to its head, without its subtype."""
    mentions: tuple[Mention, ...] = ()
    """Those with an antecedent."""


def read_parsed(file: str | os.PathLike[str]) -> list[ParsedText]:
    """Return the sentences of a *.conllu file.

    Raises:
      UserError: the file has another name, cannot be read, or has a head that is no word. Names file and line.
    """
    if not os.fspath(file).endswith(".conllu"):
        raise UserError(f"trees={os.fspath(file)} must be a CoNLL-U file, *.conllu (if it is compressed, unpack it)")
    columns = [conll.read(file, TaskDataConfig(tag_column=column)) for column in (HEAD, RELATION, _MORE)]
    return [_parsed(*sentences) for sentences in zip(*columns, strict=True)]


def _parsed(sentence: conll.Sentence, related: conll.Sentence, marked: conll.Sentence) -> ParsedText:
    heads = heads_of(sentence)
    relations = tuple(relation.partition(":")[0] for relation in related.need_tags())
    return ParsedText(sentence.words, tuple(heads), relations, _mentions(marked.need_tags(), heads))


def _mentions(notes: tuple[str, ...], heads: list[int]) -> tuple[Mention, ...]:
    """Return the mentions with an antecedent; a mention that does not end in the sentence is none."""
    spans: list[tuple[int, int, str]] = []
    begun: dict[str, list[int]] = {}
    for word, note in enumerate(notes):
        entity = next((part[7:] for part in note.split("|") if part.startswith("Entity=")), "")
        for bracket in _BRACKET.finditer(entity):
            if bracket["single"]:
                spans.append((word, word, bracket["begun"]))
            elif bracket["begun"]:
                begun.setdefault(bracket["begun"], []).append(word)
            elif begun.get(bracket["ended"]):
                spans.append((begun[bracket["ended"]].pop(), word, bracket["ended"]))
    named = sorted({(_syntactic_head(first, last, heads), entity) for first, last, entity in spans})
    found = []
    for word, entity in named:
        earlier = tuple(other for other, of in named if of == entity and other < word)
        if earlier:
            found.append(Mention(word, earlier, max(other for other, _ in named if other < word)))
    return tuple(found)


def _syntactic_head(first: int, last: int, heads: list[int]) -> int:
    """Return the first word of a span whose head is outside of it."""
    return next((word for word in range(first, last + 1) if not first <= heads[word] <= last), last)
