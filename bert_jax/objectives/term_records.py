"""The terms of an objective as values of JSON, which a run notes where it starts, for whoever reads it later."""

from collections.abc import Iterable
from typing import Any

from bert_jax.objectives.objective import Term

FIELDS: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "weight": (int, float),
    "label": str,
    "perplexity": str,
    "of_words": bool,
}
"""The fields of a term that readers of a run need, and their types."""


def records(terms: Iterable[Term]) -> list[dict[str, Any]]:
    """Return what is written of each term."""
    return [{name: getattr(term, name) for name in FIELDS} for term in terms]


def recorded_terms(written: Any) -> tuple[Term, ...]:
    """Return the terms in what `records` has returned, or nothing if it has another form: it comes from a file."""
    rows = written if isinstance(written, list) else []
    if not all(isinstance(row, dict) and _is_term(row) for row in rows):
        return ()
    return tuple(Term(**{name: row[name] for name in FIELDS}) for row in rows)


def _is_term(row: dict[str, Any]) -> bool:
    return all(isinstance(row.get(name), kind) for name, kind in FIELDS.items())
