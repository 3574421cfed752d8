"""The software of a process: versions of its libraries, and which code of ours it runs."""

import hashlib
import importlib.metadata
import pathlib
import platform
import subprocess

PACKAGES = ("bert_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
PACKAGE_DIRECTORY = pathlib.Path(__file__).resolve().parents[1]


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that numbers depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # used from a source tree
            found[package] = None
    return found


def sources(directory: pathlib.Path = PACKAGE_DIRECTORY) -> dict[str, str]:
    """Return {name: SHA-256} of the Python files below `directory`, whether they are under version control or not."""
    return {
        file.relative_to(directory).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(directory.rglob("*.py"))
    }


def commit() -> str | None:
    """Return the commit of the source tree that this code runs from, "-dirty" where files differ from it; None if installed."""
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
