"""A disk that fails from some moment on: writing to chosen files raises what a full or a broken disk raises."""

import builtins
import contextlib
import os
from collections.abc import Callable, Iterator

import pytest

WRITING = set("wax+")


@contextlib.contextmanager
def failing(code: int, is_hit: Callable[[str], bool]) -> Iterator[list[str]]:
    """Have whatever Python writes to a path with `is_hit` raise OSError(code); yield the paths that were tried."""
    tried = []

    def check(path) -> None:
        path = os.fspath(path) if isinstance(path, str | os.PathLike) else os.readlink(f"/proc/self/fd/{path}")
        if is_hit(path):
            tried.append(path)
            raise OSError(code, os.strerror(code), path)

    def guarded(call, writes=lambda *_, **__: True, which: int = 0):
        def patched(*arguments, **options):
            if writes(*arguments, **options):
                check(arguments[which])
            return call(*arguments, **options)

        return patched

    def is_for_writing(path, mode="r", *_, **__) -> bool:
        return isinstance(path, str | os.PathLike) and bool(WRITING & set(mode))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "open", guarded(open, is_for_writing))
        patch.setattr(os, "open", guarded(os.open, lambda path, flags, *_, **__: bool(flags & os.O_ACCMODE)))
        for name, which in (("write", 0), ("mkdir", 0), ("rename", 1), ("replace", 1)):
            patch.setattr(os, name, guarded(getattr(os, name), which=which))
        yield tried
