"""Paths of a cloud that lead into a directory of this machine."""

import contextlib

from etils import epath


@contextlib.contextmanager
def bucket(directory):
    """gs:// paths lead into a local directory."""
    local = epath.gpath._PREFIX_TO_BACKEND[None]

    class Bucket(type(local)):
        def __getattribute__(self, name):
            method = getattr(local, name)
            plain = lambda path: str(path).replace("gs://", f"{directory}/")
            if name == "glob":
                return lambda pattern: [found.replace(f"{directory}/", "gs://", 1) for found in method(plain(pattern))]
            if name in ("rename", "replace", "copy"):
                return lambda source, target, *args, **options: method(plain(source), plain(target), *args, **options)
            return lambda path, *args, **options: method(plain(path), *args, **options)

    original = epath.gpath._GPath._backend
    epath.gpath._GPath._backend = property(lambda path: Bucket() if path._uri_scheme == "gs" else original.fget(path))
    try:
        yield
    finally:
        epath.gpath._GPath._backend = original
