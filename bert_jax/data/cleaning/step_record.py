"""What a cleaning step did to a corpus: counts that add up, and samples that do not depend on who counted what."""

import dataclasses
import hashlib
from collections.abc import Iterable

SAMPLES = 5
SAMPLE_CHARACTERS = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepRecord:
    """What one step did, in a block or in a whole corpus."""

    step: str
    """Name of the step, and of the rule after a dot: quality.gopher.stop_words."""
    documents: int = 0
    """Documents removed in whole."""
    paragraphs: int = 0
    """Paragraphs removed or changed, those of removed documents aside."""
    characters: int = 0
    """Characters that are gone."""
    samples: tuple[str, ...] = ()
    """Beginnings of what was removed, or of paragraphs before they were changed: those with the smallest hashes."""


def record(step: str, sample: str, *, documents: int = 0, paragraphs: int = 0, characters: int = 0) -> StepRecord:
    """Return the record of one removal or change; `sample`: the text that shows it."""
    return StepRecord(
        step=step,
        documents=documents,
        paragraphs=paragraphs,
        characters=characters,
        samples=(sample[:SAMPLE_CHARACTERS],),
    )


def merged(records: Iterable[StepRecord]) -> tuple[StepRecord, ...]:
    """Return one record per step, sorted by name; it does not depend on the order in which they are given."""
    by_step: dict[str, list[StepRecord]] = {}
    for each in records:
        by_step.setdefault(each.step, []).append(each)
    return tuple(_sum(step, by_step[step]) for step in sorted(by_step))


def _sum(step: str, records: list[StepRecord]) -> StepRecord:
    samples = {sample for each in records for sample in each.samples}
    return StepRecord(
        step=step,
        documents=sum(each.documents for each in records),
        paragraphs=sum(each.paragraphs for each in records),
        characters=sum(each.characters for each in records),
        samples=tuple(sorted(samples, key=_place)[:SAMPLES]),
    )


def _place(sample: str) -> bytes:
    return hashlib.blake2b(sample.encode("utf-8", "replace"), digest_size=8).digest()
