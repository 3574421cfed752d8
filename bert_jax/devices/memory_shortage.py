"""What is said where the memory of a device runs out, by a compiler or by an allocator."""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Sequence

import jax

from bert_jax.errors import UserError

DOES_NOT_FIT = "RESOURCE_EXHAUSTED"
"""How the messages of compilers and allocators begin when memory runs out."""
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Shortage:
    """A program that does not fit."""

    needed: int
    """Bytes that the program needs, as far as the compiler reports them."""
    available: int
    """Bytes that are available."""
    what: str
    """What the needed bytes are for: HLO temporaries, or the whole program."""


def shortage_of(failure: str) -> Shortage:
    """Return what the compiler's message about a program that does not fit says."""
    match = re.search(
        r"memory required for (.*?) \(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)", failure
    )
    if match:
        return Shortage(_bytes(match[2], match[3]), _bytes(match[4], match[5]), match[1])
    match = re.search(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm", failure)
    if match:
        return Shortage(_bytes(match[1], match[2]), _bytes(match[3], match[4]), "the program")
    return Shortage(0, 0, failure.splitlines()[0][:200])


def tells_of_memory(error: Exception) -> bool:
    """Return whether an error says that the memory of a device has run out."""
    return re.search(f"{DOES_NOT_FIT}|Out of memory", str(error)) is not None  # the latter alone where a CPU had begun


def memory_error(error: Exception, what: str, remedies: Sequence[str]) -> Exception:
    """Return a UserError with `remedies` if `error` says that memory has run out, else `error` itself.

    Args:
      error: from a compilation or a computation.
      what: does not fit, such as a phase.
      remedies: what saves memory.
    """
    if not tells_of_memory(error):
        return error
    shortage = shortage_of(str(error))
    missing = (
        f"{shortage.what} needs {shortage.needed / 2**30:.2f} GiB, {shortage.available / 2**30:.2f} GiB are there"
        if shortage.needed
        else shortage.what
    )
    return UserError(f"{what} does not fit into the memory of a device ({missing}); what helps: {'; '.join(remedies)}")


@contextlib.contextmanager
def memory_advice(what: str, remedies: Sequence[str]) -> Iterator[None]:
    """Raise `memory_error` in place of the error of a device whose memory runs out within."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        answer = memory_error(error, what, remedies)
        if answer is error:
            raise
        raise answer from error


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * UNITS[unit])
