"""What to change where a phase does not fit into the memory of a chip."""

from bert_jax.config import Config
from bert_jax.planning.phase_plan import PhasePlan

STRONGER = {"none": ("dots", "full"), "dots": ("full",), "full": ()}
"""Policies of compute.remat that keep less than this one."""


def advice(config: Config, plan: PhasePlan) -> list[str]:
    """Return changes that save memory, those that cost least time first; empty for a phase that fits."""
    if plan.fits:
        return []
    number, phase, mesh = plan.phase.index, plan.phase, plan.mesh
    found = []
    if remedies := STRONGER[config.compute.remat]:
        found.append(
            f"--compute.remat={' or '.join(remedies)}: the backward pass computes again what it would have to keep"
        )
    if mesh["fsdp"] < mesh["data"] * mesh["fsdp"]:
        split = mesh["data"] * mesh["fsdp"]
        found.append(f"--mesh.data=1 --mesh.fsdp={split}: parameters and moments are split over {split} chips")
    per_device = phase.batch_size // (mesh["slice"] * mesh["data"] * mesh["fsdp"])
    micro = next((n for n in range(phase.micro_batches + 1, per_device + 1) if per_device % n == 0), None)
    if micro is not None:
        found.append(
            f"--phases.{number}.micro_batches={micro}: the same batch in {micro} parts, so that the activations of one "
            "part are kept at a time"
        )
        found.append(
            f"--phases.{number}.batch_size={phase.batch_size // micro}: a smaller batch, which trains differently"
        )
    return [*found, "chips with more memory, or more chips with the same batch"]
