"""The arrays of a checkpoint, each read separately from the OCDBT database that Orbax writes.

Orbax's restore reads them all in one event loop and closes it when the first one fails: every other read in flight then
prints a traceback, and no message names the damaged array.
"""

import concurrent.futures
import os
import re
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath

from bert_jax.checkpoints.record import Damaged
from bert_jax.devices.placement import StoredArray, empty, placed
from bert_jax.files import is_remote

READERS = 4  # arrays at a time: enough to hide the latency of a remote store, few enough for the memory of a host


def open_array(state: epath.Path, path: str) -> StoredArray:
    """Return one array of the directory `state`; Orbax joins the parts of a name with dots.

    Raises:
      Damaged: there is no such array, or it cannot be read; reading it later may raise this, too.
    """
    import tensorstore

    place = os.fspath(state) + "/"
    base = place if is_remote(place) else {"driver": "file", "path": place}
    store = {"driver": "ocdbt", "base": base, "path": path.replace("/", ".") + "/"}

    def finished(future: Any):
        try:
            return future.result()
        except (ValueError, OSError) as error:  # its text is a page that may begin with a status such as DATA_LOSS
            logging.info("%s: %s", path, error)
            status = re.match("[A-Z_]+(?=: )", str(error))
            raise Damaged(f"the array {path} cannot be read" + (f" ({status[0]})" if status else "")) from None

    array = finished(tensorstore.open({"driver": "auto", "kvstore": store}, open=True, read=True))

    def read(index: Any):
        part = array[index]
        values = empty(part.shape, part.dtype.numpy_dtype)
        values[...] = finished(part.read())
        return values

    return StoredArray(tuple(array.shape), np.dtype(array.dtype.numpy_dtype), read)


def read_arrays(state: epath.Path, abstract: Any) -> Any:
    """Return the arrays for `abstract`, a pytree of ShapeDtypeStructs with shardings; each device reads its part.

    Raises:
      Damaged: an array cannot be read, or has a different shape or type.
    """

    def read(path: Any, leaf: Any):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        array = open_array(state, name)
        if (array.shape, array.dtype) != (leaf.shape, leaf.dtype):
            raise Damaged(f"the array {name} is {array.dtype}{list(array.shape)}, not {leaf.dtype}{list(leaf.shape)}")
        return placed(leaf.shape, leaf.sharding, array.read, leaf.dtype)

    leaves, structure = jax.tree_util.tree_flatten_with_path(abstract)
    with concurrent.futures.ThreadPoolExecutor(READERS) as readers:
        return structure.unflatten(readers.map(lambda pair: read(*pair), leaves))
