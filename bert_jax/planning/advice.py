"""What to change where a phase does not fit into the memory of a chip."""

from collections.abc import Mapping

from bert_jax.config import Phase
from bert_jax.errors import UserError
from bert_jax.planning.memory import shortage_of

STRONGER = {"none": ("sel", "full"), "sel": ("full",), "dots": ("full",), "full": ()}
"""For each policy of compute.remat, those that keep less."""
DOES_NOT_FIT = "RESOURCE_EXHAUSTED"
"""How the messages of compilers and allocators begin when memory runs out."""


def advice(*, remat: str, mesh: Mapping[str, int], batch_size: int, micro_batches: int, where: str = "") -> list[str]:
    """Return changes that save memory; those that cost the least time come first.

    Args:
      remat: the policy under which the step does not fit.
      mesh: sizes of its axes.
      batch_size: sequences of a step on all devices.
      micro_batches: parts in which they are computed.
      where: prefix of the names of these two options, such as "phases.0.".
    """
    found = []
    if remedies := STRONGER[remat]:
        found.append(
            f"--compute.remat={' or '.join(remedies)}: the backward pass computes again what it would have to keep"
        )
    if mesh["fsdp"] < mesh["data"] * mesh["fsdp"]:
        split = mesh["data"] * mesh["fsdp"]
        found.append(f"--mesh.data=1 --mesh.fsdp={split}: parameters and moments are split over {split} chips")
    per_device = batch_size // (mesh["slice"] * mesh["data"] * mesh["fsdp"])
    micro = next((n for n in range(micro_batches + 1, per_device + 1) if per_device % n == 0), None)
    if micro is not None:
        found.append(
            f"--{where}micro_batches={micro}: the same batch in {micro} parts, so that the activations of one part are "
            "kept at a time"
        )
        found.append(f"--{where}batch_size={batch_size // micro}: a smaller batch, which trains differently")
    return [*found, "chips with more memory, or more chips with the same batch"]


def phase_advice(phase: Phase, mesh: Mapping[str, int], remat: str) -> list[str]:
    """Return `advice` for a phase of pre-training."""
    return advice(
        remat=remat,
        mesh=mesh,
        batch_size=phase.batch_size,
        micro_batches=phase.micro_batches,
        where=f"phases.{phase.index}.",
    )


def memory_error(error: Exception, what: str, remedies: list[str]) -> Exception:
    """Return a UserError with `remedies` if `error` says that memory has run out, else `error` itself.

    Args:
      error: from a compilation or a computation.
      what: does not fit, such as a phase.
      remedies: what saves memory.
    """
    if DOES_NOT_FIT not in str(error):
        return error
    shortage = shortage_of(str(error))
    missing = (
        f"{shortage.what} needs {shortage.needed / 2**30:.2f} GiB, {shortage.available / 2**30:.2f} GiB are there"
        if shortage.needed
        else shortage.what
    )
    return UserError(f"{what} does not fit into the memory of a device ({missing}); what helps: {'; '.join(remedies)}")
