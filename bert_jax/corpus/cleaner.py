"""Clean a document step by step, and record what each step did.

Records are counts that add up, and samples that do not depend on how the corpus was divided among workers.
"""

import dataclasses
import hashlib
from collections.abc import Iterable

from bert_jax.config.corpora import SHORTEST_OVERLAP, CleaningConfig
from bert_jax.corpus import rules
from bert_jax.corpus.contamination import Contamination, evaluation_files, read_texts
from bert_jax.errors import UserError

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


@dataclasses.dataclass(frozen=True)
class Cleaned:
    """The paragraphs of a document that stay, none if it goes in whole, and what the steps did to it."""

    lines: list[str]
    records: list[StepRecord]


class Cleaner:
    """Cleans documents; calling it has no side effect, and depends on the document and the options alone.

    A document that is longer than a block of the corpus is judged by parts.
    """

    def __init__(self, clean: CleaningConfig, language: str):
        """Read the evaluation sets, if there are any; `language`: that of the rules about words."""
        self.clean, self.english = clean, language.partition("-")[0] == "en"
        self.contamination = read_contamination(clean)
        self._steps = [
            step
            for step, wanted in (
                (self._repair, clean.unicode == "repair"),
                (self._identify, bool(clean.languages)),
                (self._judge_by_c4, "c4" in clean.quality),
                (self._judge_by_gopher, "gopher" in clean.quality),
                (self._decontaminate, self.contamination is not None),
                (self._cut_contacts, clean.contacts == "remove"),
            )
            if wanted
        ]

    def __call__(self, lines: list[str]) -> Cleaned:
        """Clean the paragraphs of one document or of a part of one."""
        records: list[StepRecord] = []
        for step in self._steps:
            if not lines:
                break
            lines = step(lines, records)
        return Cleaned(lines, records)

    def _repair(self, lines: list[str], records: list[StepRecord]) -> list[str]:
        import ftfy

        repaired = [ftfy.fix_text(line).replace("\n", " ") for line in lines]
        return _changed("unicode", lines, repaired, records)

    def _identify(self, lines: list[str], records: list[StepRecord]) -> list[str]:
        language = rules.language_of(lines)
        return lines if language in self.clean.languages else _removed(f"languages.{language}", lines, records)

    def _judge_by_c4(self, lines: list[str], records: list[StepRecord]) -> list[str]:
        kept, gone, rule = rules.clean_page(lines)
        if rule:
            return _removed(f"quality.c4.{rule}", lines, records)
        for name, removed in gone.items():
            records += [record(f"quality.c4.{name}", line, paragraphs=1, characters=len(line)) for line in removed]
        return kept

    def _judge_by_gopher(self, lines: list[str], records: list[StepRecord]) -> list[str]:
        rule = rules.broken_rule(lines, self.english)
        return _removed(f"quality.gopher.{rule}", lines, records) if rule else lines

    def _decontaminate(self, lines: list[str], records: list[StepRecord]) -> list[str]:
        assert self.contamination is not None
        shared = self.contamination.shared(lines)
        if shared.all():
            return _removed("decontaminate", lines, records)
        gone = [line for line, hit in zip(lines, shared, strict=True) if hit]
        records += [record("decontaminate", line, paragraphs=1, characters=len(line)) for line in gone]
        return [line for line, hit in zip(lines, shared, strict=True) if not hit]

    def _cut_contacts(self, lines: list[str], records: list[StepRecord]) -> list[str]:
        cut = [rules.without_contacts(line, self.clean.phone_region) for line in lines]
        return _changed("contacts", lines, cut, records)


def read_contamination(clean: CleaningConfig) -> Contamination | None:
    """Return the rows of words of the evaluation sets, None without any.

    Raises:
      UserError: a file does not exist or cannot be read (see contamination.py), or none has a text to search for.
    """
    if not clean.decontaminate:
        return None
    files = evaluation_files(clean.decontaminate)
    found = Contamination((text for file in files for text in read_texts(file)), clean.overlap)
    if not found.rows:
        raise UserError(
            f"clean.decontaminate={clean.decontaminate} holds no text of {SHORTEST_OVERLAP} words or more, so nothing "
            "could be found; give the files of an evaluation set"
        )
    return found


def _removed(step: str, lines: list[str], records: list[StepRecord]) -> list[str]:
    """Record that a document goes in whole, and return what is left of it."""
    records.append(record(step, " ".join(lines), documents=1, characters=sum(map(len, lines))))
    return []


def _changed(step: str, lines: list[str], changed: list[str], records: list[StepRecord]) -> list[str]:
    """Record which paragraphs were changed; return those of which something is left."""
    for before, after in zip(lines, changed, strict=True):
        if before != after:
            records.append(record(step, before, paragraphs=1, characters=max(len(before) - len(after), 0)))
    return [line for line in changed if line.strip()]
