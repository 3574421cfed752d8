"""The software of a process: versions of its libraries, and the code of bert_jax that it runs."""

import hashlib
import importlib.metadata
import pathlib
import platform
import subprocess

PACKAGES = ("bert_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
PACKAGE_DIRECTORY = pathlib.Path(__file__).resolve().parents[1]


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that affect numbers."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # used from a source tree
            found[package] = None
    return found


def sources(directory: pathlib.Path = PACKAGE_DIRECTORY) -> dict[str, str]:
    """Return {name: SHA-256} of the Python files below `directory`, whether under version control or not."""
    return {
        file.relative_to(directory).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(directory.rglob("*.py"))
    }


def commit() -> str | None:
    """Return the commit of the source tree that this code runs from, "-dirty" if files differ; None if installed."""
    root = PACKAGE_DIRECTORY.parent
    if not (root / ".git").exists():
        return None
    try:
        return subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
