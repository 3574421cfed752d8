"""The configurations and studies that come with bert_jax, by name: `bert_base` is the file configs/bert_base.py.

They are next to the package in a checkout, and inside it in an installed wheel.
"""

import pathlib

_PACKAGE = pathlib.Path(__file__).resolve().parents[1]


def shipped_configs() -> dict[str, pathlib.Path]:
    """Return {name: file} of the shipped configurations, sorted by name."""
    return {file.stem: file for file in sorted(_directory().glob("*.py"))}


def shipped_studies() -> dict[str, pathlib.Path]:
    """Return {name: file} of the shipped studies, sorted by name."""
    return {file.stem: file for file in sorted((_directory() / "studies").glob("*.py"))}


def _directory() -> pathlib.Path:
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"
