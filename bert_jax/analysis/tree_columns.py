"""The columns of CoNLL-U that say how the words of a sentence depend on one another."""

from bert_jax.errors import UserError
from bert_jax.tasks.ner import conll

HEAD, RELATION = 7, 8
"""Numbers of the columns, from 1."""


def heads_of(sentence: conll.Sentence) -> list[int]:
    """Return the place of each word's head, -1 for the root, of a sentence whose tags are those of column HEAD.

    Raises:
      UserError: a head is no number, the word itself, or beyond the sentence. Names file and line.
    """
    found = []
    for word, (head, place) in enumerate(zip(sentence.need_tags(), sentence.places, strict=True)):
        if not (head.isascii() and head.isdigit()) or int(head) > len(sentence.words) or int(head) == word + 1:
            raise UserError(
                f"{place}: the head {head!r} of {sentence.words[word]!r} must be the number of a different one of the "
                f"{len(sentence.words)} words, or 0 for the root"
            )
        found.append(int(head) - 1)
    return found
