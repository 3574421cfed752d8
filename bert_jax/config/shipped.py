"""The configurations that come with bert_jax, by name: `bert_base` is the file configs/bert_base.py.

They are beside the package in a checkout, and inside it in an installed wheel.
"""

import pathlib

_PACKAGE = pathlib.Path(__file__).resolve().parents[1]


def shipped_configs() -> dict[str, pathlib.Path]:
    """Return {name: file} of the shipped configurations, sorted by name."""
    inside = _PACKAGE / "configs"
    directory = inside if inside.is_dir() else _PACKAGE.parent / "configs"
    return {file.stem: file for file in sorted(directory.glob("*.py"))}
