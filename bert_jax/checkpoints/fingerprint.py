"""A checksum of array contents that is the same on every mesh and number of hosts.

Every element is hashed together with its position in the global array, and the hashes are added as wrapping integers.
Integer sums commute, so the order of reduction, and therefore the sharding, cannot change the result; a flipped bit, a
zeroed block or two exchanged elements do.
"""

import functools
import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

SEEDS = (0x9E3779B1, 0x85EBCA6B)
PIECE = 1 << 18  # elements that `host_fingerprint` hashes at once: one program serves arrays of every shape
SMALL = 1 << 18  # elements up to which an array is sooner hashed by NumPy than a program for its shape is compiled


def leaf_paths(tree: Any) -> dict[str, Any]:
    """Return a flat view of any pytree: `params/embeddings/word/table` → leaf."""
    return {"/".join(_name(key) for key in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _name(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def fingerprint(tree: Any) -> dict[str, str]:
    """Return {path: 16 hexadecimal digits} for every leaf; block until the arrays are computed."""
    leaves = leaf_paths(tree)
    # Fetched one by one: a hundred programs with collectives in flight deadlock on virtual CPU devices (jax 0.10.2).
    words = [
        _hashed_by_numpy(leaf) if _is_small(leaf) else jax.device_get(_hasher(getattr(leaf, "sharding", None))(leaf))
        for leaf in leaves.values()
    ]
    return {path: "".join(f"{int(word):08x}" for word in pair) for path, pair in zip(leaves, words, strict=True)}


def host_fingerprint(array: np.ndarray) -> str:
    """Return the 16 digits that `fingerprint` gives an array of 32-bit elements, by one program for all shapes."""
    words, sums = np.ascontiguousarray(array).reshape(-1).view(np.uint32), np.zeros(2, np.uint32)
    for start in range(0, words.size, PIECE):
        piece = words[start : start + PIECE]
        padded = piece if piece.size == PIECE else np.pad(piece, (0, PIECE - piece.size))
        placed = jax.device_put((padded, np.uint32(start % 2**32), np.uint32(piece.size)))
        sums += jax.device_get(_piece_hash(*placed))
    return "".join(f"{int(word):08x}" for word in sums)


def stored_fingerprint(arrays: dict[str, Any]) -> str:
    """Return the SHA-256 over the values of a stored model, {path: StoredArray}, which is the same in all formats."""
    digest = hashlib.sha256()
    for path in sorted(arrays):
        array = arrays[path]
        values = np.asarray(array.read((slice(None),) * len(array.shape)), np.float32)
        digest.update(f"{path} {array.shape} {host_fingerprint(values)}\n".encode())
    return digest.hexdigest()


@jax.jit
def _piece_hash(words: jax.Array, start: jax.Array, size: jax.Array) -> jax.Array:
    """Return uint32 [2]: the hash of the first `size` of `words`, which begin at index `start` of their array."""
    index = jnp.arange(PIECE, dtype=jnp.uint32)
    hashes = (_mix(words ^ _mix(start + index + np.uint32(seed))) for seed in SEEDS)
    return jnp.stack([jnp.sum(jnp.where(index < size, each, 0), dtype=jnp.uint32) for each in hashes])


def _is_small(x: Any) -> bool:
    """Return whether each host has all of a small array: all hosts answer alike, because programs wait for all."""
    sharding = getattr(x, "sharding", None)
    return np.size(x) <= SMALL and (sharding is None or jax.process_count() == 1 or sharding.is_fully_replicated)


def _hashed_by_numpy(x: Any) -> np.ndarray:
    """Return what `hashed` returns."""
    if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    values = jax.device_get(x.addressable_data(0) if getattr(x, "is_fully_replicated", False) else jnp.asarray(x))
    unsigned = {1: np.uint8, 2: np.uint16}.get(values.dtype.itemsize, np.uint32)
    words = np.ascontiguousarray(values).reshape(-1).view(unsigned).astype(np.uint32)
    position = np.arange(words.size, dtype=np.uint32)
    return np.array([_mix(words ^ _mix(position + np.uint32(seed))).sum(dtype=np.uint32) for seed in SEEDS])


@functools.cache
def _hasher(sharding: Any):
    """Return one program per sharding: leaves of equal shape (a parameter and its two moments) share a compilation."""
    if isinstance(sharding, NamedSharding):  # replicated, so that every host can read it
        return jax.jit(hashed, out_shardings=NamedSharding(sharding.mesh, PartitionSpec()))
    return jax.jit(hashed)


def hashed(x: Any) -> jax.Array:
    """Return uint32 [2] for one array: one number per seed, of its values and where they are in it."""
    words = _words(jnp.asarray(x))
    position, stride = jnp.zeros(words.shape, jnp.uint32), 1
    for axis in reversed(range(words.ndim)):
        position += jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis) * np.uint32(stride % 2**32)
        stride *= words.shape[axis]
    return jnp.stack([jnp.sum(_mix(words ^ _mix(position + np.uint32(seed))), dtype=jnp.uint32) for seed in SEEDS])


def _words(x: jax.Array) -> jax.Array:
    """Return the bits of `x` as uint32; 64-bit elements become two words on a new last axis."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    unsigned = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    return jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)


def _mix(h: Any) -> Any:
    """Return the finalizer of MurmurHash3 (Appleby, public domain): every input bit changes half of the output bits."""
    h = (h ^ (h >> 16)) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * np.uint32(0xC2B2AE35)
    return h ^ (h >> 16)
