"""Opening a token store: a local one is verified; a remote one is copied to the local disk, file by file, as needed."""

import os
import pathlib

from etils import epath

from bert_jax.data.store.fetched_files import FetchedFiles
from bert_jax.data.store.manifest import read_manifest
from bert_jax.data.store.store import Store
from bert_jax.data.store.verification import verify
from bert_jax.files import cache_directory, is_remote


def open_store(path: str | os.PathLike[str], cache: str = "") -> Store:
    """Open the store at `path` and verify its files; those of a remote one are copied to `cache` when they are needed.

    Args:
      path: directory, local or gs://.
      cache: local directory for copies of remote stores; empty: the user's cache directory.

    Raises:
      UserError: there is no store, its manifest is damaged, or its files are not what `prepare` wrote. Files of a
        remote store that cannot be copied, or are not, raise it when they are first read.
    """
    directory = epath.Path(path).expanduser()
    manifest = read_manifest(directory)
    if is_remote(directory):
        place = pathlib.Path(cache).expanduser() if cache else cache_directory()
        copy = FetchedFiles(directory, place / manifest.fingerprint, manifest)
        copy.fetch_tokenizer()
        return Store(copy.directory, manifest, copy.fetch_shard)
    store = Store(pathlib.Path(directory), manifest)
    verify(store)
    return store
