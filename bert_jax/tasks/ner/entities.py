"""Entities in sequences of tags: schemes of prefixes, spans, and the F1 of the CoNLL shared tasks.

A tag is O (outside), or a prefix and a type, separated by the first hyphen: B-PER. Three schemes are in use:

    IOB1   I- for every word of an entity; B- only if an entity directly follows another of the same type (CoNLL-2003)
    IOB2   B- for the first word of every entity, I- for the others
    IOBES  B- I- … E- for entities of several words, S- for those of one

Tags without these prefixes (parts of speech) are a separate scheme, `plain`: each word is one entity of that type.
"""

import collections
from collections.abc import Iterable, Sequence

OUTSIDE = "O"
SCHEMES = ("iob1", "iob2", "iobes", "plain")
_CONTINUED, _CONTINUING = ("B", "I"), ("I", "E")

Entity = tuple[str, int, int]
"""Entity as (type, first word, last word)."""


def split(tag: str) -> tuple[str, str]:
    """Return ("B", "PER") for B-PER; ("O", "") for O; ("", tag) for a tag without prefix."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    prefix, hyphen, kind = tag.partition("-")
    return (prefix, kind) if hyphen and prefix in ("B", "I", "E", "S") else ("", tag)


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of one sentence as conlleval and seqeval read them, in any scheme, however broken.

    A word continues the entity before it if it is I- or E-, the previous word is B- or I-, and the types agree; any
    other tag except O begins an entity. So O I-PER I-LOC has two.
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
    """Return the scheme of a set of tagged sentences: one of SCHEMES.

    E- or S- occurs only in IOBES. B- after anything but the same type occurs in IOB2 and not in IOB1. The scheme is
    plain if no tag has a prefix; if some have, the others are mistakes, which `fault` finds.
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
    """Return (word, message) for the first tag that `scheme` does not allow in its place, or None if all are fine."""
    if scheme == "plain":
        return None
    before = (OUTSIDE, "")
    for position, tag in enumerate([*tags, OUTSIDE]):
        prefix, kind = split(tag)
        if prefix not in (("O", "B", "I", "E", "S") if scheme == "iobes" else ("O", "B", "I")):
            return position, f"{tag!r} is not a tag of {scheme.upper()}"
        inside = before[0] in _CONTINUED
        same = inside and before[1] == kind
        if prefix in _CONTINUING and not same and scheme != "iob1":
            return position, f"{tag} does not follow B-{kind} or I-{kind}"
        if prefix == "B" and not same and scheme == "iob1":
            return position, f"{tag} does not follow an entity of its type, the only place of B- in IOB1"
        if scheme == "iobes" and inside and prefix not in _CONTINUING:
            return position - 1, f"{before[0]}-{before[1]} is the last word of its entity, which has E- or S- in IOBES"
        before = (prefix, kind)
    return None


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Return the same entities in IOB2; `plain` tags stay as they are."""
    result = list(tags)
    for kind, first, last in entities(tags):
        if split(tags[first])[0]:
            result[first : last + 1] = [f"B-{kind}", *[f"I-{kind}"] * (last - first)]
    return result


def scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return precision, recall and F1 over entities (in total and per type), and accuracy over words.

    An entity is right if its type, first and last word are. The F1 of no entities at all is 0, as in seqeval.

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
