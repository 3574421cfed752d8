"""What to change where a phase, or the state alone, does not fit into the memory of a chip."""

from collections.abc import Mapping

from bert_jax.config import Phase

STRONGER = {"none": ("sel", "full"), "sel": ("full",), "dots": ("full",), "full": ()}
"""For each policy of compute.remat, those that keep less."""


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
    found += _split(mesh)
    per_device = batch_size // (mesh["slice"] * mesh["data"] * mesh["fsdp"])
    micro = next((n for n in range(micro_batches + 1, per_device + 1) if per_device % n == 0), None)
    if micro is not None:
        found.append(
            f"--{where}micro_batches={micro}: the same batch in {micro} parts, so that the activations of one part are "
            "kept at a time"
        )
        found.append(f"--{where}batch_size={batch_size // micro}: a smaller batch, which trains differently")
    return [*found, "chips with more memory, or more chips with the same batch"]


def state_advice(mesh: Mapping[str, int]) -> list[str]:
    """Return changes by which parameters and moments fit, whatever the batch is."""
    return [*_split(mesh), "a smaller model", "chips with more memory, or more of them with a larger --mesh.fsdp"]


def _split(mesh: Mapping[str, int]) -> list[str]:
    """Return the options that split the state over the chips that hold copies of it; none if there are no copies."""
    chips = mesh["data"] * mesh["fsdp"]
    if mesh["fsdp"] == chips:
        return []
    return [f"--mesh.data=1 --mesh.fsdp={chips}: parameters and moments are split over {chips} chips"]


def phase_advice(phase: Phase, mesh: Mapping[str, int], remat: str) -> list[str]:
    """Return `advice` for a phase of pre-training."""
    return advice(
        remat=remat,
        mesh=mesh,
        batch_size=phase.batch_size,
        micro_batches=phase.micro_batches,
        where=f"phases.{phase.index}.",
    )
