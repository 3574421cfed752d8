"""A device without memory, in place of any function that would put something there."""

import jax

TEXT = "RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes."
DOES_NOT_FIT = r"does not fit into the memory of a device \(RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes\.\)"


def full_device(*arguments, **options):
    raise jax.errors.JaxRuntimeError(TEXT)
