"""Opening a token store: its files are verified, and a remote one is copied to the local disk first."""

import os
import pathlib
import shutil
import uuid

from etils import epath

from bert_jax.data.store.manifest import Manifest, read_manifest
from bert_jax.data.store.store import Store
from bert_jax.data.store.verification import verify
from bert_jax.errors import UserError
from bert_jax.files import cache_directory


def open_store(path: str | os.PathLike[str], cache: str = "") -> Store:
    """Open the store at `path` and verify its files; a remote one is copied to `cache` first, once.

    Args:
      path: directory, local or gs://.
      cache: local directory for copies of remote stores; empty: the user's cache directory.

    Raises:
      UserError: there is no store, its manifest is damaged, or its files are not what `prepare` wrote.
    """
    directory = epath.Path(path).expanduser()
    manifest = read_manifest(directory)
    if "://" in os.fspath(directory):
        return _local_copy(directory, manifest, pathlib.Path(cache).expanduser() if cache else cache_directory())
    return _verified(pathlib.Path(directory), manifest)


def _verified(directory: pathlib.Path, manifest: Manifest) -> Store:
    store = Store(directory, manifest)
    verify(store)
    return store


def _local_copy(remote: epath.Path, manifest: Manifest, cache: pathlib.Path) -> Store:
    local = cache / manifest.fingerprint
    if local.is_dir():
        return _verified(local, manifest)
    partial = cache / f"{manifest.fingerprint}.{uuid.uuid4().hex}.partial"
    try:
        (partial / "tokenizer").mkdir(parents=True)
        for file in manifest.files:
            with (remote / file.name).open("rb") as source, (partial / file.name).open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 24)
        _verified(partial, manifest)
        (partial / "manifest.json").write_text((remote / "manifest.json").read_text())
        os.rename(partial, local)
    except OSError as error:
        if not local.is_dir():  # another process may have finished the same copy meanwhile
            raise UserError(f"cannot copy {remote} to {cache}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Store(local, manifest)
