"""From the options of one command to those of another that has them too; standard library only."""

import dataclasses
from typing import Any


def field_values(kind: type, options: object) -> dict[str, Any]:
    """Return the values in `options` of the fields of the dataclass `kind`, by their names."""
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(kind)}
