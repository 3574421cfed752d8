"""Entities in sequences of tags: schemes of prefixes, spans, and the F1 of the CoNLL shared tasks.

A tag is O (outside), or a prefix and a type, parted by the first hyphen: B-PER. Three schemes are in use:

    IOB1   I- for every word of an entity; B- only where an entity follows directly on another of the same type (CoNLL-2003)
    IOB2   B- for the first word of every entity, I- for the others
    IOBES  B- I- … E- for entities of several words, S- for those of one

Tags without these prefixes (parts of speech) are a scheme of their own, `plain`: each word is one entity of that type.
"""

import collections
from collections.abc import Iterable, Sequence

OUTSIDE = "O"
SCHEMES = ("iob1", "iob2", "iobes", "plain")
_CONTINUED, _CONTINUING = ("B", "I"), ("I", "E")

Entity = tuple[str, int, int]
"""(type, first word, last word)."""


def split(tag: str) -> tuple[str, str]:
    """("B", "PER") of B-PER; ("O", "") of O; ("", tag) of a tag without prefix."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    prefix, hyphen, kind = tag.partition("-")
    return (prefix, kind) if hyphen and prefix in ("B", "I", "E", "S") else ("", tag)


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sentence as conlleval and seqeval read them, in any scheme, however broken.

    A word goes on with the entity before it if it is I- or E-, that word is B- or I-, and the types agree; any other tag
    but O begins an entity. So O I-PER I-LOC holds two.
    """
    found: list[Entity] = []
    before = (OUTSIDE, "")
    for position, tag in enumerate(tags):
        prefix, kind = split(tag)
        if prefix in _CONTINUING and before[0] in _CONTINUED and before[1] == kind:
            found[-1] = (kind, found[-1][1], position)
        elif prefix != OUTSIDE:
            found.append((kind, position, position))
        before = (prefix, kind)
    return found


def recognise(sentences: Iterable[Sequence[str]]) -> str:
    """The scheme that a set of tagged sentences is in: one of SCHEMES.

    E- or S- occurs only in IOBES. B- after anything but the same type occurs in IOB2 and not in IOB1. Plain are tags none of
    which has a prefix; where some have, the others are mistakes, which `fault` finds.
    """
    seen, scheme = set(), "iob1"
    for tags in sentences:
        before = ""
        for prefix, kind in map(split, tags):
            seen.add(prefix)
            if prefix == "B" and before != kind:
                scheme = "iob2"
            before = kind
    if "" in seen and seen <= {"", OUTSIDE}:
        return "plain"
    return "iobes" if seen & {"E", "S"} else scheme


def fault(tags: Sequence[str], scheme: str) -> tuple[int, str] | None:
    """(word, what is wrong) for the first tag that `scheme` does not allow where it stands; None if all are fine."""
    if scheme == "plain":
        return None
    before = (OUTSIDE, "")
    for position, tag in enumerate([*tags, OUTSIDE]):
        prefix, kind = split(tag)
        if prefix not in (("O", "B", "I", "E", "S") if scheme == "iobes" else ("O", "B", "I")):
            return position, f"{tag!r} is no tag of {scheme.upper()}"
        inside = before[0] in _CONTINUED
        same = inside and before[1] == kind
        if prefix in _CONTINUING and not same and scheme != "iob1":
            return position, f"{tag} does not follow on B-{kind} or I-{kind}"
        if prefix == "B" and not same and scheme == "iob1":
            return position, f"{tag} does not follow on an entity of its type, the one place of B- in IOB1"
        if scheme == "iobes" and inside and prefix not in _CONTINUING:
            return position - 1, f"{before[0]}-{before[1]} is the last word of its entity, which has E- or S- in IOBES"
        before = (prefix, kind)
    return None


def to_iob2(tags: Sequence[str]) -> list[str]:
    """The same entities in IOB2; `plain` tags stay as they are."""
    result = list(tags)
    for kind, first, last in entities(tags):
        if split(tags[first])[0]:
            result[first : last + 1] = [f"B-{kind}", *[f"I-{kind}"] * (last - first)]
    return result


def scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and F1 over entities (all types together, and each type), and accuracy over words.

    An entity is right if type, first and last word all are. The F1 of no entities at all is 0, as seqeval has it.

    Args:
      gold, predicted: sentences of tags; the two lists agree in all lengths.
    Returns:
      precision, recall, f1, accuracy, and precision_TYPE, recall_TYPE, f1_TYPE of every type; fractions.
    """
    counts = {name: collections.Counter() for name in ("gold", "predicted", "both")}
    words = right = 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        words += len(gold_tags)
        right += sum(g == p for g, p in zip(gold_tags, predicted_tags, strict=True))
        found = {"gold": set(entities(gold_tags)), "predicted": set(entities(predicted_tags))}
        found["both"] = found["gold"] & found["predicted"]
        for name, spans in found.items():
            counts[name].update(kind for kind, _, _ in spans)
    result = _precision_recall_f1(*(counts[name].total() for name in ("both", "predicted", "gold")))
    result["accuracy"] = _share(right, words)
    for kind in sorted(counts["gold"] | counts["predicted"]):
        of_type = _precision_recall_f1(*(counts[name][kind] for name in ("both", "predicted", "gold")))
        result |= {f"{name}_{kind}": value for name, value in of_type.items()}
    return result


def _precision_recall_f1(both: int, predicted: int, gold: int) -> dict[str, float]:
    precision, recall = _share(both, predicted), _share(both, gold)
    return {"precision": precision, "recall": recall, "f1": _share(2 * precision * recall, precision + recall)}


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
