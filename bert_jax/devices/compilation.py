"""Compilation by XLA: options of a training step, and JAX's persistent cache of compiled programs.

Compiled programs lie in the user's cache directory. JAX writes an entry directly under its final name, so a killed
process leaves a torn entry, which JAX neither runs (it does not decompress) nor writes again. Therefore every entry
is decompressed once before its first use by a later process, and marked as whole.
"""

import hashlib
import os
import pathlib
import platform
import zlib
from collections.abc import Mapping
from typing import Any

import filelock
import jax
import jaxlib
from absl import logging
from jax.sharding import Mesh

from bert_jax.config import ComputeConfig
from bert_jax.files import cache_directory

MAX_BYTES = 1 << 30  # per machine and version of JAX; the least recently used programs are removed first
MIN_COMPILE_SECONDS = 0.2  # loading a small program takes a few milliseconds
ENTRY, USED, WHOLE = "-cache", "-atime", "-whole"  # NAME-cache and NAME-atime are JAX's, NAME-whole is ours
ZSTANDARD = b"\x28\xb5\x2f\xfd"
PROCESSOR = ("vendor_id", "model name", "flags", "CPU implementer", "CPU part", "CPU variant", "Features")


def use_compilation_cache() -> None:
    """Keep compiled programs for later processes, unless JAX's own options name a directory or turn its cache off.

    `load` and the commands call this; importing bert_jax changes nothing. A directory that cannot be used is no error.
    """
    if _option("jax_compilation_cache_dir") is not None or not _option("jax_enable_compilation_cache"):
        return
    directory = cache_directory() / "programs" / _compiled_for()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:  # the programs in it will be executed
            return
    except OSError:  # not writable, or full
        return
    for option, value in (
        ("jax_compilation_cache_max_size", MAX_BYTES),
        ("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_SECONDS),
    ):
        if option.upper() not in os.environ:
            jax.config.update(option, value)
    try:
        # Without a limit JAX neither locks the directory nor records times of use.
        if _option("jax_compilation_cache_max_size") != -1:
            discard_torn(directory)
    except OSError:  # locked by another process for too long
        return
    jax.config.update("jax_compilation_cache_dir", str(directory))


def discard_torn(directory: pathlib.Path) -> None:
    """Delete the entries of a cache that were not completely written; each is read once, under JAX's own lock.

    Raises:
      OSError: the directory cannot be written, or another process holds the lock for ten seconds.
    """
    with filelock.FileLock(directory / ".lockfile", timeout=10):
        for entry in directory.glob(f"*{ENTRY}"):
            used, whole = (entry.with_name(entry.name.removesuffix(ENTRY) + suffix) for suffix in (USED, WHOLE))
            if whole.exists() and whole.stat().st_mtime_ns >= entry.stat().st_mtime_ns and used.exists():
                continue
            if used.exists() and _decompresses(entry.read_bytes()):
                whole.touch()
            else:  # JAX reads NAME-atime of every entry before it writes another
                entry.unlink()
        for suffix in (USED, WHOLE):
            for other in directory.glob(f"*{suffix}"):
                if not other.with_name(other.name.removesuffix(suffix) + ENTRY).exists():
                    other.unlink()


def _option(name: str):
    return getattr(jax.config, name)  # which declares none of its options


def _decompresses(contents: bytes) -> bool:
    try:
        if contents.startswith(ZSTANDARD):
            import zstandard  # if it is installed, JAX compresses with it  # pyright: ignore[reportMissingImports]

            zstandard.ZstdDecompressor().decompress(contents)
        else:
            zlib.decompress(contents)
    except Exception:  # zlib.error, ZstdError, or ImportError if it has been removed
        return False
    return True


def _compiled_for() -> str:
    """Return a name for the versions of JAX and the processor, whose instructions other processors may not have.

    Several machines can share a home directory.
    """
    try:
        first = pathlib.Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except (OSError, UnicodeDecodeError):
        first = []
    lines = [line for line in first if line.split(":")[0].strip() in PROCESSOR]
    content = "\n".join([platform.system(), platform.machine(), platform.processor(), *lines])
    return (
        f"jax-{jax.__version__}-jaxlib-{jaxlib.version.__version__}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    )


OVERLAP = {
    "xla_enable_async_all_reduce": True,
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": True,
    "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
    "xla_tpu_enable_async_collective_fusion_while_loops": True,
    "xla_tpu_overlap_compute_collective_tc": True,
    # By default all sums are merged into one, which waits for the last gradient.
    "xla_jf_crs_combiner_threshold_in_bytes": str(2**20),
}
"""On TPUs, sums over chips that run in one fusion with a product (docs/planning.md, "Sums over chips")."""
APART = {"xla_gpu_dot_merger_threshold_mb": "0"}
"""On GPUs, no products of one operand that are made one: their gradients would be concatenated, and summed after it."""
UNKNOWN = "No such compile option"


def step_options(compute: ComputeConfig, mesh: Mesh) -> Mapping[str, bool | str]:
    """Return the options of the compiler for a training step on the devices of `mesh`."""
    platform = mesh.devices.flat[0].platform
    if platform == "gpu":
        return APART
    return OVERLAP if compute.overlap and mesh.size > 1 and platform == "tpu" else {}


def compile_with(
    lowered: jax.stages.Lowered, options: Mapping[str, Any], fallback: Mapping[str, Any] | None = None
) -> Any:
    """Compile a traced function with `options`, or with `fallback` and a warning if this compiler lacks one of them."""
    if not options:
        return lowered.compile()
    try:
        return lowered.compile(compiler_options=dict(options))
    except jax.errors.JaxRuntimeError as error:
        if UNKNOWN not in str(error):
            raise
        logging.warning(
            "this compiler does not know an option (%s), so the step is compiled without such options and may be "
            "slower: on TPUs, gradients are summed over chips after the backward pass, not during it, and "
            "--compute.overlap=False silences this warning",
            " ".join(str(error).split())[:200],
        )
        return lowered.compile(compiler_options=dict(fallback or {}) or None)
