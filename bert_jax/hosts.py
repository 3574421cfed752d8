"""What the processes of one job tell each other; with one process, nothing."""

import json

import jax
import numpy as np
from jax.experimental import multihost_utils


def from_first(value):
    """`value` of the first host, on every host: anything that JSON holds.

    For what is read from a file that the first host writes: on a network file system the others may still see the past, and
    hosts that decide differently wait for each other forever.
    """
    if jax.process_count() == 1:
        return value
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sent = np.zeros(int(multihost_utils.broadcast_one_to_all(np.int32(len(text)))), np.uint8)
    if jax.process_index() == 0:
        sent[:] = text
    return json.loads(np.asarray(multihost_utils.broadcast_one_to_all(sent)).tobytes())
