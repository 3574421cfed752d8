"""What the tests of plans share: a place for what compilers say."""

import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def kept_plans() -> None:
    """Keep what a compiler says of a program for the next run of the tests, as users' plans keep it, below build/.

    The text of the program, the machine, and the versions and options of the compiler are its name.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(ROOT / "build" / "cache"))
        yield
